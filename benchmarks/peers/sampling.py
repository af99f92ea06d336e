"""How a sample is taken inside a process: warmed up, compared with what was written, and the median of a few."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.harness import timed
from benchmarks.peers.peer import Peer
from benchmarks.peers.works import Work


def begin(kind: type[Peer], path: str, work: Work) -> Peer:
    """Return the peer at its place, after a small array of the same kind at another place.

    What a library loads or starts at its first use is not for a write or a read to pay.
    """
    place = Path(path)
    warm, small = kind(place.with_name(f"{place.name}-warm-{os.getpid()}")), work.resized(8)
    warm.prepare()
    warm.write(small, small.data())
    read_whole(warm, small.data())
    return kind(place)


def read_whole(store: Peer, data: np.ndarray) -> float:
    """Open the array and read all of it."""
    with timed() as seconds:
        array = store.open()
        found = store.read(array, np.s_[:, :])
        store.close(array)
    compare(found, data)
    return seconds()


def compare(found: np.ndarray, written: np.ndarray) -> None:
    if not np.array_equal(found, written):
        raise AssertionError("what was read is not what was written")


def median_of(take: Callable[[], float], *, at_most: int = 3, enough: float = 0.5) -> float:
    """Take samples, fewer where they are long."""
    began = time.monotonic()
    samples = [take()]
    while len(samples) < at_most and time.monotonic() - began < enough:
        samples.append(take())
    return statistics.median(samples)

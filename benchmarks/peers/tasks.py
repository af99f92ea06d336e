"""What a process of its own does for one sample: it takes an order on stdin, and says on stdout how long it took.

Each begins with a small array of the same kind at another place: what a library loads or starts at its first use is
not for a write or a read to pay. What is read is compared with what was written, outside of the time.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import timed
from benchmarks.peers.peer import NotOffered, Peer
from benchmarks.peers.roster import PEERS
from benchmarks.peers.works import WORKS, Work

Seconds = dict[str, float]

RANDOM = 200  # chunks
LINE = 5  # of each chunk's columns
STRIDES = np.s_[::7, ::3]


def write(peer: str, path: str, work: str) -> Seconds:
    chosen = WORKS[work]
    store, data = _begin(peer, path, chosen)
    store.prepare()
    with timed() as seconds:
        store.write(chosen, data)
    return {"write": seconds()}


def read(peer: str, path: str, work: str, selections: list[str]) -> Seconds:
    """Read as a whole, from a store that is opened anew; then what else is asked for, from an open one."""
    chosen = WORKS[work]
    store, data = _begin(peer, path, chosen)
    if store.volatile:
        store.prepare()
        store.write(chosen, data)
    found: Seconds = {"read": _median(lambda: _read_whole(store, data))}
    array = store.open()
    for name in selections:
        found[name] = _median(lambda name=name: _read_selected(store, array, chosen, data, name), first_counts=False)
    store.close(array)
    return found


def _begin(peer: str, path: str, work: Work) -> tuple[Peer, np.ndarray]:
    kind = PEERS[peer]
    place = Path(path)
    warm = kind(place.with_name(f"{place.name}-warm-{os.getpid()}"))
    small = work.resized(8)
    warm.prepare()
    warm.write(small, small.data())
    _read_whole(warm, small.data())
    return kind(place), work.data()


def _read_whole(store: Peer, data: np.ndarray) -> float:
    with timed() as seconds:
        array = store.open()
        found = store.read(array, np.s_[:, :])
        store.close(array)
    _compare(found, data)
    return seconds()


def _read_selected(store: Peer, array: Any, work: Work, data: np.ndarray, name: str) -> float:
    selections = {"random": work.random_chunks(RANDOM), "line": [np.s_[:, LINE]], "strided": [STRIDES]}[name]
    with timed() as seconds:
        found = [store.read(array, selection) for selection in selections]
    for selection, values in zip(selections, found, strict=True):
        _compare(values, data[selection])
    return seconds()


def _compare(found: np.ndarray, written: np.ndarray) -> None:
    if not np.array_equal(found, written):
        raise AssertionError("what was read is not what was written")


def _median(take: Callable[[], float], *, first_counts: bool = True, at_most: int = 3, enough: float = 1.0) -> float:
    """Take samples, fewer where they are long."""
    if not first_counts:
        take()
    began = time.monotonic()
    samples = [take()]
    while len(samples) < at_most and time.monotonic() - began < enough:
        samples.append(take())
    return statistics.median(samples)


TASKS: dict[str, Callable[..., dict[str, Any]]] = {"write": write, "read": read}


def main() -> None:
    warnings.simplefilter("ignore")
    answer, sys.stdout = sys.stdout, sys.stderr  # libraries print, too
    order = json.load(sys.stdin)
    try:
        said = {"values": TASKS[order.pop("task")](**order)}
    except NotOffered as why:
        said = {"not offered": str(why)}
    json.dump(said, answer)
    answer.flush()
    os._exit(0)  # no time for threads and caches that are of no use any more


if __name__ == "__main__":
    main()

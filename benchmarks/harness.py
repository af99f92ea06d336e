"""How it is measured: in pairs, side by side, in one run.

Absolute times say more about the machine and its other users than about the code. So nearly every row is a ratio to a
peer that does the same work in the same process and on the same disk, alternating with it (A B, B A, A B, ...), after a
round that does not count. What is compared with the target is the median of the ratios of the pairs.
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

Samples = dict[str, list[float]]
Take = Callable[[], float]  # one sample, in seconds: only the part that counts

OURS = "TxStore"


@dataclass(frozen=True)
class Row:
    """One promise: what was measured, and what it must reach."""

    name: str
    what: str
    measured: float
    target: float
    unit: str = "×"
    at_least: bool = False
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    figures: Sequence[Mapping[str, Any]] = ()  # what else was counted, for the results' file

    @property
    def ok(self) -> bool:
        return self.measured >= self.target if self.at_least else self.measured <= self.target

    def as_dict(self) -> dict[str, Any]:
        told = asdict(self)
        bound = {"at_least" if told.pop("at_least") else "at_most": told.pop("target")}
        return told | {"must_reach": bound, "ok": self.ok, "medians": medians(self.samples)}


@dataclass(frozen=True)
class Setting:
    """Where and how thoroughly to measure."""

    directory: Path
    quick: bool = False

    def rounds(self, thorough: int, quick: int) -> int:
        return quick if self.quick else thorough

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        with TemporaryDirectory(prefix="benchmark-", dir=self.directory) as path:
            yield Path(path)


def finish_requests() -> None:
    """Return when this process has asked for all that nobody waits for: its last head cache, and what it deletes.

    So it does when it ends in good order. Else this would count as what comes next.
    """
    for thread in threading.enumerate():
        if thread.name == "txstore head cache":
            thread.join(60)
    from txstore.storage.dispatch import wait_for_cleanup  # here: one benchmark measures processes without txstore

    wait_for_cleanup(60)


def fill_keys(repo: Any, keys: int, in_a_commit: int) -> None:
    """Commit so many keys of one array, a number of them at a time."""
    for first in range(0, keys, in_a_commit):
        with repo.begin("fill") as transaction:
            for number in range(first, min(first + in_a_commit, keys)):
                transaction[f"position/c/{number}"] = number.to_bytes(8, "little")


def settle(directory: Path) -> None:
    """Leave nothing behind that the next sample would pay for: garbage, or what the journal still has to write."""
    gc.collect()
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def interleaved(takes: Mapping[str, Take], rounds: int, *, before_each: Callable[[], object] = gc.collect) -> Samples:
    """Take samples in turns; in every second round in the opposite order. The first round is dropped.

    A sample must clean up behind itself, before the next one begins and outside of its own time.
    """
    samples: Samples = {who: [] for who in takes}
    for number in range(rounds + 1):
        order = list(takes.items())
        for who, take in order if number % 2 == 0 else reversed(order):
            before_each()
            sample = take()
            if number:
                samples[who].append(sample)
    return samples


def ratio(samples: Samples, above: str, below: str) -> float:
    """Return the median of the ratios of the pairs."""
    return statistics.median(a / b for a, b in zip(samples[above], samples[below], strict=True))


def slower(name: str, what: str, samples: Samples, who: str, peer: str, most: float) -> Row:
    """Return the row of what takes at most so many times as long as a peer does."""
    return Row(name, what, ratio(samples, who, peer), most, samples=samples)


def faster(name: str, what: str, samples: Samples, who: str, peer: str, least: float, **more: Any) -> Row:
    """Return the row of what must be at least so many times as fast as a peer."""
    found = ratio(samples, peer, who)
    return Row(name, what, found, least, at_least=True, samples=samples, **more)


def middle(name: str, what: str, samples: Sequence[float], most: float, unit: str) -> Row:
    """Return the row of the median of what TxStore alone has taken."""
    return Row(name, what, statistics.median(samples), most, unit, samples={OURS: samples})


def compare(found: object, written: object) -> None:
    import numpy as np  # late: one benchmark measures processes without it

    if not np.array_equal(found, written):  # type: ignore[arg-type]
        raise AssertionError("what was read is not what was written")


def medians(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {who: statistics.median(taken) for who, taken in samples.items()}


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return the smallest sample that so many percent do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def seconds_of(function: Callable[[], object]) -> float:
    with timed() as seconds:
        function()
    return seconds()


@contextmanager
def timed() -> Iterator[Callable[[], float]]:
    """Time a `with` block: what it gives returns the seconds, once the block has ended."""
    began = time.perf_counter()
    ended = began
    yield lambda: ended - began
    ended = time.perf_counter()

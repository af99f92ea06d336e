"""How long after a commit its followers know of it: from right before the rename that publishes it, in another process.

Both processes read the one monotonic clock of the machine. The writer pauses between its commits, so that the follower
sleeps when the next one is made.
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import txstore
from benchmarks.harness import Row, Setting, percentile, settle

_PAUSE = 0.003, 0.012  # seconds, at random
_PATIENCE = 60.0  # seconds until one that was never told is given up
_SPAWN = multiprocessing.get_context("spawn")


def _follow(path: str, pipe: Connection) -> None:
    """Tell when each commit came out, until killed."""
    commits = txstore.Repository(path).follow()
    pipe.send((0, 0.0))
    for commit in commits:
        woken = time.monotonic()
        pipe.send((commit.version, woken))


class Publications:
    """When each rename into a version of a repository began."""

    def __init__(self, repo: txstore.Repository) -> None:
        self.began = 0.0
        self._rename = repo.engine.storage.rename_noreplace
        repo.engine.storage.rename_noreplace = self._timed  # type: ignore[method-assign]

    def _timed(self, source: str, target: str) -> None:
        self.began = time.monotonic()
        self._rename(source, target)


def _append(repo: txstore.Repository, number: int) -> None:
    with repo.begin("append") as transaction:
        transaction[f"position/c/{number}"] = number.to_bytes(800, "little")


def _latencies(path: Path, rounds: int) -> list[float]:
    """Return seconds, one for each commit."""
    repo = txstore.Repository(path)
    _append(repo, 0)
    publications = Publications(repo)
    reading, writing = _SPAWN.Pipe(duplex=False)
    follower = _SPAWN.Process(target=_follow, args=(str(path), writing), daemon=True)
    follower.start()
    writing.close()
    try:
        _receive(reading)
        chance = random.Random(0)
        found = []
        for number in range(rounds + 10):
            time.sleep(chance.uniform(*_PAUSE))
            _append(repo, number + 1)
            version, woken = _receive(reading)
            if version != number + 1:
                raise AssertionError(f"told of version {version} instead of {number + 1}")
            found.append(woken - publications.began)
    finally:
        follower.kill()
        follower.join()
    return found[10:]


def _receive(pipe: Connection) -> tuple[int, float]:
    if not pipe.poll(_PATIENCE):
        raise TimeoutError("the follower was not told of a commit")
    told: tuple[int, float] = pipe.recv()
    return told


def follow(setting: Setting) -> list[Row]:
    with setting.scratch() as scratch:
        settle(scratch)
        found = [1e3 * seconds for seconds in _latencies(scratch / "data.tx", setting.rounds(500, 100))]
    median = statistics.median(found)
    what = f"durable commit to wake-up of a follower, median (99th percentile {percentile(found, 99):.2f} ms)"
    return [Row("follow", what, median, 1.0, "ms", medians={"TxStore": median}, samples={"TxStore": found})]


BENCHMARKS: dict[str, Callable[[Setting], list[Row]]] = {"follow": follow}

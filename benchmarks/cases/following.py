"""Commits that another process waits for.

How long after a commit its followers know of it: from right before the rename that publishes it. Both processes read
the one monotonic clock of the machine. The writer pauses between its commits, so that the follower sleeps when the next
one is made.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import txstore
from benchmarks.harness import Row, Setting, middle, percentile, settle
from benchmarks.own_process import Parent, Process

_PAUSE = 0.003, 0.012  # seconds, at random
_WARM = 10


def follow_commits(path: Path, parent: Parent) -> None:
    """Tell when each commit came out, until killed."""
    commits = txstore.Repository(path).follow()
    parent.tell(None)
    for commit in commits:
        woken = time.monotonic()
        parent.tell((commit.version, woken))


def _append(repo: txstore.Repository, number: int) -> None:
    with repo.begin("append") as transaction:
        transaction[f"position/c/{number}"] = number.to_bytes(800, "little")


def follow(setting: Setting) -> list[Row]:
    chance, found = random.Random(0), list[float]()
    with setting.scratch() as scratch:
        settle(scratch)
        repo = txstore.Repository(scratch / "data.tx")
        _append(repo, 0)
        storage = repo.engine.storage
        rename, renamed = storage.rename_noreplace, [0.0]

        def timed_rename(source: str, target: str) -> None:
            renamed[0] = time.monotonic()
            rename(source, target)

        storage.rename_noreplace = timed_rename  # type: ignore[method-assign]
        with Process(follow_commits, path=scratch / "data.tx") as follower:
            follower.hear()
            for number in range(1, setting.rounds(500, 100) + _WARM + 1):
                time.sleep(chance.uniform(*_PAUSE))
                _append(repo, number)
                version, woken = follower.hear()
                if version != number:
                    raise AssertionError(f"told of version {version} instead of {number}")
                found.append(1e3 * (woken - renamed[0]))
    found = found[_WARM:]
    what = f"durable commit to wake-up of a follower, median (99th percentile {percentile(found, 99):.2f} ms)"
    return [middle("follow", what, found, 1.0, "ms")]


CASES = {"follow": follow}

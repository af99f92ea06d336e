"""Commits that another process waits for, and feeds.

How long after a commit its followers know of it: from right before the rename that publishes it. Both processes read
the one monotonic clock of the machine. The writer pauses between its commits, so that the follower sleeps when the next
one is made. And of a feed that is a hundred thousand commits behind: all that is pending as one change.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from pathlib import Path

import zarr

import txstore
from benchmarks.harness import Row, Setting, middle, percentile, settle, timed
from benchmarks.memory import read_status
from benchmarks.own_process import Parent, Process, ask

_PAUSE = 0.003, 0.012  # seconds, at random
_WARM = 10
_CHUNKS = 1000


class Publications:
    """When each rename into a version of a repository began."""

    def __init__(self, repo: txstore.Repository) -> None:
        self.began = 0.0
        self._rename = repo.engine.storage.rename_noreplace
        repo.engine.storage.rename_noreplace = self._timed  # type: ignore[method-assign]

    def _timed(self, source: str, target: str) -> None:
        self.began = time.monotonic()
        self._rename(source, target)


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
        publications = Publications(repo)
        with Process(follow_commits, path=scratch / "data.tx") as follower:
            follower.hear()
            for number in range(1, setting.rounds(500, 100) + _WARM + 1):
                time.sleep(chance.uniform(*_PAUSE))
                _append(repo, number)
                version, woken = follower.hear()
                if version != number:
                    raise AssertionError(f"told of version {version} instead of {number}")
                found.append(1e3 * (woken - publications.began))
    found = found[_WARM:]
    what = f"durable commit to wake-up of a follower, median (99th percentile {percentile(found, 99):.2f} ms)"
    return [middle("follow", what, found, 1.0, "ms")]


# --- feeds


def fill(path: Path, commits: int) -> None:
    """Make a repository with two feeds: one a hundredth of the commits behind the other one."""
    repo = txstore.Repository(path, durability="none")
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=(_CHUNKS * 8,), chunks=(8,), dtype="u1", compressors=None)
    repo.feeds.create("far", paths="x")
    for number in range(commits):
        if number == commits - commits // 100:
            repo.feeds.create("near", paths="x")
        with repo.begin() as transaction:
            transaction[f"x/c/{number * 7 % _CHUNKS}"] = (number + 1).to_bytes(8, "little")


def take(path: Path, feed: str) -> tuple[float, float]:
    """Return how long it took to have all that is pending, with the newest values, and the most memory ever used."""
    repo = txstore.Repository(path)
    with timed() as seconds:
        (change,) = repo.feeds[feed].changes(combine=True)
        (node,) = change.nodes
        array = zarr.open_array(change.snapshot(), path="x", mode="r")
        values = sum(array[region].size for region in node.regions)
    assert 0 < values <= _CHUNKS * 8
    return seconds(), read_status(os.getpid())["VmHWM"]


def behind(setting: Setting) -> list[Row]:
    """Take all that is pending in a new process each time."""
    commits = setting.rounds(100_000, 2_000)
    with setting.scratch() as scratch:
        fill(scratch / "data.tx", commits)
        settle(scratch)
        rounds = setting.rounds(5, 1)
        found = {
            feed: [ask(take, path=scratch / "data.tx", feed=feed) for _ in range(rounds)] for feed in ("far", "near")
        }
    memory = {feed: [size for _, size in each] for feed, each in found.items()}
    most = {feed: statistics.median(each) for feed, each in memory.items()}
    what = f"all changes of {commits:,} commits of {_CHUNKS:,} chunks as one, with their values"
    more = f"the same, its memory: beside {commits // 100:,} commits"
    return [
        middle("feeds behind", what, [seconds for seconds, _ in found["far"]], 2, "s"),
        Row("feeds behind", more, most["far"] / most["near"], 1.2, medians=most, samples=memory),
    ]


CASES = {"follow": follow, "feeds behind": behind}

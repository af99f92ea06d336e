"""Feeds: all that is pending as one change, a hundred thousand commits behind."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import zarr

import txstore
from benchmarks.harness import Row, Setting, settle
from benchmarks.peers.memory import read_status

_SPAWN = multiprocessing.get_context("spawn")
_CHUNKS = 1000
_PATIENCE = 600.0


def _make(path: Path, commits: int) -> None:
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


def _take(path: str, feed: str, pipe: Connection) -> None:
    """Tell how long it took to have all that is pending, with the newest values, and the most memory ever used."""
    repo = txstore.Repository(path)
    began = time.perf_counter()
    (change,) = repo.feeds[feed].changes(combine=True)
    (node,) = change.nodes
    array = zarr.open_array(change.snapshot(), path="x", mode="r")
    values = sum(array[region].size for region in node.regions)
    seconds = time.perf_counter() - began
    assert 0 < values <= _CHUNKS * 8
    pipe.send((seconds, read_status(os.getpid())["VmHWM"]))


def _taken(path: Path, feed: str) -> tuple[float, float]:
    reading, writing = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=_take, args=(str(path), feed, writing), daemon=True)
    process.start()
    writing.close()
    if not reading.poll(_PATIENCE):
        raise TimeoutError("the changes of the feed did not come")
    told: tuple[float, float] = reading.recv()
    process.join()
    return told


def behind(setting: Setting) -> list[Row]:
    """Take all that is pending, a hundred thousand commits behind, in a new process each time."""
    commits = setting.rounds(100_000, 10_000)
    with setting.scratch() as scratch:
        path = scratch / "data.tx"
        _make(path, commits)
        settle(scratch)
        found = {feed: [_taken(path, feed) for _ in range(setting.rounds(5, 2))] for feed in ("far", "near")}
    samples = {feed: [seconds for seconds, _ in each] for feed, each in found.items()}
    memory = {feed: [size for _, size in each] for feed, each in found.items()}
    most = {feed: statistics.median(each) for feed, each in memory.items()}
    what = f"all changes of {commits:,} commits of {_CHUNKS:,} chunks as one, with their values"
    more = f"the same, its memory: beside {commits // 100:,} commits"
    return [
        Row("feeds behind", what, statistics.median(samples["far"]), 2, "s", samples=samples),
        Row("feeds behind", more, most["far"] / most["near"], 1.2, medians=most, samples=memory),
    ]


BENCHMARKS: dict[str, Callable[[Setting], list[Row]]] = {"feeds behind": behind}

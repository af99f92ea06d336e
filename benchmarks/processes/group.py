"""Small durable commits of eight processes at once: in a queue, synced side by side, against one after another.

The second is how it was before there was a line: each is synced while it has the turn, which still is what others do
who don't queue. On a disk that is durable in no time both wait for Python. So it is measured on this disk, and
on one whose flushes take as long as those of most disks.
"""

from __future__ import annotations

import fcntl
import itertools
import multiprocessing
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import txstore
from benchmarks.harness import OURS, Row, Setting, interleaved, medians, percentile, ratio, settle
from txstore.commit_queue.strategy import UnderLock
from txstore.storage import local
from txstore.storage.local import LocalStorage

PROCESSES = 8
BEFORE = "one sync after another"
#: Seconds that a flush takes: of a disk in the network, or of one for consumers.
FLUSH = 0.005

_CHUNK = np.arange(100.0).tobytes()
_SPAWN = multiprocessing.get_context("spawn")
_STATE = struct.Struct("dq")  # when the flush that is under way is done, and whether another is asked for


class Disk:
    """A disk that does one flush at a time: whoever asks for one while it does gets the next, with all who do.

    So does a journal of a file system. All processes know of it by a file.
    """

    def __init__(self, path: str, seconds: float) -> None:
        self._path = path
        self._seconds = seconds

    def flush(self) -> None:
        with open(self._path, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            now = time.monotonic()
            done, is_asked = _STATE.unpack(file.read(_STATE.size))
            if is_asked and now >= done:
                done, is_asked = done + self._seconds, 0
            is_idle = now >= done
            mine = (now if is_idle else done) + self._seconds
            file.seek(0)
            file.write(_STATE.pack(mine if is_idle else done, 0 if is_idle else 1))
        time.sleep(max(0.0, mine - time.monotonic()))

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let what is synced in this process be flushed here, too."""
        if not self._seconds:
            yield
            return
        sync, sync_names = local._sync, LocalStorage._sync_names

        def slow(descriptor: int) -> None:
            sync(descriptor)
            self.flush()

        def slow_names(storage: LocalStorage, path: str) -> None:
            sync_names(storage, path)
            self.flush()

        local._sync, LocalStorage._sync_names = slow, slow_names  # type: ignore[method-assign]
        try:
            yield
        finally:
            local._sync, LocalStorage._sync_names = sync, sync_names  # type: ignore[method-assign]


class _Task(NamedTuple):
    path: str
    commits: int
    queues: bool
    flush: float


def _serve(pipe: Connection, barrier: Any, number: int) -> None:
    """Commit as told, until told no more."""
    pipe.send(None)
    while (task := pipe.recv()) is not None:
        UnderLock.queues = task.queues
        disk = Disk(f"{task.path}.disk", task.flush)
        repo = txstore.Repository(task.path)
        commit(repo, number, 0)
        seconds = []
        with disk.used():
            barrier.wait()
            began = time.monotonic()
            for each in range(1, task.commits + 1):
                start = time.monotonic()
                commit(repo, number, each)
                seconds.append(time.monotonic() - start)
        pipe.send((began, time.monotonic(), seconds))


def commit(repo: txstore.Repository, process: int, number: int) -> None:
    with repo.begin("append") as transaction:
        transaction[f"{process}/c/{number}"] = _CHUNK


class Crowd:
    """Processes that commit at once, to a new repository each time."""

    def __init__(self, folder: Path, commits: int) -> None:
        self._folder = folder
        self._commits = commits
        self._numbers = itertools.count()
        barrier = _SPAWN.Barrier(PROCESSES)
        self._pipes = []
        self.latencies: dict[bool, list[float]] = {True: [], False: []}
        for number in range(PROCESSES):
            ours, theirs = _SPAWN.Pipe()
            _SPAWN.Process(target=_serve, args=(theirs, barrier, number), daemon=True).start()
            theirs.close()
            self._pipes.append(ours)
        for pipe in self._pipes:
            pipe.recv()  # it is up

    def take(self, flush: float, *, queues: bool) -> float:
        path = f"{self._folder}/{next(self._numbers)}.tx"
        repo = txstore.Repository(path)
        commit(repo, PROCESSES, 0)
        with open(f"{path}.disk", "wb") as file:
            file.write(bytes(_STATE.size))
        settle(self._folder)
        for pipe in self._pipes:
            pipe.send(_Task(path, self._commits, queues, flush))
        told = [pipe.recv() for pipe in self._pipes]
        self.latencies[queues] += [each for _, _, seconds in told for each in seconds]
        made = len(list(repo.log()))
        if made != 1 + PROCESSES * (self._commits + 1):
            raise RuntimeError(f"{path}: {made} commits are there")
        return float(max(ended for _, ended, _ in told) - min(began for began, _, _ in told))

    def end(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)


def group(setting: Setting) -> list[Row]:
    commits = setting.rounds(40, 15)
    rows = []
    with setting.scratch() as scratch:
        crowd = Crowd(scratch, commits)
        for name, where, flush, target in (
            ("commit-group", f"a disk that flushes in {FLUSH * 1e3:.0f} ms", FLUSH, 2.0),
            ("commit-group-here", "this disk", 0.0, 1.0),
        ):
            crowd.latencies = {True: [], False: []}
            takes: dict[str, Callable[[], float]] = {
                OURS: lambda flush=flush: crowd.take(flush, queues=True),  # type: ignore[misc]
                BEFORE: lambda flush=flush: crowd.take(flush, queues=False),  # type: ignore[misc]
            }
            samples = interleaved(takes, setting.rounds(7, 2))
            figures = [
                {
                    "who": who,
                    "commits a second": PROCESSES * commits / medians(samples)[who],
                    "median of one": percentile(crowd.latencies[queues], 50),
                    "99th percentile": percentile(crowd.latencies[queues], 99),
                    "load": os.getloadavg()[0],
                }
                for who, queues in ((OURS, True), (BEFORE, False))
            ]
            a_second = " and ".join(f"{each['commits a second']:.0f}" for each in figures)
            what = f"{PROCESSES} processes of small commits on {where}: commits a second, of {BEFORE} ({a_second})"
            measured = ratio(samples, BEFORE, OURS)
            rows.append(
                Row(
                    name, what, measured, target, at_least=True, medians=medians(samples), samples=samples,
                    figures=figures,
                )
            )  # fmt: skip
        crowd.end()
    return rows


BENCHMARKS: dict[str, Callable[[Setting], list[Row]]] = {"commit-group": group}

"""Chunk-key locks, against a lock file for each chunk: by fasteners, as in zarr 2's synchronizer, and by filelock.

A peer's lock object is made when its key is wanted, as it was there; its file exists already. No process asks for a
lock that it holds.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import resource
import signal
import time
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.harness import OURS, Row, Samples, Setting, Take, faster, interleaved, middle, timed
from benchmarks.own_process import Parent, Process, together
from txstore.locks.chunk_locks import ChunkLocks, Owner

FASTENERS, FILELOCK, FALLBACK = "fasteners", "filelock", "TxStore without shared memory"
PEERS = {FASTENERS: "InterProcessLock", FILELOCK: "FileLock"}
_PATIENCE = 60  # seconds
_MANY = [f"position/c/{row}/{column}" for row in range(100) for column in range(100)]


def _owner(path: Path, kind: str | None = None) -> Owner:
    path.mkdir(exist_ok=True)
    locks = ChunkLocks(str(path), str(path), kind=kind)
    owner = locks.owner()
    owner.acquire("position/c/0")  # there is a table from then on
    owner.release("position/c/0")
    assert locks.kind == (kind or "table")
    return owner


class Peer:
    """The lock files of a peer, by the interface of our owners of locks."""

    def __init__(self, who: str, path: Path, keys: Sequence[str] = ()) -> None:
        path.mkdir(exist_ok=True)
        self._path, self._make = path, getattr(import_module(who), PEERS[who])
        self._made = {key: self._lock(key) for key in keys}  # of these the locks are made once
        self._held: list[Any] = []

    def _lock(self, key: str) -> Any:
        return self._make(f"{self._path}/{key.replace('/', '.')}.lock")

    def acquire(self, keys: str | Sequence[str]) -> None:
        for key in [keys] if isinstance(keys, str) else keys:
            lock = self._made.get(key) or self._lock(key)
            lock.acquire()
            self._held.append(lock)

    def release(self, _keys: str | Sequence[str]) -> None:
        for lock in self._held:
            lock.release()
        self._held.clear()


def _take(who: str, path: Path, wanted: Sequence[str | list[str]]) -> Take:
    """Return what locks and releases one thing after the other, and tells how long each took."""
    locks = Peer(who, path) if who in PEERS else _owner(path, "ranges" if who == FALLBACK else None)

    def take() -> float:
        acquire, release = locks.acquire, locks.release
        with timed() as seconds:
            for keys in wanted:
                acquire(keys)
                release(keys)
        return seconds() / len(wanted)

    return take


def _rows(name: str, what: str, samples: Samples, least: dict[str, float]) -> list[Row]:
    """Return a row for each peer, and one for TxStore without shared memory."""
    fallback = "the same without shared memory"
    rows = {
        FASTENERS: (name, what, OURS, FASTENERS),
        FILELOCK: (f"{name}-filelock", what, OURS, FILELOCK),
        FALLBACK: (f"{name}-fallback", fallback, FALLBACK, FASTENERS),
    }
    return [
        faster(called, f"{told}: time of {peer}", samples, ours, peer, least[who])
        for who, (called, told, ours, peer) in rows.items()
        if who in least
    ]


# --- one key, and many


def one(setting: Setting) -> list[Row]:
    counts = {OURS: 50_000, FALLBACK: 2_000, FASTENERS: 1_000, FILELOCK: 500}
    with setting.scratch() as scratch:
        takes = {
            who: _take(who, scratch / who, [f"position/c/{number}" for number in range(count)])
            for who, count in counts.items()
        }
        samples = interleaved(takes, setting.rounds(15, 3))
    least = {FASTENERS: 150, FILELOCK: 700, FALLBACK: 3}
    return _rows("lock-one", "lock and release one key after the other", samples, least)


def many(setting: Setting) -> list[Row]:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(len(_MANY) + 1000, most), most))  # as many files as the peers need
    with setting.scratch() as scratch:
        # Of ours one would be shorter than the turns of other processes.
        times = {OURS: 20, FALLBACK: 20, FASTENERS: 1, FILELOCK: 1}
        takes = {who: _take(who, scratch / who, [_MANY] * repeated) for who, repeated in times.items()}
        samples = interleaved(takes, setting.rounds(5, 1))
    least = {FASTENERS: 500, FILELOCK: 2000, FALLBACK: 10}
    return _rows("lock-many", "lock 10,000 keys and release them", samples, least)


# --- several processes


def contend(who: str, path: Path, wanted: Sequence[Sequence[str]], seconds: float, parent: Parent) -> int:
    """Lock one set of keys after the other, and count the locks that were had."""
    locks = Peer(who, path, sorted({key for keys in wanted for key in keys})) if who in PEERS else _owner(path)
    had = 0
    parent.meet()
    until = time.perf_counter() + seconds
    for keys in itertools.cycle(wanted):
        if time.perf_counter() >= until:
            break
        locks.acquire(keys)
        locks.release(keys)
        had += len(keys)
    parent.meet()  # a process of fasteners that ends with others waiting would disturb them
    return had


def contended(setting: Setting) -> list[Row]:
    seconds = 1.0 if setting.quick else 2.0
    keys, chosen = [f"position/c/{number:02}" for number in range(64)], [random.Random(0), random.Random(1)]
    sets = [[sorted(each.sample(keys, 8)) for _ in range(1000)] for each in chosen]
    with setting.scratch() as scratch:

        def take(who: str) -> float:
            orders = [{"who": who, "path": scratch / who, "wanted": each, "seconds": seconds} for each in sets]
            return seconds / max(1, sum(together(contend, orders, meetings=2)))

        samples = interleaved({who: partial(take, who) for who in (OURS, FASTENERS, FILELOCK)}, setting.rounds(3, 1))
    what = "two processes, 8 of 64 keys at a time, held for no time"
    return _rows("lock-contended", what, samples, {FASTENERS: 60, FILELOCK: 300})


def fair(setting: Setting) -> list[Row]:
    seconds = 1.0 if setting.quick else 5.0
    with setting.scratch() as scratch:
        order = {"who": OURS, "path": scratch / "table", "wanted": [["position/c/0"]], "seconds": seconds}
        shares = together(contend, [order] * 2, meetings=2)
    what = f"two processes that want one key all the time, {seconds:g} s: share of the smaller"
    turns = {"turns": [float(share) for share in shares]}
    return [Row("lock-fair", what, min(shares) / max(shares), 0.9, at_least=True, samples=turns)]


def hold(path: Path, keys: list[str], parent: Parent) -> None:
    owner = _owner(path)
    owner.acquire(keys)
    parent.meet()  # never goes on


def kill_soon(pid: int) -> float:
    time.sleep(0.3)  # the waiter waits by then
    now = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return now


def killed(setting: Setting) -> list[Row]:
    """The waiter is this process; the time from before the kill until it has all of the locks."""
    keys, took = _MANY[:3000], list[float]()
    with setting.scratch() as scratch:
        owner = _owner(scratch / "table")
        for _ in range(setting.rounds(15, 5)):
            with Process(hold, path=scratch / "table", keys=keys) as holder:
                holder.hear()
                with Process(kill_soon, pid=holder.pid) as killer:
                    dirty = owner.acquire(keys, _PATIENCE)
                    now = time.monotonic()
                    took.append((now - killer.answer()) * 1000 if len(dirty) == len(keys) else math.inf)
                    owner.release(keys)
    what = "kill -9 of a holder of 3,000 locks: until a waiter has them, told that they are dirty"
    return [middle("lock-killed", what, took, 50, "ms")]


CASES = {
    "locks-one": one, "locks-many": many, "locks-contended": contended, "locks-fair": fair, "locks-killed": killed,
}  # fmt: skip

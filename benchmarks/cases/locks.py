"""Chunk-key locks, against a lock file for each chunk: by fasteners, as in zarr 2's synchronizer, and by filelock.

A peer's lock object is made when its key is wanted, as it was there; its file exists already. No process asks for a
lock that it holds.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fasteners
import filelock

from benchmarks.harness import OURS, Row, Samples, Setting, Take, faster, interleaved, middle, timed
from benchmarks.own_process import Parent, Process, together
from txstore.locks.chunk_locks import ChunkLocks, Owner

FASTENERS, FILELOCK, FALLBACK = "fasteners", "filelock", "TxStore without shared memory"
_PATIENCE = 60  # seconds
_REPEATED = 20
_MANY = [f"position/c/{row}/{column}" for row in range(100) for column in range(100)]


def _owner(path: Path, kind: str | None = None) -> Owner:
    path.mkdir(exist_ok=True)
    locks = ChunkLocks(str(path), str(path), kind=kind)
    owner = locks.owner()
    owner.acquire("position/c/0")  # there is a table from then on
    owner.release("position/c/0")
    assert locks.kind == (kind or "table")
    return owner


def _peer(who: str, path: Path) -> Callable[[str], Any]:
    """Return what makes the lock of a key."""
    path.mkdir(exist_ok=True)
    make: Callable[[str], Any] = fasteners.InterProcessLock if who == FASTENERS else filelock.FileLock
    return lambda key: make(f"{path}/{key.replace('/', '.')}.lock")


def _rows(name: str, what: str, samples: Samples, least: dict[str, float]) -> list[Row]:
    """Return a row for each peer, and one for TxStore without shared memory."""
    peers = {FASTENERS: (name, OURS, what), FILELOCK: (f"{name}-filelock", OURS, what)}
    rows = [(*peers[peer], peer, times) for peer, times in least.items() if peer != FALLBACK]
    if FALLBACK in least:
        rows.append((f"{name}-fallback", FALLBACK, "the same without shared memory", FASTENERS, least[FALLBACK]))
    return [
        faster(name, f"{what}: time of {peer}", samples, ours, peer, times) for name, ours, what, peer, times in rows
    ]


# --- one key, and many


def _one_by_one(who: str, path: Path, count: int) -> Take:
    keys = [f"position/c/{number}" for number in range(count)]
    is_peer = who in (FASTENERS, FILELOCK)
    owner = None if is_peer else _owner(path, "ranges" if who == FALLBACK else None)
    make = _peer(who, path) if is_peer else None

    def take() -> float:
        if owner is not None:
            acquire, release = owner.acquire, owner.release
            with timed() as seconds:
                for key in keys:
                    acquire(key)
                    release(key)
        elif make is not None:
            with timed() as seconds:
                for key in keys:
                    lock = make(key)
                    lock.acquire()
                    lock.release()
        return seconds() / count

    return take


def one(setting: Setting) -> list[Row]:
    counts = {OURS: 50_000, FALLBACK: 2_000, FASTENERS: 1_000, FILELOCK: 500}
    with setting.scratch() as scratch:
        takes = {who: _one_by_one(who, scratch / who, count) for who, count in counts.items()}
        samples = interleaved(takes, setting.rounds(15, 3))
    return _rows(
        "lock-one", "lock and release one key after the other", samples, {FASTENERS: 150, FILELOCK: 700, FALLBACK: 3}
    )


def _many(who: str, path: Path) -> Take:
    is_peer = who in (FASTENERS, FILELOCK)
    owner = None if is_peer else _owner(path, "ranges" if who == FALLBACK else None)
    make = _peer(who, path) if is_peer else None

    def take() -> float:
        if owner is not None:
            with timed() as seconds:
                for _ in range(_REPEATED):  # one would be shorter than the turns of other processes
                    owner.acquire(_MANY)
                    owner.release(_MANY)
            return seconds() / _REPEATED
        assert make is not None
        with timed() as seconds:
            held = [make(key) for key in _MANY]
            for lock in held:
                lock.acquire()
            for lock in held:
                lock.release()
        return seconds()

    return take


@contextlib.contextmanager
def _descriptors(count: int) -> Iterator[None]:
    """Allow as many open files as the peers need."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], min(count, before[1])), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def many(setting: Setting) -> list[Row]:
    with setting.scratch() as scratch, _descriptors(len(_MANY) + 1000):
        takes = {who: _many(who, scratch / who) for who in (OURS, FALLBACK, FASTENERS, FILELOCK)}
        samples = interleaved(takes, setting.rounds(5, 1))
    return _rows(
        "lock-many", "lock 10,000 keys and release them", samples, {FASTENERS: 500, FILELOCK: 2000, FALLBACK: 10}
    )


# --- several processes


def contend(who: str, path: Path, seed: int, seconds: float, parent: Parent) -> int:
    """Lock 8 of 64 keys at a time, and count the locks that were had."""
    chosen = random.Random(seed)
    keys = [f"position/c/{number:02}" if who != OURS else f"position/c/{number}" for number in range(64)]
    sets = [sorted(chosen.sample(keys, 8)) for _ in range(1000)]
    owner = _owner(path) if who == OURS else None
    made = {} if who == OURS else {key: _peer(who, path)(key) for key in keys}
    had = 0
    parent.meet()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        wanted = sets[had // 8 % len(sets)]
        if owner is not None:
            owner.acquire(wanted)
            owner.release(wanted)
        else:
            for key in wanted:
                made[key].acquire()
            for key in wanted:
                made[key].release()
        had += 8
    parent.meet()  # a process of fasteners that ends with others waiting would disturb them
    return had


def contended(setting: Setting) -> list[Row]:
    seconds = 1.0 if setting.quick else 2.0
    with setting.scratch() as scratch:

        def take(who: str) -> float:
            orders = [{"who": who, "path": scratch / who, "seed": seed, "seconds": seconds} for seed in range(2)]
            return seconds / max(1, sum(together(contend, orders, meetings=2)))

        samples = interleaved({who: partial(take, who) for who in (OURS, FASTENERS, FILELOCK)}, setting.rounds(3, 1))
    what = "two processes, 8 of 64 keys at a time, held for no time"
    return _rows("lock-contended", what, samples, {FASTENERS: 60, FILELOCK: 300})


def be_greedy(path: Path, seconds: float, parent: Parent) -> int:
    owner = _owner(path)
    parent.meet()
    turns = 0
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        owner.acquire("position/c/0")
        owner.release("position/c/0")
        turns += 1
    parent.meet()
    return turns


def fair(setting: Setting) -> list[Row]:
    seconds = 1.0 if setting.quick else 5.0
    with setting.scratch() as scratch:
        shares = together(be_greedy, [{"path": scratch / "table", "seconds": seconds}] * 2, meetings=2)
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

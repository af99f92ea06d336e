"""Chunk-key locks, against a lock file for each chunk: by fasteners, as in zarr 2's synchronizer, and by filelock.

A peer's lock object is made when its key is wanted, as it was there; its file exists already. Nobody asks for a lock
that it holds.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import random
import resource
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import fasteners
import filelock

from benchmarks.harness import OURS, Row, Setting, Take, interleaved, medians, ratio, timed
from txstore.locks.chunk_locks import ChunkLocks, Owner

FASTENERS = "fasteners"
FILELOCK = "filelock"
FALLBACK = "TxStore without shared memory"

_SPAWN = multiprocessing.get_context("spawn")
_PATIENCE = 60  # seconds
_REPEATED = 20
_MANY = [f"position/c/{row}/{column}" for row in range(100) for column in range(100)]


def _owner(path: Path, kind: str | None = None) -> tuple[ChunkLocks, Owner]:
    path.mkdir(exist_ok=True)
    locks = ChunkLocks(str(path), str(path), kind=kind)
    return locks, locks.owner()


def _peer(who: str, path: Path) -> Callable[[str], Any]:
    """Return what makes the lock of a key."""
    path.mkdir(exist_ok=True)
    make: Callable[[str], Any] = fasteners.InterProcessLock if who == FASTENERS else filelock.FileLock
    return lambda key: make(f"{path}/{key.replace('/', '.')}.lock")


# --- one key, and many


def _one_by_one_ours(path: Path, kind: str | None, count: int) -> Take:
    locks, owner = _owner(path, kind)
    keys = [f"position/c/{number}" for number in range(count)]

    def take() -> float:
        acquire, release = owner.acquire, owner.release
        with timed() as seconds:
            for key in keys:
                acquire(key)
                release(key)
        assert locks.kind == (kind or "table")
        return seconds() / count

    return take


def _one_by_one_peer(who: str, path: Path, count: int) -> Take:
    make = _peer(who, path)
    keys = [f"position/c/{number}" for number in range(count)]

    def take() -> float:
        with timed() as seconds:
            for key in keys:
                lock = make(key)
                lock.acquire()
                lock.release()
        return seconds() / count

    return take


def one(setting: Setting) -> list[Row]:
    rounds = setting.rounds(15, 3)
    with setting.scratch() as scratch:
        takes = {
            OURS: _one_by_one_ours(scratch / "table", None, 50_000),
            FALLBACK: _one_by_one_ours(scratch / "ranges", "ranges", 2_000),
            FASTENERS: _one_by_one_peer(FASTENERS, scratch / FASTENERS, 1_000),
            FILELOCK: _one_by_one_peer(FILELOCK, scratch / FILELOCK, 500),
        }
        samples = interleaved(takes, rounds)
    return [
        _row("lock-one", "lock and release one key after the other", samples, OURS, FASTENERS, 150),
        _row("lock-one-filelock", "lock and release one key after the other", samples, OURS, FILELOCK, 700),
        _row("lock-one-fallback", "the same without shared memory", samples, FALLBACK, FASTENERS, 3),
    ]


def _row(name: str, what: str, samples: dict[str, list[float]], ours: str, peer: str, target: float) -> Row:
    return Row(
        name, f"{what}: time of {peer}", ratio(samples, peer, ours), target, at_least=True, medians=medians(samples),
        samples=samples,
    )  # fmt: skip


def _many_ours(path: Path, kind: str | None) -> Take:
    locks, owner = _owner(path, kind)

    def take() -> float:
        with timed() as seconds:
            for _ in range(_REPEATED):  # one would be shorter than the turns of other processes
                owner.acquire(_MANY)
                owner.release(_MANY)
        assert locks.kind == (kind or "table")
        return seconds() / _REPEATED

    return take


def _many_peer(who: str, path: Path) -> Take:
    make = _peer(who, path)

    def take() -> float:
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
        takes = {
            OURS: _many_ours(scratch / "table", None),
            FALLBACK: _many_ours(scratch / "ranges", "ranges"),
            FASTENERS: _many_peer(FASTENERS, scratch / FASTENERS),
            FILELOCK: _many_peer(FILELOCK, scratch / FILELOCK),
        }
        samples = interleaved(takes, setting.rounds(5, 1))
    return [
        _row("lock-many", "lock 10,000 keys and release them", samples, OURS, FASTENERS, 500),
        _row("lock-many-filelock", "lock 10,000 keys and release them", samples, OURS, FILELOCK, 2000),
        _row("lock-many-fallback", "the same without shared memory", samples, FALLBACK, FASTENERS, 10),
    ]


# --- several processes


def _together(work: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Run a function in one process for each tuple; all begin when the last one is ready. Return the results."""
    pipes = [_SPAWN.Pipe() for _ in arguments]
    processes = [
        _SPAWN.Process(target=work, args=(theirs, *each), daemon=True)
        for (_, theirs), each in zip(pipes, arguments, strict=True)
    ]
    try:
        for process in processes:
            process.start()
        for mine, _ in pipes:
            _receive(mine)
        for mine, _ in pipes:
            mine.send("go")
        return [_receive(mine) for mine, _ in pipes]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _receive(pipe: Connection) -> Any:
    if not pipe.poll(_PATIENCE):
        raise TimeoutError("a process of the benchmark does not answer")
    return pipe.recv()


def _contend(pipe: Connection, who: str, path: Path, seed: int, seconds: float) -> None:
    """Lock 8 of 64 keys at a time, and count the locks that were had."""
    chosen = random.Random(seed)
    keys = [f"position/c/{number:02}" if who != OURS else f"position/c/{number}" for number in range(64)]
    sets = [sorted(chosen.sample(keys, 8)) for _ in range(1000)]
    had = 0
    if who == OURS:
        locks, owner = _owner(path)
        pipe.send(locks.kind)
    else:
        made = {key: _peer(who, path)(key) for key in keys}
        pipe.send(who)
    pipe.recv()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        wanted = sets[had // 8 % len(sets)]
        if who == OURS:
            owner.acquire(wanted)
            owner.release(wanted)
        else:
            for key in wanted:
                made[key].acquire()
            for key in wanted:
                made[key].release()
        had += 8
    pipe.send(had)
    pipe.recv()  # a process of fasteners that ends with others waiting would disturb them


def contended(setting: Setting) -> list[Row]:
    seconds = 1.0 if setting.quick else 2.0
    with setting.scratch() as scratch:

        def take(who: str) -> Take:
            def run() -> float:
                had = _together(_contend, [(who, scratch / who, seed, seconds) for seed in range(2)])
                return seconds / max(1, sum(had))

            return run

        samples = interleaved({who: take(who) for who in (OURS, FASTENERS, FILELOCK)}, setting.rounds(3, 1))
    what = "two processes, 8 of 64 keys at a time, held for no time"
    return [
        _row("lock-contended", what, samples, OURS, FASTENERS, 60),
        _row("lock-contended-filelock", what, samples, OURS, FILELOCK, 300),
    ]


def _be_greedy(pipe: Connection, path: Path, seconds: float) -> None:
    locks, owner = _owner(path)
    owner.acquire("position/c/0")
    owner.release("position/c/0")
    pipe.send(locks.kind)
    pipe.recv()
    turns = 0
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        owner.acquire("position/c/0")
        owner.release("position/c/0")
        turns += 1
    pipe.send(turns)
    pipe.recv()


def fair(setting: Setting) -> list[Row]:
    seconds = 1.0 if setting.quick else 5.0
    with setting.scratch() as scratch:
        shares = _together(_be_greedy, [(scratch / "table", seconds)] * 2)
    return [
        Row(
            "lock-fair", f"two processes that want one key all the time, {seconds:g} s: share of the smaller",
            min(shares) / max(shares), 0.9, at_least=True, samples={"turns": [float(share) for share in shares]},
        )
    ]  # fmt: skip


def _hold(pipe: Connection, path: Path, keys: list[str]) -> None:
    locks, owner = _owner(path)
    owner.acquire(keys)
    pipe.send(locks.kind)
    pipe.recv()  # never comes


def killed(setting: Setting) -> list[Row]:
    """The waiter is this process; the time from before the kill until it has all of the locks."""
    keys = _MANY[:3000]
    took: list[float] = []
    with setting.scratch() as scratch:
        _locks, owner = _owner(scratch / "table")
        for _ in range(setting.rounds(15, 5)):
            mine, theirs = _SPAWN.Pipe()
            holder = _SPAWN.Process(target=_hold, args=(theirs, scratch / "table", keys), daemon=True)
            holder.start()
            _receive(mine)
            killer = _SPAWN.Process(target=_kill_soon, args=(holder.pid, theirs), daemon=True)
            killer.start()
            dirty = owner.acquire(keys, _PATIENCE)
            now = time.monotonic()
            took.append((now - _receive(mine)) * 1000 if len(dirty) == len(keys) else math.inf)
            owner.release(keys)
            for process in (holder, killer):
                process.kill()
                process.join()
    return [
        Row(
            "lock-killed", "kill -9 of a holder of 3,000 locks: until a waiter has them, told that they are dirty",
            statistics.median(took), 50, "ms", samples={OURS: took},
        )
    ]  # fmt: skip


def _kill_soon(pid: int, pipe: Connection) -> None:
    time.sleep(0.3)  # the waiter waits by then
    now = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    pipe.send(now)


BENCHMARKS: dict[str, Callable[[Setting], list[Row]]] = {
    "locks-one": one,
    "locks-many": many,
    "locks-contended": contended,
    "locks-fair": fair,
    "locks-killed": killed,
}

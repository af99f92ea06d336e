"""Small durable commits: one after the other, of eight processes at once, and what many of them leave behind."""

from __future__ import annotations

import fcntl
import itertools
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import zarr
from zarr.storage import MemoryStore

import txstore
from benchmarks.harness import OURS, Row, Setting, Take, faster, interleaved, medians, settle, slower, timed
from benchmarks.own_process import Parent, Values, together
from txstore.storage import local
from txstore.storage.local import LocalStorage

BARE = "write, fdatasync, rename, fsync of the directory"
_CHUNK = np.arange(100.0).tobytes()


def small_commits(path: Path) -> Take:
    """Durable appends of one chunk: the chunk and the metadata document as zarr writes it, through the mapping."""
    repo, numbers, memory = txstore.Repository(path), itertools.count(), MemoryStore()
    zarr.create_array(memory, name="x", shape=(100_000,), chunks=(100,), dtype="f8", attributes={"unit": "m"})
    empty = memory._store_dict["x/zarr.json"].to_bytes()

    def take() -> float:
        number = next(numbers)
        document = empty.replace(b"100000", b"%d" % (100 * (number + 1)))
        with timed() as seconds:
            transaction = repo.begin("append")
            transaction[f"position/c/{number}"] = _CHUNK
            transaction["position/zarr.json"] = document
            transaction.commit()
        return seconds()

    return take


def bare_writes(path: Path) -> Take:
    """2 KB in a file of its own, durable: what nobody can do without."""
    path.mkdir()
    numbers, temporary = itertools.count(), f"{path}/new"

    def take() -> float:
        name = f"{path}/{next(numbers):010}"
        with timed() as seconds:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            os.write(descriptor, bytes(2048))
            os.fdatasync(descriptor)
            os.close(descriptor)
            os.rename(temporary, name)
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(descriptor)
            os.close(descriptor)
        return seconds()

    return take


def alone(setting: Setting) -> list[Row]:
    with setting.scratch() as scratch:
        takes = {OURS: small_commits(scratch / "data.tx"), BARE: bare_writes(scratch / "bare")}
        settle(scratch)
        samples = interleaved(takes, setting.rounds(500, 100), before_each=lambda: None)
    return [
        slower("commit", f"commit of an 800 B chunk and its metadata: time of {BARE} of 2 KB", samples, OURS, BARE, 2.5)
    ]


def footprint(setting: Setting) -> list[Row]:
    """Append one element at a time through zarr; count what lies below the root."""
    total = setting.rounds(3_000, 300)
    with setting.scratch() as scratch:
        repo = txstore.Repository(scratch / "data.tx", durability="none")  # it changes nothing about the files
        with repo.transaction() as store:
            zarr.create_array(store, name="position", shape=(0,), chunks=(100,), dtype="f8")
        store = txstore.TxStore(repo)
        array = zarr.open_array(store, path="position")
        for number in range(total - 1):
            array.append(np.array([float(number)]))
            store.commit()
        files, apparent, allocated = _usage(scratch / "data.tx")
    what = f"{total:,} commits of one element each"
    scale = total / 3_000
    sizes = {"apparent": [apparent], "allocated": [allocated]}
    return [
        Row("files", f"{what}: files", files, round(3_100 * scale), "files"),
        Row("bytes", f"{what}: bytes", max(apparent, allocated) / 1e6, 20 * scale, "MB", samples=sizes),
    ]


def _usage(root: Path) -> tuple[int, int, int]:
    """Return files, bytes, and bytes of allocated blocks below a repository's root, `locks/` aside."""
    paths = [path for path in root.rglob("*") if path.relative_to(root).parts[0] != "locks"]
    status = [path.stat() for path in (root, *paths)]
    files = sum(path.is_file() for path in paths)
    return files, sum(each.st_size for each in status), sum(each.st_blocks * 512 for each in status)


# --- eight processes at once: in a queue, synced side by side, against one sync after another
# The second is what committers that don't queue still do: each syncs its commit while it has the turn. On a disk that
# is durable in no time both wait for Python. So it is measured on this disk, and on one that is as slow as most disks.

PROCESSES = 8
BEFORE = "one sync after another"
#: Seconds that a flush takes: of a disk in the network, or of one for consumers.
FLUSH = 0.005
_STATE = struct.Struct("dq")  # when the flush that is under way is done, and whether another is asked for


def _flush(path: Path) -> None:
    """Wait for a disk that does one flush at a time: who asks while it does gets the next, with all that do.

    So does a journal of a file system. All processes know of it by a file.
    """
    with open(path, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        now = time.monotonic()
        done, is_asked = _STATE.unpack(file.read(_STATE.size))
        if is_asked and now >= done:
            done, is_asked = done + FLUSH, 0
        is_idle = now >= done
        mine = (now if is_idle else done) + FLUSH
        file.seek(0)
        file.write(_STATE.pack(mine if is_idle else done, 0 if is_idle else 1))
    time.sleep(max(0.0, mine - time.monotonic()))


@contextmanager
def _slow_disk(path: Path) -> Iterator[None]:
    """Let what is synced in this process be flushed there, too."""
    sync, sync_names = local._sync, LocalStorage._sync_names

    def slow(descriptor: int) -> None:
        sync(descriptor)
        _flush(path)

    def slow_names(storage: LocalStorage, names: str) -> None:
        sync_names(storage, names)
        _flush(path)

    local._sync, LocalStorage._sync_names = slow, slow_names  # type: ignore[method-assign]
    try:
        yield
    finally:
        local._sync, LocalStorage._sync_names = sync, sync_names  # type: ignore[method-assign]


def _commit(repo: txstore.Repository, process: int, number: int) -> None:
    with repo.begin("append") as transaction:
        transaction[f"{process}/c/{number}"] = _CHUNK


def _commit_many(path: Path, process: int, commits: int, queues: bool, is_slow: bool, parent: Parent) -> Values:
    if not queues:
        lock = LocalStorage.lock
        LocalStorage.lock = lambda self, path, prepare=None, **_: lock(self, path, prepare)  # type: ignore[method-assign]
    _commit(repo := txstore.Repository(path), process, 0)
    with _slow_disk(path.with_suffix(".disk")) if is_slow else nullcontext():
        parent.meet()
        began = time.monotonic()
        for each in range(1, commits + 1):
            _commit(repo, process, each)
    return {"began": began, "ended": time.monotonic()}


def group(setting: Setting) -> list[Row]:
    commits, numbers, rows = setting.rounds(40, 15), itertools.count(), list[Row]()
    with setting.scratch() as scratch:

        def take(is_slow: bool, queues: bool) -> float:
            path = scratch / f"{next(numbers)}.tx"
            repo = txstore.Repository(path)
            _commit(repo, PROCESSES, 0)
            path.with_suffix(".disk").write_bytes(bytes(_STATE.size))
            order = {"path": path, "commits": commits, "queues": queues, "is_slow": is_slow}
            told = together(_commit_many, [order | {"process": number} for number in range(PROCESSES)])
            if (made := len(list(repo.log()))) != 1 + PROCESSES * (commits + 1):
                raise RuntimeError(f"{path}: {made} commits are there")
            return float(max(each["ended"] for each in told) - min(each["began"] for each in told))

        for name, where, is_slow, target in (
            ("commit-group", f"a disk that flushes in {FLUSH * 1e3:.0f} ms", True, 2.0),
            ("commit-group-here", "this disk", False, 1.0),
        ):
            takes = {OURS: partial(take, is_slow, True), BEFORE: partial(take, is_slow, False)}
            samples = interleaved(takes, setting.rounds(7, 1), before_each=partial(settle, scratch))
            rates = " and ".join(f"{PROCESSES * commits / median:.0f}" for median in medians(samples).values())
            what = f"{PROCESSES} processes of small commits on {where}: commits a second, of {BEFORE} ({rates})"
            rows.append(faster(name, what, samples, OURS, BEFORE, target))
    return rows


CASES = {"commit": alone, "commit-group": group, "footprint": footprint}

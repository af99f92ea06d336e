"""Long work in processes of its own, and what it takes of memory: ten million keys on a local disk, and a rechunk.

Memory is that of the process alone, above what it had before: pages of mapped files are the system's, and dropped when
memory runs short.
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.storage import LocalStore

import txstore
from benchmarks.harness import OURS, Row, Setting, interleaved, settle, slower, timed
from benchmarks.memory import peak_of, read_status
from benchmarks.own_process import Values, ask
from txstore.rechunk.plans import Pieces, ReadAxis, plan

SIZES = (100_000, 1_000_000, 10_000_000)
#: So many transactions fill the repository that is optimized: each leaves a pack that is small enough to be copied.
TRANSACTIONS = 100
_LATER = 30
_LOOK = 0.005  # seconds between two looks at the memory of a process
#: Of the largest size: bytes of memory for each key, milliseconds, megabytes.
WRITER, FIRST, OPTIMIZE = 150.0, 5.0, 200.0


def _fill(transaction: Any, first: int, stop: int) -> None:
    for number in range(first, stop):
        transaction[f"position/c/{number}"] = number.to_bytes(8, "little")


def _warm(path: Path) -> None:
    """Load what the process needs, so that it is not counted."""
    other = txstore.Repository(path.with_name("warm.tx"))
    for _ in range(3):
        with other.begin("warm") as transaction:
            _fill(transaction, 0, 100)
    other.optimize()


def write(path: Path, keys: int) -> Values:
    """Write all keys in one transaction, then a few later ones."""
    _warm(path)
    seconds: list[float] = []

    def work() -> None:
        with timed() as all_of_it, txstore.Repository(path).begin("fill") as transaction, timed() as staging:
            _fill(transaction, 0, keys)
        seconds.extend((staging(), all_of_it() - staging()))

    peak = peak_of(work, _LOOK)
    return {"bytes a key": peak / keys, "staging": seconds[0], "commit": seconds[1], **_small_commits(path, keys)}


def later(path: Path, keys: int) -> Values:
    """Make small commits in a process that has not seen the repository."""
    _warm(path)
    return _small_commits(path, keys)


def _small_commits(path: Path, keys: int) -> Values:
    """Return the milliseconds of the first small commit, and the median of those that follow."""
    repo = txstore.Repository(path)
    gc.collect()
    taken = []
    for number in range(1 + _LATER):
        with timed() as seconds, repo.begin("later") as transaction:
            transaction[f"position/c/{number * 997 % keys}"] = os.urandom(8)
        taken.append(seconds() * 1e3)
    return {"first": taken[0], "later": statistics.median(taken[1:])}


def fill(path: Path, keys: int) -> None:
    repo = txstore.Repository(path, durability="none")
    for number in range(TRANSACTIONS):
        with repo.begin("fill") as transaction:
            _fill(transaction, keys * number // TRANSACTIONS, keys * (number + 1) // TRANSACTIONS)


def optimize(path: Path, keys: int) -> Values:
    _warm(path)
    with timed() as seconds:
        peak = peak_of(lambda: txstore.Repository(path).optimize(), _LOOK)
    return {"megabytes": peak / 1e6, "bytes a key": peak / keys, "seconds": seconds()}


def keys(setting: Setting) -> list[Row]:
    figures: list[dict[str, Any]] = []
    for count in SIZES[: setting.rounds(len(SIZES), 1)]:
        with setting.scratch() as scratch:
            found = {"write": ask(write, path=scratch / "one.tx", keys=count)}
            settle(scratch)
            found["later"] = ask(later, path=scratch / "one.tx", keys=count)
            ask(fill, path=scratch / "many.tx", keys=count)
            found["optimize"] = ask(optimize, path=scratch / "many.tx", keys=count)
        figures.append({"keys": count, **found})
        told = ", ".join(f"{what} {name} {value:.4g}" for what, each in found.items() for name, value in each.items())
        print(f"{count:>10,} keys: {told}", file=sys.stderr, flush=True)
    last, where = figures[-1], f"{figures[-1]['keys']:,} keys"
    first = f"first small commit after {where} in"
    memory = f"optimize of {where} in {TRANSACTIONS} packs: memory"
    return [
        Row(
            "keys-write", f"one transaction of {where}: memory", last["write"]["bytes a key"], WRITER, "B a key",
            figures=figures,
        ),
        Row("keys-first", f"{first} the process that wrote them", last["write"]["first"], FIRST, "ms"),
        Row("keys-first-elsewhere", f"{first} another process", last["later"]["first"], FIRST, "ms"),
        Row("keys-optimize", memory, last["optimize"]["megabytes"], OPTIMIZE, "MB"),
    ]  # fmt: skip


# --- rechunk of rows to columns, beside a copy of the same array with plain Zarr in the same two passes

#: Bytes of the array, and of memory that either copy is given; times the duration of the copy; MiB.
SIZE, MEMORY = 4 << 30, 256 << 20
RATIO, PEAK = 1.2, 400.0
_WORKERS = 2


def _side(size: int) -> int:
    return math.isqrt(size // 4) // 4096 * 4096


def _old_and_new(size: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return chunks of 4 MiB: of 64 rows or columns, a quarter of the longest at most."""
    across = min(16384, _side(size))
    along = (1 << 20) // across
    return (along, across), (across, along)


def write_rows(path: Path, size: int) -> None:
    side, (old, _) = _side(size), _old_and_new(size)
    with txstore.Repository(path / "data.tx").transaction("fill") as ours:
        for store in (ours, LocalStore(path / "data.zarr")):
            array = zarr.create_array(store, name="x", shape=(side, side), chunks=old, dtype="f4")
            random = np.random.default_rng(0)
            for start in range(0, side, 512):
                array[start : start + 512] = random.integers(0, 4096, (512, side)).astype("f4") / 16


def rechunk_ours(path: Path, size: int) -> Values:
    _, new = _old_and_new(size)
    repo = txstore.Repository(path / "data.tx")
    return _measured(lambda: repo.rechunk("x", chunks=new, max_memory=MEMORY, workers=_WORKERS))


def rechunk_plain(path: Path, size: int) -> Values:
    """Copy in the passes of rechunker: with a grid between, each chunk of which few pieces of either pass share."""
    old, new = _old_and_new(size)
    source = zarr.open_array(path / "data.zarr", path="x", mode="r")
    axes = [ReadAxis.regular(length, chunk) for length, chunk in zip(source.shape, old, strict=True)]
    planned = plan(axes, new, 4, MEMORY // 3 // _WORKERS)

    def copy() -> None:
        read: Any = source
        for number, piece in enumerate(planned.pieces):
            chunks = new if number == len(planned.pieces) - 1 else planned.between
            into = zarr.create_array(
                path / "copy.zarr", name=f"pass{number}", shape=source.shape, chunks=chunks, dtype="f4"
            )
            with ThreadPoolExecutor(_WORKERS) as pool:
                for box in Pieces(source.shape, piece):
                    pool.submit(lambda box=box, read=read, into=into: into.__setitem__(box, read[box]))
            read = into

    return _measured(copy)


def _measured(work: Callable[[], object]) -> Values:
    with timed() as seconds:
        alone = peak_of(work, _LOOK)
    most = read_status(os.getpid())["VmHWM"]
    return {"seconds": seconds(), "alone": alone / 2**20, "with mapped files": most / 2**20}


def rechunk(setting: Setting) -> list[Row]:
    """RECHUNK_BYTES takes less of the disk than 20 GB, and less time."""
    size = int(os.environ.get("RECHUNK_BYTES", SIZE >> 6 if setting.quick else SIZE))
    peaks: list[Values] = []

    def take(task: Callable[..., Values]) -> float:
        with setting.scratch() as path:
            ask(write_rows, path=path, size=size)
            settle(path)
            found = ask(task, path=path, size=size)
        if task is rechunk_ours:
            peaks.append(found)
        return float(found["seconds"])

    takes = {OURS: lambda: take(rechunk_ours), "plain zarr": lambda: take(rechunk_plain)}
    samples = interleaved(takes, setting.rounds(2, 1))
    what = f"rechunk of {size / 2**30:.2g} GiB from rows to columns"
    most = max(each["with mapped files"] for each in peaks)
    return [
        slower("rechunk", f"{what}, beside plain zarr in such passes", samples, OURS, "plain zarr", RATIO),
        Row("rechunk memory", f"{what}: memory, max_memory={MEMORY >> 20} MiB", most, PEAK, "MiB", figures=peaks),
    ]


CASES = {"keys": keys, "rechunk": rechunk}

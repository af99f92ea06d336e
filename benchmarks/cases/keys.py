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
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import txstore
from benchmarks.harness import Row, Setting, settle, timed
from benchmarks.memory import peak_of, read_status
from benchmarks.own_process import Values, ask

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


# --- rechunk of rows to columns, with chunks of 4 MiB

#: Bytes of the array, and of memory that it is given; MiB that it may take.
SIZE, MEMORY, PEAK = 4 << 30, 256 << 20, 400.0


def _old_and_new(size: int) -> tuple[int, tuple[int, int], tuple[int, int]]:
    """Return the side of the array, and chunks of 64 rows or columns, a quarter of the longest at most."""
    side = math.isqrt(size // 4) // 4096 * 4096
    across = min(16384, side)
    along = (1 << 20) // across
    return side, (along, across), (across, along)


def write_rows(path: Path, size: int) -> None:
    side, old, _ = _old_and_new(size)
    random = np.random.default_rng(0)
    with txstore.Repository(path).transaction("fill") as store:
        array = zarr.create_array(store, name="x", shape=(side, side), chunks=old, dtype="f4")
        for start in range(0, side, 512):
            array[start : start + 512] = random.integers(0, 4096, (512, side)).astype("f4") / 16


def rechunk_rows(path: Path, size: int) -> Values:
    repo, (_, _, new) = txstore.Repository(path), _old_and_new(size)
    with timed() as seconds:
        alone = peak_of(lambda: repo.rechunk("x", chunks=new, max_memory=MEMORY, workers=2), _LOOK)
    mapped = read_status(os.getpid())["VmHWM"]
    return {"seconds": seconds(), "alone": alone / 2**20, "with mapped files": mapped / 2**20}


def rechunk(setting: Setting) -> list[Row]:
    size = SIZE >> 6 if setting.quick else SIZE
    with setting.scratch() as scratch:
        ask(write_rows, path=scratch / "data.tx", size=size)
        settle(scratch)
        found = ask(rechunk_rows, path=scratch / "data.tx", size=size)
    what = f"rechunk of {size / 2**30:.2g} GiB from rows to columns in {found['seconds']:.0f} s"
    most = found["with mapped files"]
    return [Row("rechunk memory", f"{what}: memory, max_memory={MEMORY >> 20} MiB", most, PEAK, "MiB", figures=[found])]


CASES = {"keys": keys, "rechunk": rechunk}

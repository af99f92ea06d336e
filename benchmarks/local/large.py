"""A repository of a million chunk keys, a thousand small commits later: opening, listing, looking up, and its index.

Opening is measured in processes of their own (`python -m benchmarks.local.large PATH`), which have imported txstore and
zarr and used zarr, but have not seen the repository.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.storage import MemoryStore

import txstore
from benchmarks.harness import Row, Setting, settle

KEYS = 1_000_000
TRANSACTIONS = 10
LATER = 1_000
#: Chunks of 1 KiB, beside the million of 8 bytes: those that are read.
WIDE = 1_000
_OPENED = 100
_PROCESSES = 5


def build(path: Path, keys: int = KEYS, later: int = LATER) -> txstore.Repository:
    """Write the repository: two arrays of float64, of `keys` chunks of one element and of 1,000 chunks of 128."""
    repo = txstore.Repository(path, durability="none")
    with repo.transaction("create") as store:
        raw: dict[str, Any] = {"dtype": "f8", "compressors": None}
        zarr.create_array(store, name="position", shape=(keys,), chunks=(1,), **raw)
        zarr.create_array(store, name="wide", shape=(WIDE * 128,), chunks=(128,), **raw)
    step = keys // TRANSACTIONS
    for first in range(0, keys, step):
        with repo.begin("fill") as transaction:
            for number in range(first, first + step):
                transaction[f"position/c/{number}"] = number.to_bytes(8, "little")
    wide = bytes(range(256)) * 4
    with repo.begin("wide") as transaction:
        for number in range(WIDE):
            transaction[f"wide/c/{number}"] = wide
    repo = txstore.Repository(path)  # small commits as they are made in use: durable
    for number in range(later):
        with repo.begin("later") as transaction:
            transaction[f"position/c/{number * 997 % keys}"] = os.urandom(8)
    return repo


# --- in a process of its own


def _resident() -> int:
    """Return the bytes of memory that this process occupies, mapped files included."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as rollup:  # statm is only near the truth
        return next(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Rss:"))


def _open_and_read(path: str) -> Any:
    """Return the array: what it needs stays open."""
    array = zarr.open_array(txstore.Repository(path).snapshot(), path="wide", mode="r")
    if array[64_000] == 0:
        raise AssertionError("the chunk was not found")
    return array


def _milliseconds(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return (time.perf_counter() - began) * 1e3


def measure_here(path: str) -> dict[str, Any]:
    """Measure in this process, which must not have seen the repository."""
    array = zarr.create_array(MemoryStore(), shape=(1280,), chunks=(128,), dtype="f8", compressors=None)
    array[:] = np.ones(1280)
    array[640]
    for name in ("txstore.repository", "txstore.store"):  # which `import txstore` leaves for their first use
        import_module(name)
    before = _resident()
    kept: list[Any] = []
    first = _milliseconds(lambda: kept.append(_open_and_read(path)))
    memory = _resident() - before
    kept.clear()
    return {
        "first": first,
        "memory": memory / 1e6,
        "opened": [_milliseconds(lambda: _open_and_read(path)) for _ in range(_OPENED)],
        "listed": [_listing(path) for _ in range(_OPENED)],
        "looked up": _look_up(path),
    }


def _listing(path: str) -> float:
    snapshot = txstore.Repository(path).mapping()
    found: list[str] = []
    milliseconds = _milliseconds(lambda: found.extend(snapshot.list_dir("")))
    if found != ["position", "wide", "zarr.json"]:
        raise AssertionError(f"listed {found}")
    return milliseconds


def _look_up(path: str, rounds: int = 50, loops: int = 2_000) -> list[float]:
    """Return microseconds for each look-up, by round."""
    snapshot = txstore.Repository(path).mapping()
    key = "wide/c/500"
    if len(snapshot[key]) != 1024:
        raise AssertionError("the value is not the one that was written")

    def look_up() -> None:
        for _ in range(loops):
            snapshot[key]

    look_up()
    return [_milliseconds(look_up) * 1e3 / loops for _ in range(rounds)]


# --- the rows


def large(setting: Setting) -> list[Row]:
    keys, later = setting.rounds(KEYS, KEYS // 10), setting.rounds(LATER, LATER // 10)
    with setting.scratch() as scratch:
        path = scratch / "data.tx"
        repo = build(path, keys, later)
        settle(scratch)
        told = [_in_another_process(path) for _ in range(setting.rounds(_PROCESSES, 2))]
        index = _bytes_of_merged_runs(repo, keys)
    first = [one["first"] for one in told]
    memory = [one["memory"] for one in told]
    opened = [sample for one in told for sample in one["opened"]]
    listed = [sample for one in told for sample in one["listed"]]
    looked_up = [sample for one in told for sample in one["looked up"]]
    where = f"{keys:,} keys, {later:,} commits later"
    return [
        _row("open-first", f"open, read a chunk, first in a process; {where}", first, 10.0, "ms"),
        _row("open", f"open, read a chunk, fresh Repository; {where}", opened, 10.0, "ms"),
        _row("open-memory", f"open, read a chunk: memory; {where}", memory, 30.0, "MB"),
        _row("list", f"list_dir of the group; {where}", listed, 1.0, "ms"),
        _row("look-up", f"Snapshot.__getitem__ of 1 KiB, warm; {where}", looked_up, 4.0, "µs"),
        Row("index", f"merged runs, bytes per key; {where}", index, 32.0, "B"),
    ]


def _row(name: str, what: str, samples: list[float], target: float, unit: str) -> Row:
    median = statistics.median(samples)
    return Row(name, what, median, target, unit, medians={"TxStore": median}, samples={"TxStore": samples})


def _in_another_process(path: Path) -> Any:
    ran = subprocess.run([sys.executable, "-m", __spec__.name, str(path)], stdout=subprocess.PIPE, check=True)
    return json.loads(ran.stdout)


def _bytes_of_merged_runs(repo: txstore.Repository, keys: int) -> float:
    """Return the bytes for each key of those runs that hold older commits' entries, not the commit's own."""
    stored = repo.mapping().stored
    if stored is None:
        raise AssertionError("there is no commit")
    merged = [run for run in stored.header.runs if run.max_seq != run.seq]
    entries = sum(run.entries for run in merged)
    if entries < 0.9 * keys:
        raise AssertionError(f"only {entries:,} of {keys:,} keys are in merged runs")
    return sum(run.length for run in merged) / entries


BENCHMARKS: dict[str, Callable[[Setting], list[Row]]] = {"large": large}

if __name__ == "__main__":
    print(json.dumps(measure_here(sys.argv[1])))

"""A repository of a million chunk keys, a thousand small commits later: opening, listing, looking up, and its index.

Opening is measured in processes of their own, which have imported txstore and zarr and used zarr, but have not seen the
repository.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.storage import MemoryStore

import txstore
from benchmarks import harness
from benchmarks.harness import OURS, Row, Setting, compare, fill_keys, medians, middle, seconds_of
from benchmarks.memory import read_status
from benchmarks.own_process import Values

KEYS, TRANSACTIONS, LATER = 1_000_000, 10, 1_000
#: Chunks of 1 KiB, beside the million of 8 bytes: those that are read.
WIDE = 1_000
_OPENED, _PROCESSES = 100, 5


def build(path: Path, keys: int, later: int) -> txstore.Repository:
    """Write the repository: two arrays of float64, of `keys` chunks of one element and of 1,000 chunks of 128."""
    repo = txstore.Repository(path, durability="none")
    with repo.transaction("create") as store:
        raw: dict[str, Any] = {"dtype": "f8", "compressors": None}
        zarr.create_array(store, name="position", shape=(keys,), chunks=(1,), **raw)
        zarr.create_array(store, name="wide", shape=(WIDE * 128,), chunks=(128,), **raw)
    fill_keys(repo, keys, keys // TRANSACTIONS)
    with repo.begin("wide") as transaction:
        for number in range(WIDE):
            transaction[f"wide/c/{number}"] = bytes(range(256)) * 4
    repo = txstore.Repository(path)  # small commits as they are made in use: durable
    for number in range(later):
        with repo.begin("later") as transaction:
            transaction[f"position/c/{number * 997 % keys}"] = os.urandom(8)
    return repo


# --- in a process of its own


def _open_and_read(path: Path) -> Any:
    """Return the array: what it needs stays open."""
    array = zarr.open_array(txstore.Repository(path).snapshot(), path="wide", mode="r")
    if array[64_000] == 0:
        raise AssertionError("the chunk was not found")
    return array


def _milliseconds(function: Callable[[], object]) -> float:
    return seconds_of(function) * 1e3


def measure_here(path: Path) -> Values:
    """Measure in this process, which must not have seen the repository."""
    array = zarr.create_array(MemoryStore(), shape=(1280,), chunks=(128,), dtype="f8", compressors=None)
    array[:] = np.ones(1280)
    array[640]
    for name in ("txstore.repository", "txstore.store"):  # which `import txstore` leaves for their first use
        import_module(name)
    before, kept = read_status(os.getpid())["VmRSS"], list[Any]()
    first = _milliseconds(lambda: kept.append(_open_and_read(path)))
    memory = read_status(os.getpid())["VmRSS"] - before
    kept.clear()
    return {
        "first": [first],
        "memory": [memory / 1e6],
        "opened": [_milliseconds(lambda: _open_and_read(path)) for _ in range(_OPENED)],
        "listed": [_listing(path) for _ in range(_OPENED)],
        "looked up": _look_up(path),
    }


def _listing(path: Path) -> float:
    snapshot, found = txstore.Repository(path).mapping(), list[str]()
    milliseconds = _milliseconds(lambda: found.extend(snapshot.list_dir("")))
    compare(found, ["position", "wide", "zarr.json"])
    return milliseconds


def _look_up(path: Path, rounds: int = 50, loops: int = 2_000) -> list[float]:
    """Return microseconds for each look-up, by round."""
    snapshot, key = txstore.Repository(path).mapping(), "wide/c/500"
    compare(len(snapshot[key]), 1024)

    def look_up() -> None:
        for _ in range(loops):
            snapshot[key]

    look_up()
    return [_milliseconds(look_up) * 1e3 / loops for _ in range(rounds)]


# --- the rows


def _in_a_new_interpreter(path: Path) -> Any:
    """Measure in a process that was not forked: that one pays for each page of memory that it is the first to touch."""
    command = [sys.executable, "-m", __spec__.name, str(path)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def large(setting: Setting) -> list[Row]:
    keys, later = setting.rounds(KEYS, KEYS // 10), setting.rounds(LATER, LATER // 10)
    with setting.scratch() as scratch:
        path = scratch / "data.tx"
        repo = build(path, keys, later)
        harness.settle(scratch)
        told = [_in_a_new_interpreter(path) for _ in range(setting.rounds(_PROCESSES, 2))]
        index = _bytes_of_merged_runs(repo, keys)
    taken = {what: [sample for one in told for sample in one[what]] for what in told[0]}
    where = f"{keys:,} keys, {later:,} commits later"
    return [
        middle("open-first", f"open, read a chunk, first in a process; {where}", taken["first"], 10.0, "ms"),
        middle("open", f"open, read a chunk, fresh Repository; {where}", taken["opened"], 10.0, "ms"),
        middle("open-memory", f"open, read a chunk: memory; {where}", taken["memory"], 30.0, "MB"),
        middle("list", f"list_dir of the group; {where}", taken["listed"], 1.0, "ms"),
        middle("look-up", f"Snapshot.__getitem__ of 1 KiB, warm; {where}", taken["looked up"], 4.0, "µs"),
        Row("index", f"merged runs, bytes per key; {where}", index, 32.0, "B"),
    ]


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


# --- verifying packs of 1 MiB values, side by side with `cat` of the same files; both from the page cache

_VALUE, _COMMITS, _VALUES = 1 << 20, 4, 96  # 384 MiB


def verify(setting: Setting) -> list[Row]:
    values = setting.rounds(_VALUES, _VALUES // 8)
    with setting.scratch() as scratch:
        repo = txstore.Repository(scratch / "data.tx")
        for commit in range(_COMMITS):
            with repo.begin("fill") as transaction:
                for number in range(values):
                    transaction[f"image/c/{commit}/{number}"] = os.urandom(_VALUE)
        files = sorted((scratch / "data.tx" / "commits" / "main").iterdir())
        harness.settle(scratch)
        compare(repo.verify().faults, [])
        cat = partial(subprocess.run, ["cat", *map(str, files)], stdout=subprocess.DEVNULL, check=True)
        takes = {OURS: partial(seconds_of, repo.verify), "cat": partial(seconds_of, cat)}
        samples = harness.interleaved(takes, setting.rounds(15, 5))
    size = _COMMITS * values * _VALUE
    speeds = " against ".join(f"{size / medians(samples)[who] / 1e9:.1f} GB/s" for who in takes)
    what = f"verify {size >> 20} MiB in values of 1 MiB: speed of cat, page cache warm ({speeds})"
    return [harness.faster("verify", what, samples, OURS, "cat", 0.5)]


CASES = {"large": large, "verify": verify}

if __name__ == "__main__":
    print(json.dumps(measure_here(Path(sys.argv[1]))))

"""Rechunk of rows to columns, beside a copy of the same array with plain Zarr in the same two passes.

Each is measured in a process of its own (`python -m benchmarks.local.rechunking WHAT PATH BYTES`), with its peak of
memory: of the process alone, and with the pages of mapped files, which are the system's.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import txstore
from benchmarks.harness import Row, Setting, settle
from benchmarks.peers.memory import peak_of, read_status
from txstore.rechunk.plans import Pieces, ReadAxis, plan

#: Bytes of the array, and of memory that either copy is given.
SIZE, MEMORY = 4 << 30, 256 << 20
#: What it must reach: times the duration of the copy; bytes.
RATIO, PEAK = 1.2, 400.0
_WORKERS = 2
_LOOK = 0.005  # seconds between two looks at the memory of a process


def side_of(size: int) -> int:
    return math.isqrt(size // 4) // 4096 * 4096


def old_and_new(size: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return chunks of 4 MiB: of 64 rows or columns, a quarter of the longest at most."""
    across = min(16384, side_of(size))
    along = (1 << 20) // across
    return (along, across), (across, along)


def _fill(store: Any, size: int) -> None:
    side = side_of(size)
    old, _ = old_and_new(size)
    array = zarr.create_array(store, name="x", shape=(side, side), chunks=old, dtype="f4")
    random = np.random.default_rng(0)
    rows = 512
    for start in range(0, side, rows):
        array[start : start + rows] = random.integers(0, 4096, (rows, side)).astype("f4") / 16


# --- in a process of its own


def fill(path: Path, size: int) -> None:
    with txstore.Repository(path / "data.tx").transaction("fill") as store:
        _fill(store, size)
    _fill(zarr.storage.LocalStore(path / "data.zarr"), size)


def ours(path: Path, size: int) -> dict[str, float]:
    _, new = old_and_new(size)
    repo = txstore.Repository(path / "data.tx")
    return _measured(lambda: repo.rechunk("x", chunks=new, max_memory=MEMORY, workers=_WORKERS))


def plain(path: Path, size: int) -> dict[str, float]:
    """Copy in the passes of rechunker: with a grid between, each chunk of which few pieces of either pass share."""
    old, new = old_and_new(size)
    source = zarr.open_array(path / "data.zarr", path="x", mode="r")
    axes = [ReadAxis.regular(length, chunk) for length, chunk in zip(source.shape, old, strict=True)]
    planned = plan(axes, new, 4, MEMORY // 3 // _WORKERS)

    def copy() -> None:
        read = source
        for number, piece in enumerate(planned.pieces):
            chunks = new if number == len(planned.pieces) - 1 else planned.between
            into = zarr.create_array(
                path / "copy.zarr", name=f"pass{number}", shape=source.shape, chunks=chunks, dtype="f4"
            )
            with ThreadPoolExecutor(_WORKERS) as pool:
                for _ in pool.map(partial(_copy, read, into), Pieces(source.shape, piece)):
                    pass
            read = into

    return _measured(copy)


def _copy(source: Any, target: Any, box: Any) -> None:
    target[box] = source[box]


def _measured(work: Callable[[], object]) -> dict[str, float]:
    seconds: list[float] = []

    def timed() -> None:
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)

    alone = peak_of(timed, _LOOK)
    most = read_status(os.getpid())["VmHWM"]
    return {"seconds": seconds[0], "alone": alone / 2**20, "with mapped files": most / 2**20}


WORKS = {"fill": fill, "ours": ours, "plain": plain}


# --- the rows


def rechunking(setting: Setting) -> list[Row]:
    size = int(os.environ.get("RECHUNK_BYTES", SIZE >> 4 if setting.quick else SIZE))
    samples: dict[str, list[float]] = {"txstore": [], "plain zarr": []}
    peaks: list[dict[str, float]] = []
    for number in range(setting.rounds(3, 1)):
        with setting.scratch() as path:
            _run("fill", path, size)
            pairs = [("txstore", "ours"), ("plain zarr", "plain")]
            for who, what in pairs if number % 2 else reversed(pairs):
                settle(path)
                found = _run(what, path, size)
                samples[who].append(found["seconds"])
                if what == "ours":
                    peaks.append(found)
    ratios = sorted(mine / theirs for mine, theirs in zip(samples["txstore"], samples["plain zarr"], strict=True))
    what = f"rechunk of {size / 2**30:.2g} GiB from rows to columns"
    return [
        Row(
            "rechunk", f"{what}, beside plain zarr in such passes", ratios[len(ratios) // 2], RATIO, samples=samples,
            medians={who: sorted(taken)[len(taken) // 2] for who, taken in samples.items()},
        ),
        Row(
            "rechunk memory", f"{what}: memory, max_memory={MEMORY >> 20} MiB",
            max(each["with mapped files"] for each in peaks), PEAK, "MiB", figures=peaks,
        ),
    ]  # fmt: skip


def _run(what: str, path: Path, size: int) -> dict[str, float]:
    command = [sys.executable, "-m", __spec__.name, what, str(path), str(size)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    told: dict[str, float] = json.loads(found.splitlines()[-1])
    return told


BENCHMARKS = {"rechunk": rechunking}

if __name__ == "__main__":
    print(json.dumps(WORKS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3])) or {}))

"""The jobs: what a worker process does, and what must be in the array when all are done.

A worker writes a line to its standard output as soon as a write is acknowledged. The kernel keeps the line when the
worker is killed. So the runner knows every acknowledged write.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from benchmarks.field.adapters import ADAPTERS, CHUNK, COLUMNS, Adapter, Refused

T = TypeVar("T")

#: Rows of a region: four chunks.
REGION = 4 * CHUNK
#: Rows that are appended at once: half a chunk, so that two processes meet in one.
BLOCK = CHUNK // 2
#: Regions of the array that is only read.
READ_REGIONS = 128


def tell(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def code(worker: int, sequence: int) -> int:
    return (worker + 1) << 32 | sequence


def attempt(action: Callable[[], T]) -> list[T]:
    """Try once; return what the action returned. Tell what the store refuses, and other errors: then nothing."""
    try:
        return [action()]
    except Refused:
        tell("refused")
    except Exception as error:  # noqa: BLE001 - what a store raises is a result
        tell("failed", type(error).__name__, str(error).replace("\n", " ")[:200])
    time.sleep(random.uniform(0.001, 0.01))
    return []


def write_regions(adapter: Adapter, worker: int, sequence: int) -> None:
    """Write the worker's own region again and again."""
    while True:
        values = np.full((REGION, COLUMNS), code(worker, sequence), np.int64)
        if attempt(partial(adapter.write, worker * REGION, values)):
            tell("done", sequence)
            sequence += 1


def append_blocks(adapter: Adapter, worker: int, sequence: int) -> None:
    """Append blocks, as all other workers do to the same array."""
    while True:
        values = np.full((BLOCK, COLUMNS), code(worker, sequence), np.int64)
        if attempt(partial(adapter.append, values)):
            tell("done", sequence)
        sequence += 1  # also after an error: what it has left is not what the next one writes


def read_regions(adapter: Adapter, _: int, writers: int) -> None:
    """Read one region of those that others write, and look whether it was written by one write."""
    while True:
        start = random.randrange(writers) * REGION
        for rows in attempt(partial(adapter.read, start, start + REGION)):
            tell("read" if len(np.unique(rows)) == 1 else "torn")


def read_chunks(adapter: Adapter, _worker: int, _sequence: int) -> None:
    """Read single chunks at random from an array that nothing changes."""
    while True:
        start = random.randrange(READ_REGIONS * REGION // CHUNK) * CHUNK
        if attempt(partial(adapter.read, start, start + CHUNK)):
            tell("done", 0)


WORK: dict[str, Callable[[Adapter, int, int], None]] = {
    "regions": write_regions,
    "watch": read_regions,
    "appends": append_blocks,
    "reads": read_chunks,
}


def run(store: str, path: str, work: str, worker: int, sequence: int) -> None:
    """Work until this process is killed."""
    WORK[work](ADAPTERS[store](Path(path)), worker, sequence)


# --- what must be there afterwards


def check_regions(adapter: Adapter, acknowledged: Mapping[int, list[int]]) -> Counter[str]:
    """Each region holds one write, the last one that was acknowledged or a later one."""
    found: Counter[str] = Counter()
    rows = adapter.read()
    for worker, sequences in acknowledged.items():
        codes = np.unique(rows[worker * REGION : (worker + 1) * REGION])
        if len(codes) != 1:
            found["torn"] += 1
        if sequences and codes.min() < code(worker, sequences[-1]):
            found["lost"] += 1
    return found


def check_appends(adapter: Adapter, acknowledged: Mapping[int, list[int]]) -> Counter[str]:
    """Each block that was acknowledged is there, once and whole."""
    found: Counter[str] = Counter()
    rows = adapter.read()
    firsts, lasts = rows.min(axis=1), rows.max(axis=1)
    found["torn"] += int((firsts != lasts).sum())
    counts = Counter(firsts[firsts == lasts].tolist())
    for worker, sequences in acknowledged.items():
        for sequence in sequences:
            there = counts[code(worker, sequence)]
            found["lost"] += there < BLOCK
            found["twice"] += there > BLOCK
    return found

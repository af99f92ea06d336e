"""Whole arrays through zarr, against MemoryStore (what zarr itself costs) and LocalStore (which syncs nothing)."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr
import zarr.core.codec_pipeline

from benchmarks.harness import OURS, Row, Setting, Take, faster, interleaved, settle, slower, timed
from benchmarks.stores import PIPELINES, Layout, Local, Memory, Store, TxStore

KINDS: dict[str, type[Store]] = {OURS: TxStore, "MemoryStore": Memory, "LocalStore": Local}


#: 4096 chunks of 16 KiB, one after the other.
SMALL = Layout((4096 * 4096,), (4096,))


def _data() -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return measurements to two decimals."""
    return np.random.default_rng(0).standard_normal(SMALL.shape).round(2).astype(np.float32)


def _using(pipeline: str) -> Any:
    return zarr.config.set({"codec_pipeline.path": PIPELINES[pipeline]})


def _write(who: str, scratch: Path, data: np.ndarray) -> float:
    """Write the array beside an empty root group, and delete it before its pages are written to the disk."""
    store = KINDS[who](scratch / who)
    store.prepare()
    with timed() as seconds:
        store.write(SMALL, data)
    shutil.rmtree(scratch / who, ignore_errors=True)
    return seconds()


def writes(setting: Setting) -> list[Row]:
    data = _data()
    with _using("batched"), setting.scratch() as scratch:
        takes: dict[str, Take] = {who: partial(_write, who, scratch, data) for who in KINDS}
        samples = interleaved(takes, setting.rounds(9, 1), before_each=partial(settle, scratch))
    what = "write 4096 × 16 KiB and commit, batched"
    return [
        slower("write-16k-batched", f"{what}: time of MemoryStore", samples, OURS, "MemoryStore", 1.5),
        faster("write-16k-batched-local", f"{what}: faster than LocalStore", samples, OURS, "LocalStore", 5.0),
    ]


def _read(store: Store, expected: np.ndarray) -> float:
    with timed() as seconds:
        found = store.read(store.open(), slice(None))
    if not np.array_equal(found, expected):
        raise AssertionError("what was read is not what was written")
    return seconds()


def reads(setting: Setting, pipeline: str) -> list[Row]:
    """Read what is in the page cache, from a repository that is opened anew."""
    data, takes = _data(), dict[str, Take]()
    with _using(pipeline), setting.scratch() as scratch:
        for who in (OURS, "MemoryStore"):
            store = KINDS[who](scratch / who)
            store.prepare()
            store.write(SMALL, data)
            takes[who] = partial(_read, store, data)
        samples = interleaved(takes, setting.rounds(15, 2))
    what = f"read 4096 × 16 KiB, {pipeline}: time of MemoryStore"
    return [slower(f"read-16k-{pipeline}", what, samples, OURS, "MemoryStore", 1.2)]


_pipelines = [
    name for name in ("batched", "fused") if hasattr(zarr.core.codec_pipeline, PIPELINES[name].split(".")[-1])
]
CASES = {"write-16k": writes, **{f"read-16k-{each}": partial(reads, pipeline=each) for each in _pipelines}}

"""Whole arrays through zarr, against MemoryStore (what zarr itself costs) and LocalStore (which syncs nothing)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr
import zarr.core.codec_pipeline
from zarr.abc.store import Store
from zarr.storage import LocalStore, MemoryStore

import txstore
from benchmarks.harness import OURS, Row, Setting, Take, interleaved, medians, ratio, settle, timed

NAME = "position"
PIPELINES = {
    "batched": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "fused": "zarr.core.codec_pipeline.FusedCodecPipeline",  # zarr 3.4 and later
}


@dataclass(frozen=True)
class Work:
    """An array of float32 in one dimension."""

    chunks: int
    chunk_bytes: int
    options: dict[str, Any]

    def data(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return measurements to two decimals: half of it can be compressed away."""
        values = np.random.default_rng(0).standard_normal(self.chunks * self.chunk_bytes // 4)
        return values.round(2).astype(np.float32)

    def write(self, store: Store, data: Any) -> None:
        # Not `create_array(data=data)`, which writes chunk by chunk: this is one batch for the pipeline.
        chunks = (self.chunk_bytes // data.itemsize,)
        zarr.create_array(store, name=NAME, shape=data.shape, dtype=data.dtype, chunks=chunks, **self.options)[:] = data


RAW = {"compressors": None}
SMALL = Work(4096, 16 << 10, RAW)


# --- writing: an empty root group is there, the array is not


def _write_ours(work: Work, data: Any, path: Path) -> float:
    try:
        return _fill_ours(work, data, path)
    finally:
        shutil.rmtree(path)


def _fill_ours(work: Work, data: Any, path: Path) -> float:
    repo = txstore.Repository(path)
    with repo.transaction() as store:
        zarr.create_group(store)
    with timed() as seconds, repo.transaction("all") as store:
        work.write(store, data)
    return seconds()


def _write_local(work: Work, data: Any, path: Path) -> float:
    try:
        return _write(work, data, LocalStore(path))
    finally:
        shutil.rmtree(path)  # before its pages are written to the disk: that is not for the next sample to pay


def _write_memory(work: Work, data: Any) -> float:
    return _write(work, data, MemoryStore())


def _write(work: Work, data: Any, store: Store) -> float:
    zarr.create_group(store)
    with timed() as seconds:
        work.write(store, data)
    return seconds()


def _writes(setting: Setting, work: Work, *, rounds: int, local: bool) -> dict[str, list[float]]:
    data = work.data()
    with setting.scratch() as scratch:
        takes: dict[str, Take] = {
            OURS: partial(_write_ours, work, data, scratch / "data.tx"),
            "MemoryStore": partial(_write_memory, work, data),
        }
        if local:
            takes["LocalStore"] = partial(_write_local, work, data, scratch / "data.zarr")
        return interleaved(takes, rounds, before_each=partial(settle, scratch))


# --- reading: all of it is in the page cache


def _read(open_store: Callable[[], Store], expected: Any) -> float:
    with timed() as seconds:
        found = zarr.open_array(open_store(), path=NAME, mode="r")[:]
    if not np.array_equal(found, expected):
        raise AssertionError("what was read is not what was written")
    return seconds()


def _reads(setting: Setting, work: Work, *, rounds: int) -> dict[str, list[float]]:
    data = work.data()
    memory = MemoryStore()
    _write(work, data, memory)
    with setting.scratch() as scratch:
        path = scratch / "data.tx"
        _fill_ours(work, data, path)
        takes: dict[str, Take] = {
            OURS: partial(_read, lambda: txstore.Repository(path).snapshot(), data),
            "MemoryStore": partial(_read, lambda: memory, data),
        }
        return interleaved(takes, rounds)


# --- the rows


def _using(pipeline: str) -> Any:
    return zarr.config.set({"codec_pipeline.path": PIPELINES[pipeline]})


def _row(name: str, what: str, samples: dict[str, list[float]], peer: str, target: float) -> Row:
    measured = ratio(samples, OURS, peer)
    return Row(name, what, measured, target, medians=medians(samples), samples=samples)


def write_small(setting: Setting, pipeline: str) -> list[Row]:
    with _using(pipeline):
        samples = _writes(setting, SMALL, rounds=setting.rounds(9, 3), local=True)
    what = f"write 4096 × 16 KiB and commit, {pipeline}: time of"
    faster = ratio(samples, "LocalStore", OURS)
    return [
        _row(f"write-16k-{pipeline}", f"{what} MemoryStore", samples, "MemoryStore", 1.5),
        Row(
            f"write-16k-{pipeline}-local", f"write 4096 × 16 KiB and commit, {pipeline}: faster than LocalStore",
            faster, 5.0, at_least=True, medians=medians(samples), samples=samples,
        ),
    ]  # fmt: skip


def read_small(setting: Setting, pipeline: str) -> list[Row]:
    with _using(pipeline):
        samples = _reads(setting, SMALL, rounds=setting.rounds(15, 3))
    what = f"read 4096 × 16 KiB, {pipeline}: time of MemoryStore"
    return [_row(f"read-16k-{pipeline}", what, samples, "MemoryStore", 1.2)]


_pipelines = [name for name, path in PIPELINES.items() if hasattr(zarr.core.codec_pipeline, path.rpartition(".")[2])]

#: Name of the rows' beginning -> what measures them.
BENCHMARKS: dict[str, Callable[[Setting], list[Row]]] = {
    "write-16k-batched": partial(write_small, pipeline="batched"),
    **{f"read-16k-{pipeline}": partial(read_small, pipeline=pipeline) for pipeline in _pipelines},
}

"""Whole arrays through zarr, against MemoryStore (what zarr itself costs) and LocalStore (which syncs nothing).

And a day of reanalysis, written by its labels.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr
import zarr.core.codec_pipeline

import txstore
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


_HOURS, _NAMES, _SHAPE = 87_600, ("u", "v", "t", "q", "z"), (721, 1440)


def upserts(setting: Setting) -> list[Row]:
    """Write one day of five variables into ten years: by its labels, and where the caller says that it belongs."""
    import xarray as xr  # late: an extra

    numbers = itertools.count()
    with setting.scratch() as scratch:
        repo = txstore.Repository(scratch / "data.tx")
        with repo.transaction() as store:
            group = zarr.open_group(store)
            group.create_array("time", data=np.arange(_HOURS), chunks=(_HOURS,), dimension_names=("time",))
            for name in _NAMES:  # no values are stored
                group.create_array(
                    name, shape=(_HOURS, *_SHAPE), chunks=(24, -(-_SHAPE[0] // 4), -(-_SHAPE[1] // 4)), dtype="f4",
                    dimension_names=("time", "y", "x"), compressors=None, fill_value=float("nan"),
                )  # fmt: skip

        def upsert(ds: xr.Dataset) -> None:
            assert repo.upsert(ds).updated == 24

        def region(ds: xr.Dataset) -> None:
            first = int(ds.time[0])
            with repo.transaction() as store:
                ds.drop_vars("time").to_zarr(store, region={"time": slice(first, first + 24)}, consolidated=False)

        def take(write: Callable[[xr.Dataset], None]) -> float:
            first = next(numbers)
            random = np.random.default_rng(first)
            values = {name: (("time", "y", "x"), random.random((24, *_SHAPE), dtype="f4")) for name in _NAMES}
            ds = xr.Dataset(values, {"time": np.arange(24 * first, 24 * first + 24)})
            with timed() as seconds:
                write(ds)
            return seconds()

        takes = {"upsert": partial(take, upsert), "region=": partial(take, region)}
        samples = interleaved(takes, setting.rounds(7, 1))
    what = f"upsert of 24 of {_HOURS:,} hours, {len(_NAMES)} variables of 721 x 1440: beside region="
    return [slower("upsert", what, samples, "upsert", "region=", 1.3)]


_pipelines = [
    name for name in ("batched", "fused") if hasattr(zarr.core.codec_pipeline, PIPELINES[name].split(".")[-1])
]
CASES = {
    "write-16k": writes,
    **{f"read-16k-{each}": partial(reads, pipeline=each) for each in _pipelines},
    "upsert": upserts,
}

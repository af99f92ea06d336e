"""Writes by label beside writes by position: a day of reanalysis, a block before the first row."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from filelock import FileLock
from zarr.storage import LocalStore

import txstore
from benchmarks.harness import OURS, Row, Setting, interleaved, ratio
from benchmarks.local.crowd import PROCESSES, Prepare, timed_crowd

if TYPE_CHECKING:
    import xarray as xr

_HOURS, _NAMES, _LATITUDES, _LONGITUDES = 87_600, ("u", "v", "t", "q", "z"), 721, 1440
_CHUNKS = 1_000_000
_ROWS = 2_000  # that are put before the others, and in a chunk of labels


def _days(first: int, shape: tuple[int, int], names: tuple[str, ...], hours: int = 24) -> xr.Dataset:
    import xarray as xr  # late: an extra

    random = np.random.default_rng(first)
    values = {name: (("time", "y", "x"), random.random((hours, *shape), dtype="f4")) for name in names}
    return xr.Dataset(values, {"time": np.arange(24 * first, 24 * first + hours)})


def _create(store: Any, shape: tuple[int, int], names: tuple[str, ...]) -> None:
    """Write ten years of hours, of which no values are stored."""
    group = zarr.open_group(store)
    group.create_array("time", data=np.arange(_HOURS), chunks=(_HOURS,), dimension_names=("time",))
    for name in names:
        group.create_array(
            name, shape=(_HOURS, *shape), chunks=(24, -(-shape[0] // 4), -(-shape[1] // 4)), dtype="f4",
            dimension_names=("time", "y", "x"), compressors=None, fill_value=float("nan"),
        )  # fmt: skip


def days(setting: Setting) -> list[Row]:
    """Write one day of five variables into ten years: by its labels, and where the caller says that it belongs."""
    shape = (_LATITUDES, _LONGITUDES)
    with setting.scratch() as scratch:
        repo = txstore.Repository(scratch / "data.tx")
        with repo.transaction() as store:
            _create(store, shape, _NAMES)
        numbers = iter(range(3650))

        def upsert(ds: xr.Dataset) -> None:
            assert repo.upsert(ds).updated == 24

        def region(ds: xr.Dataset) -> None:
            first = int(ds.time[0])
            with repo.transaction() as store:
                ds.drop_vars("time").to_zarr(store, region={"time": slice(first, first + 24)}, consolidated=False)

        def timed(write: Callable[[xr.Dataset], None]) -> Callable[[], float]:
            def take() -> float:
                ds = _days(next(numbers), shape, _NAMES)
                began = time.perf_counter()
                write(ds)
                return time.perf_counter() - began

            return take

        samples = interleaved({"upsert": timed(upsert), "region=": timed(region)}, setting.rounds(7, 3))
    what = f"upsert of 24 of {_HOURS:,} hours, 5 variables of {_LATITUDES} x {_LONGITUDES}: beside region="
    measured = ratio(samples, "upsert", "region=")
    return [Row("upsert", what, measured, 1.3, medians=_medians(samples), samples=samples)]


def prepends(setting: Setting) -> list[Row]:
    """Put rows before a million chunks: as many as one chunk of the labels has, so that no chunk is cut."""
    import xarray as xr  # late: an extra

    samples: dict[str, list[float]] = {OURS: []}
    with setting.scratch() as scratch:
        repo = txstore.Repository(scratch / "data.tx")
        with repo.transaction() as store:
            ds = xr.Dataset({"v": ("time", np.arange(2 * _CHUNKS, dtype="i2"))}, {"time": np.arange(2 * _CHUNKS)})
            encoding = {"v": {"chunks": (2,), "compressors": None}, "time": {"chunks": (_ROWS,)}}
            ds.to_zarr(store, consolidated=False, encoding=encoding)
        for number in range(1, setting.rounds(6, 3)):
            block = ds.isel(time=slice(_ROWS)).assign_coords(time=np.arange(_ROWS) - number * _ROWS)
            began = time.perf_counter()
            with repo.transaction() as store:
                txstore.prepend(block, store, dim="time")
            samples[OURS].append(time.perf_counter() - began)
        assert zarr.open_array(repo.snapshot(), path="v", mode="r").shape[0] == 2 * _CHUNKS + _ROWS * number
    median = statistics.median(samples[OURS])
    what = f"{_ROWS // 2:,} chunks before {_CHUNKS:,} chunks"
    return [Row("prepend", what, median, 0.5, "s", samples=samples)]


def _upsert_days(path: Path, count: int, which: int) -> Callable[[], None]:
    repo = txstore.Repository(path / "data.tx", durability="none")
    found = [_days(which * count + number, (64, 64), ("t",)) for number in range(count)]

    def upsert() -> None:
        for ds in found:
            repo.upsert(ds)

    return upsert


def _write_days_under_a_lock(path: Path, count: int, which: int) -> Callable[[], None]:
    found = [_days(which * count + number, (64, 64), ("t",)) for number in range(count)]

    def write() -> None:
        for ds in found:
            with FileLock(path / "lock"):
                ds.to_zarr(path / "data.zarr", region="auto", consolidated=False)

    return write


def crowds(setting: Setting) -> list[Row]:
    """Let eight processes write different days: by label, and with xarray under one lock."""
    count = setting.rounds(20, 6)

    def take(prepare: Prepare) -> float:
        with setting.scratch() as scratch:
            with txstore.Repository(scratch / "data.tx", durability="none").transaction() as store:
                _create(store, (64, 64), ("t",))
            _create(LocalStore(scratch / "data.zarr"), (64, 64), ("t",))
            seconds, failed = timed_crowd(prepare, scratch, count)
            assert not failed
        return PROCESSES * count / seconds

    takes = {OURS: lambda: take(_upsert_days), "to_zarr under a lock": lambda: take(_write_days_under_a_lock)}
    samples = interleaved(takes, setting.rounds(3, 1))
    what = f"{PROCESSES} processes upsert different days: days a second, beside a lock around to_zarr"
    measured = ratio(samples, OURS, "to_zarr under a lock")
    return [Row("upserts of a crowd", what, measured, 4, at_least=True, medians=_medians(samples), samples=samples)]


def _medians(samples: dict[str, list[float]]) -> dict[str, float]:
    return {who: statistics.median(each) for who, each in samples.items()}


BENCHMARKS = {"upsert": days, "prepend": prepends, "crowd of upserts": crowds}

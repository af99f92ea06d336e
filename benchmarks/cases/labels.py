"""A day of reanalysis, written by its labels, and where the caller says that it belongs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np
import zarr

import txstore
from benchmarks.harness import Row, Setting, interleaved, slower, timed

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


CASES = {"upsert": upserts}

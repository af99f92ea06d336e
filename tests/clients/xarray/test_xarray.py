"""xarray: each mode of writing, regions, appending, trees, lazy loading, and types that it encodes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import txstore
from tests.clients.trials import Both, tool
from tests.clients.xarray.weather import days

CODE = "ds.to_zarr(store); xr.open_zarr(repo.snapshot())"


@tool("xarray", code=CODE, tried="`to_zarr` and `open_zarr` with Dask's chunks")
def test_write_and_read(both: Both) -> None:
    found = both(lambda store: days().to_zarr(store), lambda store: xr.open_zarr(store).load())
    xr.testing.assert_identical(found, days().load())


@tool("xarray", code=CODE, tried="modes w-, w, a, a-, r+")
def test_modes(both: Both) -> None:
    def write(store: Any) -> None:
        days(count=20).to_zarr(store, mode="w-")
        with pytest.raises(FileExistsError):
            days(count=20).to_zarr(store, mode="w-")
        days(5, count=20).to_zarr(store, mode="w")
        days(7, count=20)[["rain"]].to_zarr(store, mode="a")
        days(25, count=4).to_zarr(store, mode="a-", append_dim="time")
        days(9, count=4)[["t"]].drop_vars(["x", "y", "time"]).to_zarr(store, mode="r+", region={"time": slice(4, 8)})
        with pytest.raises(ValueError, match="new"):
            days(count=24)[["t"]].rename(t="new").to_zarr(store, mode="r+")

    both(write, lambda store: xr.open_zarr(store).load())


@tool("xarray", code=CODE, tried='`region="auto"`, `append_dim`')
def test_regions(both: Both) -> None:
    def write(store: Any) -> None:
        days(0, 20).to_zarr(store)
        days(20, 20).to_zarr(store, append_dim="time")
        days(8, 12).assign(t=lambda ds: ds.t + 1).drop_vars(["x", "y"]).to_zarr(store, region="auto")
        days(0, 40).isel(time=slice(0, 4)).drop_vars(["x", "y"]).to_zarr(store, region={"time": "auto"})

    found = both(write, lambda store: xr.open_zarr(store).load())
    assert found.sizes["time"] == 40


@tool("xarray", code=CODE, tried="`DataTree.to_zarr`, `open_datatree`, `open_groups`")
def test_trees(both: Both) -> None:
    def write(store: Any) -> None:
        nodes = {
            "/": xr.Dataset(attrs={"n": 0}),
            "/fine": days(count=8),
            "/coarse": days(count=4),
            "/a/b": xr.Dataset(),
        }
        tree = xr.DataTree.from_dict(nodes)
        tree.to_zarr(store)
        xr.DataTree.from_dict({"/later": days(count=4)}).to_zarr(store, mode="a")

    def read(store: Any) -> dict[str, xr.Dataset]:
        groups = xr.open_groups(store, engine="zarr")
        tree = xr.open_datatree(store, engine="zarr", chunks={})
        assert set(groups) == set(tree.groups)
        return {path: tree[path].to_dataset(inherit=False).load() for path in tree.groups}

    assert set(both(write, read)) == {"/", "/fine", "/coarse", "/a", "/a/b", "/later"}


@tool("xarray", code=CODE, tried="`load_async`")
def test_load_async(both: Both) -> None:
    async def load(store: Any) -> xr.Dataset:
        return await xr.open_zarr(store, chunks=None).load_async()

    both(lambda store: days().to_zarr(store), lambda store: asyncio.run(load(store)))


@tool("xarray", code='xr.open_mfdataset([url, ...], engine="txstore")', tried="`open_mfdataset`")
def test_open_mfdataset(tmp_path: Path) -> None:
    paths = []
    for number in range(3):
        repo = txstore.Repository(tmp_path / f"{number}.tx")
        with repo.transaction() as store:
            days(10 * number, 10, 20).to_zarr(store)
        days(10 * number, 10, 20).to_zarr(tmp_path / f"{number}.zarr")
        paths.append((repo.url, tmp_path / f"{number}.zarr"))
    ours, local = zip(*paths, strict=True)
    with (
        xr.open_mfdataset(ours, engine="txstore", combine="by_coords", parallel=True) as mine,
        xr.open_mfdataset(local, engine="zarr", combine="by_coords", parallel=True) as plain,
    ):
        xr.testing.assert_identical(mine.load(), plain.load())


@tool("xarray", code=CODE, tried="cftime, strings, complex numbers, shards, packed values, both formats of Zarr")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_what_is_encoded(both: Both, zarr_format: int) -> None:
    data = xr.Dataset(
        {
            "name": ("time", np.array([f"day {number}" for number in range(36)])),
            "any": ("time", np.array(["ä", "b", ""] * 12, dtype=object)),
            "wave": ("time", np.arange(36) * 1j),
            "good": ("time", np.arange(36) % 2 == 0),
            "gap": ("time", np.arange(36) * np.timedelta64(1, "h").astype("m8[ns]")),
            "packed": (("time", "x"), np.random.default_rng(0).random((36, 64)).round(2)),
        },
        {"time": xr.date_range("2000-01-01", periods=36, freq="D", calendar="360_day", use_cftime=True)},
    )
    encoding: dict[str, Any] = {
        "packed": {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -1, "chunks": (6, 64)},
        "wave": {"chunks": (4,)},
    }
    if zarr_format == 3:
        encoding["packed"]["shards"] = (18, 64)
    found = both(
        lambda store: data.to_zarr(store, encoding=encoding, zarr_format=zarr_format, consolidated=False),
        lambda store: xr.open_zarr(store, consolidated=False).load(),
    )
    np.testing.assert_array_equal(found.name, data.name)
    np.testing.assert_allclose(found.packed, data.packed)

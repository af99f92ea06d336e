"""What reads Zarr over HTTP reads a commit from `txstore serve`, as it reads a directory from another server."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import rasterio
import tensorstore
import xarray as xr
import xarray_tensorstore
from obstore.store import HTTPStore
from rio_tiler.io.xarray import XarrayReader
from titiler.xarray.io import FsReader
from zarr.storage import ObjectStore

import txstore
from tests.clients.references.fields import field, served, served_directory, write
from tests.clients.trials import Both, tool
from tests.serving.client import running

SERVED: dict[str, Any] = {"local": served_directory, "ours": served, "rounds": 2}


@tool(
    "obstore",
    code='HTTPStore.from_url("http://127.0.0.1:8000/at/main", client_options={"allow_http": True})',
    tried="its `HTTPStore` below zarr and xarray",
)
def test_obstore(both: Both) -> None:
    def read(url: str) -> xr.Dataset:
        store = ObjectStore(HTTPStore.from_url(url, client_options={"allow_http": True}), read_only=True)
        return xr.open_zarr(store, chunks=None).load()

    xr.testing.assert_identical(both(write, read, **SERVED), field())


@tool("fsspec", code='xr.open_zarr("http://127.0.0.1:8000/at/main")', tried="its file system of HTTP below xarray")
def test_fsspec(both: Both) -> None:
    xr.testing.assert_identical(both(write, lambda url: xr.open_zarr(url, chunks=None).load(), **SERVED), field())


@tool(
    "tensorstore",
    code='{"driver": "zarr3", "kvstore": "http://127.0.0.1:8000/at/main/t/"}',
    tried="both formats over HTTP",
)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_tensorstore(both: Both, zarr_format: int) -> None:
    def read(url: str) -> np.ndarray:
        spec = {"driver": "zarr" if zarr_format == 2 else "zarr3", "kvstore": f"{url}/t/"}
        return tensorstore.open(spec, open=True, read=True).result().read().result()

    np.testing.assert_array_equal(both(partial(write, zarr_format=zarr_format), read, **SERVED), field().t)


@tool(
    "xarray-tensorstore",
    code='xarray_tensorstore.open_zarr("http://127.0.0.1:8000/at/main")',
    tried="a data set over HTTP",
)
def test_xarray_tensorstore(both: Both) -> None:
    def read(url: str) -> xr.Dataset:
        return xarray_tensorstore.read(xarray_tensorstore.open_zarr(url)).load()

    xr.testing.assert_identical(both(write, read, **SERVED), field())


@tool(
    "titiler-xarray",
    code='FsReader("http://127.0.0.1:8000/at/main", variable="t")',
    tried="tiles, points and a part over HTTP",
)
def test_titiler(both: Both) -> None:
    def read(url: str) -> list[np.ndarray]:
        with FsReader(url, variable="t", sel=["time=2026-01-01T05:00:00"]) as reader:
            tiles = [reader.tile(x, y, 2).array.filled(-1) for x in range(4) for y in range(4)]
            return [*tiles, reader.part((-20, -20, 20, 20)).array.filled(-1), reader.point(10, 10).array.filled(-1)]

    assert len(both(write, read, **SERVED)) == 18


@tool("rio-tiler", code="XarrayReader(xr.open_zarr(repo.snapshot()).t[0])", tried="tiles of a snapshot")
def test_rio_tiler(both: Both) -> None:
    def read(store: Any) -> list[np.ndarray]:
        data = xr.open_zarr(store, chunks=None).t[0].rename(lat="y", lon="x").rio.write_crs("epsg:4326")
        with XarrayReader(data) as reader:
            return [reader.tile(x, y, 2).array.filled(-1) for x in range(4) for y in range(4)]

    both(write, read)


@tool(
    "rioxarray",
    code='xr.open_zarr(repo.snapshot(), decode_coords="all").rio',
    tried="a projection that is stored and read; warps",
)
def test_rioxarray(both: Both) -> None:
    def put(store: Any) -> None:
        field(6).rio.write_crs("epsg:4326").rio.set_spatial_dims("lon", "lat").to_zarr(store)

    def read(store: Any) -> np.ndarray:
        data = xr.open_zarr(store, decode_coords="all", chunks=None)
        assert data.rio.crs.to_epsg() == 4326
        return data.t.rio.set_spatial_dims("lon", "lat").rio.reproject("epsg:3857").to_numpy()

    both(put, read)


GDAL = """rasterio.open('ZARR:"/vsicurl/http://127.0.0.1:8000/at/main/t"')"""


@pytest.fixture
def no_listing() -> Iterator[None]:
    with rasterio.Env(GDAL_DISABLE_READDIR_ON_OPEN="EMPTY_DIR"):
        yield


@tool("rasterio", code=GDAL, tried="GDAL's driver for Zarr over HTTP")
def test_gdal(both: Both, no_listing: None) -> None:
    def read(url: str) -> np.ndarray:
        with rasterio.open(f'ZARR:"/vsicurl/{url}/t"') as data:
            return data.read()

    np.testing.assert_array_equal(both(partial(write, zarr_format=2), read, **SERVED), field().t)


@tool(
    "rasterio",
    code=GDAL,
    tried="a tag that is deleted meanwhile",
    limit="a chunk is no data after any status but 200, without an error: give GDAL a tag that stays",
    whose="the tool",
)
def test_what_is_gone_is_no_data_to_gdal(repo: txstore.Repository, no_listing: None) -> None:
    with repo.transaction() as store:
        write(store, 2)
    repo.tags["v1"] = repo.head()
    url = 'ZARR:"/vsicurl/{}at/v1/t"'
    with running(repo.url) as server, rasterio.open(url.format(server.address)) as data:
        del repo.tags["v1"]
        assert (data.read() != field().t.to_numpy()).any()

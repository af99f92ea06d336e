"""Tools that compute on images of Dask, or copy images from elsewhere, and write what they have found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import dask_image.ndfilters
import dask_image.ndmeasure
import numpy as np
import tifffile
import zarr

from tests.clients.imaging.images import image
from tests.clients.trials import Both, tool


@tool(
    "dask-image",
    code='da.to_zarr(dask_image.ndfilters.gaussian_filter(da.from_zarr(repo.snapshot(), "image"), 2), store)',
    tried="filters and labels of a lazy image, written in the transaction that has made it",
)
def test_dask_image(both: Both) -> None:
    def write(store: Any) -> None:
        zarr.create_array(store, name="image", data=image()[0, 0], chunks=(256, 256))
        smooth = dask_image.ndfilters.gaussian_filter(da.from_zarr(store, "image"), 2)
        da.to_zarr(smooth, store, component="smooth")
        found, _ = dask_image.ndmeasure.label(da.from_zarr(store, "smooth") > 1500)
        da.to_zarr(found, store, component="labels")

    def read(store: Any) -> list[Any]:
        area = dask_image.ndmeasure.area(da.from_zarr(store, "smooth"), da.from_zarr(store, "labels"), np.arange(1, 9))
        return [da.from_zarr(store, "labels").compute(), area.compute()]

    found, _ = both(write, read)
    assert found.max() >= 8


@tool(
    "tifffile",
    code="zarr.create_array(store, data=zarr.open_array(tifffile.imread(path, aszarr=True)))",
    tried="a tiled TIFF as a store of zarr, copied into a transaction",
)
def test_tifffile(both: Both, tmp_path: Path) -> None:
    path = tmp_path / "image.tif"
    tifffile.imwrite(path, image(), tile=(128, 128), compression="zlib", photometric="minisblack")

    def write(store: Any) -> None:
        with tifffile.imread(path, aszarr=True) as tiles:
            found = zarr.open_array(tiles, mode="r")
            da.to_zarr(da.from_zarr(found), store, component="image")

    found = both(write, lambda store: zarr.open_array(store, path="image", mode="r")[:])
    np.testing.assert_array_equal(found, image())

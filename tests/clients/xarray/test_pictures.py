"""hvplot, HoloViews and datashader draw what a snapshot has."""

from __future__ import annotations

from typing import Any

import datashader
import holoviews as hv
import hvplot.xarray  # noqa: F401 - gives data sets their `hvplot`
import numpy as np
import xarray as xr

from tests.clients.trials import Both, tool
from tests.clients.xarray.weather import days

OPENED = "xr.open_zarr(repo.snapshot())"


@tool(
    "hvplot",
    code=f"{OPENED}.t.hvplot.image(rasterize=True)",
    tried="an image of Dask's chunks, in pixels of the screen; lines",
)
def test_hvplot(both: Both) -> None:
    def read(store: Any) -> list[Any]:
        data = xr.open_zarr(store)
        image = data.t.mean("time").hvplot.image(x="x", y="y", rasterize=True, dynamic=False, width=100, height=100)
        lines = data.t.mean(("x", "y")).hvplot.line()
        hv.renderer("bokeh").get_plot(image + lines)
        return [np.asarray(image.dimension_values(2)), np.asarray(lines.dimension_values(1))]

    both(lambda store: days().to_zarr(store), read)


@tool("holoviews", code=f"hv.Dataset({OPENED}).to(hv.Image, ['x', 'y'])", tried="one image for each day")
def test_holoviews(both: Both) -> None:
    def read(store: Any) -> list[np.ndarray]:
        images = hv.Dataset(xr.open_zarr(store)[["t"]]).to(hv.Image, ["x", "y"], dynamic=False)
        return [np.asarray(image.dimension_values(2)) for image in images]

    assert len(both(lambda store: days().to_zarr(store), read)) == 40


@tool(
    "datashader",
    code=f"datashader.Canvas(100, 100).raster({OPENED}.t[0])",
    tried="rasters and shaded images of each day",
)
def test_datashader(both: Both) -> None:
    def read(store: Any) -> list[np.ndarray]:
        canvas = datashader.Canvas(100, 100)
        rasters = [canvas.raster(day, agg="mean") for day in xr.open_zarr(store).t]
        return [datashader.transfer_functions.shade(raster).to_numpy() for raster in rasters]

    both(lambda store: days().to_zarr(store), read)

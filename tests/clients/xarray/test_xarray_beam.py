"""xarray-beam: a pipeline of Beam reads chunks of a data set, and writes them in other chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam
import xarray as xr
import xarray_beam
from apache_beam.options.pipeline_options import PipelineOptions

from tests.clients.trials import Both, tool
from tests.clients.xarray.weather import days


@tool(
    "xarray-beam",
    code="pipeline | xarray_beam.DatasetToChunks(ds, chunks) | xarray_beam.ChunksToZarr(store, template, chunks)",
    tried="`DatasetToChunks`, `Rechunk`, `ChunksToZarr`, `open_zarr`",
)
def test_pipeline(both: Both, tmp_path: Path) -> None:
    options = PipelineOptions(["--runner=DirectRunner", "--direct_running_mode=in_memory"])
    days().to_zarr(tmp_path / "source.zarr")
    source, before = xarray_beam.open_zarr(tmp_path / "source.zarr")
    after = {"time": 20, "y": 100, "x": 100}

    def write(store: Any) -> None:
        target = xarray_beam.make_template(source)
        with apache_beam.Pipeline(options=options) as pipeline:
            _ = (
                pipeline
                | xarray_beam.DatasetToChunks(source, before, split_vars=True)
                | xarray_beam.Rechunk(source.sizes, before, after, itemsize=8)
                | xarray_beam.ConsolidateVariables()
                | xarray_beam.ChunksToZarr(store, target, after)
            )

    def read(store: Any) -> xr.Dataset:
        found, chunks = xarray_beam.open_zarr(store)
        assert chunks == after
        return found.load()

    xr.testing.assert_identical(both(write, read), days().load())

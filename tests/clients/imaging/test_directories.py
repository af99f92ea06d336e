"""Tools that write to a directory and to no store: they write to a checkout, which is committed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anndata
import dask
import fsspec
import geopandas
import ngff_zarr
import numpy as np
import ome_writers
import pandas as pd
import pytest
import shapely
import spatialdata
import zarr
from ome_zarr.io import ZarrLocation
from ome_zarr.reader import Reader
from spatialdata.models import Image2DModel, Labels2DModel, PointsModel, ShapesModel, TableModel

import txstore
from tests.clients.imaging.images import SCALE, image, labels
from tests.clients.trials import Both, directory_of, tool

CHECKOUT = 'repo.checkout("work.zarr"); {}; repo.commit_directory("work.zarr")'
ONLY_DIRECTORIES = "writes to directories only, so a checkout is committed"
COPIED = "the commit copies the directory's files into the repository"


def sample() -> spatialdata.SpatialData:
    """Return an element of each kind."""
    random = np.random.default_rng(0)
    circles = geopandas.GeoDataFrame({"geometry": shapely.points(random.random((50, 2)) * 512), "radius": 5.0})
    points = pd.DataFrame({"x": random.random(5000) * 512, "y": random.random(5000) * 512, "gene": "a"})
    table = anndata.AnnData(
        random.random((50, 20)), obs=pd.DataFrame({"region": pd.Categorical(["circles"] * 50), "of": np.arange(50)})
    )
    return spatialdata.SpatialData(
        images={"tissue": Image2DModel.parse(image()[:, 0], dims="cyx", scale_factors=[2])},
        labels={"squares": Labels2DModel.parse(labels()[0], dims="yx")},
        points={"transcripts": PointsModel.parse(points)},
        shapes={"circles": ShapesModel.parse(circles)},
        tables={"table": TableModel.parse(table, region="circles", region_key="region", instance_key="of")},
    )


@tool(
    "spatialdata",
    code=CHECKOUT.format('sdata.write("work.zarr/sample")'),
    tried="images, labels, points, shapes and tables, read from a checkout",
    limit="writes to directories and reads them only: its Parquet files are no keys of Zarr",
    whose="the tool",
    slower=COPIED,
)
def test_spatialdata(both: Both, repo: txstore.Repository) -> None:
    def read(directory: Path) -> dict[str, Any]:
        found = spatialdata.read_zarr(directory / "sample")
        return {
            "tissue": [node.to_dataset()["image"].to_numpy() for node in found.images["tissue"].values()],
            "squares": found.labels["squares"].to_numpy(),
            "transcripts": found.points["transcripts"].compute()[["x", "y"]].to_numpy(),
            "circles": shapely.get_coordinates(found.shapes["circles"].geometry),
            "table": np.asarray(found.tables["table"].X),
        }

    data = sample()
    with repo.transaction() as store, pytest.raises(ValueError, match="must be a string or a Path"):
        data.write(store)
    found = both(
        lambda directory: data.write(directory / "sample", update_sdata_path=False),
        read,
        local=directory_of,
        ours=directory_of,
        checkout=True,
    )
    np.testing.assert_array_equal(found["tissue"][0], image()[:, 0])
    assert len(found["transcripts"]) == 5000


@contextmanager
def image_in(directory: Path) -> Iterator[str]:
    yield str(directory / "image")


@contextmanager
def mapping_of(repo: txstore.Repository) -> Iterator[Mapping[str, bytes]]:
    yield fsspec.get_mapper(f"txstore::{repo.url}/image")


@tool(
    "ngff-zarr",
    code=CHECKOUT.format('to_ngff_zarr("work.zarr/image", pyramid)')
    + '; from_ngff_zarr(fsspec.get_mapper("txstore::data.tx/image"))',
    tried="pyramids of OME-Zarr 0.4 and 0.5, read from a commit",
    limit=ONLY_DIRECTORIES,
    whose="the tool",
    slower=f"{COPIED}; it reads a mapping in Python, and a directory in Rust",
)
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_ngff_zarr(both: Both, repo: txstore.Repository, version: str) -> None:
    scale = {axis: SCALE[axis] for axis in "zyx"}
    pyramid = ngff_zarr.to_multiscales(
        ngff_zarr.to_ngff_image(image()[0], dims="zyx", scale=scale),
        scale_factors=[2],
        chunks=128,
        method=ngff_zarr.Methods.DASK_IMAGE_NEAREST,
    )
    with repo.transaction() as store, pytest.raises(TypeError, match="writes to local directory paths"):
        ngff_zarr.to_ngff_zarr(store, pyramid, version=version)

    def write(directory: Path) -> None:
        ngff_zarr.to_ngff_zarr(directory / "image", pyramid, version=version, overwrite=False)

    def read(store: Any) -> list[Any]:
        found = ngff_zarr.from_ngff_zarr(store, version=version)
        return [[level.scale, level.data.compute()] for level in found.images]

    found = both(write, read, local=image_in, ours=mapping_of, checkout=True)
    np.testing.assert_array_equal(found[0][1], image()[0])


@tool(
    "ome-writers",
    code=CHECKOUT.format('create_stream(AcquisitionSettings(root_path="work.zarr/run.ome.zarr", ...))'),
    tried="frames as a microscope takes them, read from a commit by ome-zarr",
    limit=ONLY_DIRECTORIES,
    whose="the tool",
    slower=COPIED,
)
def test_ome_writers(both: Both) -> None:
    pixels = image(1, 20)[0]

    def write(directory: Path) -> None:
        settings = ome_writers.AcquisitionSettings(
            root_path=str(directory / "run.ome.zarr"),
            dimensions=ome_writers.dims_from_standard_axes(
                {"t": 20, "y": 512, "x": 512}, chunk_shapes={"y": 128, "x": 128}
            ),
            dtype="uint16",
            format=ome_writers.OmeZarrFormat(backend="zarr-python"),
        )
        with ome_writers.create_stream(settings) as stream:
            for frame in pixels:
                stream.append(frame)

    def read(store: Any) -> list[Any]:
        group = zarr.open_group(store, mode="r", path="run.ome.zarr")
        nodes = list(Reader(ZarrLocation(group.store_path))())
        return [
            [node.zarr.root_attrs["multiscales"][0]["axes"] for node in nodes],
            dask.compute([node.data for node in nodes])[0],
        ]

    _, levels = both(write, read, checkout=True)
    np.testing.assert_array_equal(levels[0][0], pixels)

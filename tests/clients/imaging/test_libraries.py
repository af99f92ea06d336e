"""Libraries beside ome-zarr that read and write images: napari's reader, bioio, iohub, ngio and others."""

from __future__ import annotations

from typing import Any

import bioio
import bioio_ome_zarr
import dask
import ngio
import numpy as np
import ome_zarr_models
import pandas as pd
import pytest
import spatial_image
import xarray as xr
import yaozarrs
import zarr
from bioio_ome_zarr.writers import OMEZarrWriter
from iohub.ngff import open_ome_zarr
from multiscale_spatial_image import to_multiscale
from napari_ome_zarr import napari_get_reader
from ngio.tables import FeatureTable
from ngio.utils import NgioValueError
from ome_zarr.writer import write_image, write_labels
from pydantic_zarr.v3 import GroupSpec

import txstore
from tests.clients.imaging.images import AXES, SCALE, image, labels
from tests.clients.trials import Both, chained_url_of, tool


def write(store: Any, labelled: bool = True) -> None:
    """Write an image, as ome-zarr does."""
    group = zarr.open_group(store)
    options = {"chunks": (1, 1, 128, 128)}
    write_image(image(), group, axes=AXES, scale=SCALE, scale_factors=[2], storage_options=options)
    if labelled:
        write_labels(labels(), group, "squares", axes="zyx", scale_factors=[2])


@tool(
    "napari-ome-zarr",
    code='viewer.open("txstore::data.tx", plugin="napari-ome-zarr")',
    tried="its reader, for an image with labels",
)
def test_napari(both: Both) -> None:
    def read(path: str) -> list[Any]:
        layers = napari_get_reader(path)(path)
        return [[kind, layer["name"], dask.compute(*levels)] for levels, layer, kind in layers]

    found = both(write, read, local=chained_url_of, ours=chained_url_of)
    assert [kind for kind, _, _ in found] == ["image", "image", "labels"]
    np.testing.assert_array_equal(found[1][2][0], image()[1])


@tool(
    "napari-ome-zarr",
    code='viewer.open("txstore::data.tx", plugin="napari-ome-zarr")',
    tried="its reader, for an image with labels",
    limit="opens labels without their image from directories only",
    whose="the tool",
)
def test_napari_needs_a_directory_for_labels_alone(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        write(store)
    path = f"txstore::{repo.url}/labels/squares"
    with pytest.raises(AttributeError, match="root"):
        napari_get_reader(path)(path)


@tool(
    "bioio-ome-zarr",
    code='BioImage("txstore::data.tx"); OMEZarrWriter(store, ...)',
    tried="`OMEZarrWriter`, `BioImage`",
)
def test_bioio(both: Both) -> None:
    def write(store: Any) -> None:
        pixels = image()
        writer = OMEZarrWriter(
            store=store,
            level_shapes=[pixels.shape, (*pixels.shape[:2], *(side // 2 for side in pixels.shape[2:]))],
            dtype=pixels.dtype,
            chunk_shape=(1, 1, 128, 128),
            axes_names=list(AXES),
            axes_types=["channel", "space", "space", "space"],
        )
        writer.write_full_volume(pixels)

    def read(path: str) -> list[Any]:
        found = bioio.BioImage(path, reader=bioio_ome_zarr.Reader)
        return [found.dims.order, found.channel_names, found.get_image_data("CZYX"), found.physical_pixel_sizes.X]

    found = both(write, read, local=chained_url_of, ours=chained_url_of)
    np.testing.assert_array_equal(found[2], image())


@tool(
    "iohub",
    code='open_ome_zarr(store, layout="hcs", mode="w-", channel_names=[...])',
    tried="plates of OME-Zarr 0.4 and 0.5 with pyramids",
    slower="it chooses zarrs as the codec pipeline of the process, which is for LocalStore only",
)
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_iohub(both: Both, version: str) -> None:
    pixels = image()[np.newaxis]

    def write(store: Any) -> None:
        with open_ome_zarr(store, layout="hcs", mode="w-", channel_names=["red", "green"], version=version) as plate:
            for row, column in (("A", "1"), ("B", "2")):
                position = plate.create_position(row, column, "0")
                position.create_image("0", pixels, chunks=(1, 1, 1, 128, 128))
                position.initialize_pyramid(levels=2)
                position.compute_pyramid()

    def read(store: Any) -> list[Any]:
        with open_ome_zarr(store, mode="r") as plate:
            return [
                [name, position.channel_names, position["0"].numpy(), position["1"].numpy()]
                for name, position in plate.positions()
            ]

    found = both(write, read)
    assert [name for name, *_ in found] == ["A/1/0", "B/2/0"]
    np.testing.assert_array_equal(found[1][2], pixels)


@tool(
    "multiscale-spatial-image",
    code="to_multiscale(image, [2, 4]).msi.to_zarr(store)",
    tried="`to_zarr` of a pyramid; xarray's `open_datatree` reads it",
)
def test_multiscale_spatial_image(both: Both) -> None:
    def write(store: Any) -> None:
        pyramid = to_multiscale(
            spatial_image.to_spatial_image(image()[0], dims="zyx"), [{"y": 2, "x": 2}, {"y": 2, "x": 2}]
        )
        pyramid.msi.to_zarr(store, mode="w")

    def read(store: Any) -> dict[str, Any]:
        tree = xr.open_datatree(store, engine="zarr")
        return {path: node.to_dataset().load() for path, node in tree.subtree_with_keys}

    found = both(write, read)
    np.testing.assert_array_equal(found["scale0"].image, image()[0])


@tool(
    "ngio",
    code="create_ome_zarr_from_array(store, image, ...); open_ome_zarr_container(repo.snapshot())",
    tried="images, labels, tables of its JSON backend",
)
def test_ngio(both: Both) -> None:
    def write(store: Any) -> None:
        found = ngio.create_ome_zarr_from_array(store, image(), pixelsize=0.1, axes_names=AXES, levels=3)
        squares = found.derive_label("squares")
        squares.set_array(labels())
        squares.consolidate()
        table = pd.DataFrame({"label": np.arange(1, 4), "area": [10.0, 20.0, 30.0]})
        found.add_table("areas", FeatureTable(table, reference_label="squares"), backend="json")

    def read(store: Any) -> list[Any]:
        found = ngio.open_ome_zarr_container(store, mode="r")
        levels = [found.get_image(path=path).get_as_numpy() for path in found.level_paths]
        table = found.get_table("areas").dataframe
        return [levels, found.get_label("squares").get_as_numpy(), table.area.to_numpy()]

    levels, squares, areas = both(write, read)
    np.testing.assert_array_equal(levels[0], image())
    np.testing.assert_array_equal(squares, labels())
    assert areas.tolist() == [10.0, 20.0, 30.0]


@tool(
    "ngio",
    code="create_ome_zarr_from_array(store, image, ...); open_ome_zarr_container(repo.snapshot())",
    tried="images, labels, tables of its JSON backend",
    limit="its AnnData backend writes tables to directories and fsspec only",
    whose="the tool",
)
def test_ngio_writes_no_tables_of_anndata_to_a_store(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        found = ngio.create_ome_zarr_from_array(store, image(), pixelsize=0.1, axes_names=AXES, levels=1)
        table = FeatureTable(pd.DataFrame({"label": [1], "area": [10.0]}))
        with pytest.raises(NgioValueError, match="AnnData"):
            found.add_table("areas", table, backend="anndata")


@tool(
    "ome-zarr-models",
    code="open_ome_zarr(zarr.open_group(repo.snapshot()))",
    tried="a commit validated as an image",
)
def test_ome_zarr_models(both: Both) -> None:
    def read(store: Any) -> Any:
        found = ome_zarr_models.open_ome_zarr(zarr.open_group(store, mode="r"))
        return [type(found).__name__, found.model_dump()]

    kind, _ = both(lambda store: write(store, labelled=False), read)
    assert kind == "Image"


@tool(
    "pydantic-zarr",
    code="GroupSpec.from_zarr(zarr.open_group(repo.snapshot())).to_zarr(store, path)",
    tried="a hierarchy described, and made of the description",
)
def test_pydantic_zarr(both: Both) -> None:
    def write_again(store: Any) -> None:
        write(store)
        spec = GroupSpec.from_zarr(zarr.open_group(store, mode="r"))
        spec.to_zarr(store, "again")

    found = both(
        write_again, lambda store: GroupSpec.from_zarr(zarr.open_group(store, mode="r"), depth=-1).model_dump()
    )
    assert set(found["members"]) == {"s0", "s1", "labels", "again"}


@tool(
    "yaozarrs",
    code='validate_zarr_store("txstore::data.tx")',
    tried="a commit validated as OME-Zarr, with its arrays",
    slower="it reads a few documents in some milliseconds, as many as it takes to open a repository by its URL",
)
def test_yaozarrs(both: Both) -> None:
    def read(url: str) -> Any:
        return yaozarrs.validate_zarr_store(url).ome_metadata().model_dump()

    found = both(write, read, local=chained_url_of, ours=chained_url_of)
    assert found["version"] == "0.5"

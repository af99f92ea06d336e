"""ome-zarr: images and labels of both versions of the format, with Dask, and plates."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from ome_zarr.format import FormatV04, FormatV05
from ome_zarr.io import ZarrLocation
from ome_zarr.reader import Reader
from ome_zarr.writer import write_image, write_labels, write_plate_metadata, write_well_metadata

from tests.clients.imaging.images import AXES, SCALE, image, labels
from tests.clients.trials import Both, tool

CODE = "write_image(image, zarr.open_group(store)); Reader(ZarrLocation(repo.snapshot()))"
VERSIONS = {"0.4": FormatV04(), "0.5": FormatV05()}


def read(store: Any) -> list[Any]:
    """Return the metadata of each node, and the pixels of each of its levels."""
    nodes = list(Reader(ZarrLocation(store))())
    levels = dask.compute([node.data for node in nodes])[0]
    names = [node.zarr.root_attrs for node in nodes]
    return [names, levels]


@tool("ome-zarr", code=CODE, tried="images and labels of OME-Zarr 0.4 and 0.5, `write_image`, `write_labels`, `Reader`")
@pytest.mark.parametrize("version", VERSIONS)
def test_image_and_labels(both: Both, version: str) -> None:
    fmt = VERSIONS[version]

    def write(store: Any) -> None:
        group = zarr.open_group(store, mode="w", zarr_format=fmt.zarr_format)
        options = {"chunks": (1, 1, 128, 128)}
        write_image(image(), group, axes=AXES, scale=SCALE, scale_factors=[2, 4], fmt=fmt, storage_options=options)
        write_labels(labels(), group, "squares", axes="zyx", scale_factors=[2, 4], fmt=fmt)

    names, levels = both(write, read)
    assert len(names) == 3  # the group of all labels is a node, too
    np.testing.assert_array_equal(levels[0][0], image())
    np.testing.assert_array_equal(levels[-1][0], labels())


@tool("ome-zarr", code=CODE, tried="images of Dask, written later, in shards")
def test_dask_and_shards(both: Both) -> None:
    def write(store: Any) -> None:
        lazy = da.from_array(image(), chunks=(1, 1, 256, 256)) + 1
        options = {"chunks": (1, 1, 64, 64), "shards": (1, 1, 256, 256)}
        jobs = write_image(
            lazy, zarr.open_group(store), axes=AXES, scale_factors=[2], storage_options=options, compute=False
        )
        dask.compute(*jobs)

    _, levels = both(write, read)
    np.testing.assert_array_equal(levels[0][0], image() + 1)


@tool("ome-zarr", code=CODE, tried="plates and wells")
def test_plate(both: Both) -> None:
    wells = ["A/1", "B/2"]

    def write(store: Any) -> None:
        plate = zarr.open_group(store)
        write_plate_metadata(plate, ["A", "B"], ["1", "2"], wells)
        for well in wells:
            group = plate.require_group(well)
            write_well_metadata(group, ["0"])
            write_image(image(1, 1, 256), group.require_group("0"), axes=AXES, scale_factors=[2])

    names, _ = both(write, read)
    assert names

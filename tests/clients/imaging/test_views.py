"""Images with a view, opened while others write them: each level fits the image, since each commit derives them."""

from __future__ import annotations

from itertools import pairwise

import dask
import numpy as np
import pytest
import zarr
from napari_ome_zarr import napari_get_reader
from ome_zarr.io import ZarrLocation
from ome_zarr.reader import Reader

import txstore
from tests.clients.imaging.images import image
from tests.clients.trials import tool
from tests.views.tile_writers import SIDE, TILE, writers
from txstore.views import Coarsen

_DIFFERENT = 13  # images to be seen: how often one has to look for these depends on the load


def _with_ome_zarr(repo: txstore.Repository) -> list[np.ndarray]:
    (node,) = Reader(ZarrLocation(repo.snapshot()))()
    return list(dask.compute(*node.data))


def _with_napari(repo: txstore.Repository) -> list[np.ndarray]:
    path = f"txstore::{repo.url}"
    ((levels, _, _),) = napari_get_reader(path)(path)
    return list(dask.compute(*levels))


def _halved(pixels: np.ndarray) -> np.ndarray:
    depth, rows, columns = pixels.shape
    return np.rint(pixels.reshape(depth, rows // 2, 2, columns // 2, 2).mean(axis=(2, 4)))


_TRIED = "each level fits the image while others write it, by a view"


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(
            _with_ome_zarr, marks=tool("ome-zarr", code="Reader(ZarrLocation(repo.snapshot()))", tried=_TRIED)
        ),
        pytest.param(_with_napari, marks=tool("napari-ome-zarr", code='viewer.open("txstore::data.tx")', tried=_TRIED)),
    ],
)
def test_each_level_fits_while_two_processes_write(repo, read):
    with repo.transaction() as store:
        zarr.create_array(
            store, name="0", data=image(1, 1, SIDE)[0], chunks=(1, TILE, TILE), dimension_names=("z", "y", "x")
        )
        store.views["pyramid"] = Coarsen("0", "{level}", (1, 2, 2), 3)
    seen = set()
    with writers(repo):
        while len(seen) < _DIFFERENT:
            levels = read(repo)
            assert [level.shape[-1] for level in levels] == [SIDE >> level for level in range(4)]
            for finer, coarser in pairwise(levels):
                np.testing.assert_array_equal(coarser, _halved(finer))
            seen.add(levels[0].tobytes())

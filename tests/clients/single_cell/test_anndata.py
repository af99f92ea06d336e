"""anndata: whole objects, elements of them, lazy reading, and processes that write side by side."""

from __future__ import annotations

import multiprocessing
from typing import Any

import anndata
import numpy as np
import zarr

import txstore
from tests.clients.single_cell.cells import cells, parts
from tests.clients.trials import Both, assert_same, tool

CODE = "data.write_zarr(store); anndata.read_zarr(repo.snapshot())"


@tool("anndata", code=CODE, tried="`write_zarr`, `read_zarr`, consolidated metadata")
def test_write_zarr(both: Both) -> None:
    def read(store: Any) -> list[Any]:
        consolidated = zarr.open_consolidated(store, mode="r")
        return [parts(anndata.read_zarr(store)), sorted(path for path, _ in consolidated.members(max_depth=None))]

    found, _ = both(lambda store: cells().write_zarr(store), read)
    assert_same(found, parts(cells()))


@tool("anndata", code=CODE, tried="`read_lazy`")
def test_read_lazily(both: Both) -> None:
    def read(store: Any) -> dict[str, Any]:
        return parts(anndata.experimental.read_lazy(store).to_memory())

    assert_same(both(lambda store: cells().write_zarr(store), read), parts(cells()))


@tool("anndata", code=CODE, tried="`write_elem`, `read_elem`, `sparse_dataset(...).append`")
def test_elements(both: Both) -> None:
    def write(store: Any) -> None:
        group = zarr.open_group(store, mode="w")
        anndata.io.write_elem(group, "sample", cells())
        anndata.io.write_elem(group["sample/obsm"], "umap", np.ones((2000, 2)))
        anndata.io.sparse_dataset(group["sample/X"]).append(cells(500, 1).X)

    def read(store: Any) -> list[Any]:
        group = zarr.open_group(store, mode="r")
        sparse = anndata.io.sparse_dataset(group["sample/X"])
        return [sparse[:].toarray(), anndata.io.read_elem(group["sample/obsm/umap"])]

    found, _ = both(write, read)
    np.testing.assert_array_equal(found, np.vstack([cells().X.toarray(), cells(500, 1).X.toarray()]))


@tool("anndata", code=CODE, tried="`concat_on_disk`")
def test_concat_on_disk(both: Both) -> None:
    def write(store: Any) -> None:
        group = zarr.open_group(store, mode="w")
        for number in range(2):
            anndata.io.write_elem(group, f"sample-{number}", cells(500, number))
        samples = [group["sample-0"], group["sample-1"]]
        anndata.experimental.concat_on_disk(samples, group.create_group("all"))

    def read(store: Any) -> dict[str, Any]:
        return parts(anndata.io.read_elem(zarr.open_group(store, mode="r")["all"]))

    assert len(both(write, read)["X"]) == 1000


@tool("anndata", code=CODE, tried="older commits, after writing again")
def test_to_write_again_replaces_it(repo: txstore.Repository) -> None:
    for number in (50, 20):
        with repo.transaction() as store:
            cells(number).write_zarr(store)
    assert_same(parts(anndata.read_zarr(repo.snapshot())), parts(cells(20)))
    assert_same(parts(anndata.read_zarr(repo.snapshot(0))), parts(cells(50)))


@tool("anndata", code=CODE, tried="elements added after `write_zarr`, which a directory refuses")
def test_what_was_written_can_be_edited(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        cells(50).write_zarr(store)
    with repo.transaction() as store:  # a directory refuses that: it holds consolidated metadata
        anndata.io.write_elem(zarr.open_group(store, path="obsm", mode="r+"), "umap", np.ones((50, 2)))
    assert anndata.read_zarr(repo.snapshot()).obsm["umap"].shape == (50, 2)


def _write(url: str, number: int) -> None:
    def stage(store: txstore.TxStore) -> None:
        root = zarr.open_group(store, mode="a")
        anndata.io.write_elem(root, f"sample-{number}", cells(10, number))
        zarr.consolidate_metadata(store)

    txstore.Repository(url).run(stage)


@tool("anndata", code=CODE, tried="processes that write samples side by side")
def test_processes_that_write_side_by_side(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        zarr.create_group(store)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(repo.url, number)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(240)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    group = zarr.open_consolidated(repo.snapshot(), mode="r")
    for number in range(3):
        assert_same(parts(anndata.io.read_elem(group[f"sample-{number}"])), parts(cells(10, number)))

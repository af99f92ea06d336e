"""anndata and annbatch write to a store and read from it what they write to a directory and read from there."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import zarr

import txstore

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def cells(count: int, seed: int = 0) -> anndata.AnnData:
    random = np.random.default_rng(seed)
    return anndata.AnnData(
        X=scipy.sparse.random(count, 30, 0.2, format="csr", dtype="f4", random_state=seed),
        obs=pd.DataFrame(
            {"kind": pd.Categorical(random.choice(["a", "b"], count)), "depth": random.random(count)},
            index=[f"cell-{seed}-{number}" for number in range(count)],
        ),
        var=pd.DataFrame(index=[f"gene-{number}" for number in range(30)]),
        obsm={"pca": random.random((count, 3))},
        layers={"dense": random.random((count, 30))},
        uns={"title": "cells", "nested": {"numbers": np.arange(3)}},
    )


def assert_same(one: anndata.AnnData, other: anndata.AnnData) -> None:
    pd.testing.assert_frame_equal(one.obs, other.obs)
    pd.testing.assert_frame_equal(one.var, other.var)
    np.testing.assert_array_equal(one.X.toarray(), other.X.toarray())
    np.testing.assert_array_equal(one.obsm["pca"], other.obsm["pca"])
    np.testing.assert_array_equal(one.layers["dense"], other.layers["dense"])
    assert one.uns["title"] == other.uns["title"]
    np.testing.assert_array_equal(one.uns["nested"]["numbers"], other.uns["nested"]["numbers"])


def test_write_zarr(repo: txstore.Repository, tmp_path: Path) -> None:
    data = cells(50)
    data.write_zarr(tmp_path / "plain.zarr")
    with repo.transaction("cells") as store:
        data.write_zarr(store)
    found = anndata.read_zarr(repo.snapshot())
    assert_same(found, data)
    assert_same(found, anndata.read_zarr(tmp_path / "plain.zarr"))
    group = zarr.open_consolidated(repo.snapshot(), mode="r")
    there = zarr.open_consolidated(tmp_path / "plain.zarr", mode="r")
    assert dict(group.members(max_depth=None)).keys() == dict(there.members(max_depth=None)).keys()


def test_to_write_again_replaces_it(repo: txstore.Repository) -> None:
    for number in (50, 20):
        with repo.transaction() as store:
            cells(number).write_zarr(store)
    assert_same(anndata.read_zarr(repo.snapshot()), cells(20))
    assert_same(anndata.read_zarr(repo.snapshot(0)), cells(50))


def test_what_was_written_can_be_edited(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        cells(50).write_zarr(store)
    with repo.transaction() as store:  # a directory refuses that: it holds consolidated metadata
        anndata.io.write_elem(zarr.open_group(store, path="obsm", mode="r+"), "umap", np.ones((50, 2)))
    assert anndata.read_zarr(repo.snapshot()).obsm["umap"].shape == (50, 2)


def test_read_lazily(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        cells(50).write_zarr(store)
    lazy = anndata.experimental.read_lazy(repo.snapshot())
    assert_same(lazy.to_memory(), cells(50))


def _write(url: str, number: int) -> None:
    def stage(store: txstore.TxStore) -> None:
        root = zarr.open_group(store, mode="a")
        anndata.io.write_elem(root, f"sample-{number}", cells(10, number))
        zarr.consolidate_metadata(store)

    txstore.Repository(url).run(stage)


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
        assert_same(anndata.io.read_elem(group[f"sample-{number}"]), cells(10, number))

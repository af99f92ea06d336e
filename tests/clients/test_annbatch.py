"""annbatch writes its shards in a transaction, and loads batches from a snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import annbatch
import anndata
import numpy as np
import pytest
import zarr

import txstore
from tests.clients.test_anndata import cells

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def batches(store: Any) -> np.ndarray:
    """Return all rows, in the order of the batches."""
    x = anndata.io.sparse_dataset(zarr.open_group(store, mode="r")["X"])
    loader = annbatch.Loader(chunk_size=10, preload_nchunks=2, batch_size=20, shuffle=False, preload_to_gpu=False)
    loader.add_dataset(x)
    return np.concatenate([batch["X"].toarray() for batch in loader])


def test_shards_and_batches(repo: txstore.Repository, tmp_path: Path) -> None:
    data = cells(100)
    with repo.transaction("shards") as store:
        annbatch.write_sharded(zarr.open_group(store, mode="w"), data, n_obs_per_chunk=10, shard_size=50)
    annbatch.write_sharded(zarr.open_group(tmp_path / "plain.zarr", mode="w"), data, n_obs_per_chunk=10, shard_size=50)
    found = batches(repo.snapshot())
    np.testing.assert_array_equal(found, data.X.toarray())
    np.testing.assert_array_equal(found, batches(tmp_path / "plain.zarr"))
    assert zarr.open_group(repo.snapshot(), mode="r")["X/data"].shards is not None

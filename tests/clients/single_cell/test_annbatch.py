"""annbatch writes its shards in a transaction, and loads batches from a snapshot."""

from __future__ import annotations

from typing import Any

import annbatch
import anndata
import numpy as np
import zarr
from zarr.storage import MemoryStore

from tests.clients.single_cell.cells import cells
from tests.clients.trials import Both, tool

CODE = (
    "write_sharded(zarr.open_group(store), data); "
    "loader.use_collection(DatasetCollection(zarr.open_group(repo.snapshot())))"
)


def loader() -> annbatch.Loader:
    return annbatch.Loader(chunk_size=10, preload_nchunks=8, batch_size=80, shuffle=False, preload_to_gpu=False)


@tool("annbatch", code=CODE, tried="`write_sharded`, `Loader`")
def test_shards_and_batches(both: Both) -> None:
    def write(store: Any) -> None:
        annbatch.write_sharded(zarr.open_group(store, mode="w"), cells(), n_obs_per_chunk=20, shard_size=200)

    def read(store: Any) -> list[Any]:
        group = zarr.open_group(store, mode="r")
        batches = loader().add_dataset(anndata.io.sparse_dataset(group["X"]))
        return [np.concatenate([batch["X"].toarray() for batch in batches]), group["X/data"].shards]

    found, shards = both(write, read)
    np.testing.assert_array_equal(found, cells().X.toarray())
    assert shards is not None


@tool("annbatch", code=CODE, tried="`DatasetCollection`, shuffled")
def test_collection(both: Both) -> None:
    samples = zarr.create_group(MemoryStore())
    for number in range(2):
        anndata.io.write_elem(samples, f"sample-{number}", cells(500, number))

    def write(store: Any) -> None:
        annbatch.DatasetCollection(zarr.open_group(store, mode="w")).add_adatas(
            [samples["sample-0"], samples["sample-1"]],
            n_obs_per_chunk=20,
            shard_size=200,
            dataset_size=500,
            shuffle_chunk_size=100,
            rng=np.random.default_rng(0),
        )

    def read(store: Any) -> list[Any]:
        collection = annbatch.DatasetCollection(zarr.open_group(store, mode="r"))
        batches = list(loader().use_collection(collection))
        return [np.concatenate([batch["X"].toarray() for batch in batches]), len(list(collection))]

    found, count = both(write, read)
    assert count == 2
    assert len(found) == 1000

"""What zarr puts around a store, and zarrs, which takes the place of its codec pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.experimental.cache_store import CacheStore
from zarr.storage import LoggingStore, MemoryStore, WrapperStore

import txstore
import txstore.pipeline
from tests.clients.trials import Both, tool

VALUES = np.random.default_rng(0).random((2000, 1000))


def write(store: Any) -> None:
    group = zarr.create_group(store, attributes={"title": "values"})
    group.create_array("x", data=VALUES, chunks=(100, 500))
    group.create_array("sharded", data=VALUES, chunks=(100, 100), shards=(500, 500))
    group["x"][3] = 0
    group.create_array("words", data=np.array(["a", "ö", ""] * 100, dtype="T"))


def read(store: Any) -> dict[str, Any]:
    group = zarr.open_group(store, mode="r")
    return {name: array[...] for name, array in group.arrays()}


AROUND: dict[str, Callable[[Any], Any]] = {
    "WrapperStore": WrapperStore,
    "LoggingStore": lambda store: LoggingStore(store, log_level="ERROR"),
    "CacheStore": lambda store: CacheStore(store, cache_store=MemoryStore()),
}


SLOWER = "TxStore does not see a batch of chunks through another store: each chunk is a call of its own"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=tool(f"zarr's {name}", package="zarr", code=f"{name}(store, ...)",
                                      tried="arrays, shards, text, through it", slower=SLOWER)) for name in AROUND
    ],
)  # fmt: skip
def test_around_a_store(both: Both, name: str) -> None:
    both(lambda store: write(AROUND[name](store)), lambda store: read(AROUND[name](store)))


@tool(
    "zarrs",
    code='zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})',
    tried="zarr's own pipeline does the work then, with the same results",
    limit="speeds up none but zarr's own stores",
    whose="the tool",
    slower="zarrs reads files of zarr's stores by itself",
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_zarrs(both: Both, repo: txstore.Repository) -> None:
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        both(write, read)
        with repo.transaction() as store:
            array = zarr.create_array(store, name="x", data=VALUES)
            assert txstore.pipeline.describe(array) == "zarr: BatchedCodecPipeline"

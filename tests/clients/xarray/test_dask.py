"""Dask's arrays and data sets, by threads, by a pool of processes, and by the workers of a cluster."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from distributed import Client, LocalCluster

from tests.clients.trials import Both, tool
from tests.clients.xarray.weather import days

CODE = 'x.to_zarr(store, component="x"); dask.array.from_zarr(repo.snapshot(), "x")'
CLUSTER = "ds.to_zarr(store)  # the workers stage into the transaction"


def array() -> da.Array:
    return da.random.default_rng(0).random((2000, 1000), chunks=(250, 500))


def write(store: Any) -> None:
    """An array that Dask makes, and one of which it fills a part."""
    array().to_zarr(store, component="x")
    half = zarr.create_array(store, name="half", shape=(2000, 1000), chunks=(250, 500), dtype="f8", fill_value=-1)
    (array()[:1000] * 2).to_zarr(half, region=np.s_[500:1500, :])


def read(store: Any) -> Any:
    return dask.compute(da.from_zarr(store, "x"), da.from_zarr(store, "half").mean(axis=0))


@tool("dask", code=CODE, tried="arrays, by threads")
def test_threads(both: Both) -> None:
    with dask.config.set(scheduler="threads", num_workers=2):
        both(write, read)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        yield pool


@tool("dask", code=CODE, tried="arrays, by a pool of processes")
def test_processes(both: Both, pool: ProcessPoolExecutor) -> None:
    with dask.config.set(scheduler="processes", pool=pool):
        both(write, read)


@tool("dask", code=CODE, tried="data sets of xarray, by a pool of processes")
def test_data_set_by_processes(both: Both, pool: ProcessPoolExecutor) -> None:
    with dask.config.set(scheduler="processes", pool=pool):
        both(lambda store: days().to_zarr(store), lambda store: xr.open_zarr(store).sum("time").compute())


@tool("dask", code=CODE, tried="chunks of Dask that end within chunks of the array, by threads")
def test_chunks_across_chunks(both: Both) -> None:
    """In a plain store tasks that write one chunk need a lock, or one of them is lost; here all of them are there."""

    def write(store: Any) -> None:
        x = zarr.create_array(store, name="x", shape=(2000, 1000), chunks=(400, 1000), dtype="f8")
        locked = not hasattr(store, "commit")
        with dask.config.set(scheduler="threads", num_workers=2):
            da.store(array(), x, lock=locked)

    found = both(write, lambda store: zarr.open_array(store, path="x")[:])
    np.testing.assert_array_equal(found, array().compute())


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@tool("distributed", code=CLUSTER, tried="arrays")
def test_arrays_of_a_cluster(both: Both, client: Client) -> None:
    both(write, read)


@tool(
    "distributed",
    code=CLUSTER,
    tried="data sets of xarray: `to_zarr`, `append_dim`, later with `compute=False`",
)
def test_data_sets_of_a_cluster(both: Both, client: Client) -> None:
    def write(store: Any) -> None:
        days(0, 20).to_zarr(store)
        days(20, 20).to_zarr(store, append_dim="time")
        later = days(0, 40)[["t"]].rename(t="u").to_zarr(store, mode="a", compute=False)
        client.compute(later).result()

    both(write, lambda store: xr.open_zarr(store).mean(("x", "y")).compute())

"""cubed in threads and in processes, by itself and below xarray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cubed
import cubed.array_api as xp
import numpy as np
import xarray as xr
import zarr
from cubed.runtime.executors.local import ProcessesExecutor, ThreadsExecutor

import txstore
from tests.clients.trials import Both, tool
from tests.clients.xarray.weather import days

CODE = 'cubed.to_zarr(x, store, path="x"); cubed.from_zarr(repo.snapshot(), path="x")'


def spec(directory: Path, executor: type = ThreadsExecutor) -> cubed.Spec:
    return cubed.Spec(directory / "work", allowed_mem="1GB", executor=executor(max_workers=2))


def array(spec: cubed.Spec) -> Any:
    return xp.reshape(xp.arange(2_000_000, dtype="f8", chunks=250_000, spec=spec), (2000, 1000))


@tool("cubed", code=CODE, tried="`to_zarr`, `store`, `from_zarr`, by threads")
def test_threads(both: Both, tmp_path: Path) -> None:
    threads = spec(tmp_path)
    x = array(threads)

    def write(store: Any) -> None:
        cubed.to_zarr(x, store, path="x")
        room = zarr.create_array(store, name="y", shape=x.shape, chunks=x.chunksize, dtype="f8")
        cubed.store([x + 1], [room])

    def read(store: Any) -> np.ndarray:
        x, y = (cubed.from_zarr(store, path=name, spec=threads) for name in "xy")
        return (x * y).compute()

    np.testing.assert_array_equal(both(write, read).ravel()[:3], [0, 2, 6])


@tool("cubed", code=CODE, tried="by processes, of which one makes the array in a new repository")
def test_processes(repo: txstore.Repository, tmp_path: Path) -> None:
    processes = spec(tmp_path, ProcessesExecutor)
    with repo.transaction() as store:
        cubed.to_zarr(array(processes), store, path="x")
    found = cubed.from_zarr(repo.snapshot(), path="x", spec=processes) + 1
    np.testing.assert_array_equal(found.compute().ravel(), np.arange(1, 2_000_001))


@tool(
    "cubed-xarray",
    code='xr.open_zarr(repo.snapshot(), chunked_array_type="cubed", chunks={})',
    tried="a data set of xarray whose arrays are cubed's",
)
def test_data_set(both: Both, tmp_path: Path) -> None:
    threads = spec(tmp_path)
    lazy: dict[str, Any] = {"chunked_array_type": "cubed", "from_array_kwargs": {"spec": threads}, "chunks": {}}

    def write(store: Any) -> None:
        days().to_zarr(store, group="in")
        opened = xr.open_zarr(store, group="in", **lazy)
        (opened[["t"]] + 1).to_zarr(store, group="out", chunkmanager_store_kwargs={"executor": threads.executor})

    def read(store: Any) -> xr.Dataset:
        return xr.open_zarr(store, group="out", **lazy).mean("time").compute()

    both(write, read, rounds=2)

"""cubed's processes write blocks into one transaction. cubed gives up when one was killed; the transaction goes on."""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.engines import jobs

cubed = pytest.importorskip("cubed")
xp = pytest.importorskip("cubed.array_api")
local = pytest.importorskip("cubed.runtime.executors.local")


def block(of_zeros: Any, flag: Path | None = None, block_id: Any = None) -> Any:
    jobs.die(*block_id, flag)
    return of_zeros + jobs.values(*block_id)


@pytest.fixture
def array(tmp_path: Path, flag: Path) -> Any:
    spec = cubed.Spec(tmp_path / "work", allowed_mem="500MB", executor=local.ProcessesExecutor(max_workers=2))
    zeros = xp.zeros((jobs.PARTS * jobs.LENGTH,), chunks=(jobs.LENGTH,), dtype="i4", spec=spec)
    return cubed.map_blocks(block, zeros, flag=flag, dtype="i4")


def test_all_is_well(repo: txstore.Repository, array: Any, flag: Path) -> None:
    flag.touch()
    with repo.transaction("by cubed") as store:
        cubed.store([array], [zarr.open_array(store, path="x")])
    jobs.check_complete(repo)


def test_a_killed_worker(repo: txstore.Repository, array: Any, flag: Path) -> None:
    with repo.transaction("by cubed") as store:
        with pytest.raises(BrokenProcessPool):
            cubed.store([array], [zarr.open_array(store, path="x")])
        assert flag.exists()
        cubed.store([array], [zarr.open_array(store, path="x")])
    jobs.check_complete(repo)


def test_a_job_that_is_given_up(repo: txstore.Repository, array: Any) -> None:
    with pytest.raises(BrokenProcessPool), repo.transaction("by cubed") as store:
        cubed.store([array], [zarr.open_array(store, path="x")])
    jobs.check_nothing(repo)


def test_a_new_array(repo: txstore.Repository, array: Any, flag: Path) -> None:
    """cubed makes the array by itself, in a store that it is given."""
    flag.touch()
    with repo.transaction("by cubed") as store:
        cubed.to_zarr(array, store, path="y")
    found = np.asarray(zarr.open_array(repo.snapshot(), path="y", mode="r")[:])
    np.testing.assert_array_equal(found, np.arange(jobs.PARTS * jobs.LENGTH))

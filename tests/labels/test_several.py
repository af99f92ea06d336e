"""Upserts beside other commits: what is laid on top of what, and which labels conflict."""

from collections.abc import Callable

import numpy as np
import pytest
import xarray as xr

import txstore
from tests.labels.datasets import numbered, stored
from txstore import Upserted

dask = pytest.importorskip("dask.array")


def interrupted(ds: xr.Dataset, meanwhile: Callable[[], object]) -> xr.Dataset:
    """Return the dataset with lazy values, which call `meanwhile` when they are first computed: within the upsert."""
    calls = [meanwhile]

    def compute(block: np.ndarray) -> np.ndarray:
        if calls:
            calls.pop()()
        return block

    values = dask.from_array(ds.v.values, chunks=-1)
    return ds.assign(v=(ds.v.dims, values.map_blocks(compute, dtype=ds.v.dtype, meta=np.array([], ds.v.dtype))))


def test_the_first_rows_of_two_and_different_ones(repo: txstore.Repository) -> None:
    mine = interrupted(numbered([1, 2]), lambda: repo.upsert(numbered([3, 4])))
    assert repo.upsert(mine) == Upserted(0, 2)
    assert stored(repo).time.values.tolist() == [3, 4, 1, 2]
    mine = interrupted(numbered([4, 5], add=2), lambda: repo.upsert(numbered([6, 1], add=1)))
    assert repo.upsert(mine) == Upserted(1, 1)
    assert stored(repo).v.values.tolist() == [30, 42, 11, 20, 61, 52]


@pytest.mark.parametrize("label", [2, 9])
def test_the_same_label(repo: txstore.Repository, label: int) -> None:
    repo.upsert(numbered([1, 2, 3]))
    mine = interrupted(numbered([1, label], add=2), lambda: repo.upsert(numbered([label, 3], add=1)))
    with pytest.raises(txstore.LabelConflictError, match=rf"time {label}\b.*existing='keep'") as conflict:
        repo.upsert(mine)
    assert {name: [int(each) for each in labels] for name, labels in conflict.value.labels.items()} == {"time": [label]}
    assert stored(repo).v.sel(time=label) == 10 * label + 1
    assert repo.upsert(mine, existing="keep") == Upserted(0, 0)
    assert repo.upsert(mine) == Upserted(2, 0)
    assert stored(repo).v.sel(time=[1, label]).values.tolist() == [12, 10 * label + 2]


def test_rows_that_were_dropped_meanwhile(repo: txstore.Repository) -> None:
    repo.upsert(numbered([1, 2, 3, 4]))

    def roll(keep: int) -> None:
        repo.run(lambda store: txstore.roll(store, "time", keep=keep))

    assert repo.upsert(interrupted(numbered([4], add=2), lambda: roll(2))) == Upserted(1, 0)
    assert stored(repo).v.values.tolist() == [30, 42]
    with pytest.raises(txstore.LabelConflictError, match=r"time 3\b"):
        repo.upsert(interrupted(numbered([3], add=2), lambda: roll(1)))


def test_in_a_transaction_of_the_callers_the_last_one_counts(repo: txstore.Repository) -> None:
    repo.upsert(numbered([1, 2]))
    mine = interrupted(numbered([2, 3], add=2), lambda: repo.upsert(numbered([2, 3], add=1)))
    counted = repo.run(lambda store: txstore.upsert(mine, store, dim="time"))
    assert counted == Upserted(2, 0)
    assert stored(repo).v.values.tolist() == [10, 22, 32]

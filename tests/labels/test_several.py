"""Upserts beside other commits: what is laid on top of what, and which labels conflict."""

from collections.abc import Callable

import numpy as np
import pytest
import xarray as xr
import zarr

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


@pytest.mark.parametrize("missing", ["append", "insert"])
def test_different_labels(repo: txstore.Repository, missing: str) -> None:
    """The other upsert inserts before the rows that are changed here, and appends what comes before the new ones."""
    repo.upsert(numbered([10, 20, 30]))
    other = numbered([5, 15, 35], add=1)
    mine = interrupted(numbered([20, 40], add=2), lambda: repo.upsert(other, missing=missing))
    assert repo.upsert(mine, missing=missing) == Upserted(1, 1)
    found = stored(repo).v
    labels = [5, 10, 15, 20, 30, 35, 40] if missing == "insert" else [10, 20, 30, 5, 15, 35, 40]
    assert found.time.values.tolist() == labels
    assert found.values.tolist() == [10.0 * label + {20: 2, 40: 2, 10: 0, 30: 0}.get(label, 1) for label in labels]
    assert repo.head().version == 2


def test_the_first_rows_of_two(repo: txstore.Repository) -> None:
    mine = interrupted(numbered([1, 2]), lambda: repo.upsert(numbered([3, 4])))
    assert repo.upsert(mine) == Upserted(0, 2)
    assert stored(repo).time.values.tolist() == [3, 4, 1, 2]


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


def test_in_a_transaction_of_the_callers_the_last_one_counts(repo: txstore.Repository) -> None:
    repo.upsert(numbered([1, 2]))
    mine = interrupted(numbered([2, 3], add=2), lambda: repo.upsert(numbered([2, 3], add=1)))
    counted = repo.run(lambda store: txstore.upsert(mine, store, dim="time"))
    assert counted == Upserted(2, 0)
    assert stored(repo).v.values.tolist() == [10, 22, 32]


@pytest.mark.parametrize(("old", "new"), [(2, 7), (1, 9)])
def test_a_label_that_is_written_by_position(repo: txstore.Repository, old: int, new: int) -> None:
    """A change of the coordinate itself is noticed: a value lands on no other label, and no label is there twice."""
    repo.upsert(numbered([1, 2, 3]))

    def rename() -> None:
        with repo.transaction() as store:
            time = zarr.open_array(store, path="time")
            time[time[:].tolist().index(old)] = new

    mine = interrupted(numbered([2, 9], add=2), rename)
    with pytest.raises(txstore.LabelConflictError):
        repo.upsert(mine)
    repo.upsert(mine)
    found = {1: 10, 2: 20, 3: 30}
    found = {new if label == old else label: value for label, value in found.items()} | {2: 22, 9: 92}
    assert dict(zip(stored(repo).time.values.tolist(), stored(repo).v.values.tolist(), strict=True)) == found

"""Arrays that views derive, beside those that are written by label: nobody has to give their values."""

from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import txstore
from tests.labels.datasets import stored
from txstore.views import Reduce


def rows(labels: Any, *, add: float = 0.0) -> xr.Dataset:
    values = np.asarray(labels, "f8")[:, None] * 10 + [0, 1, 5] + add
    return xr.Dataset({"v": (("time", "x"), values)}, {"time": np.asarray(labels), "x": [1, 2, 3]})


def check(repo: txstore.Repository, labels: list[int], when: str) -> None:
    if when == "follow":
        repo.views["mean"].update()
        repo.views["clim"].update()
    found = stored(repo)
    assert found.time.values.tolist() == labels
    np.testing.assert_allclose(found.v_mean.values, found.v.mean("x").values)
    np.testing.assert_allclose(found.clim.values, found.v.mean("time").values)


@pytest.mark.parametrize("when", ["commit", "follow"])
def test_rows_come_and_go(repo: txstore.Repository, when: Any) -> None:
    repo.upsert(rows([2, 4, 6]))
    with repo.transaction() as store:
        store.views["mean"] = Reduce("v", "x", "mean", "v_mean", when=when)
        store.views["clim"] = Reduce("v", "time", "mean", "clim", when=when)
    repo.upsert(rows([8, 10]))
    repo.upsert(rows([4, 12], add=0.5))  # of a view that follows, the outputs are shorter now
    check(repo, [2, 4, 6, 8, 10, 12], when)
    repo.upsert(rows([7, 3]), missing="insert")
    check(repo, [2, 3, 4, 6, 7, 8, 10, 12], when)
    with repo.transaction() as store:
        txstore.prepend(rows([-2, 0]), store, dim="time")
    with repo.transaction() as store:
        txstore.roll(store, "time", keep=5)
    check(repo, [6, 7, 8, 10, 12], when)
    assert repo.verify().faults == []


def test_values_that_are_given_are_not_written(repo: txstore.Repository) -> None:
    """As of a dataset that was opened, changed, and is written back."""
    repo.upsert(rows([2, 4, 6]))
    with repo.transaction() as store:
        store.views["mean"] = Reduce("v", "x", "mean", "v_mean")
        store.views["clim"] = Reduce("v", "time", "mean", "clim")
    found = stored(repo)
    found["v"] = found.v + 1
    assert repo.upsert(found, dim="time").updated == 3
    assert repo.upsert(found, dim="time").updated == 0
    check(repo, [2, 4, 6], "commit")


@pytest.mark.parametrize("when", ["commit", "follow"])
def test_outputs_in_groups_below_follow_the_rows(repo: txstore.Repository, when: Any) -> None:
    """They lie along the labels of the group above, and nobody has to give them others."""
    repo.upsert(rows([2, 4, 6]))
    with repo.transaction() as store:
        store.views["mean"] = Reduce("v", "x", "mean", "means/v", when=when)
    repo.upsert(rows([3, 8]), missing="insert")
    with repo.transaction() as store:
        txstore.prepend(rows([-2, 0]), store, dim="time")
    with repo.transaction() as store:
        txstore.roll(store, "time", keep=4)
    if when == "follow":
        repo.views["mean"].update()
    found = stored(repo)
    assert found.time.values.tolist() == [3, 4, 6, 8]
    means = zarr.open_array(repo.snapshot(), path="means/v", mode="r")
    np.testing.assert_array_equal(means[:], found.v.mean("x"))

"""Rows move along a dimension: what others make along it, or cut off there, is of rows as they were."""

from collections.abc import Callable

import numpy as np
import pytest
import xarray as xr
import zarr

import txstore
from tests.tools.arrays import Step

ERRORS = (txstore.ConflictError, txstore.MergeConflictError)


def rows(labels: list[int]) -> xr.Dataset:
    values = np.asarray(labels, float) * 10
    return xr.Dataset({"v": ("x", values)}, {"x": np.asarray(labels)})


@pytest.fixture
def table(repo: txstore.Repository) -> txstore.Repository:
    repo.upsert(rows([0, 1, 2, 3]), dim="x")
    return repo


def newest(store: txstore.TxStore) -> None:
    txstore.roll(store, "x", keep=3)
    txstore.upsert(rows([4]), store, dim="x")


def doubled(table: txstore.Repository, group: str = "") -> Step:
    """Return what writes a variable that was computed from the rows of now."""
    made = (xr.open_dataset(table, engine="txstore").load() * 2).rename(v="w")
    return lambda store: made.to_zarr(store, group=group or None, mode="a", consolidated=False)


def drop_last(store: txstore.TxStore) -> None:
    for name in ("v", "x"):
        zarr.open_array(store, path=name).resize((3,))


def both(repo: txstore.Repository, one: Step, other: Step, *, on_conflict: str | None = None) -> None:
    """Commit two changes of one base."""
    with repo.transaction(on_conflict=on_conflict) as store:  # type: ignore[arg-type]
        one(store)
        with repo.transaction() as first:
            other(first)


def merged(repo: txstore.Repository, one: Step, other: Step) -> None:
    repo.branches["dev"] = repo.head()
    with repo.transaction(branch="dev") as store:
        one(store)
    repo.run(other)
    repo.merge("dev")


def reverted(repo: txstore.Repository, one: Step, other: Step) -> None:
    """The change that is reverted is the other one; the one builds on it."""
    repo.run(other)
    commit = repo.head()
    assert commit is not None
    with repo.transaction() as store:
        one(store)
    repo.revert(commit)


WAYS: dict[str, Callable[..., None]] = {
    "committed": both,
    "with on_conflict": lambda *about: both(*about, on_conflict="merge"),
    "merged": merged,
}


def append(store: txstore.TxStore) -> None:
    txstore.upsert(rows([4]), store, dim="x")


@pytest.mark.parametrize("group", ["", "below"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("longer", [append, drop_last], ids=["longer", "shorter"])
def test_an_array_of_the_length_before(table: txstore.Repository, longer: Step, turned: bool, group: str) -> None:
    """The dimension would have two lengths."""
    changes = doubled(table, group), longer
    with pytest.raises(txstore.MergeConflictError) as caught:
        merged(table, *(changes[::-1] if turned else changes))
    found = {conflict.path: conflict.kind for conflict in caught.value.conflicts}
    assert {f"{group}/w".lstrip("/"), "v", "x"} <= found.keys()
    assert set(found.values()) == {"structure"}


@pytest.mark.parametrize("turned", [False, True])
def test_an_array_of_another_length(table: txstore.Repository, turned: bool) -> None:
    changes = lambda store: zarr.create_array(store, name="w", data=np.zeros(9), dimension_names=["x"]), append
    merged(table, *(changes[::-1] if turned else changes))
    assert zarr.open_array(table.snapshot(), path="w").shape == (9,)


@pytest.mark.parametrize("group", ["", "below"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("turned", [False, True])
def test_an_array_that_is_made(table: txstore.Repository, way: str, turned: bool, group: str) -> None:
    changes = doubled(table, group), newest
    with pytest.raises(ERRORS):
        WAYS[way](table, *(reversed(changes) if turned else changes))


def test_an_array_that_was_made_after_a_move_that_is_reverted(table: txstore.Repository) -> None:
    with pytest.raises(ERRORS):
        reverted(table, lambda store: doubled(table)(store), newest)


def test_an_array_along_another_dimension(table: txstore.Repository) -> None:
    both(table, lambda store: xr.Dataset({"w": ("y", [1, 2])}).to_zarr(store, mode="a", consolidated=False), newest)
    both(table, newest, lambda store: zarr.create_array(store, name="nameless", data=np.arange(3)))
    assert table.snapshot()["nameless/zarr.json"] is not None


def test_dimensions_without_names_are_not_the_same(repo: txstore.Repository) -> None:
    def make(name: str) -> Step:
        return lambda store: zarr.create_array(store, name=name, data=np.arange(4), chunks=(2,), dimension_names=[None])

    repo.run(make("a"))
    both(repo, make("b"), lambda store: store.shift("a", {0: 2}))
    both(repo, lambda store: store.shift("a", {0: 2}), make("c"))
    merged(repo, make("d"), lambda store: store.shift("a", {0: -2}))
    assert {"b/zarr.json", "c/zarr.json", "d/zarr.json"} <= set(repo.snapshot())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("turned", [False, True])
def test_the_end_is_cut_off(table: txstore.Repository, way: str, turned: bool) -> None:
    changes = drop_last, newest
    with pytest.raises(ERRORS):
        WAYS[way](table, *(reversed(changes) if turned else changes))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("turned", [False, True])
def test_a_row_that_was_written_is_cut_off(table: txstore.Repository, way: str, turned: bool) -> None:
    """Also inside of a chunk."""

    def correct(store: txstore.TxStore) -> None:
        zarr.open_array(store, path="v")[3] = 99

    changes = correct, drop_last
    with pytest.raises(ERRORS):
        WAYS[way](table, *(reversed(changes) if turned else changes))


def test_a_cut_that_is_reverted(table: txstore.Repository) -> None:
    """Whoever wrote the chunk since then did not know of the row that comes back."""

    def correct(store: txstore.TxStore) -> None:
        zarr.open_array(store, path="v")[:] = [5, 6, 7]

    with pytest.raises(ERRORS):
        reverted(table, correct, drop_last)
    table.revert(-1)
    table.revert(1)
    assert zarr.open_array(table.snapshot(), path="v", mode="r")[:].tolist() == [0, 10, 20, 30]

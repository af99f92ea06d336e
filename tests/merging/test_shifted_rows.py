"""Rows that one side shifts while the other one writes: what was written is where these rows are then."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.labels.datasets import numbered, stored
from tests.labels.test_window import LAYOUTS, shifted
from tests.views import images
from txstore.format.row_moves import ATTRIBUTE, RowMoves, rows_have_moved

SHAPE = (13, 9)
put, values = partial(images.put, path="x"), partial(images.value, path="x")
Change = Callable[[txstore.TxStore], Any]


def on_branches(repo: txstore.Repository, mine: Change, other: Change) -> None:
    repo.branches["dev"] = "main"
    for branch, change in (("main", mine), ("dev", other)):
        with repo.transaction(branch=branch) as store:
            change(store)
    repo.merge("dev")


def at_once(repo: txstore.Repository, first: Change, second: Change) -> None:
    """Commit two transactions that begin at the same commit."""
    with repo.transaction(on_conflict="merge") as late:
        second(late)
        with repo.transaction() as store:
            first(store)


WAYS = {
    "ours moves": lambda repo, move, write: on_branches(repo, move, write),
    "theirs moves": lambda repo, move, write: on_branches(repo, write, move),
    "moved first": lambda repo, move, write: at_once(repo, move, write),
    "written first": lambda repo, move, write: at_once(repo, write, move),
}


def create(repo: txstore.Repository, data: np.ndarray, **layout: Any) -> None:
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=data, **layout)


def append(store: txstore.TxStore) -> None:
    zarr.open_array(store, path="x").append(np.ones((2, 9), int))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("content", ["numbers", "constant", "nothing"])
def test_what_is_written_follows(repo: txstore.Repository, way: str, layout: str, seed: int, content: str) -> None:
    """Where all elements are equal, nothing but the attribute says that rows have moved."""
    drawn, data = random.Random(seed), np.arange(13 * 9).reshape(SHAPE) + 100
    if content == "nothing":  # is stored
        data[:] = LAYOUTS[layout].get("fill_value", 0)
        with repo.transaction() as store:
            zarr.create_array(store, name="x", shape=SHAPE, dtype=data.dtype, **LAYOUTS[layout])
    else:
        create(repo, data if content == "numbers" else np.full_like(data, 5), **LAYOUTS[layout])
        data = values(repo)
    offsets = {0: drawn.choice([4, -4, 3, -5]), **({1: drawn.choice([3, -1])} if seed % 2 else {})}
    written = data.copy()
    for _ in range(3):
        row, column = drawn.randrange(5, 8), drawn.randrange(1, 6)  # stays in any case
        written[row : row + 1, column : column + 1] = drawn.randrange(1000, 2000)

    def write(store: txstore.TxStore) -> None:
        array = zarr.open_array(store, path="x")
        for place in zip(*np.nonzero(written != data), strict=True):
            array[place] = written[place]
        array[12, 8] = data[12, 8]  # no change

    WAYS[way](repo, lambda store: store.shift("x", offsets, fill=1), write)
    np.testing.assert_array_equal(values(repo), shifted(written, offsets, 1))
    attributes = dict(zarr.open_array(repo.snapshot(), path="x", mode="r").attrs)
    assert attributes == {ATTRIBUTE: f"{offsets[0]},{offsets.get(1, 0)}"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("move", "write"),
    [
        (lambda store: store.shift("x", {0: 4}), put(np.s_[12, 0], 1)),  # this row is gone
        (lambda store: store.shift("x", {0: -4}), put(np.s_[3, 0], 1)),
        (lambda store: store.shift("x", {0: -20}), put(np.s_[3, 0], 1)),  # all are
        (lambda store: (store.shift("x", {0: 4}), put(np.s_[9, 0], -5)(store)), put(np.s_[5, 0], 1)),  # both, the same
        (lambda store: store.shift("x", {0: 4}), append),
        (lambda store: store.shift("x", {0: 4}), lambda store: store.shift("x", {0: 3})),
        (
            lambda store: store.shift("x", {0: 4}),
            lambda store: zarr.create_array(store, name="x", shape=SHAPE, dtype="f4", overwrite=True),
        ),
    ],
)  # fmt: skip
def test_what_can_not_follow_is_a_conflict(repo: txstore.Repository, way: str, move: Change, write: Change) -> None:
    data = np.full(SHAPE, 5)
    create(repo, data, chunks=(4, 3))
    with pytest.raises((txstore.ConflictError, txstore.MergeConflictError)):
        WAYS[way](repo, move, write)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("offset", [4, -4, 2])
def test_chunks_that_are_emptied_follow(repo: txstore.Repository, way: str, offset: int) -> None:
    data = np.full(SHAPE, 5)
    create(repo, data, chunks=(4, 3))
    WAYS[way](repo, lambda store: store.shift("x", {0: offset}), put(np.s_[4:8, 0:6], 0))
    data[4:8, 0:6] = 0
    np.testing.assert_array_equal(values(repo), shifted(data, {0: offset}, 0))


def test_two_branches_that_shift_alike_are_alike(repo: txstore.Repository) -> None:
    data = np.arange(13 * 9).reshape(SHAPE)
    create(repo, data, chunks=(4, 3))
    on_branches(repo, lambda store: store.shift("x", {0: 4}), lambda store: store.shift("x", {0: 4}))
    np.testing.assert_array_equal(values(repo), shifted(data, {0: 4}, 0))


@pytest.mark.parametrize("way", WAYS)
def test_a_new_length_alone_goes_with_a_shift(repo: txstore.Repository, way: str) -> None:
    create(repo, np.full(SHAPE, 5), chunks=(4, 3))
    lengthen = lambda store: zarr.open_array(store, path="x").resize((20, 9))  # noqa: E731
    WAYS[way](repo, lambda store: store.shift("x", {0: 4}), lengthen)
    np.testing.assert_array_equal(values(repo)[:, 0], [0] * 4 + [5] * 9 + [0] * 7)


@pytest.mark.parametrize("way", WAYS)
def test_rows_that_are_inserted_in_the_middle(repo: txstore.Repository, way: str) -> None:
    repo.upsert(numbered([1, 5]))
    insert = lambda store: txstore.upsert(numbered([3]), store, dim="time", missing="insert")  # noqa: E731
    with pytest.raises((txstore.ConflictError, txstore.MergeConflictError)):
        WAYS[way](repo, insert, put(np.s_[1], 7, path="v"))


@pytest.mark.parametrize("way", WAYS)
def test_prepended(repo: txstore.Repository, way: str) -> None:
    repo.upsert(numbered([5, 6]))
    WAYS[way](repo, lambda store: txstore.prepend(numbered([1, 2, 3]), store, dim="time"), put(np.s_[1], 7, path="v"))
    assert stored(repo).v.sel(time=[1, 2, 3, 5, 6]).values.tolist() == [10, 20, 30, 50, 7]


def test_several_shifts_and_writers(repo: txstore.Repository) -> None:
    """Each begins at the first commit."""
    create(repo, np.zeros(SHAPE, int), chunks=(4, 3))
    writers = [repo.transaction(on_conflict="merge") for _ in range(4)]
    for number, store in enumerate(writers):
        zarr.open_array(store, path="x")[5 + number % 2, number] = 10 + number
    for number, store in enumerate(writers):
        store.commit()
        with repo.transaction() as other:
            other.shift("x", {0: (3, -1, 2, -2)[number]})
    found = values(repo)
    assert {int(found[place]): place for place in zip(*np.nonzero(found), strict=True)} == {
        10: (7, 0), 11: (8, 1), 12: (7, 2), 13: (8, 3),
    }  # fmt: skip
    assert repo.verify().faults == []


def test_a_revert_of_what_was_written_before(repo: txstore.Repository) -> None:
    create(repo, np.full(SHAPE, 5), chunks=(4, 3))
    with repo.transaction() as store:
        put(np.s_[5, 5], 7)(store)
    with repo.transaction() as store:
        store.shift("x", {0: 2}, fill=5)
    repo.revert(1)
    assert (values(repo) == 5).all()


def test_a_revert_of_the_shift(repo: txstore.Repository) -> None:
    create(repo, np.full(SHAPE, 5), chunks=(4, 3))
    with repo.transaction() as store:
        store.shift("x", {0: 2}, fill=5)
    with repo.transaction() as store:
        put(np.s_[7, 5], 7)(store)
    repo.revert(1)
    assert np.argwhere(values(repo) == 7).tolist() == [[5, 5]]
    assert zarr.open_array(repo.snapshot(), path="x", mode="r").attrs.asdict() == {}


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_array_objects_of_before_are_stale(repo: txstore.Repository, zarr_format: Any) -> None:
    create(repo, np.zeros(SHAPE), chunks=(4, 3), zarr_format=zarr_format)
    store = repo.transaction()
    array = zarr.open_array(store, path="x")
    store["other"] = b"1"
    with repo.transaction() as other:
        other.shift("x", {0: 4})
    store.commit()
    for use in (lambda: array[5, 5], lambda: array.__setitem__((5, 5), 1)):
        with pytest.raises(txstore.StaleArrayError, match="rows have moved"):
            use()
    zarr.open_array(store.latest(), path="x", mode="r")[5, 5]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_without_merging_a_conflict_says_why(repo: txstore.Repository, zarr_format: Any) -> None:
    create(repo, np.zeros(SHAPE), chunks=(4, 3), zarr_format=zarr_format)
    with pytest.raises(txstore.ConflictError), repo.transaction() as store:
        put(np.s_[5, 5], 1)(store)
        with repo.transaction() as other:
            other.shift("x", {0: 4})


# --- the attribute: docs/understand/format.md, "Rows that move"


def test_the_attribute() -> None:
    first = RowMoves.of({}, 2)
    assert first == ((0, 0), "")
    moved = first.moved([24, 0]).moved([-3, 1])
    assert moved.encode() == "21,1"
    assert RowMoves.of({ATTRIBUTE: "21,1"}, 2) == moved
    mixed = moved.moved([None, 2])
    assert mixed.origin == (21, 3)
    assert RowMoves.of({ATTRIBUTE: mixed.encode()}, 2) == mixed
    assert mixed.moved([None, 0]).mixed != mixed.mixed != moved.mixed


@pytest.mark.parametrize("told", ["", "1", "1,2,3", "a,b", "1,2 ", "1,2 xyz", 5, None, [1, 2], "1" * 30 + ",2"])
def test_what_is_no_value_is_a_move_of_its_own(told: Any) -> None:
    found = RowMoves.of({ATTRIBUTE: told}, 2)
    assert found.origin == (0, 0)
    assert bool(found.mixed) == (told is not None)


def test_documents_that_say_different_things_of_rows() -> None:
    old, new, damaged = b'{"attributes": {}}', b'{"attributes": {"txstore_rows": "4"}}', b'{"txstore_rows'
    assert rows_have_moved("zarr.json", old, new)
    assert not rows_have_moved("zarr.json", new, b'{"attributes": {"txstore_rows": "4", "a": 1}}')
    assert not rows_have_moved("zarr.json", old, damaged)
    assert rows_have_moved(".zattrs", None, b'{"txstore_rows": "4"}')

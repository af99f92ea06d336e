"""Rows that one side moves while the other one writes: a merge goes by position, so that is a conflict."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.labels.datasets import numbered, stored
from tests.views import images
from txstore.format.row_moves import ATTRIBUTE, MOVED, kept, moves_of, rows_have_moved, with_moves

SHAPE = (13, 9)
put, values = partial(images.put, path="x"), partial(images.value, path="x")
Change = Callable[[txstore.TxStore], Any]
CONFLICTS = (txstore.ConflictError, txstore.MergeConflictError)


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


def lengthen(store: txstore.TxStore) -> None:
    zarr.open_array(store, path="x").resize((20, 9))


def prepend(*labels: int, value: float | None = None) -> Change:
    ds = numbered([*labels])
    if value is not None:
        ds["v"][:] = value
    return lambda store: txstore.prepend(ds, store, dim="time")


def roll(keep: int) -> Change:
    return lambda store: txstore.roll(store, "time", keep=keep)


def shift(offset: int) -> Change:
    return lambda store: store.shift("v", {0: offset})


def correct(label: int, value: float) -> Change:
    return lambda store: txstore.upsert(numbered([label]).assign(v=("time", [value])), store, dim="time")


def run(repo: txstore.Repository, branch: str, *changes: Change) -> txstore.Commit:
    """Make a commit of each change, and return the last one."""
    for change in changes:
        with repo.transaction(branch=branch) as store:
            change(store)
    head = repo.head(branch)
    assert head is not None
    return head


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("move", "write"),
    [
        (lambda store: store.shift("x", {0: 4}), put(np.s_[8, 0], 1)),
        (lambda store: store.shift("x", {0: -4}), put(np.s_[8, 0], 1)),
        (lambda store: store.shift("x", {1: 3}), put(np.s_[4:8, 0:6], 1)),
        (lambda store: store.shift("x", {0: -20}), put(np.s_[3, 0], 1)),  # all are gone
        (lambda store: store.shift("x", {0: 4}), append),
        (lambda store: store.shift("x", {0: 4}), lambda store: store.shift("x", {0: 3})),
        (lambda store: store.shift("x", {0: 4}), lambda store: store.shift("x", {0: 4})),  # of which rows, who knows
        (
            lambda store: store.shift("x", {0: 4}),
            lambda store: zarr.create_array(store, name="x", shape=SHAPE, dtype="f4", overwrite=True),
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("content", [0, 5])
def test_a_move_beside_a_change(repo: txstore.Repository, way: str, move: Change, write: Change, content: int) -> None:
    """Where all elements are equal, nothing but the attribute says that rows have moved."""
    create(repo, np.full(SHAPE, content), chunks=(4, 3))
    with pytest.raises(CONFLICTS):
        WAYS[way](repo, move, write)


def test_a_transaction_that_moves_rows_is_not_merged(repo: txstore.Repository) -> None:
    create(repo, np.full(SHAPE, 5), chunks=(4, 3))
    with pytest.raises(txstore.ConflictError):
        at_once(repo, lengthen, lambda store: store.shift("x", {0: 4}))


# --- how far rows have moved is not which rows they are


def test_a_correction_after_a_move_that_was_picked(repo: txstore.Repository) -> None:
    """What it is corrected to is what the base has at this position."""
    repo.upsert(numbered([5, 6]).assign(v=("time", np.zeros(2))))
    repo.branches["dev"] = "main"
    repo.cherry_pick(run(repo, "dev", prepend(1, value=2)))
    run(repo, "dev", correct(1, 0))
    with pytest.raises(txstore.MergeConflictError) as raised:
        repo.merge("dev")
    assert [(each.path, each.kind, each.region) for each in raised.value.conflicts] == [("v", "elements", np.s_[0:1,])]
    repo.merge("dev", resolve={"v": "theirs"})
    assert stored(repo).v.values.tolist() == [0, 0, 0]


def test_chunks_that_both_have_made_anew_are_not_those_of_the_base(repo: txstore.Repository) -> None:
    """The bytes are as many, in another order."""

    def turn(store: txstore.TxStore) -> None:
        data = zarr.open_array(store, path="x")[:]
        big = zarr.codecs.BytesCodec(endian="big")
        zarr.create_array(store, name="x", data=data, chunks=(4,), serializer=big, overwrite=True, compressors=None)

    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.array([1, 256, 1, 1], "u2"), chunks=(4,), compressors=None)
    repo.branches["dev"] = "main"
    repo.cherry_pick(run(repo, "dev", turn))
    run(repo, "dev", put(0, 256))
    with pytest.raises(txstore.MergeConflictError):
        repo.merge("dev")


# --- no write drops what says that rows have moved
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    "drop",
    [
        lambda array, before: array.attrs.put({"units": "K"}),
        lambda array, before: array.attrs.put(before),
        lambda array, before: array.attrs.update({ATTRIBUTE: "0"}),
        lambda array, before: array.attrs.update({ATTRIBUTE: None}),
    ],
)
def test_attributes_that_are_written_anew(repo, zarr_format, at_once, drop):
    create(repo, np.zeros(4), chunks=(2,), zarr_format=zarr_format)
    before = dict(zarr.open_array(repo.snapshot(), path="x", mode="r").attrs)
    repo.branches["dev"] = "main"

    def move(store: txstore.TxStore) -> None:
        store.shift("x", {0: 1})

    def rewrite(store: txstore.TxStore) -> None:
        drop(zarr.open_array(store, path="x"), before)

    run(repo, "main", *([lambda store: (move(store), rewrite(store))] if at_once else [move, rewrite]))
    run(repo, "dev", put(1, 7))
    with pytest.raises(txstore.MergeConflictError):
        repo.merge("dev")


def test_attributes_of_a_branch_that_are_written_on_another(repo: txstore.Repository) -> None:
    create(repo, np.zeros(4), chunks=(2,))
    repo.branches["dev"] = "main"
    run(repo, "dev", lambda store: store.shift("x", {0: 1}), put(1, 7))
    theirs = dict(zarr.open_array(repo.snapshot(branch="dev"), path="x", mode="r").attrs)
    run(repo, "main", lambda store: zarr.open_array(store, path="x").attrs.put(theirs), put(1, 8))
    with pytest.raises(txstore.MergeConflictError) as raised:
        repo.merge("dev")
    assert [each.kind for each in raised.value.conflicts] == ["structure"]


def test_attributes_that_an_answer_writes(repo: txstore.Repository) -> None:
    create(repo, np.zeros(4), chunks=(2,))
    repo.branches["dev"] = "main"
    units = lambda name: lambda store: zarr.open_array(store, path="x").attrs.update(units=name)  # noqa: E731
    run(repo, "dev", units("K"))
    run(repo, "main", lambda store: store.shift("x", {0: 1}), units("C"))
    repo.merge("dev", resolve={"x": lambda conflict: {**conflict.theirs(), "attributes": {"units": "F"}}})
    moved = dict(zarr.open_array(repo.snapshot(), path="x", mode="r").attrs)
    assert moved["units"] == "F"
    assert ATTRIBUTE in moved


# --- arrays that share a dimension
def appended_and_moved(repo: txstore.Repository) -> None:
    repo.upsert(numbered([5, 6]))
    repo.branches["dev"] = "main"
    run(repo, "main", prepend(1))
    run(repo, "dev", put(1, 7, path="v"))  # no change of the labels


@pytest.mark.parametrize("resolve", [{"v": "ours"}, {"v": "theirs"}, {"time": "ours"}])
def test_an_answer_for_one_array_leaves_the_others(repo: txstore.Repository, resolve: Any) -> None:
    appended_and_moved(repo)
    with pytest.raises(txstore.MergeConflictError) as raised:
        repo.merge("dev", resolve=resolve)
    assert {each.path for each in raised.value.conflicts} == {"v", "time"} - resolve.keys()


def test_arrays_that_share_a_dimension_are_taken_from_one_side(repo: txstore.Repository) -> None:
    appended_and_moved(repo)
    with pytest.raises(ValueError, match="share a dimension"):
        repo.merge("dev", resolve={"v": "ours", "time": "theirs"})
    repo.merge("dev", resolve={"": "theirs"}, dry_run=True)
    repo.merge("dev", resolve={"v": "theirs", "time": "theirs"})
    assert stored(repo).v.to_dict()["data"] == [50, 7]
    assert stored(repo).time.values.tolist() == [5, 6]


def test_an_array_that_was_made_beside_a_move_goes_with_it(repo: txstore.Repository) -> None:
    repo.upsert(numbered([5, 6]))
    repo.branches["dev"] = "main"
    run(repo, "main", prepend(1))
    made = lambda store: zarr.create_array(store, name="w", data=np.ones(2), dimension_names=["time"])  # noqa: E731
    run(repo, "dev", made)
    with pytest.raises(txstore.MergeConflictError) as raised:
        repo.merge("dev", resolve={"w": "theirs"})
    assert {each.path for each in raised.value.conflicts} == {"v", "time"}
    repo.merge("dev", resolve={"": "ours"})
    assert "w" not in stored(repo)
    assert stored(repo).v.values.tolist() == [10, 50, 60]


# --- array objects, and errors
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
def test_the_attribute_names_the_commit(repo: txstore.Repository) -> None:
    create(repo, np.zeros(SHAPE), chunks=(4, 3))
    commit = run(repo, "main", lambda store: store.shift("x", {1: 3}))
    assert dict(zarr.open_array(repo.snapshot(), path="x", mode="r").attrs) == {ATTRIBUTE: f"0,{commit.id}"}


def test_the_attribute() -> None:
    assert moves_of({}, 2) == ("0", "0")
    assert moves_of({}, 0) == ()
    assert moves_of({ATTRIBUTE: "21,1"}, 2) == ("21", "1")
    assert with_moves({"a": 1}, 2, [1]) == {"a": 1, ATTRIBUTE: f"0,{MOVED}"}
    assert with_moves({"a": 1}, 2, []) == {"a": 1}


@pytest.mark.parametrize("told", ["", "1", "1,2,3", "1,2 ", "0,0 5f3a9c2e", 5, None, [1, 2]])
def test_what_is_no_value_is_a_move_of_its_own(told: Any) -> None:
    found = moves_of({ATTRIBUTE: told}, 2)
    assert len(found) == 2
    assert "0" not in found


def test_documents_that_say_different_things_of_rows() -> None:
    old, new, damaged = b'{"attributes": {}}', b'{"attributes": {"txstore_rows": "4"}}', b'{"txstore_rows'
    assert rows_have_moved("zarr.json", old, new)
    assert not rows_have_moved("zarr.json", new, b'{"attributes": {"txstore_rows": "4", "a": 1}}')
    assert not rows_have_moved("zarr.json", old, damaged)
    assert rows_have_moved(".zattrs", None, b'{"txstore_rows": "4"}')


@pytest.mark.parametrize(
    "written", [b"{", b"[]", b'{"node_type": "group"}', b'{"node_type": "array", "attributes": 1}']
)
def test_what_is_no_document_of_an_array_is_stored_as_it_is(written: bytes) -> None:
    moved = b'{"node_type": "array", "attributes": {"txstore_rows": "4"}}'
    assert kept("zarr.json", moved, written, "5") == written

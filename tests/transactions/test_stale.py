"""I6: array and group objects that are older than a change of the metadata that they hold."""

import pickle
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import zarr

import txstore
import txstore.store
from tests.tools.arrays import (
    Step,
    append,
    array,
    attributes,
    commit,
    create,
    delete,
    edit_document,
    group,
    put,
    resize,
    values,
)
from tests.tools.faults import always, once, watch
from tests.tools.steps import BeforeEach
from txstore import StaleArrayError, TransactionStateError

Use = Callable[[zarr.Array], object]
STRUCTURAL: dict[str, Step] = {
    "another data type": edit_document("x/zarr.json", data_type="uint32"),
    "another fill value": edit_document("x/zarr.json", fill_value=7),
    "another array": create(n=3, chunks=2, overwrite=True),
    "deletion": delete(),
    "a group": lambda store: zarr.create_group(store, path="x", overwrite=True),
    "no document at all": lambda store: store.__setitem__("x/zarr.json", b"{"),
}
DOCUMENT_WRITES: dict[str, Use] = {
    "append": lambda z: z.append(np.array([9], "i4")),
    "resize": lambda z: z.resize((3,)),
    "attributes": lambda z: z.attrs.update(b=2),
}
as_cases = lambda cases: [pytest.param(step, id=name) for name, step in cases.items()]  # noqa: E731


@pytest.fixture
def repo(open_repo: Callable[..., txstore.Repository]) -> txstore.Repository:
    """A repository with the array x: two chunks of four ones."""
    repo = open_repo(durability="none")
    commit(repo, create())
    return repo


@pytest.fixture
def session(repo: txstore.Repository) -> txstore.TxStore:
    return txstore.TxStore(repo)


def move(store: txstore.TxStore) -> None:
    """Commit something else, so that the session's base moves over what others have committed."""
    store["noise/c/0"] = str(store.base).encode()
    store.commit()


def refuses(*steps: Callable[[], object]) -> None:
    for step in steps:
        with pytest.raises(StaleArrayError):
            step()


# --- what kind of change forbids what
@pytest.mark.parametrize("write", as_cases(DOCUMENT_WRITES))
@pytest.mark.parametrize("change", [append(7), resize(4), attributes(a=1)], ids=["growth", "shrink", "attributes"])
def test_after_a_foreign_change_the_document_is_not_written(repo, session, change, write):
    z = array(session)
    commit(repo, change)
    move(session)
    before = dict(repo.mapping())
    refuses(lambda: write(z))
    with pytest.raises(TransactionStateError):
        session.commit()
    session.rollback()
    assert dict(repo.mapping()) == before


@pytest.mark.parametrize("value", [5, 0], ids=["data", "fill value"])
def test_what_others_appended_into_the_last_chunk_is_not_overwritten(open_repo, value):
    repo = open_repo("short.tx")
    commit(repo, create(n=6))
    session = txstore.TxStore(repo)
    z = array(session)
    commit(repo, append(7, 7))
    move(session)
    z[0:4] = 5
    refuses(lambda: z.__setitem__(slice(4, 6), value))  # to an array of six that is the whole chunk
    session.rollback()
    assert values(repo) == [1] * 6 + [7, 7]


class Case(NamedTuple):
    """What a session may still do with an array that others have changed since it was opened."""

    changes: Sequence[Step]  # a commit each, and the session's base moves over each
    refused: Sequence[Use] = ()
    used: Sequence[Use] = ()
    made: Any = ()  # options of the array


def write(*where: slice) -> Use:
    return lambda z: z.__setitem__(where, 5)


def read(start: int, stop: int) -> Use:
    return lambda z: z[start:stop]


WHOLE = [read(0, 8), write(slice(0, 4))]
TYPE = edit_document("x/zarr.json", data_type="uint32")
CASES = {
    "growth": Case([append(7)], used=[read(0, 8), write(slice(2, 6))]),
    "attributes": Case([attributes(a=1)], used=[read(0, 8), write(slice(2, 6))]),
    "shrink": Case([resize(4)], [read(4, 8), write(slice(4, 8))], [write(slice(0, 4)), read(0, 4)]),
    "growth along another axis": Case(
        [resize(6, 7)], [write(slice(0, 4), slice(4, 6))], [write(slice(4, 6), slice(0, 4))],
        {"shape": (6, 6), "chunks": (4, 4)},
    ),
    "a shrink, then growth": Case([resize(4), append(7, 7, 7, 7)], [write(slice(4, 7))], made={"shape": (7,)}),
    "a shrink, then attributes": Case([resize(4), attributes(a=1)], [read(4, 8)]),
    **{name: Case([change], WHOLE) for name, change in STRUCTURAL.items()},
    "another data type, of shards": Case([TYPE], [read(0, 2)], made={"chunks": (2,), "shards": (8,)}),
    "another data type, and attributes": Case([TYPE, attributes(a=1)], WHOLE),
    "another data type, and growth": Case([TYPE, attributes(a=1), append(7)], WHOLE),
    "another data type, and back": Case([TYPE, edit_document("x/zarr.json", data_type="int32")], WHOLE),
}  # fmt: skip


@pytest.mark.parametrize("case", as_cases(CASES))
def test_what_others_have_changed(open_repo, case):
    repo = open_repo("cases.tx")
    with repo.transaction() as store:
        made = {"shape": (8,), "chunks": (4,)} | dict(case.made)
        zarr.create_array(store, name="x", dtype="i4", **made)[...] = 1
    session = txstore.TxStore(repo)
    z = array(session)
    for change in case.changes:
        commit(repo, change)
        move(session)
    for use in case.used:
        use(z)
    refuses(*[lambda use=use: use(z) for use in case.refused])
    session.rollback()


def test_below_a_group_that_was_deleted_nothing_is_created(repo: txstore.Repository, session: txstore.TxStore) -> None:
    commit(repo, group())
    session.rollback()
    g = zarr.open_group(session, path="g")
    commit(repo, delete("g"))
    move(session)
    refuses(lambda: g.create_array("y", shape=(4,), dtype="i4"))
    session.rollback()


def test_attributes_of_a_group_that_others_have_edited_are_not_written(repo, session):
    g = zarr.open_group(session)
    commit(repo, attributes("", a=1))
    move(session)
    g["x"][0:4] = 5
    refuses(lambda: g.attrs.update(b=2))
    session.rollback()
    assert zarr.open_group(repo.snapshot(), mode="r").attrs.asdict() == {"a": 1}


# --- by which way the base moves
def test_a_rollback_moves_over_foreign_changes_too(repo: txstore.Repository, session: txstore.TxStore) -> None:
    z = array(session)
    commit(repo, append(7))
    session.rollback()
    refuses(lambda: z.append(np.array([9], "i4")))
    session.rollback()


def test_a_document_that_was_rewritten_unchanged_is_not_ones_own_change(repo, session):
    z = array(session)
    z.update_attributes({})
    commit(repo, append(7))
    move(session)
    refuses(lambda: z.append(np.array([9], "i4")))
    session.rollback()
    assert values(repo)[8:] == [7]


def test_ones_own_changes_are_not_stale(repo: txstore.Repository, session: txstore.TxStore) -> None:
    z = array(session)
    for step in (lambda: z.append(np.array([9], "i4")), lambda: z.attrs.update(a=1), lambda: z.resize((2,))):
        step()
        session.commit()
    assert values(repo) == [1, 1]


def test_what_others_create_where_nothing_was_found_is_used(repo: txstore.Repository, session: txstore.TxStore) -> None:
    with pytest.raises(FileNotFoundError):
        zarr.open_array(session, path="y", mode="r+")
    commit(repo, create("y"))
    move(session)
    append(7, path="y")(session)
    session.commit()
    assert values(repo, "y") == [1] * 8 + [7]


def test_what_one_has_deleted_can_be_created_again(repo: txstore.Repository, session: txstore.TxStore) -> None:
    g = zarr.open_group(session)
    array(session)
    del g["x"]
    session.commit()
    g.create_array("x", data=np.full(3, 5, "i4"))
    session.commit()
    assert values(repo) == [5, 5, 5]


# --- cures
def test_latest_cures(repo: txstore.Repository, session: txstore.TxStore) -> None:
    z = array(session)
    commit(repo, append(7))
    move(session)
    refuses(lambda: z.append(np.array([9], "i4")))
    session.rollback()
    with session.latest() as fresh:
        append(9)(fresh)
    assert values(repo)[8:] == [7, 9]


def test_whoever_clears_a_stale_array_may_replace_it(repo: txstore.Repository, session: txstore.TxStore) -> None:
    array(session)
    commit(repo, edit_document("x/zarr.json", data_type="uint32"))
    move(session)
    create(n=3, overwrite=True)(session)
    session.commit()
    assert values(repo) == [1, 1, 1]


def test_what_a_rolled_back_replacement_had_cleared_is_stale_again(repo, session):
    z = array(session)
    commit(repo, append(7))
    move(session)
    create(n=3, overwrite=True)(session)
    session.rollback()
    array(session)
    refuses(lambda: z.append(np.array([9], "i4")))
    session.rollback()


def test_what_a_committed_replacement_had_cleared_is_not_stale_again(repo, session):
    array(session)
    commit(repo, append(7))
    move(session)
    create(n=3, overwrite=True)(session)
    session.commit()
    session.rollback()
    append(9)(session)
    session.commit()
    assert values(repo) == [1, 1, 1, 9]


# --- who shares it


def in_another_process(pickled: bytes) -> zarr.Array:
    """Return what a process gets that knows of no session."""
    with mock.patch.object(txstore.store, "_sessions", weakref.WeakValueDictionary()):
        return pickle.loads(pickled)


def test_a_pickle_carries_it_to_another_process(repo, session):
    z = array(session)
    commit(repo, append(7))
    move(session)
    z = in_another_process(pickle.dumps(z))
    refuses(lambda: z.append(np.array([9], "i4")))


def test_a_pickle_of_an_earlier_transaction_says_that_it_has_ended(repo, session):
    pickled = pickle.dumps(array(session))
    move(session)
    z = in_another_process(pickled)
    for use in (lambda: z[:], lambda: z.append(np.array([9], "i4"))):
        with pytest.raises(txstore.TransactionStateError, match="has ended"):
            use()


# --- format 2 has a document of its own for attributes
@pytest.fixture
def old(open_repo: Callable[..., txstore.Repository]) -> txstore.Repository:
    repo = open_repo("old.tx")
    commit(repo, create(zarr_format=2))
    return repo


def test_foreign_growth_beside_own_attributes_is_noticed(old: txstore.Repository) -> None:
    session = txstore.TxStore(old)
    z = array(session)
    z.attrs["a"] = 1
    commit(old, append(7))
    session.commit()
    refuses(lambda: z.append(np.array([9], "i4")))
    session.rollback()
    assert values(old)[8:] == [7]


def test_foreign_attributes_where_there_were_none_are_noticed(old: txstore.Repository) -> None:
    with old.transaction() as store:
        del store["x/.zattrs"]
    session = txstore.TxStore(old)
    z = array(session)
    commit(old, attributes(a=1))
    move(session)
    refuses(lambda: z.append(np.array([9], "i4")))
    session.rollback()
    assert array(old.snapshot(), mode="r").attrs.asdict() == {"a": 1}


# --- what was staged and rolled back
@pytest.mark.parametrize("use", [lambda z: z[:], lambda z: z.__setitem__(0, 5), *DOCUMENT_WRITES.values()])
def test_after_a_rolled_back_append_the_object_is_refused(repo, session, use):
    z = array(session)
    z.append(np.array([9], "i4"))
    session.rollback()
    refuses(lambda: use(z))
    session.rollback()
    append(8)(session)
    session.commit()
    assert values(repo)[8:] == [8]


@pytest.mark.parametrize(
    ("fmt", "later"), [(2, "zarr.json"), (2, ".zattrs"), (3, ".zarray"), (3, ".zattrs"), (3, ".zgroup")]
)
def test_an_array_that_is_being_opened_when_a_rollback_comes_is_refused(open_repo, fmt, later):
    """Zarr asks for documents of all names, one after the other: the one that counts may come before the rollback."""
    session = txstore.TxStore(open_repo("new.tx"))
    create("x", zarr_format=fmt)(session)
    array(session).attrs["a"] = 1
    session.commit()
    z = array(session)
    z.append(np.array([9], "i4"))
    session.rollback()
    session.get_sync(f"x/{later}")
    refuses(lambda: z.append(np.array([9], "i4")))
    session.rollback()
    assert array(session).shape == (8,)


def test_after_a_rolled_back_deletion_the_array_is_opened_again(repo, session):
    z = array(session)
    delete()(session)
    session.rollback()
    refuses(lambda: z[:])
    assert array(session)[:].tolist() == [1] * 8


def test_rolled_back_attributes_of_a_group_are_not_written_with_the_next(repo, session):
    g = zarr.open_group(session)
    g.attrs["a"] = 1
    session.rollback()
    refuses(lambda: g.attrs.update(b=2))
    session.rollback()


def test_rolled_back_attributes_of_a_group_do_not_concern_its_arrays(repo, session):
    g = zarr.open_group(session)
    z = g["x"]
    g.attrs["a"] = 1
    session.rollback()
    z[0:4] = 5
    session.commit()
    assert values(repo)[:4] == [5] * 4


@pytest.mark.parametrize("fmt", [2, 3])
@pytest.mark.parametrize("path", ["x", "g/h/x"])
def test_what_was_rolled_back_can_be_created_again(open_repo, fmt, path):
    repo = open_repo("new.tx")
    session = txstore.TxStore(repo)
    for _ in range(2):
        create(path, zarr_format=fmt)(session)
        session.rollback()
    create(path, zarr_format=fmt)(session)
    session.commit()
    assert values(repo, path) == [1] * 8


def test_a_rollback_that_could_not_finish_is_remembered(repo, session):
    z = array(session)
    z.append(np.array([9], "i4"))
    watched = watch(repo)
    watched.before = BeforeEach(always(TimeoutError()))
    with pytest.raises(TimeoutError):
        session.rollback()
    watched.before = {}
    session.rollback()
    refuses(lambda: z.append(np.array([9], "i4")))
    session.rollback()


def test_a_resize_that_failed_half_way_is_cured_by_a_rollback(open_repo: Callable[..., txstore.Repository]) -> None:
    repo = open_repo("big.tx")
    commit(repo, create(attributes={"long": "x" * (1 << 18)}))  # a document that is written at once
    storage = watch(repo)
    session = txstore.TxStore(repo)
    z = array(session)
    storage.before["file.write"] = once(OSError("the disk is gone"))
    with pytest.raises(OSError, match="the disk is gone"):
        z.resize((4,))
    assert "x/c/1" in session.changes()["deleted"]
    with pytest.raises(TransactionStateError, match="the disk is gone"):
        session.commit()
    with pytest.raises(TransactionStateError):
        session["y"] = b"1"
    session.rollback()
    assert array(session)[:].tolist() == [1] * 8
    put(0, 5)(session)
    session.commit()
    assert values(repo) == [5] + [1] * 7

"""What must not go through, each as a function that raises `Unnoticed` if it does."""

import random
from collections.abc import Callable
from typing import Any

import zarr

import txstore
from tests.isolation.checker import check
from tests.isolation.interleavings import interleave
from tests.tools.arrays import Step, append, array, both, commit, create, part
from tests.tools.members import join_in_this_process
from tests.tools.parts import write_part
from txstore import ConflictError, StaleArrayError
from txstore.transactions.transaction import Transaction

Scenario = Callable[[txstore.Repository], None]
#: A mapping's transaction, for steps that no array takes.
MappingStep = Callable[[Transaction], object]

FIRST, SECOND = slice(0, 4), slice(4, 8)  # the two chunks of x
HISTORIES = 40  # so many random ones are tried until one shows an anomaly
STEPS = 45


class Unnoticed(Exception):
    """What should have been refused went through."""


def histories(isolation: str, *ops: str) -> Scenario:
    """Random interleavings of these operations, looked at by the checker."""

    def scenario(_: txstore.Repository) -> None:
        for seed in range(HISTORIES):
            history, _surprises = interleave(random.Random(seed), STEPS, isolation, ops)
            if anomalies := check(history, isolation):
                raise Unnoticed(f"history {seed}: {anomalies[0]}")

    return scenario


def two(before: Step, one: Step, other: Step) -> Scenario:
    """The second of two transactions of arrays that began at one commit."""

    def scenario(repo: txstore.Repository) -> None:
        commit(repo, before)
        with repo.transaction() as second:
            one(second)
            commit(repo, other)
            _must_conflict(second.commit)
            second.rollback()

    return scenario


def two_mappings(one: MappingStep, other: MappingStep, isolation: str = "snapshot") -> Scenario:
    """The second of two transactions of keys: `a` and `d/x` are there."""

    def scenario(repo: txstore.Repository) -> None:
        with repo.begin() as transaction:
            transaction["a"] = transaction["d/x"] = b"1"
        second = repo.begin(isolation=isolation)
        one(second)
        second["mine"] = b"1"
        with repo.begin() as first:
            other(first)
        _must_conflict(second.commit)
        second.rollback()

    return scenario


def reads(one: MappingStep, other: MappingStep) -> Scenario:
    return two_mappings(one, other, "serializable")


def _must_conflict(step: Callable[[], Any]) -> None:
    try:
        step()
    except ConflictError:
        return
    raise Unnoticed("no conflict")


def stale(before: Step, *foreign: Step, use: Callable[[zarr.Array], object]) -> Scenario:
    """An array object of a session that moves to the head after each of the changes by others."""

    def scenario(repo: txstore.Repository) -> None:
        commit(repo, before)
        session = txstore.TxStore(repo)
        z = array(session)
        for step in foreign:
            commit(repo, step)
            session.rollback()
        try:
            _must_be_stale(lambda: use(z))
        finally:
            session.rollback()

    return scenario


def _must_be_stale(step: Callable[[], Any]) -> None:
    try:
        step()
    except StaleArrayError:
        return
    raise Unnoticed("an array object that is older than its array was used")


def rolled_back(repo: txstore.Repository) -> None:
    """An array object whose array was rolled back."""
    session = txstore.TxStore(repo)
    z = zarr.create_array(session, name="x", shape=(8,), chunks=(4,), dtype="i4")
    session.rollback()
    try:
        _must_be_stale(lambda: z.__setitem__(0, 1))
    finally:
        session.rollback()


def participant_reads(repo: txstore.Repository) -> None:
    with repo.begin() as transaction:
        transaction["a"] = b"1"
    owner = repo.begin(isolation="serializable")
    owner["mine"] = b"1"
    shared = owner.lifecycle.share()
    assert shared is not None
    participant = join_in_this_process(repo, shared)
    participant.get_view("a")
    with repo.begin() as other:
        other["a"] = b"2"
    try:
        _must_conflict(owner.commit)
    finally:
        participant.lifecycle.seal()
        owner.rollback()


def older_array(repo: txstore.Repository) -> None:
    """An array object that a serializable session has opened in an earlier transaction."""
    commit(repo, both(create(), create("y")))
    session = repo.transaction(isolation="serializable")
    z = array(session)
    session["first"] = b"1"
    session.commit()
    z[FIRST] = 5
    commit(repo, append(7))
    _must_conflict(session.commit)
    session.rollback()


def grown_array(repo: txstore.Repository) -> None:
    """The same, when the base has moved over a change that only the serializable mind."""
    commit(repo, create())
    session = repo.transaction(isolation="serializable")
    z = array(session)
    commit(repo, append(7))
    session.rollback()
    _must_be_stale(lambda: z[FIRST])
    session.rollback()


def part_of_a_serializable_transaction(repo: txstore.Repository) -> None:
    """It is checked by key: what it has read of a chunk before it wrote a part is more than that part."""
    commit(repo, create())
    second = repo.begin(isolation="serializable")
    write_part(second, "x/c/0", slice(0, 1), 5)
    commit(repo, part(slice(2, 3), 6))
    _must_conflict(second.commit)
    second.rollback()


def put_twice(repo: txstore.Repository) -> None:
    """A chunk that is read, and written just as it was: whoever read it relies on it."""
    two_mappings(lambda t: t.__setitem__("a", t["a"]), lambda t: t.__setitem__("a", b"2"))(repo)


def turn_into_array(store: txstore.TxStore) -> None:
    """Put an array in the place of the group above `g/x`, without clearing what is below."""
    store["g/zarr.json"] = store["x/zarr.json"]


def clear_chunks(store: txstore.TxStore) -> None:
    store.mapping.delete_dir("x/c")  # type: ignore[union-attr]


def group_above(store: txstore.TxStore) -> None:
    zarr.create_group(store, path="g")
    create()(store)
    create("g/x")(store)

"""A `with` block of a participant that fails: its part is given up, and can be done again, by whoever does it."""

import pickle
from typing import Any

import pytest
import zarr

import txstore
from tests.tools.members import committed, join, members, put
from txstore import TransactionStateError
from txstore.store import TxStore

pytestmark = pytest.mark.long


def fill_in_block(store: TxStore, start: int, stop: int, value: int, until: int | None = None) -> None:
    """Fill chunks in a block, which fails at one of them."""
    with store:
        z = zarr.open_array(store, path="x")
        for chunk in range(start, stop):
            if chunk == until:
                raise RuntimeError("half-way")
            z[4 * chunk : 4 * chunk + 4] = value


def fill_unpickled(sent: bytes, *arguments: Any) -> None:
    fill_in_block(pickle.loads(sent), *arguments)


def failing(store: TxStore, *arguments: Any) -> str:
    with pytest.raises(RuntimeError, match="half-way"):
        fill_in_block(store, *arguments)
    return "failed"


def again_as_sent(store: TxStore, sent: bytes, *arguments: Any) -> None:
    """What Dask does: each try of a task unpickles the store."""
    fill_unpickled(sent, *arguments)


def failing_as_sent(store: TxStore, sent: bytes, *arguments: Any) -> str:
    return failing(pickle.loads(sent), *arguments)


@pytest.mark.parametrize("as_sent", [False, True])
def test_a_block_that_failed_is_entered_again(repo, store, as_sent):
    with members(store, 1) as (worker,):
        sent = [pickle.dumps(store)] if as_sent else []
        first, then = (failing_as_sent, again_as_sent) if as_sent else (failing, fill_in_block)
        worker.do(then, *sent, 0, 2, 1)  # done before, and not to be done again
        for _ in range(2):
            assert worker.do(first, *sent, 2, 6, 2, 4) == "failed"
        worker.do(then, *sent, 2, 6, 3)
        worker.do(then, *sent, 6, 8, 4)
        store.commit()
    assert committed(repo) == [1] * 8 + [3] * 16 + [4] * 8


def test_a_block_is_given_up_without_another_at_the_same_time(repo, store):
    with members(store, 1) as (worker,):
        worker.do(two_blocks, pickle.dumps(store))
        with pytest.raises(txstore.ParticipantLostError) as lost:
            store.commit()
        assert lost.value.keys == ("half",)
        worker.do(put, "half", b"whole")
        store.commit()
    assert repo.mapping()["half"] == b"whole"
    assert repo.mapping()["other"] == b"2"


def two_blocks(_: TxStore, sent: bytes) -> None:
    """As tasks in two threads of one worker would."""
    one, other = pickle.loads(sent), pickle.loads(sent)
    with other:
        other["other"] = b"1"
        with pytest.raises(RuntimeError), one:
            one["half"] = b"1"
            raise RuntimeError
        other["other"] = b"2"


def test_an_inner_block_that_fails_fails_the_outer_one(repo, store):
    with members(store, 1) as (worker,):
        with pytest.raises(TransactionStateError, match="aborted"):
            worker.do(nested)
        with pytest.raises(txstore.ParticipantLostError):
            store.commit()
        worker.do(put, "half", b"1")
        store.commit()


def nested(store: TxStore) -> None:
    with store, pytest.raises(RuntimeError), store:
        store["half"] = b"1"
        raise RuntimeError


@pytest.mark.parametrize("in_block", [False, True])
def test_a_participant_whose_write_failed_is_not_complete(repo, store, in_block):
    """Also while it lives. It is told how to go on."""
    with members(store, 1) as (worker,):
        worker.do(join)
        if in_block:
            with pytest.raises(TransactionStateError, match="a write of this block failed"):
                worker.do(fail_to_write_in_block)
        else:
            worker.do(fail_to_write)
            with pytest.raises(TransactionStateError, match="new `with store:` block"):
                worker.do(put, "c", b"")
        with pytest.raises(txstore.ParticipantLostError) as lost:
            store.commit()
        assert lost.value.keys == ("a",)
        worker.do(put_in_block, "a", "b")
        store.commit()
    assert repo.mapping()["b"] == b"1"


def fail_to_write(store: TxStore) -> None:
    store["a"] = b"1"
    staging = store.mapping.staging
    staging.part.writer.append = raise_once(staging.part.writer.append)
    with pytest.raises(OSError, match="full"):
        store["b"] = b"1"


def raise_once(then: Any) -> Any:
    left = [OSError(28, "full")]

    def append(*arguments: Any, **options: Any) -> Any:
        if left:
            raise left.pop()
        return then(*arguments, **options)

    return append


def fail_to_write_in_block(store: TxStore) -> None:
    with store:
        fail_to_write(store)


def put_in_block(store: TxStore, *keys: str) -> None:
    with store:
        for key in keys:
            store[key] = b"1"


def test_blocks_one_after_the_other_are_one_participant(repo, store):
    with members(store, 1) as (worker,):
        for number in range(5):
            worker.do(put_in_block, str(number))
        shared = store.mapping.staging.members.shared
        assert len([number for number in shared.participants() if number]) == 1
        store.commit()
    assert repo.mapping()["4"] == b"1"

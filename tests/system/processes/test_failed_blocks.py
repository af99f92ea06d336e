"""A `with` block of a participant that fails: its part is given up, and can be done again, by whoever does it."""

import pickle
from typing import Any

import pytest

import txstore
from tests.tools.members import join, members, put
from txstore import TransactionStateError
from txstore.store import TxStore

pytestmark = pytest.mark.long


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

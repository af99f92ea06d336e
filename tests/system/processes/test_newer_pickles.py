"""A pickle of a store carries how far its sender had seen: whoever opens it sees at least that."""

import multiprocessing
import pickle
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.members import committed, fill, get, members, put
from txstore.store import TxStore

_kept: list[Any] = []  # what a worker keeps from one task to the next, as caches and closures do


def opened(sent: bytes) -> Any:
    """Unpickle what was sent, and keep it."""
    _kept.append(pickle.loads(sent))
    return _kept[-1]


def value_of(_: TxStore, sent: bytes, key: str) -> bytes | None:
    return get(opened(sent), key)


def element_of(_: TxStore, sent: bytes, index: int) -> int:
    return int(opened(sent)[index])


def length_of(_: TxStore, sent: bytes) -> int:
    store = opened(sent)
    return zarr.open_array(store, path="x").shape[0]


def append_to(_: TxStore, sent: bytes, value: int) -> None:
    opened(sent).append(np.full(4, value))


@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_a_worker_that_has_joined_is_sent_a_newer_pickle(repo, store, context):
    store["k"] = b"first"
    with members(store, 1, multiprocessing.get_context(context)) as (worker,):
        assert worker.do(value_of, pickle.dumps(store), "k") == b"first"
        store["k"] = b"second"
        fill(store, "x", 0, 4, 2)
        assert worker.do(value_of, pickle.dumps(store), "k") == b"second"
        worker.do(put, "own", b"1")
        assert worker.do(element_of, pickle.dumps(zarr.open_array(store, path="x")), 0) == 2
        fill(store, "x", 0, 4, 3)
        assert worker.do(element_of, pickle.dumps(zarr.open_array(store, path="x")), 0) == 3
        assert worker.do(get, "k") == b"second"  # it is the same participant: so does the older store
        shared = store.mapping.staging.members.shared
        assert len([number for number in shared.participants() if number]) == 1
        worker.leave()
    store.commit()
    assert repo.mapping()["own"] == b"1"


def test_what_a_worker_has_seen_of_another_is_seen_by_who_gets_its_pickle(repo, store):
    """The sender is no owner: it has seen what another has staged under a lock."""
    with members(store, 2) as (one, other):
        one.do(put, "k", b"1")
        late = pickle.dumps(store)  # the owner has looked
        assert other.do(get, "k") is None
        assert other.do(value_of, late, "k") == b"1"
        sent = other.do(repickled, late)
        one.do(put, "k2", b"2")
        assert one.do(value_of, sent, "k") == b"1"
        one.leave()
        other.leave()
    store.commit()


def repickled(_: TxStore, sent: bytes) -> bytes:
    return pickle.dumps(opened(sent))


def test_an_array_that_is_sent_is_what_it_was_there(repo, store):
    """Beside an older object of the same worker, which is refused as before."""
    with members(store, 1) as (worker,):
        older = pickle.dumps(zarr.open_array(store, path="x"))
        worker.do(append_to, older, 1)
        worker.do(append_to, pickle.dumps(zarr.open_array(store, path="x")), 2)
        zarr.open_array(store, path="x").append(np.full(4, 3))
        with pytest.raises(txstore.StaleArrayError):
            worker.do(append_to, older, 4)
        newer = pickle.dumps(zarr.open_array(store, path="x"))
        worker.do(append_to, newer, 5)
        assert worker.do(length_of, pickle.dumps(store)) == 48
        worker.leave()
    store.commit()
    assert committed(repo)[32:] == [1] * 4 + [2] * 4 + [3] * 4 + [5] * 4


def test_what_is_not_there_is_an_error(repo, store, tmp_path):
    """Such as on another disk, which has an older copy."""
    store["k"] = b"1"
    with members(store, 1) as (worker,):
        worker.do(put, "w", b"1")
        told = list(store.__reduce__()[1])
        told[3] = told[3]._replace(seen={0: 1000})
        worker.do(rebuilt, pickle.dumps(told), True)
        worker.do(rebuilt, pickle.dumps(store.__reduce__()[1]), False)
        worker.leave()
    store.commit()


def rebuilt(_: TxStore, sent: bytes, is_missing: bool) -> None:
    from txstore.store import _reopen_writer

    newer = _reopen_writer(*pickle.loads(sent))
    if is_missing:
        with pytest.raises(txstore.TransactionStateError, match="is not all there for this process"):
            get(newer, "k")
    else:
        assert get(newer, "k") == b"1"

"""After an interrupt one goes on as if nothing had been tried, or after a rollback."""

from __future__ import annotations

import gc

import pytest
import zarr

import txstore
from tests.transactions.faults import once, watch


def test_a_commit_that_was_interrupted_when_its_file_had_just_been_made_is_made_the_next_time(
    repo: txstore.Repository,
) -> None:
    storage = watch(repo)
    store = txstore.TxStore(repo)
    store["key"] = b"0"
    store.commit()
    store["key"] = b"1"
    storage.after["create"] = once(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        store.commit()
    store.commit()
    assert repo.mapping()["key"] == b"1"


def test_a_commit_of_unknown_outcome_keeps_no_lock_after_a_rollback(repo: txstore.Repository) -> None:
    """Whoever still has the transaction, in an error, say: others may have what it had locked."""
    create(repo)
    storage = watch(repo)
    store = txstore.TxStore(repo)
    kept = store.mapping
    with store.lock("x", 0):
        zarr.open_array(store, path="x")[0] = 1
    storage.after["link"] = once(KeyboardInterrupt())
    storage.after["rename_noreplace"] = once(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        store.commit()
    assert kept.state == "of unknown outcome"
    store.rollback()
    with repo.transaction(lock={"x": 0}, lock_timeout=0):
        pass


def create(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=(4,), chunks=(4,), dtype="i4")


def test_leaving_that_was_interrupted_is_done_when_the_store_is_gone(repo: txstore.Repository) -> None:
    """Else the process would look as if it went on staging for as long as it lives."""
    store = repo.transaction(name="run")
    staging = store.mapping._staging
    real, interrupt = staging.leave, once(KeyboardInterrupt())

    def leave(attached: object) -> None:
        interrupt()
        real(attached)

    staging.leave = leave
    with pytest.raises(KeyboardInterrupt), store:
        store["key"] = b"1"
    del staging, store
    gc.collect()  # of the error
    repo.transaction(name="run").commit()
    assert repo.mapping()["key"] == b"1"

"""After an interrupt one goes on as if nothing had been tried, or after a rollback."""

import asyncio
import contextvars
import gc
import signal
import threading
from contextlib import suppress

import numpy as np
import pytest
import zarr
import zarr.core.sync

import txstore
from tests.threads import latches
from tests.threads.interrupts import SIGNAL
from tests.threads.latches import A_WHILE, Latch, Thread, latch
from tests.tools.faults import always, once, watch
from tests.tools.waiting import TIMEOUT
from txstore.sessions import gate
from txstore.sessions.session import LockBlock


def test_a_commit_that_was_interrupted_when_its_file_had_just_been_made_is_made_the_next_time(repo):
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
    staging = store.mapping.staging
    real, interrupt = staging.part.leave, once(KeyboardInterrupt())

    def leave(attached: object) -> None:
        interrupt()
        real(attached)

    staging.part.leave = leave
    with pytest.raises(KeyboardInterrupt), store:
        store["key"] = b"1"
    del staging, store
    gc.collect()  # of the error
    repo.transaction(name="run").commit()
    assert repo.mapping()["key"] == b"1"


@pytest.mark.parametrize("encodes", [False, True])
def test_a_lock_is_kept_while_an_interrupted_operation_may_still_write(repo, store, encodes, pipeline):
    """zarr's threads go on with it: what they make of an older chunk must not come over what others then write.

    If they do write, the transaction has failed: nobody can tell whether they have written everything.
    """
    x = latches.create(store, n=8, chunks=8, value=0)
    store.commit()
    is_left = threading.Event()

    def interrupt_and_open() -> None:
        assert Latch.reached.wait(TIMEOUT)
        signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)
        is_left.wait(A_WHILE)
        Latch.open()

    def write_another_element() -> None:
        with store.lock("x", 1):
            chunk = np.frombuffer(store["x/c/0"], "<i8").copy()
            chunk[1] = 8
            store["x/c/0"] = chunk.tobytes()

    before = signal.signal(SIGNAL, always(KeyboardInterrupt))
    try:
        with latch(encodes=encodes):
            opener = Thread(interrupt_and_open)
            with pytest.raises(KeyboardInterrupt), store.lock("x", 0):
                x[0] = 7
            other = Thread(write_another_element)
            with suppress(txstore.TransactionStateError):
                other.result()
            is_left.set()
            opener.result()
        is_failed = store.mapping.lifecycle.state == "failed"
        assert pipeline == "fused" or not is_failed
        if is_failed:
            store.rollback()
        else:
            store.commit()
    finally:
        signal.signal(SIGNAL, before)
    assert latches.values(repo.mapping())[1] == (0 if is_failed else 8)


def test_a_operation_that_has_not_begun_when_its_lock_is_left_does_not_begin(repo, store):
    """As that of a call which was interrupted before zarr's loop came to it: others have the lock by then."""
    x = latches.create(store, n=8, chunks=8, value=0)
    store.commit()
    loop, may_go_on = zarr.core.sync._get_loop(), threading.Event()
    loop.call_soon_threadsafe(may_go_on.wait, TIMEOUT)
    try:
        with pytest.raises(ZeroDivisionError), store.lock("x", 0):
            operation = asyncio.run_coroutine_threadsafe(x.async_array.setitem(0, 7), loop)
            raise ZeroDivisionError
    finally:
        may_go_on.set()
    with pytest.raises(txstore.TransactionStateError, match="left before it began"):
        operation.result(TIMEOUT)
    with store.lock("x", 1):
        x[1] = 8
    store.commit()
    assert latches.values(repo.mapping())[:2] == [0, 8]


def test_a_lock_that_another_thread_leaves_is_in_nobodys_way(repo: txstore.Repository, store: txstore.TxStore) -> None:
    """As the collector does with one of an interrupted thread: that thread goes on."""
    x = latches.create(store, n=8, chunks=8, value=0)
    lock = store.lock("x", 0)
    lock.__enter__()
    Thread(lambda: lock.__exit__(None, None, None)).result()
    x[0] = 7
    with store.lock("x", 1):
        x[1] = 8
    store.commit()
    assert latches.values(repo.mapping())[:2] == [7, 8]


def test_a_lock_that_was_refused_is_not_left_to_the_collector(repo, store, before, monkeypatch):
    """An interrupt came where it was about to be given up: nobody else could commit until there was a collection."""
    latches.create(store, n=8, chunks=8, value=0)
    store.commit()
    before(LockBlock, "_give_up", once(KeyboardInterrupt()))
    monkeypatch.setattr(gate, "TIMEOUT", 0.0)
    is_refused = False
    gc.disable()
    try:
        store["key"] = b"1"
        store.mapping.lifecycle.fail(txstore.TransactionStateError("by a test", state="failed"))
        try:
            with store.lock("x", 0):
                pass
        except KeyboardInterrupt:
            is_refused = True
        Thread(store.rollback).result()
    finally:
        gc.enable()
    assert is_refused


def test_a_operation_that_outlives_its_lock_poisons_the_transaction(repo, store, monkeypatch):
    monkeypatch.setattr(gate, "PATIENCE", 0.0)
    x = latches.create(store, n=8, chunks=8, value=0)
    store.commit()

    def leave() -> None:
        with pytest.raises(ZeroDivisionError), store.lock("x", 0):
            context = contextvars.copy_context()  # as that of an interrupted call: its operation goes on
            operations.append(Thread(lambda: context.run(x.__setitem__, 0, 7)))
            assert Latch.reached.wait(TIMEOUT)
            raise ZeroDivisionError

    operations: list[Thread] = []
    with latch(encodes=True):
        leave()
        with pytest.raises(txstore.TransactionStateError, match="interrupted"):
            store["other"] = b"1"
    with pytest.raises(txstore.TransactionStateError):
        operations[0].result()
    store.rollback()
    x = zarr.open_array(store, path="x")
    with store.lock("x", 1):
        x[1] = 8
    store.commit()
    assert latches.values(repo.mapping())[:2] == [0, 8]

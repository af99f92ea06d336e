"""Operations beside commits of other threads: each is whole, and of one transaction. On both of zarr's pipelines.

Where a commit could split an operation, both are stopped there: the commit just before it takes what is staged, the
operation in its codec. What has to wait for the other then has not come to its own place after a while.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.threads.latches import A_WHILE, Latch, Thread, create, latch, values, writing
from tests.tools.waiting import TIMEOUT
from txstore.pipeline import TxCodecPipeline
from txstore.transactions.transaction import Transaction


class Stopped:
    """A commit that has waited for all that was under way, and has not yet taken what is staged."""

    def __init__(self, store: txstore.TxStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.store = store
        real = Transaction.commit

        def commit(transaction: Transaction, *arguments: Any, **named: Any) -> Any:
            if transaction is ours:
                self.reached.set()
                assert self.go_on.wait(TIMEOUT)
            return real(transaction, *arguments, **named)

        ours = store.mapping
        monkeypatch.setattr(Transaction, "commit", commit)
        self.thread = Thread(store.commit)
        assert self.reached.wait(TIMEOUT)

    def finish(self) -> None:
        self.go_on.set()
        self.thread.result()


@pytest.fixture
def stop_commit(store: txstore.TxStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Stopped]]:
    """Stage something, begin to commit it, and stop in the middle."""
    stopped: list[Stopped] = []

    def stop() -> Stopped:
        store["staged"] = b"1"
        stopped.append(Stopped(store, monkeypatch))
        return stopped[-1]

    yield stop
    Latch.open()
    for each in stopped:
        with suppress(KeyboardInterrupt):  # it was told to the test
            each.finish()


def increment(repo: txstore.Repository, where: int) -> None:
    """Increment an element in a transaction of its own, without zarr."""
    with repo.begin() as mapping:
        chunk = np.frombuffer(mapping["x/c/0"], "<i8").copy()
        chunk[where] += 1
        mapping["x/c/0"] = chunk.tobytes()


def committed(repo: txstore.Repository) -> list[int]:
    return values(repo.mapping())


# --- a value that was made from a read of an earlier base
def test_a_commit_does_not_come_between_the_read_and_the_write_of_a_chunk(repo, store, stop_commit):
    x = create(store, n=8, chunks=8, value=0)
    store.commit()
    other = txstore.Repository(repo.url)  # as another process would
    commit = stop_commit()
    with latch(encodes=True):
        operation = Thread(lambda: x.__setitem__(0, 7))
        Latch.reached.wait(A_WHILE)  # it has read the chunk, if it is not kept waiting
        increment(other, 4)
        commit.finish()
    operation.result()
    try:
        store.commit()
    except txstore.ConflictError:
        store.rollback()
        zarr.open_array(store, path="x")[0] = 7
        store.commit()
    assert committed(repo) == [7, 0, 0, 0, 1, 0, 0, 0]


def test_what_another_commits_while_a_chunk_is_written_is_a_conflict(repo, store):
    x = create(store, n=8, chunks=8, value=0)
    store.commit()
    with latch(encodes=True):
        operation = Thread(lambda: x.__setitem__(0, 7))
        assert Latch.reached.wait(TIMEOUT)
        store["staged"] = b"1"
        commit = Thread(store.commit)
        increment(txstore.Repository(repo.url), 4)
    operation.result()
    try:  # it waited for the operation, or comes after it
        commit.result()
        store.commit()
    except txstore.ConflictError:
        store.rollback()
        assert committed(repo) == [0, 0, 0, 0, 1, 0, 0, 0]
    else:  # our own pipeline knows which elements were meant
        assert isinstance(x.async_array.codec_pipeline, TxCodecPipeline)
        assert committed(repo) == [7, 0, 0, 0, 1, 0, 0, 0]


# --- operations of many chunks


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_operation_under_way_is_waited_for(repo: txstore.Repository, store: txstore.TxStore, end: str) -> None:
    x = create(store)
    store.commit()
    with latch(encodes=True, passes=8):
        operation = writing(store, x, 2)
        ending = Thread(getattr(store, end))
        ending.join(A_WHILE)
        assert ending.is_alive()
    operation.result()
    ending.result()
    expected = 2 if end == "commit" else 1
    assert set(committed(repo)) == {expected}
    assert set(np.unique(zarr.open_array(store, path="x")[:])) == {expected}
    assert store.staged_count == 0


def test_a_read_is_of_one_commit(repo, store, stop_commit):
    x = create(store)
    store.commit()
    repo.run(lambda other: zarr.open_array(other, path="x", mode="r+").__setitem__(slice(None), 2))
    commit = stop_commit()
    with latch(encodes=False):
        operation = Thread(lambda: x[:])
        Latch.reached.wait(A_WHILE)
        commit.finish()
    assert len(set(operation.result().tolist())) == 1
    assert set(x[:].tolist()) == {2}


def test_a_read_is_not_disturbed_by_the_rollback_of_what_has_failed(store: txstore.TxStore) -> None:
    x = create(store)
    store.commit()
    x[:] = 2
    store.mapping.lifecycle.fail(OSError("the disk was full"))  # type: ignore[union-attr]
    with latch(encodes=False):
        operation = Thread(lambda: x[:])
        assert Latch.reached.wait(TIMEOUT)
        rollback = Thread(store.rollback)
        rollback.join(A_WHILE)
    assert set(operation.result().tolist()) == {2}
    rollback.result()
    assert set(x[:].tolist()) == {1}


def test_metadata_and_chunks_of_an_append_are_in_one_commit(repo, store, stop_commit):
    x = create(store)
    store.commit()
    commit = stop_commit()
    with latch(encodes=True, passes=3):
        operation = Thread(lambda: x.append(np.full(8, 2)))
        Latch.reached.wait(A_WHILE)
        commit.finish()
        assert committed(repo) == [1] * 16
    operation.result()
    store.commit()
    assert committed(repo) == [1] * 16 + [2] * 8

"""`tests/transactions/test_late_writes.py`, on what `conftest.py` says; and writes that fail as uploads do."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import zarr

import txstore
from tests.system.remote.repositories import packs, paths, referred
from tests.tools.arrays import array
from tests.tools.inside import objects_of
from tests.transactions.test_late_writes import *
from tests.transactions.test_late_writes import nothing_arrives, sevens_first
from txstore import TransactionStateError
from txstore.format import names
from txstore.segments import object_writer

Failing = Callable[[], contextlib.AbstractContextManager[None]]


@pytest.fixture
def failing(repo: txstore.Repository, monkeypatch: pytest.MonkeyPatch) -> Failing:
    """Everything staged is uploaded, in small packs; inside the context that of the sevens fails, and others wait."""
    monkeypatch.setattr(object_writer, "INLINE_SIZE", 0)
    monkeypatch.setattr(object_writer, "OBJECT_SIZE", 600 << 10)
    objects = objects_of(repo)
    put = objects.put

    def put_but_sevens(path: str, parts: Sequence[Any]) -> None:
        if any(bytes(part[:1]) == b"\x07" for part in parts if len(part) > 4096):
            raise OSError("the bucket is gone")
        time.sleep(0.02)
        put(path, parts)

    @contextlib.contextmanager
    def failing() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(objects, "put", put_but_sevens)
            yield

    return failing


def assert_nothing_is_left(repo: txstore.Repository, store: txstore.TxStore) -> None:
    assert nothing_arrives(store)
    assert packs(repo) == referred(repo)
    assert not [path for path in paths(repo) if not path.endswith(names.LEASE)]


def test_late_writes_after_a_failed_upload_are_refused(repo, store, failing):
    data = sevens_first()
    z = zarr.create_array(store, name="x", shape=data.shape, chunks=(1, data.shape[1]), dtype="u1", compressors=None)
    store.commit()
    with failing():
        with contextlib.suppress(OSError, TransactionStateError):  # if it wrote anything after that
            z[:] = data
        with pytest.raises((OSError, TransactionStateError), match="the bucket is gone"):
            store.commit()
        store.rollback()
        assert_nothing_is_left(repo, store)
    assert repo.head().version == 0
    z[:] = data
    store.commit()
    assert (array(repo.snapshot(), mode="r")[:] == data).all()


def test_a_failed_upload_fails_the_writes_that_follow(repo: txstore.Repository, failing: Failing) -> None:
    store = txstore.TxStore(repo)
    with failing():
        store["first"] = b"\x07" * (1 << 19)
        with pytest.raises(OSError, match="the bucket is gone"):
            for number in range(1000):
                store[f"{number}"] = bytes(1 << 19)
        with pytest.raises(TransactionStateError, match="the bucket is gone"):
            store["another"] = b"1"
        with pytest.raises(TransactionStateError, match="the bucket is gone"):
            store.commit()
        store.rollback()
        assert_nothing_is_left(repo, store)


def test_a_failed_upload_fails_the_commit(repo: txstore.Repository, failing: Failing) -> None:
    store = txstore.TxStore(repo)
    with failing():
        store["first"] = b"\x07" * (1 << 19)
        with pytest.raises(OSError, match="the bucket is gone"):
            store.commit()
    with pytest.raises(OSError, match="the bucket is gone"):  # never as if what has failed had been stored
        store.commit()
    store.rollback()
    assert_nothing_is_left(repo, store)
    store["first"] = b"\x07" * (1 << 19)
    store.commit()
    assert len(repo.mapping()["first"]) == 1 << 19

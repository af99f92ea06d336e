"""I8: work of a block that failed, or of a process that was killed, is gone from the owner's view, and can be redone.

By the owner, or by anybody else. Until all of it was written again, the commit is refused.
"""

import threading

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.members import committed, enter, get, locked, members
from tests.tools.workers import TIMEOUT
from txstore.store import TxStore
from txstore.transactions import staged_keys

pytestmark = pytest.mark.long

Operation = tuple[str, int, int, int]  # "set" or "add", from, to, the value


def do(store: TxStore, operation: Operation) -> None:
    kind, start, stop, value = operation
    z = zarr.open_array(store, path="x", mode="r+")
    z[start:stop] = z[start:stop] + value if kind == "add" else value


def in_block(store: TxStore, *operations: Operation) -> None:
    with store:
        for operation in operations:
            do(store, operation)


def failing(store: TxStore, *operations: Operation) -> None:
    with pytest.raises(RuntimeError), store:
        for operation in operations:
            do(store, operation)
        raise RuntimeError


def leave(store: TxStore) -> None:
    store.__exit__(RuntimeError, RuntimeError(), None)


def shown(store: TxStore) -> list[int]:
    return zarr.open_array(store, path="x", mode="r")[:8].tolist()


def refused(store: TxStore, *keys: str) -> None:
    with pytest.raises(txstore.ParticipantLostError) as caught:
        store.commit()
    assert caught.value.keys == keys


def add_locked(store: TxStore) -> None:
    with store.lock("x", np.s_[0:2]):
        do(store, ("add", 0, 2, 1))


@pytest.mark.parametrize("who", ["the owner", "one that had seen it", "one that had not"])
def test_what_a_killed_block_has_added_is_not_added_twice(repo, store, who):
    """Nobody reads it: also who had seen it when its process lived."""
    with members(store, 2) as (worker, other):
        worker.do(enter)
        worker.do(add_locked)
        if who == "one that had seen it":
            assert other.do(locked, "x", np.s_[4:5], shown)[:2] == [1, 1]
        worker.kill()
        if who == "the owner":
            add_locked(store)
        else:
            other.do(add_locked)
            other.leave()
    store.commit()
    assert committed(repo)[:4] == [1, 1, 0, 0]


def test_what_the_owner_has_read_of_it_is_not_written_as_if_it_was_not_there(repo, store):
    with members(store, 1) as (worker,):
        worker.do(enter)
        worker.do(do, ("set", 0, 4, 1))
        z = zarr.open_array(store, path="x", mode="r+")
        seen = z[0:4]
        worker.do(leave)
        assert z[4:8].tolist() == [0] * 4  # it learns of the end
        z[0:4] = seen + 1
        with pytest.raises(txstore.ConflictError):
            store.commit()


def create(store: TxStore, path: str, value: int, fails: bool = False) -> None:
    with store:
        zarr.create_array(store, name=path, shape=(8,), chunks=(4,), dtype="i8")[:] = value
        if fails:
            raise RuntimeError


def delete(store: TxStore, path: str) -> None:
    with store:
        del zarr.open_group(store, mode="r+")[path]
        raise RuntimeError


def append(store: TxStore, value: int) -> None:
    with store:
        zarr.open_array(store, path="x", mode="r+").append(np.full(4, value, "i8"))
        raise RuntimeError


@pytest.mark.parametrize("early", [False, True])
def test_nodes_that_a_failed_block_has_created_deleted_or_changed(repo, store, early):
    with repo.transaction() as before:
        zarr.create_array(before, name="g/y", data=np.ones(4, "i8"))
    store = repo.transaction()
    group = zarr.open_group(store, mode="r+")
    x = zarr.open_array(store, path="x", mode="r+")
    with members(store, 1) as (worker,):
        for what, *arguments in ((create, "new", 1, True), (delete, "g"), (append, 5)):
            with pytest.raises(RuntimeError):
                worker.do(what, *arguments)
    if not early:
        with pytest.raises(txstore.ParticipantLostError):
            store.commit()
    assert sorted(group) == ["g", "x"]
    assert group["g/y"][:].tolist() == [1] * 4
    assert zarr.open_array(store, path="x").shape == (32,)
    zarr.create_array(store, name="new", shape=(8,), chunks=(4,), dtype="i8")[:] = 2
    with pytest.raises(txstore.ParticipantLostError):
        store.commit()
    del group["g"]
    with pytest.raises(txstore.ParticipantLostError) as caught:
        store.commit()
    assert caught.value.keys == ("x/c/8", "x/zarr.json")
    x = zarr.open_array(store, path="x", mode="r+")
    x.append(np.full(4, 6, "i8"))
    store.commit()
    assert committed(repo, "new") == [2] * 8
    assert committed(repo) == [0] * 32 + [6] * 4
    assert "g/y/zarr.json" not in repo.mapping()


def put_many(store: TxStore, count: int, fails: bool = False) -> None:
    with store:
        for number in range(count):
            store[f"many/{number}"] = b"worker"
        if fails:
            raise RuntimeError


@pytest.mark.parametrize("sealed_from", [10, 1000])
def test_refs_in_files_and_in_memory(repo, store, monkeypatch, sealed_from):
    monkeypatch.setattr(staged_keys, "SEALED_FROM", sealed_from)
    store = repo.transaction()
    for number in range(0, 200, 2):
        store[f"own/{number}"] = b"own"
    with members(store, 2) as (worker, other):
        other.do(put_many, 30)
        with pytest.raises(RuntimeError):
            worker.do(put_many, 100, True)
        with pytest.raises(txstore.ParticipantLostError):
            store.commit()
    assert {key: store[key] for key in store if key.startswith("own/")} == {
        f"own/{number}": b"own" for number in range(0, 200, 2)
    }
    assert sorted(key for key in store if key.startswith("many/")) == sorted(f"many/{number}" for number in range(30))
    for number in range(100):
        assert get(store, f"many/{number}") == (b"worker" if number < 30 else None)
        store[f"many/{number}"] = b"again"
    store.commit()
    found = repo.mapping()
    assert all(found[f"many/{number}"] == b"again" for number in range(100))
    assert all(found[f"own/{number}"] == b"own" for number in range(0, 200, 2))


def test_threads_of_the_owner_see_all_else_meanwhile(repo, store):
    """What the living have staged, and the owner, is there at each time while aborted work is left out."""
    with members(store, 2) as (worker, other):
        other.do(in_block, ("set", 4, 8, 3))
        wrong: list[list[int]] = []
        is_over = threading.Event()

        def read_and_write() -> None:
            z = zarr.open_array(store, path="x", mode="r+")
            value = 0
            while not is_over.is_set():
                value += 1
                z[8:10] = value
                found = z[4:12].tolist()
                if found != [3] * 4 + [value] * 2 + [0] * 2:
                    wrong.append(found)

        thread = threading.Thread(target=read_and_write)
        thread.start()
        for _ in range(5):
            worker.do(failing, ("set", 0, 4, 9), ("set", 10, 12, 0))
        is_over.set()
        thread.join(TIMEOUT)
        assert not wrong
        with pytest.raises(txstore.ParticipantLostError) as caught:
            store.commit()
        assert caught.value.keys in (("x/c/0", "x/c/2"), ("x/c/0",))
        do(store, ("set", 0, 4, 1))
        do(store, ("set", 10, 12, 1))
        try:
            store.commit()
        except txstore.ConflictError as error:  # the thread has written on top of a block before that was aborted
            refused_keys = error.keys
            store.rollback()
        else:
            refused_keys = ()
            assert committed(repo)[:8] == [1] * 4 + [3] * 4
    assert refused_keys in ((), ("x/c/2",))

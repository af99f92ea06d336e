"""I8: work of a block that failed, or of a process that was killed, is gone from the owner's view, and can be redone.

By the owner, or by anybody else. Until all of it was written again, the commit is refused.
"""

import os
import pickle
import random
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.members import Member, committed, enter, get, join, locked, members
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


def lose(worker: Member, how: str, *operations: Operation) -> None:
    """Do something in a block that fails, or whose process is killed."""
    if how == "fails":
        worker.do(failing, *operations)
    else:
        worker.do(enter)
        for operation in operations:
            worker.do(do, operation)
        worker.kill()


def shown(store: TxStore) -> list[int]:
    return zarr.open_array(store, path="x", mode="r")[:8].tolist()


def refused(store: TxStore, *keys: str) -> None:
    with pytest.raises(txstore.ParticipantLostError) as caught:
        store.commit()
    assert caught.value.keys == keys


@pytest.mark.parametrize("again", [("add", 0, 4, 1), ("set", 0, 4, 7), ("set", 0, 2, 7)])
@pytest.mark.parametrize("how", ["fails", "fails early", "is killed"])
def test_the_owner_does_it_again(repo, store, how, again):
    do(store, ("set", 0, 1, 1))
    do(store, ("set", 4, 8, 5))
    with members(store, 1) as (worker,):
        lose(worker, how.split()[0], ("add", 0, 2, 1) if again[2] == 2 else ("add", 0, 4, 1))
    if how != "fails early":
        refused(store, "x/c/0")
    assert shown(store) == [1, 0, 0, 0, 5, 5, 5, 5]
    do(store, again)
    expected = shown(store)
    store.commit()
    assert committed(repo)[:8] == expected == [2, 1, 1, 1, 5, 5, 5, 5] if again[0] == "add" else expected


def add_locked(store: TxStore) -> None:
    with store.lock("x", np.s_[0:2]):
        do(store, ("add", 0, 2, 1))


def set_attributes(store: TxStore, attributes: dict[str, int]) -> None:
    with store.lock("x", txstore.METADATA):
        zarr.open_array(store, path="x").attrs.update(attributes)


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


def test_what_was_added_to_a_block_that_is_killed_then_is_a_conflict(repo, store):
    with members(store, 2) as (worker, other):
        worker.do(enter)
        worker.do(add_locked)
        other.do(add_locked)
        worker.kill()
        other.leave()
        with pytest.raises(txstore.ConflictError, match="x/c/0"):
            store.commit()


@pytest.mark.parametrize("lock", [True, False])
def test_attributes_of_a_killed_block_are_missed_until_they_are_set_again(repo, store, lock):
    with members(store, 2) as (worker, other):
        worker.do(enter)
        worker.do(set_attributes, {"a": 1, "b": 2})
        worker.kill()
        other.do(set_attributes if lock else set_unlocked, {"c": 3, "a": 4})
        refused(store, "x/zarr.json")
        other.do(set_attributes, {"b": 5})
        other.leave()
    store.commit()
    assert dict(zarr.open_array(repo.snapshot(), path="x").attrs) == {"a": 4, "b": 5, "c": 3}


def set_unlocked(store: TxStore, attributes: dict[str, int]) -> None:
    zarr.open_array(store, path="x").attrs.update(attributes)


@pytest.mark.parametrize("lost", [("set", 0, 4, 2), ("add", 0, 3, 1)])
def test_until_all_of_it_is_written_again(repo, store, lost):
    """By halves, some of it by the owner, and some beside it, which counts for nothing."""
    with members(store, 2) as (worker, other):
        lose(worker, "fails", lost, ("set", 4, 5, 9))
        refused(store, "x/c/0", "x/c/1")
        do(store, ("set", 3, 4, 3))
        do(store, ("set", 0, 2, 3))
        refused(store, "x/c/0", "x/c/1")
        assert shown(store) == [3, 3, 0, 3, 0, 0, 0, 0]
        do(store, ("set", 2, 3, 4))
        refused(store, "x/c/1")
        do(store, ("set", 5, 8, 6))
        refused(store, "x/c/1")
        other.do(in_block, ("add", 4, 5, 7))
        store.commit()
    assert committed(repo)[:8] == [3, 3, 4, 3, 7, 6, 6, 6]


@pytest.mark.parametrize("then", [("set", 2, 4, 9), ("set", 0, 4, 9), ("set", 0, 1, 9)])
def test_who_writes_on_without_having_known_has_not_done_it_again(repo, store, then):
    """The lost writer had built on what a participant wrote before; nobody can tell what that has written since."""
    with members(store, 1) as (first,):
        first.do(do, ("set", 0, 4, 7))
        worker = Member(store)
        lose(worker, "fails", ("add", 0, 2, 1))
        worker.kill()
        first.do(do, then)
        refused(store, "x/c/0")
        do(store, ("add", 0, 2, 1))
        store.commit()
    expected = [7] * 4
    expected[then[1] : then[2]] = [9] * (then[2] - then[1])
    assert committed(repo)[:4] == [expected[0] + 1, expected[1] + 1, *expected[2:]]


def test_the_same_worker_tries_again_what_it_had_written_before(repo, store):
    """Dask may give the task to a worker on whose work the one that failed had built."""
    with members(store, 2) as (worker, other):
        worker.do(in_block, ("set", 0, 2, 1))
        lose(other, "fails", ("add", 0, 4, 1))
        worker.do(in_block, ("add", 0, 4, 1))
        store.commit()
    assert committed(repo)[:4] == [2, 2, 1, 1]


@pytest.mark.parametrize("beside", [("set", 0, 1, 9), ("set", 2, 4, 9)])
def test_what_the_worker_had_done_before_counts_and_the_rest_is_lost(repo, store, beside):
    """Its first block wrote another part of the chunk, or the same."""
    with members(store, 2) as (worker, other):
        worker.do(in_block, ("set", 0, 2, 1))
        lose(worker, "fails", ("add", 1, 2, 1))
        other.do(in_block, beside)
        refused(store, "x/c/0")
        other.do(in_block, ("add", 1, 2, 1))
        store.commit()
    expected = [1, 1, 0, 0]
    expected[beside[1] : beside[2]] = [9] * (beside[2] - beside[1])
    expected[1] += 1
    assert committed(repo)[:4] == expected


def die_in_the_middle(store: TxStore, operation: Operation) -> None:
    """Die when a part of the frame is written."""
    from txstore.storage import local as storage

    def write_half(descriptor: int, offset: int, parts: Any) -> None:
        content = b"".join(parts)
        os.pwrite(descriptor, content[: len(content) // 2], offset)
        os.kill(os.getpid(), signal.SIGKILL)

    array = zarr.open_array(store, path="big", mode="r+")
    storage._write_fully = write_half
    array[operation[1] : operation[2]] = operation[3]


def test_a_torn_part_is_missed_until_it_was_written_again(repo):
    """Another part of the chunk, which the owner has written meanwhile, is not it."""
    with repo.transaction() as store:
        zarr.create_array(store, name="big", shape=(1 << 18,), chunks=(1 << 18,), dtype="i8", compressors=None)
    store = repo.transaction()
    big = zarr.open_array(store, path="big", mode="r+")
    with members(store, 1, joined=False) as (worker,):
        worker.do(join)
        worker.do(get, "big/zarr.json")
        big[100:200] = 5
        worker.begin(die_in_the_middle, ("set", 0, 10, 1))
        worker.process.join(TIMEOUT)
        assert worker.process.exitcode == -signal.SIGKILL
    refused(store, "big/c/0")
    big[0:10] = 2
    store.commit()
    assert committed(repo, "big")[:12] == [2] * 10 + [0, 0]


def test_what_the_owner_built_on_it_before_it_knew_is_a_conflict(repo, store):
    with members(store, 1) as (worker,):
        worker.do(enter)
        worker.do(do, ("set", 0, 4, 1))
        do(store, ("add", 0, 2, 1))
        worker.do(leave)
        with pytest.raises(txstore.ConflictError):
            store.commit()


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


class History:
    """One transaction of the owner and two workers, which get it as pickles, as Dask's do. Blocks come one by one."""

    def __init__(self, repo: txstore.Repository, workers: list[Member], rng: random.Random) -> None:
        with repo.transaction() as store:
            zarr.create_array(store, name="x", shape=(8,), chunks=(4,), dtype="i8")[:] = rng.choice([0, 1])
        self.repo, self.workers, self.rng = repo, workers, rng
        self.store = repo.transaction()
        self.state = committed(repo)
        self.owed: list[set[int]] = []  # the elements that each lost block wrote, and nobody since
        self.told: list[Any] = []

    def operation(self) -> Operation:
        start = self.rng.randrange(8)
        start, stop = self.rng.choice([(start, self.rng.randrange(start, 8) + 1), (0, 4), (4, 8), (0, 8)])
        return self.rng.choice(["set", "add"]), start, stop, self.rng.choice([1, 2])

    def after(self, state: list[int], operation: Operation) -> list[int]:
        kind, start, stop, value = operation
        there = [each + value if kind == "add" else value for each in state[start:stop]]
        return state[:start] + there + state[stop:]

    def check(self) -> None:
        assert shown(self.store) == self.state, self.told

    def own(self, operation: Operation) -> None:
        self.check()  # it reads what it changes
        do(self.store, operation)
        self.count(operation)

    def count(self, *operations: Operation) -> None:
        for operation in operations:
            self.state = self.after(self.state, operation)
            self.owed = [left for owed in self.owed if (left := owed - set(range(*operation[1:3])))]

    def block(self) -> None:
        number, how = self.rng.randrange(2), self.rng.choice(["ends", "fails", "fails", "is killed"])
        operations = [self.operation() for _ in range(self.rng.randrange(1, 4))]
        self.told.append((number, how, operations))
        sent, looks = pickle.dumps(self.store), self.rng.random() < 0.3
        self.workers[number].do(open_block, sent)
        for operation in operations:
            self.workers[number].do(in_open_block, operation)
            if looks:
                self.store.changes()
        if how == "is killed":
            self.workers[number].kill()
            self.workers[number] = Member(None)
        else:
            self.workers[number].do(close_block, how == "ends")
        if how == "ends":
            self.count(*operations)
        else:
            self.owed.append({each for operation in operations for each in range(*operation[1:3])})
        if how == "is killed":
            self.commit()  # the owner learns of it here

    def commit(self) -> bool:
        """Commit if nothing is owed; else it has to be refused for the right keys."""
        keys = sorted({f"x/c/{element // 4}" for owed in self.owed for element in owed})
        self.told.append(("commit", keys))
        if keys:
            with pytest.raises(txstore.ParticipantLostError) as caught:
                self.store.commit()
            assert sorted(caught.value.keys) == keys, self.told
            self.check()
            return False
        self.store.commit()
        assert committed(self.repo) == self.state, self.told
        return True

    def run(self) -> None:
        for _ in range(self.rng.randrange(3, 9)):
            if self.rng.random() < 0.4:
                operation = self.operation()
                self.told.append(operation)
                self.own(operation)
            else:
                self.block()
        while not self.commit():
            left = sorted(set().union(*self.owed))
            for element in self.rng.sample(left, self.rng.randrange(1, len(left) + 1)):
                operation = (self.rng.choice(["set", "add"]), element, element + 1, 1)
                self.told.append(operation)
                if self.rng.random() < 0.5:
                    self.own(operation)
                    continue
                worker = self.rng.choice(self.workers)
                worker.do(open_block, pickle.dumps(self.store))
                worker.do(in_open_block, operation)
                worker.do(close_block, True)
                self.count(operation)


_open: list[TxStore] = []  # in a worker


def open_block(_: None, sent: bytes) -> None:
    _open.append(pickle.loads(sent))
    _open[0].__enter__()


def in_open_block(_: None, operation: Operation) -> None:
    zarr.open_array(_open[0], path="x", mode="r")[:]
    do(_open[0], operation)


def close_block(_: None, is_whole: bool) -> None:
    error = None if is_whole else RuntimeError()
    _open.pop().__exit__(None if is_whole else RuntimeError, error, None)


@pytest.fixture(scope="module")
def workers() -> Iterator[list[Member]]:
    found = [Member(None) for _ in range(2)]
    yield found
    for worker in found:
        worker.kill()


@pytest.mark.parametrize("seed", range(int(os.environ.get("TXSTORE_HISTORIES", "20"))))
def test_histories(repo, workers, seed):
    """In the end all that is owed was done again, and the commit is just what was written; before, it is refused."""
    History(repo, workers, random.Random(seed)).run()

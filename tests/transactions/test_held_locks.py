"""What a transaction holds of the locks: selections are resolved on the newest commit, locked, and resolved again."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.waiting import wait_until
from txstore.errors import LockTimeoutError
from txstore.transactions.held_locks import TransactionLocks
from txstore.transactions.regions import APPEND

DEADLINE = 30


class TableInMemory:
    """Locks among the threads of a test. Records every call that took or gave up something."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.held: dict[str, OwnerInMemory] = {}
        self.dirty: set[str] = set()
        self.calls: list[tuple[str, frozenset[str]]] = []
        self.lost: list[str] = []
        self.owners = 0
        self.waiting = 0

    def owner(self) -> OwnerInMemory:
        self.owners += 1
        return OwnerInMemory(self)


class OwnerInMemory:
    def __init__(self, table: TableInMemory) -> None:
        self.table = table
        self.counts: Counter[str] = Counter()
        self.parked = 1000 + table.owners
        self.left: dict[str, int] = {}  # parked keys, and under which word
        self.swept = False

    def acquire(self, keys, timeout=None, siblings=()):
        with self.table.changed:
            deadline = time.monotonic() + (DEADLINE if timeout is None else timeout)
            while busy := [key for key in keys if self.table.held.get(key, self) is not self]:
                if time.monotonic() >= deadline:
                    raise LockTimeoutError(busy, "another transaction of the test")
                self.table.waiting += 1
                self.table.changed.wait(deadline - time.monotonic())
                self.table.waiting -= 1
            self.table.held.update(dict.fromkeys(keys, self))
            self.counts.update(keys)
            for key in keys:
                self.left.pop(key, None)
            self.table.calls.append(("acquire", frozenset(keys)))
            dirty = [key for key in keys if key in self.table.dirty]
            self.table.dirty -= set(dirty)
            return dirty

    def release(self, keys):
        with self.table.changed:
            for key in keys:
                assert self.counts[key] > 0, f"{key} is released more often than it was acquired"
                self.counts[key] -= 1
                if not self.counts[key]:
                    del self.table.held[key]
            self.table.calls.append(("release", frozenset(keys)))
            self.table.changed.notify_all()

    def park(self, keys, to=None):
        self.left |= dict.fromkeys(keys, self.parked if to is None else to)

    def fence(self):
        if self.table.lost:
            raise txstore.errors.LocksLostError(self.table.lost)

    def close(self, sweep=False):
        self.swept = sweep
        with self.table.changed:
            for key in [key for key, owner in self.table.held.items() if owner is self]:
                del self.table.held[key]
            self.counts.clear()
            self.table.changed.notify_all()


@pytest.fixture
def table():
    table = TableInMemory()
    yield table
    assert table.held == {}, "locks are left behind"


@pytest.fixture
def repo(open_repo):
    repo = open_repo(durability="none")
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.ones(10), chunks=(4,))
    return repo


def open_x(store):
    return zarr.open_array(store, path="x", mode="r+")


def append(repo, rows: int) -> None:
    with repo.transaction() as store:
        open_x(store).append(np.ones(rows))


def begin(table, repo, lock, timeout=0.0, newest=None):
    return TransactionLocks.at_newest(table, newest or repo.mapping, lock, timeout)


# --- at the newest commit


def test_the_base_is_taken_when_the_locks_are_held(table, repo):
    """A chunk that somebody wrote while its lock was waited for is in the base."""
    other = TransactionLocks(table)
    other.acquire(["x/c/0"], 0)
    with ThreadPoolExecutor(1) as pool:
        begun = pool.submit(begin, table, repo, {"x": 0}, DEADLINE)
        wait_until(lambda: table.waiting)
        with repo.transaction() as store:
            open_x(store)[0] = 7
        other.close()
        locks, base = begun.result(DEADLINE)
    assert base.commit == repo.head()
    locks.close()


def test_an_array_that_grew_before_it_was_locked(table, repo):
    """The locks of the old end are of no use, those of the new one are free: they are taken too."""
    growing = iter([lambda: None, lambda: append(repo, 4), lambda: None])

    def newest():
        next(growing, lambda: None)()
        return repo.mapping()

    locks, base = begin(table, repo, {"x": APPEND}, newest=newest)
    assert base.commit == repo.head()
    assert table.calls == [("acquire", {"x/zarr.json", "x/c/2"}), ("acquire", {"x/c/3"})]
    locks.close()


def test_an_array_that_grows_again_and_again(table, repo):
    """Each time until the locks fit the base."""
    growing = [4, 4, 4]

    def newest():
        if growing and table.calls:
            append(repo, growing.pop())
        return repo.mapping()

    locks, base = begin(table, repo, {"x": ...}, newest=newest)
    assert base.commit == repo.head()
    assert set(table.held) == {f"x/c/{i}" for i in range(6)}
    locks.close()


def test_what_is_needed_in_addition_is_not_waited_for_with_locks_held(table, repo):
    """To wait for more while holding some could be waiting for each other: all are given up first."""
    other = TransactionLocks(table)
    other.acquire(["x/c/3"], 0)
    held_while_waiting = []

    def newest():
        if len(table.calls) == 2 and not held_while_waiting:
            append(repo, 4)
            held_while_waiting.append(None)
        return repo.mapping()

    with ThreadPoolExecutor(1) as pool:
        begun = pool.submit(begin, table, repo, {"x": ...}, DEADLINE, newest)
        wait_until(lambda: table.waiting)
        with table.changed:
            assert set(table.held) == {"x/c/3"}
        other.close()
        locks, base = begun.result(DEADLINE)
    assert base.commit == repo.head()
    assert set(table.held) == {f"x/c/{i}" for i in range(4)}
    locks.close()


def test_an_array_that_was_recoded_before_it_was_locked(table, repo):
    def recode():
        with repo.transaction() as store:
            zarr.create_array(store, name="x", data=np.ones(10), chunks=(2,), overwrite=True)

    steps = iter([lambda: None, recode])

    def newest():
        next(steps, lambda: None)()
        return repo.mapping()

    locks, _ = begin(table, repo, {"x": np.s_[6:]}, newest=newest)
    assert set(table.held) >= {"x/c/3", "x/c/4"}
    locks.close()


def test_an_array_that_was_deleted_before_it_was_locked(table, repo):
    def newest():
        if table.calls:
            with repo.transaction() as store:
                del zarr.open_group(store, mode="r+")["x"]
        return repo.mapping()

    with pytest.raises(txstore.errors.NodeNotFoundError):
        begin(table, repo, {"x": 0}, newest=newest)


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_the_deadline_is_for_all_together(table, repo, timeout):
    """An array that always has just grown into a chunk that somebody else holds ends in a timeout, too."""
    other = TransactionLocks(table)

    def newest():
        if table.held:
            append(repo, 4)
            last = zarr.open_array(repo.snapshot(), path="x", mode="r").shape[0] // 4
            other.acquire([f"x/c/{last}"], 0)
        return repo.mapping()

    with pytest.raises(LockTimeoutError) as caught:
        begin(table, repo, {"x": ...}, timeout, newest)
    assert caught.value.keys
    other.close()


# --- what is held


def test_whoever_shares_leaves_what_it_locked_to_its_siblings(table, repo):
    locks, _ = begin(table, repo, {"x": np.s_[0:5]})
    own = table.held["x/c/0"]
    assert (locks.parked, own.left) == (own.parked, {})
    locks.share()
    assert own.left == {"x/c/0": own.parked, "x/c/1": own.parked}
    locks.acquire(["x/c/0"], 0)
    locks.park(["x/c/0"], 77)
    assert own.left == {"x/c/0": 77, "x/c/1": own.parked}
    locks.close()
    assert own.swept


def test_the_fence(table):
    locks = TransactionLocks(table)
    locks.fence()
    locks.acquire(["a"], 0)
    locks.fence()
    table.lost = ["a"]
    with pytest.raises(txstore.ConflictError, match="'a'"):
        locks.fence()
    locks.close()

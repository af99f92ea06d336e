"""The end of a transaction of several processes, whenever and however it comes: everything is published, or nothing."""

import os
import signal
from contextlib import ExitStack
from typing import Any

import pytest

import txstore
from tests.tools.faults import watch
from tests.tools.members import get, members, put
from tests.tools.workers import QUICK, SPAWN, TIMEOUT
from txstore.store import TxStore

pytestmark = pytest.mark.long


def stage_until_refused(store: TxStore, number: int, pipe: Any) -> None:
    staged = 0
    try:
        for i in range(10_000_000):
            store[f"{number}/{i}"] = b"%d" % i
            staged = i + 1
            if i == 20:
                pipe.send("under way")
    except txstore.TransactionStateError as error:
        pipe.send((staged, error.state, str(error)))


def writers(store: TxStore, count: int, stack: ExitStack) -> list[Any]:
    pipes = []
    for number in range(count):
        mine, theirs = QUICK.Pipe(duplex=False)
        process = QUICK.Process(target=stage_until_refused, args=(store, number, theirs), daemon=True)
        process.start()
        stack.callback(process.join, TIMEOUT)
        stack.callback(process.kill)
        pipes.append(mine)
    for pipe in pipes:
        assert pipe.poll(TIMEOUT)
        pipe.recv()
    return pipes


def test_a_commit_while_children_write(repo, store):
    with ExitStack() as stack:
        pipes = writers(store, 2, stack)
        store.commit()
        found = repo.mapping()
        for number, pipe in enumerate(pipes):
            assert pipe.poll(TIMEOUT)
            staged, state, _ = pipe.recv()
            assert state in ("committing", "ended")
            keys = list(found.keys_below(str(number)))
            # Of the one that was refused, it is not said; all before it are there, and none after it.
            assert staged <= len(keys) <= staged + 1
            assert all(found[f"{number}/{i}"] == b"%d" % i for i in range(len(keys)))
    assert repo.verify().faults == []


@pytest.mark.parametrize("call", ["file.sync", "lock", "link", "sync_file"])
def test_what_comes_during_the_commit_is_not_a_part_of_it(repo, call):
    """A frame that is appended after the seal must not get into the run: it lies behind what the header says counts."""
    with repo.transaction() as store:
        store["a"] = b"1"
    watched = watch(repo)
    store = repo.transaction()
    store["owner"] = bytes(2 << 20)
    with members(store, 1) as (worker,):
        worker.do(put, "early", b"1")

        def write(*_: object) -> None:
            watched.before.clear()
            with pytest.raises(txstore.TransactionStateError):
                worker.do(put, "late", b"2")
            assert get(store, "late") is None

        def sealed(*_: object) -> None:
            watched.after.clear()
            watched.before[call] = write

        watched.after["rename_noreplace"] = sealed
        store.commit()
    assert sorted(repo.mapping()) == ["a", "early", "owner"]
    assert repo.verify().faults == []


def test_who_ends_because_the_commit_has_refused_it_is_not_lost(repo, store):
    watched = watch(repo)
    store = repo.transaction()
    with members(store, 1) as (worker,):
        worker.do(put, "early", b"1")

        def refuse(*_: object) -> None:
            watched.after.clear()
            with pytest.raises(txstore.TransactionStateError, match="is being committed"):
                worker.do(put, "late", b"1")
            worker.leave()

        watched.after["rename_noreplace"] = refuse
        store.commit()
    assert "early" in repo.mapping()  # and the other may be: it was appended, and then refused


def test_a_stopped_child_is_neither_waited_for_nor_lost(repo, store):
    with members(store, 1) as (worker,):
        worker.do(put, "before", b"1")
        os.kill(worker.process.pid, signal.SIGSTOP)
        try:
            worker.begin(put, "after", b"2")
            store.commit()
        finally:
            os.kill(worker.process.pid, signal.SIGCONT)
        with pytest.raises(txstore.TransactionStateError, match="has ended"):
            worker.answer()
        assert get(repo.snapshot(), "before") == b"1"
        assert get(repo.snapshot(), "after") is None


# --- the owner dies
def own(url: str, pipe: Any) -> None:
    store = txstore.Repository(url).transaction()
    store["owner"] = b"1"
    pipe.send(store)
    pipe.recv()


def test_a_child_that_outlives_its_owner(repo, store):
    mine, theirs = SPAWN.Pipe()
    owner = SPAWN.Process(target=own, args=(repo.url, theirs), daemon=True)
    owner.start()
    assert mine.poll(TIMEOUT)
    inherited = mine.recv()
    inherited["child"] = b"1"
    assert inherited["owner"] == b"1"
    with members(inherited, 1) as (sibling,):
        sibling.do(put, "sibling", b"1")
        owner.kill()
        owner.join(TIMEOUT)
        with pytest.raises(txstore.TransactionStateError, match="began this transaction has died"):
            sibling.do(put, "late", b"1")
    with pytest.raises(txstore.TransactionStateError, match="began this transaction has died"):
        inherited["late"] = b"1"
    assert len(list(repo.log())) == 1
    store["new"] = b"1"
    store.commit()
    assert repo.mapping()["new"] == b"1"

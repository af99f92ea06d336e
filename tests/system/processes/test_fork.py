"""Stores, snapshots and transactions that were there before a fork work in both processes afterwards."""

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zarr

import txstore
from tests.tools.members import committed, fill, get, seal
from tests.tools.steps import forked, status_of
from tests.tools.workers import TIMEOUT
from txstore import processes
from txstore.store import TxStore

pytestmark = [pytest.mark.long, pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")]


def in_child(function: Callable[..., object], *arguments: Any) -> None:
    """Run a function in a forked child, and wait until it has ended well."""
    with forked(function, *arguments) as child:
        assert status_of(child) == 0


def staged(repo: txstore.Repository) -> list[str]:
    return os.listdir(Path(repo.url, ".staging"))


def test_a_child_stages_into_the_transaction_that_it_inherits(repo, store):
    def work() -> None:
        fill(store, "x", 0, 8, 1)
        assert zarr.open_array(store, path="x")[:].tolist() == [1] * 8 + [0] * 24
        seal(store)

    store["owner"] = b"1"
    in_child(work)
    assert get(store, "x/c/0") is not None
    store.commit()
    assert committed(repo)[:9] == [1] * 8 + [0]


def test_leaving_the_parents_block_in_a_child_ends_nothing(repo, store):
    """A child that goes on after the `with` operation, as `os.fork()` in a script does."""
    with repo.transaction() as block:
        block["owner"] = b"1"

        def leave() -> None:
            block["child"] = b"1"
            block.__exit__(ValueError, None, None)
            block["child after"] = b"1"  # and so its part is not what an exception has left
            seal(block)

        in_child(leave)
        block["after"] = b"1"
    assert repo.mapping().keys() >= {"after", "child", "child after"}


@pytest.mark.parametrize("how", ["exit", "garbage", "kill"])
def test_the_end_of_an_idle_child_ends_nothing(repo, store, how):
    transactions = [repo.begin(), repo.begin()]
    for number, transaction in enumerate(transactions):
        transaction[f"{number}"] = bytes(2 << 20)
    in_child(lambda: (transactions[0].set("part", b"1"), transactions[0].lifecycle.seal()))
    del transaction

    def end() -> None:
        if how == "garbage":
            transactions.clear()
            gc.collect()
        elif how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

    with forked(end) as child:
        status_of(child)
    for transaction in transactions:
        transaction.commit()
    assert len(repo.mapping()["0"]) == len(repo.mapping()["1"]) == 2 << 20
    assert repo.mapping()["part"] == b"1"


BROKEN = """
import os, sys, txstore, warnings
warnings.simplefilter("ignore", DeprecationWarning)
repo = txstore.Repository(sys.argv[1])
store = repo.transaction()
child = os.fork()
if child == 0:
    store["half"] = b"1"
    raise RuntimeError("half-way")
os.waitpid(child, 0)
try:
    store.commit()
except txstore.ParticipantLostError as error:
    print("lost", *error.keys)
store.rollback()
"""


def test_a_script_whose_child_breaks_off(repo, store):
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, repo.url], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.stdout.split() == ["lost", "half"]
    assert "half-way" in done.stderr


def test_snapshots_and_repositories_work_in_both(repo, store):
    snapshot, mapping = repo.snapshot(), repo.mapping()
    reader = zarr.open_array(snapshot, path="x", mode="r")
    assert reader[0] == 0

    def work() -> None:
        assert reader[:].tolist() == [0] * 32
        assert "x/zarr.json" in mapping
        assert len(list(repo.log())) == 1
        with repo.transaction() as mine:  # its own: it was begun after the fork
            mine["child"] = b"1"
        assert reader[:].tolist() == [0] * 32

    in_child(work)
    assert get(repo.snapshot(), "child") == b"1"
    assert reader[:].tolist() == [0] * 32
    assert "child" not in mapping
    with repo.transaction() as mine:
        mine["parent"] = b"1"
    assert len(list(repo.log())) == 3


def test_a_child_that_outlives_the_transaction_is_told(repo, store):
    read, write = os.pipe()
    sealed, has_sealed = os.pipe()

    def late() -> None:
        store["early"] = b"1"
        seal(store)
        os.write(has_sealed, b"1")
        os.read(read, 1)
        with pytest.raises(txstore.TransactionStateError, match="has ended"):
            store["late"] = b"1"

    with forked(late) as child:
        os.read(sealed, 1)
        assert get(store, "early") == b"1"
        store.commit()
        store["next"] = b"1"
        os.write(write, b"1")
        assert status_of(child) == 0
    store.commit()
    assert repo.mapping().keys() >= {"early", "next"}
    assert "late" not in repo.mapping()


def test_an_owner_is_dead_though_a_child_of_it_lives(repo, store):
    told, here = os.pipe()
    up, forked_too = os.pipe()  # of its own: what is said in one pipe may arrive at once
    kept, wait = os.pipe()

    def own() -> None:
        mine = repo.transaction()
        mine["owner"] = b"1"
        os.write(here, pickle.dumps(mine))
        if os.fork() == 0:
            os.close(wait)
            os.write(forked_too, b"child")
            os.read(kept, 1)  # lives as long as the test
            os._exit(0)
        time.sleep(TIMEOUT)

    try:
        with forked(own) as owner:
            os.close(kept)
            joined = pickle.loads(os.read(told, 1 << 16))
            joined["child"] = b"1"
            assert os.read(up, 100) == b"child"
            os.kill(owner, signal.SIGKILL)
            assert os.WIFSIGNALED(status_of(owner))
            with pytest.raises(txstore.TransactionStateError, match="began this transaction has died"):
                joined["late"] = b"1"
    finally:
        for descriptor in (told, here, up, forked_too, wait):
            os.close(descriptor)


def test_where_nothing_can_be_shared_the_child_is_told(repo):
    store = repo.transaction()  # there is no repository

    def work() -> None:
        with pytest.raises(txstore.TransactionStateError, match="before you fork"):
            store["child"] = b"1"

    in_child(work)
    assert not repo.exists
    store["owner"] = b"1"
    store.commit()


def test_a_pool_of_children_outlives_transactions(repo):
    """Each task is of the transaction that the store was in when it was pickled, not when the pool was forked."""
    with repo.transaction() as first:
        first["a"] = b"1"
    store = TxStore(repo.url)
    reads, writes = os.pipe(), os.pipe()

    def serve() -> None:
        with os.fdopen(reads[0], "rb") as tasks:
            for key in (b"first", b"second"):
                told = pickle.load(tasks)
                told[key.decode()] = key
                seal(told)
                del told
                os.write(writes[1], b"1")

    with forked(serve) as child, os.fdopen(reads[1], "wb") as tasks:
        for key in ("first", "second"):
            store[f"owner of {key}"] = b"1"
            pickle.dump(store, tasks)
            tasks.flush()
            assert os.read(writes[0], 1) == b"1"
            store.commit()
            assert repo.mapping()[key] == key.encode()
        assert status_of(child) == 0
    os.close(writes[0])
    os.close(writes[1])
    os.close(reads[0])


# --- threads
def test_a_lock_that_a_thread_holds_is_free_in_the_child():
    lock, again = processes.new_lock(), processes.new_rlock()
    threading.Thread(target=again.acquire).start()
    with lock:
        in_child(lambda: [each.acquire(timeout=TIMEOUT) or pytest.fail("it is held") for each in (lock, again)])


def test_forks_while_other_threads_begin_and_end_transactions(repo, store, monkeypatch):
    """A child inherits locks that threads hold which it does not have, and lists that they are changing."""
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            transaction = repo.begin()
            transaction["key"] = b"1"
            assert transaction["key"] == b"1"
            transaction.rollback()

    threads = [threading.Thread(target=churn) for _ in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for number in range(40):
            mine = repo.begin()
            mine["owner"] = b"%d" % number

            def work(mine=mine, number=number) -> None:
                signal.alarm(TIMEOUT)
                mine[f"child {number}"] = b"1"
                mine.lifecycle.seal()

            in_child(work)
            mine.commit()
    finally:
        over.set()
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join(TIMEOUT)
    assert unraisable == []
    assert len([key for key in repo.mapping() if key.startswith("child")]) == 40
    store.rollback()
    assert not staged(repo)


def test_a_fork_while_another_thread_commits(repo, store):
    """The child has no part in that commit: it is told so, or it was before."""
    store["owner"] = bytes(1 << 20)
    children = []
    real = os.fdatasync

    def work() -> None:
        with pytest.raises(txstore.TransactionStateError) as caught:
            store["child"] = b"1"
        assert caught.value.state == "committing"

    def fork_in_it(descriptor: int) -> None:
        if not children:
            children.append(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                thread = threading.Thread(target=lambda: in_child(work))
                thread.start()
                thread.join(TIMEOUT)
                assert not thread.is_alive()
        real(descriptor)

    os.fdatasync = fork_in_it
    try:
        store.commit()
    finally:
        os.fdatasync = real
    assert children
    assert "child" not in repo.mapping()

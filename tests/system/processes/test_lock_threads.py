"""`with store.lock(...)` in threads of one transaction: they exclude one another as transactions do."""

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
import zarr.core.codec_pipeline

import txstore
from tests.tools.interrupts import Interrupts, needs_monitoring
from tests.tools.members import committed, locked, members
from tests.tools.steps import forked, status_of
from tests.tools.waiting import wait_until
from tests.tools.workers import TIMEOUT
from txstore import LockTimeoutError, TransactionStateError
from txstore.sessions.session import LockBlock
from txstore.store import TxStore
from txstore.transactions.held_locks import TransactionLocks

pytestmark = pytest.mark.long

KINDS = ["table", "ranges", "files"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, store: TxStore) -> None:
    locks = store._engine.locks
    locks._preferred = request.param
    try:
        assert locks.kind == request.param
    except txstore.LocksUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def other() -> Iterator[ThreadPoolExecutor]:
    """One other thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def locks_of(store: TxStore) -> TransactionLocks:
    locks = store.mapping.lifecycle.locks
    assert locks is not None
    return locks


def waits(store: TxStore) -> bool:
    return bool(locks_of(store)._turns._waiting)


def try_lock(store: TxStore, selection: Any, path: str = "x") -> str:
    try:
        with store.lock(path, selection, timeout=0):
            return "locked"
    except LockTimeoutError as error:
        return str(error)


# --- who waits for whom
@pytest.mark.usefixtures("kind")
def test_a_thread_has_a_chunk_alone(store, other):
    with store.lock("x", np.s_[0:5]):
        refusal = other.submit(try_lock, store, np.s_[4:6]).result(TIMEOUT)
        assert "another thread of this transaction" in refusal
        assert "x/c/1" in refusal
        assert other.submit(try_lock, store, np.s_[8:12]).result(TIMEOUT) == "locked"
    assert other.submit(try_lock, store, np.s_[0:5]).result(TIMEOUT) == "locked"


@pytest.mark.usefixtures("kind")
def test_who_waits_is_woken_and_sees_what_was_written(store, other):
    z = zarr.open_array(store, path="x")

    def add() -> int:
        with store.lock("x", 0, timeout=None):
            z[0] += 1
            return int(z[0])

    with store.lock("x", 0):
        added = other.submit(add)
        wait_until(lambda: waits(store))
        z[0] = 6
    assert added.result(TIMEOUT) == 7


@pytest.mark.usefixtures("kind")
def test_a_thread_may_lock_again_what_it_has_locked(store, other):
    with store.lock("x", np.s_[0:8]):
        with store.lock("x", np.s_[4:12], timeout=0):
            assert "x/c/2" in other.submit(try_lock, store, 8).result(TIMEOUT)
        assert other.submit(try_lock, store, 8).result(TIMEOUT) == "locked"
        assert "x/c/1" in other.submit(try_lock, store, 4).result(TIMEOUT)
    assert other.submit(try_lock, store, 4).result(TIMEOUT) == "locked"


@pytest.mark.usefixtures("kind")
def test_what_the_transaction_began_with_is_there_for_its_threads_in_turns(repo, store, other):
    with repo.transaction(lock={"x": np.s_[0:8]}) as begun:
        with begun.lock("x", 0, timeout=0):
            assert "x/c/0" in other.submit(try_lock, begun, 0).result(TIMEOUT)
            assert other.submit(try_lock, begun, 4).result(TIMEOUT) == "locked"
        with pytest.raises(LockTimeoutError), store.lock("x", 0, timeout=0):
            pass  # another transaction
    with pytest.raises(TransactionStateError), begun.lock("x", 0):
        pass


def hold(store: TxStore, directory: str) -> None:
    Path(directory, "held").touch()
    wait_until(Path(directory, "let go").exists)


def test_who_is_refused_by_another_process_gives_its_turn_back(store, other, tmp_path):
    store["begun"] = b"1"
    with members(store, 1) as (member,):
        member.begin(locked, "x", 0, hold, str(tmp_path))
        wait_until((tmp_path / "held").exists)
        refusal = try_lock(store, np.s_[0:8])
        assert "x/c/0" in refusal
        assert "another thread" not in refusal
        assert other.submit(try_lock, store, 4).result(TIMEOUT) == "locked"
        (tmp_path / "let go").touch()
        member.answer()
        member.leave()
    assert other.submit(try_lock, store, np.s_[0:8]).result(TIMEOUT) == "locked"


def test_a_lock_that_nobody_can_leave_any_more_is_given_up(store, other):
    store.lock("x", 0).__enter__()
    gc.collect()
    assert other.submit(try_lock, store, 0).result(TIMEOUT) == "locked"


# --- the end
def test_who_waits_when_another_thread_commits_locks_in_the_next_transaction(repo, store, other):
    def locked_later() -> tuple[str, bool]:
        with store.lock("x", 0, timeout=None):
            return store.mapping.id, "x/c/0" in try_lock_elsewhere(store)

    block = store.lock("x", 0)
    block.__enter__()
    store["a"] = b"1"
    before = store.mapping.id
    waiting = other.submit(locked_later)
    wait_until(lambda: waits(store))
    store.commit()
    after, excluded = waiting.result(TIMEOUT)
    assert excluded
    assert after != before
    block.__exit__(None, None, None)


def try_lock_elsewhere(store: TxStore) -> str:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(try_lock, store, 0).result(TIMEOUT)


def test_a_block_in_a_forked_child_gives_up_nothing_of_the_parents(store, other):
    store["begun"] = b"1"

    def leave(block: LockBlock) -> None:
        with store.lock("x", 4, timeout=0):  # the child's own
            block.__exit__(None, None, None)
            assert "another thread" in try_lock_elsewhere_at(store, 4)
        assert "held by process" in try_lock(store, 0)

    block = store.lock("x", 0)
    block.__enter__()
    with forked(leave, block) as child:
        assert status_of(child) == 0
    assert "x/c/0" in other.submit(try_lock, store, 0).result(TIMEOUT)
    block.__exit__(None, None, None)


def try_lock_elsewhere_at(store: TxStore, selection: Any) -> str:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(try_lock, store, selection).result(TIMEOUT)


# --- interrupts
@needs_monitoring
@pytest.mark.usefixtures("kind")
def test_ctrl_c_at_any_point_leaves_nothing_locked(store, other):
    """The lock, the block and leaving it, interrupted at each point where Python looks for signals."""
    z = zarr.open_array(store, path="x")
    z[0] = 1
    with store.lock("x", 0):
        pass  # what is made once is there

    def block() -> None:
        with store.lock("x", np.s_[0:8], timeout=TIMEOUT):
            pass

    interrupts = Interrupts(block, step=7)
    while interrupts.again():
        assert other.submit(try_lock, store, np.s_[0:8]).result(TIMEOUT) == "locked", interrupts
    assert interrupts.count > 1000
    assert locks_of(store)._inside == []


def test_a_block_that_is_collected_inside_a_call_does_no_harm_to_its_thread(store, monkeypatch):
    """The call's context is a copy: there the block is left, and not in the context of the thread."""
    blocks = [store.lock("x", 0)]
    blocks[0].__enter__()

    async def get(self: TxStore, *arguments: Any, **more: Any) -> Any:
        blocks.clear()
        return await found(self, *arguments, **more)

    found = TxStore.get
    with monkeypatch.context() as patch, suppress(TransactionStateError):  # the call that it is collected in may fail
        patch.setattr(TxStore, "get", get)
        zarr.open_array(store, path="x")
    assert blocks == []
    x = zarr.open_array(store, path="x")
    x[0] = 5
    assert x[0] == 5


# --- nothing is lost
def increment(store: TxStore, path: str, element: int) -> None:
    """As docs/how-to/together.md has it: an array that was opened before, or is opened now, makes no difference."""
    with store.lock(path, element):
        z = zarr.open_array(store, path=path)
        z[element] = z[element] + 1


def in_threads(work: Callable[[int], object], count: int) -> None:
    with ThreadPoolExecutor(count) as pool:
        done: list[Future[object]] = [pool.submit(work, number) for number in range(count)]
        for future in done:
            future.result(TIMEOUT)


def increment_in_threads(store: TxStore, path: str, threads: int, count: int) -> None:
    in_threads(lambda number: [increment(store, path, (i + number) % 8) for i in range(count)], threads)


@pytest.mark.usefixtures("kind")
def test_no_increment_is_lost_by_threads_of_two_processes(repo, store):
    with members(store, 2) as crew:
        for member in crew:
            member.begin(increment_in_threads, "x", 2, 20)
        for member in crew:
            member.answer()
            member.leave()
    store.commit()
    assert sum(committed(repo)) == 80

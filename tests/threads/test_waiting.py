"""Nobody waits for what waits for him, and an end that was given up is not waited for by those that follow."""

import asyncio
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from traceback import walk_stack

import pytest
import zarr
from zarr.storage import MemoryStore

import txstore
from tests.threads.harness import PIPELINES
from tests.threads.interrupts import is_asleep
from tests.threads.latches import A_WHILE, Latch, Thread, create, latch, values, writing
from tests.tools.waiting import TIMEOUT, wait_until
from tests.tools.workers import QUICK, Worker, ended
from txstore import TransactionStateError
from txstore.sessions import gate
from txstore.sessions.gate import Gate
from txstore.sessions.zarr_operations import Operation, of_context


@pytest.mark.parametrize("of_this_store", [False, True], ids=["another store", "this store"])
def test_when_zarr_was_busy_for_too_long_a_later_commit_is_made(repo, store, monkeypatch, of_this_store):
    create(store)
    store.commit()
    z = create(store if of_this_store else MemoryStore(), "z")  # type: ignore[arg-type]
    store.commit()
    with latch(encodes=True, passes=8), monkeypatch.context() as patched:
        if of_this_store:
            operation = writing(store, z, 2)
        else:
            operation = Thread(lambda: z.__setitem__(slice(None), 2))
            assert Latch.reached.wait(TIMEOUT)
        patched.setattr(gate, "TIMEOUT", 0.1)
        store["key"] = b"1"
        for _ in range(3):
            if of_this_store:
                with pytest.raises(TransactionStateError, match="other threads are still at work"):
                    store.commit()
            else:  # which is none of its business
                store.commit()
                assert repo.mapping()["key"] == b"1"
    operation.result()
    store["key"] = b"2"
    commit = Thread(store.commit)
    commit.result()
    assert repo.mapping()["key"] == b"2"
    if of_this_store:
        assert set(values(repo.mapping(), "z")) == {2}


def _is_waiting(thread: int) -> bool:
    """Tell whether a thread waits in a session's commit or rollback."""
    return is_asleep(sys._current_frames()[thread]) and bool(_calls_of(thread) & {"commit", "rollback"})


def _calls_of(thread: int) -> set[str]:
    """Return the names of the functions that a thread is in."""
    return {frame.f_code.co_name for frame, _ in walk_stack(sys._current_frames()[thread])}


def _interrupt(path: str, pipeline: str, end: str) -> tuple[int, list[int], int]:
    """In a process of its own, interrupt the main thread in commits or rollbacks that wait for an operation."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.get_ident()

    def interrupt() -> None:
        wait_until(lambda: _is_waiting(main))
        signal.pthread_kill(main, signal.SIGINT)

    with zarr.config.set({"codec_pipeline.path": PIPELINES[pipeline], "threading.max_workers": 4}):
        repo = txstore.Repository(path)
        store = txstore.TxStore(repo)
        Latch.open()
        x = create(store)
        store.commit()
        interrupts = 0
        with latch(encodes=True, passes=8):
            operation = writing(store, x, 2)
            for _ in range(3):
                interrupter = Thread(interrupt)
                with suppress(KeyboardInterrupt):
                    getattr(store, end)()
                    break
                interrupts += 1
                interrupter.result()
        operation.result()
        Thread(getattr(store, end)).result()
        store["key"] = b"1"
        Thread(store.commit).result()
        return interrupts, values(repo.mapping()), len(list(repo.log()))


@pytest.mark.long
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_after_an_interrupt_in_an_end_that_waits_the_next_one_comes_about(tmp_path, pipeline, end):
    worker = Worker(_interrupt, str(tmp_path / "data.tx"), pipeline, end, context=QUICK)
    with ended(worker):
        interrupts, found, commits = worker.result()
    assert interrupts == 3
    assert len(set(found)) == 1
    if end == "commit":
        assert found[0] == 2
    assert commits == (3 if end == "commit" else 2)


def test_who_waits_for_a_lock_while_another_thread_commits_gets_it_in_the_next_transaction(repo):
    store = txstore.TxStore(repo)
    zarr.create_array(store, name="x", shape=(8,), chunks=(4,), dtype="i8")
    store.commit()
    threads: list[int] = []

    def lock() -> None:
        threads.append(threading.get_ident())
        with store.lock("x"):
            zarr.open_array(store, path="x")[:] = 1

    with repo.transaction(lock=["x"]):
        waiting = Thread(lock)
        wait_until(lambda: threads and "acquire_turn" in _calls_of(threads[0]))
        store["key"] = b"1"
        store.commit()
        waiting.join(A_WHILE)
        assert waiting.is_alive()
    waiting.result()
    store.commit()
    assert set(zarr.open_array(repo.snapshot(), path="x", mode="r")[:].tolist()) == {1}


def test_a_operation_that_was_let_in_does_not_wait_for_who_shuts_next() -> None:
    """Of its two tasks, one came to the gate just when that was opened for the other, and shut again."""

    meanwhile: list[Callable[[], object]] = []

    class Slow(Operation):
        """Between looking whether it is inside and asking to be let in, something happens."""

        def at_end(self, call: Callable[[Operation], object]) -> None:
            super().at_end(call)
            while meanwhile:
                meanwhile.pop(0)()

    class Writer:
        def writes(self) -> int:
            return 0

        def fail(self, reason: str) -> None:
            raise AssertionError(reason)

    async def two_tasks() -> None:
        operation, writer = Slow(), Writer()
        its_gate = Gate(writer.writes, writer.fail)
        of_context.set(operation)
        first, second = its_gate.shut(), its_gate.shut()
        first.__enter__()
        one = asyncio.create_task(its_gate.enter())
        await asyncio.sleep(0)
        meanwhile.extend((lambda: first.__exit__(None, None, None), second.__enter__))
        await asyncio.wait_for(its_gate.enter(), TIMEOUT)
        await one
        second.__exit__(None, None, None)

    asyncio.run(two_tasks())

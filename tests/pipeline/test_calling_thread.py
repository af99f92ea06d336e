"""Calls of zarr for arrays and groups over a `TxStore` run in the caller's thread, and those for others as before."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import zarr
from zarr.abc.codec import BytesBytesCodec
from zarr.storage import LoggingStore, MemoryStore

import txstore
from tests.threads.harness import PIPELINES
from tests.threads.interrupts import ignored_in_finalizers, interrupted_after
from tests.tools.waiting import TIMEOUT, wait_until
from txstore.sessions import calling_thread
from txstore.sessions.zarr_operations import of_context


@dataclass(frozen=True)
class Noting(BytesBytesCodec):
    """Notes the threads that chunks are encoded and decoded in, and calls `then` each time."""

    is_fixed_size = True
    threads: ClassVar[set[threading.Thread]] = set()
    then: ClassVar[list[Callable[[], object]]] = []

    def to_dict(self) -> dict[str, Any]:
        return {"name": "txstore.tests.noting", "configuration": {}}

    @classmethod
    def from_dict(cls, data: Any) -> Noting:
        return cls()

    def compute_encoded_size(self, length: int, spec: object) -> int:
        return length

    async def _note(self, chunk: Any) -> Any:
        self.threads.add(threading.current_thread())
        for call in self.then:
            result = call()
            if result is not None:
                await result  # type: ignore[misc]
        return chunk

    async def _encode_single(self, chunk: Any, spec: object) -> Any:
        return await self._note(chunk)

    async def _decode_single(self, chunk: Any, spec: object) -> Any:
        return await self._note(chunk)


zarr.registry.register_codec("txstore.tests.noting", Noting)


@pytest.fixture(autouse=True)
def batched() -> Any:
    """zarr's pipeline that encodes on the event loop: what has a codec of its own goes through it."""
    Noting.then.clear()
    with zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}):
        yield
    Noting.then.clear()


@pytest.fixture
def store(tmp_path: Path) -> Any:
    store = txstore.TxStore(tmp_path / "data.tx", durability="none")
    yield store
    store.rollback()


def create(store: Any, name: str = "x", shape: int = 8) -> zarr.Array[Any]:
    return zarr.create_array(
        store, name=name, shape=(shape,), chunks=(2,), dtype="i4", compressors=[Noting()], overwrite=True
    )


def threads_of(call: Callable[[], object]) -> set[threading.Thread]:
    Noting.threads.clear()
    call()
    return set(Noting.threads)


def test_arrays_of_ours_are_written_and_read_in_the_callers_thread(store: txstore.TxStore) -> None:
    z = create(store)
    here = {threading.current_thread()}
    assert threads_of(lambda: z.__setitem__(slice(None), 1)) == here
    assert threads_of(lambda: z[...]) == here
    assert threads_of(lambda: z.append(np.ones(2, "i4"))) == here
    assert threads_of(lambda: zarr.open_group(store)["x"][3]) == here
    assert z[...].tolist() == [1] * 10
    with ThreadPoolExecutor(1) as pool:
        assert threads_of(lambda: pool.submit(z.__getitem__, 0).result()) == pool._threads


@pytest.mark.parametrize("around", [MemoryStore, lambda: LoggingStore(MemoryStore(), log_level="ERROR")])
def test_arrays_of_other_stores_stay_with_zarr(around: Callable[[], Any]) -> None:
    z = create(around())
    assert threads_of(lambda: z.__setitem__(slice(None), 1)) == {zarr.core.sync.iothread[0]}


def test_a_thread_that_runs_an_event_loop_may_call(store: txstore.TxStore) -> None:
    """A notebook does: zarr's loop runs the call then."""
    z = create(store)

    async def cell() -> Any:
        z[...] = 2
        return z[...]

    assert asyncio.run(cell()).tolist() == [2] * 8
    z[...] = 3
    assert z[...].tolist() == [3] * 8


def test_a_call_inside_of_a_call(store: txstore.TxStore) -> None:
    """A codec that reads another array, as a dictionary."""
    z, other = create(store), zarr.create_array(store, name="y", data=np.arange(4))

    def read() -> None:
        assert other[1] == 1

    Noting.then.append(read)
    z[...] = 1
    assert z[...].tolist() == [1] * 8


def test_it_can_be_switched_off() -> None:
    code = """
import tempfile, threading, zarr, txstore
store = txstore.TxStore(tempfile.mkdtemp() + "/data.tx")
z = zarr.create_array(store, name="x", shape=(4,), chunks=(4,), dtype="i4")
z[...] = 1
print(any(thread.name == "zarr_io" for thread in threading.enumerate()))
"""
    for word, uses_zarr in (("on", "False"), ("off", "True")):
        environment = {**os.environ, "TXSTORE_CALLING_THREAD": word}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert run.stdout.strip() == uses_zarr


def test_what_a_thread_has_returned_is_not_kept_until_the_call_ends(store: txstore.TxStore) -> None:
    """A chunk, say, for each of a million calls in threads."""
    z = create(store, shape=128)
    kept: list[int] = []

    async def in_thread() -> None:
        await asyncio.to_thread(bytes, 1000)
        operation = of_context.get()
        kept.append(len(operation.threads))

    Noting.then.append(in_thread)
    with zarr.config.set({"async.concurrency": 2}):
        z[...] = 1
    assert len(kept) == 64
    assert max(kept) < 16


# --- errors
def test_an_error_ends_the_other_tasks_of_the_call(store: txstore.TxStore) -> None:
    """zarr sends the chunks that are left once one has failed."""
    z = create(store)
    store.commit()
    z = zarr.open_array(store, path="x")
    ended: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(TIMEOUT)
        finally:
            ended.append("closed")

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    calls = iter([wait, fail, wait, wait])
    Noting.then.append(lambda: next(calls)())
    with pytest.raises(ZeroDivisionError):
        z[...] = 1
    assert set(ended) == {"closed"}
    Noting.then.clear()
    store.rollback()
    zarr.open_array(store, path="x")[...] = 2
    store.commit()
    assert zarr.open_array(store, path="x")[...].tolist() == [2] * 8


def test_an_error_that_is_kept_keeps_no_variable_of_the_caller(store: txstore.TxStore) -> None:
    create(store)
    z = zarr.open_array(store.with_read_only(True), path="x")

    class Thing:
        pass

    def call() -> tuple[BaseException, weakref.ref[Thing]]:
        thing = Thing()
        try:
            z.attrs["a"] = 1
        except ValueError as error:
            return error, weakref.ref(thing)
        raise AssertionError

    gc.collect()
    gc.disable()
    try:
        error, thing = call()
        del error
        assert thing() is None
    finally:
        gc.enable()


def test_what_a_thread_has_begun_is_refused_once_the_call_has_failed(store: txstore.TxStore) -> None:
    z = create(store)
    store.commit()
    z = zarr.open_array(store, path="x")
    is_over, refused = threading.Event(), []

    def late() -> None:
        assert is_over.wait(TIMEOUT)
        try:
            store["late"] = b"1"
        except txstore.TransactionStateError as error:
            refused.append(error)

    async def fail() -> None:
        await asyncio.sleep(0.05)
        raise ZeroDivisionError

    calls = iter([lambda: asyncio.to_thread(late), fail, lambda: None, lambda: None])
    Noting.then.append(lambda: next(calls)())
    with pytest.raises(ZeroDivisionError):
        z[...] = 1
    is_over.set()
    wait_until(lambda: bool(refused))


# --- interrupts


@pytest.mark.parametrize("pipeline", PIPELINES.values())
def test_what_an_interrupt_has_cut_is_not_committed(store: txstore.TxStore, pipeline: str) -> None:
    """An interrupted call has written everything, nothing, or fails the transaction: for each point of it."""
    with zarr.config.set({"codec_pipeline.path": pipeline, "threading.max_workers": 2}):
        zarr.create_array(store, name="x", shape=(8,), chunks=(2,), dtype="i4", fill_value=0)[...] = 0
        store.commit()
        outcomes = set()
        for places in range(0, 1600, 37):
            z = zarr.open_array(store, path="x")
            with suppress(KeyboardInterrupt), ignored_in_finalizers(), interrupted_after(places):
                z[...] = places + 1
            try:
                store.commit()
            except txstore.TransactionStateError:
                store.rollback()
            values = zarr.open_array(store, path="x")[...].tolist()
            assert values == [values[0]] * 8
            outcomes.add(values[0] == places + 1)
        assert outcomes == {False, True}


def test_an_interrupt_where_the_loop_stops_leaves_no_loop_running(store, monkeypatch):
    """Else the thread would hand all later calls to zarr's loop."""
    z = create(store)

    def interrupted(self: calling_thread.CallersLoop, coroutine: Any) -> None:
        asyncio._set_running_loop(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(calling_thread.CallersLoop, "run_until_complete", interrupted)
        z[...]
    assert asyncio._get_running_loop() is None
    assert threads_of(lambda: z.__setitem__(0, 1)) == {threading.current_thread()}


def test_a_wait_that_is_interrupted_ends(store: txstore.TxStore) -> None:
    z = create(store)
    store.commit()
    z = zarr.open_array(store, path="x")

    async def interrupt() -> None:
        raise KeyboardInterrupt

    Noting.then.append(interrupt)
    with pytest.raises(KeyboardInterrupt):
        z[...] = 1
    assert calling_thread._of_thread.loop is None  # it may have lost a step of a task
    Noting.then.clear()
    store.rollback()
    zarr.open_array(store, path="x")[...] = 1
    assert zarr.open_array(store, path="x")[...].tolist() == [1] * 8

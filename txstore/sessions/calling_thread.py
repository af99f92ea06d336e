"""Runs an operation in the thread that calls it, on an event loop of that thread.

zarr hands each call, such as `z[3]`, to the thread of its event loop, and the caller waits for the result. For one
chunk on a local disk, the two changes of thread take longer than the read. The caller's own loop has no selector and
no open files: a process may have many threads. Another thread, such as one that has read from a server, wakes it.

zarr has no hook for it, so `install` replaces its function `sync`. Calls for other stores, calls with a timeout, and
calls from a thread that runs an event loop go to zarr's own `sync`.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import zarr

from txstore.sessions.gate import forget_left_blocks
from txstore.sessions.zarr_operations import Operation, of_context
from txstore.storage import request_threads
from txstore.zarr_private import zarr_sync

if TYPE_CHECKING:
    from typing_extensions import TypeVarTuple, Unpack

    Ts = TypeVarTuple("Ts")

T = TypeVar("T")

#: The arguments of zarr's functions that say what a call is for.
_ARGUMENTS = ("self", "store_path", "store")
#: The argument of one that collects what an asynchronous generator yields: the members of a group, for one.
_ITERATOR = "async_iterator"


def install(stores: type) -> None:
    """Replace `sync` in all modules of zarr, for calls on arrays and groups over these stores."""
    if zarr_sync is None or list(inspect.signature(zarr_sync).parameters) != ["coro", "loop", "timeout"]:
        return  # a zarr that does it in another way

    @wraps(zarr_sync)
    def sync(
        coro: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop | None = None, timeout: float | None = None
    ) -> T:
        try:
            is_free = loop is None and timeout is None and asyncio._get_running_loop() is None
            if is_free and _is_of(coro, stores):
                forget_left_blocks()
                return run(coro)
        except BaseException:
            coro.close()  # after an interrupt it may not have begun
            raise
        result: T = zarr_sync(coro, loop, timeout)
        return result

    for name, module in list(sys.modules.items()):
        if name.startswith("zarr.") and getattr(module, "sync", None) is zarr_sync:
            module.sync = sync  # type: ignore[attr-defined]


def _is_of(call: Any, stores: type) -> bool:
    """Tell by its arguments whether a call that has not begun is for one of these stores."""
    frame = getattr(call, "cr_frame", None) or getattr(call, "ag_frame", None)
    if frame is None:
        return False
    arguments = frame.f_locals
    if _ITERATOR in arguments:
        return _is_of(arguments[_ITERATOR], stores)
    for name in _ARGUMENTS:
        given = arguments.get(name)
        given = getattr(given, "store_path", given)
        if isinstance(getattr(given, "store", given), stores):
            return True
    return False


class _Waker:
    """Takes the place of an event loop's selector: without files to look at, the loop waits until it is woken.

    A plain lock: unlike `threading.Event`, no interrupt can leave it in a state in which `wake` waits.
    """

    def __init__(self) -> None:
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def select(self, timeout: float | None) -> list[Any]:
        self._asleep.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
        return []

    def wake(self) -> None:
        with suppress(RuntimeError):  # it has been woken already
            self._asleep.release()


class CallersLoop(asyncio.BaseEventLoop):
    """The event loop of one thread. It has no sockets."""

    _selector: _Waker
    # Of the base class, which typeshed does not list.
    _thread_id: int | None
    _ready: deque[Any]
    _asyncgen_firstiter_hook: Callable[..., Any]
    _asyncgen_finalizer_hook: Callable[..., Any]

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Waker()
        self.process = os.getpid()

    def _process_events(self, events: list[Any]) -> None:
        """There are no files, and so no events."""

    def _write_to_self(self) -> None:
        self._selector.wake()

    def __del__(self) -> None:
        """It ends with its thread, without a warning: it has nothing open."""

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        call = (executor or _executor()).submit(func, *args)
        if (operation := of_context.get()) is not None:
            operation.threads.add(call)
            call.add_done_callback(operation.threads.discard)  # it has a result, which may be a chunk
        return asyncio.wrap_future(call, loop=self)

    def begin(self, coroutine: Coroutine[Any, Any, T], context: contextvars.Context) -> asyncio.Task[T]:
        """Make a task, and run it up to where it first waits: most operations on a local disk never do.

        From Python 3.12 on. Before, the task begins when the loop runs.
        """
        if sys.version_info < (3, 12):
            return self.create_task(coroutine, context=context)
        self._thread_id = threading.get_ident()  # the loop is running
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(firstiter=self._asyncgen_firstiter_hook, finalizer=self._asyncgen_finalizer_hook)
        try:
            return asyncio.Task(coroutine, loop=self, context=context, eager_start=True)
        finally:
            sys.set_asyncgen_hooks(firstiter=None, finalizer=None)
            self._thread_id = None
            asyncio._set_running_loop(None)  # last: see `_leave`

    def finish(self, task: asyncio.Task[T]) -> T:
        """Run the loop until a task is done, and nothing else waits to be called."""
        return task.result() if task.done() and not self._ready else self.run_until_complete(task)


def _executor() -> ThreadPoolExecutor:
    """Return the threads of `asyncio.to_thread`. All callers share them, as they do on zarr's loop."""
    count = zarr.config.get("threading.max_workers", None) or min(32, (os.cpu_count() or 1) + 4)
    return request_threads.executor(f"operation {count}", count)


class _OfThread(threading.local):
    """The loop of the current thread, between operations too."""

    loop: CallersLoop | None = None


_of_thread = _OfThread()


def is_here() -> bool:
    """Tell whether the caller is a task of an operation that runs in its caller's thread.

    Such a task may compute, and wait for locks: it holds up no other operation.
    """
    return isinstance(asyncio._get_running_loop(), CallersLoop)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run an operation to its end, and return its result.

    If it fails or is interrupted, its other tasks end where they are, and the store refuses the work of its threads.
    """
    loop = _of_thread.loop
    if loop is None or loop.process != os.getpid():  # a fork copies the loop of the forking thread, in any state
        loop = _of_thread.loop = CallersLoop()
    operation = Operation()
    context = contextvars.copy_context()
    context.run(of_context.set, operation)
    errors: list[Exception] = []
    first = _first(operation, coroutine, errors)
    has_returned = False
    try:
        result = loop.finish(loop.begin(first, context))
        has_returned = True
    finally:
        has_failed, operation.is_cut = bool(errors) or not has_returned, not has_returned
        try:
            if has_failed:
                operation.refuse()
                _leave(loop, is_usable=has_returned)
                first.close()
            operation.end(has_failed)
        except BaseException:  # an interrupt
            operation.end(has_failed=True)
            _of_thread.loop = None
            asyncio._set_running_loop(None)
            raise
    if errors:
        raise errors.pop()
    return cast(T, result)


def result_of(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of TxStore's own to its end: in another thread if this one runs an event loop."""
    if asyncio._get_running_loop() is None:
        return run(coroutine)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run, coroutine).result()


async def _first(operation: Operation, coroutine: Coroutine[Any, Any, T], errors: list[Exception]) -> T | None:
    """Run the first task of an operation, and put its error into a list.

    In the task, an error would keep the frames that it has passed, and these the task.
    """
    try:
        return await operation.run(coroutine)
    except Exception as error:  # noqa: BLE001 (the caller gets it)
        errors.append(error)
        return None


def _leave(loop: CallersLoop, *, is_usable: bool) -> None:
    """End the tasks that a failed operation has left, and have no more to do with a loop that may come back to them.

    After an interrupt the loop may have lost a step of a task, which then would never end by itself.
    """
    if asyncio._get_running_loop() is loop:  # the interrupt came where it was about to stop
        asyncio._set_running_loop(None)
        sys.set_asyncgen_hooks(firstiter=None, finalizer=None)
    left = asyncio.all_tasks(loop)
    if left or not is_usable:
        _of_thread.loop = None
        loop.set_exception_handler(lambda *_: None)  # the caller gets the first error, and no others
    for task in left:
        with suppress(Exception):
            task.get_coro().close()  # type: ignore[union-attr]

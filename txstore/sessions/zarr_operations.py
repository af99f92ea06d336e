"""Tracks operations: finds which tasks belong to one call of zarr's API.

A call such as `z[...] = x`, `z.append(x)` or `zarr.open(store)` runs as one task. This first task may start more tasks,
for example one for each chunk. Any of them may call a store. A commit needs to know which operations still run. So the
first task has a context that names its operation, and the tasks and threads that it starts inherit the context.

Most operations run in the thread that calls them (`calling_thread`). The others run on zarr's loop, and a task factory
of that loop gives them their contexts. When a task of one of these fails, the caller gets the error at once, and the
other tasks continue. From then on, the store refuses their calls.

`Operation.finish_with` adds calls to make before the caller gets the result. The first task makes them. The first
operation of a process may have begun before the task factory existed. Then a callback of the finished task makes the
calls, also before the caller gets the result.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from txstore import processes, zarr_private
from txstore.errors import TransactionStateError, TxStoreError
from txstore.storage.dispatch import Dispatch

AnyTask = asyncio.Future[Any]
T = TypeVar("T")

#: The operation that a task or thread works for. See `present` for when there is no operation.
of_context: contextvars.ContextVar[Operation | None] = contextvars.ContextVar("txstore operation", default=None)
_finishing = processes.new_lock()


class Finish(NamedTuple):
    """A call that an operation has to make before it ends."""

    call: Callable[[bool], object]  # its argument says whether the operation has failed
    dispatch: Dispatch  # of the storage that `call` uses


class Operation:
    """One call of zarr's API. Only the thread of its event loop changes it, except with `refuse`."""

    def __init__(self) -> None:
        self._roots = 0  # running tasks that only the operation's caller waits for
        #: Running calls in threads, of an operation in its caller's thread. They may go on when the operation fails.
        self.threads: set[Future[Any]] = set()
        self.has_written = False  # it has called a method that stages, or may have: see `is_codec_thread`
        self.is_cut = False  # an interrupt ended it in the middle
        self._at_end: dict[Callable[[Operation], object], None] = {}  # in order, each once
        self._finishing: list[Finish] = []
        self._has_failed = False
        self.is_done = False  # the caller has the result
        self.has_failed = False  # the result is an error, or will be

    def begin(self, root: AnyTask) -> None:
        self._roots += 1
        # Run our callback before zarr's own, which wakes the caller. A task that has already begun has zarr's callback.
        others = list(getattr(root, "_callbacks", None) or ())
        for callback, _ in others:
            root.remove_done_callback(callback)
        root.add_done_callback(self._root_is_done)
        for callback, context in others:
            root.add_done_callback(callback, context=context)

    def at_end(self, call: Callable[[Operation], object]) -> None:
        """Call `call(operation)` just before the caller gets the result."""
        self._at_end[call] = None

    def finish_with(self, finish: Finish) -> bool:
        """Add a call to make before the operation ends; return False if it has already ended."""
        self._finishing.append(finish)
        return not self.is_done

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the operation's first task, then the calls of `finish_with`. The caller gets their errors."""
        result = await coroutine
        # zarr returns, as the result, the error that the caller's thread will raise.
        while self._finishing and not (self.has_failed or isinstance(result, BaseException)):
            finish = self._finishing.pop()
            await finish.dispatch.awaited(finish.call, False)
        return result

    def refuse(self) -> None:
        """Refuse the store to the remaining tasks, because a task gets an error, or the caller was interrupted."""
        self.has_failed = True

    def _root_is_done(self, root: AnyTask) -> None:
        self._roots -= 1
        self._has_failed = self._has_failed or _has_failed(root)
        if not self._roots:
            self.end(self._has_failed)

    def end(self, has_failed: bool) -> None:
        """Make the calls that are due before the caller gets the result. After an interrupt, call this again.

        If threads of a failed operation still run, the last of them makes the calls.
        """
        self.is_done, self.has_failed = True, self.has_failed or has_failed
        running = [call for call in processes.all_of(self.threads) if not call.done()]
        for call in running:
            call.add_done_callback(self._thread_is_done)
        if not running:
            self._make_calls()

    def _thread_is_done(self, _: Future[Any]) -> None:
        if all(call.done() for call in processes.all_of(self.threads)):
            self._make_calls()

    def _make_calls(self) -> None:
        while self._finishing:  # the operation failed, or began before the task factory, without `run`
            with suppress(OSError, TxStoreError, IndexError):  # the caller can't get an error from here
                self._finishing.pop().call(self.has_failed)
        for call in list(self._at_end):  # each can be called again
            call(self)
        self._at_end.clear()


def _has_failed(task: AnyTask) -> bool:
    # zarr returns, as the result, the error that the caller's thread will raise.
    return task.cancelled() or task.exception() is not None or isinstance(task.result(), BaseException)


def present() -> Operation | None:
    """Return the calling operation. None outside of zarr's loop and of the threads that it hands a batch to.

    The codec pipeline's own threads do not know their operation. Raises `TransactionStateError` in a remaining task of
    a failed operation: its call would do only a part of the operation.
    """
    operation = of_context.get()
    if operation is None:
        loop = asyncio._get_running_loop()
        if loop is None or loop is not zarr_private.loop[0]:
            return None
        operation = _adopt(loop)
    elif operation.has_failed:
        raise late()
    return None if operation.is_done else operation


def late() -> TransactionStateError:
    """Return the error for the remaining tasks of a failed operation."""
    return TransactionStateError("this operation has failed: what is left of it is not done", state="failed")


def expect() -> None:
    """Start to track operations if zarr's loop already runs. Otherwise its first operation starts this."""
    loop = zarr_private.loop[0]
    if loop is not None and not isinstance(loop.get_task_factory(), _NotingFactory):
        with suppress(RuntimeError):  # the loop is closed: the interpreter ends
            loop.call_soon_threadsafe(_adopt, loop)


def _adopt(loop: asyncio.AbstractEventLoop) -> Operation:
    """Track tasks from now on. The tasks already on the loop can't be told apart, and count as one operation."""
    factory = loop.get_task_factory()
    if not isinstance(factory, _NotingFactory):
        factory = _NotingFactory(factory)
        for task in asyncio.all_tasks(loop):
            factory.before.begin(task)
        loop.set_task_factory(factory)
    return factory.before


class _NotingFactory:
    """A task factory that gives each task the operation that it belongs to."""

    def __init__(self, factory: Any) -> None:
        self.before = Operation()
        self._create = factory or _create

    def __call__(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Any,
        **options: Any,
    ) -> AnyTask:
        runs = coroutine
        if asyncio.current_task(loop) is None:
            operation = Operation()
            runs = operation.run(coroutine)
        elif of_context.get() is None and not self.before.is_done:
            operation = self.before
        else:  # the task inherits the context, and so the operation
            return self._create(loop, coroutine, **options)
        context = options.pop("context", None) or contextvars.copy_context()
        context.run(of_context.set, operation)
        task: AnyTask = self._create(loop, runs, context=context, **options)
        if runs is not coroutine:
            task.add_done_callback(lambda _: coroutine.close())  # else Python warns if the task is cancelled at once
        operation.begin(task)
        return task


def _create(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> AnyTask:
    return asyncio.Task(coroutine, loop=loop, **options)


def is_on_loop() -> bool:
    """Tell whether the caller is a task of an operation, which must not wait for the tasks of its event loop."""
    running = asyncio._get_running_loop()
    return running is not None and (running is zarr_private.loop[0] or of_context.get() is not None)


def is_codec_thread() -> bool:
    """Tell whether this thread is one of the fused codec pipeline's, which do not know the operation they work for."""
    pool = zarr_private.codec_threads()
    return pool is not None and threading.current_thread() in pool._threads


def finish_codec_threads(timeout: float) -> bool:
    """Wait for the threads of the fused codec pipeline. Returns False if `timeout` ends first.

    After a failed batch, each thread may still work on one chunk.
    """
    pool = zarr_private.codec_threads()
    if pool is None or threading.current_thread() in pool._threads:
        return True
    # A worker reaches the barrier only after it has finished its earlier work.
    barrier = threading.Barrier(pool._max_workers)
    results: list[bool] = []
    # In a separate thread: an interrupt of this thread could leave a lock of the pool locked forever.
    other = threading.Thread(target=lambda: results.append(_meet(pool, barrier, timeout)), daemon=True)
    other.start()
    try:
        other.join()
    except BaseException:
        barrier.abort()  # releases the threads
        raise
    return results == [True]


def _meet(pool: ThreadPoolExecutor, barrier: threading.Barrier, timeout: float) -> bool:
    """Make all threads of a pool reach a barrier; return whether they did in time."""
    with _finishing:
        while pool._idle_semaphore.acquire(blocking=False):
            pass  # the count of idle threads may be too high; at zero, `submit` starts threads until all exist
        done, late = wait([pool.submit(barrier.wait, timeout) for _ in range(pool._max_workers)], timeout)
        return not late and not any(future.exception() for future in done)

"""Operations: which of the tasks on zarr's event loop belong to one call of zarr's API.

`z[...] = x`, `z.append(x)` or `zarr.open(store)` is one task on zarr's loop, which the caller's thread waits for, and
the tasks that this one begins: one for each chunk, say. A store is called from any of them. For a commit to know what
is still under way, a task factory of the loop gives the first one a context that says which operation it is of; those
that it begins inherit that.

When a task of an operation fails, the caller gets the error at once, and the others go on. From then on they are
refused the store.

What has to be done before the caller gets the result (`Operation.finish_with`) is done in the first task itself. The
first operation of a process may have begun before there was a task factory. There it is done when the task is done,
still before the caller is told.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import zarr.core.codec_pipeline
import zarr.core.sync

from txstore import processes
from txstore.errors import TransactionStateError, TxStoreError
from txstore.storage.dispatch import Dispatch

AnyTask = asyncio.Future[Any]
T = TypeVar("T")

#: The operation that a task or thread works for. `present` says when there is none.
of_context: contextvars.ContextVar[Operation | None] = contextvars.ContextVar("txstore operation", default=None)
_finishing = processes.new_lock()


class Finish(NamedTuple):
    """What an operation has to do before it has ended."""

    call: Callable[[bool], object]  # is told whether the operation has failed
    dispatch: Dispatch  # of the storage that it calls


class Operation:
    """One call of zarr's API. Changed on the thread of zarr's loop, but for `refuse`."""

    def __init__(self) -> None:
        self._roots = 0  # tasks that are under way, and that nothing but the operation's caller waits for
        self._at_end: dict[Callable[[Operation], object], None] = {}  # in order, each once
        self._finishing: list[Finish] = []
        self._has_failed = False
        self.is_done = False  # its caller has the result
        self.has_failed = False  # and that is an error, or will be

    def begin(self, root: AnyTask) -> None:
        self._roots += 1
        # Before zarr's own callback, which wakes the caller: of a task that has begun already, that is there by now.
        others = list(getattr(root, "_callbacks", None) or ())
        for callback, _ in others:
            root.remove_done_callback(callback)
        root.add_done_callback(self._root_is_done)
        for callback, context in others:
            root.add_done_callback(callback, context=context)

    def at_end(self, call: Callable[[Operation], object]) -> None:
        """Have `call(operation)` called when its caller is about to be told the result."""
        self._at_end[call] = None

    def finish_with(self, finish: Finish) -> bool:
        """Have something done before the operation ends; return False if it has ended."""
        self._finishing.append(finish)
        return not self.is_done

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the operation's first task, and then what it has to be finished with, whose errors its caller gets."""
        result = await coroutine
        # zarr returns the error that its caller's thread is to raise.
        while self._finishing and not (self.has_failed or isinstance(result, BaseException)):
            finish = self._finishing.pop()
            await finish.dispatch.awaited(finish.call, False)
        return result

    def refuse(self) -> None:
        """Let what is left of it not use the store: one of its tasks gets an error, or its caller was interrupted."""
        self.has_failed = True

    def _root_is_done(self, root: AnyTask) -> None:
        self._roots -= 1
        self._has_failed = self._has_failed or _has_failed(root)
        if not self._roots:
            self.is_done, self.has_failed = True, self.has_failed or self._has_failed
            while self._finishing:  # it has failed, or `run` has not run it
                with suppress(OSError, TxStoreError):  # its caller can't be told here
                    self._finishing.pop().call(self.has_failed)
            for call in self._at_end:
                call(self)
            self._at_end.clear()


def _has_failed(task: AnyTask) -> bool:
    # zarr returns the error that its caller's thread is to raise.
    return task.cancelled() or task.exception() is not None or isinstance(task.result(), BaseException)


def present() -> Operation | None:
    """Return the operation that calls; None elsewhere than on zarr's loop, and in the thread that a batch is handed to.

    The codec pipeline's own threads are not told whose work they do. Raises `TransactionStateError` in a task that is
    left of an operation that has failed: what it did would be half an operation.
    """
    operation = of_context.get()
    if operation is None:
        loop = asyncio._get_running_loop()
        if loop is None or loop is not zarr.core.sync.loop[0]:
            return None
        operation = _adopt(loop)
    elif operation.has_failed:
        raise late()
    return None if operation.is_done else operation


def late() -> TransactionStateError:
    """Return what is raised in what is left of an operation that has failed."""
    return TransactionStateError("this operation has failed: what is left of it is not done", state="failed")


def expect() -> None:
    """Begin to tell operations apart, if zarr's loop runs already. Else its first operation does."""
    loop = zarr.core.sync.loop[0]
    if loop is not None and not isinstance(loop.get_task_factory(), _NotingFactory):
        with suppress(RuntimeError):  # the loop is closed: the interpreter ends
            loop.call_soon_threadsafe(_adopt, loop)


def _adopt(loop: asyncio.AbstractEventLoop) -> Operation:
    """Note tasks from now on. What there is on the loop by now can't be told apart, and is one operation."""
    factory = loop.get_task_factory()
    if not isinstance(factory, _NotingFactory):
        factory = _NotingFactory(factory)
        for task in asyncio.all_tasks(loop):
            factory.before.begin(task)
        loop.set_task_factory(factory)
    return factory.before


class _NotingFactory:
    """A task factory that tells each task which operation it is of."""

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
        else:  # it inherits its context, and so the operation
            return self._create(loop, coroutine, **options)
        context = options.pop("context", None) or contextvars.copy_context()
        context.run(of_context.set, operation)
        task: AnyTask = self._create(loop, runs, context=context, **options)
        if runs is not coroutine:
            task.add_done_callback(lambda _: coroutine.close())  # else one that was cancelled at once is complained of
        operation.begin(task)
        return task


def _create(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> AnyTask:
    return asyncio.Task(coroutine, loop=loop, **options)


def is_on_loop() -> bool:
    """Tell whether this is the thread of zarr's loop, which must not wait for what is done there."""
    return threading.current_thread() is zarr.core.sync.iothread[0]


def finish_codec_threads(timeout: float) -> bool:
    """Wait for what the threads of the fused codec pipeline do. Returns whether that is done.

    A batch that has failed may leave as many chunks under way as there are threads.
    """
    pool: ThreadPoolExecutor | None = getattr(zarr.core.codec_pipeline, "_pool", None)  # of zarr 3.4 and later
    if pool is None or threading.current_thread() in pool._threads:
        return True
    # Each worker can be in the barrier only when it has finished what it did before.
    barrier = threading.Barrier(pool._max_workers)
    results: list[bool] = []
    # In a thread of its own: an interrupt of this one could leave a lock of the pool taken for ever.
    other = threading.Thread(target=lambda: results.append(_meet(pool, barrier, timeout)), daemon=True)
    other.start()
    try:
        other.join()
    except BaseException:
        barrier.abort()  # the threads are let go
        raise
    return results == [True]


def _meet(pool: ThreadPoolExecutor, barrier: threading.Barrier, timeout: float) -> bool:
    """Let all threads of a pool come to a barrier; return whether they did in time."""
    with _finishing:
        while pool._idle_semaphore.acquire(blocking=False):
            pass  # it may count idle threads that are not: now `submit` starts threads until there are all
        done, late = wait([pool.submit(barrier.wait, timeout) for _ in range(pool._max_workers)], timeout)
        return not late and not any(future.exception() for future in done)

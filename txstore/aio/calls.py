"""Makes synchronous calls for tasks of an event loop: each in a thread of its own, so that the loop never waits.

A call keeps the context variables of its task. If the task is cancelled, it stops waiting at once, and the call goes on
to its end in its thread. A pool with a limit would let calls that wait for a lock keep out the call that releases it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, Generic, ParamSpec, TypeVar

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def start(function: Callable[[], T]) -> Future[T]:
    """Call a function in a new thread, with the caller's context variables. The process ends only after it."""
    thread = ThreadPoolExecutor(1, "txstore.aio")
    try:
        return thread.submit(contextvars.copy_context().run, function)
    finally:
        thread.shutdown(wait=False)  # after the call


async def result_of(running: Future[T], *, undo: Callable[[T], object] | None = None) -> T:
    """Wait for a call. If this is cancelled, the call goes on; `undo` then gets its result, in the call's thread."""
    try:
        return await asyncio.wrap_future(running)
    except asyncio.CancelledError:
        if undo is not None:
            running.add_done_callback(partial(_undo, undo))
        raise


def _undo(undo: Callable[[T], object], running: Future[T]) -> None:
    if not running.cancelled() and running.exception() is None:
        undo(running.result())


async def call(function: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> T:
    """Call a synchronous function in a thread of its own, as all methods of this package do.

    For what has no asynchronous method, such as zarr's synchronous arrays: `await aio.call(lambda: array[:])`. If the
    task is cancelled, this raises `CancelledError` at once; the function goes on to its end.
    """
    return await result_of(start(lambda: function(*arguments, **named)))


async def call_back(call_it: Callable[[Callable[[A], R]], T], function: Callable[[A], Awaitable[R]]) -> T:
    """Run `call_it(f)` in a thread. `f` runs the asynchronous `function` as a task of the caller's loop.

    If this is cancelled, it cancels that task and waits for its end. `f` then raises, also if it is called later.
    """
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[Any]] = set()
    is_given_up = False

    async def as_task(argument: A) -> R:
        task = asyncio.current_task()
        assert task is not None
        if is_given_up:
            raise asyncio.CancelledError
        tasks.add(task)
        try:
            return await function(argument)
        finally:
            tasks.discard(task)

    def in_thread(argument: A) -> R:
        if is_given_up:
            raise concurrent.futures.CancelledError
        return asyncio.run_coroutine_threadsafe(as_task(argument), loop).result()

    try:
        return await call(call_it, in_thread)
    finally:
        is_given_up = True
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class Listing(Generic[T_co]):
    """What a method lists. `await` it for all of it as a list, or iterate over it with `async for`.

    The iteration reads `page` elements at a time, in a thread.
    """

    def __init__(self, list_it: Callable[[], Iterable[T_co]], page: int = 100) -> None:
        self._list = list_it
        self._page = page

    def __await__(self) -> Generator[Any, None, list[T_co]]:
        return call(lambda: list(self._list())).__await__()

    async def __aiter__(self) -> AsyncIterator[T_co]:
        elements = await call(lambda: iter(self._list()))
        while page := await call(lambda: list(islice(elements, self._page))):
            for element in page:
                yield element


def each(function: Callable[P, Iterable[T]], /, *arguments: P.args, **named: P.kwargs) -> Listing[T]:
    """Iterate over what a synchronous function yields: `async for part in aio.each(diff.values, "t2m")`.

    Each element is read in a thread when the iteration comes to it. `await` gives all elements as a list.
    """
    return Listing(lambda: function(*arguments, **named), page=1)

"""Thread pools for requests to a server, so that no event loop waits for an answer."""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from txstore.observing import carried

T = TypeVar("T")
S = TypeVar("S")

#: Requests of one process that are under way at once: more than zarr asks for at a time.
THREADS = 64
#: Read-ahead requests, for callers that read many objects: short requests, whose cost is the round trip.
IN_ADVANCE = 128
#: Single requests, which wait for nothing else, that are under way for callers that ask for many at once.
REQUESTS = 64

_executors: dict[tuple[int, str], ThreadPoolExecutor] = {}


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a thread, in the context of the caller, and wait for it without holding up the event loop."""
    call = partial(contextvars.copy_context().run, function, *arguments)
    return await asyncio.get_running_loop().run_in_executor(executor("request", THREADS), call)


def in_parallel(function: Callable[[S], T], arguments: Iterable[S]) -> Iterator[T]:
    """Yield the results of calls in the order of their arguments. Requests are few at a time, in threads of their own.

    Threads that event loops wait with may be calling this.
    """
    arguments = list(arguments)
    if len(arguments) < 2:
        yield from map(function, arguments)
        return
    with ThreadPoolExecutor(min(len(arguments), THREADS), "txstore parallel requests") as threads:
        try:
            results = threads.map(carried(function), arguments)
        except RuntimeError:  # the interpreter ends, and starts no more threads
            results = map(function, arguments)
        yield from results


#: Calls that are under way at first, for a caller that looks at a few results only, and more with each of them.
_FIRST = 16


def in_advance(function: Callable[[S], T], arguments: Iterable[S], most: int, *, first: int = _FIRST) -> Generator[T]:
    """Yield the results of calls in the order of their arguments, while the next ones, `most` of them, are under way.

    They are called in the context of the caller. A call must not use this itself.
    """
    pending: deque[Future[T]] = deque()
    under_way, taken = min(first, most), 0

    def call(argument: S) -> T:
        return function(argument)

    try:
        for argument in arguments:
            try:
                context = contextvars.copy_context()
                pending.append(executor("in advance", IN_ADVANCE).submit(context.run, call, argument))
            except RuntimeError:  # the interpreter ends, and starts no more threads
                while pending:
                    yield pending.popleft().result()
                yield call(argument)
            if len(pending) > under_way:
                yield pending.popleft().result()
                taken += 1
                under_way = min(most, first * (1 + taken))
        while pending:
            yield pending.popleft().result()
    finally:
        for each in pending:
            each.cancel()


def in_background(request: Callable[[S], T], argument: S) -> Callable[[], T]:
    """Begin a single request, which waits for nothing else; return what returns or raises its answer, once."""
    try:
        under_way = [executor("single request", REQUESTS).submit(carried(request), argument)]
    except RuntimeError:  # the interpreter ends, and starts no more threads
        return partial(request, argument)
    # The caller's frame is in the traceback of an error: it must not have the future, which has the error.
    return lambda: under_way.pop().result()


def each_in_thread(request: Callable[[S], T], arguments: Sequence[S]) -> Iterator[T]:
    """Yield the results of single requests in the order of their arguments: all under way at once, in shared threads.

    A request must not call this itself: there may be no thread left for it.
    """
    if len(arguments) < 2:
        return map(request, arguments)
    try:
        return executor("single request", REQUESTS).map(carried(request), arguments)
    except RuntimeError:  # the interpreter ends, and starts no more threads
        return map(request, arguments)


def executor(purpose: str, threads: int) -> ThreadPoolExecutor:
    """Return the threads of this process for a purpose: a forked child has none of its parent's."""
    process = os.getpid()
    found = _executors.get((process, purpose))
    if found is None:
        for other in [each for each in _executors if each[0] != process]:
            _executors.pop(other, None)
        found = _executors[process, purpose] = ThreadPoolExecutor(threads, thread_name_prefix=f"txstore {purpose}")
    return found

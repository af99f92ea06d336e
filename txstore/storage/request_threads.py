"""Threads for what waits for a server, so that no event loop does."""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
S = TypeVar("S")

#: So many requests of one process are under way at once: more than zarr asks for at a time.
THREADS = 32

_executors: dict[tuple[int, str], ThreadPoolExecutor] = {}


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a thread, in the context of the caller, and wait for it without holding up the event loop."""
    call = partial(contextvars.copy_context().run, function, *arguments)
    return await asyncio.get_running_loop().run_in_executor(executor("request", THREADS), call)


def in_parallel(function: Callable[[S], T], arguments: Iterable[S]) -> Iterator[T]:
    """Yield the results of calls in the order of their arguments. Requests are few at a time, in threads of their own.

    Those that event loops wait with may be calling this.
    """
    arguments = list(arguments)
    if len(arguments) < 2:
        yield from map(function, arguments)
        return
    with ThreadPoolExecutor(min(len(arguments), THREADS), "txstore parallel requests") as threads:
        try:
            results = threads.map(function, arguments)
        except RuntimeError:  # the interpreter ends, and starts no more threads
            results = map(function, arguments)
        yield from results


def executor(purpose: str, threads: int) -> ThreadPoolExecutor:
    """Return the threads of this process for a purpose: a forked child has none of its parent's."""
    process = os.getpid()
    found = _executors.get((process, purpose))
    if found is None:
        for other in [each for each in _executors if each[0] != process]:
            _executors.pop(other, None)
        found = _executors[process, purpose] = ThreadPoolExecutor(threads, thread_name_prefix=f"txstore {purpose}")
    return found

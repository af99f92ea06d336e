"""Threads for what waits for a server, so that no event loop does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

#: So many requests of one process are under way at once: more than zarr asks for at a time.
THREADS = 32

_executors: dict[int, ThreadPoolExecutor] = {}


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a thread, and wait for it without holding up the event loop."""
    return await asyncio.get_running_loop().run_in_executor(_executor(), function, *arguments)


def _executor() -> ThreadPoolExecutor:
    """Return the threads of this process: a forked child has none of its parent's."""
    process = os.getpid()
    found = _executors.get(process)
    if found is None:
        _executors.clear()
        found = _executors[process] = ThreadPoolExecutor(THREADS, thread_name_prefix="txstore request")
    return found

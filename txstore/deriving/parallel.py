"""Computes in some threads, and takes the results in order, a few of which are held in memory at a time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

#: Prepares some work, in the caller's thread, and returns what does it.
Prepare = Callable[[], Callable[[], T]]

_THREADS = min(8, os.cpu_count() or 1)


def in_order(work: Iterable[Prepare[T]]) -> Iterator[T]:
    """Yield the results. Other threads compute them, unless there is one piece of work alone."""
    rest = iter(work)
    first = list(islice(rest, 2))
    if len(first) < 2 or _THREADS == 1:
        for prepare in first:
            yield prepare()()
        for prepare in rest:
            yield prepare()()
        return
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="txstore-views") as threads:
        running: deque[Future[T]] = deque(threads.submit(prepare()) for prepare in first)
        try:
            for prepare in rest:
                if len(running) > 2 * _THREADS:
                    yield running.popleft().result()
                running.append(threads.submit(prepare()))
            while running:
                yield running.popleft().result()
        finally:
            for each in running:
                each.cancel()

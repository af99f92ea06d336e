"""Starts a crowd of processes that do the same at the same time, and takes its time."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from typing import Any, NamedTuple

PROCESSES = 8
_SPAWN = multiprocessing.get_context("spawn")

#: Gets ready, and returns what is timed. The last argument is the number of the process.
Prepare = Callable[..., Callable[[], object]]


class Crowd(NamedTuple):
    seconds: float
    failed: int  # processes whose work has raised: it stands above


def timed_crowd(prepare: Prepare, *arguments: Any) -> Crowd:
    """Let each process get ready, then all do their work."""
    barrier = _SPAWN.Barrier(PROCESSES + 1)
    crew = [
        _SPAWN.Process(target=_take_part, args=(prepare, (*arguments, which), barrier)) for which in range(PROCESSES)
    ]
    for process in crew:
        process.start()
    barrier.wait(120)
    began = time.perf_counter()
    barrier.wait(600)
    seconds = time.perf_counter() - began
    for process in crew:
        process.join()
    return Crowd(seconds, sum(process.exitcode != 0 for process in crew))


def _take_part(prepare: Prepare, arguments: tuple[Any, ...], barrier: Barrier) -> None:
    work = prepare(*arguments)
    barrier.wait(120)
    try:
        work()
    finally:
        barrier.wait(600)

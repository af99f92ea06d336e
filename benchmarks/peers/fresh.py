"""Samples in processes of their own, so that nobody profits from what an earlier sample has left in memory.

They are forked from a process that has imported zarr and used nothing: that is half of the time that a process takes to
begin. One that takes part in a crowd says when it is ready, and waits for the others.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any, Self

from benchmarks.peers.peer import NotOffered

DEADLINE = 900.0

Values = dict[str, float]
#: What a process can be asked to do. One that meets others gets `meet`, too: it returns when all of them are ready.
Task = Callable[..., Values]


class Failed(Exception):
    """The process has ended with an error, or not at all."""


@cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["zarr", __name__])
    return context


class Process:
    """A new process that does one task. A context manager; ends it."""

    def __init__(self, task: Task, *, meets: bool = False, **order: Any) -> None:
        self._ours, theirs = _context().Pipe()
        self._process = _context().Process(target=_do, args=(theirs, task, meets, order), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.join()
        self._ours.close()

    def wait_until_ready(self) -> None:
        self._receive("ready")

    def go(self) -> None:
        self._ours.send("go")

    def answer(self) -> Values:
        values: Values = self._receive("values")
        self._process.join(DEADLINE)  # it lets go of its files first
        return values

    def _receive(self, wanted: str) -> Any:
        try:
            if not self._ours.poll(DEADLINE):
                raise Failed(f"no answer within {DEADLINE:.0f} s")
            kind, said = self._ours.recv()
        except EOFError:
            self._process.join()
            raise Failed(f"it has ended with {self._process.exitcode}") from None
        if kind == "not offered":
            raise NotOffered(said)
        if kind != wanted:
            raise Failed(said)
        return said


def ask(task: Task, **order: Any) -> Values:
    """Return what a task returns in a new process."""
    with Process(task, **order) as process:
        return process.answer()


def _do(answers: Connection, task: Task, meets: bool, order: Mapping[str, Any]) -> None:
    warnings.simplefilter("ignore")
    sys.stdout = sys.stderr  # libraries print, too

    def wait_for_others() -> None:
        answers.send(("ready", None))
        answers.recv()

    try:
        answers.send(("values", task(**order, **({"meet": wait_for_others} if meets else {}))))
    except NotOffered as why:
        answers.send(("not offered", str(why)))
    except Exception as error:  # noqa: BLE001 - whatever a peer raises is why it is left out
        answers.send(("failed", f"{type(error).__name__}: {error}"[:300]))
    os._exit(0)  # no time for threads and caches that are of no use any more

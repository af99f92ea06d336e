"""Samples in processes of their own, so that none profits from what an earlier sample has left in memory.

They are forked from a process that has imported zarr and used nothing: that is half of the time that a process takes to
begin. A task that has an argument `parent` gets one, by which it can meet others and tell what happens meanwhile.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any, Self

DEADLINE = 900.0

Values = dict[str, Any]
Task = Callable[..., Any]


class Failed(Exception):
    """The process has ended with an error, or not at all."""


class NotOffered(Exception):
    """A store can't do this work; the message says why."""


class Parent:
    """The process that has asked for a task, as the task sees it."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def tell(self, said: object) -> None:
        self._pipe.send(said)

    def meet(self) -> None:
        """Return when the parent lets this process go on, as it does when all are here that work together."""
        self.tell(None)
        self._pipe.recv()


class Process:
    """A new process that does one task. A context manager; ends it."""

    def __init__(self, task: Task, /, **order: Any) -> None:
        self._ours, theirs = _context().Pipe()
        self._process = _context().Process(target=_do, args=(theirs, task, order), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.join()
        self._ours.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def go(self) -> None:
        self._ours.send("go")

    def answer(self) -> Any:
        """Return what the task returns."""
        values = self.hear()
        self._process.join(DEADLINE)  # it lets go of its files first
        return values

    def hear(self) -> Any:
        """Return what the task tells next; when it meets others, that is None, and it waits for `go`."""
        try:
            if not self._ours.poll(DEADLINE):
                raise Failed(f"no answer within {DEADLINE:.0f} s")
            said = self._ours.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            raise Failed(f"it has ended with {self._process.exitcode}") from None
        if isinstance(said, Failed | NotOffered):
            raise said
        return said


@cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["zarr", __name__])
    return context


def ask(task: Task, /, **order: Any) -> Any:
    """Return what a task returns in a new process."""
    with Process(task, **order) as process:
        return process.answer()


def together(
    task: Task, orders: Iterable[Mapping[str, Any]], *, meetings: int = 1, before: Callable[[], object] | None = None
) -> list[Any]:
    """Let a process for each order do a task, and return the answers.

    The processes meet so many times. `before` is called when all are there the first time, and wait.
    """
    with ExitStack() as stack:
        crew = [stack.enter_context(Process(task, **order)) for order in orders]
        for number in range(meetings):
            for each in crew:
                each.hear()
            if before is not None and not number:
                before()
            for each in crew:
                each.go()
        return [each.answer() for each in crew]


def _do(answers: Connection, task: Task, order: Mapping[str, Any]) -> None:
    warnings.simplefilter("ignore")
    sys.stdout = sys.stderr  # libraries print, too
    talks = {"parent": Parent(answers)} if "parent" in inspect.signature(task).parameters else {}
    try:
        answers.send(task(**order, **talks))
    except NotOffered as why:
        answers.send(why)
    except Exception as error:  # noqa: BLE001 - whatever a store raises is why it is left out
        answers.send(Failed(f"{type(error).__name__}: {error}"[:300]))
    os._exit(0)  # no time for threads and caches that are of no use any more

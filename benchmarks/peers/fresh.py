"""Samples in processes of their own, so that nobody profits from what an earlier sample has left in memory.

A process gets an order as the first line of its stdin, and answers with a line of JSON. One that takes part in a
crowd says before that it is ready, and waits for a second line.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Self

from benchmarks.peers.peer import NotOffered

ROOT = Path(__file__).parents[2]
DEADLINE = 900.0

#: What a process can be asked to do, by name.
Tasks = Mapping[str, Callable[..., dict[str, Any]]]


class Failed(Exception):
    """The process has ended with an error, or not at all."""


class Process:
    """A process that does one task of `tasks.TASKS`. A context manager; ends it."""

    def __init__(self, task: str, **order: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers.tasks"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._write(json.dumps({"task": task, **order}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):
                _there(pipe).close()

    def _write(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # the answer will say why
            _there(self._process.stdin).write(f"{line}\n".encode())
            _there(self._process.stdin).flush()

    def wait_until_ready(self) -> None:
        _there(self._process.stdout).readline()

    def go(self) -> None:
        self._write("go")

    def answer(self) -> dict[str, Any]:
        try:
            said, error = self._process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            raise Failed(f"no answer within {DEADLINE:.0f} s") from None
        if self._process.returncode:
            last = error.decode(errors="replace").strip().splitlines()[-1:]
            raise Failed((last or [f"exit status {self._process.returncode}"])[0][:300])
        answer: dict[str, Any] = json.loads(said)
        if "not offered" in answer:
            raise NotOffered(answer["not offered"])
        values: dict[str, Any] = answer["values"]
        return values


def _there(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise AssertionError("it was started with pipes")
    return pipe


def ask(task: str, **order: Any) -> dict[str, Any]:
    """Return what `tasks.TASKS[task]` returns in a new process."""
    with Process(task, **order) as process:
        return process.answer()

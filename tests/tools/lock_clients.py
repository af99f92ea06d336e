"""Lock tables with exceptions of their own, and processes that use one and do as they are told."""

import importlib
import os
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import pytest

from tests.tools.workers import QUICK
from txstore.locks import chunk_locks

#: The kinds of locks that there are here.
KINDS = ["table"] * (chunk_locks.locktable is not None) + ["ranges"] * (sys.platform == "linux") + ["files"]

TIMEOUT = 60
INIT = 1 << 40


class TimedOut(Exception):
    def __init__(self, keys: list[str], holder: int) -> None:
        super().__init__(keys, holder)
        self.keys = keys
        self.holder = holder


class Lost(Exception):
    def __init__(self, keys: list[str]) -> None:
        super().__init__(keys)
        self.keys = keys


class Forked(Exception):
    pass


def native() -> Any:
    """The C extension; the test is skipped where it was not built."""
    return pytest.importorskip("txstore._native._locktable", exc_type=ImportError)


def open_table(path: object, **options: Any) -> Any:
    module = importlib.import_module("txstore._native._locktable")
    return module.LockTable(str(path), timed_out=TimedOut, lost=Lost, forked=Forked, **options)


def take_byte(fd: int, byte: int) -> None:
    """Take one of the file's byte locks as a process of its own would: an open file description is one."""
    import fcntl

    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))


def is_free(table: Any, keys: str | list[str]) -> bool:
    """Could another owner of this process have them all?"""
    other = table.owner()
    try:
        other.acquire(keys, 0)
    except TimedOut:
        return False
    finally:
        other.close()
    return True


def descriptors_of(path: object, process: int | str = "self") -> list[int]:
    """A process's descriptors of the file, or of what lies beside it under a longer name."""
    found = []
    for fd in os.listdir(f"/proc/{process}/fd"):
        try:
            found += [int(fd)] if os.readlink(f"/proc/{process}/fd/{fd}").startswith(str(path)) else []
        except FileNotFoundError:  # of the listing itself, or closed meanwhile
            continue
    return found


class Client:
    """A process with a table and an owner: `client.acquire("a")` runs there, and returns or raises here."""

    def __init__(self, path: object, *, act: Callable[..., Any] | None = None) -> None:
        self.pipe, theirs = QUICK.Pipe()
        self.process = QUICK.Process(target=_serve, args=(theirs, str(path), act), daemon=True)
        self.process.start()
        theirs.close()
        self.pid = self.process.pid

    def start(self, method: str, *arguments: Any, **named: Any) -> None:
        self.pipe.send((method, arguments, named))

    def answered(self, timeout: float = 0) -> bool:
        return self.pipe.poll(timeout)

    def finish(self) -> Any:
        assert self.pipe.poll(TIMEOUT), "the client does not answer"
        well, answer = self.pipe.recv()
        if not well:
            raise answer
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.process.join(TIMEOUT)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.start(method, *arguments, **named)
            return self.finish()

        return call


@contextmanager
def clients(path: object, count: int, *, act: Callable[..., Any] | None = None) -> Iterator[list[Client]]:
    """Clients of one table, all ended afterwards."""
    started: list[Client] = []
    try:
        for _ in range(count):
            started.append(Client(path, act=act))
        for client in started:
            assert client.identity() > 0  # it is up
        yield started
    finally:
        for client in started:
            client.kill()
            client.pipe.close()


def _serve(pipe: Connection, path: str, act: Callable[..., Any] | None) -> None:
    table = open_table(path)
    owner = table.owner()
    while True:
        try:
            method, arguments, named = pipe.recv()
        except EOFError:
            return
        try:
            if method == "act":
                answer = act(table, owner, *arguments, **named)
            else:
                found = getattr(owner, method, None) or getattr(table, method)
                answer = found(*arguments, **named) if callable(found) else found
            pipe.send((True, answer))
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whoever asked is told
            error.add_note(traceback.format_exc())
            pipe.send((False, error))

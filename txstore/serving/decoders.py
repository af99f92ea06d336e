"""The processes that decode for pictures (`codecs/apart.py`): begun when needed, ended with a request."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection, Pipe
from typing import Any, NamedTuple

from txstore import processes
from txstore.serving.answers import Failure

#: What one picture may take: bytes of memory, besides those of an idle process, and seconds.
MEMORY, SECONDS = 1 << 30, 30.0
#: Bytes of one answer, of which most are numbers of a picture.
_ANSWER = 16 << 20
#: Seconds that an idle process is kept.
_KEPT = 30.0

#: Returns a part of a value, or all of it; None if there is no such key.
Fetch = Callable[[str, slice | None], memoryview | None]


class Stop:
    """Ends the work for a request when its client has left. Safe in threads."""

    def __init__(self) -> None:
        self._lock = processes.new_lock()
        self._end: Callable[[], None] | None = None
        self.is_set = False

    def set(self) -> None:
        with self._lock:
            self.is_set = True
            if self._end is not None:
                self._end()

    @contextlib.contextmanager
    def ending(self, end: Callable[[], None]) -> Iterator[None]:
        """Have `end` called when this is set: at once, or before the block is left, and not after that."""
        with self._lock:
            self._end = end
            if self.is_set:
                end()
        try:
            yield
        finally:
            with self._lock:
                self._end = None


class _EndedError(Exception):
    """The process has ended before it has answered."""


class _Decoder:
    def __init__(self) -> None:
        self.is_new = True
        self.has_begun = False
        self._connection, theirs = Pipe()
        # It imports the modules that this process would. Its libraries make no threads, each with memory of its own.
        path = os.pathsep.join(each or os.getcwd() for each in sys.path)
        environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-P", "-m", "txstore.codecs.apart", str(theirs.fileno()), str(MEMORY), str(SECONDS)]
        with theirs:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()], env=environment,
            )  # fmt: skip
        self.end = weakref.finalize(self, _end, os.getpid(), self.process, self._connection)

    def ask(self, question: Mapping[str, Any], fetch: Fetch) -> tuple[dict[str, Any], bytes]:
        """Return the answer, and give the values that are asked for until it comes."""
        self.has_begun = False
        self._send(_encoded(question))
        while "key" in (told := json.loads(self._receive())):
            self.has_begun = True
            value = fetch(told["key"], None if told["part"] is None else slice(*told["part"]))
            self._send(_encoded(None if value is None else len(value)))
            if value is not None:
                self._send(value)
        self.is_new = False
        return told, self._receive()

    def _send(self, content: bytes | memoryview) -> None:
        try:
            self._connection.send_bytes(content)
        except OSError:
            raise _EndedError from None

    def _receive(self) -> bytes:
        try:
            return self._connection.recv_bytes(_ANSWER)
        except (EOFError, OSError):
            raise _EndedError from None


def _end(owner: int, process: subprocess.Popen[bytes], connection: Connection) -> None:
    if os.getpid() == owner:  # and not a process that was forked from it
        process.kill()
        process.wait()
    connection.close()


class _Idle(NamedTuple):
    decoder: _Decoder
    since: float


class Decoders:
    """As many processes as threads call `ask` at once; one that is idle is used again. Safe in threads."""

    def __init__(self) -> None:
        self._idle: list[_Idle] = []
        self._lock = processes.new_lock()

    def ask(
        self, path: str, zarr_format: int, taken: list[Any], fetch: Fetch, stop: Stop
    ) -> tuple[dict[str, Any], bytes]:
        """Return what is told of a part of an array, and its numbers. Raises `Failure`, or what `fetch` does.

        `taken` has for each axis a number, or where a slice begins and ends, and its step.
        """
        decoder = self._take()
        try:
            with stop.ending(decoder.process.kill):
                told, body = decoder.ask({"path": path, "zarr_format": zarr_format, "taken": taken}, fetch)
        except _EndedError:
            decoder.end()
            if not (decoder.is_new or decoder.has_begun or stop.is_set):  # it had ended while it was idle
                return self.ask(path, zarr_format, taken, fetch, stop)
            raise _failure_of(decoder.process.returncode, path) from None
        except BaseException:
            decoder.end()
            raise
        if stop.is_set or "failed" in told:
            decoder.end()
            raise _refusal(told.get("failed", "it was given up"), path)
        with self._lock:
            self._idle.append(_Idle(decoder, time.monotonic()))
        return told, body

    def _take(self) -> _Decoder:
        while True:
            with self._lock:
                decoder = self._idle.pop().decoder if self._idle else None
            if decoder is None:
                return _Decoder()
            if decoder.process.poll() is None:
                return decoder
            decoder.end()

    def let_go(self, *, idle: float = _KEPT) -> bool:
        """End the processes that were idle for some seconds. Return whether others are left."""
        before = time.monotonic() - idle
        with self._lock:
            old = [each for each in self._idle if each.since <= before]
            self._idle = [each for each in self._idle if each.since > before]
            is_any_left = bool(self._idle)
        for each in old:
            each.decoder.end()
        return is_any_left


def _encoded(told: Any) -> bytes:
    return json.dumps(told).encode()


def _failure_of(code: int, path: str) -> Failure:
    if code == -signal.SIGALRM:
        return Failure(413, "TooLarge", f"{path!r} takes more than {SECONDS:g} s to be decoded: select a part of it")
    return Failure(413, "TooLarge", f"the process that decoded {path!r} has ended, perhaps for want of memory")


def _refusal(reason: str, path: str) -> Failure:
    if reason == "memory":
        return Failure(413, "TooLarge", f"{path!r} needs more than {MEMORY >> 20} MiB of memory to be decoded")
    return Failure(400, "NoPicture", f"{path!r} can't be decoded: {reason}")

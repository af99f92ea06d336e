"""Starts processes that decode chunks for pictures (`codecs/decoder_process.py`), and ends each with its request."""

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

#: Limits for one picture: bytes of memory, beyond those of an idle process, and seconds.
MEMORY, SECONDS = 1 << 30, 30.0
#: Bytes of one answer, which is mostly the numbers of a picture.
_ANSWER = 16 << 20
#: Seconds before an idle process is ended.
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
        """Call `end` when this is set: at once, or while the block runs, and never after the block."""
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
    """The process ended before it answered."""


class _Decoder:
    def __init__(self) -> None:
        self.is_new = True
        self.has_begun = False
        self._connection, theirs = Pipe()
        # It finds the same modules as this process. Its libraries start no threads, because each takes memory.
        path = os.pathsep.join(each or os.getcwd() for each in sys.path)
        environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        command = [
            sys.executable,
            "-P",
            "-m",
            "txstore.codecs.decoder_process",
            str(theirs.fileno()),
            str(MEMORY),
            str(SECONDS),
        ]
        with theirs:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()], env=environment,
            )  # fmt: skip
        self.end = weakref.finalize(self, _end, os.getpid(), self.process, self._connection)

    def ask(self, question: Mapping[str, Any], fetch: Fetch) -> tuple[dict[str, Any], bytes]:
        """Return the answer. Until it comes, supply the values that the process asks for."""
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
    if os.getpid() == owner:  # not in a forked child
        process.kill()
        process.wait()
    connection.close()


class _Idle(NamedTuple):
    decoder: _Decoder
    since: float


class Decoders:
    """One process for each thread inside `ask`; idle processes are used again. Safe in threads."""

    def __init__(self) -> None:
        self._idle: list[_Idle] = []
        self._lock = processes.new_lock()

    def ask(
        self, path: str, zarr_format: int, taken: list[Any], fetch: Fetch, stop: Stop
    ) -> tuple[dict[str, Any], bytes]:
        """Return the description of a part of an array, and its numbers. Raises `Failure`, and the errors of `fetch`.

        `taken` has for each axis an index, or the start, stop and step of a slice.
        """
        decoder = self._take()
        try:
            with stop.ending(decoder.process.kill):
                told, body = decoder.ask({"path": path, "zarr_format": zarr_format, "taken": taken}, fetch)
        except _EndedError:
            decoder.end()
            if not (decoder.is_new or decoder.has_begun or stop.is_set):  # the process had ended while it was idle
                return self.ask(path, zarr_format, taken, fetch, stop)
            raise _failure_of(decoder.process.returncode, path) from None
        except BaseException:
            decoder.end()
            raise
        if stop.is_set or "failed" in told:
            decoder.end()
            raise _refusal(told.get("failed", "the request was stopped"), path)
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
        """End the processes that have been idle for `idle` seconds. Return whether others are left."""
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
        return Failure(413, "TooLarge", f"{path!r} takes more than {SECONDS:g} s to decode: select a part of it")
    return Failure(413, "TooLarge", f"the process that decoded {path!r} has ended, perhaps for lack of memory")


def _refusal(reason: str, path: str) -> Failure:
    if reason == "memory":
        return Failure(413, "TooLarge", f"{path!r} needs more than {MEMORY >> 20} MiB of memory to decode")
    return Failure(400, "NoPicture", f"{path!r} can't be decoded: {reason}")

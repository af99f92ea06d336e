"""How a caller makes calls to a storage: directly, in a thread outside the event loop, or many in parallel.

And the background clean-up: requests that no caller waits for. One thread sends them, one after the other. A finalizer
must not send a request itself. The garbage collector calls it in any thread, at any point. An event loop's thread must
not block, and some libraries refuse to send a request there. Another thread may hold a lock that the request needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from txstore import processes
from txstore.errors import TxStoreError
from txstore.storage.kept import FileReader
from txstore.storage.request_threads import in_advance, in_parallel, in_thread

T = TypeVar("T")
S = TypeVar("S")
Work = Callable[[], object]


class Dispatch:
    """Makes calls for callers that have many of them, or that must not block.

    This one is for a local disk, where no call takes long.
    """

    def each(self, function: Callable[[S], T], arguments: Iterable[S]) -> Iterator[T]:
        """Yield the results of calls in the order of their arguments."""
        return map(function, arguments)

    def in_advance(self, function: Callable[[S], T], arguments: Iterable[S], most: int) -> Iterator[T]:
        """As `each`, and lazily: at most `most` calls are under way before their turn."""
        return map(function, arguments)

    def reader(self, read_range: Callable[[str, int, int], bytes]) -> FileReader:
        """Return what reads many ranges of files one after the other. For one thread."""
        return FileReader(read_range, ahead=False)

    async def awaited(self, function: Callable[..., T], *arguments: object) -> T:
        """Make a call from an event loop, and do not hold it up for long."""
        return function(*arguments)

    def outside_loop(self, work: Work) -> None:
        """Do it, but not in the thread of an event loop if it takes long."""
        work()

    def expect_cleanup(self) -> None:
        """Prepare for `clean_up_later`. A finalizer itself must not start a thread."""

    def clean_up_later(self, work: Work) -> None:
        """Do it without making the caller wait for a request; a finalizer may call this."""
        work()


class InThread(Dispatch):
    """A call may take long: the system waits for another machine."""

    async def awaited(self, function: Callable[..., T], *arguments: object) -> T:
        return await in_thread(function, *arguments)

    def expect_cleanup(self) -> None:
        _expect_cleanup()

    def clean_up_later(self, work: Work) -> None:
        """Do it in the thread, unless the process ends: there it drops its `OSError` and `TxStoreError`."""
        if _process == os.getpid() and threading.main_thread().is_alive():
            _waiting.put((os.getpid(), work))
        else:
            _clean_up(os.getpid(), work)


class InParallel(InThread):
    """A call takes a round trip or more: many are under way at the same time."""

    def each(self, function: Callable[[S], T], arguments: Iterable[S]) -> Iterator[T]:
        return in_parallel(function, arguments)

    def in_advance(self, function: Callable[[S], T], arguments: Iterable[S], most: int) -> Iterator[T]:
        return in_advance(function, arguments, most)

    def reader(self, read_range: Callable[[str, int, int], bytes]) -> FileReader:
        return FileReader(read_range, ahead=True)

    def outside_loop(self, work: Work) -> None:
        if asyncio._get_running_loop() is None:
            work()
            return
        # It must not wait for a server: the loop may be the one that the answer would come through.
        try:
            threading.Thread(target=work, name="txstore end").start()
        except RuntimeError:  # the interpreter ends
            work()


# --- background clean-up

_waiting: queue.SimpleQueue[tuple[int, Work]] = queue.SimpleQueue()  # whose `put` may be called by a finalizer
_lock = processes.new_lock()
_process = 0  # that has the thread


def _expect_cleanup() -> None:
    """Start the thread, if it does not run yet."""
    global _process  # noqa: PLW0603
    with _lock:
        if _process != os.getpid():
            threading.Thread(target=_clean_up_all, name="txstore background clean-up", daemon=True).start()
            processes.at_exit(_finish)
            _process = os.getpid()


def wait_for_cleanup(seconds: float) -> bool:
    """Wait until the thread has run all requests queued so far; return False if the time ran out first."""
    if _process != os.getpid():
        return True
    done = threading.Event()
    _waiting.put((os.getpid(), done.set))
    return done.wait(seconds)


def _clean_up_all() -> None:
    while True:
        _clean_up(*_waiting.get())


def _finish() -> None:
    """Run the remaining requests when the process ends: its threads may not get to them."""
    with contextlib.suppress(queue.Empty):
        while True:
            _clean_up(*_waiting.get_nowait())


def _clean_up(process: int, work: Work) -> None:
    if process == os.getpid():  # else it was the parent's, before a fork
        with contextlib.suppress(OSError, TxStoreError):
            work()

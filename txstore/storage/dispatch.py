"""How a caller makes calls to a storage: directly, in a thread outside the event loop, or many in parallel."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from txstore.storage import background_cleanup
from txstore.storage.background_cleanup import Work
from txstore.storage.kept import FileReader
from txstore.storage.request_threads import in_advance, in_parallel, in_thread

T = TypeVar("T")
S = TypeVar("S")


class Dispatch(Protocol):
    """Makes calls for callers that have many of them, or that must not block."""

    def each(self, function: Callable[[S], T], arguments: Iterable[S]) -> Iterator[T]:
        """Yield the results of calls in the order of their arguments."""

    def in_advance(self, function: Callable[[S], T], arguments: Iterable[S], most: int) -> Iterator[T]:
        """As `each`, and lazily: at most `most` calls are under way before their turn."""

    def reader(self, read_range: Callable[[str, int, int], bytes]) -> FileReader:
        """Return what reads many ranges of files one after the other. For one thread."""

    async def awaited(self, function: Callable[..., T], *arguments: object) -> T:
        """Make a call from an event loop, and do not hold it up for long."""

    def outside_loop(self, work: Work) -> None:
        """Do it, but not in the thread of an event loop if it takes long."""

    def expect_cleanup(self) -> None:
        """Prepare for `clean_up_later`. A finalizer itself must not start a thread."""

    def clean_up_later(self, work: Work) -> None:
        """Do it without making the caller wait for a request; a finalizer may call this."""


class AtOnce:
    """On a local disk no call takes long."""

    def each(self, function: Callable[[S], T], arguments: Iterable[S]) -> Iterator[T]:
        return map(function, arguments)

    def in_advance(self, function: Callable[[S], T], arguments: Iterable[S], most: int) -> Iterator[T]:
        return map(function, arguments)

    def reader(self, read_range: Callable[[str, int, int], bytes]) -> FileReader:
        return FileReader(read_range, ahead=False)

    async def awaited(self, function: Callable[..., T], *arguments: object) -> T:
        return function(*arguments)

    def outside_loop(self, work: Work) -> None:
        work()

    def expect_cleanup(self) -> None:
        """`clean_up_later` needs no thread."""

    def clean_up_later(self, work: Work) -> None:
        work()


class InThread(AtOnce):
    """A call may take long: the system waits for another machine."""

    async def awaited(self, function: Callable[..., T], *arguments: object) -> T:
        return await in_thread(function, *arguments)

    def expect_cleanup(self) -> None:
        background_cleanup.expect()

    def clean_up_later(self, work: Work) -> None:
        background_cleanup.do_later(work)


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

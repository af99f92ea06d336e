"""The common part of the backends over fsspec's asynchronous file systems: calls into their loop, ranges, pages."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from fsspec.asyn import sync

from txstore.storage.objects.backend import (
    LONGEST_SECONDS,
    PARALLEL_REQUESTS,
    Object,
    Objects,
    Versions,
    above,
    as_bytes,
    clock_of,
    joined,
    size_of,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

S = TypeVar("S")
T = TypeVar("T")


async def each_of(function: Callable[[S], Awaitable[T]], arguments: Iterable[S]) -> list[T]:
    """Return the results of a function for each argument, with `PARALLEL_REQUESTS` calls at a time."""
    slots = asyncio.Semaphore(PARALLEL_REQUESTS)

    async def one(argument: S) -> T:
        async with slots:
            return await function(argument)

    return await asyncio.gather(*map(one, arguments))


class AsyncBackend(ABC):
    """A `Backend` whose requests are coroutines, which run on the loop of an fsspec file system."""

    await_range = None
    versions: Versions | None = None

    def __init__(self, filesystem: Any, prefix: str) -> None:
        self._fs = filesystem
        self._prefix = prefix  # of the names of all objects: empty, or with a slash at its end

    def _run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        result: T = sync(self._fs.loop, function, *args, timeout=LONGEST_SECONDS)
        return result

    def _directory(self, path: str) -> str:
        """Return the prefix of all names in a directory."""
        return self._prefix + (path + "/" if path else "")

    @property
    def versions_begun(self) -> int:
        return 0

    # --- the requests

    @abstractmethod
    async def _get(self, path: str) -> bytes: ...

    @abstractmethod
    async def _get_range(self, path: str, offset: int, length: int) -> bytes: ...

    @abstractmethod
    async def _get_tail(self, path: str, length: int) -> tuple[bytes, int]: ...

    @abstractmethod
    async def _list(self, directory: str) -> list[Object]: ...

    @abstractmethod
    async def _put(self, path: str, content: bytes, *, is_new: bool) -> None:
        """Write an object; with `is_new`, only if there is none."""

    @abstractmethod
    async def _delete(self, paths: Sequence[str]) -> None: ...

    @abstractmethod
    async def _date(self) -> str | None:
        """Return the Date header of some answer."""

    # --- as a `Backend`

    def get(self, path: str) -> bytes:
        return self._run(self._get, path)

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        return self._run(self._get_range, path, offset, length)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._run(each_of, lambda wanted: self._get_range(path, *wanted), ranges)

    def get_tail(self, path: str, length: int) -> tuple[bytes, int]:
        return self._run(self._get_tail, path, length)

    def list(self, directory: str) -> list[Object]:
        return self._run(self._list, directory)

    def list_after(self, directory: str, name: str, limit: int) -> Objects | None:
        return None

    def is_link(self, path: str) -> bool:
        return False

    def put(self, path: str, parts: Sequence[Buffer]) -> None:
        self._run(lambda: self._put(path, as_bytes(joined(parts)), is_new=False))

    def create(self, path: str, parts: Sequence[Buffer]) -> None:
        self._run(lambda: self._put(path, as_bytes(joined(parts)), is_new=True))

    def delete(self, paths: Sequence[str]) -> None:
        self._run(self._delete, paths)

    def now(self) -> float:
        return clock_of(self._run(self._date))


class PagedBackend(AsyncBackend):
    """A backend whose server takes HTTP's Range header, and lists page by page, from any name on."""

    page = 1000  # names in one answer to a listing

    @abstractmethod
    async def _ask(self, path: str, wanted: str | None) -> tuple[bytes, str | None]:
        """Return an object, or the wanted part of it, and its Content-Range; nothing, if it ends before that."""

    @abstractmethod
    async def _page(
        self, directory: str, most: int, *, start: str | None, token: str | None
    ) -> tuple[list[Object], str | None]:
        """Return one page of a listing, of names above `start`, or from it on, and the token of the next one."""

    async def _get(self, path: str) -> bytes:
        return (await self._ask(path, None))[0]

    async def _get_range(self, path: str, offset: int, length: int) -> bytes:
        return (await self._ask(path, f"bytes={offset}-{offset + length - 1}"))[0]

    async def _get_tail(self, path: str, length: int) -> tuple[bytes, int]:
        content, content_range = await self._ask(path, f"bytes=-{length}")
        if content_range is not None:
            return content, size_of(content_range)
        return content[-length:], len(content)  # some servers give all of an object that is shorter

    async def _list(self, directory: str) -> list[Object]:
        found, token = await self._page(directory, self.page, start=None, token=None)
        while token is not None:
            more, token = await self._page(directory, self.page, start=None, token=token)
            found += more
        return found

    async def _list_after(self, directory: str, name: str, limit: int) -> Objects:
        start = self._directory(directory) + name
        # Two more: the name itself may be listed, and a directory of that name, which is above it with its slash.
        most = min(limit + 2, self.page)
        found, token = await self._page(directory, most, start=start, token=None)
        while token is not None and len(found) < limit + 2:  # a page may be shorter than asked for, or empty
            more, token = await self._page(directory, most, start=start, token=token)
            found += more
        return above(found, name, limit)

    def list_after(self, directory: str, name: str, limit: int) -> Objects | None:
        return self._run(self._list_after, directory, name, limit)

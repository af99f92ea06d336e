"""Reads web servers for imports: of one answer no more than fits in memory, and no host that only we can reach."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import aiohttp
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from zarr.storage import FsspecStore

from txstore.codecs.bounded_codecs import MOST_IN_MEMORY
from txstore.errors import SourceError
from txstore.storage.objects import web
from txstore.storage.objects.urls import public
from txstore.storage.objects.web import BoundedAnswer, inner_host

#: The size that a server has told of the file that is read, in bytes; None: it was not asked.
_told: ContextVar[int | None] = ContextVar("txstore_told_size", default=None)


@contextmanager
def no_more_than(size: int | None) -> Iterator[None]:
    """Keep no more of an answer than this while the block runs: many requests are under way at once."""
    before = _told.set(size)
    try:
        yield
    finally:
        _told.reset(before)


class AnswerInMemory(BoundedAnswer):
    """An answer may also be compressed: a few megabytes may unpack to any number."""

    @property
    def whole(self) -> int:
        told = _told.get()
        return MOST_IN_MEMORY if told is None else min(told, MOST_IN_MEMORY)

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        await super().start(connection)
        if self.content_length is None or "Content-Encoding" in self.headers:  # else it ends where it says
            self.content = _BoundedStream(self.content)  # type: ignore[assignment]
        return self


class _BoundedStream:
    """A stream of at most `MOST_IN_MEMORY` bytes. Caches of fsspec write it to a disk, piece by piece."""

    def __init__(self, stream: aiohttp.StreamReader) -> None:
        self._stream, self._left = stream, MOST_IN_MEMORY

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def read(self, size: int = -1) -> bytes:
        piece = await self._stream.read(size)
        self._left -= len(piece)
        if self._left < 0:
            raise OSError(f"the server sends more than {MOST_IN_MEMORY:,} bytes, and did not say so: download it first")
        return piece


class PagesAsStore(FsspecStore):
    """A directory of a web server, read through our client: zarr would copy the file system without it, by JSON.

    A page has links that are no names: what sorts it, `?C=N;O=D`, and the directory above. A file that is not among
    `sizes`, in bytes by key, is none.
    """

    def __init__(self, fs: Any, root: str, sizes: Mapping[str, int]) -> None:
        super().__init__(AsyncFileSystemWrapper(fs, asynchronous=True), read_only=True, path=root)
        self._sizes = sizes

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        if key not in self._sizes:
            return None
        with no_more_than(self._sizes[key]):
            return await super().get(key, prototype, byte_range)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        async for name in super().list_dir(prefix):
            if (stripped := name.rstrip("/")) and not {"?", "/"} & {*stripped}:
                yield stripped


async def client(**options: Any) -> aiohttp.ClientSession:
    """Return a client for fsspec's file systems of the web."""
    session: aiohttp.ClientSession = web.client(_check_redirect, AnswerInMemory, **options)
    return session


async def _check_redirect(_: Any, __: Any, request: Any) -> None:
    if (host := await inner_host(request)) is not None:
        raise SourceError(
            public(str(request.url)), f"it leads to {host}, which is no public host: give that URL itself"
        )

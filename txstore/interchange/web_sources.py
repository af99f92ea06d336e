"""Reads web servers for imports: of one answer no more than fits in memory, and no host that only we can reach."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from zarr.storage import FsspecStore

from txstore.codecs.bounded_codecs import MOST_IN_MEMORY
from txstore.errors import SourceError
from txstore.storage.objects import web
from txstore.storage.objects.urls import public
from txstore.storage.objects.web import BoundedAnswer, inner_host


class AnswerInMemory(BoundedAnswer):
    """An answer may also be compressed: a few megabytes may unpack to any number."""

    whole = MOST_IN_MEMORY


class PagesAsStore(FsspecStore):
    """A directory of a web server, read through our client: zarr would copy the file system without it, by JSON.

    A page has links that are no names: what sorts it, `?C=N;O=D`, and the directory above.
    """

    def __init__(self, fs: Any, root: str) -> None:
        super().__init__(AsyncFileSystemWrapper(fs, asynchronous=True), read_only=True, path=root)

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

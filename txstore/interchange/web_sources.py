"""Reads web servers for imports: of one answer no more than fits in memory, and no host that only we can reach."""

from __future__ import annotations

from typing import Any

import aiohttp

from txstore.codecs.bounded_codecs import MOST_IN_MEMORY
from txstore.errors import SourceError
from txstore.storage.objects import web
from txstore.storage.objects.urls import public
from txstore.storage.objects.web import BoundedAnswer, inner_host


class AnswerInMemory(BoundedAnswer):
    """An answer may also be compressed: a few megabytes may unpack to any number."""

    whole = MOST_IN_MEMORY


async def client(**options: Any) -> aiohttp.ClientSession:
    """Return a client for fsspec's file systems of the web."""
    session: aiohttp.ClientSession = web.client(_check_redirect, AnswerInMemory, **options)
    return session


async def _check_redirect(_: Any, __: Any, request: Any) -> None:
    if (host := await inner_host(request)) is not None:
        raise SourceError(
            public(str(request.url)), f"it leads to {host}, which is no public host: give that URL itself"
        )

"""Reads web servers for imports: of one answer no more than fits in memory, and no host that only we can reach."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from typing import Any

import aiohttp

from txstore.codecs.bounded_codecs import MOST_IN_MEMORY
from txstore.errors import SourceError
from txstore.storage.objects.urls import public
from txstore.storage.objects.web import BoundedAnswer


class AnswerInMemory(BoundedAnswer):
    """An answer may also be compressed: a few megabytes may unpack to any number."""

    whole = MOST_IN_MEMORY


async def client(**options: Any) -> aiohttp.ClientSession:
    """Return a client for fsspec's file systems of the web."""
    tracing = aiohttp.TraceConfig()
    tracing.on_request_redirect.append(_check_redirect)
    own = {"response_class": AnswerInMemory, "trace_configs": [*options.pop("trace_configs", ()), tracing]}
    return aiohttp.ClientSession(**{**own, **options})


async def _check_redirect(_: Any, __: Any, request: Any) -> None:
    """A server may lead to any public host, as archives do. Raise `SourceError` for one that we alone may reach."""
    here, headers = request.url, request.response.headers
    there = here.join(type(here)(headers.get("Location") or headers.get("URI", "")))
    if there.host == here.host and (there.port == here.port or (there.is_default_port() and here.is_default_port())):
        return
    with contextlib.suppress(socket.gaierror):  # then nothing can be read there either
        for *_rest, address in await asyncio.get_running_loop().getaddrinfo(there.host, None):
            if not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_global:
                told = f"it leads to {there.host}, which is no public host: give that URL itself"
                raise SourceError(public(str(here)), told)

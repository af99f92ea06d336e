"""Files of a web server: any that answers GET. It may list no names, and may deny what is missing.

Of an answer, no more is kept than was asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import aiohttp
from aiohttp.abc import ResolveResult

from txstore.format import names
from txstore.storage.objects.backend import Objects, Refusal
from txstore.storage.objects.errors import NoListsError
from txstore.storage.objects.plain import PlainBackend

T = TypeVar("T")

#: Of a whole object that is read at once, in bytes: records, names and pages of a listing are far smaller.
_WHOLE = 256 << 20
_PIECE = 64 << 10
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class BoundedAnswer(aiohttp.ClientResponse):
    """An answer that ends where the wanted range ends. A simple web server sends the whole object for a range."""

    @property
    def whole(self) -> int:
        """How many bytes are kept of an answer to a request without a range."""
        return _WHOLE

    async def read(self) -> bytes:
        if self._body is None:
            wanted = _RANGE.fullmatch(self.request_info.headers.get("Range", ""))
            first, last = (int(wanted[1]), int(wanted[2])) if wanted else (0, self.whole - 1)
            length, passed, kept = last + 1 - first, first if self.status == 200 else 0, bytearray()
            async for piece in self.content.iter_chunked(_PIECE):
                kept += piece[passed:] if passed else piece
                passed = max(0, passed - len(piece))
                if len(kept) > length or (self.status == 200 and wanted and len(kept) == length):
                    self.close()  # what is left of it is never read
                    break
            if len(kept) > length and self.status < 400 and not (wanted and self.status == 200):
                raise OSError(
                    f"the server sends more than the {length:,} bytes it was asked for: it can't be read from"
                )
            self._body = bytes(kept[:length])
        return self._body


async def inner_host(request: Any) -> str | None:
    """Return the host that an answer leads to if we alone may reach it; None for any public one, as archives have."""
    host = _other_host(request)
    if host is not None:
        with contextlib.suppress(socket.gaierror):  # then nothing can be read there either
            for *_, address in await asyncio.get_running_loop().getaddrinfo(host, None):
                if not _is_public(str(address[0])):
                    return host
    return None


def _other_host(request: Any) -> str | None:
    here, headers = request.url, request.response.headers
    there = here.join(type(here)(headers.get("Location") or headers.get("URI", "")))
    if there.host == here.host and (there.port == here.port or (there.is_default_port() and here.is_default_port())):
        return None
    return str(there.host)


def _is_public(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_global


class _Hosts(aiohttp.ThreadedResolver):
    """Finds hosts. Whose name a server has led to may give it another address by the time when it is connected to."""

    def __init__(self) -> None:
        super().__init__()
        self._led_to: set[str] = set()

    async def note(self, _: Any, __: Any, request: Any) -> None:
        if (host := _other_host(request)) is not None:
            self._led_to.add(host)

    async def resolve(self, host: str, *how: Any, **more: Any) -> list[ResolveResult]:
        found = await super().resolve(host, *how, **more)
        if host in self._led_to and not all(_is_public(each["host"]) for each in found):
            raise Refusal(302, "it leads to a host that is not public")
        return found


def client(check: Callable[..., Awaitable[None]], answer: type[aiohttp.ClientResponse], **options: Any) -> Any:
    """Return a client for fsspec's file systems of the web. `check` raises if a redirect must not be followed."""
    hosts, tracing = _Hosts(), aiohttp.TraceConfig()
    tracing.on_request_redirect.append(check)
    tracing.on_request_redirect.append(hosts.note)
    traced = [*options.pop("trace_configs", ()), tracing]
    own = {"response_class": answer, "connector": None} | options
    own["connector"] = own["connector"] or aiohttp.TCPConnector(resolver=hosts)
    return aiohttp.ClientSession(**own, trace_configs=traced)


class WebBackend(PlainBackend):
    """A web server. Where a repository is, it is found out whether the server lists its names: HTTP has no lists."""

    def __init__(self, filesystem: Any, root: str) -> None:
        super().__init__(filesystem, root)
        self._holds_repository = False  # `format.json` was read
        self._lists = False  # the server was seen to list names

    def get(self, path: str) -> bytes:
        content = self._unless_denied(path, lambda: super(WebBackend, self).get(path))
        self._holds_repository |= path == names.FORMAT
        return content

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        return self._unless_denied(path, lambda: super(WebBackend, self).get_range(path, offset, length))

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._unless_denied(path, lambda: super(WebBackend, self).get_ranges(path, ranges))

    def get_tail(self, path: str, length: int) -> tuple[bytes, int]:
        return self._unless_denied(path, lambda: super(WebBackend, self).get_tail(path, length))

    def info(self, path: str) -> dict[str, Any]:
        try:
            return super().info(path)
        except FileNotFoundError as error:
            # fsspec says so whatever has failed: the cause tells whether there is no such file, or no answer.
            raise error.__cause__ or error from None

    def _unless_denied(self, path: str, read: Callable[[], T]) -> T:
        """Read, and take what is denied for missing where `format.json` may be read: format.md, "Without lists"."""
        try:
            return read()
        except aiohttp.ClientResponseError as error:
            if error.status != 403 or path == names.FORMAT:
                raise
            denied = error
        try:
            super().get(names.FORMAT)
        except (aiohttp.ClientError, OSError):
            raise denied from None
        raise FileNotFoundError(path)

    def is_link(self, path: str) -> bool:
        return False

    def list(self, directory: str) -> Objects:
        found = self._links(directory)
        if self._holds_repository and not self._lists:
            self._lists = any(each.name == names.FORMAT for each in (self._links("") if directory else found))
            if not self._lists:
                raise NoListsError
        return found

    def _links(self, directory: str) -> Objects:
        """Return what the page of a directory leads to: none where there is no page, which many servers deny."""
        try:
            return super().list(directory)
        except aiohttp.ClientResponseError as error:
            if error.status in (401, 403, 405, 410):
                return []
            raise

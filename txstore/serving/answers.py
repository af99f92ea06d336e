"""Sends HTTP answers: the headers that all of them have, JSON, errors as JSON, and the bytes that a request selects."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

from txstore import errors
from txstore.errors import (
    CommitNotFoundError,
    ErasedError,
    KeyFormatError,
    RepositoryNotFoundError,
    SnapshotExpiredError,
    SourceError,
    TxStoreError,
)
from txstore.format.display import plain
from txstore.storage.request_threads import in_thread

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

#: A client asks each time, and compares tags.
REVALIDATED = b"no-cache"
BYTES, JSON = b"application/octet-stream", b"application/json"
#: Bytes of an answer that are passed to the connection at once; it waits until they are sent.
PIECE = 1 << 18
#: Most bytes that are fetched from remote storage at once, and that all answers together hold in such pieces.
FETCHED, HELD = 1 << 22, 1 << 26
#: Answers that are being sent piece by piece.
_under_way: set[AsyncGenerator[bytes]] = set()

#: A browser never runs repository content as a page of this server, whatever the content is.
_NOTHING = b"default-src 'none'; sandbox"
_AS_TOLD = (b"x-content-type-options", b"nosniff")
#: Headers of each answer that `answer` does not send.
PROTECTED: Headers = (_AS_TOLD, (b"content-security-policy", _NOTHING))
#: Bytes: JSON of at least this length is compressed.
_COMPRESSED_FROM = 1 << 10

#: The status for each error; 500 for any other. Zarr readers take 404 for a chunk that was never written, and
#: TensorStore also 204, 304 and 412. So below `/at/` the server sends these only for a key that the commit lacks.
_STATUS: tuple[tuple[type[BaseException], int], ...] = (
    (CommitNotFoundError, 410),
    (SnapshotExpiredError, 410),
    (ErasedError, 410),
    (RepositoryNotFoundError, 503),
    (KeyFormatError, 400),
    (SourceError, 502),
)


@dataclass
class Failure(Exception):
    """An answer that is an error."""

    status: int
    kind: str
    message: str
    headers: Headers = field(default=())


def failure_of(error: Exception) -> Failure:
    """Return the answer for an error. Leave out messages of other libraries, which may contain secrets."""
    if isinstance(error, Failure):
        return error
    kind = type(error).__name__
    if isinstance(error, TxStoreError):
        status = next((status for each, status in _STATUS if isinstance(error, each)), 500)
        told = error.args[0] if isinstance(error, KeyError) and error.args else error
        return Failure(status, kind, str(told))
    return Failure(500, kind, "the server could not answer this: see its log")


async def answer_failure(scope: Scope, send: Send, failure: Failure) -> None:
    is_ours = issubclass(getattr(errors, failure.kind, object), TxStoreError)
    anchor = f"reference/errors#{failure.kind.lower()}" if is_ours else None
    told = {"error": {"type": failure.kind, "message": failure.message, "anchor": anchor}}
    headers = [(b"cache-control", b"no-store"), *failure.headers]
    await answer(scope, send, failure.status, headers, encoded(told), kind=JSON)


async def answer(
    scope: Scope,
    send: Send,
    status: int,
    headers: Headers = (),
    body: bytes = b"",
    *,
    kind: bytes | None = None,
    length: int | None = None,
    more: bool = False,
    policy: bytes = _NOTHING,
) -> None:
    """Send an answer, or its start if `more` follows, `length` bytes in all. `policy` is its security policy."""
    about = [*headers, _AS_TOLD, (b"content-security-policy", policy)]
    if kind is not None:
        about.append((b"content-type", kind))
    if status != 304:
        about.append((b"content-length", b"%d" % (len(body) if length is None else length)))
    is_empty = status == 304 or scope["method"] == "HEAD"
    await send({"type": "http.response.start", "status": status, "headers": about})
    await send({"type": "http.response.body", "body": b"" if is_empty else body, "more_body": more and not is_empty})


async def answer_json(
    scope: Scope, send: Send, told: Any, headers: Headers = ((b"cache-control", b"no-store"),)
) -> None:
    await answer_compressed(scope, send, encoded(told), JSON, headers)


async def answer_compressed(
    scope: Scope, send: Send, body: bytes, kind: bytes, headers: Headers, *, policy: bytes = _NOTHING
) -> None:
    about = [*headers, (b"vary", b"Accept-Encoding")]
    if len(body) >= _COMPRESSED_FROM and b"gzip" in headers_of(scope).get(b"accept-encoding", b""):
        body = await in_thread(partial(gzip.compress, body, 6, mtime=0))  # a list may be long
        about.append((b"content-encoding", b"gzip"))
    await answer(scope, send, 200, about, body, kind=kind, policy=policy)


# --- the bytes that a request selects

#: At most 18 digits: no offset has more, and Python refuses to parse thousands of digits. What is repeated is never
#: tried again with less of it (`*+`): a long header would take seconds.
_RANGE = re.compile(rb"bytes=[ \t]*+([0-9]{0,18})[0-9]*+[ \t]*+-[ \t]*+([0-9]{0,18})([0-9]*+)[ \t]*+")


class Selected(NamedTuple):
    """Which bytes of a content an answer has, and its headers about the content."""

    status: int
    headers: Headers
    span: range

    def has_body(self, scope: Scope) -> bool:
        return self.status < 300 and scope["method"] != "HEAD"


def select(scope: Scope, tag: bytes | None, length: int, cache: bytes) -> Selected:
    """Return what a request asks for of a content of a length. A tag is one that no other content has."""
    given = headers_of(scope)
    about = [(b"cache-control", cache), (b"accept-ranges", b"bytes")]
    if tag is not None:
        about.append((b"etag", tag))
        if is_current(scope, tag):
            return Selected(304, about, range(0))
    start, stop = 0, length
    match = _RANGE.fullmatch(given.get(b"range", b"")) if given.get(b"if-range", tag) == tag else None
    if match is None or not (match[1] or match[2]):  # an invalid header counts as none, and so do several ranges
        return Selected(200, about, range(length))
    first, last, beyond = match.groups()
    if not first:
        start = 0 if beyond else max(0, length - int(last))
    elif last and not beyond and int(last) < int(first):
        return Selected(200, about, range(length))
    else:
        start = int(first)
        stop = length if beyond or not last else min(int(last) + 1, length)
    if start >= stop:
        return Selected(416, [*about, (b"content-range", b"bytes */%d" % length)], range(0))
    part = b"bytes %d-%d/%d" % (start, stop - 1, length)
    return Selected(206, [*about, (b"content-range", part)], range(start, stop))


def fetched_at_once() -> int:
    """Return how many bytes an answer fetches at once: it holds them until its client reads, which may be never."""
    return max(PIECE, min(FETCHED, HELD // max(1, len(_under_way))))


async def answer_in_pieces(
    scope: Scope, receive: Receive, send: Send, selected: Selected, kind: bytes, pieces: AsyncGenerator[bytes]
) -> None:
    """Send what was selected, piece by piece, until the client has left. `pieces` are those of its span."""
    status, about, span = selected
    if not selected.has_body(scope):
        length = len(span) if status < 300 else None
        await answer(scope, send, status, about, kind=kind if status < 300 else None, length=length)
        return
    gone = None
    async with contextlib.aclosing(pieces):  # at once: it may keep a snapshot, which a vacuum waits for
        _under_way.add(pieces)
        try:
            piece = await anext(pieces, b"")  # an error at the start is reported before the answer begins
            done = len(piece)
            await answer(scope, send, status, about, piece, kind=kind, length=len(span), more=done < len(span))
            if done == len(span):
                return
            gone = asyncio.ensure_future(until_gone(receive))
            async for piece in pieces:
                if gone.done():
                    return  # nothing more is fetched
                done += len(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": done < len(span)})
        finally:
            _under_way.discard(pieces)
            if gone is not None:
                gone.cancel()


def is_current(scope: Scope, tag: bytes) -> bool:
    """Tell whether the client has the content with a tag, as it says by `If-None-Match`."""
    header = headers_of(scope).get(b"if-none-match")
    if header is None:
        return False
    return header.strip() == b"*" or any(each.strip().removeprefix(b"W/") == tag for each in header.split(b","))


# --- requests


def path_of(scope: Scope) -> bytes:
    """Return the path of a request as the client sent it. Not every ASGI server passes it on."""
    sent: bytes | None = scope.get("raw_path")
    return quote(scope["path"]).encode() if sent is None else sent


async def until_gone(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


def headers_of(scope: Scope) -> Mapping[bytes, bytes]:
    """Return the headers of a request. If a header comes twice, the last one counts."""
    return dict(scope["headers"])


def encoded(told: Any) -> bytes:
    """Return JSON. Numbers that are not finite are strings, as Zarr writes them."""
    return json.dumps(plain(told), allow_nan=False, separators=(",", ":")).encode()

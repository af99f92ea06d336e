"""Sends HTTP answers: the headers that all of them have, JSON, and errors as JSON."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

from txstore import errors
from txstore.errors import (
    CodecRefusedError,
    CommitNotFoundError,
    ErasedError,
    KeyFormatError,
    NodeNotFoundError,
    RepositoryNotFoundError,
    SnapshotExpiredError,
    SourceError,
    TxStoreError,
)

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

#: The content behind an id never changes. The content behind a name may: a client asks each time, and compares tags.
IMMUTABLE, REVALIDATED = b"max-age=31536000, immutable", b"no-cache"

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
    (CodecRefusedError, 400),
    (SnapshotExpiredError, 410),
    (ErasedError, 410),
    (RepositoryNotFoundError, 503),
    (NodeNotFoundError, 404),  # raised by the API only: reading keys never raises it
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


class Reply(NamedTuple):
    """A whole answer: what to send, whoever sends it."""

    status: int
    headers: Headers
    body: bytes | memoryview

    async def send(self, send: Send, *, more: bool = False) -> None:
        """Send it as an ASGI application does; `more`: the rest of the content follows."""
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": bytes(self.body), "more_body": more})


async def answer_failure(scope: Scope, send: Send, failure: Failure) -> None:
    await reply_to_failure(scope, failure).send(send)


def reply_to_failure(scope: Scope, failure: Failure) -> Reply:
    is_ours = issubclass(getattr(errors, failure.kind, object), TxStoreError)
    anchor = f"reference/errors#{failure.kind.lower()}" if is_ours else None
    told = {"error": {"type": failure.kind, "message": failure.message, "anchor": anchor}}
    headers = [(b"cache-control", b"no-store"), *failure.headers]
    return reply(scope, failure.status, headers, encoded(told), kind=b"application/json")


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
    made = reply(scope, status, headers, body, kind=kind, length=length, policy=policy)
    await made.send(send, more=more and not _is_empty(scope, status))


def reply(
    scope: Scope,
    status: int,
    headers: Headers = (),
    body: bytes | memoryview = b"",
    *,
    kind: bytes | None = None,
    length: int | None = None,
    policy: bytes = _NOTHING,
) -> Reply:
    """Return an answer with the headers that all answers have. For the parameters see `answer`."""
    about = [*headers, _AS_TOLD, (b"content-security-policy", policy)]
    if kind is not None:
        about.append((b"content-type", kind))
    if status != 304:
        about.append((b"content-length", b"%d" % (len(body) if length is None else length)))
    return Reply(status, about, b"" if _is_empty(scope, status) else body)


def _is_empty(scope: Scope, status: int) -> bool:
    return status == 304 or scope["method"] == "HEAD"


async def answer_json(
    scope: Scope, send: Send, told: Any, headers: Headers = ((b"cache-control", b"no-store"),)
) -> None:
    await answer_compressed(scope, send, encoded(told), b"application/json", headers)


async def answer_compressed(
    scope: Scope, send: Send, body: bytes, kind: bytes, headers: Headers, *, policy: bytes = _NOTHING
) -> None:
    about = [*headers, (b"vary", b"Accept-Encoding")]
    if len(body) >= _COMPRESSED_FROM and b"gzip" in headers_of(scope).get(b"accept-encoding", b""):
        body = gzip.compress(body, 6, mtime=0)
        about.append((b"content-encoding", b"gzip"))
    await answer(scope, send, 200, about, body, kind=kind, policy=policy)


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
    return json.dumps(_plain(told), allow_nan=False, separators=(",", ":")).encode()


def iso(time: datetime) -> str:
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value

"""`/at/<commit, tag or branch>/<key>`: one commit as plain Zarr, for any program that reads Zarr over HTTP.

The event loop itself reads small values from a disk: a look-up and a checksum take less time than a switch to a thread.
A thread reads large values, and values from storage that needs requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from google_crc32c import extend

from txstore import processes
from txstore.errors import CorruptionError, KeyFormatError
from txstore.format import packfile
from txstore.format.consolidated import ZMETADATA, consolidate, documents_of
from txstore.format.keys import check_name, encode_key
from txstore.history.find import may_be_id
from txstore.history.snapshot import Snapshot
from txstore.segments.runs import Found
from txstore.serving.answers import (
    IMMUTABLE,
    REVALIDATED,
    Failure,
    Headers,
    Receive,
    Reply,
    Scope,
    Send,
    answer,
    headers_of,
    reply,
    until_gone,
)
from txstore.serving.positions import Positions, is_id
from txstore.serving.ranges import UnsatisfiableError, matches, wanted
from txstore.serving.repository_protocol import Served
from txstore.storage.request_threads import in_thread

#: Bytes: a thread reads a value of at least this length, so that other requests do not wait for it.
_IN_THREAD = 1 << 20
#: Bytes of an answer that are passed to the connection at once; it waits until they are sent.
_PIECE = 1 << 18
#: Bytes that are fetched from remote storage at once; each request has as many in memory.
_FETCHED = 1 << 22
#: Bytes of consolidated metadata in the cache.
_DOCUMENTS = 32 << 20


class PlainZarr:
    """Answers requests for keys."""

    def __init__(self, repository: Served, positions: Positions, *, has_token: bool) -> None:
        self._positions = positions
        # A proxy must not give one client an answer that another client got with the token.
        self._immutable = (b"private, " if has_token else b"public, ") + IMMUTABLE
        self._is_ranged = repository.engine.snapshots.is_ranged
        self._consolidated = _Consolidated()

    async def __call__(self, scope: Scope, receive: Receive, send: Send, path: bytes) -> None:
        """Answer a request; `path` follows `/at/` in the URL, as the client sent it."""
        ref, key = _parsed(path)
        snapshot = self._positions.kept(ref)
        if snapshot is None and (self._is_ranged or may_be_id(ref)):
            snapshot = await in_thread(self._positions.snapshot, ref)
        elif snapshot is None:
            snapshot = self._positions.snapshot(ref)
        cache = self._immutable if is_id(ref) and _is_at(snapshot, ref) else REVALIDATED
        document = await self._document(snapshot, key)
        if document is not None:
            await _reply_with(scope, *document, cache).send(send)
            return
        found = await in_thread(_look_up, snapshot, key) if self._is_ranged else _look_up(snapshot, key)
        made = None if self._is_ranged else _from_map(scope, snapshot, key, found, cache)
        if made is not None:
            await made.send(send)
            return
        await _send_value(scope, receive, send, snapshot, key, found, cache, is_ranged=self._is_ranged)

    def at_hand(self, scope: Scope, path: bytes) -> Reply | None:
        """Return the answer to a request if it is here without a thread and without a request to remote storage.

        None says nothing: `__call__` answers. The content is a view of the mapped file. Raises as `__call__` does.
        """
        if self._is_ranged:
            return None
        ref, key = _parsed(path)
        if _may_be_document(key):
            return None
        snapshot, cache = self._positions.kept(ref), self._immutable
        if snapshot is None:
            if may_be_id(ref):
                return None  # to find it is a walk through the history
            snapshot, cache = self._positions.snapshot(ref), REVALIDATED
        return _from_map(scope, snapshot, key, _look_up(snapshot, key), cache)

    async def _document(self, snapshot: Snapshot, key: str) -> tuple[bytes, bytes] | None:
        """Return a document with consolidated metadata, and its tag; None if the key is not such a document."""
        if not _may_be_document(key):
            return None
        path, _, name = key.rpartition("/")
        return await in_thread(self._consolidated.get, snapshot, path, name)


def _from_map(scope: Scope, snapshot: Snapshot, key: str, found: Found, cache: bytes) -> Reply | None:
    """Return the answer with a value that lies in a mapped file. None if it lies elsewhere, or is long."""
    if found.kind == packfile.REF_FOREIGN:
        return None
    selected = _select(scope, _tag(snapshot, found), found.length, cache)
    if not selected.has_content:
        return reply(scope, selected.status, selected.headers)
    status, about, span = selected
    if scope["method"] == "HEAD":
        return reply(scope, status, about, kind=_kind_of(key), length=len(span))
    if len(span) > _PIECE:
        return None
    is_whole = len(span) == found.length
    view = snapshot.view_of(key, found) if is_whole else snapshot.get_part(key, slice(span.start, span.stop))
    return reply(scope, status, about, _there(view, key, len(span)), kind=_kind_of(key))


def _reply_with(scope: Scope, content: bytes, tag: bytes, cache: bytes) -> Reply:
    selected = _select(scope, tag, len(content), cache)
    if not selected.has_content:
        return reply(scope, selected.status, selected.headers)
    part = content[selected.span.start : selected.span.stop]
    return reply(scope, selected.status, selected.headers, part, kind=b"application/json")


async def _send_value(
    scope: Scope,
    receive: Receive,
    send: Send,
    snapshot: Snapshot,
    key: str,
    found: Found,
    cache: bytes,
    *,
    is_ranged: bool,
) -> None:
    """Send a value that is long, or has to be fetched."""
    is_foreign = found.kind == packfile.REF_FOREIGN
    length = found.length
    if is_foreign:
        length = _there_is(await in_thread(snapshot.size_of, key), key)
    selected = _select(scope, _tag(snapshot, found), length, cache)
    if not selected.has_content:
        await answer(scope, send, selected.status, selected.headers)
        return
    status, about, span, kind = selected.status, selected.headers, selected.span, _kind_of(key)
    if scope["method"] == "HEAD":
        await answer(scope, send, status, about, kind=kind, length=len(span))
        return
    is_fetched = is_ranged or is_foreign
    pieces = _fetched(snapshot, key, found, span, length) if is_fetched else _mapped(snapshot, key, span, length)
    first = await anext(pieces)  # an error at the start is reported before the answer begins
    await answer(scope, send, status, about, first, kind=kind, length=len(span), more=len(first) < len(span))
    if len(first) == len(span):
        return
    done = len(first)
    gone = asyncio.ensure_future(until_gone(receive))
    try:
        async for piece in pieces:
            if gone.done():
                return  # the client has left: fetch nothing more
            done += len(piece)
            await send({"type": "http.response.body", "body": piece, "more_body": done < len(span)})
    finally:
        gone.cancel()


_BYTES = b"application/octet-stream"


async def _mapped(snapshot: Snapshot, key: str, span: range, length: int) -> AsyncIterator[bytes]:
    """Yield a value that lies in a mapped file, or a part of it, piece by piece."""
    if len(span) < length:
        view = snapshot.get_part(key, slice(span.start, span.stop))
    elif length < _IN_THREAD:
        view = snapshot.get_view(key)
    else:
        view = await in_thread(snapshot.get_view, key)  # checks the checksum of the whole value
    view = _there(view, key, len(span))
    for start in range(0, len(view), _PIECE):
        yield bytes(view[start : start + _PIECE])


async def _fetched(snapshot: Snapshot, key: str, found: Found, span: range, length: int) -> AsyncIterator[bytes]:
    """Yield a value from remote storage, or a part of it, piece by piece.

    For a long value the checksum is complete only at the last piece: if it is wrong, the connection ends before that
    piece is sent.
    """
    is_whole = len(span) == length
    if is_whole and length <= _FETCHED:
        yield bytes(_there(await in_thread(snapshot.get_view, key), key, length))
        return
    checksum = 0
    for start in range(span.start, span.stop, _FETCHED) or (span.start,):
        stop = min(start + _FETCHED, span.stop)
        piece = bytes(_there(await in_thread(snapshot.get_part, key, slice(start, stop)), key, stop - start))
        checksum = extend(checksum, piece) if is_whole else 0
        if is_whole and stop == span.stop and found.kind == packfile.REF_PACK and checksum != found.checksum:
            raise CorruptionError(snapshot.url, key=key, reason="the checksum differs")
        yield piece


def _there(view: memoryview | None, key: str, length: int) -> memoryview:
    """Check a view: a snapshot never loses a key, and a value never changes its length."""
    if view is None or len(view) != length:
        raise CorruptionError(key, key=key, reason="the value is not as long as its entry says")
    return view


def _there_is(length: int | None, key: str) -> int:
    if length is None:
        raise CorruptionError(key, key=key, reason="the value is gone")
    return length


def _is_at(snapshot: Snapshot, commit_id: str) -> bool:
    """Tell whether this is the commit's id, not a tag that looks like one."""
    return snapshot.stored is not None and snapshot.stored.header.id.hex() == commit_id


def _parsed(path: bytes) -> tuple[str, str]:
    """Return the commit and the key that a path names. Raises `Failure`, and `KeyFormatError`.

    A key that no commit can have is a mistake of the client, so the answer is not "missing key".
    """
    first, _, rest = path.partition(b"/")
    try:
        if b"%" not in path and is_id(ref := first.decode()):  # the common case: nothing is encoded
            key = rest.decode("ascii")
            encode_key(key)
            return ref, key
        ref = check_name("commit", unquote_to_bytes(first).decode())
        # An encoded slash is not a separator, and a key contains no other kind.
        segments = [unquote_to_bytes(each).decode() for each in rest.split(b"/")]
        if any("/" in each or "\0" in each for each in segments):
            raise KeyFormatError("a segment of a key can't contain '/' or a zero byte")
        key = "/".join(segments)
        encode_key(key)
    except UnicodeDecodeError:
        raise Failure(400, "KeyFormatError", "the path is not UTF-8") from None
    return ref, key


def _look_up(snapshot: Snapshot, key: str) -> Found:
    found = snapshot.lookup(key)
    if found is None:
        snapshot.size_of(key)  # raises if the value was erased
        raise Failure(404, "KeyNotFound", f"this commit has no key {key!r}")
    return found


def _tag(snapshot: Snapshot, found: Found) -> bytes:
    """Return a tag that no other value has: its place. Packs are immutable, and their ids are random."""
    pack = snapshot.runs.pack_name(found.run, found.pack)
    return f'"{pack.id.hex()}-{found.offset:x}-{found.checksum:08x}"'.encode()


class _Selected(NamedTuple):
    """Which bytes of a value an answer has, and its headers about the value."""

    status: int
    headers: Headers
    span: range

    @property
    def has_content(self) -> bool:
        return self.status < 300


def _select(scope: Scope, tag: bytes, length: int, cache: bytes) -> _Selected:
    """Return what a request asks for of a value that has a tag and a length."""
    given = headers_of(scope)
    about = [(b"cache-control", cache), (b"etag", tag), (b"accept-ranges", b"bytes")]
    if matches(given.get(b"if-none-match"), tag):
        return _Selected(304, about, range(0))
    try:
        part = wanted(given.get(b"range"), length) if given.get(b"if-range", tag) == tag else None
    except UnsatisfiableError:
        return _Selected(416, [*about, (b"content-range", b"bytes */%d" % length)], range(0))
    if part is None:
        return _Selected(200, about, range(length))
    return _Selected(206, [*about, (b"content-range", b"bytes %d-%d/%d" % (part.start, part.stop - 1, length))], part)


def _may_be_document(key: str) -> bool:
    """Tell whether a key may be that of a document which has the documents of all nodes below."""
    return key.rpartition("/")[2] in ("zarr.json", ZMETADATA)


def _kind_of(key: str) -> bytes:
    return b"application/json" if key.endswith((".json", ".zarray", ".zgroup", ".zattrs")) else _BYTES


class _ReadDocument(NamedTuple):
    snapshot: weakref.ref[Snapshot]
    document: tuple[bytes, bytes] | None


class _Consolidated:
    """Group documents that contain the documents of all nodes below: HTTP can't list. Safe in threads.

    A document counts as long as the snapshot that it was read from: an erasure waits until that is released.
    """

    def __init__(self) -> None:
        self._lock = processes.new_lock()
        self._kept: OrderedDict[tuple[str, str, str], _ReadDocument] = OrderedDict()
        self._size = 0

    def get(self, snapshot: Snapshot, path: str, name: str) -> tuple[bytes, bytes] | None:
        """Return a document and its tag; None if no group of this format is at a path."""
        commit_id = "" if snapshot.commit is None else snapshot.commit.id
        place = commit_id, path, name
        with self._lock:
            kept = self._kept.get(place)
            if kept is not None and kept.snapshot() is snapshot:
                self._kept.move_to_end(place)
                return kept.document
        made = consolidate(documents_of(snapshot, path)).get(name)
        document = None if made is None else (made, f'"{hashlib.sha256(made).hexdigest()[:32]}"'.encode())
        with self._lock:
            replaced = self._kept.pop(place, None)
            self._kept[place] = _ReadDocument(weakref.ref(snapshot), document)
            self._size += _size(document) - (0 if replaced is None else _size(replaced.document))
            while self._size > _DOCUMENTS:
                self._size -= _size(self._kept.popitem(last=False)[1].document)
        return document


def _size(document: tuple[bytes, bytes] | None) -> int:
    return 256 + (0 if document is None else len(document[0]))

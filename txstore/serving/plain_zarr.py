"""`/at/<commit, tag or branch>/<key>`: one commit as plain Zarr, for any program that reads Zarr over HTTP.

The event loop itself reads small values from a disk: a look-up and a checksum take less time than a switch to a thread.
A thread reads large values, and values from storage that needs requests.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import time
import weakref
from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from google_crc32c import extend

from txstore import processes
from txstore.commit import Stored
from txstore.engine import Engine
from txstore.errors import CommitNotFoundError, CorruptionError, KeyFormatError, RepositoryNotFoundError, TxStoreError
from txstore.format import packfile
from txstore.format.consolidated import ZMETADATA, consolidate, documents_of
from txstore.format.keys import check_name, encode_key
from txstore.history.find import find_commit, may_be_id
from txstore.history.snapshot import Snapshot
from txstore.segments.runs import Found
from txstore.serving.answers import (
    BYTES,
    JSON,
    PIECE,
    REVALIDATED,
    Failure,
    Receive,
    Scope,
    Send,
    answer_in_pieces,
    fetched_at_once,
    headers_of,
    select,
)
from txstore.storage.objects.errors import NoListsError
from txstore.storage.request_threads import in_thread

#: Bytes of consolidated metadata in the cache.
_DOCUMENTS = 32 << 20
#: Most snapshots kept at once, and seconds after the last read until one is released: a snapshot pins its commit and
#: all later ones against the vacuum.
_SNAPSHOTS, _IDLE = 64, 30.0
#: Most commits whose position is cached: finding a commit by its id takes a walk through the history.
_PLACES = 1 << 14
#: Where no pin makes an erasure wait: seconds after which erasures are looked for again.
_LOOK = 5.0

_ID = re.compile(r"[0-9a-f]{32}")


class PlainZarr:
    """Answers requests for keys.

    An erasure takes values out of all commits. So a client asks each time, and compares tags, even below a commit's id.
    """

    def __init__(self, engine: Engine) -> None:
        self.positions = Positions(engine)
        self._is_ranged = engine.snapshots.is_ranged
        self._consolidated = _Consolidated()

    async def __call__(self, scope: Scope, receive: Receive, send: Send, path: bytes) -> None:
        """Answer a request; `path` follows `/at/` in the URL, as the client sent it."""
        ref, key = _parsed(path)
        # To confirm a value that a client has kept is to keep it there: what is erased by now is never confirmed.
        since = time.monotonic() if b"if-none-match" in headers_of(scope) else -math.inf
        snapshot = self.positions.kept(ref, since)
        if snapshot is None and (self._is_ranged or may_be_id(ref)):
            snapshot = await in_thread(self.positions.snapshot, ref, since)
        elif snapshot is None:
            snapshot = self.positions.snapshot(ref)
        group, _, name = key.rpartition("/")
        if name in ("zarr.json", ZMETADATA):  # it may have the documents of all nodes below
            document = await in_thread(self._consolidated.get, snapshot, group, name)
            if document is not None:
                content, tag = document
                selected = select(scope, tag, len(content), REVALIDATED)
                part = memoryview(content)[selected.span.start : selected.span.stop]
                await answer_in_pieces(scope, receive, send, selected, JSON, _cut(part))
                return
        found = await in_thread(_look_up, snapshot, key) if self._is_ranged else _look_up(snapshot, key)
        is_foreign = found.kind == packfile.REF_FOREIGN
        length = _there_is(await in_thread(snapshot.size_of, key), key) if is_foreign else found.length
        selected = select(scope, _tag(snapshot, found), length, REVALIDATED)
        span = selected.span
        if self._is_ranged or is_foreign:
            pieces = _fetched(snapshot, key, found, span, length)
        elif length <= PIECE:
            pieces = _cut(_mapped(snapshot, key, found, span))
        else:
            pieces = _cut(await in_thread(_mapped, snapshot, key, found, span))
        await answer_in_pieces(scope, receive, send, selected, _kind_of(key), pieces)


def _mapped(snapshot: Snapshot, key: str, found: Found, span: range) -> memoryview:
    """Return a value that lies in a mapped file, or a part of it."""
    if len(span) < found.length:
        return _there(snapshot.get_part(key, slice(span.start, span.stop)), key, len(span))
    return snapshot.view_of(key, found)  # compares the checksum of the whole value


async def _cut(view: memoryview) -> AsyncGenerator[bytes]:
    for start in range(0, len(view), PIECE):
        yield bytes(view[start : start + PIECE])


async def _fetched(snapshot: Snapshot, key: str, found: Found, span: range, length: int) -> AsyncGenerator[bytes]:
    """Yield a value from remote storage, or a part of it, piece by piece.

    For a long value the checksum is complete only at the last piece: if it is wrong, the connection ends before that
    piece is sent.
    """
    is_whole = len(span) == length
    if is_whole and length <= fetched_at_once():
        yield bytes(_there(await in_thread(snapshot.get_view, key), key, length))
        return
    checksum, stop = 0, span.start
    while stop < span.stop:
        start, stop = stop, min(stop + fetched_at_once(), span.stop)
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


def _parsed(path: bytes) -> tuple[str, str]:
    """Return the commit and the key that a path names. Raises `Failure`, and `KeyFormatError`.

    A key that no commit can have is a mistake of the client, so the answer is not "missing key".
    """
    first, _, rest = path.partition(b"/")
    try:
        if b"%" not in path and _is_id(ref := first.decode()):  # the common case: nothing is encoded
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


def _kind_of(key: str) -> bytes:
    return JSON if key.endswith((".json", ".zarray", ".zgroup", ".zattrs")) else BYTES


class _Consolidated:
    """Group documents that contain the documents of all nodes below: HTTP can't list. Safe in threads.

    A document counts as long as the snapshot that it was read from: an erasure waits until that is released.
    """

    def __init__(self) -> None:
        self._lock = processes.new_lock()
        #: By commit, path and name: the snapshot that it was read from, and the document.
        self._kept: OrderedDict[tuple[str, str, str], tuple[weakref.ref[Snapshot], tuple[bytes, bytes] | None]]
        self._kept = OrderedDict()
        self._size = 0

    def get(self, snapshot: Snapshot, path: str, name: str) -> tuple[bytes, bytes] | None:
        """Return a document and its tag; None if no group of this format is at a path."""
        commit_id = "" if snapshot.commit is None else snapshot.commit.id
        place = commit_id, path, name
        with self._lock:
            kept = self._kept.get(place)
            if kept is not None and kept[0]() is snapshot:
                self._kept.move_to_end(place)
                return kept[1]
        made = consolidate(documents_of(snapshot, path)).get(name)
        document = None if made is None else (made, f'"{hashlib.sha256(made).hexdigest()[:32]}"'.encode())
        with self._lock:
            replaced = self._kept.pop(place, None)
            self._kept[place] = weakref.ref(snapshot), document
            self._size += _size(document) - (0 if replaced is None else _size(replaced[1]))
            while self._size > _DOCUMENTS:
                self._size -= _size(self._kept.popitem(last=False)[1][1])
        return document


def _size(document: tuple[bytes, bytes] | None) -> int:
    return 256 + (0 if document is None else len(document[0]))


class _Kept(NamedTuple):
    snapshot: Snapshot
    used: float  # when it was read last
    erasures: object  # stands for the erasures that were known when it was opened


class Positions:
    """Finds the commits that URLs name, and keeps the snapshots that clients are reading. Safe in threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = processes.new_lock()
        self._snapshots: OrderedDict[str, _Kept] = OrderedDict()
        self._places: OrderedDict[str, tuple[str, int]] = OrderedDict()
        self._looking = processes.new_lock()
        self._looked = -math.inf  # when erasures were looked for

    def kept(self, ref: str, since: float = -math.inf) -> Snapshot | None:
        """Return the cached snapshot for a commit's id, if any. None also if erasures have to be looked for first.

        `since`: it is to show no value whose erasure had ended by then.
        """
        found = self._snapshots.get(ref)
        if found is None or self._is_due(since) or found.erasures is not self._engine.snapshots.replaced:
            return None
        self._keep(ref, found.snapshot, found.erasures)
        return found.snapshot

    def snapshot(self, ref: str, since: float = -math.inf) -> Snapshot:
        """Return the snapshot for a commit's id (or its first digits), a tag or a branch. Raises as `stored` does."""
        with self._looking:  # of many requests at once, one looks for all
            if self._is_due(since):
                self._heed_erasures()
        kept = self.kept(ref)
        if kept is not None:
            return kept
        stored = self.stored(ref)
        commit_id = stored.header.id.hex()
        found = self.kept(commit_id)
        if found is None:
            erasures = self._engine.snapshots.replaced  # another one as soon as something was erased
            found = self._engine.snapshots.of(stored)
            self._keep(commit_id, found, erasures)
        return found

    def stored(self, ref: str) -> Stored:
        """Find a commit. Raises `CommitNotFoundError`, `SnapshotExpiredError`, `RepositoryNotFoundError`."""
        commits = self._engine.commits
        if not self._engine.exists():
            raise RepositoryNotFoundError(self._engine.url)
        place = self._places.get(ref)
        if place is not None:
            stored = commits.files.read(*place)
            if stored is not None and stored.header.id.hex() == ref and commits.kept.has(stored):
                return stored
        try:
            stored = find_commit(commits, ref)
        except TxStoreError:
            raise
        except ValueError as error:  # it looks like a date
            raise CommitNotFoundError(f"commit {ref[:40]!r}", advice=str(error)) from error
        with self._lock:
            self._places[stored.header.id.hex()] = stored.header.branch, stored.header.version
            while len(self._places) > _PLACES:
                self._places.popitem(last=False)
        return stored

    def let_go(self, *, idle: float = _IDLE) -> bool:
        """Release the snapshots that no client has read for `idle` seconds. Return whether others are left."""
        before = time.monotonic() - idle
        with self._lock:
            while self._snapshots and next(iter(self._snapshots.values())).used <= before:
                self._snapshots.popitem(last=False)
            return bool(self._snapshots)

    def _is_due(self, since: float) -> bool:
        return self._engine.snapshots.is_ranged and self._looked <= max(since, time.monotonic() - _LOOK)

    def _heed_erasures(self) -> None:
        """Keep no snapshot from before an erasure: its runs, and what was read of them, are as they were then."""
        begun = time.monotonic()
        with contextlib.suppress(NoListsError, PermissionError):  # then no record of an erasure is found at all
            self._engine.snapshots.heed_erasures()
        self._looked = begun

    def _keep(self, commit_id: str, snapshot: Snapshot, erasures: object) -> None:
        with self._lock:
            self._snapshots[commit_id] = _Kept(snapshot, time.monotonic(), erasures)
            self._snapshots.move_to_end(commit_id)
            while len(self._snapshots) > _SNAPSHOTS:
                self._snapshots.popitem(last=False)


def _is_id(ref: str) -> bool:
    """Tell whether this is a full commit id, which always names the same commit."""
    return _ID.fullmatch(ref) is not None

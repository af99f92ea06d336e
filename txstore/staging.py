"""What one process has staged in one transaction: a pack below `.staging/`, and in memory a ref for each key.

No life cycle here: `Transaction` says when this may be written, `Committer` turns it into a commit.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import warnings
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from txstore import format, names
from txstore.commits import Commits
from txstore.errors import UncommittedChangesWarning
from txstore.keys import after_prefix, covering_prefixes, is_document
from txstore.listing import Hierarchy
from txstore.pack import PackWriter, Staged
from txstore.snapshot import Snapshot

if TYPE_CHECKING:
    from typing_extensions import Buffer

_REF = struct.Struct("<QQI")  # a `Staged` in 20 bytes: there may be millions
_TOMBSTONE = b""
_READ_MARKS = 1 << 16


class Staging(Hierarchy):
    """The view of a transaction: what is staged, else the base snapshot. Safe in threads."""

    def __init__(self, commits: Commits, base: Snapshot, *, durable: bool) -> None:
        self.base = base
        self.process = os.getpid()
        self.id = os.urandom(16)  # of the transaction, of its pack, and of the commit that it becomes
        self._commits = commits
        self._durable = durable
        self._lock = threading.Lock()
        self._writer: PackWriter | None = None
        self._refs: dict[str, bytes] = {}
        self._prefixes: dict[str, None] = {}
        self._order: list[str] = []  # the keys of _refs; sorted, but for those added since the last listing
        self._sorted = 0
        self._read_marks: bytearray | None = None
        self._committed: Snapshot | None = None

    @property
    def url(self) -> str:
        return self._commits.storage.url

    # --- reading

    def get_view(self, key: str) -> memoryview | None:
        ref = self._refs.get(key)
        if ref is not None:
            return None if ref == _TOMBSTONE else self._staged_view(key, _unpack(ref))
        if self._prefixes and self.is_below_deleted(key):
            return None
        view = self.base.get_view(key)
        if view is not None:
            self._mark_read(key)
        return view

    def _staged_view(self, key: str, staged: Staged) -> memoryview | None:
        if self._committed is None:
            try:
                return memoryview(self.writer.read(staged))
            except OSError:
                if self._committed is None:  # else it was committed just now
                    raise
        return self._committed.get_view(key)

    def get_part(self, key: str, part: slice) -> memoryview | None:
        """Return a part of a value; of a base value without comparing the checksum, which covers the whole."""
        if key in self._refs or self.is_below_deleted(key):
            view = self.get_view(key)
            return None if view is None else view[part]
        self._mark_read(key)
        return self.base.get_part(key, part)

    def size_of(self, key: str) -> int | None:
        ref = self._refs.get(key)
        if ref is not None:
            return None if ref == _TOMBSTONE else _unpack(ref).length
        return None if self.is_below_deleted(key) else self.base.size_of(key)

    def keys_between(self, start: str, stop: str | None, *, batch: int = 256) -> Iterator[str]:
        staged = self._staged_between(start, stop)
        mine = next(staged, None)
        for theirs in self._base_keys_between(start, stop, batch):
            while mine is not None and mine < theirs:
                if self._is_set(mine):
                    yield mine
                mine = next(staged, None)
            if mine == theirs:
                mine = next(staged, None)
            if theirs not in self._refs or self._is_set(theirs):
                yield theirs
        while mine is not None:
            if self._is_set(mine):
                yield mine
            mine = next(staged, None)

    def _is_set(self, key: str) -> bool:
        return self._refs.get(key, _TOMBSTONE) != _TOMBSTONE

    def _staged_between(self, start: str, stop: str | None) -> Iterator[str]:
        with self._lock:  # what others stage meanwhile is added behind the sorted part
            order, end = self._sorted_keys(), self._sorted
            low = bisect_left(order, start, 0, end)
            high = end if stop is None else bisect_left(order, stop, low, end)
        return (order[i] for i in range(low, high))

    def _sorted_keys(self) -> list[str]:
        if self._sorted < len(self._order):
            self._order = sorted(self._order)  # a new list: others may be walking the old one. Nearly sorted: linear
            self._sorted = len(self._order)
        return self._order

    def _base_keys_between(self, start: str, stop: str | None, batch: int) -> Iterator[str]:
        """Yield the base's keys but for those below deleted prefixes, which are skipped, not walked."""
        position: str | None = start
        while position is not None:
            for key in self.base.keys_between(position, stop, batch=batch):
                hidden = next((p for p in covering_prefixes(key) if p in self._prefixes), None)
                if hidden is None:
                    yield key
                else:
                    position = after_prefix(hidden)
                    break
            else:
                return

    def is_below_deleted(self, key: str) -> bool:
        """Tell whether the base's value of a key is hidden by a deleted prefix."""
        return bool(self._prefixes) and any(prefix in self._prefixes for prefix in covering_prefixes(key))

    # --- what was read before it was written

    def _mark_read(self, key: str) -> None:
        """Remember roughly that a key was read (a hash collision only makes I5 stricter, never laxer)."""
        marks = self._read_marks
        if marks is None:
            marks = self._read_marks = bytearray(_READ_MARKS)
        marks[hash(key) % _READ_MARKS] = 1

    def _was_read(self, key: str) -> bool:
        return self._read_marks is not None and self._read_marks[hash(key) % _READ_MARKS] == 1

    def is_unchanged(self, key: str, staged: Staged) -> bool:
        """Tell whether a staged value is just what the base holds, and so is no write (I5)."""
        if self.is_below_deleted(key):
            return False
        found = self.base.lookup(key)
        if found is None or (found.length, found.checksum) != (staged.length, staged.checksum):
            return False
        if not is_document(key) and self._was_read(key):
            return False
        view = self.base.get_view(key)
        return view is not None and bytes(view) == self.writer.read(staged)

    # --- writing

    def stage(self, kind: int, key: str, encoded: bytes, value: Buffer) -> None:
        """Append a frame and remember where it is. `key` is a prefix for a prefix tombstone. Raises `OSError`."""
        writer = self._writer or self._begin()
        staged = writer.append(kind, encoded, value, seen=self._was_read(key))
        with self._lock:
            if kind == format.FRAME_PREFIX:
                self._hide(key)
            else:
                if key not in self._refs:
                    self._order.append(key)
                value_ref = _REF.pack(staged.offset, staged.length, staged.checksum)
                self._refs[key] = value_ref if kind == format.FRAME_VALUE else _TOMBSTONE

    def _hide(self, prefix: str) -> None:
        self._prefixes[prefix] = None
        order = self._sorted_keys()
        stop = after_prefix(prefix)
        low, high = bisect_left(order, prefix), len(order) if stop is None else bisect_left(order, stop)
        for key in order[low:high]:
            del self._refs[key]
        self._order = order[:low] + order[high:]
        self._sorted = len(self._order)

    def _begin(self) -> PackWriter:
        with self._lock:
            if self._writer is None:
                self._commits.identity.create(durable=self._durable)
                repository_id = self._commits.identity.id
                self._writer = PackWriter(self._commits.storage, names.staging_path(self.id, 0), self.id, repository_id)
            return self._writer

    @property
    def writer(self) -> PackWriter:
        """The pack that staged values are in. There is one as soon as anything is staged."""
        if self._writer is None:
            raise LookupError("nothing is staged")
        return self._writer

    # --- what is staged

    @property
    def count(self) -> int:
        """How many keys and prefixes are set or deleted."""
        return len(self._refs) + len(self._prefixes)

    @property
    def prefixes(self) -> list[str]:
        return sorted(self._prefixes)

    def items_staged(self) -> Iterator[tuple[str, Staged | None]]:
        """Yield the keys that are set, and those that are deleted (None), in the order of their bytes."""
        with self._lock:
            order, end = self._sorted_keys(), self._sorted
        for key in islice(order, end):
            ref = self._refs.get(key)
            if ref is not None:  # else another thread has just deleted all below a path
                yield key, None if ref == _TOMBSTONE else _unpack(ref)

    # --- the end

    def settle(self, committed: Snapshot) -> None:
        """Read what was staged from the commit that it became: others may be reading, and go on doing so."""
        self._committed = committed
        if self._writer is not None:
            self._writer.close_between_reads()

    def close(self) -> None:
        """Close the file, which stays where it is."""
        if self._writer is not None:
            self._writer.close()

    def discard(self) -> None:
        """Drop what is staged. In a forked child only the inherited descriptor: the files are the parent's."""
        if self._writer is not None and self._writer.close() and self.process == os.getpid():
            with contextlib.suppress(OSError):
                self._commits.storage.delete(self._writer.path)
        self._writer = None
        self._refs = {}
        self._prefixes = {}
        self._order = []
        self._sorted = 0

    def abandon(self) -> None:
        """Warn of what is lost when a transaction is dropped without commit or rollback, or the interpreter ends."""
        try:
            if self.count and self.process == os.getpid():
                warnings.warn(
                    f"{self.url}: {self.count} staged writes were NOT COMMITTED and are dropped: call commit(), or use "
                    f"`with repo.transaction() as store:`",
                    UncommittedChangesWarning,
                    stacklevel=2,
                )
        finally:  # the warning may be an error
            self.discard()


def _unpack(ref: bytes) -> Staged:
    return Staged(*_REF.unpack(ref))

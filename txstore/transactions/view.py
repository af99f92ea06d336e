"""Reads a transaction in this process: shows the staged changes of all its processes over the base."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from txstore.codecs.chunk_codec import ChunkMerger, NotMergeableError
from txstore.errors import CorruptionError, TransactionStateError
from txstore.format import names, packfile
from txstore.format.consolidated import is_consolidated
from txstore.format.documents import NODE_DOCUMENTS, Node, below
from txstore.format.encoding import MalformedError, crc32c
from txstore.format.keys import DOCUMENT_NAMES, after_prefix, ancestors, document_key, is_document, node_of_document
from txstore.format.mapping import Hierarchy
from txstore.format.packfile import PackName, Seen
from txstore.format.regions import Region
from txstore.history.changes import KeyChange, Ref, is_equal, ref_of
from txstore.history.snapshot import Snapshot
from txstore.segments.pack_writer import Staged
from txstore.segments.runs import ELSEWHERE, LATER, MISSING, Located
from txstore.storage.foreign_values import ForeignRange
from txstore.transactions.own_part import Part
from txstore.transactions.participants.chains import Link
from txstore.transactions.participants.membership import Membership
from txstore.transactions.reads import ReadLog, ReadMarks, Reads
from txstore.transactions.reflinks import Reflinks


class Known(NamedTuple):
    """The value that a partial write is about to change, and what its writer has seen of the key."""

    value: memoryview | None
    seen: Seen
    own: Region  # the elements that the writer wrote before


class View(Hierarchy):
    """The keys and values of a transaction in one process, as a mapping. Safe in threads, and after a fork."""

    def __init__(
        self,
        base: Snapshot,
        members: Membership,
        part: Part,
        marks: ReadMarks,
        reads: ReadLog,
        *,
        is_serializable: bool,
    ) -> None:
        self.base = base
        self.staged = members.staged
        self.reflinks = Reflinks()  # nodes that were moved or copied by reference
        self.committed: Snapshot | None = None  # the commit that the transaction made
        self.marks = marks
        self._members = members
        self._part = part
        self._read_log = reads
        self._is_serializable = is_serializable

    def get_view(self, key: str) -> memoryview | None:
        if self._members.is_shared or self._members.is_inherited:
            self._members.look_at_others()
            self.staged.was_read_again(key)
        link = self.staged.get(key)
        if link is not None:
            if self._members.is_shared or link.kind == packfile.FRAME_PARTIAL:
                self._mark_read(key)  # another process may have written it; an own whole value says nothing of the base
            return None if link.kind == packfile.FRAME_TOMBSTONE else self._staged_view(key, link)
        view = self.below(key)
        if view is None and self._learns_of(key):
            return self.get_view(key)
        if view is not None or self._members.is_shared:
            self._mark_read(key)
        return view

    def locate(self, keys: Sequence[str]) -> Located:
        """Locate many values in the base, as `Snapshot.locate` does. Staged keys are marked `ELSEWHERE`."""
        self._members.look_at_others()
        located = self.base.locate(keys)
        staged, is_shared = self.staged, self._members.is_shared
        table = located.table
        if len(staged) or is_shared or self.reflinks.any:
            for row, key in enumerate(keys):
                if key in staged or staged.is_below_deleted(key) or self.reflinks.find(key) is not None:
                    table[row, 0] = ELSEWHERE
        for key, number in zip(keys, table[:, 0].tolist(), strict=True):
            if number >= 0 or number == LATER or (is_shared and number == MISSING):
                self._mark_read(key)
            if is_shared and number != ELSEWHERE:
                staged.was_read_again(key)
        return located

    def peek(self, key: str) -> memoryview | None:
        """Return the present value without recording the read: no write relies on it."""
        self._members.look_at_others()
        return self.as_known(key)

    def as_known(self, key: str) -> memoryview | None:
        """Return the value that this process knows of: a write that learned of others' would count as built on them."""
        link = self.staged.get(key)
        if link is not None:
            return None if link.kind == packfile.FRAME_TOMBSTONE else self._staged_view(key, link)
        return self.below(key)

    def known(self, key: str) -> Known:
        """Return the value that a partial write changes. This does not count as a read (I5)."""
        self._members.look_at_others()
        # Get `seen` first, so that it does not include frames that others stage from now on.
        seen = self.staged.seen(key, was_read=key in self.marks, is_part=True)
        own = self.staged.own_region(key, seen)
        return Known(self.peek(key), seen, own)

    def _staged_view(self, key: str, link: Link) -> memoryview | None:
        if self.staged.layered and (layers := self.staged.layers(key)) and self.committed is None:
            with contextlib.suppress(NotMergeableError):  # the commit will refuse; until then, show one of the values
                merged = self.merged(key, self.below(key), layers)
                return None if merged is None else memoryview(merged)
        stored = self._stored(link)
        if isinstance(stored, Snapshot):
            return stored.get_view(key)
        return self._read_outside(stored) if link.kind == packfile.FRAME_FOREIGN else memoryview(stored)

    def below(self, key: str) -> memoryview | None:
        """Return the value below the staged frames: of the base, or of a reflink."""
        found = self.under(key)
        return None if found is None else found[0].get_view(found[1])

    def under(self, key: str) -> tuple[Snapshot, str] | None:
        """Return the snapshot of a key that is not staged, and its name there: the base, or a reflink's source."""
        if self.reflinks.any and (found := self.reflinks.find(key)) is not None:
            return found
        return None if self.staged.is_below_deleted(key) else (self.base, key)

    def merged(self, key: str, below: memoryview | None, layers: Sequence[Link]) -> bytes | None:
        """Return a chunk with partial writes merged over the value below. None if the chunk is to be deleted.

        Raises `NotMergeableError`.
        """
        return self.merger(key).merged(below, [(self.value(link), link.region) for link in layers])

    def value(self, link: Link) -> bytes | memoryview | None:
        """Return a staged value; None if it is a deletion. A foreign value is read from its file."""
        if link.kind == packfile.FRAME_TOMBSTONE:
            return None
        return self._read_outside(self.read(link)) if link.kind == packfile.FRAME_FOREIGN else self.read(link)

    def merger(self, key: str) -> ChunkMerger:
        """Return the merger for a chunk. Raises `NotMergeableError` if the key belongs to no array."""
        for path in ancestors(key):
            for name in NODE_DOCUMENTS:
                document = document_key(path, name)
                if (found := self.peek(document)) is not None and _is_array(document, content := bytes(found)):
                    return ChunkMerger(name, content, below(document, key))
        raise NotMergeableError("there is no array above it")

    def all_fill(self, key: str, region: Region) -> bytes | None:
        """Return a chunk of nothing but fill values as a value, for a frame that names the written region (I7).

        None if the region is the whole chunk, or if the chunk can't be merged: then the key is to be deleted.
        """
        try:
            merger = self.merger(key)
            return None if region.contains(merger.whole) else merger.all_fill()
        except NotMergeableError:
            return None

    def _read_outside(self, record: bytes) -> memoryview:
        return self.base.sources.read(_decode_record(record))

    def _staged_size(self, key: str, link: Link) -> int | None:
        if link.kind == packfile.FRAME_TOMBSTONE:
            return None
        if self.staged.layers(key):
            view = self._staged_view(key, link)
            return None if view is None else len(view)
        if link.kind != packfile.FRAME_FOREIGN:
            return link.length
        stored = self._stored(link)
        return stored.size_of(key) if isinstance(stored, Snapshot) else _decode_record(stored).length

    def _stored(self, link: Link) -> bytes | Snapshot:
        """Return a staged value, as `read` does. After the commit, return the snapshot that has the value."""
        if self.committed is None:
            try:
                return self.read(link)
            except (OSError, LookupError, TransactionStateError) as error:
                if self.committed is None:  # else another thread has just committed it
                    if self._members.is_over and not isinstance(error, TransactionStateError):
                        raise TransactionStateError(
                            "this transaction was rolled back while it was read: read again", state="rolled back"
                        ) from error
                    raise
        return self.committed

    def is_foreign(self, key: str) -> bool:
        """Tell whether a value, staged or of the base, is foreign."""
        if not (self.may_be_foreign or self.base.may_be_foreign):
            return False
        link = self.staged.get(key)
        if link is not None:
            return link.kind == packfile.FRAME_FOREIGN
        found = self.under(key)
        return found is not None and found[0].is_foreign(found[1])

    @property
    def may_be_foreign(self) -> bool:
        """Whether this transaction may set a foreign value."""
        return self.staged.may_be_foreign or (
            self.reflinks.any and any(source.may_be_foreign for source in self.reflinks.sources)
        )

    def read(self, link: Link) -> bytes:
        """Return a staged value. For a foreign value, return its record.

        Raises `CorruptionError` if the bytes differ from the written bytes.
        """
        if link.participant == self.staged.me:
            return self._part.writer.read(Staged(link.offset, link.length, link.checksum, link.sequence))
        shared = self._members.shared
        if shared is None:
            raise LookupError(f"participant {link.participant} of a transaction of one process")
        return shared.read(link)

    def get_part(self, key: str, part: slice) -> memoryview | None:
        """Return a part of a value. For a base value, this skips the checksum, which covers the whole value."""
        may_be_staged = self._members.is_shared or self._members.is_inherited or key in self.staged
        if may_be_staged or self.staged.is_below_deleted(key):
            view = self.get_view(key)
            return None if view is None else view[part]
        self._mark_read(key)
        found = self.under(key)
        return None if found is None else found[0].get_part(found[1], part)

    def size_of(self, key: str) -> int | None:
        self._members.look_at_others()
        link = self.staged.get(key)
        if link is not None:
            return self._staged_size(key, link)
        found = self.under(key)
        size = None if found is None else found[0].size_of(found[1])
        return self.size_of(key) if size is None and self._learns_of(key) else size

    def _learns_of(self, document: str) -> bool:
        """If a node has no documents at all, look at new changes of others. Return whether they staged `document`.

        Another process may have created the node since this process joined.
        """
        if not self._members.stages_for_another or not is_document(document):
            return False
        node = node_of_document(document)
        if any(map(self._is_there, (document_key(node, name) for name in DOCUMENT_NAMES))):
            return False
        self._members.join_others()
        return document in self.staged

    def _is_there(self, key: str) -> bool:
        return self.staged.is_set(key) or (key not in self.staged and self.below(key) is not None)

    def keys_between(self, start: str, stop: str | None, *, batch: int = 256) -> Iterator[str]:
        self._members.look_at_others()
        if self._members.stages_for_another:
            self._members.join_others()
        staged = self.staged.between(start, stop)
        mine = next(staged, None)
        under = self._base_keys_between(start, stop, batch)
        if self.reflinks.any:
            reflinked = self.reflinks.keys_between(start, stop, batch)
            under = (key for key, _ in groupby(heapq.merge(under, reflinked)))  # the base may have the same keys
        for theirs in under:
            while mine is not None and mine < theirs:
                if self.staged.is_set(mine):
                    yield mine
                mine = next(staged, None)
            if mine == theirs:
                mine = next(staged, None)
            if theirs not in self.staged or self.staged.is_set(theirs):
                yield theirs
        while mine is not None:
            if self.staged.is_set(mine):
                yield mine
            mine = next(staged, None)

    def _base_keys_between(self, start: str, stop: str | None, batch: int) -> Iterator[str]:
        """Yield the base's keys, except those below deleted prefixes, which this skips without reading them."""
        position: str | None = start
        while position is not None:
            for key in self.base.keys_between(position, stop, batch=batch):
                hidden = self.staged.hiding_prefix(key)
                if hidden is None:
                    yield key
                else:
                    position = after_prefix(hidden)
                    break
            else:
                return

    def _mark_read(self, key: str) -> None:
        self.marks.add(key, exactly=self._members.is_shared)

    def is_unchanged(self, key: str, link: Link) -> bool:
        """Tell whether a staged value equals the base's value, and so is no write (I5)."""
        if self.staged.layers(key):
            return False
        is_unread = link.seen == packfile.SEEN_NOTHING and key not in self.marks
        return self._is_in_base(key, link.kind, is_unread, link.length, lambda: link.checksum, lambda: self.read(link))

    def is_no_write(self, key: str, kind: int, value: memoryview) -> bool:
        """Tell whether a value that is not staged yet is no write (I5), and needs no frame."""
        if not self.is_alone or key in self.staged:
            return False
        return self._is_in_base(key, kind, key not in self.marks, len(value), lambda: crc32c(value), lambda: value)

    @property
    def is_alone(self) -> bool:
        """Whether no other process sees the transaction. Else a frame tells it that a key was written (I7)."""
        return not self._members.is_shared and not self._members.is_inherited

    def is_over_base(self, key: str) -> bool:
        """Tell whether what lies below the staged frames is the base's value."""
        return not self.staged.is_below_deleted(key) and self.reflinks.find(key) is None

    def _is_in_base(
        self,
        key: str,
        kind: int,
        is_unread: bool,
        length: int,
        checksum: Callable[[], int],
        value: Callable[[], bytes | memoryview],
    ) -> bool:
        if not self.is_over_base(key):
            return False
        found = self.base.lookup(key)
        if found is None or found.kind != packfile.REF_OF_FRAME.get(kind) or found.length != length:
            return False
        if found.is_replaced:  # an erasure has replaced it, and no commit has said so yet
            return False
        if not (is_unread or is_document(key) or is_consolidated(key)) or found.checksum != checksum():
            return False
        try:
            return self.base.runs.stored(key, found) == value()
        except CorruptionError:
            return False  # the write mends it

    # --- the reads that the commit relies on

    def rely_if_serializable(self, key: str) -> None:
        """Count a key as read, of which the base has the value that was written: as `reads` does if it was staged."""
        if self._is_serializable:
            self.note_read(packfile.FRAME_READ, key)

    def note_read(self, kind: int, key: str) -> None:
        """Record that the commit relies on a key, or on what is below a prefix, unless staged changes hide the base.

        A serializable transaction records each read before it is made. Others record the keys that callers name.

        In another process's transaction, this writes the read into the pack before the caller gets a value (I8). Raises
        `OSError`, and `TransactionStateError` if a process is committing the transaction.
        """
        log = self._read_log
        if log.has(kind, key):
            return
        if self._members.is_inherited:
            self._members.adopt()
        if self._hides_base(kind, key):
            return
        if not self._members.is_owner and not self._members.is_over:
            try:
                self._part.begin_to_read()
            except TransactionStateError as error:
                if error.state == "ended":
                    return  # the transaction can't depend on this read any more
                raise
            self._part.append(kind, key.encode(), b"", seen=packfile.SEEN_NOTHING)
        log.add(kind, key)  # last: another thread that finds the entry relies on the frame

    def _hides_base(self, kind: int, key: str) -> bool:
        if kind == packfile.FRAME_READ and (link := self.staged.get(key)) is not None:
            return link.kind != packfile.FRAME_PARTIAL  # a partial frame does not hide the rest of the base's value
        if kind == packfile.FRAME_ANY_BELOW and any(
            map(self.staged.is_set, self.staged.between(key, after_prefix(key)))
        ):
            return True
        return self.staged.is_below_deleted(key)

    def reads(self, unchanged: Iterable[str]) -> Reads:
        """Return the reads that the transaction relies on. After `close_parts`, these include all participants' reads.

        In a serializable transaction, a staged value that equals the base's is not written (I5), so the head must have
        the same value.
        """
        return self._read_log.reads(unchanged if self._is_serializable else ())

    def content(self, key: str, link: Link | None) -> bytes | None:
        """Return the value of a frame that may not count any more. If the frame is None, return the base's value."""
        if link is None:
            view = self.base.get_view(key)
            return None if view is None else bytes(view)
        return None if link.kind == packfile.FRAME_TOMBSTONE else self.read(link)

    # --- staged changes

    @property
    def version(self) -> Hashable:
        """A value that changes when this process stages anything, or learns of others' changes."""
        self._members.look_at_others()
        return self._members.record.id, self.staged.version, tuple(self.reflinks), tuple(self.reflinks.taken)

    def key_changes(self) -> Iterator[KeyChange]:
        """Yield the keys that will differ from the base after the commit, in the order of their bytes."""
        self._members.look_at_others()
        gone = [self.base.keys_below(prefix) for prefix in self.staged.prefixes]
        last = None
        for key in heapq.merge(self.staged.between("", None), self.reflinks.keys_between("", None, 4096), *gone):
            if key == last:
                continue
            last = key
            before, link = ref_of(self.base, key), self.staged.get(key)
            if link is None:
                found = self.reflinks.find(key)
                after = None if found is None else ref_of(*found)
            else:
                after = None if link.kind == packfile.FRAME_TOMBSTONE else self.ref(link)
            if (before is not None or after is not None) and not self._is_as_before(key, before, after, link):
                yield KeyChange(key, before, after)

    def ref(self, link: Link) -> Ref:
        """Return the location of a staged value, as a ref of the coming commit."""
        pack = PackName(packfile.participants_pack(self._members.record.id, self._part.number_of(link)))
        offset = packfile.split_offset(link.offset)[1]
        return Ref(packfile.REF_OF_FRAME[link.kind], self.base.seq + 1, pack, offset, link.length, link.checksum)

    def _is_as_before(self, key: str, before: Ref | None, after: Ref | None, link: Link | None) -> bool:
        if before is None or after is None or self.staged.layers(key):
            return False
        if link is None:
            there = self.reflinks.find(key)
            mine, theirs = self.base.lookup(key), None if there is None else there[0].lookup(there[1])
            if there is None or mine is None or theirs is None:
                return False
            return is_equal(self.base.runs, mine, there[0].runs, theirs, key)
        if (before.kind, before.length, before.checksum) != (after.kind, after.length, after.checksum):
            return False
        found = self.base.lookup(key)
        return found is not None and bytes(self.base.runs.stored(key, found)) == self.read(link)


class Peek(Hierarchy):
    """A view of a transaction that records no reads (`View.peek`), to compute the keys to lock."""

    def __init__(self, view: View) -> None:
        self._view = view

    def get_view(self, key: str) -> memoryview | None:
        return self._view.peek(key)

    def size_of(self, key: str) -> int | None:
        return self._view.size_of(key)

    def keys_between(self, start: str, stop: str | None, *, batch: int = 256) -> Iterator[str]:
        return self._view.keys_between(start, stop, batch=batch)


@lru_cache(8)
def _is_array(document: str, content: bytes) -> bool:
    return Node.parse(document, content).kind == "array"


def _decode_record(record: bytes) -> ForeignRange:
    try:
        return ForeignRange.decode(record)
    except MalformedError as error:
        raise CorruptionError(names.STAGING, reason=f"what a process has staged there: {error.reason}") from error

"""The view of a transaction: what is staged, by this process and by the others that stage into it, over a base.

No life cycle here: `Transaction` says when this may be written, `Committer` turns it into a commit.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import threading
import time
import weakref
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from txstore import processes
from txstore._native import chunks
from txstore.codecs.chunk_codec import NotMergeableError
from txstore.codecs.merging import ChunkMerger
from txstore.commit import Stored
from txstore.errors import (
    ConflictError,
    CorruptionError,
    ParticipantLostError,
    TransactionStateError,
)
from txstore.format import names, packfile
from txstore.format.consolidated import is_consolidated
from txstore.format.documents import NODE_DOCUMENTS, Node, below
from txstore.format.encoding import MalformedError
from txstore.format.keys import (
    DOCUMENT_NAMES,
    after_prefix,
    ancestors,
    document_key,
    encode_key,
    is_document,
    node_of_document,
)
from txstore.format.mapping import Hierarchy
from txstore.format.packfile import PackName, Predecessor, Seen
from txstore.format.records import SERIALIZABLE, TransactionRecord
from txstore.format.regions import WHOLE, Region
from txstore.history.changes import KeyChange, Ref, is_equal, ref_of, refs_of
from txstore.history.commits import Commits
from txstore.history.snapshot import Snapshot
from txstore.processes import at_exit, was_broken_off
from txstore.segments.packs import Staged, Writer
from txstore.segments.runs import ELSEWHERE, LATER, MISSING, Located
from txstore.steps import step
from txstore.storage.foreign import ForeignRange
from txstore.storage.interface import Storage
from txstore.transactions.conflicts import Settle
from txstore.transactions.key_turns import KeyTurns
from txstore.transactions.participants.chains import Link
from txstore.transactions.participants.reclaim import reclaim_staging
from txstore.transactions.participants.shared import SharedTransaction, append_about
from txstore.transactions.participants.siblings import Siblings
from txstore.transactions.reads import NOTHING_READ, ReadLog, ReadMarks, Reads
from txstore.transactions.reflinks import HeldSources, Reflink, Reflinks, Taken
from txstore.transactions.staged_keys import StagedKeys

if TYPE_CHECKING:
    from typing_extensions import Buffer

NOT_STAGING = -1  # the number of a process that has not staged anything in another process's transaction

#: Documents that array objects hold, of each the frame that they know; None: the base's.
Held = dict[str, Link | None]

#: In a process that stages into transactions of others: what it has to seal when it ends.
_participants: weakref.WeakSet[Staging] = weakref.WeakSet()


#: In place of what was seen of a key, if that does not fit in a byte.
_ODD = 255

_TAKE_TURNS = (
    "Trying again alone does not help. Roll back, and either align the work with the chunks, so that no two processes "
    "write one, or let them take turns: each reads and writes its part within `with store.lock(path, selection)`"
)
_LOCKED_TOO_LATE = (
    "They take locks, but what one of them wrote comes from what it had read before it held the lock, and others have "
    "written since. Roll back, and let each read under the lock what it changes there: within "
    "`with store.lock(path, selection)`, from an array that is opened there if it may have been resized"
)


_UNKNOWN_TO_EACH_OTHER = "several processes of this transaction wrote these keys without knowing of each other's writes"


class Known(NamedTuple):
    """What is about to be changed in part, and what its writer has seen of the key then."""

    value: memoryview | None
    seen: Seen
    own: Region  # what the writer has written of it before


class Contribution(NamedTuple):
    """What a participant has staged, as a commit counts it."""

    pack_id: bytes
    end: int  # of its frames


class Staging(Hierarchy):
    """The view of a transaction in one process. Safe in threads, and after a fork.

    The process that began the transaction is participant 0, and its pack becomes the commit file. Others join: children
    that inherit the transaction or are sent it, and, if it has a name, processes that give that name; there, no process
    is participant 0. A process that joins sees what was staged when it joined, and, when `follow_others` is called,
    what its siblings have staged since; the one that began the transaction sees all of it at any time.
    """

    def __init__(
        self,
        commits: Commits,
        base: Snapshot,
        record: TransactionRecord,
        *,
        shared: SharedTransaction | None = None,
        counts_by_operation: bool = False,
        other_parent: Stored | None = None,
        settle_conflicts: Settle | None = None,
    ) -> None:
        """`other_parent` is that of a commit that is a merge. `settle_conflicts` says what becomes of conflicts.

        `counts_by_operation`: what this process stages is whole at the end of each operation (I8).
        """
        self.base = base
        self.record = record
        self.other_parent = other_parent
        self.settle_conflicts = settle_conflicts
        self.id = record.id  # of the transaction, and of the commit that it becomes
        self.process = os.getpid()
        self.began = time.monotonic()
        self.is_owner = shared is None  # began the transaction, which has no name
        self.attached: set[object] = set()  # transactions of this process that use this
        self._thread = ""  # the name of the one that became a participant
        self._blocks: set[object] = set()  # of these, who is in a `with` block
        self._enders: set[object] = set()  # calls that are about to end it
        self.staged = StagedKeys(0 if shared is None else NOT_STAGING, commits.storage)
        self.reflinks = Reflinks()  # what was moved or copied without copying values
        self.sources: HeldSources | None = None  # what these are taken from, while it is being committed
        self._commits = commits
        self._shared = shared
        self._lock = processes.new_lock()  # of the writer
        self.turns = KeyTurns()  # of all transactions of this process that use this
        self._following = processes.new_rlock()
        self._writer: Writer | None = None
        self._commit_writer: Writer | None = None
        self._counting = processes.new_lock()  # of the two that follow
        self._staged_at = self._sealed_at = -1  # the sequence of the last frame of this process, and of its last seal
        self._kept_at = -1  # of the last seal that holds though this process breaks off what it does
        self._done_at = -1  # of the last seal by which it has said that it was done, not just with an operation
        self._is_half = False  # an operation has failed that has staged something: no later one vouches for that
        self._counts_by_operation = counts_by_operation
        self._ending = processes.new_lock()  # of the operations that are under way
        self._operations: set[object] = set()
        self._inherited = False  # by a fork, and not used in this process so far
        self._is_over = False
        #: Siblings know under which word this process leaves locks: it has taken some.
        self._announced: dict[str, int] = {}
        self.has_failed = False  # a write of this process: its part must not look complete
        self.has_given_up = False  # and says so to the others
        self.constraints: dict[str, Any] = {}  # declared by the owner, as they are written, or (None) dropped
        self._marks = ReadMarks()
        self._committed: Snapshot | None = None
        self.is_unsettled = False  # it may have been published, or it was: nothing of it is deleted
        self._read_log = ReadLog() if record.isolation == SERIALIZABLE else None
        self._siblings = Siblings(self.staged, self._marks, self._read_log)
        processes.watch(self)

    @property
    def storage(self) -> Storage:
        return self._commits.storage

    @property
    def url(self) -> str:
        return self.storage.url

    # --- reading

    def get_view(self, key: str) -> memoryview | None:
        if self._shared is not None or self._inherited:
            self._look_at_others()
            self.staged.was_read_again(key)
        link = self.staged.get(key)
        if link is not None:
            if self._shared is not None or link.kind == packfile.FRAME_PARTIAL:
                self._mark_read(key)  # it may be another's; what is all one's own says nothing of the base
            return None if link.kind == packfile.FRAME_TOMBSTONE else self._staged_view(key, link)
        view = self.below(key)
        if view is None and self._learns_of(key):
            return self.get_view(key)
        if view is not None or self._shared is not None:
            self._mark_read(key)
        return view

    def locate(self, keys: Sequence[str]) -> Located:
        """Return where the base has many values, as `Snapshot.locate` does; what is staged is elsewhere."""
        self._look_at_others()
        located = self.base.locate(keys)
        staged, is_shared = self.staged, self._shared is not None
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
        """Return a value without noting the read: as it is by now, and no write relies on it."""
        self._look_at_others()
        link = self.staged.get(key)
        if link is not None:
            return None if link.kind == packfile.FRAME_TOMBSTONE else self._staged_view(key, link)
        return self.below(key)

    def known(self, key: str) -> Known:
        """Return what is to be changed in part. It counts as no read (I5)."""
        self._look_at_others()
        # First: of what others stage from now on, it is not claimed that it was seen.
        seen = self.staged.seen(key, was_read=key in self._marks)
        own = self.staged.own_region(key, seen)
        return Known(self.peek(key), seen, own)

    def _staged_view(self, key: str, link: Link) -> memoryview | None:
        if self.staged.layered and (layers := self.staged.layers(key)) and self._committed is None:
            with contextlib.suppress(NotMergeableError):  # the commit will refuse; until then, one sees one
                merged = self.merged(key, self.below(key), layers)
                return None if merged is None else memoryview(merged)
        stored = self._stored(link)
        if isinstance(stored, Snapshot):
            return stored.get_view(key)
        return self._read_outside(stored) if link.kind == packfile.FRAME_FOREIGN else memoryview(stored)

    def below(self, key: str) -> memoryview | None:
        """Return what is staged over."""
        found = self.under(key)
        return None if found is None else found[0].get_view(found[1])

    def under(self, key: str) -> tuple[Snapshot, str] | None:
        """Return where a key is read from that is not staged, and its name there: the base, or what was moved here."""
        if self.reflinks.any and (found := self.reflinks.find(key)) is not None:
            return found
        return None if self.staged.is_below_deleted(key) else (self.base, key)

    def merged(self, key: str, below: memoryview | None, layers: Sequence[Link]) -> bytes | None:
        """Return a chunk with what was written of it in part laid over what is there; None if it is to be deleted.

        Raises `NotMergeableError`.
        """
        return self.merger(key).merged(below, [(self._value(link), link.region) for link in layers])

    def _value(self, link: Link) -> bytes | memoryview | None:
        if link.kind == packfile.FRAME_TOMBSTONE:
            return None
        return self._read_outside(self.read(link)) if link.kind == packfile.FRAME_FOREIGN else self.read(link)

    def merger(self, key: str) -> ChunkMerger:
        """Return what merges versions of a chunk. Raises `NotMergeableError` if the key is none of an array."""
        for path in ancestors(key):
            for name in NODE_DOCUMENTS:
                document = document_key(path, name)
                if (found := self.peek(document)) is not None and _is_array(document, content := bytes(found)):
                    return ChunkMerger(name, content, below(document, key))
        raise NotMergeableError("there is no array above it")

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
        """Return what is staged, as `read` does; once that is committed, the snapshot that has it."""
        if self._committed is None:
            try:
                return self.read(link)
            except (OSError, LookupError, TransactionStateError) as error:
                if self._committed is None:  # else it was committed just now
                    if self._is_over and not isinstance(error, TransactionStateError):
                        raise TransactionStateError(
                            "this transaction was rolled back while it was read: read again", state="rolled back"
                        ) from error
                    raise
        return self._committed

    def is_foreign(self, key: str) -> bool:
        """Tell whether a value is known to lie outside, be it staged or the base's."""
        if not (self.may_be_foreign or self.base.may_be_foreign):
            return False
        link = self.staged.get(key)
        if link is not None:
            return link.kind == packfile.FRAME_FOREIGN
        found = self.under(key)
        return found is not None and found[0].is_foreign(found[1])

    @property
    def may_be_foreign(self) -> bool:
        """Whether a value that this sets may lie outside of the repository."""
        return self.staged.may_be_foreign or (
            self.reflinks.any and any(source.may_be_foreign for source in self.reflinks.sources)
        )

    def read(self, link: Link) -> bytes:
        """Return what is staged, of a value that lies outside the record.

        Raises `CorruptionError` if it is no longer what was written.
        """
        if link.participant == self.staged.me:
            return self.writer.read(Staged(link.offset, link.length, link.checksum, link.sequence))
        if self._shared is None:
            raise LookupError(f"participant {link.participant} of a transaction of one process")
        return self._shared.read(link)

    def get_part(self, key: str, part: slice) -> memoryview | None:
        """Return a part of a value; of a base value without comparing the checksum, which covers the whole."""
        if self._shared is not None or self._inherited or key in self.staged or self.staged.is_below_deleted(key):
            view = self.get_view(key)
            return None if view is None else view[part]
        self._mark_read(key)
        found = self.under(key)
        return None if found is None else found[0].get_part(found[1], part)

    def size_of(self, key: str) -> int | None:
        self._look_at_others()
        link = self.staged.get(key)
        if link is not None:
            return self._staged_size(key, link)
        found = self.under(key)
        size = None if found is None else found[0].size_of(found[1])
        return self.size_of(key) if size is None and self._learns_of(key) else size

    def _learns_of(self, document: str) -> bool:
        """Look at what others have staged by now if a document of a node is missing, of which there is none at all.

        Another may have created the node since this process has joined. Returns whether it has staged the document.
        """
        if not self._stages_for_another or not is_document(document):
            return False
        node = node_of_document(document)
        if any(map(self._is_there, (document_key(node, name) for name in DOCUMENT_NAMES))):
            return False
        self.join_others()
        return document in self.staged

    @property
    def _stages_for_another(self) -> bool:
        return self._shared is not None and not self.is_owner and not self._is_over

    def _is_there(self, key: str) -> bool:
        return self.staged.is_set(key) or (key not in self.staged and self.below(key) is not None)

    def keys_between(self, start: str, stop: str | None, *, batch: int = 256) -> Iterator[str]:
        self._look_at_others()
        if self._stages_for_another:
            self.join_others()
        staged = self.staged.between(start, stop)
        mine = next(staged, None)
        under = self._base_keys_between(start, stop, batch)
        if self.reflinks.any:
            reflinked = self.reflinks.keys_between(start, stop, batch)
            under = (key for key, _ in groupby(heapq.merge(under, reflinked)))  # of the base there may be the same
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
        """Yield the base's keys but for those below deleted prefixes, which are skipped, not walked."""
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

    def is_below_deleted(self, key: str) -> bool:
        return self.staged.is_below_deleted(key)

    def _mark_read(self, key: str) -> None:
        self._marks.add(key, exactly=self._shared is not None)

    def is_unchanged(self, key: str, link: Link) -> bool:
        """Tell whether a staged value is just what the base holds, and so is no write (I5)."""
        if self.staged.is_below_deleted(key) or self.staged.layers(key):
            return False
        if self.reflinks.any and self.reflinks.find(key) is not None:
            return False
        found = self.base.lookup(key)
        if found is None or found.kind != packfile.REF_OF_FRAME.get(link.kind):
            return False
        if (found.length, found.checksum) != (link.length, link.checksum):
            return False
        is_metadata = is_document(key) or is_consolidated(key)
        if not is_metadata and (link.seen != packfile.SEEN_NOTHING or key in self._marks):
            return False
        return bytes(self.base.runs.stored(key, found)) == self.read(link)

    # --- what a serializable transaction has read

    def note_read(self, kind: int, key: str) -> None:
        """Note that a key, or what is below a prefix, is about to be read, unless what is staged hides the base's.

        Of another process's transaction that is in the pack before anything is handed out, as what is staged is (I8).
        Raises `OSError`, and `TransactionStateError` if the transaction is being committed.
        """
        log = self._read_log
        if log is None or log.has(kind, key):
            return
        if self._inherited:
            self._adopt()
        if self._hides_base(kind, key):
            return
        if not self.is_owner and not self._is_over:
            try:
                writer = self._writer or self._begin()
            except TransactionStateError as error:
                if error.state == "ended":
                    return  # nothing that is read now can have a part in it
                raise
            self._count_staged(writer.append(kind, key.encode(), b"", seen=packfile.SEEN_NOTHING))
        log.add(kind, key)  # last: another thread that finds it there may rely on it

    def _hides_base(self, kind: int, key: str) -> bool:
        if kind == packfile.FRAME_READ and (link := self.staged.get(key)) is not None:
            return link.kind != packfile.FRAME_PARTIAL  # of which the rest is the base's
        if kind == packfile.FRAME_ANY_BELOW and any(
            map(self.staged.is_set, self.staged.between(key, after_prefix(key)))
        ):
            return True
        return self.staged.is_below_deleted(key)

    def reads(self, unchanged: Iterable[str]) -> Reads:
        """Return what the transaction relies on, by all its participants once `close_parts` was called.

        What was staged just as it is in the base is not written (I5), so it has to be so at the head.
        """
        return NOTHING_READ if self._read_log is None else self._read_log.reads(unchanged)

    def rely_on(self, held: Held) -> None:
        """Note what array objects hold that come from another process, or from before a fork."""
        for key, known in held.items():
            self._marks.add(key, exactly=True)
            if known is None:
                if key in self.staged:
                    self.staged.outdate(key, packfile.SEEN_BASE)
            elif (present := self.staged.present(key)) is None or present.place != known.place:
                self.staged.outdate(key, known.place)
            else:
                self.staged.was_read_again(key)  # older objects are of other sessions, which refuse them

    def content(self, key: str, link: Link | None) -> bytes | None:
        """Return what a key is by a frame that may not count any more; by the base, if that is None."""
        if link is None:
            view = self.base.get_view(key)
            return None if view is None else bytes(view)
        return None if link.kind == packfile.FRAME_TOMBSTONE else self.read(link)

    # --- writing

    def stage(self, kind: int, key: str, encoded: bytes, value: Buffer) -> None:
        """Append a frame and remember where it is. `key` is a prefix for a prefix tombstone.

        Raises `OSError`; `TransactionStateError` if the transaction of another process has ended.
        """
        writer = self._writer or self._begin()
        if kind == packfile.FRAME_PREFIX and self._shared is not None:
            # So that it is known which frames of others were seen.
            for other in self.staged.written_by_others(key):
                self._append_all_seen(writer, other)
                self._append(writer, packfile.FRAME_TOMBSTONE, other, other.encode(), b"")
            for other in self.staged.deleted_by_others(key):
                self._append(writer, packfile.FRAME_PREFIX, other, other.encode(), b"")
        if self.staged.layered:
            self._append_all_seen(writer, key)
        self._append(writer, kind, key, encoded, value)
        if self._shared is not None and not self.is_owner:
            self._shared.check_open()  # I8: what was there when this was tested will be found by the commit

    def stage_part(self, key: str, encoded: bytes, value: Buffer, known: Known, region: Region) -> None:
        """Append a chunk of which a region was written, and remember where it is. Raises what `stage` raises.

        `known` is what was known of it when `value` was made.
        """
        region |= known.own
        apart = [end for end in self.staged.ends(key) if end.place != known.seen]
        is_reflinked = self.reflinks.any and self.reflinks.find(key) is not None  # the rest is not the base's
        overlaps = any(end.region.intersects(region) for end in apart)
        # A frame of the whole vouches for a deletion above (I7). Below a part may be what was to be deleted: then the
        # frame doesn't say that the others were seen, and the commit refuses it.
        if is_reflinked or not region.encode() or (overlaps and self.staged.know_of_deletions(key)):
            self.stage(packfile.FRAME_VALUE, key, encoded, value)
            return
        writer = self._writer or self._begin()
        self._append(writer, packfile.FRAME_PARTIAL, key, encoded, value, known.seen, region)
        if self._shared is not None and not self.is_owner:
            self._shared.check_open()  # as above

    def _append_all_seen(self, writer: Writer, key: str) -> None:
        """Say that all frames of a key were seen which had not seen one another: what is written next replaces them."""
        for end in self.staged.ends(key):
            self._append(writer, packfile.FRAME_TOMBSTONE, key, key.encode(), b"", end.place)

    def _append(
        self,
        writer: Writer,
        kind: int,
        key: str,
        encoded: bytes,
        value: Buffer,
        seen: Seen | None = None,
        region: Region = WHOLE,
    ) -> None:
        if seen is None:
            seen = self.staged.seen(key, was_read=key in self._marks)
        if region is WHOLE:
            staged = writer.append(kind, encoded, value, seen=seen)
        else:
            staged = writer.append(kind, encoded, value, seen=seen, region=region.encode())
        self._count_staged(staged)
        if kind == packfile.FRAME_PREFIX:
            self.staged.hide(key, self.staged.me, staged.sequence, seen)
            self.reflinks.hide(key)
        else:
            link = Link(
                self.staged.me, staged.sequence, seen, kind, staged.offset, staged.length, staged.checksum, region
            )
            self.staged.add(key, link)
            if self._shared is not None:
                self.staged.was_read_again(key)
                if not self.is_owner and is_document(key):
                    self.staged.news.append(key)

    def stage_chunks(
        self, keys: Sequence[str], encoded: tuple[bytes, ...], batch: chunks.Batch, threads: int
    ) -> list[int]:
        """Append the frames of many chunks, as a batch encodes them; return which rows have to be staged one by one.

        Raises what `stage` does.
        """
        writer = self._writer or self._begin()
        seen = bytearray(len(keys))
        if self._marks or self.staged.knows_anything:
            for row, key in enumerate(keys):
                what = self.staged.seen(key, was_read=key in self._marks)
                seen[row] = _ODD if isinstance(what, Predecessor) or key in self.staged.layered else what
        if not writer.append_chunks(batch, encoded, seen, threads):
            return list(range(len(keys)))
        placed = np.frombuffer(batch.placed(), np.int64).reshape(-1, 5)
        states, refs = placed[:, 0], placed[:, 1:]
        rows = np.flatnonzero(states == chunks.PLACED)
        if len(rows):
            with self._counting:
                self._staged_at = max(self._staged_at, int(refs[rows, 3].max()))
        self.staged.add_values(
            (keys[row], seen[row], ref) for row, ref in zip(rows.tolist(), refs[rows].tolist(), strict=True)
        )
        if self._shared is not None:
            for row in rows.tolist():
                self.staged.was_read_again(keys[row])
        for row in np.flatnonzero(states == chunks.EMPTY).tolist():
            self._append(writer, packfile.FRAME_TOMBSTONE, keys[row], encoded[row], b"")
        left: list[int] = np.flatnonzero((states != chunks.PLACED) & (states != chunks.EMPTY)).tolist()
        if self._shared is not None and not self.is_owner:
            self._shared.check_open()
        return left

    def reflink(self, source: str, to: str, snapshot: Snapshot | None, *, drops: str | None, only_drops: bool) -> None:
        """Let the keys below a prefix be those below another one, of a snapshot or of this view, as they are now.

        What is below `drops` is deleted, then; `only_drops`: nothing else happens. Below `to` nothing is left. Of what
        is committed no value is read; what was staged is staged again. Raises `OSError`, `TransactionStateError`.
        """
        writer = self._writer or self._begin()
        self._check_alone()
        staged: list[tuple[str, Link]] = []
        reflinks: list[Reflink] = []
        taken: dict[str, Taken] = {}
        if snapshot is not None:
            reflinks = [Reflink(to, snapshot, source)]
        elif not only_drops:
            links = [(key, self.staged.get(key)) for key in self.staged.between(source, after_prefix(source))]
            staged = [(key, link) for key, link in links if link is not None]
            reflinks, taken = self.reflinks.below(source, to)
            if not self.staged.is_below_deleted(source) and self.base.has_keys_below(source):
                hidden = (to + each[len(source) :] for each in self.prefixes if each.startswith(source))
                reflinks.insert(0, Reflink(to, self.base, source, frozenset(hidden)))
        if next(self.staged.between(to, after_prefix(to)), None) is not None:  # what was deleted there, key by key
            self._append(writer, packfile.FRAME_PREFIX, to, to.encode(), b"")
        for key, link in staged:
            self._stage_again(writer, key, to + key[len(source) :], link)
        if drops is not None:
            self._append(writer, packfile.FRAME_PREFIX, drops, drops.encode(), b"")
        self.reflinks.add(reflinks, taken)

    def take(self, keys: Mapping[str, str], snapshot: Snapshot) -> None:
        """Let keys be what others are in a snapshot: refs to the same values. Raises what `reflink` does."""
        writer = self._writer or self._begin()
        self._check_alone()
        for key in filter(self.staged.__contains__, keys):  # what is staged would hide it
            name = keys[key]
            found = snapshot.lookup(name)
            if found is not None:
                stored = snapshot.runs.stored(name, found)
                self._append(writer, packfile.FRAME_OF_REF[found.kind], key, encode_key(key), stored)
        refs = dict(refs_of(snapshot, keys.values()))
        taken = {
            key: Taken(snapshot, name, refs[name])
            for key, name in keys.items()
            if name in refs and key not in self.staged
        }
        self.reflinks.add([], taken)

    def _check_alone(self) -> None:
        if self._shared is not None:
            raise TransactionStateError(
                "several processes stage into this transaction: move, copy and restore need one of its own, without a "
                "name, that no other process has joined",
                state="foreign",
            )

    def _stage_again(self, writer: Writer, key: str, name: str, link: Link) -> None:
        kind = packfile.FRAME_VALUE if link.kind == packfile.FRAME_PARTIAL else link.kind
        value = b"" if kind == packfile.FRAME_TOMBSTONE else self.read(link)
        if self.staged.layers(key):
            merged = self.peek(key)
            kind, value = (packfile.FRAME_TOMBSTONE, b"") if merged is None else (kind, bytes(merged))
        self._append(writer, kind, name, encode_key(name), value)

    def _count_staged(self, staged: Staged) -> None:
        with self._counting:
            self._staged_at = max(self._staged_at, staged.sequence)

    @property
    def _is_sealed(self) -> bool:
        """Whether a seal is the last that this process has staged: another thread may stage while one seals."""
        return self._sealed_at >= self._staged_at

    def _begin(self) -> Writer:
        if self._inherited:
            self._adopt()
        with self._lock:
            if self.has_given_up:
                raise _given_up()
            if self._writer is None:
                if not self.is_owner:
                    if self._shared is None:
                        raise _not_shared()
                    self._shared.check_open()
                    self._thread = threading.current_thread().name
                    self.staged.me, self._writer = self._shared.join()
                    _participants.add(self)
                    at_exit(_seal_all)
                else:
                    self._commits.identity.create(durable=self.record.durability == "fsync")
                    if self._commits.staged.tidies_first():
                        reclaim_staging(self._commits)
                    self._writer = self._commits.staged.new(self.id, 0)
                    if self._shared is not None:
                        self._writer.publish()
            return self._writer

    @property
    def writer(self) -> Writer:
        """The pack that this process stages into. There is one as soon as it has staged anything."""
        if self._writer is None:
            raise _given_up() if self.has_given_up else LookupError("nothing is staged")
        return self._writer

    def attach(self) -> None:
        """Become a participant now, though nothing is staged yet: others can tell that this process is there."""
        self._begin()

    # --- several processes

    def is_open(self) -> bool:
        """Tell whether the transaction that this process has joined still goes on."""
        try:
            if self._shared is not None:
                self._shared.check_open()
        except (OSError, TransactionStateError):
            return False
        return not self._is_over

    @property
    def is_named(self) -> bool:
        return self.record.name is not None

    @property
    def is_used_here(self) -> bool:
        """Whether this process uses it, and has not just inherited it by a fork."""
        return not self._inherited and self.process == os.getpid()

    @property
    def committed(self) -> Snapshot | None:
        """The commit that the transaction has become."""
        return self._committed

    @property
    def is_over(self) -> bool:
        """Whether this process has left the transaction, or the transaction has ended here."""
        return self._is_over

    @property
    def is_shared(self) -> bool:
        return self._shared is not None

    def share(self) -> None:
        """Let other processes join: what is staged, and the record of the transaction, are there for them to find.

        Nothing happens if the repository does not exist and nothing is staged.
        """
        if self._inherited:
            self._adopt()
        if self._shared is not None or self._committed is not None:
            return
        if self._writer is None and not self._commits.identity.exists():
            return
        if self.reflinks.any:
            raise TransactionStateError(
                "this transaction has moved, copied or restored something, which only the process that began it knows: "
                "commit it before others join, or move after they have done their part",
                state="open",
            )
        self._commits.identity.create(durable=self.record.durability == "fsync")
        with self._lock:
            if self._shared is None:
                if self._writer is not None:
                    self._writer.publish()
                self._shared = SharedTransaction.publish(self._commits, self.record)

    def after_fork_in_child(self) -> None:
        # The parent's files are its own; this process becomes a participant when it first uses the transaction.
        self._inherited = True
        self._operations = set()  # the threads that run them are the parent's
        self.turns = KeyTurns()
        self._blocks, self._enders = set(), set()
        self._writer = self._commit_writer = None
        self._announced = {}

    def _adopt(self) -> None:
        """Make this process a participant of the transaction that it has inherited."""
        with self._following:
            if not self._inherited:
                return
            if not self._is_over and self._shared is None:
                if self.staged:
                    raise _not_shared()
                self.is_owner = False  # what there is can be read; see `_begin`
            elif not self._is_over:
                known: Held = {key: link for key, link in self.staged.items() if is_document(key)}
                self._shared = SharedTransaction.find(self._commits, self.id)
                self.is_owner = False
                self.staged = StagedKeys(NOT_STAGING, self.storage)
                self._siblings = Siblings(self.staged, self._marks, self._read_log)
                self._staged_at = self._sealed_at = self._kept_at = self._done_at = -1
                self._is_half = False
                self._counts_by_operation = True
                self._follow(joining=True)
                self.rely_on(known)
            self.process = os.getpid()
            self._inherited = False

    def join_others(self) -> None:
        """See what others have staged by now, as one does when joining."""
        with self._following:
            self._follow(joining=True)

    def seen(self) -> dict[int, int]:
        """Return how far this process sees what is staged: by participant, the last frame. Others can find all of that.

        Raises `OSError`.
        """
        self._look_at_others()
        seen = dict(self.staged.version)
        if self._writer is not None:
            self._writer.flush()
        return seen

    def has_seen(self, seen: Mapping[int, int]) -> bool:
        """Tell whether this process sees at least what another does, as far as that counts for a process that joins
        now.
        """
        return not self._inherited and (self.is_owner or not self._siblings.behind(seen))

    def see(self, seen: Mapping[int, int]) -> None:
        """See at least what another process has seen. Raises `TransactionStateError` if that is not there."""
        self._look_at_others()
        if not self.has_seen(seen):
            self.join_others()
            if not self.has_seen(seen):
                raise _not_there()

    @property
    def has_seen_given_up(self) -> bool:
        """Whether others have given up since what was seen of them here: who joins now must not build on it."""
        return self._siblings.has_seen_given_up

    def follow_others(self) -> None:
        """See what others have staged by now, as one does when a lock was taken."""
        if self._inherited:
            self._adopt()
        if self._shared is not None and not self._is_over:
            with self._following:
                self._follow()

    def _look_at_others(self) -> None:
        if self._inherited:
            self._adopt()
        elif self.is_owner and self._shared is not None:
            self.follow_others()

    def _follow(self, *, joining: bool = False) -> None:
        if self._shared is not None:
            self._siblings.follow(self._shared, joining=joining)

    def announce(self, parked_locks: int) -> None:
        """Tell siblings under which owner word this process leaves locks to them."""
        if self._shared is not None:
            self._announced = {"locks": parked_locks}
            self._count_staged(append_about(self._writer or self._begin(), **self._announced))

    def owners_locks(self) -> int | None:
        """Return the owner word of the process that began the transaction: what is left under it outlives this one."""
        return self._siblings.locks_of(0)

    def parked_locks(self) -> list[int]:
        """Return the owner words under which siblings leave locks."""
        return self._siblings.parked_locks()

    # --- what is staged

    @property
    def count(self) -> int:
        """How many keys and prefixes are set or deleted, and constraints declared or dropped."""
        if not self._is_over:
            self._look_at_others()
        return self.known_count

    @property
    def known_count(self) -> int:
        """The same, without looking at what others have staged since."""
        return len(self.staged) + len(self.reflinks) + len(self.constraints)

    @property
    def version(self) -> Hashable:
        """What tells this view from what it was before anything was staged, or learned of others."""
        self._look_at_others()
        return self.id, self.staged.version, tuple(self.reflinks), tuple(self.reflinks.taken)

    @property
    def prefixes(self) -> list[str]:
        return self.staged.prefixes

    def items_staged(self) -> Iterator[tuple[str, Link]]:
        """Yield the keys that are set or deleted, in the order of their bytes."""
        return self.staged.items()

    def key_changes(self) -> Iterator[KeyChange]:
        """Yield the keys that differ from the base once this is committed, in the order of their bytes."""
        self._look_at_others()
        gone = [self.base.keys_below(prefix) for prefix in self.prefixes]
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
                after = None if link.kind == packfile.FRAME_TOMBSTONE else self._ref(link)
            if (before is not None or after is not None) and not self._is_as_before(key, before, after, link):
                yield KeyChange(key, before, after)

    def _ref(self, link: Link) -> Ref:
        """Return where a staged value lies, in the words of a commit."""
        pack = PackName(packfile.participants_pack(self.id, self.number_of(link)))
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

    def label(self, participant: int) -> str:
        """Return who a participant is."""
        if participant == self.staged.me:
            return f"process {os.getpid()} (this one)"
        return self._siblings.label(participant)

    # --- the commit

    def close_parts(self, *, allow_lost: bool = False) -> None:
        """Stop all staging, and settle whose frames count.

        Raises `ParticipantLostError` (I8) and `ConflictError` (I7); call `reopen_parts` when no commit is made.
        """
        if self._shared is None:
            return
        # Before the seal: who is refused because of it may end at once.
        self.follow_others()
        living = self._siblings.whole_or_living(self._shared, self._shared.participants())
        self._shared.seal()
        failed = {other.staged.me for other in self._in_this_process() if other.has_failed}
        with self._following:
            lost = self._siblings.close(self._shared, living, failed)
        given_up = self._siblings.given_up()
        broken = self.staged.settle(lost, self._are_equal, given_up)
        if broken and (killed := self._siblings.killed(self._shared)):  # their tasks may have been done again
            broken = self.staged.settle(lost | dict.fromkeys(killed, -1), self._are_equal, given_up, among=broken)
        lost_keys = self._siblings.lost_keys(lost)
        if allow_lost:  # but not what a power loss has taken: it was never synced
            lost_keys = [key for key in lost_keys if self._is_damaged(key)]
        if lost_keys:
            raise ParticipantLostError([self._siblings.label(number) for number in lost], lost_keys)
        if broken:
            raise ConflictError(
                broken,
                reason=_UNKNOWN_TO_EACH_OTHER + "".join(map(self._told_of_regions, broken[:1])),
                advice=_LOCKED_TOO_LATE if all(map(self._have_locked, broken)) else _TAKE_TURNS,
            )

    def _are_equal(self, one: Link, other: Link) -> bool:
        return self.read(one) == self.read(other)

    def _told_of_regions(self, key: str) -> str:
        """Return what is to be said of a key of which at least two have written a part."""
        regions = [str(link.region) for link in self.staged.links(key) if link.region is not WHOLE]
        return f" (of {key!r} {', '.join(regions)})" if len(regions) > 1 else ""

    def _have_locked(self, key: str) -> bool:
        """Tell whether the processes that wrote a key have locked anything. Of the owner that can't be told."""
        writers = self.staged.writers(key) - {0}
        mine = self.staged.me in writers and not self._announced
        return (
            bool(writers)
            and not mine
            and all(self._siblings.locks_of(writer) is not None for writer in writers - {self.staged.me})
        )

    def _is_damaged(self, key: str) -> bool:
        try:
            for link in self.staged.layers(key) or filter(None, [self.staged.get(key)]):
                if link.kind in packfile.REF_OF_FRAME:
                    self.read(link)
        except CorruptionError:
            return True
        return False

    def close_to_all(self) -> None:
        """Stop all staging into a transaction with a name. Raises `TransactionStateError` if it has ended."""
        if self._shared is not None:
            self._shared.seal()

    def check_held(self) -> None:
        """Raise `OSError` if another process may be ending a transaction with a name, which this one was about to."""
        if self._shared is not None:
            self._shared.check_held()

    def reopen_parts(self) -> None:
        """Let others go on staging: no commit was made."""
        self._siblings.reopen()
        if self._shared is not None:
            self._shared.unseal()

    def others_alive(self) -> list[str]:
        """Return which other processes are attached to the transaction and live."""
        if self._shared is None:
            return []
        self.follow_others()
        here = {other.staged.me for other in self._in_this_process()}
        return self._siblings.attached(self._shared, here)

    def others_at_work(self) -> list[str]:
        """Return which other participants in this process may be half-way.

        A process is at work as long as it lives. In this process more is known: a store that is in no `with` block, and
        has staged nothing since its last seal, holds up no commit; a notebook keeps such stores for ever.
        """
        others = [other for other in self._in_this_process() if other is not self and other._is_at_work]
        return [f"thread {other._thread!r} of this process" for other in others]

    @property
    def _is_at_work(self) -> bool:
        return not self._is_over and (bool(self._blocks) or not self._is_sealed)

    def _in_this_process(self) -> list[Staging]:
        """Return the participants of this transaction that are in this process."""
        here = processes.all_of(_participants)
        return [other for other in here if other.id == self.id and other.process == os.getpid()]

    def enter(self, attached: object) -> None:
        """Count as at work from now on, until `leave`, in a transaction with a name.

        Raises `OSError`, and `TransactionStateError` if it has ended, or is being ended.
        """
        try:
            # I8, in one process: this is added, then is looked who ends it; `ending`, then is looked who is at work.
            self._blocks.add(attached)
            if any(other._enders for other in self._in_this_process() if other is not self):
                raise TransactionStateError(
                    f"another thread of this process is committing {self.record.name!r} or rolling it back: try again "
                    "when it is done",
                    state="committing",
                )
            if self._shared is not None:
                self._shared.check_open()
        except BaseException:
            self._blocks.discard(attached)
            raise

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Keep all other threads out while a `with` block looks who is at work, and ends the transaction."""
        call = object()
        try:
            self._enders.add(call)
            yield
        finally:
            self._enders.discard(call)

    def commit_writer(self) -> Writer:
        """Return the pack that becomes the commit file."""
        if self._shared is None or self.is_owner:
            return self._writer or self._begin()
        if self._commit_writer is not None:
            self._commit_writer.close()
        self._commit_writer = self._shared.commit_pack()
        return self._commit_writer

    def parts(self) -> list[Contribution]:
        """Return the packs, but for the commit file itself, that hold a value that counts."""
        ends = self._ends()
        if not ends:
            return []
        return [
            Contribution(packfile.participants_pack(self.id, number), ends[number])
            for number in sorted(self._that_count())
        ]

    def _ends(self) -> dict[int, int]:
        """Return where the frames end, by the numbers of the packs but for the commit file itself."""
        ends = self._siblings.ends()
        if self._writer is not None:
            ends |= self._writer.ends()
        ends.pop(0, None)
        return ends

    def _that_count(self) -> set[int]:
        """Return the numbers of the packs, but for the commit file itself, that hold a value that counts."""
        return {
            self.number_of(link)
            for key, link in self.staged.items()
            if link.kind in packfile.REF_OF_FRAME and not self.staged.layers(key)  # of which the commit makes its own
        } - {0}

    def number_of(self, link: Link) -> int:
        """Return the number in the transaction of the pack that a staged value lies in."""
        number = packfile.pack_number(link.participant, packfile.split_offset(link.offset)[0])
        return number or (self._writer.aside if self.is_owner and self._writer is not None else 0)

    def path_of(self, pack_id: bytes) -> str:
        """Return where a part lies until the commit is made."""
        return self._commits.staged.path(self.id, packfile.number_of(self.id, pack_id))

    # --- the end

    @step("settle transaction")
    def settle(self, committed: Snapshot) -> None:
        """Read what was staged from the commit that it became: others may be reading, and go on doing so."""
        self._committed = committed
        self._is_over = True
        if committed is not self.base:
            self.let_go()
        with contextlib.suppress(OSError):  # the commit is made; what is left, the next one to look for it deletes
            if self._shared is not None:
                self._shared.end()
                self._shared.free_name()
                used = self._that_count() if committed is not self.base else set()
                self._shared.delete_packs(self._ends().keys() - used)
        for writer in (self._writer, self._commit_writer):
            if writer is not None:
                with contextlib.suppress(OSError):
                    writer.close_between_reads()
                    # nothing was to be published: there is no version that the file has taken
                    if committed is self.base:
                        self.storage.delete(writer.path)

    def close(self) -> None:
        """Close the files, which stay where they are."""
        self._is_over = True
        for writer in (self._writer, self._commit_writer):
            if writer is not None:
                writer.close()
        if self._shared is not None:
            self._shared.close()

    def let_go(self) -> None:
        """Pin nothing any more: what is staged is committed, or never will be."""
        for snapshot in (self.base, *self.reflinks.sources):
            snapshot.let_go()

    @step("discard")
    def discard(self) -> None:
        """Drop what is staged, by all who have staged."""
        self._is_over = True
        writers = [writer for writer in (self._writer, self._commit_writer) if writer is not None]
        if self._shared is not None:
            with contextlib.suppress(OSError, TransactionStateError):
                self._shared.seal()  # so that no later writer believes that its work counts
                self._shared.end()
                self._shared.free_name()
                self._shared.delete_packs()
        for writer in writers:
            with contextlib.suppress(OSError):
                writer.drop()
        self._writer = self._commit_writer = None
        self.let_go()
        self.staged.clear()
        self.reflinks.clear()
        self.constraints.clear()

    @property
    def counts_by_operation(self) -> bool:
        """Whether what this process stages is whole at the end of each operation; in a `with` block, at its end."""
        return (self._counts_by_operation or self._inherited) and not self._blocks

    def begin_operation(self, operation: object) -> bool:
        """Note that an operation is under way that may stage; return False if that is noted.

        While one is, nothing is sealed: what it has staged by then may be half of it.
        """
        if operation in self._operations:
            return False
        with self._ending:
            self._operations.add(operation)
        return True

    def end_operation(self, operation: object, *, has_failed: bool) -> None:
        """Note that an operation has ended. What this process has staged is whole then, if no other is under way.

        Raises `OSError`.
        """
        with self._ending:  # no other begins before the seal is there
            self._operations.discard(operation)
            if self._is_sealed:
                return
            self._is_half |= has_failed
            if not self._is_half and self.counts_by_operation and self._may_seal:
                self._seal(packfile.SEEN_BASE)

    def seal(self) -> None:
        """Say that this process has done all that it meant to do (I8). It may go on all the same.

        In a transaction with a name, what it has staged survives power loss from then on. Raises `OSError`.
        """
        with self._ending:
            if self._done_at >= max(self._staged_at, self._sealed_at) or not self._may_seal:
                return
            if not self.is_named and self.storage.is_remote and not self.is_open():
                return  # no process would find a pack with nothing but this seal
            self._kept_at = self._done_at = self._seal(packfile.SEEN_NOTHING)
            self._is_half = False

    def rest(self) -> None:
        """Note that no object of this process uses the transaction: what it has staged holds, whatever fails later.

        Raises `OSError`.
        """
        if self.counts_by_operation and self._is_sealed:
            self._kept_at = self._sealed_at
        else:
            self.seal()

    @property
    def _may_seal(self) -> bool:
        if self._is_over or self._inherited or self.is_owner or self.has_failed:
            return False
        return not self._operations  # else what is there may be half of one

    @step("seal part")
    def _seal(self, seen: Seen) -> int:
        """Say that what this process has staged is whole; return where. The caller holds the lock."""
        writer = self.writer
        durable = self.is_named and self.record.durability == "fsync"
        if durable:  # I1: a seal is no proof of frames that may be lost
            try:
                writer.finish(writer.size)
                writer.sync()
                self.storage.sync_directory(names.STAGING)
            except OSError:
                self.has_failed = True  # I9
                raise
        seal = writer.append(packfile.FRAME_SEAL, b"", b"", seen=seen)
        writer.finish(writer.size)
        if durable:
            writer.sync()
        with self._counting:
            self._sealed_at = max(self._sealed_at, seal.sequence)
        return seal.sequence

    def break_off(self) -> None:
        """Say that this process ends before it has done what it meant to do: the seals of operations do not hold.

        Raises `OSError`.
        """
        self.has_failed = True
        if self._sealed_at > self._kept_at and self._writer is not None and not self._is_over:
            append_about(self._writer, **self._announced)

    def give_up(self) -> None:
        """Say that what this process has staged since it last was done does not count, in a transaction without a name.

        It is half done. Where not even that can be said, this process looks dead to the others. Nothing more is staged
        or read here: a process that joins again is another participant.
        """
        self.has_failed = True
        if self.is_owner or self.is_named or self._inherited or self._is_over or self._writer is None:
            return
        self.has_given_up = True
        writer, self._writer = self._writer, None
        with contextlib.suppress(OSError):
            try:
                if self._staged_at > self._kept_at:
                    kept = Predecessor(self.staged.me, max(self._kept_at, 0))
                    writer.append(packfile.FRAME_SEAL, b"", b"", seen=kept)
                    writer.finish(writer.size)
            finally:
                writer.close_between_reads()

    def leave(self, attached: object) -> None:
        """Leave a transaction with a name: the others see at once that this process is done.

        It may be called again: an interrupt may come at any point.
        """
        self.attached.discard(attached)
        if not self.is_used_here or self._is_over:
            return
        try:
            self.seal()
        finally:
            self._blocks.discard(attached)
            if not self.attached:
                self.close()


class Peek(Hierarchy):
    """The view of a transaction for what locks are resolved on: it is read for that alone (`Staging.peek`)."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging

    def get_view(self, key: str) -> memoryview | None:
        return self._staging.peek(key)

    def size_of(self, key: str) -> int | None:
        return self._staging.size_of(key)

    def keys_between(self, start: str, stop: str | None, *, batch: int = 256) -> Iterator[str]:
        return self._staging.keys_between(start, stop, batch=batch)


@lru_cache(8)
def _is_array(document: str, content: bytes) -> bool:
    return Node.parse(document, content).kind == "array"


def _decode_record(record: bytes) -> ForeignRange:
    try:
        return ForeignRange.decode(record)
    except MalformedError as error:
        raise CorruptionError(names.STAGING, reason=f"what a process has staged there: {error.reason}") from error


def _given_up() -> TransactionStateError:
    return TransactionStateError(
        "a write of this process failed, and what it had staged since it began that work is given up: do it again, all "
        "of it, in a new `with store:` block",
        state="failed",
    )


def _not_there() -> TransactionStateError:
    return TransactionStateError(
        "what was staged when this store was pickled is not all there for this process: does it see the same disk? On "
        "a network file system that may take some seconds: try again",
        state="open",
    )


def _not_shared() -> TransactionStateError:
    return TransactionStateError(
        "this transaction was begun before the fork, and could not be shared by then: stage something in it (create "
        "the arrays), in a repository that can be written, before you fork",
        state="foreign",
    )


def _seal_all() -> None:
    """Seal when the process ends, if it has done its part."""
    broken_off = was_broken_off()
    for staging in list(_participants):
        if staging.process == os.getpid():
            with contextlib.suppress(OSError, TransactionStateError):
                if broken_off:
                    staging.break_off()
                else:
                    staging.seal()
            if staging.storage.is_remote:
                staging.close()  # on an object store no other process tells that it has ended

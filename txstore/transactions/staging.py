"""Staging: what a transaction would publish, as it is written: by this process, and by the others that take part.

No life cycle here: `Transaction` says when this may be written, `Committer` turns it into a commit.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from txstore import processes
from txstore._native import chunks
from txstore.commit import Stored
from txstore.errors import TransactionStateError
from txstore.format import packfile
from txstore.format.keys import after_prefix, encode_key, is_document
from txstore.format.packfile import Predecessor, Seen
from txstore.format.records import SERIALIZABLE, TransactionRecord
from txstore.format.regions import WHOLE, Region
from txstore.history.changes import refs_of
from txstore.history.commits import Commits
from txstore.history.snapshot import Snapshot
from txstore.steps import step
from txstore.transactions.conflicts import Settle
from txstore.transactions.key_turns import KeyTurns
from txstore.transactions.part import Part
from txstore.transactions.participants.chains import Link
from txstore.transactions.participants.membership import Membership
from txstore.transactions.participants.shared import SharedTransaction
from txstore.transactions.reads import ReadLog, ReadMarks
from txstore.transactions.reflinks import HeldSources, Reflink, Taken
from txstore.transactions.view import Known, View

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: In place of what was seen of a key, if that does not fit in a byte.
_ODD = 255


class Contribution(NamedTuple):
    """What a participant has staged, as a commit counts it."""

    pack_id: bytes
    end: int  # of its frames


class Staging:
    """What one transaction has staged. Safe in threads, and after a fork.

    `members` says who takes part, `part` is what this process has staged, and `view` is what a reader sees of all.
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
        marks, reads = ReadMarks(), ReadLog() if record.isolation == SERIALIZABLE else None
        self.members = Membership(commits, record, shared, marks, reads)
        self.part = Part(commits, self.members, counts_by_operation=counts_by_operation)
        self.view = View(base, self.members, self.part, marks, reads)
        self.staged = self.members.staged
        self.record = record
        self.storage = commits.storage
        self.other_parent = other_parent
        self.settle_conflicts = settle_conflicts
        self.began = time.monotonic()
        self.constraints: dict[str, Any] = {}  # declared by the owner, as they are written, or (None) dropped
        self.sources: HeldSources | None = None  # what values are copied from, while it is being committed
        self.turns = KeyTurns()  # of all transactions of this process that use this
        self.is_unsettled = False  # it may have been published, or it was: nothing of it is deleted
        self._commits = commits
        processes.watch(self)

    def after_fork_in_child(self) -> None:
        self.turns = KeyTurns()  # the threads that have them are the parent's

    # --- writing

    def stage(self, kind: int, key: str, encoded: bytes, value: Buffer) -> None:
        """Append a frame and remember where it is. `key` is a prefix for a prefix tombstone.

        Raises `OSError`; `TransactionStateError` if the transaction of another process has ended.
        """
        self.part.begin()
        if kind == packfile.FRAME_PREFIX and self.members.is_shared:
            # So that it is known which frames of others were seen.
            for other in self.staged.written_by_others(key):
                self._append_all_seen(other)
                self._append(packfile.FRAME_TOMBSTONE, other, other.encode(), b"")
            for other in self.staged.deleted_by_others(key):
                self._append(packfile.FRAME_PREFIX, other, other.encode(), b"")
        if self.staged.layered:
            self._append_all_seen(key)
        self._append(kind, key, encoded, value)
        self.part.check_open()

    def stage_part(self, key: str, encoded: bytes, value: Buffer, known: Known, region: Region) -> None:
        """Append a chunk of which a region was written, and remember where it is. Raises what `stage` raises.

        `known` is what was known of it when `value` was made.
        """
        region |= known.own
        apart = [end for end in self.staged.ends(key) if end.place != known.seen]
        is_reflinked = self.view.reflinks.any and self.view.reflinks.find(key) is not None  # the rest is not the base's
        overlaps = any(end.region.intersects(region) for end in apart)
        # A frame of the whole vouches for a deletion above (I7). Below a part may be what was to be deleted: then the
        # frame doesn't say that the others were seen, and the commit refuses it.
        if is_reflinked or not region.encode() or (overlaps and self.staged.know_of_deletions(key)):
            self.stage(packfile.FRAME_VALUE, key, encoded, value)
            return
        self.part.begin()
        self._append(packfile.FRAME_PARTIAL, key, encoded, value, known.seen, region)
        self.part.check_open()

    def _append_all_seen(self, key: str) -> None:
        """Say that all frames of a key were seen which had not seen one another: what is written next replaces them."""
        for end in self.staged.ends(key):
            self._append(packfile.FRAME_TOMBSTONE, key, key.encode(), b"", end.place)

    def _append(
        self,
        kind: int,
        key: str,
        encoded: bytes,
        value: Buffer,
        seen: Seen | None = None,
        region: Region = WHOLE,
    ) -> None:
        if seen is None:
            seen = self.staged.seen(key, was_read=key in self.view.marks)
        written = None if region is WHOLE else region.encode()
        staged = self.part.append(kind, encoded, value, seen=seen, region=written)
        if kind == packfile.FRAME_PREFIX:
            self.staged.hide(key, self.staged.me, staged.sequence, seen)
            self.view.reflinks.hide(key)
        else:
            link = Link(
                self.staged.me, staged.sequence, seen, kind, staged.offset, staged.length, staged.checksum, region
            )
            self.staged.add(key, link)
            if self.members.is_shared:
                self.staged.was_read_again(key)
                if not self.members.is_owner and is_document(key):
                    self.staged.news.append(key)

    def stage_chunks(
        self, keys: Sequence[str], encoded: tuple[bytes, ...], batch: chunks.Batch, threads: int
    ) -> list[int]:
        """Append the frames of many chunks, as a batch encodes them; return which rows have to be staged one by one.

        Raises what `stage` does.
        """
        self.part.begin()
        seen = bytearray(len(keys))
        if self.view.marks or self.staged.knows_anything:
            for row, key in enumerate(keys):
                what = self.staged.seen(key, was_read=key in self.view.marks)
                seen[row] = _ODD if isinstance(what, Predecessor) or key in self.staged.layered else what
        if not self.part.append_chunks(batch, encoded, seen, threads):
            return list(range(len(keys)))
        placed = np.frombuffer(batch.placed(), np.int64).reshape(-1, 5)
        states, refs = placed[:, 0], placed[:, 1:]
        rows = np.flatnonzero(states == chunks.PLACED)
        if len(rows):
            self.part.seals.count(int(refs[rows, 3].max()))
        self.staged.add_values(
            (keys[row], seen[row], ref) for row, ref in zip(rows.tolist(), refs[rows].tolist(), strict=True)
        )
        if self.members.is_shared:
            for row in rows.tolist():
                self.staged.was_read_again(keys[row])
        for row in np.flatnonzero(states == chunks.EMPTY).tolist():
            self._append(packfile.FRAME_TOMBSTONE, keys[row], encoded[row], b"")
        left: list[int] = np.flatnonzero((states != chunks.PLACED) & (states != chunks.EMPTY)).tolist()
        self.part.check_open()
        return left

    def reflink(self, source: str, to: str, snapshot: Snapshot | None, *, drops: str | None, only_drops: bool) -> None:
        """Let the keys below a prefix be those below another one, of a snapshot or of this view, as they are now.

        What is below `drops` is deleted, then; `only_drops`: nothing else happens. Below `to` nothing is left. Of what
        is committed no value is read; what was staged is staged again. Raises `OSError`, `TransactionStateError`.
        """
        self.part.begin()
        self.members.check_alone()
        staged: list[tuple[str, Link]] = []
        reflinks: list[Reflink] = []
        taken: dict[str, Taken] = {}
        if snapshot is not None:
            reflinks = [Reflink(to, snapshot, source)]
        elif not only_drops:
            links = [(key, self.staged.get(key)) for key in self.staged.between(source, after_prefix(source))]
            staged = [(key, link) for key, link in links if link is not None]
            reflinks, taken = self.view.reflinks.below(source, to)
            if not self.staged.is_below_deleted(source) and self.view.base.has_keys_below(source):
                hidden = (to + each[len(source) :] for each in self.staged.prefixes if each.startswith(source))
                reflinks.insert(0, Reflink(to, self.view.base, source, frozenset(hidden)))
        if next(self.staged.between(to, after_prefix(to)), None) is not None:  # what was deleted there, key by key
            self._append(packfile.FRAME_PREFIX, to, to.encode(), b"")
        for key, link in staged:
            self._stage_again(key, to + key[len(source) :], link)
        if drops is not None:
            self._append(packfile.FRAME_PREFIX, drops, drops.encode(), b"")
        self.view.reflinks.add(reflinks, taken)

    def take(self, keys: Mapping[str, str], snapshot: Snapshot) -> None:
        """Let keys be what others are in a snapshot: refs to the same values. Raises what `reflink` does."""
        self.part.begin()
        self.members.check_alone()
        for key in filter(self.staged.__contains__, keys):  # what is staged would hide it
            name = keys[key]
            found = snapshot.lookup(name)
            if found is not None:
                stored = snapshot.runs.stored(name, found)
                self._append(packfile.FRAME_OF_REF[found.kind], key, encode_key(key), stored)
        refs = dict(refs_of(snapshot, keys.values()))
        taken = {
            key: Taken(snapshot, name, refs[name])
            for key, name in keys.items()
            if name in refs and key not in self.staged
        }
        self.view.reflinks.add([], taken)

    def _stage_again(self, key: str, name: str, link: Link) -> None:
        kind = packfile.FRAME_VALUE if link.kind == packfile.FRAME_PARTIAL else link.kind
        value = b"" if kind == packfile.FRAME_TOMBSTONE else self.view.read(link)
        if self.staged.layers(key):
            merged = self.view.peek(key)
            kind, value = (packfile.FRAME_TOMBSTONE, b"") if merged is None else (kind, bytes(merged))
        self._append(kind, name, encode_key(name), value)

    # --- several processes

    def share(self) -> None:
        """Let other processes join: what is staged, and the record of the transaction, are there for them to find.

        Nothing happens if the repository does not exist and nothing is staged.
        """
        if self.members.is_inherited:
            self.members.adopt()
        if self.members.is_shared or self.view.committed is not None:
            return
        if self.part.is_empty and not self._commits.identity.exists():
            return
        if self.view.reflinks.any:
            raise TransactionStateError(
                "this transaction has moved, copied or restored something, which only the process that began it knows: "
                "commit it before others join, or move after they have done their part",
                state="open",
            )
        self._commits.identity.create(durable=self.record.durability == "fsync")
        self.part.publish()

    # --- what is staged

    @property
    def count(self) -> int:
        """How many keys and prefixes are set or deleted, and constraints declared or dropped."""
        if not self.members.is_over:
            self.members.look_at_others()
        return self.known_count

    @property
    def known_count(self) -> int:
        """The same, without looking at what others have staged since."""
        return len(self.staged) + len(self.view.reflinks) + len(self.constraints)

    def parts(self) -> list[Contribution]:
        """Return the packs, but for the commit file itself, that hold a value that counts."""
        ends = self.part.ends()
        if not ends:
            return []
        return [
            Contribution(packfile.participants_pack(self.record.id, number), ends[number])
            for number in sorted(self._that_count())
        ]

    def _that_count(self) -> set[int]:
        """Return the numbers of the packs, but for the commit file itself, that hold a value that counts."""
        return {
            self.part.number_of(link)
            for key, link in self.staged.items()
            if link.kind in packfile.REF_OF_FRAME and not self.staged.layers(key)  # of these the commit makes its own
        } - {0}

    def path_of(self, pack_id: bytes) -> str:
        """Return where a part lies until the commit is made."""
        return self._commits.staged_path(self.record.id, packfile.number_of(self.record.id, pack_id))

    # --- the end

    @step("settle transaction")
    def settle(self, committed: Snapshot) -> None:
        """Read what was staged from the commit that it became: others may be reading, and go on doing so."""
        self.view.committed = committed
        self.members.is_over = True
        if committed is not self.view.base:
            self.let_go()
        with contextlib.suppress(OSError):  # the commit is made; what is left, the next one to look for it deletes
            if (shared := self.members.shared) is not None:
                shared.end()
                shared.free_name()
                used = self._that_count() if committed is not self.view.base else set()
                shared.delete_packs(self.part.ends().keys() - used)
        self.part.settle(is_unpublished=committed is self.view.base)

    def let_go(self) -> None:
        """Pin nothing any more: what is staged is committed, or never will be."""
        for snapshot in (self.view.base, *self.view.reflinks.sources):
            snapshot.let_go()

    @step("discard")
    def discard(self) -> None:
        """Drop what is staged, by all who have staged."""
        self.members.is_over = True
        if (shared := self.members.shared) is not None:
            with contextlib.suppress(OSError, TransactionStateError):
                shared.seal()  # so that no later writer believes that its work counts
                shared.end()
                shared.free_name()
                shared.delete_packs()
        self.part.drop()
        self.let_go()
        self.staged.clear()
        self.view.reflinks.clear()
        self.constraints.clear()

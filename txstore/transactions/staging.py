"""Stages the writes of a transaction: as frames in the pack of this process, and as keys in memory.

`Lifecycle` decides when this may be written. A `Draft` makes a commit of it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from txstore import processes
from txstore._native import chunks
from txstore.commit import Stored
from txstore.errors import TransactionStateError
from txstore.format import packfile
from txstore.format.chunk_moves import ChunkMoves
from txstore.format.commitfile import Declarations
from txstore.format.keys import after_prefix, encode_key, is_document
from txstore.format.packfile import Predecessor, Seen
from txstore.format.records import SERIALIZABLE, TransactionRecord
from txstore.format.regions import WHOLE, Region
from txstore.history.changes import refs_of
from txstore.history.commits import Commits
from txstore.history.snapshot import Snapshot
from txstore.segments.pack_writer import Frames, bytes_of
from txstore.segments.runs import ELSEWHERE
from txstore.steps import step
from txstore.transactions.conflicts import Settle
from txstore.transactions.own_part import Part
from txstore.transactions.participants.chains import Link
from txstore.transactions.participants.membership import Membership
from txstore.transactions.participants.shared import SharedTransaction
from txstore.transactions.reads import ReadLog, ReadMarks
from txstore.transactions.reflinks import HeldSources, Reflink, Taken
from txstore.transactions.view import Known, View

if TYPE_CHECKING:
    from typing_extensions import Buffer


#: Stands for what was seen of a key where a byte is too small for it.
_ODD = 255


class Contribution(NamedTuple):
    """The pack of a participant, as far as it is part of the commit."""

    pack_id: bytes
    end: int  # where its frames end, in bytes


class Staging:
    """The staged writes of one transaction. Safe in threads, and after a fork.

    `members` knows the participants, `part` is the pack of this process, and `view` is what a reader sees.
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
        """`other_parent`: the second parent of a merge commit. `settle_conflicts`: resolves conflicts.

        `counts_by_operation`: the part of this process is complete at the end of each operation (I8).
        """
        marks, reads = ReadMarks(), ReadLog()
        self.members = Membership(commits, record, shared, marks, reads)
        self.part = Part(commits, self.members, counts_by_operation=counts_by_operation)
        self.view = View(base, self.members, self.part, marks, reads, is_serializable=record.isolation == SERIALIZABLE)
        self.staged = self.members.staged
        self.record = record
        self.storage = commits.storage
        self.other_parent = other_parent
        self.settle_conflicts = settle_conflicts
        self.began = time.monotonic()
        self.declared = Declarations({}, {}, {})  # what this transaction declares; None: it drops a name
        self.sources: HeldSources | None = None  # sources of copies, during the commit
        # Shared by all transactions of this process that use this object.
        self.turns = KeyTurns(is_slow=commits.staged.uploads)
        self.is_unsettled = False  # the writes may have been published: no file may be deleted
        self.has_erased = False  # what is staged may have values that were erased since
        self._commits = commits
        processes.watch(self)

    def after_fork_in_child(self) -> None:
        self.turns = KeyTurns(is_slow=self._commits.staged.uploads)  # threads of the parent hold the old ones

    # --- writing

    def stage(self, kind: int, key: str, encoded: bytes, value: Buffer) -> None:
        """Append a frame and remember its place. For a prefix tombstone, `key` is the prefix.

        A value that the base has already takes no bytes. Raises `OSError`, and `TransactionStateError` if the
        transaction of another process has ended.
        """
        if kind in packfile.REF_OF_FRAME and self.view.is_no_write(key, kind, bytes_of(value)):
            self.view.rely_if_serializable(key)
            return
        self.part.begin()
        if kind == packfile.FRAME_PREFIX and self.members.is_shared:
            # These frames say which frames of other participants this process has seen.
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
        """Append a chunk of which a region was written, and remember its place. Raises the errors of `stage`.

        `known` is the state of the chunk from which `value` was made.
        """
        if known.seen == packfile.SEEN_NOTHING and self.view.is_no_write(key, packfile.FRAME_PARTIAL, bytes_of(value)):
            self.view.rely_if_serializable(key)
            return
        region |= known.own
        apart = [end for end in self.staged.ends(key) if end.place != known.seen]
        # The rest of the chunk is not the base's.
        is_reflinked = self.view.reflinks.any and self.view.reflinks.find(key) is not None
        below = [end for end in apart if end.region.intersects(region)]
        if is_reflinked or not region.encode():
            self.stage(packfile.FRAME_VALUE, key, encoded, value)
            return
        self.part.begin()
        # A part may lie over values that should have been deleted: then no frame says that the others were seen, and
        # the commit refuses it (I7). Else one for each says so: a frame of the whole would hide what others have lost.
        for end in below if below and self.staged.know_of_deletions(key) else ():
            self._append(packfile.FRAME_PARTIAL, key, encoded, value, end.place, end.region & region)
        self._append(packfile.FRAME_PARTIAL, key, encoded, value, known.seen, region)
        self.part.check_open()

    def _append_all_seen(self, key: str) -> None:
        """Append frames which say that all concurrent frames of a key were seen: the next write replaces them."""
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
            if self.members.shared is not None:
                self.staged.was_read_again(key)
                if not self.members.is_owner and is_document(key):
                    self.staged.news.append(key)

    def stage_batch(
        self, kind: int, keys: Sequence[str], encoded: tuple[bytes, ...], batch: Frames, threads: int = 1
    ) -> list[int]:
        """Append many frames that a batch encodes. Return the rows that have to be staged one by one.

        Raises the errors of `stage`.
        """
        self.part.begin()
        seen = bytearray(len(keys))
        located = None
        if kind == packfile.FRAME_VALUE and self.view.is_alone and not self._commits.staged.uploads:
            located = self.view.base.runs.locate(keys)
        if self.view.marks or self.staged.knows_anything or self.view.reflinks.any:
            for row, key in enumerate(keys):
                what = self.staged.seen(key, was_read=key in self.view.marks)
                seen[row] = _ODD if isinstance(what, Predecessor) or key in self.staged.layered else what
                if located is not None and (what or key in self.staged or not self.view.is_over_base(key)):
                    located.table[row, 0] = ELSEWHERE
        if not self.part.append_batch(batch, encoded, seen, threads, located):
            return list(range(len(keys)))
        placed = np.frombuffer(batch.placed(), np.int64).reshape(-1, 5)
        states, refs = placed[:, 0], placed[:, 1:]
        rows = np.flatnonzero(states == chunks.PLACED)
        if len(rows):
            self.part.seals.count(int(refs[rows, 3].max()))
        self.staged.add_values(
            kind,
            ((keys[row], seen[row], ref) for row, ref in zip(rows.tolist(), refs[rows].tolist(), strict=True)),
        )
        if self.members.is_shared:
            for row in rows.tolist():
                self.staged.was_read_again(keys[row])
        for row in np.flatnonzero(states == chunks.EMPTY).tolist():
            self._append(packfile.FRAME_TOMBSTONE, keys[row], encoded[row], b"")
        for row in np.flatnonzero(states == chunks.IN_BASE).tolist():
            self.view.rely_if_serializable(keys[row])
        left: list[int] = np.flatnonzero(~np.isin(states, (chunks.PLACED, chunks.EMPTY, chunks.IN_BASE))).tolist()
        self.part.check_open()
        return left

    def reflink(self, source: str, to: str, snapshot: Snapshot | None, *, drops: str | None, only_drops: bool) -> None:
        """Replace the keys below `to` by those below `source`, of a snapshot or of this view.

        Afterwards the keys below `drops` are deleted; `only_drops` does nothing else. Committed values are not read;
        staged values are staged again. Raises `OSError`, `TransactionStateError`.
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
        if next(self.staged.between(to, after_prefix(to)), None) is not None:  # keys that were deleted there one by one
            self._append(packfile.FRAME_PREFIX, to, to.encode(), b"")
        for key, link in staged:
            self._stage_again(key, to + key[len(source) :], link)
        if drops is not None:
            self._append(packfile.FRAME_PREFIX, drops, drops.encode(), b"")
        self.view.reflinks.add(reflinks, taken)

    def move_chunks(self, prefix: str, moves: ChunkMoves) -> None:
        """Replace the keys below a prefix by those of the base, with other numbers. Raises the errors of `reflink`.

        REQUIRES: nothing is staged below the prefix.
        """
        self.part.begin()
        self.members.check_alone()
        self._append(packfile.FRAME_PREFIX, prefix, prefix.encode(), b"")
        self.view.reflinks.add([Reflink(prefix, self.view.base, prefix, moves=moves)], {})

    def take(self, keys: Mapping[str, str], snapshot: Snapshot) -> None:
        """Set keys by reference to values of a snapshot. Raises the errors of `reflink`."""
        self.part.begin()
        self.members.check_alone()
        for key in filter(self.staged.__contains__, keys):  # a staged frame would hide the reference
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

    def share(self, *, creating: bool) -> None:
        """Let other processes join: publish the staged frames and the record of the transaction.

        Without `creating`, this does nothing if the repository does not exist and nothing is staged.
        """
        if self.members.is_inherited:
            self.members.adopt()
        if self.members.is_shared or self.view.committed is not None:
            return
        if self.part.is_empty and not creating and not self._commits.identity.exists():
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
        """Number of keys and prefixes that are set or deleted, and of names that are declared or dropped."""
        if not self.members.is_over:
            self.members.look_at_others()
        return self.known_count

    @property
    def known_count(self) -> int:
        """The same, without reading the frames that other participants have added since."""
        return len(self.staged) + len(self.view.reflinks) + sum(map(len, self.declared))

    def parts(self) -> list[Contribution]:
        """Return the packs, without the commit file, that hold a value of the commit."""
        ends = self.part.ends()
        if not ends:
            return []
        return [
            Contribution(packfile.participants_pack(self.record.id, number), ends[number])
            for number in sorted(self._that_count())
        ]

    def _that_count(self) -> set[int]:
        """Return the numbers of the packs, without the commit file, that hold a value of the commit."""
        return {
            self.part.number_of(link)
            for key, link in self.staged.items()
            if link.kind in packfile.REF_OF_FRAME and not self.staged.layers(key)  # the commit writes these anew
        } - {0}

    def path_of(self, pack_id: bytes) -> str:
        """Return the path of a part before the commit."""
        return self._commits.staged.path(self.record.id, packfile.number_of(self.record.id, pack_id))

    # --- the end

    @step("settle transaction")
    def settle(self, committed: Snapshot) -> None:
        """Read the staged values from the commit from now on. Other threads may be reading meanwhile."""
        self.view.committed = committed
        self.members.is_over = True
        if committed is not self.view.base:
            self.let_go()
        with contextlib.suppress(OSError):  # the commit is made; a later process deletes what is left
            if (shared := self.members.shared) is not None:
                shared.end()
                shared.free_name()
                used = self._that_count() if committed is not self.view.base else set()
                shared.delete_packs(self.part.ends().keys() - used)
        self.part.settle(is_unpublished=committed is self.view.base)

    def let_go(self) -> None:
        """Stop pinning commits: the writes are committed, or never will be."""
        for snapshot in (self.view.base, *self.view.reflinks.sources):
            snapshot.let_go()

    @step("discard")
    def discard(self) -> None:
        """Drop the staged writes of all participants."""
        self.members.is_over = True
        if (shared := self.members.shared) is not None:
            with contextlib.suppress(OSError, TransactionStateError):
                shared.seal()  # so that no later write appears to count
                shared.end()
                shared.free_name()
                shared.delete_packs()
        self.part.drop()
        self.let_go()
        self.staged.clear()
        self.view.reflinks.clear()
        self.declared = Declarations({}, {}, {})


# --- turns: threads of one process write the same key only one after another
#
# A thread that writes a part of a value reads the value, changes it and stages it. No other thread may write the key in
# between. The change may take long, and may call any code. Meanwhile other threads can write other keys.

_LOCKS = 8


class KeyTurns:
    """The turns at the keys of one transaction. A forked child needs a new object."""

    def __init__(self, *, is_slow: bool) -> None:
        """`is_slow`: to stage a value may take as long as an upload, so that other keys should not wait for it."""
        self.is_slow = is_slow
        # Several keys share a lock. A thread holds it only while it stages.
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._ended: dict[int, threading.Condition] = {}  # only for the few locks at which a thread has waited
        self._changing: set[str] = set()  # keys whose values a thread is changing; each is guarded by its lock

    def at(self, key: str) -> threading.Lock:
        """Return the lock of a key. Its holder calls `wait` before it stages anything."""
        return self._locks[hash(key) % _LOCKS]

    def wait(self, key: str) -> None:
        """Wait until no other thread changes the key's value. The caller holds the lock of the key."""
        while key in self._changing:
            lock = hash(key) % _LOCKS
            ended = self._ended.get(lock)
            if ended is None:
                ended = self._ended[lock] = threading.Condition(self._locks[lock])
            ended.wait()

    @contextmanager
    def changing(self, key: str) -> Iterator[None]:
        """Keep all other threads from writing the key during a `with` block.

        The caller holds no lock: a thread that it waits for may stage other keys.
        """
        is_ours = False
        try:
            with self.at(key):
                self.wait(key)
                is_ours = True  # set this first: an interrupt may come between any two calls
                self._changing.add(key)
            yield
        finally:
            if is_ours:
                with self.at(key):
                    self._changing.discard(key)
                    ended = self._ended.get(hash(key) % _LOCKS)
                    if ended is not None:
                        ended.notify_all()

    def _one_of(self, keys: Collection[str] | None) -> str | None:
        """Return one of these keys whose value a thread is changing."""
        if not self._changing:
            return None
        return next(iter(self._changing) if keys is None else filter(self._changing.__contains__, keys), None)

    @contextmanager
    def at_all(self, keys: Collection[str] | None = None) -> Iterator[None]:
        """Take the turn at every key. During the `with` block no other thread changes one of `keys`, by default any."""
        while True:
            first, second, third, fourth, fifth, sixth, seventh, eighth = self._locks
            # Not in a loop: an interrupt could come when a lock is taken and not yet noted.
            with first, second, third, fourth, fifth, sixth, seventh, eighth:
                changing = self._one_of(keys)
                if changing is None:
                    yield
                    return
            with self.at(changing):
                self.wait(changing)

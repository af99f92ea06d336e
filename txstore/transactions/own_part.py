"""Stages this process's part of a transaction in its own packs, and seals the part when it is complete.

A process that only reads has no part. Other processes find the part in its files.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

from txstore import processes
from txstore.errors import TransactionStateError
from txstore.format import names, packfile
from txstore.format.packfile import Predecessor, Seen
from txstore.history.commits import Commits
from txstore.processes import at_exit, was_broken_off
from txstore.segments.pack_writer import Frames, Staged, Writer
from txstore.steps import step
from txstore.transactions.participants.chains import Link
from txstore.transactions.participants.membership import Membership, not_shared
from txstore.transactions.participants.reclaim import reclaim_staging
from txstore.transactions.participants.shared import append_about

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from txstore.segments.runs import Located


#: This process's parts in transactions of other processes. It has to seal them when it ends.
_parts: weakref.WeakSet[Part] = weakref.WeakSet()


class Part:
    """The part of one process. Safe in threads, and after a fork.

    `counts_by_operation`: the part is complete at the end of each operation (I8).
    """

    def __init__(self, commits: Commits, members: Membership, *, counts_by_operation: bool) -> None:
        self.members = members
        self.seals = Seals(by_operation=counts_by_operation)
        self.attached: set[object] = set()  # `Transaction` objects of this process that use this part
        self.has_failed = False  # a write of this process failed: its part must not look complete
        self.has_given_up = False  # this process has aborted its part, and other processes can see that
        self._commits = commits
        self._lock = processes.new_lock()  # guards the writer
        self._writer: Writer | None = None
        self._commit_writer: Writer | None = None
        self._thread = ""  # the name of the thread that became a participant
        self._blocks: set[object] = set()  # the attached transactions that are in a `with` block
        self._enders: set[object] = set()  # calls that are about to end the transaction
        #: The lock word that this process has announced to its siblings. Empty: it has taken no locks.
        self.announced: dict[str, int] = {}
        processes.watch(self)

    def after_fork_in_child(self) -> None:
        # The files belong to the parent. This process becomes a participant when it first uses the transaction.
        self._blocks, self._enders = set(), set()
        self._writer = self._commit_writer = None
        self.announced = {}
        self.seals.restart()
        self.seals.by_operation = True

    # --- staging

    def begin(self) -> Writer:
        """Return the pack that this process stages into. Become a participant first if necessary.

        Raises `OSError`; `TransactionStateError` if the transaction of another process has ended.
        """
        return self._writer or self._begin()

    def _begin(self) -> Writer:
        members = self.members
        if members.is_inherited:
            members.adopt()
        with self._lock:
            if self.has_given_up:
                raise _given_up()
            if self._writer is None:
                self._writer = self._begin_own() if members.is_owner else self._join()
            return self._writer

    def _begin_own(self) -> Writer:
        self._commits.identity.create(durable=self.members.record.durability == "fsync")
        if self._commits.staged.tidies_first():
            reclaim_staging(self._commits)
        writer = self._commits.staged.new(self.members.record.id, 0)
        if self.members.shared is not None:
            writer.publish()
        return writer

    def _join(self) -> Writer:
        shared = self.members.shared
        if shared is None:
            raise not_shared()
        shared.check_open()
        self._thread = threading.current_thread().name
        self.members.staged.me, writer = shared.join()
        _parts.add(self)
        at_exit(_seal_all)
        return writer

    @property
    def writer(self) -> Writer:
        """The pack that this process stages into. It exists as soon as the process has staged anything."""
        if self._writer is None:
            raise _given_up() if self.has_given_up else LookupError("nothing is staged")
        return self._writer

    @property
    def is_empty(self) -> bool:
        """Whether this process has no pack, because it has staged nothing."""
        return self._writer is None

    def append(self, kind: int, encoded: bytes, value: Buffer, *, seen: Seen, region: bytes | None = None) -> Staged:
        """Append a frame, and return its location. Raises the errors of `begin`."""
        writer = self._writer or self._begin()
        if region is None:
            staged = writer.append(kind, encoded, value, seen=seen)
        else:
            staged = writer.append(kind, encoded, value, seen=seen, region=region)
        self.seals.count(staged.sequence)
        return staged

    def begin_to_read(self) -> None:
        """Become a participant that has staged nothing, and so has done its work, unless it is in a block."""
        if self._writer is None:
            self.begin()
            with self.seals.sealing:
                if self.counts_by_operation and self.seals.is_sealed and self._may_seal:
                    self._seal(packfile.SEEN_BASE)

    def append_batch(
        self, batch: Frames, encoded: tuple[bytes, ...], seen: bytearray, threads: int, base: Located | None
    ) -> bool:
        """Append many frames; return False if the caller has to append them one by one."""
        return (self._writer or self._begin()).append_batch(batch, encoded, seen, threads, base)

    def check_open(self) -> None:
        """Raise `TransactionStateError` if the transaction that this process joined has ended.

        I8: called after frames are appended. The commit will find all frames that existed at the time of this check.
        """
        if self.members.shared is not None and not self.members.is_owner:
            self.members.shared.check_open()

    def publish(self) -> None:
        """Let other processes find the changes that this process, which began the transaction, has staged."""
        with self._lock:
            if not self.members.is_shared:
                if self._writer is not None:
                    self._writer.publish()
                self.members.publish()

    def seen(self) -> dict[int, int]:
        """Return the last frame of each participant that this process sees. Other processes can find all these frames.

        Raises `OSError`.
        """
        self.members.look_at_others()
        seen = dict(self.members.staged.version)
        if self._writer is not None:
            self._writer.flush()
        return seen

    def announce(self, parked_locks: int) -> None:
        """Announce to siblings the owner word under which this process parks locks for them."""
        if self.members.is_shared:
            self.announced = {"locks": parked_locks}
            self.seals.count(append_about(self.begin(), **self.announced).sequence)

    # --- activity in this process

    def others_alive(self) -> list[str]:
        """Return the other living processes that are in an operation, or have not left the transaction."""
        members = self.members
        if members.shared is None:
            return []
        members.follow_others()
        here = {other.members.staged.me for other in self.all_in_this_process()}
        return members.siblings.attached(members.shared, here)

    def others_at_work(self) -> list[str]:
        """Return the other participants in this process that may have unfinished work.

        A store that is in no `with` block, and has staged nothing since its last seal, delays no commit. A notebook may
        keep such stores.
        """
        others = [other for other in self.all_in_this_process() if other is not self and other._is_at_work]
        return [f"thread {other._thread!r} of this process" for other in others]

    @property
    def _is_at_work(self) -> bool:
        return not self.members.is_over and (bool(self._blocks) or not self.seals.is_sealed)

    def all_in_this_process(self) -> list[Part]:
        """Return the parts of this process in this transaction."""
        mine, here = self.members.record.id, os.getpid()
        found = [(other, other.members) for other in processes.all_of(_parts)]
        return [other for other, members in found if members.record.id == mine and members.process == here]

    def enter(self, attached: object) -> None:
        """Count as at work in a named transaction from now on, until `leave`.

        Raises `OSError`, and `TransactionStateError` if the transaction has ended, or a thread is ending it.
        """
        try:
            # I8, in one process: this first adds itself, then checks for enders. `ending` first adds itself, then the
            # caller checks for work.
            self._blocks.add(attached)
            if self._writer is None or self.seals.by_operation:
                self._unseal()
            if any(other._enders for other in self.all_in_this_process() if other is not self):
                raise TransactionStateError(
                    f"another thread of this process is committing {self.members.record.name!r} or rolling it back: "
                    "try again when it is done",
                    state="committing",
                )
            if self.members.shared is not None:
                self.members.shared.check_open()
        except BaseException:
            self._blocks.discard(attached)
            raise

    def _unseal(self) -> None:
        """Tell the other processes that this one, which sealed its part after each operation, is in a block."""
        if self._writer is None:
            self.begin()
        elif self.seals.is_sealed:
            self.seal()  # else it would lose these operations, too, if it is killed in the block
            with self.seals.sealing:
                self.seals.count(append_about(self.writer, **self.announced).sequence)
        self.writer.flush()

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Keep all other threads out while a `with` block checks for work, and ends the transaction."""
        call = object()
        try:
            self._enders.add(call)
            yield
        finally:
            self._enders.discard(call)

    # --- seals

    @property
    def counts_by_operation(self) -> bool:
        """Whether this part is complete at the end of each operation. In a `with` block, only at the block's end."""
        return (self.seals.by_operation or self.members.is_inherited) and not self._blocks

    def end_operation(self, operation: object, *, has_failed: bool) -> None:
        """Record the end of an operation. If no other operation runs, this part is complete, and is sealed.

        Raises `OSError`.
        """
        seals = self.seals
        with seals.sealing:  # no other operation begins before the seal is written
            seals.end_operation(operation)
            if seals.is_sealed:
                return
            seals.is_half |= has_failed
            if not seals.is_half and self.counts_by_operation and self._may_seal:
                self._seal(packfile.SEEN_BASE)

    def seal(self) -> None:
        """State that this process has finished all its work (I8). It may still continue later.

        In a named transaction, its staged changes survive a loss of power from then on. Raises `OSError`.
        """
        with self.seals.sealing:
            if self.seals.is_done or not self._may_seal:
                return
            if not self.members.is_named and self._commits.staged.uploads and not self.members.is_open():
                return  # no process would find a pack with nothing but this seal
            self.seals.note_done(self._seal(packfile.SEEN_NOTHING))

    def rest(self) -> None:
        """Keep the staged changes valid even after a later failure: no object of this process uses the transaction.

        Raises `OSError`.
        """
        if self.counts_by_operation and self.seals.is_sealed:
            self.seals.keep()
        else:
            self.seal()

    @property
    def _may_seal(self) -> bool:
        members = self.members
        if members.is_over or members.is_inherited or members.is_owner or self.has_failed:
            return False
        return not self.seals.is_in_operation

    @step("seal part")
    def _seal(self, seen: Seen) -> int:
        """Append a seal, which states that this part is complete; return its sequence. The caller holds the lock."""
        writer = self.writer
        durable = self.members.is_named and self.members.record.durability == "fsync"
        if durable:  # I1: the frames are durable before the seal that vouches for them
            try:
                writer.finish(writer.size)
                writer.sync()
                self._commits.storage.sync_directory(names.STAGING)
            except OSError:
                self.has_failed = True  # I9
                raise
        seal = writer.append(packfile.FRAME_SEAL, b"", b"", seen=seen)
        writer.finish(writer.size)
        if durable:
            writer.sync()
        self.seals.note(seal.sequence)
        self.members.staged.close(self.members.staged.me, seal.sequence)
        return seal.sequence

    def break_off(self) -> None:
        """State that this process ends before it has finished its work: seals of its operations become invalid.

        Raises `OSError`.
        """
        self.has_failed = True
        if self.seals.sealed_at > self.seals.kept_at and self._writer is not None and not self.members.is_over:
            append_about(self._writer, **self.announced)

    def give_up(self) -> None:
        """Abort the changes that this process staged since it last finished its work, in a transaction without a name.

        They are incomplete. If this process can't even state that, it looks dead to the others. It stages and reads
        nothing more here. If the process joins again, it becomes another participant.
        """
        self.has_failed = True
        members = self.members
        if members.is_owner or members.is_named or members.is_inherited or members.is_over or self._writer is None:
            return
        self.has_given_up = True
        writer, self._writer = self._writer, None
        with contextlib.suppress(OSError):
            try:
                if self.seals.staged_at > self.seals.kept_at:
                    kept = Predecessor(members.staged.me, max(self.seals.kept_at, 0))
                    writer.append(packfile.FRAME_SEAL, b"", b"", seen=kept)
                    writer.finish(writer.size)
            finally:
                writer.close_between_reads()

    # --- the commit, and the end

    def commit_writer(self) -> Writer:
        """Return the pack that becomes the commit file."""
        shared = self.members.shared
        if shared is None or self.members.is_owner:
            return self.begin()
        if self._commit_writer is not None:
            self._commit_writer.close()
        self._commit_writer = shared.commit_pack()
        return self._commit_writer

    def ends(self) -> dict[int, int]:
        """Return the offsets at which the frames end, by the numbers of the packs, without the commit file itself."""
        ends = self.members.siblings.ends()
        if self._writer is not None:
            ends |= self._writer.ends()
        ends.pop(0, None)
        return ends

    def number_of(self, link: Link) -> int:
        """Return the number in the transaction of the pack that has a staged value."""
        number = packfile.pack_number(link.participant, packfile.split_offset(link.offset)[0])
        return number or (self._writer.aside if self.members.is_owner and self._writer is not None else 0)

    def settle(self, *, is_unpublished: bool) -> None:
        """Close the files while other processes may read them. Delete them after a commit that changed nothing."""
        for writer in self._writers():
            with contextlib.suppress(OSError):
                writer.close_between_reads()
                if is_unpublished:  # the file has taken no version
                    self._commits.storage.delete(writer.path)

    def drop(self) -> None:
        """Delete the changes that this process has staged."""
        for writer in self._writers():
            with contextlib.suppress(OSError):
                writer.drop()
        self._writer = self._commit_writer = None

    def close(self) -> None:
        """Close the files without deleting them."""
        self.members.is_over = True
        for writer in self._writers():
            writer.close()
        if self.members.shared is not None:
            self.members.shared.close()

    def _writers(self) -> list[Writer]:
        return [writer for writer in (self._writer, self._commit_writer) if writer is not None]

    def leave(self, attached: object) -> None:
        """Leave a named transaction: the others see at once that this process has finished.

        After an interrupt at any point, the caller may call this again.
        """
        self.attached.discard(attached)
        if not self.members.is_used_here or self.members.is_over:
            return
        try:
            self.seal()
        finally:
            self._blocks.discard(attached)
            if not self.attached:
                self.close()


def _given_up() -> TransactionStateError:
    return TransactionStateError(
        "a write of this process failed, so all writes of that work are aborted: do all of the work again, in a new "
        "`with store:` block",
        state="failed",
    )


def _seal_all() -> None:
    """Seal the parts when the process ends, if it has finished its work."""
    broken_off = was_broken_off()
    for part in list(_parts):
        if part.members.process == os.getpid():
            with contextlib.suppress(OSError, TransactionStateError):
                if broken_off:
                    part.break_off()
                else:
                    part.seal()
            if part._commits.staged.uploads:
                part.close()  # on an object store, other processes can't see that this one has ended


# --- the seals of this process's part: each says that all frames before it are complete (I8)


class Seals:
    """The sequences of one process's last frame and last seals. Safe in threads. No I/O."""

    def __init__(self, *, by_operation: bool) -> None:
        self._counting = processes.new_lock()  # guards `staged_at` and `sealed_at`
        self.by_operation = by_operation  # this process's part is complete at the end of each operation
        #: Held while this process appends a seal: no operation begins before the seal is written.
        self.sealing = processes.new_lock()
        self._operations: set[object] = set()  # running operations
        self.restart()

    def restart(self) -> None:
        """Reset everything: this process has staged nothing yet."""
        self.staged_at = self.sealed_at = -1
        self.kept_at = -1  # the last seal that stays valid if this process breaks off its work
        self._done_at = -1  # the last seal that states the end of all work, not only of an operation
        self.is_half = False  # an operation failed after it had staged something: later seals would not be true
        self._operations = set()

    def count(self, sequence: int) -> None:
        """Record a frame that this process appended."""
        with self._counting:
            self.staged_at = max(self.staged_at, sequence)

    def note(self, sequence: int) -> None:
        """Record a seal that this process appended."""
        with self._counting:
            self.sealed_at = max(self.sealed_at, sequence)

    def note_done(self, sequence: int) -> None:
        """Record that this seal states the end of all work, and so stays valid even after a later failure."""
        self.kept_at = self._done_at = sequence
        self.is_half = False

    def keep(self) -> None:
        """Make the last seal stay valid even after a later failure."""
        self.kept_at = self.sealed_at

    @property
    def is_sealed(self) -> bool:
        """Whether a seal is this process's last frame. Another thread may stage while this one seals."""
        return self.sealed_at >= self.staged_at

    @property
    def is_done(self) -> bool:
        """Whether this process has stated the end of all its work, and has staged nothing since."""
        return self._done_at >= max(self.staged_at, self.sealed_at)

    @property
    def is_in_operation(self) -> bool:
        """Whether an operation is running: the staged changes may be only a part of it."""
        return bool(self._operations)

    def begin_operation(self, operation: object) -> bool:
        """Record a running operation that may stage; return False if it is already recorded."""
        if operation in self._operations:
            return False
        with self.sealing:
            self._operations.add(operation)
        return True

    def end_operation(self, operation: object) -> None:
        """Record that an operation has ended. The caller holds `sealing`."""
        self._operations.discard(operation)

"""Makes this process a participant of a transaction, and tracks what it knows of the other participants."""

from __future__ import annotations

import os
from collections.abc import Mapping

from txstore import processes
from txstore.errors import TransactionStateError
from txstore.format import packfile
from txstore.format.keys import is_document
from txstore.format.records import TransactionRecord
from txstore.history.commits import Commits
from txstore.transactions.participants.chains import Link
from txstore.transactions.participants.shared import SharedTransaction
from txstore.transactions.participants.siblings import Siblings
from txstore.transactions.reads import ReadLog, ReadMarks
from txstore.transactions.staged_keys import StagedKeys

NOT_STAGING = -1  # the number of a process that has not staged anything in another process's transaction

#: Documents that array objects hold, each with the frame that they know. None: they know the base's document.
Held = dict[str, Link | None]


class Membership:
    """One process in one transaction. Safe in threads, and after a fork.

    The process that began the transaction is participant 0, and its pack becomes the commit file. Other processes join:
    forked children, and processes that unpickle a store. Any process can join a named transaction by its name; there,
    no process is participant 0. A joining process sees the changes staged before it joined. `follow_others` shows it
    the changes that its siblings staged since. The process that began the transaction always sees all changes.
    """

    def __init__(
        self,
        commits: Commits,
        record: TransactionRecord,
        shared: SharedTransaction | None,
        marks: ReadMarks,
        reads: ReadLog,
    ) -> None:
        self.record = record
        self.process = os.getpid()
        self.is_owner = shared is None  # this process began the transaction, which has no name
        self.shared = shared
        self.staged = StagedKeys(0 if shared is None else NOT_STAGING, commits.storage)
        self.is_inherited = False  # True: inherited by a fork, and not used in this process so far
        self.is_over = False  # this process has left the transaction, or the transaction has ended here
        self.siblings = Siblings(self.staged, marks, reads)
        self._commits = commits
        self._marks = marks
        self._reads = reads
        self._following = processes.new_rlock()
        processes.watch(self)

    def after_fork_in_child(self) -> None:
        self.is_inherited = True  # this process becomes a participant when it first uses the transaction

    @property
    def is_named(self) -> bool:
        return self.record.name is not None

    @property
    def is_participant(self) -> bool:
        """Whether this process stages into a transaction that another has begun, and will end."""
        self.follow_others()  # after a fork, it becomes one here
        return not self.is_owner and not self.is_named

    @property
    def is_shared(self) -> bool:
        """Whether other processes can join the transaction."""
        return self.shared is not None

    @property
    def is_used_here(self) -> bool:
        """Whether this process uses the transaction, and has not only inherited it by a fork."""
        return not self.is_inherited and self.process == os.getpid()

    @property
    def stages_for_another(self) -> bool:
        """Whether this process takes part in a transaction that it did not begin."""
        return self.shared is not None and not self.is_owner and not self.is_over

    def is_open(self) -> bool:
        """Tell whether the transaction that this process joined is still open."""
        try:
            if self.shared is not None:
                self.shared.check_open()
        except (OSError, TransactionStateError):
            return False
        return not self.is_over

    def check_alone(self) -> None:
        """Raise `TransactionStateError` if several processes stage into the transaction."""
        if self.shared is not None:
            raise TransactionStateError(
                "several processes stage into this transaction: move, copy and restore need one of its own, without a "
                "name, that no other process has joined",
                state="foreign",
            )

    def publish(self) -> None:
        """Write the record of the transaction, so that other processes can find and join it."""
        self.shared = SharedTransaction.publish(self._commits, self.record)

    # --- becoming a participant

    def adopt(self) -> None:
        """Make this process a participant of the transaction that it inherited."""
        with self._following:
            if not self.is_inherited:
                return
            if not self.is_over and self.shared is None:
                if self.staged:
                    raise not_shared()
                self.is_owner = False  # this process can read the transaction, but `Part.begin` refuses to stage
            elif not self.is_over:
                known: Held = {key: link for key, link in self.staged.items() if is_document(key)}
                self.shared = SharedTransaction.find(self._commits, self.record.id)
                self.is_owner = False
                self.staged.restart(NOT_STAGING)
                self.siblings = Siblings(self.staged, self._marks, self._reads)
                self._follow(joining=True)
                self.rely_on(known)
            self.process = os.getpid()
            self.is_inherited = False

    def rely_on(self, held: Held) -> None:
        """Record the documents of array objects that come from another process, or from before a fork."""
        for key, known in held.items():
            self._marks.add(key, exactly=True)
            if known is None:
                if key in self.staged:
                    self.staged.outdate(key, packfile.SEEN_BASE)
            elif (present := self.staged.present(key)) is None or present.place != known.place:
                self.staged.outdate(key, known.place)
            else:
                self.staged.was_read_again(key)  # older objects belong to other sessions, which refuse them

    # --- following the others

    def join_others(self) -> None:
        """See the changes that others have staged so far, as a joining process sees them."""
        with self._following:
            self._follow(joining=True)

    def follow_others(self) -> None:
        """See the changes that others have staged so far, as after taking a lock."""
        if self.is_inherited:
            self.adopt()
        if self.shared is not None and not self.is_over:
            with self._following:
                self._follow()

    def look_at_others(self) -> None:
        """See the changes that a reader has to see: all of them in the process that began the transaction.

        Other processes see nothing new.
        """
        if self.is_inherited:
            self.adopt()
        elif self.is_owner and self.shared is not None:
            self.follow_others()

    def _follow(self, *, joining: bool = False) -> None:
        if self.shared is not None:
            self.siblings.follow(self.shared, joining=joining)
            if self.is_owner:
                self.siblings.leave_out(self.shared)

    def close_siblings(self, shared: SharedTransaction, living: set[int], failed: set[int]) -> dict[int, int]:
        """See the last changes of others; return the participants with incomplete parts: `Siblings.close`."""
        with self._following:
            return self.siblings.close(shared, living, failed)

    def has_seen(self, seen: Mapping[int, int]) -> bool:
        """Tell whether this process has seen all frames in `seen` that count for a process that joins now."""
        return not self.is_inherited and (self.is_owner or not self.siblings.behind(seen))

    def see(self, seen: Mapping[int, int]) -> None:
        """See at least the frames that another process has seen. Raises `TransactionStateError` if some are missing."""
        self.look_at_others()
        if not self.has_seen(seen):
            self.join_others()
            if not self.has_seen(seen):
                raise TransactionStateError(
                    "what was staged when this store was pickled is not all there for this process: does it see the "
                    "same disk? On a network file system that may take some seconds: try again",
                    state="open",
                )

    # --- the end

    def close_to_all(self) -> None:
        """Stop all staging into a named transaction. Raises `TransactionStateError` if it has ended."""
        if self.shared is not None:
            self.shared.seal()

    def reopen(self) -> None:
        """Let others stage again, because no commit was made."""
        self.siblings.reopen()
        if self.shared is not None:
            try:
                if self.is_owner:
                    with self._following:
                        self.siblings.leave_out(self.shared, is_told=True)
            finally:
                self.shared.unseal()

    def check_held(self) -> None:
        """Raise `OSError` if another process may be ending the named transaction that this process is about to end."""
        if self.shared is not None:
            self.shared.check_held()

    def is_own(self, link: Link | None) -> bool:
        """Tell whether this process staged a frame."""
        return link is not None and link.participant == self.staged.me

    def label(self, participant: int) -> str:
        """Return the process of a participant, for messages."""
        if participant == self.staged.me:
            return f"process {os.getpid()} (this one)"
        return self.siblings.label(participant)


def not_shared() -> TransactionStateError:
    return TransactionStateError(
        "this transaction was begun before the fork, and could not be shared by then: stage something in it (create "
        "the arrays), in a repository that can be written, before you fork",
        state="foreign",
    )

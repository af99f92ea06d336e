"""Ending: a transaction ends when it is committed, or dropped."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress

from txstore.commit import Stored
from txstore.errors import (
    CommitUnknownError,
    CorruptionError,
    TransactionStateError,
    is_full,
    keeps_nothing,
    raise_if_full,
)
from txstore.history.commits import Commits
from txstore.history.publisher import LostPlaceError, SyncFailedError
from txstore.history.snapshot import Snapshot, Snapshots
from txstore.history.spare import Spare
from txstore.transactions.closing import close_parts
from txstore.transactions.committer import Committer
from txstore.transactions.lifecycle import Lifecycle
from txstore.transactions.locking import Locking
from txstore.transactions.staging import Staging

_HOW_TO_LEAVE = (
    ". A thread leaves by leaving its `with` block. A store that has staged in none has done its part when you say so "
    "(`with store: pass`), or when it and its arrays are gone (`del`)"
)


class Ending:
    """How one transaction ends. `release` lets go of what it holds in this process."""

    def __init__(
        self,
        commits: Commits,
        snapshots: Snapshots,
        staging: Staging,
        lifecycle: Lifecycle,
        locking: Locking,
        release: Callable[[], object],
    ) -> None:
        self.unchanged = False  # whether its commit has changed nothing, be it that one was made for its message
        self.needs_change = False  # its message is no reason for a commit: an earlier one of the same block has it
        #: The keys of which the commit has put together what is staged and what others had committed.
        self.settled: Collection[str] = ()
        self._commits = commits
        self._snapshots = snapshots
        self._staging = staging
        self._lifecycle = lifecycle
        self._locking = locking
        self._release = release

    @keeps_nothing
    def commit(self, message: str | None, *, allow_lost: bool) -> Snapshot | None:
        """Commit what is staged: `Transaction.commit`."""
        staging, lifecycle, attempt = self._staging, self._lifecycle, object()
        if lifecycle.state == "open":
            self._check_may_end("committed")
        told = staging.record.message if message is None else message
        is_wanted = not self.needs_change and bool(told or staging.record.properties)
        result: Snapshot | None = None
        committer: Committer | None = None
        stored: Stored | None = None
        try:
            # No write begins any more, in this process and in others, and it is settled whose writes count.
            lifecycle.begin_commit(attempt)
            close_parts(staging.part, staging.view, allow_lost=allow_lost)
            self._check_alone("committed")  # again: now no process can join any more

            # The committer makes the commit. A merge is a commit, be it of no change.
            if staging.count or is_wanted or staging.other_parent is not None:
                arguments = self._commits, self._snapshots, staging, self._locking.locks, told or "", is_wanted
                committer = Committer(*arguments)
                staging.is_unsettled = True
                try:
                    stored = committer.run()
                except LostPlaceError:
                    committer = Committer(*arguments, in_line=False)
                    stored = committer.run()
                if stored is not None:
                    result = self._snapshots.made(stored, committer.head)
                    self.settled = frozenset(committer.merges.settled or ())
        except SyncFailedError as error:
            self._go_on(committer)
            lifecycle.fail(error.cause)  # I9: never retried as if the data were still there
            raise_if_full(error.cause)
            raise error.cause from None
        except BaseException as error:
            if lifecycle.attempt is not attempt:
                raise
            if committer is None or not committer.publisher.proposed:
                self._go_on(committer)
                raise_if_full(error)
                raise
            # I2: also after an interrupt, what may stand in a version is never written again. I3: nothing is deleted.
            lifecycle.state = "of unknown outcome"
            if isinstance(error, OSError | CorruptionError):
                raise CommitUnknownError(staging.record.id.hex(), reason=f"it can't be read back ({error})") from error
            raise
        finally:
            if lifecycle.attempt is attempt:
                lifecycle.attempt = None

        # What was staged is read from the commit from now on. Locks go last: others may write what they protect.
        lifecycle.state = "committed"
        self.unchanged = committer is None or committer.changes_nothing
        try:
            staging.settle(staging.view.base if result is None else result)
        finally:
            self._release()
            self._locking.release()
        if stored is not None and result is not None:
            self._commits.compaction_outputs.begin(stored, result.runs_named)
        return result

    def _go_on(self, committer: Committer | None) -> None:
        """Be as if no commit had been tried."""
        try:
            if committer is not None:
                committer.publisher.withdraw_packs()
            with suppress(OSError):
                self._staging.members.reopen()
        finally:
            self._staging.is_unsettled = False
            self._lifecycle.state = "open"

    def roll_back(self) -> None:
        """Drop what is staged: `Transaction.rollback`."""
        spare = Spare(self._commits, self._staging.record.branch)
        try:
            self._roll_back(spare)
        finally:
            spare.restore()

    def _roll_back(self, spare: Spare) -> None:
        if self._lifecycle.state == "committing" and self._lifecycle.attempt is None:
            # An interrupt came while a commit was given up.
            self._lifecycle.state = "of unknown outcome" if self._staging.is_unsettled else "failed"
        if self._lifecycle.may_end:
            self._check_may_end("rolled back")
            if self._staging.members.is_named:
                try:
                    self._close_to_all("rolled back")
                except OSError as error:
                    if not is_full(error):
                        raise
                    # To end it takes two small files on an object store, and then much is deleted.
                    spare.delete_head_cache()
                    spare.delete_guard()
                    self._close_to_all("rolled back")
        with self._lifecycle.lock:
            if self._lifecycle.may_end:
                self._lifecycle.state = "rolled back"
        if self._lifecycle.state == "rolled back":
            self._lifecycle.finish_writes()
            self._staging.discard()
            self._release()
        if self._lifecycle.attempt is None:
            # Also after a commit that an interrupt has kept from doing so: an error that somebody keeps may keep this.
            self._locking.release()

    def _check_may_end(self, how: str) -> None:
        if self._staging.members.is_participant:
            raise TransactionStateError(
                f"this transaction is {how} by the process that began it: here, just return", state="foreign"
            )
        self._check_alone(how)

    def _check_alone(self, how: str) -> None:
        if not self._staging.members.is_named:
            return
        here = self._staging.part.others_at_work()
        others = here or self._staging.part.others_alive()
        if others:
            raise TransactionStateError(
                f"{self._staging.record.name!r} can be {how} when all have left: {', '.join(others)} may still stage "
                f"into it{_HOW_TO_LEAVE if here else ''}",
                state="open",
            )

    def _close_to_all(self, how: str) -> None:
        """Stop all staging. Raises `TransactionStateError` if another process has ended it, or joined meanwhile."""
        self._staging.members.close_to_all()
        try:
            self._check_alone(how)
        except BaseException:
            self._staging.members.reopen()
            raise

"""A transaction in this process: its state, the writes of its threads, its locks, and its part beside others'."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from txstore import processes
from txstore.errors import (
    ConflictError,
    LocksUnavailableError,
    LockTimeoutError,
    TransactionStateError,
    TxStoreError,
    UncommittedChangesWarning,
    raise_if_full,
    warn,
)
from txstore.history.commits import Commits
from txstore.history.snapshot import Snapshots
from txstore.locks.kernel_locks import poll
from txstore.transactions.held_locks import TransactionLocks, Turn, deadline_of, lock_settled, remaining
from txstore.transactions.regions import Lock
from txstore.transactions.staging import Staging
from txstore.transactions.view import Peek

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

#: Seconds that the end of a transaction waits for writes of other threads.
TIMEOUT = 60.0
#: Seconds after which a thread that waits for a lock checks again whether a sibling has parked the lock.
_LOOK_AGAIN = 0.25


class Lifecycle:
    """The states: "open", then "failed" by a failed write, "committing", "committed", "rolled back", "left", or "of
    unknown outcome". Safe in threads, and after a fork.

    Several objects of a process may use the same part of a transaction. If `owner`, one of them, is dropped before it
    has ended or left the transaction, what it staged is cleaned up.
    """

    def __init__(
        self,
        owner: object,
        commits: Commits,
        snapshots: Snapshots,
        staging: Staging,
        locks: TransactionLocks | None,
    ) -> None:
        self.commits = commits
        self.snapshots = snapshots
        self.staging = staging
        self.locks = locks  # None: the transaction was made without locks
        self.state = "open"
        self.guard = processes.new_lock()  # of the state, and of its check at the beginning of a write
        self.writes = 0  # number of writes that have begun
        self.attempt: object = None  # the running attempt to commit
        self.cause: BaseException | None = None  # the error of the failed write
        self.needs_change = False  # the message alone is no reason for a commit: an earlier commit already has it
        self.unchanged = False  # whether the commit changed nothing, even if it was made because of its message
        #: The keys for which the commit merged staged values with those of other commits.
        self.settled: Collection[str] = ()
        self._in_flight: set[object] = set()  # running writes
        self._announced: int | None = None  # the owner word that this process has announced to siblings
        self._name = object()  # the name of the owner in `Part.attached`
        self._finalizer = weakref.finalize(owner, drop, staging, self._name)
        staging.storage.dispatch.expect_cleanup()  # of the finalizer
        staging.part.attached.add(self._name)
        processes.watch(self)
        processes.watch_before(self)

    def before_fork(self) -> None:
        if self.state == "open" and not self.staging.members.is_named:
            with suppress(OSError, TxStoreError):  # if the child writes, it gets an error that says so
                self.share()

    def after_fork_in_child(self) -> None:
        self._in_flight = set()  # the writing threads exist only in the parent
        if self.locks is not None:
            self.locks = self.locks.of_child()  # the parent keeps its locks
        self._announced = None

    @property
    def may_end(self) -> bool:
        """Whether the transaction can still be committed or rolled back."""
        return self.state in ("open", "failed")

    def check_open(self) -> None:
        """Raise `TransactionStateError` if this process can stage and commit nothing any more."""
        if self.state == "failed" and self.staging.part.has_given_up:
            raise TransactionStateError(
                f"an earlier write failed here ({self.cause!r}), so all writes of that work are aborted: do all of the "
                "work again, in a new `with store:` block",
                state=self.state,
            ) from self.cause
        if self.state == "failed":
            raise TransactionStateError(
                f"an earlier write of this transaction failed ({self.cause!r}): call rollback(), then write again",
                state=self.state,
            ) from self.cause
        if self.state != "open":
            raise TransactionStateError(
                f"this transaction is {self.state}: begin a new one with repo.transaction()", state=self.state
            )

    def write(self, stage: Callable[[], T]) -> T:
        """Call `stage`, and return its result. After an error, the transaction has failed until `rollback`."""
        write = object()
        try:  # begins before the write counts: an interrupt may come between any two calls
            with self.guard:
                if self.state != "open":
                    self.check_open()
                self._in_flight.add(write)
                self.writes += 1
            try:
                return stage()
            except BaseException as error:
                self.fail(error)
                raise_if_full(error)
                raise
        finally:
            self._in_flight.discard(write)

    def stage(self, kind: int, key: str, encoded: bytes, value: Buffer) -> None:
        """Stage a frame. No other thread of this process writes the key meanwhile."""
        turns = self.staging.turns
        if turns.is_slow:
            with turns.changing(key):
                self.stage_in_turn(kind, key, encoded, value)
            return
        with turns.at(key):
            turns.wait(key)
            self.stage_in_turn(kind, key, encoded, value)

    def stage_in_turn(self, kind: int, key: str, encoded: bytes, value: Buffer) -> None:
        """Stage a frame, as a thread that has its turn at the key."""
        self.write(lambda: self.staging.stage(kind, key, encoded, value))

    def fail(self, error: BaseException) -> None:
        """Refuse everything except `rollback` from now on: incomplete work must not be committed (I6)."""
        with self.guard:
            if self.state == "open":
                self.state, self.cause = "failed", error
                self.staging.let_go()
            self.staging.part.has_failed = True
            if not (isinstance(error, TransactionStateError) and error.state in ("committing", "ended")):
                self.staging.part.give_up()  # else the write came too late: the commit decides on earlier frames

    def begin_commit(self, attempt: object) -> None:
        """Let no more writes begin, because an attempt to commit begins.

        Raises `TransactionStateError` if writes are in flight, or the transaction is not open.
        """
        with self.guard:
            self.check_open()
            if self._in_flight:
                raise TransactionStateError(
                    f"{len(self._in_flight)} writes are in flight: wait for the threads that write, then commit",
                    state="open",
                )
            self.state, self.attempt = "committing", attempt  # in one statement: an interrupt may follow

    def _stop_writes(self) -> str:
        """Let no more writes begin here. Other processes continue with the transaction. Return the state before."""
        with self.guard:
            before = self.state
            if self.may_end:
                self.state = "left"
        return before

    def finish_writes(self) -> None:
        """Wait for running writes of other threads. No new writes begin."""
        if self._in_flight and not poll(lambda: not self._in_flight, time.monotonic() + TIMEOUT):
            raise TransactionStateError(
                f"{len(self._in_flight)} writes of other threads are in flight after {TIMEOUT:.0f} s: wait for these "
                "threads, then try again",
                state=self.state,
            )

    # --- chunk-key locks, which it parks for its siblings

    def _share_locks(self) -> None:
        """Let siblings take turns with the locked keys. Others still wait. The caller holds the guard."""
        if self.locks is not None and self._announced is None and self.staging.members.is_owner:
            with suppress(LocksUnavailableError):
                self.locks.share()
                self._announce_locked(self.locks)

    def lock(self, turns: list[Turn], lock: Lock, timeout: float | None) -> Sequence[str]:
        """Lock the keys that `lock` covers for this thread until `unlock`, or the transaction's end. Return dirty keys.

        Each turn is added to `turns` before its keys are taken, so that `unlock` can release them after any error.
        `timeout` is in seconds; None waits without limit, 0 tries once. Raises `ConflictError` if another commit
        changed one of the keys since the base, and the errors of `keys_to_lock` and `TransactionLocks.acquire`.
        """
        with self.guard:
            self.check_open()
        if self.locks is None:
            raise LookupError("this transaction was made without locks")
        locks, dirty = self.locks, list[str]()

        def take(keys: Collection[str], timeout: float | None) -> None:
            turns.append(Turn(locks, keys, may_pass=timeout is not None and timeout <= 0))
            dirty.extend(self._take(locks, turns[-1], timeout))

        lock_settled(self._versioned, lock, take, lambda: self.unlock(turns), deadline_of(timeout))
        if changed := self._changed_by_commits(key for turn in turns for key in turn.slots):
            reason = "another commit changed these keys since this transaction began"
            raise ConflictError(changed, reason=reason, base=self.staging.view.base.commit)
        return dirty

    def unlock(self, turns: list[Turn]) -> None:
        """Leave the locks to siblings of this transaction and to other threads. Others get them only at its end."""
        while turns:
            if turns[-1].locks is self.locks:  # else they belong to the parent process
                turns[-1].locks.end_turn(turns[-1], self.staging.members.siblings.locks_of(0))
            turns.pop()

    def overtaken(self) -> list[str]:
        """Return the keys staged here that other commits changed since the base. Most of them are conflicts."""
        self.staging.members.follow_others()
        return self._changed_by_commits(key for key, _ in self.staging.staged.items())

    def _versioned(self) -> tuple[Peek, Hashable]:
        """Return the view for `keys_to_lock`, including the new changes of siblings, and its version."""
        self.staging.members.follow_others()
        return Peek(self.staging.view), self.staging.view.version

    def _take(self, locks: TransactionLocks, turn: Turn, timeout: float | None) -> Sequence[str]:
        """Lock keys, also those that siblings have parked. Siblings may join and park locks while this waits."""
        deadline = deadline_of(timeout)
        locks.take_turn(turn, timeout)
        while True:
            self.staging.members.follow_others()
            left = remaining(deadline)
            last = not self.staging.members.is_shared or (left is not None and left <= _LOOK_AGAIN)
            parked = self.staging.members.siblings.parked_locks()
            try:
                dirty = locks.acquire_turn(turn, left if last else _LOOK_AGAIN, parked)
            except LockTimeoutError:
                if last:
                    raise
            else:
                self._announce(locks)
                return dirty

    def _announce(self, locks: TransactionLocks) -> None:
        """Announce to siblings the owner word under which this process parks locks."""
        with self.guard:
            if self.may_end:
                self._announce_locked(locks)

    def _announce_locked(self, locks: TransactionLocks) -> None:
        parked = locks.parked
        if self.staging.members.is_shared and parked is not None and parked != self._announced:
            operation = object()  # a separate operation: a frame after a seal makes the seal invalid
            try:
                self.staging.part.seals.begin_operation(operation)
                self.staging.part.announce(parked)
            finally:
                self.staging.part.end_operation(operation, has_failed=False)
            self._announced = parked

    def _changed_by_commits(self, keys: Iterable[str]) -> list[str]:
        if not self.commits.identity.exists():
            return []
        head, since = self.snapshots.newest(self.staging.record.branch), self.staging.view.base.seq
        if head.seq <= since:
            return []
        recent = head.runs.newer(since)
        found = ((key, recent.lookup(key.encode())) for key in keys)
        return [key for key, entry in found if entry is not None and entry.seq > since]

    def release_locks(self) -> None:
        """Release all locks, because the transaction has ended here."""
        if self.locks is not None:
            self.locks.close()

    # --- its part in a transaction of several processes

    def share(self, *, creating: bool = False) -> bytes | None:
        """Let other processes stage into this transaction. Return its id, or None if there is nothing to share yet.

        `creating`: create the repository if it does not exist.
        """
        with self.guard:
            if not self.may_end:
                return None
            # Under the lock: the commit must find every process that joins.
            self.staging.share(creating=creating)
            if not self.staging.members.is_shared:
                return None
            self._share_locks()
            return self.staging.record.id

    def enter(self) -> None:
        """Keep other threads from ending a named transaction before this thread ends or leaves it.

        Raises `TransactionStateError` if it has ended, or if another thread is ending it.
        """
        if self.staging.members.is_named and self.state == "open":
            self.staging.part.enter(self._name)

    def end_operation(self, operation: object, has_failed: bool) -> None:
        """Note that an operation has ended. Unless it failed, its writes count, even if this process dies afterwards.

        An `OSError` fails the transaction.
        """
        try:
            self.staging.part.end_operation(operation, has_failed=has_failed)
        except OSError as error:
            self.fail(error)
            raise

    def seal(self) -> None:
        """Declare the part of this process complete, in a transaction that another process will commit (I8)."""
        if self.state == "open":
            self.staging.part.seal()

    def leave(self) -> None:
        """Leave a named transaction, which goes on without this process."""
        if self._stop_writes() not in ("open", "failed"):
            return
        self.finish_writes()
        try:
            self.staging.part.leave(self._name)
            self.end()  # last: an interrupt may come before
        finally:
            self.release_locks()

    def leave_block(self, *, complete: bool) -> None:
        """End the part that a participant staged in a `with` block: seal it, or give it up.

        Raises `OSError`, and `TransactionStateError` if it should be complete but a write in it has failed.
        """
        part = self.staging.part
        if not complete:
            self.fail(TransactionStateError("a `with` block was left by an exception", state="failed"))
        has_failed = self._stop_writes() == "failed"
        self.finish_writes()
        try:
            if has_failed:
                part.give_up()  # again: writes were in flight
                part.close()
            else:
                part.seal()
            part.attached.discard(self._name)  # another block may go on there
            self.end()
        finally:
            self.release_locks()
        if has_failed and complete:
            raise TransactionStateError(
                f"a write of this block failed ({self.cause!r}): all its writes are aborted. Do the work again",
                state="failed",
            ) from self.cause

    def end(self) -> None:
        """Leave nothing to clean up when the owner is dropped: the transaction has ended here."""
        self._finalizer.detach()


# --- a transaction that the caller drops without commit or rollback, or whose outcome is unknown
#
# Finalizers hand requests to a background thread (`storage.dispatch`).


def drop(staging: Staging, attached: object) -> None:
    """Warn of lost writes if the caller drops a transaction without commit or rollback, or the interpreter ends.

    `attached` is the transaction's entry in `Part.attached`.
    """
    if not staging.members.is_used_here:
        return
    if staging.is_unsettled or staging.view.committed is not None:
        staging.storage.dispatch.clean_up_later(staging.part.close)  # I3: nothing is deleted
        return
    staging.storage.dispatch.outside_loop(lambda: _drop(staging, attached))


def _drop(staging: Staging, attached: object) -> None:
    if not staging.members.is_owner:
        # Seal at once if possible: otherwise a process that waits for this one may consider it dead.
        if _is_in_event_loop():
            staging.storage.dispatch.clean_up_later(lambda: _drop_part(staging, attached))
        else:
            _drop_part(staging, attached)
        return
    staging.part.attached.discard(attached)
    try:
        count = staging.count
    except (OSError, TransactionStateError):  # the changes of other participants can't be read now
        count = staging.known_count
    try:
        if count:
            warn(
                f"{staging.storage.url}: {count} staged writes were NOT COMMITTED and are dropped: call commit(), or "
                "use `with repo.transaction() as store:`",
                UncommittedChangesWarning,
            )
    finally:  # a user may have turned the warning into an error
        staging.storage.dispatch.clean_up_later(staging.discard)


def _drop_part(staging: Staging, attached: object) -> None:
    with suppress(OSError, TransactionStateError):
        if staging.members.is_named:
            staging.part.leave(attached)
        else:
            staging.part.attached.discard(attached)
            if not staging.part.attached:
                staging.part.rest()


def _is_in_event_loop() -> bool:
    return asyncio._get_running_loop() is not None

"""Takes the chunk-key locks of one transaction, and parks them for its siblings."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from contextlib import suppress

from txstore import processes
from txstore.errors import ConflictError, LocksUnavailableError, LockTimeoutError
from txstore.history.commits import Commits
from txstore.history.snapshot import Snapshots
from txstore.transactions.held_locks import TransactionLocks, Turn, deadline_of, lock_settled, remaining
from txstore.transactions.lifecycle import Lifecycle
from txstore.transactions.regions import Lock
from txstore.transactions.staging import Staging
from txstore.transactions.view import Peek

#: Seconds after which a thread that waits for a lock checks again whether a sibling has parked the lock.
_LOOK_AGAIN = 0.25


class Locking:
    """The locks of one transaction in one process. Safe in threads, and after a fork."""

    def __init__(
        self,
        commits: Commits,
        snapshots: Snapshots,
        staging: Staging,
        lifecycle: Lifecycle,
        locks: TransactionLocks | None,
    ) -> None:
        self.locks = locks
        self._commits = commits
        self._snapshots = snapshots
        self._staging = staging
        self._lifecycle = lifecycle
        self._announced: int | None = None  # the owner word that this process has announced to siblings
        processes.watch(self)

    def after_fork_in_child(self) -> None:
        if self.locks is not None:
            self.locks = self.locks.of_child()  # the parent keeps its locks
        self._announced = None

    def share(self) -> None:
        """Let siblings take turns with the locked keys. Others still wait. The caller holds the lifecycle's lock."""
        if self.locks is not None and self._announced is None and self._staging.members.is_owner:
            with suppress(LocksUnavailableError):
                self.locks.share()
                self._announce_locked(self.locks)

    def lock(self, turns: list[Turn], lock: Lock, timeout: float | None) -> Sequence[str]:
        """Lock the keys that `lock` covers for this thread until `unlock`, or the transaction's end. Return dirty keys.

        Each turn is added to `turns` before its keys are taken, so that `unlock` can release them after any error.
        `timeout` is in seconds; None waits without limit, 0 tries once. Raises `ConflictError` if another commit
        changed one of the keys since the base, and the errors of `keys_to_lock` and `TransactionLocks.acquire`.
        """
        with self._lifecycle.lock:
            self._lifecycle.check_open()
        if self.locks is None:
            raise LookupError("this transaction was made without locks")
        locks, dirty = self.locks, list[str]()

        def take(keys: Collection[str], timeout: float | None) -> None:
            turns.append(Turn(locks, keys, may_pass=timeout is not None and timeout <= 0))
            dirty.extend(self._take(locks, turns[-1], timeout))

        lock_settled(self._versioned, lock, take, lambda: self.unlock(turns), deadline_of(timeout))
        if changed := self._changed_by_commits(key for turn in turns for key in turn.slots):
            reason = "another commit changed these keys since this transaction began"
            raise ConflictError(changed, reason=reason, base=self._staging.view.base.commit)
        return dirty

    def unlock(self, turns: list[Turn]) -> None:
        """Leave the locks to siblings of this transaction and to other threads. Others get them only at its end."""
        while turns:
            if turns[-1].locks is self.locks:  # else they belong to the parent process
                turns[-1].locks.end_turn(turns[-1], self._staging.members.siblings.locks_of(0))
            turns.pop()

    def overtaken(self) -> list[str]:
        """Return the keys staged here that other commits changed since the base. Most of them are conflicts."""
        self._staging.members.follow_others()
        return self._changed_by_commits(key for key, _ in self._staging.staged.items())

    def _versioned(self) -> tuple[Peek, Hashable]:
        """Return the view for `keys_to_lock`, including the new changes of siblings, and its version."""
        self._staging.members.follow_others()
        return Peek(self._staging.view), self._staging.view.version

    def _take(self, locks: TransactionLocks, turn: Turn, timeout: float | None) -> Sequence[str]:
        """Lock keys, also those that siblings have parked. Siblings may join and park locks while this waits."""
        deadline = deadline_of(timeout)
        locks.take_turn(turn, timeout)
        while True:
            self._staging.members.follow_others()
            left = remaining(deadline)
            last = not self._staging.members.is_shared or (left is not None and left <= _LOOK_AGAIN)
            parked = self._staging.members.siblings.parked_locks()
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
        with self._lifecycle.lock:
            if self._lifecycle.may_end:
                self._announce_locked(locks)

    def _announce_locked(self, locks: TransactionLocks) -> None:
        parked = locks.parked
        if self._staging.members.is_shared and parked is not None and parked != self._announced:
            operation = object()  # a separate operation: a frame after a seal makes the seal invalid
            try:
                self._staging.part.seals.begin_operation(operation)
                self._staging.part.announce(parked)
            finally:
                self._staging.part.end_operation(operation, has_failed=False)
            self._announced = parked

    def _changed_by_commits(self, keys: Iterable[str]) -> list[str]:
        if not self._commits.identity.exists():
            return []
        head, since = self._snapshots.newest(self._staging.record.branch), self._staging.view.base.seq
        if head.seq <= since:
            return []
        recent = head.runs.newer(since)
        found = ((key, recent.lookup(key.encode())) for key in keys)
        return [key for key, entry in found if entry is not None and entry.seq > since]

    def release(self) -> None:
        """Release all locks, because the transaction has ended here."""
        if self.locks is not None:
            self.locks.close()

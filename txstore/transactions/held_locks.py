"""Holds the chunk-key locks of one transaction, and gives it a view that is not older than its locks.

For other transactions and processes, a transaction is one owner. Its threads first take turns among themselves.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from txstore import processes
from txstore.errors import LockTimeoutError, TransactionStateError
from txstore.locks.chunk_locks import Owner
from txstore.locks.fallback_owner import Request, SlotTurns
from txstore.transactions.regions import Lock, keys_to_lock

if TYPE_CHECKING:
    from typing import Self

    from txstore.format.mapping import Hierarchy
    from txstore.history.snapshot import Snapshot

_log = logging.getLogger(__name__)


class Locks(Protocol):
    """Makes owners of locks: `ChunkLocks`, or an object that has them."""

    def owner(self) -> Owner: ...


V = TypeVar("V", bound="Hierarchy")


def lock_settled(
    view: Callable[[], tuple[V, Hashable]],
    lock: Lock,
    take: Callable[[Collection[str], float | None], object],
    give_up: Callable[[], object],
    deadline: float | None,
) -> V:
    """Lock all keys that `lock` covers in a view that other processes may change; return a view with all keys locked.

    `view` returns a view and its version; a new version means that it may have changed. `take(keys, timeout)` locks
    keys, all or none. `give_up()` releases all taken keys. Raises `LockTimeoutError` and the errors of `keys_to_lock`;
    then the caller has to release the taken keys.
    """
    base, version = view()
    keys = keys_to_lock(base, lock)
    while True:
        take(keys, remaining(deadline))
        taken = set(keys)
        while True:
            resolved, (base, version) = version, view()
            keys = keys if version == resolved else keys_to_lock(base, lock)
            missing = [key for key in keys if key not in taken]
            if not missing:
                return base
            # The covered keys changed before all were locked. Do not wait here while holding some of them: two
            # processes could wait for each other.
            try:
                take(missing, 0)
            except LockTimeoutError:
                break
            taken.update(missing)
        give_up()


class Turn(Request[str]):
    """The keys that one thread locks with one call. Other threads of the transaction wait for them."""

    def __init__(self, locks: TransactionLocks, keys: Collection[str], *, may_pass: bool) -> None:
        super().__init__(dict.fromkeys(keys, 1), dict(zip(keys, keys, strict=True)), may_pass=may_pass)
        self.locks = locks
        self.thread = threading.get_ident()
        self.granted: list[Sequence[str]] = []  # has the dirty keys as soon as the transaction's owner has the locks


class TransactionLocks:
    """The locks of one transaction, from the first `acquire` to `close`.

    A call locks all of its keys or none, in one global order, so two calls can't wait for each other. But two
    transactions, or threads, that each lock several times can; the timeout ends that. Safe in threads.

    Keys locked by `acquire` belong to the transaction, whichever thread calls. `take_turn` is for one thread: other
    threads wait until `end_turn`.
    """

    def __init__(self, locks: Locks) -> None:
        self._locks = locks
        self._owner: Owner | None = None  # created at the first use: most transactions lock nothing
        self._making = processes.new_lock()
        self._closed = False
        self._is_shared = False
        self._whole: list[Sequence[str]] = []  # keys that `at_newest` locked until the transaction ends
        self._turns: SlotTurns[str] = SlotTurns("another thread of this transaction")
        self._inside: list[Turn] = []  # the turns that threads have now

    @classmethod
    def at_newest(
        cls, locks: Locks, newest: Callable[[], Snapshot], lock: Lock, timeout: float | None = None
    ) -> tuple[Self, Snapshot]:
        """Lock the keys that `lock` covers at the newest commit; return the locks, and a snapshot as base.

        The snapshot was taken while all locks were held, and the locks include all keys that `lock` covers in it. So no
        process that takes locks changes these keys before the release. `timeout` is in seconds; None waits without
        limit, 0 tries once.

        Raises `LockTimeoutError` and the errors of `keys_to_lock`; then nothing is locked.
        """
        held = cls(locks)

        def view() -> tuple[Snapshot, Snapshot]:
            base = newest()
            return base, base

        try:
            return held, lock_settled(view, lock, held._take_whole, held._give_up_whole, deadline_of(timeout))
        except BaseException:
            held.close()
            raise

    def _take_whole(self, keys: Collection[str], timeout: float | None) -> None:
        self.acquire(list(keys), timeout)
        self._whole.append(list(keys))  # released in the same groups: two keys may share a slot of the lock table

    def _give_up_whole(self) -> None:
        whole, self._whole = self._whole, []
        for each in whole:
            self.release(each)

    @property
    def parked(self) -> int | None:
        """The owner word under which `park` leaves locks. None if this transaction never locked anything."""
        return None if self._owner is None else self._owner.parked

    def acquire(self, keys: Sequence[str], timeout: float | None = None, siblings: Sequence[int] = ()) -> Sequence[str]:
        """Lock keys, all or none. Returns the dirty keys: their last owner died while it held them.

        `timeout` is in seconds; None waits without limit, 0 tries once. This can take keys that are parked under one of
        the owner words `siblings`. Raises `LockTimeoutError`; `TransactionStateError` after `close`.
        """
        dirty = self._owned().acquire(keys, timeout, siblings) if keys else ()
        if dirty:
            _log.info("chunk-key locks taken over from a dead process: %d, %r among them", len(dirty), dirty[0])
        return dirty

    def _owned(self) -> Owner:
        with self._making:
            if self._closed:
                raise _ended()
            owner = self._owner = self._owner or self._locks.owner()
        return owner

    def release(self, keys: Sequence[str]) -> None:
        """Release the keys of one `acquire`. A key that was acquired twice is held until it is released twice."""
        if self._owner is not None and keys:
            self._owner.release(keys)

    def park(self, keys: Sequence[str], to: int | None = None) -> None:
        """Leave the keys of one `acquire` to siblings of the transaction. Others can't take them until it has ended.

        `to` is the owner word to park them under: that of the sibling which closes last.
        """
        if self._owner is not None and keys:
            self._owner.park(keys, to)

    # --- turns of threads

    def take_turn(self, turn: Turn, timeout: float | None) -> None:
        """Keep the transaction's other threads from the keys of a turn until `end_turn`. This thread may retake them.

        After an error, which may be `LockTimeoutError`, the caller has to call `end_turn`.
        """
        with self._turns.mutex:
            self._turns.reserve_locked(turn, self._held_by(turn.thread), deadline_of(timeout))
            self._inside.append(turn)

    def _held_by(self, thread: int) -> dict[str, None]:
        return {key: None for turn in self._inside if turn.thread == thread for key in turn.slots}

    def acquire_turn(self, turn: Turn, timeout: float | None, siblings: Sequence[int] = ()) -> Sequence[str]:
        """Lock the keys of a taken turn, as `acquire` does."""
        if not turn.slots:
            return ()
        owner = self._owned()
        # One call that runs no Python: an interrupt comes before the locks are taken, or after `granted` records them.
        try:
            turn.granted.extend(map(owner.acquire, (list(turn.slots),), (timeout,), (siblings,)))
        except ValueError as error:
            if self._closed:  # another thread ended the transaction meanwhile
                raise _ended() from error
            raise
        return turn.granted[0]

    def end_turn(self, turn: Turn, to: int | None = None) -> None:
        """End a turn at any stage: leave its keys to siblings (see `park`) and to other threads.

        Any thread may call this, also repeatedly.
        """
        owner, granted = self._owner, turn.granted
        try:
            turn.granted = []
            if granted and owner is not None:
                owner.park(list(turn.slots), to)
        finally:
            with self._turns.mutex:
                self._end_locked(turn)

    def _end_locked(self, turn: Turn) -> None:
        if turn in self._inside:
            self._inside.remove(turn)
        for other in self._inside:
            if other.thread == turn.thread:
                self._turns.leave_to(other, turn)  # the thread has also locked these keys in another turn
        self._turns.cancel(turn)

    # --- siblings

    def share(self) -> None:
        """Let siblings take turns with the keys that `at_newest` locked, and park their own keys."""
        with self._making:
            self._owner = self._owner or self._locks.owner()
        self._is_shared = True
        whole, self._whole = self._whole, []
        for each in whole:
            self.park(each)

    def of_child(self) -> TransactionLocks:
        """Return the locks of the same transaction in a forked child, which holds none of its parent's locks."""
        return TransactionLocks(self._locks)

    def fence(self) -> None:
        """Raise `LocksLostError` unless every acquired lock is still held. Called right before the commit."""
        if self._owner is not None:
            self._owner.fence()

    def close(self) -> None:
        """Release every lock. A second call, or a call in a forked child, does nothing."""
        with self._making:
            self._closed = True
            owner, self._owner = self._owner, None
        if owner is not None:
            owner.close(sweep=self._is_shared)
        with self._turns.mutex:  # a thread that waits for a turn gets its error from `acquire_turn`
            inside, self._inside = self._inside, []
            for turn in inside:
                self._turns.cancel(turn)


def _ended() -> TransactionStateError:
    return TransactionStateError("this transaction has ended: begin a new one to lock anything", state="ended")


def deadline_of(timeout: float | None) -> float | None:
    """Return the time at which a wait of `timeout` seconds from now ends. None: never."""
    return None if timeout is None else time.monotonic() + timeout


def remaining(deadline: float | None) -> float | None:
    """Return the number of seconds left. None: no limit."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())

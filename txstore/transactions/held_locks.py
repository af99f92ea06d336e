"""What one transaction holds of the chunk-key locks, and how it comes to a view that is not older than its locks.

To other transactions and processes, a transaction is one owner. Its threads take turns among themselves first.
"""

from __future__ import annotations

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


class Locks(Protocol):
    """Where a transaction becomes an owner: `ChunkLocks`, or what has them."""

    def owner(self) -> Owner: ...


V = TypeVar("V", bound="Hierarchy")


def lock_settled(
    view: Callable[[], tuple[V, Hashable]],
    lock: Lock,
    take: Callable[[Collection[str], float | None], object],
    give_up: Callable[[], object],
    deadline: float | None,
) -> V:
    """Lock what `lock` covers in a view that others change, until all that it covers there is locked; return the view.

    `view` also tells its version, another one if it may have changed. `take(keys, timeout)` locks keys, all or none,
    `give_up()` gives up all that was taken. Raises `LockTimeoutError`, and whatever `keys_to_lock` raises; the caller
    gives up what was taken by then.
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
            # What is covered has changed before it was locked. To wait here for more, while holding some, could
            # be waiting for each other.
            try:
                take(missing, 0)
            except LockTimeoutError:
                break
            taken.update(missing)
        give_up()


class Turn(Request[str]):
    """What one thread locks by one call, which the other threads of its transaction have to wait for."""

    def __init__(self, locks: TransactionLocks, keys: Collection[str], *, may_pass: bool) -> None:
        super().__init__(dict.fromkeys(keys, 1), dict(zip(keys, keys, strict=True)), may_pass=may_pass)
        self.locks = locks
        self.thread = threading.get_ident()
        self.granted: list[Sequence[str]] = []  # the dirty keys, once the transaction's owner has the locks


class TransactionLocks:
    """The locks of one transaction, from the first `acquire` to `close`.

    Keys are locked all or none, in an order that is the same for all: two calls can't wait for each other. Two
    transactions, or threads, that each lock more than once can; the timeout ends that. Safe in threads.

    What `acquire` locks is the transaction's, whichever thread asks. `take_turn` is for one thread: the others wait
    until `end_turn`.
    """

    def __init__(self, locks: Locks) -> None:
        self._locks = locks
        self._owner: Owner | None = None  # made at the first use: most transactions lock nothing
        self._making = processes.new_lock()
        self._closed = False
        self._is_shared = False
        self._whole: list[Sequence[str]] = []  # what `at_newest` has locked, for as long as the transaction lasts
        self._turns: SlotTurns[str] = SlotTurns("another thread of this transaction")
        self._inside: list[Turn] = []  # of threads that have their turn

    @classmethod
    def at_newest(
        cls, locks: Locks, newest: Callable[[], Snapshot], lock: Lock, timeout: float | None = None
    ) -> tuple[Self, Snapshot]:
        """Lock what `lock` covers on the newest commit; return the locks and the snapshot to base a transaction on.

        The snapshot was taken when all the locks were held, and they are what `lock` covers on it, or more: no process
        that takes locks changes that before they are released. `timeout` is in seconds, None for ever, 0 to try.

        Raises `LockTimeoutError`, and whatever `keys_to_lock` raises; nothing is held then.
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
        self._whole.append(list(keys))  # is given up as it was taken: two keys may share a place in the table

    def _give_up_whole(self) -> None:
        whole, self._whole = self._whole, []
        for each in whole:
            self.release(each)

    @property
    def parked(self) -> int | None:
        """The owner word under which `park` leaves locks; None if nothing was ever locked here."""
        return None if self._owner is None else self._owner.parked

    def acquire(self, keys: Sequence[str], timeout: float | None = None, siblings: Sequence[int] = ()) -> Sequence[str]:
        """Lock keys, all or none. Returns the dirty ones: their last owner died holding them.

        `timeout` is in seconds, None for ever, 0 to try. What is parked under one of the words `siblings` may be taken.
        Raises `LockTimeoutError`; `TransactionStateError` after `close`.
        """
        return self._owned().acquire(keys, timeout, siblings) if keys else ()

    def _owned(self) -> Owner:
        with self._making:
            if self._closed:
                raise _ended()
            owner = self._owner = self._owner or self._locks.owner()
        return owner

    def release(self, keys: Sequence[str]) -> None:
        """Give up what one `acquire` was called with. What was acquired twice is held until it is released twice."""
        if self._owner is not None and keys:
            self._owner.release(keys)

    def park(self, keys: Sequence[str], to: int | None = None) -> None:
        """Give up what one `acquire` was called with, but only to siblings of the transaction until it has ended.

        `to` is the owner word of the sibling under which to leave it, and which closes last.
        """
        if self._owner is not None and keys:
            self._owner.park(keys, to)

    # --- turns of threads

    def take_turn(self, turn: Turn, timeout: float | None) -> None:
        """Let no other thread of the transaction have the keys of a turn before `end_turn`. The thread's own may.

        If it raises, which may be `LockTimeoutError`, `end_turn` has to follow.
        """
        with self._turns.mutex:
            self._turns.reserve_locked(turn, self._held_by(turn.thread), deadline_of(timeout))
            self._inside.append(turn)

    def _held_by(self, thread: int) -> dict[str, None]:
        return {key: None for turn in self._inside if turn.thread == thread for key in turn.slots}

    def acquire_turn(self, turn: Turn, timeout: float | None, siblings: Sequence[int] = ()) -> Sequence[str]:
        """Lock the keys of a turn that was taken, as `acquire` does."""
        if not turn.slots:
            return ()
        owner = self._owned()
        # In one call that runs no Python: an interrupt comes before the locks are taken, or after it is noted here.
        try:
            turn.granted.extend(map(owner.acquire, (list(turn.slots),), (timeout,), (siblings,)))
        except ValueError as error:
            if self._closed:  # another thread has ended the transaction meanwhile
                raise _ended() from error
            raise
        return turn.granted[0]

    def end_turn(self, turn: Turn, to: int | None = None) -> None:
        """Give up what a turn has taken, however far it has come: siblings may have it, see `park`, and threads.

        Any thread may call it, and more than once.
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
                self._turns.leave_to(other, turn)  # it has locked that, too
        self._turns.cancel(turn)

    # --- siblings

    def share(self) -> None:
        """Let siblings take turns with what `at_newest` has locked, and leave here what they have locked."""
        with self._making:
            self._owner = self._owner or self._locks.owner()
        self._is_shared = True
        whole, self._whole = self._whole, []
        for each in whole:
            self.park(each)

    def of_child(self) -> TransactionLocks:
        """Return the locks of the same transaction in a forked child: it holds none of its parent's."""
        return TransactionLocks(self._locks)

    def fence(self) -> None:
        """Raise `LocksLostError` unless every lock that was acquired is still held: right before the commit."""
        if self._owner is not None:
            self._owner.fence()

    def close(self) -> None:
        """Give up every lock. Called twice, or in a forked child, it does nothing."""
        with self._making:
            self._closed = True
            owner, self._owner = self._owner, None
        if owner is not None:
            owner.close(sweep=self._is_shared)
        with self._turns.mutex:  # who waits for a turn is told by `acquire_turn`
            inside, self._inside = self._inside, []
            for turn in inside:
                self._turns.cancel(turn)


def _ended() -> TransactionStateError:
    return TransactionStateError("this transaction has ended: begin a new one to lock anything", state="ended")


def deadline_of(timeout: float | None) -> float | None:
    """Return when a wait of `timeout` seconds from now is over; None: never."""
    return None if timeout is None else time.monotonic() + timeout


def remaining(deadline: float | None) -> float | None:
    """Return how many seconds there are left; None: any number."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())

"""What one transaction holds of the chunk-key locks, and how it comes to a base that is not older than its locks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from txstore import forking
from txstore.errors import LockTimeoutError, TransactionStateError
from txstore.regions import Lock, keys_to_lock

if TYPE_CHECKING:
    from typing import Self

    from txstore.snapshot import Snapshot


class Owner(Protocol):
    """Who holds locks: one transaction. What it holds already, it is granted again, and has to release as often."""

    @property
    def parked(self) -> int: ...

    def acquire(
        self, keys: str | Sequence[str], timeout: float | None = None, siblings: Sequence[int] = ()
    ) -> Sequence[str]: ...

    def release(self, keys: str | Sequence[str]) -> None: ...

    def park(self, keys: str | Sequence[str], to: int | None = None) -> None: ...

    def fence(self) -> None: ...

    def close(self, sweep: bool = False) -> None: ...


class Locks(Protocol):
    """Where a transaction becomes an owner: `ChunkLocks`, or what has them."""

    def owner(self) -> Owner: ...


class TransactionLocks:
    """The locks of one transaction, from the first `acquire` to `close`.

    Keys are locked all or none, in an order that is the same for all: two calls can't wait for each other. Two
    transactions that each call `acquire` more than once can; the timeout ends that. Safe in threads.
    """

    def __init__(self, locks: Locks) -> None:
        self._locks = locks
        self._owner: Owner | None = None  # made at the first use: most transactions lock nothing
        self._making = forking.new_lock()
        self._closed = False
        self._is_shared = False
        self._whole: list[Sequence[str]] = []  # what `at_newest` has locked, for as long as the transaction lasts

    @classmethod
    def at_newest(
        cls, locks: Locks, newest: Callable[[], Snapshot], lock: Lock, timeout: float | None = None
    ) -> tuple[Self, Snapshot]:
        """Lock what `lock` covers on the newest commit; return the locks and the snapshot to base a transaction on.

        The snapshot was taken when all the locks were held, and they are what `lock` covers on it, or more: nobody who
        takes locks changes that before they are released. `timeout` is in seconds, None for ever, 0 to try.

        Raises `LockTimeoutError`, and whatever `keys_to_lock` raises; nothing is held then.
        """
        held = cls(locks)
        try:
            return held, held._settle(newest, lock, None if timeout is None else time.monotonic() + timeout)
        except BaseException:
            held.close()
            raise

    def _settle(self, newest: Callable[[], Snapshot], lock: Lock, deadline: float | None) -> Snapshot:
        base = newest()
        keys = keys_to_lock(base, lock)
        while True:
            self.acquire(keys, _remaining(deadline))
            acquired = [keys]  # is given up as it was taken: two keys may share a place in the table
            while True:
                resolved, base = base, newest()
                keys = keys if base is resolved else keys_to_lock(base, lock)
                missing = list(set(keys).difference(*acquired))
                if not missing:
                    self._whole = [*acquired]
                    return base
                # What is covered has changed before it was locked. To wait here for more, while holding some, could
                # be waiting for each other.
                try:
                    self.acquire(missing, 0)
                except LockTimeoutError:
                    break
                acquired.append(missing)
            for each in acquired:
                self.release(each)

    @property
    def parked(self) -> int | None:
        """The owner word under which `park` leaves locks; None if nothing was ever locked here."""
        return None if self._owner is None else self._owner.parked

    def acquire(self, keys: Sequence[str], timeout: float | None = None, siblings: Sequence[int] = ()) -> Sequence[str]:
        """Lock keys, all or none. Returns those that are dirty: their last owner died holding them.

        `timeout` is in seconds, None for ever, 0 to try. What is parked under one of the words `siblings` may be taken.
        Raises `LockTimeoutError`; `TransactionStateError` after `close`.
        """
        if self._closed:
            raise TransactionStateError("this transaction has ended: begin a new one to lock anything", state="ended")
        if not keys:
            return ()
        with self._making:
            owner = self._owner = self._owner or self._locks.owner()
        return owner.acquire(keys, timeout, siblings)

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
        self._closed = True
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.close(sweep=self._is_shared)


def _remaining(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())

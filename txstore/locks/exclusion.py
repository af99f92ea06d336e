"""Locks chunk keys without shared memory: by byte ranges of `locks/chunks`, or by a few small files.

For processes that can't share memory or have no C extension, and for systems without usable byte locks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from txstore.locks.fallback_owner import NotInTimeError
from txstore.locks.kernel_locks import ByteLocks, LockFiles, poll
from txstore.locks.lock_file import LockFile
from txstore.locks.slot_hash import SlotHash

_SLOTS_OFFSET = 1 << 41
_WAITING_OFFSET = 1 << 42

_COURTESY = 0.025  # seconds; a waiter polls every 10 ms
_REMEMBERED = 1 << 15


class RangeLocks:
    """Excludes other processes under kind "ranges": an `Exclusion`.

    After the LIVE locks each slot has two bytes. The holder of a slot locks its SLOT byte. Waiting processes lock its
    WAITING byte, shared. A process that has just released a slot and wants it again leaves it to the waiters for a
    moment. Otherwise a process that hardly ever releases the slot would starve the waiters, which can only poll. One
    call locks neighbouring slots. If a process dies, its slots are free at once, and the next holder does not learn of
    it.
    """

    def __init__(self, file: LockFile) -> None:
        self.file = file
        hashed = SlotHash(file.slots, file.seed)
        self.slot_of = hashed.slot_of
        self.slots_of = hashed.slots_of
        self._bytes = ByteLocks(file.descriptor, _SLOTS_OFFSET)
        self._waiting = ByteLocks(file.descriptor, _WAITING_OFFSET)
        self._released: dict[int, float] = {}  # when this process last released a slot

    def try_one(self, slot: int) -> bool:
        if slot in self._released and self._yields_until(range(slot, slot + 1)):
            return False
        return self._bytes.try_lock(slot)

    def lock(self, slots: list[int], deadline: float | None) -> None:
        # Last first: the kernel keeps the locks of one file in a sorted list, and searches it from the beginning.
        for run in reversed(list(runs(slots))):
            yielding_until = self._yields_until(run)
            if yielding_until or not self._bytes.try_lock(run.start, len(run)):
                self._wait(run, deadline, yielding_until)

    def unlock_one(self, slot: int) -> None:
        self._bytes.unlock(slot)
        self._released[slot] = time.monotonic()
        if len(self._released) > _REMEMBERED:
            self._released.clear()

    def unlock(self, slots: list[int]) -> None:
        for run in runs(slots):
            self._bytes.unlock(run.start, len(run))
        self._released |= dict.fromkeys(slots, time.monotonic())
        if len(self._released) > _REMEMBERED:
            self._released.clear()

    def lost(self, slots: list[int]) -> list[int] | None:
        if not self.file.is_intact():
            return slots
        # Locking a slot again that we hold changes nothing; a lost slot that another process holds now can't be locked.
        lost = [slot for run in runs(slots) if not self._bytes.try_lock(run.start, len(run)) for slot in run]
        return lost or None

    def close(self) -> None:
        self.file.close()

    def _wait(self, run: range, deadline: float | None, yielding_until: float) -> None:
        def attempt() -> bool:
            if time.monotonic() < yielding_until and self._is_wanted(run):
                return False
            return self._bytes.try_lock(run.start, len(run))

        if deadline is not None and deadline <= time.monotonic():
            # A caller that only tries yields to no waiter: the waiter may be a stopped process.
            if self._bytes.try_lock(run.start, len(run)):
                return
            raise NotInTimeError(run)
        self._waiting.try_lock(run.start, len(run), shared=True)
        try:
            if not poll(attempt, deadline):
                raise NotInTimeError(run)
        finally:
            self._waiting.unlock(run.start, len(run))

    def _yields_until(self, run: range) -> float:
        """Return the time until which a run is left to others, because this process just held it; 0: no need."""
        released = self._released
        if released.keys().isdisjoint(run):
            return 0
        until = max(released.get(slot, 0.0) for slot in run) + _COURTESY
        return until if until > time.monotonic() and self._is_wanted(run) else 0

    def _is_wanted(self, run: range) -> bool:
        return self._waiting.are_held_elsewhere(run.start, len(run))


def runs(slots: list[int]) -> Iterator[range]:
    """Yield ascending, distinct slots as ranges."""
    if not slots:
        return
    start = end = slots[0]
    for slot in slots:
        if slot != end:
            yield range(start, end)
            start = slot
        end = slot + 1
    yield range(start, end)


STRIPES = 64


class StripeLocks:
    """Excludes other processes under kind "files", by `locks/stripe-00` and so on: an `Exclusion`.

    Many slots share a stripe, so two processes may wait for each other without need; transactions of one process never
    do. A process locks a stripe while any of its transactions holds one of the stripe's slots.
    """

    def __init__(self, file: LockFile, mode: int) -> None:
        self.file = file
        hashed = SlotHash(file.slots, file.seed)
        self.slot_of = hashed.slot_of
        self.slots_of = hashed.slots_of
        self._stripes = LockFiles(file.tree, "stripe", mode)
        self._users: list[set[int]] = [set() for _ in range(STRIPES)]  # the slots for which a stripe is locked
        # Reentrant: a finalizer may unlock in the middle of any of this.
        self._mutex = threading.RLock()

    def try_one(self, slot: int) -> bool:
        return self._try(slot % STRIPES, {slot})

    def lock(self, slots: list[int], deadline: float | None) -> None:
        for stripe, those in self._by_stripe(slots).items():
            if not self._try(stripe, those) and not (
                poll(lambda stripe=stripe, those=those: self._try(stripe, those), deadline)  # type: ignore[misc]
            ):
                raise NotInTimeError(those)

    def _try(self, stripe: int, slots: set[int]) -> bool:
        with self._mutex:
            locked = bool(self._users[stripe]) or self._stripes.try_lock(stripe)
            if locked:
                self._users[stripe] |= slots
            return locked

    def unlock_one(self, slot: int) -> None:
        self.unlock([slot])

    def unlock(self, slots: list[int]) -> None:
        with self._mutex:
            for stripe, those in self._by_stripe(slots).items():
                self._users[stripe] -= those
                if not self._users[stripe]:
                    self._stripes.unlock(stripe)

    def lost(self, slots: list[int]) -> list[int] | None:
        if not self.file.is_intact():
            return slots
        with self._mutex:
            lost = {stripe for stripe in self._by_stripe(slots) if not self._stripes.is_intact(stripe)}
        return [slot for slot in slots if slot % STRIPES in lost] or None

    def close(self) -> None:
        self._stripes.close()
        self.file.close()

    def _by_stripe(self, slots: list[int]) -> dict[int, set[int]]:
        """Group slots by stripe, ascending, so that two calls never wait for each other."""
        found: dict[int, set[int]] = {}
        for slot in slots:
            found.setdefault(slot % STRIPES, set()).add(slot)
        return dict(sorted(found.items()))

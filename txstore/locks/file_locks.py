"""Chunk-key locks as a few small files, `locks/stripe-00` and so on, for systems without usable byte locks.

Many slots share a stripe, so two processes may wait for each other without need; transactions of one process never do.
A process locks a stripe while any of its transactions holds one of the stripe's slots.
"""

from __future__ import annotations

import threading

from txstore.locks.fallback_owner import NotInTimeError
from txstore.locks.kernel_locks import LockFiles, poll
from txstore.locks.lock_file import LockFile
from txstore.locks.slot_hash import SlotHash

STRIPES = 64


class StripeLocks:
    """Excludes other processes under kind "files": an `Exclusion`."""

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

    def _by_stripe(self, slots: list[int]) -> dict[int, set[int]]:
        """Group slots by stripe, ascending, so that two calls never wait for each other."""
        found: dict[int, set[int]] = {}
        for slot in slots:
            found.setdefault(slot % STRIPES, set()).add(slot)
        return dict(sorted(found.items()))

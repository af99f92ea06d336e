"""Chunk-key locks as byte ranges of `locks/chunks`: where processes can't share memory, or there is no C.

Behind the LIVE locks each slot has two bytes. The holder of the slot locks its SLOT byte. Owners that wait for
it lock its WAITING byte, shared: a process that has just released a slot and wants it again leaves it to them
for a moment; else one that hardly ever lets go would starve the others, who can only look now and then. Neighbouring
slots are locked in one call. The slots of a process that died are free at once, and are not marked dirty.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from txstore.locks.fallback_owner import NotInTimeError
from txstore.locks.kernel_locks import ByteLocks, poll
from txstore.locks.lock_file import LockFile
from txstore.locks.slot_hash import SlotHash

_SLOTS_OFFSET = 1 << 41
_WAITING_OFFSET = 1 << 42

_COURTESY = 0.025  # seconds; waiting owners look every 10 ms
_REMEMBERED = 1 << 15


class RangeLocks:
    """What excludes other processes under kind "ranges": an `Exclusion`."""

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
        # From behind: the kernel's list of what one file has locked is kept in order, and searched from its beginning.
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
        # To lock once more what is ours changes nothing; what was lost can't be had if somebody else has it by now.
        lost = [slot for run in runs(slots) if not self._bytes.try_lock(run.start, len(run)) for slot in run]
        return lost or None

    def _wait(self, run: range, deadline: float | None, yielding_until: float) -> None:
        def attempt() -> bool:
            if time.monotonic() < yielding_until and self._is_wanted(run):
                return False
            return self._bytes.try_lock(run.start, len(run))

        if deadline is not None and deadline <= time.monotonic():
            # A mere try does not yield: the waiting owners may be stopped.
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
        """Return until when to leave a run to others, because this process has just had it; 0: it need not."""
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

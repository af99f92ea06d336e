"""Queues the owners of one process for slots: shared by the kinds of chunk-key locks that are written in Python.

The kernel's locks belong to an open file, not to a transaction, so it can't keep two transactions of one process apart.
A `FallbackOwner` therefore takes slots twice. First it reserves all of them among the owners of its process, so that no
other thread asks for the same ones. Then it locks them against other processes (`Exclusion`).

Requests are served in order: a request waits behind an older one that wants one of its slots. Only an owner that holds
a slot already may pass, because the older request may be waiting for that slot.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from txstore.errors import LocksLostError, LockTimeoutError, TransactionStateError, shown_keys
from txstore.locks.kernel_locks import ByteLocks, LockFiles, poll
from txstore.locks.lock_file import LockFile
from txstore.locks.slot_hash import SlotHash

_MEMBER_SHIFT = 19
_SLICE = 1.0  # seconds: a thread that waits for another one looks again after this time, even if it was not woken
_transactions = itertools.count(1)


def inherited() -> TransactionStateError:
    return TransactionStateError(
        "these locks belong to the process that this one was forked from: begin a transaction of this process",
        state="inherited",
    )


def describe_processes(pids: list[int]) -> str:
    """Name, for a message, the processes that may hold the locks."""
    if not pids:
        return "another process"
    if len(pids) == 1:
        return f"process {pids[0]}"
    return f"one of the processes {', '.join(map(str, pids[:5]))}" + (", ..." if len(pids) > 5 else "")


class NotInTimeError(Exception):
    """Another process still held one of these slots at the deadline."""

    def __init__(self, slots: Collection[int]) -> None:
        super().__init__(slots)
        self.slots = slots


class Exclusion(Protocol):
    """Locks slots against other processes. Two threads never ask it for the same slot at the same time."""

    file: LockFile

    def slot_of(self, key: str) -> int: ...

    def slots_of(self, keys: Sequence[str]) -> list[int]: ...

    def try_one(self, slot: int) -> bool:
        """Lock one slot if it is free, and if no other process should have it first."""

    def lock(self, slots: list[int], deadline: float | None) -> None:
        """Lock ascending, distinct slots, or raise `NotInTimeError`. If it raises, the caller must call `unlock`.

        All processes lock in one order, so two calls never wait for each other.
        """

    def unlock_one(self, slot: int) -> None: ...

    def unlock(self, slots: list[int]) -> None:
        """Unlock ascending, distinct slots, locked or not."""

    def lost(self, slots: list[int]) -> list[int] | None:
        """Return which of the ascending, distinct slots are no longer locked; None if none was ever lost.

        An empty list: only slots that have been released since were lost.
        """

    def close(self) -> None:
        """Unlock everything, and leave the lock file."""


#: The things that owners queue for: slots of a lock file, or the keys themselves.
S = TypeVar("S", int, str)


class Request(Generic[S]):
    """The slots that one call wants, and how many of its keys share each. A single try may pass waiting requests."""

    def __init__(self, slots: dict[S, int], names: dict[S, str], *, may_pass: bool) -> None:
        self.slots: dict[S, int] = slots
        self.names: dict[S, str] = names
        self.may_pass = may_pass


class SlotTurns(Generic[S]):
    """The slots reserved or held in this process, and the requests that wait. One for each opened lock file.

    `holder` names the other possible holder in messages.
    """

    def __init__(self, holder: str = "a transaction of this process") -> None:
        # Reentrant: a finalizer may close an owner in the middle of any of these methods.
        self.mutex = threading.RLock()
        self._holder = holder
        self._changed = threading.Condition(self.mutex)
        self._taken: dict[S, Request[S] | None] = {}  # values are no owners: an unreferenced owner must be collected
        self._waiting: list[Request[S]] = []  # oldest first

    def try_one(self, slot: S) -> bool:
        """Reserve a free slot, unless a request waits for any slot."""
        with self.mutex:
            if self._waiting or slot in self._taken:
                return False
            self._taken[slot] = None
            return True

    def reserve_locked(self, request: Request[S], held: Mapping[S, object], deadline: float | None) -> list[S]:
        """Reserve the slots of a request that its owner does not hold; return them, ascending. On error call `cancel`.

        Raises `LockTimeoutError`, having reserved nothing.
        """
        wanted = self._reserve_now(request, held)
        if wanted is not None:
            return wanted
        self._waiting.append(request)
        while (wanted := self._reserve_now(request, held)) is None:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                names = [request.names[slot] for slot in sorted(request.slots) if self._is_others(slot, held)]
                raise LockTimeoutError(names or list(request.names.values()), self._holder)
            # In slices: an interrupt may stop the thread that releases a slot before it notifies the waiters.
            self._changed.wait(_SLICE if remaining is None else min(remaining, _SLICE))
        self._waiting.remove(request)
        return wanted

    def _is_others(self, slot: S, held: Mapping[S, object]) -> bool:
        return slot in self._taken and slot not in held

    def _reserve_now(self, request: Request[S], held: Mapping[S, object]) -> list[S] | None:
        wanted: Collection[S] = request.slots
        if held:
            wanted = [slot for slot in wanted if slot not in held]
        elif not request.may_pass and any(not older.slots.keys().isdisjoint(wanted) for older in self._older(request)):
            return None
        if not self._taken.keys().isdisjoint(wanted):
            return None
        self._taken.update(dict.fromkeys(wanted, request))
        return sorted(wanted)

    def _older(self, request: Request[S]) -> Iterable[Request[S]]:
        return itertools.takewhile(lambda older: older is not request, self._waiting)

    def cancel(self, request: Request[S]) -> None:
        """Give back all slots still reserved for a request, and stop its wait. May be called again."""
        with self.mutex:
            if request in self._waiting:
                self._waiting.remove(request)
            self.give_back(self._reserved_for(request, request.slots))

    def leave_to(self, heir: Request[S], request: Request[S]) -> None:
        """Pass to the heir the slots reserved for another request that the heir wants too."""
        with self.mutex:
            self._taken.update(dict.fromkeys(self._reserved_for(request, heir.slots), heir))

    # These loops are separate functions: if an interrupt comes where a loop jumps back, Python 3.12 and 3.13 may not
    # notice that the loop is inside a `try` or `with`.
    def _reserved_for(self, request: Request[S], slots: Iterable[S]) -> list[S]:
        return [slot for slot in slots if self._taken.get(slot) is request]

    def give_back(self, slots: Iterable[S]) -> None:
        for slot in slots:
            del self._taken[slot]
        self.notify()

    def notify(self) -> None:
        """Wake the waiting requests. A thread that changed the state calls this next, with or without the mutex."""
        if self._waiting:
            with self.mutex:
                self._changed.notify_all()


class FallbackOwner:
    """The locks of one transaction. Several threads may use it."""

    def __init__(self, exclusion: Exclusion, turns: SlotTurns[int]) -> None:
        self._exclusion = exclusion
        self._file = exclusion.file
        self._turns = turns
        self._held: dict[int, int] = {}  # slot -> number of grants
        self._names: dict[int, str] = {}  # slot -> a key of it, for messages
        self._is_closed = False
        self._has_ever_held = False
        # The protocol needs these attributes; no code reads them for these kinds.
        self.identity = exclusion.file.member << _MEMBER_SHIFT | next(_transactions) << 1
        self.parked = self.identity | 1

    def acquire(
        self, keys: str | Sequence[str], timeout: float | None = None, siblings: Sequence[int] = ()
    ) -> tuple[str, ...]:
        """Lock all of the keys, or none. A key that this owner holds is counted: release it once per acquire.

        `timeout` is in seconds; None waits for ever, 0 tries. `siblings` are ignored, because no key stays parked.
        Returns no keys: these kinds do not know which keys a dead transaction held. Raises `LockTimeoutError`.
        """
        self._check()
        if isinstance(keys, str) and self._acquire_one(keys):
            return ()
        deadline = None if timeout is None else time.monotonic() + max(timeout, 0)
        request = self._request(keys, may_pass=timeout is not None and timeout <= 0)
        counted: dict[int, int] = {}
        reserved: list[int] = []
        try:
            with self._turns.mutex:
                reserved = self._turns.reserve_locked(request, self._held, deadline)
                if len(reserved) < len(request.slots):
                    counted = _only(request.slots, self._held)
                    for slot, count in counted.items():
                        self._held[slot] += count
            self._exclusion.lock(reserved, deadline)
            with self._turns.mutex:
                self._check()
                self._has_ever_held = True
                self._names |= request.names
                self._held |= {slot: request.slots[slot] for slot in reserved} if counted else request.slots
                self._turns.notify()  # another thread of this owner
        except BaseException as error:
            self._exclusion.unlock(reserved)
            with self._turns.mutex:
                for slot in reserved:
                    self._held.pop(slot, None)  # Ctrl-C may have come after the slot was added
                self._turns.cancel(request)
            self._uncount(counted)
            if isinstance(error, NotInTimeError):
                missing = [request.names[slot] for slot in reserved if slot in error.slots]
                raise LockTimeoutError(missing, describe_processes(self._file.other_pids())) from None
            raise
        return ()

    def _acquire_one(self, key: str) -> bool:
        """Lock a key that is free and that no request waits for: the common case. False: nothing has changed."""
        slot = self._exclusion.slot_of(key)
        if slot in self._held or not self._turns.try_one(slot):
            return False
        try:
            locked = self._exclusion.try_one(slot)
            if locked:
                self._has_ever_held = True
                self._names[slot] = key
                self._held[slot] = 1
        except BaseException:
            self._held.pop(slot, None)
            self._end([slot])
            raise
        if not locked:
            self._turns.give_back([slot])
        elif self._is_closed:  # by another thread, in between
            self.close()
            self._check()
        else:
            self._turns.notify()
        return locked

    def release(self, keys: str | Sequence[str]) -> None:
        """Release keys, once per acquire. Raises `ValueError` for keys not held, after it has released the others."""
        self._check()
        if isinstance(keys, str) and self._release_one(keys):
            return
        request = self._request(keys)
        with self._turns.mutex:
            there = self._countable(request.slots)
            ending = self._subtract(there)
        self._end(ending)
        missing = [request.names[slot] for slot in request.slots if slot not in there]
        if missing:
            raise ValueError(f"not locked by this transaction: {shown_keys(missing)}")

    def _countable(self, counts: dict[int, int]) -> dict[int, int]:
        return {slot: count for slot, count in counts.items() if self._held.get(slot, 0) >= count}

    def _release_one(self, key: str) -> bool:
        """Release a key that is held once. False: nothing has changed."""
        slot = self._exclusion.slot_of(key)
        with self._turns.mutex:
            if self._held.get(slot) != 1:
                return False
            del self._held[slot], self._names[slot]
        try:
            self._exclusion.unlock_one(slot)
        finally:
            self._turns.give_back((slot,))
        return True

    def park(self, keys: str | Sequence[str], to: int | None = None) -> None:
        """Release keys. Transactions other than its siblings may lock them too, before this transaction ends.

        No write is lost: if another transaction commits to these keys, this one finds a conflict.
        """
        self.release(keys)

    def fence(self) -> None:
        """Raise `LocksLostError` unless every held slot still excludes other processes."""
        self._check()
        with self._turns.mutex:  # so that no thread releases a slot meanwhile
            lost = self._exclusion.lost(sorted(self._held)) if self._has_ever_held else None
        if lost is not None:
            raise LocksLostError([self._names[slot] for slot in lost])

    def holds(self, key: str) -> bool:
        return self._exclusion.slot_of(key) in self._held and not self._file.is_inherited

    def close(self, sweep: bool = False) -> None:
        """Release every slot. May be called again, by a finalizer, and, without effect, in a forked child."""
        if self._file.is_closed:
            return
        with self._turns.mutex:
            self._is_closed = True
            ending = self._subtract(dict(self._held))
        self._end(ending)

    def __del__(self) -> None:
        if self._held:
            self.close()

    def _check(self) -> None:
        if self._file.is_closed or self._is_closed:
            if self._file.is_inherited:
                raise inherited()
            raise ValueError("these locks are closed: their transaction has ended, or the repository was closed")

    def _request(self, keys: str | Sequence[str], *, may_pass: bool = False) -> Request[int]:
        """A key named twice in a call counts once; two keys that share a slot count twice."""
        distinct = [keys] if isinstance(keys, str) else list(dict.fromkeys(keys))
        slots = self._exclusion.slots_of(distinct)
        counts = dict.fromkeys(slots, 1)
        if len(counts) != len(slots):
            counts = Counter(slots)
        return Request(counts, dict(zip(slots, distinct, strict=True)), may_pass=may_pass)

    def _uncount(self, counts: dict[int, int]) -> None:
        with self._turns.mutex:
            ending = self._subtract(_only(counts, self._held))
        self._end(ending)

    def _subtract(self, counts: dict[int, int]) -> list[int]:
        """Count down; return the slots that this owner no longer holds, which stay reserved until `_end`."""
        ending = []
        for slot, count in counts.items():
            left = self._held[slot] - count
            if left:
                self._held[slot] = left
            else:
                del self._held[slot], self._names[slot]
                ending.append(slot)
        return sorted(ending)

    def _end(self, ending: list[int]) -> None:
        try:
            self._exclusion.unlock(ending)
        finally:
            self._turns.give_back(ending)


def _only(counts: dict[int, int], slots: Container[int]) -> dict[int, int]:
    return {slot: count for slot, count in counts.items() if slot in slots}


# --- exclusion of other processes, without shared memory: by byte ranges of `locks/chunks`, or by a few small files
#
# For processes that can't share memory or have no C extension, and for systems without usable byte locks.


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

"""Turns within one process: what the kinds of chunk-key locks that are written in Python share.

The kernel's locks belong to an open file, not to a transaction, so it can't keep two transactions of one process apart.
A `FallbackOwner` therefore takes slots twice: first among the owners of its process, all at once; then, with the slots
reserved, so that no other thread asks for the same ones, from what excludes other processes (`Exclusion`).

Who waits is served in the order of asking: a request stands back behind an older one that wants one of its slots. Only
owners that hold something already may pass, because the older request may be waiting for just that.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from txstore.errors import LocksLostError, LockTimeoutError, TransactionStateError, shown_keys
from txstore.locks.lock_file import LockFile

_MEMBER_SHIFT = 19
_SLICE = 1.0  # seconds of waiting for another thread, then one looks again, woken or not
_transactions = itertools.count(1)


def inherited() -> TransactionStateError:
    return TransactionStateError(
        "these locks belong to the process that this one was forked from: begin a transaction of this process",
        state="inherited",
    )


def describe_processes(pids: list[int]) -> str:
    """Name, for a message, who may hold what could not be had."""
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
    """What excludes other processes. No two threads ever ask it for the same slot at the same time."""

    file: LockFile

    def slot_of(self, key: str) -> int: ...

    def slots_of(self, keys: Sequence[str]) -> list[int]: ...

    def try_one(self, slot: int) -> bool:
        """Lock one slot, if it is free, and no other owner should have it first."""

    def lock(self, slots: list[int], deadline: float | None) -> None:
        """Lock ascending, distinct slots, or raise `NotInTimeError`. Whatever is raised, `unlock` must follow.

        All processes lock in one order, so that two calls never wait for each other.
        """

    def unlock_one(self, slot: int) -> None: ...

    def unlock(self, slots: list[int]) -> None:
        """Unlock ascending, distinct slots, whether they are locked or not."""

    def lost(self, slots: list[int]) -> list[int] | None:
        """Return those of ascending, distinct slots, once locked, that are so no more; None if all is well.

        An empty list: what has been released since was lost before.
        """


#: What turns are taken with: slots of a lock file, or the keys themselves.
S = TypeVar("S", int, str)


class Request(Generic[S]):
    """The slots that one call wants, and how many of its keys share each. A mere try may pass waiting owners."""

    def __init__(self, slots: dict[S, int], names: dict[S, str], *, may_pass: bool) -> None:
        self.slots: dict[S, int] = slots
        self.names: dict[S, str] = names
        self.may_pass = may_pass


class SlotTurns(Generic[S]):
    """Which slots are reserved or held in this process, and who waits for some. One for each opened lock file.

    `holder` says in messages who else may have them.
    """

    def __init__(self, holder: str = "a transaction of this process") -> None:
        # Reentrant: an owner may be closed by a finalizer, and that may run in the middle of any of these methods.
        self.mutex = threading.RLock()
        self._holder = holder
        self._changed = threading.Condition(self.mutex)
        self._taken: dict[S, Request[S] | None] = {}  # no owner: it must go when its holder is gone
        self._waiting: list[Request[S]] = []  # oldest first

    def try_one(self, slot: S) -> bool:
        """Reserve a free slot, unless somebody waits for anything."""
        with self.mutex:
            if self._waiting or slot in self._taken:
                return False
            self._taken[slot] = None
            return True

    def reserve_locked(self, request: Request[S], held: Mapping[S, object], deadline: float | None) -> list[S]:
        """Reserve what is not held yet of a request, and return it, ascending. If it raises, `cancel` has to follow.

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
            # In slices: a thread that gives something back may be interrupted before it notifies.
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
        """Give back all that is still reserved for a request, which waits no longer. May be called again."""
        with self.mutex:
            if request in self._waiting:
                self._waiting.remove(request)
            self.give_back(self._reserved_for(request, request.slots))

    def leave_to(self, heir: Request[S], request: Request[S]) -> None:
        """Let a request have what is reserved for another, as far as it wants it, too."""
        with self.mutex:
            self._taken.update(dict.fromkeys(self._reserved_for(request, heir.slots), heir))

    # Functions of their own, this and others: if an interrupt comes where a loop goes back, Python 3.12 and 3.13 may
    # not notice that the loop stands in a `try` or `with`.
    def _reserved_for(self, request: Request[S], slots: Iterable[S]) -> list[S]:
        return [slot for slot in slots if self._taken.get(slot) is request]

    def give_back(self, slots: Iterable[S]) -> None:
        for slot in slots:
            del self._taken[slot]
        self.notify()

    def notify(self) -> None:
        """Let waiting threads look again. Called after each change, with or without the mutex."""
        if self._waiting:
            with self.mutex:
                self._changed.notify_all()


class FallbackOwner:
    """The locks of one transaction. Several threads may use it."""

    def __init__(self, exclusion: Exclusion, turns: SlotTurns[int]) -> None:
        self._exclusion = exclusion
        self._file = exclusion.file
        self._turns = turns
        self._held: dict[int, int] = {}  # slot -> how often
        self._names: dict[int, str] = {}  # slot -> a key of it, for messages
        self._is_closed = False
        self._has_ever_held = False
        # As a table's owners have them; here they are not read.
        self.identity = exclusion.file.member << _MEMBER_SHIFT | next(_transactions) << 1
        self.parked = self.identity | 1

    def acquire(
        self, keys: str | Sequence[str], timeout: float | None = None, siblings: Sequence[int] = ()
    ) -> tuple[str, ...]:
        """Lock all of the keys, or none. What this owner holds already is counted: release it as often.

        `timeout` is in seconds; None waits for ever, 0 tries. `siblings` mean nothing here, since nothing stays parked.
        Returns no keys: what a transaction held that died is not known here. Raises `LockTimeoutError`.
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
                    self._held.pop(slot, None)  # it may have got that far: Ctrl-C comes at any time
                self._turns.cancel(request)
            self._uncount(counted)
            if isinstance(error, NotInTimeError):
                missing = [request.names[slot] for slot in reserved if slot in error.slots]
                raise LockTimeoutError(missing, describe_processes(self._file.other_pids())) from None
            raise
        return ()

    def _acquire_one(self, key: str) -> bool:
        """Lock a key without holder or waiting owners, the common case. False: nothing has happened."""
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
        """Give keys up, as often as they were acquired. Held ones are, even if `ValueError` names others."""
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
        """Release a key that is held once. False: nothing has happened."""
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
        """Release keys. Others than the siblings of the transaction may lock them, too, before it ends.

        Nothing is lost by that: what they then commit is a conflict for this transaction.
        """
        self.release(keys)

    def fence(self) -> None:
        """Raise `LocksLostError` unless all that is held still excludes others."""
        self._check()
        with self._turns.mutex:  # so that nothing is released meanwhile
            lost = self._exclusion.lost(sorted(self._held)) if self._has_ever_held else None
        if lost is not None:
            raise LocksLostError([self._names[slot] for slot in lost])

    def holds(self, key: str) -> bool:
        return self._exclusion.slot_of(key) in self._held and not self._file.is_inherited

    def close(self, sweep: bool = False) -> None:
        """Release all that is held. May be called again, by a finalizer, and, without effect, in a forked child."""
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
            raise ValueError("these locks are closed, with their transaction or with the repository")

    def _request(self, keys: str | Sequence[str], *, may_pass: bool = False) -> Request[int]:
        """One that is named twice in a call counts once; two that share a slot count twice."""
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
        """Count down; return the slots that nothing holds any more, which stay reserved until `_end`."""
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

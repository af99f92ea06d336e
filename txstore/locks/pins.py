"""What this process still reads, so that a vacuum leaves it alone.

A process that reads a commit, or bases a transaction on it, holds a shared byte lock of the file `locks/pins`: of the
byte whose number is the seq. One lock a process is enough for each branch, on the lowest. It ends with the process,
however that ends, and needs no write permission. Where there are no such locks nothing is pinned: what a vacuum removes
then is an error to its readers, never a missing key.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from txstore import processes
from txstore.format.names import MAIN
from txstore.locks.kernel_locks import ByteLocks
from txstore.processes import opening

if TYPE_CHECKING:
    from txstore._native import local

#: Bytes of one branch. Seqs above that count as the last one: then more is kept than need be.
SPAN = 1 << 40
_SPANS = 1 << 22

_PAUSE = 0.0001  # seconds
#: Which seq is locked, if an interrupt came between the two that it takes to say so.
_UNSURE: Final = -1


def span_of(branch: str) -> int:
    """Return the byte that stands for seq 0 of a branch. Two branches may have one: then each is kept for both."""
    return 0 if branch == MAIN else (1 + int(branch, 16) % (_SPANS - 1)) * SPAN


class _Held(weakref.ref[object]):
    """One thing that reads a commit."""

    __slots__ = ("seq",)

    seq: int

    # A reference is equal to another of the same thing, and of a thing that is gone only to itself.
    __hash__ = object.__hash__


class Pins:
    """The pins of one process on one branch of a repository. Safe in threads, after a fork, and at interrupts.

    `open_file` returns a descriptor of the file, None if there is none to be had, now or ever.
    """

    #: The thread whose turn it is to settle what is pinned; None: no thread. Not a lock: a finalizer, which may run at
    #: any point, also in the thread that has the turn, may only try, and a thread that is interrupted as it tries to
    #: take a lock does not know whether it has it.
    _turn: object = None

    def __init__(self, open_file: Callable[[], local.Descriptor | None], branch: str = MAIN) -> None:
        self._open_file = open_file
        self._first = span_of(branch)
        self._descriptor: local.Descriptor | None = None
        self._bytes: ByteLocks | None = None
        self._held: set[_Held] = set()
        # By a weak reference, that the two make no cycle: a file is open for as long as there are pins.
        self._release = partial(_release, weakref.ref(self))
        self._is_settled = True  # nothing has gone since, whatever it was
        self._locked: set[int] = set()  # seqs whose bytes may be locked
        self._pinned: int | None = None
        self.is_child = False  # a fork has closed the file, and nothing was pinned here since
        processes.watch(self)

    def hold(self, thing: object, seq: int) -> None:
        """Pin a seq for as long as `thing` lives. Then, not before, look whether the commit is still kept."""
        held = _Held(thing, self._release)
        held.seq = min(seq, SPAN - 1)
        self._held.add(held)
        self._in_turn(self._settle)
        self._settle_what_is_gone()

    def renew(self) -> None:
        """Pin in a forked child what its parent had pinned."""
        if self.is_child:
            self._in_turn(self._settle)
            self.is_child = False

    def lowest(self, below: int) -> int | None:
        """Return the lowest seq below `below` that a living process has pinned, this one included."""
        below = min(below, SPAN)
        found: list[int | None] = []
        self._in_turn(lambda: found.append(self._lowest(below)))
        self._settle_what_is_gone()
        return found[0]

    def is_held_here(self, below: int) -> bool:
        """Tell whether this process itself has pinned a seq below `below`."""
        return any(held.seq < below and held() is not None for held in list(self._held))

    def _lowest(self, below: int) -> int | None:
        self._settle()
        ours = [held.seq for held in list(self._held) if held.seq < below]
        lowest = min(ours, default=None)
        locks = self._locks()
        if locks is not None:
            # The kernel names one of the locks in the way, not the first.
            while (found := locks.one_held_elsewhere(below if lowest is None else lowest)) is not None:
                lowest = found
        return lowest

    def drop(self, thing: object) -> None:
        """Pin nothing for a thing any more, though it lives: an error that somebody keeps may hold it."""
        for held in list(self._held):
            if held() is thing:
                self._held.discard(held)
        self._in_turn(self._settle)
        self._settle_what_is_gone()

    def release(self) -> None:
        """Something that was held is gone."""
        self._is_settled = False
        self._settle_what_is_gone()

    def _settle_what_is_gone(self) -> None:
        # Never waited for: it may be this very thread that has the turn. The thread that has it looks again afterwards.
        while not self._is_settled and self._in_turn(self._settle, wait=False):
            pass

    def _in_turn(self, work: Callable[[], object], *, wait: bool = True) -> bool:
        """Do something while no other thread does; return whether it was done. Without `wait`, try only."""
        me = object()
        try:
            # One step, and it leaves a mark of whose it was.
            while self.__dict__.setdefault("_turn", me) is not me:
                if not wait:
                    return False
                time.sleep(_PAUSE)
            work()
            return True
        finally:
            # An interrupt may come after any call, so there is none before this is done.
            if self._turn is me:
                del self._turn

    def _settle(self) -> None:
        """Forget what is gone, and lock the lowest seq that is left; the caller has the turn."""
        try:
            self._is_settled = True  # first: what goes from now on is looked for again
            for held in list(self._held):
                if held() is None:
                    self._held.discard(held)
            lowest = min([held.seq for held in list(self._held)], default=None)
            if lowest != self._pinned:
                self._pin(lowest)
        except BaseException:
            self._is_settled = False
            raise

    def _pin(self, lowest: int | None) -> None:
        locks = self._locks()
        if locks is None:
            return
        try:
            self._pinned = _UNSURE
            if lowest is not None:
                self._locked.add(lowest)
                if not locks.try_lock(lowest, shared=True):
                    return
        except OSError:
            self._forget_file()  # it was closed behind our back: the next one to be pinned opens it anew
            return
        for seq in self._locked - {lowest}:
            locks.unlock(seq)
            self._locked.discard(seq)
        self._pinned = lowest

    def _forget_file(self) -> None:
        if self._descriptor is not None:
            self._descriptor.detach()  # the number may be another's by now
        self._bytes, self._descriptor, self._pinned = None, None, None
        self._locked.clear()

    def _locks(self) -> ByteLocks | None:
        if self._bytes is None:
            with opening:
                self._descriptor = self._open_file()
                if self._descriptor is not None:
                    self._bytes = ByteLocks(self._descriptor.fileno(), self._first)
        return self._bytes

    def after_fork_in_child(self) -> None:
        self.__dict__.pop("_turn", None)  # it was another thread's, which is not in this process
        self._pinned = None
        self._locked.clear()
        self.is_child = True
        self._bytes = None
        if self._descriptor is not None:
            self._descriptor.close()
            self._descriptor = None


def _release(of: weakref.ref[Pins], _: weakref.ref[object], is_over: Callable[[], bool] = sys.is_finalizing) -> None:
    if is_over():  # the modules are gone, and the kernel lets go of all locks
        return
    if (pins := of()) is not None:
        pins.release()

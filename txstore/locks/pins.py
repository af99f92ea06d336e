"""Pins the commits that this process reads, so that the vacuum keeps them.

A process that reads a commit, or bases a transaction on it, holds a shared byte lock in the file `locks/pins`, on the
byte whose number is the commit's seq. It needs one lock for each branch, on its lowest seq. The kernel frees the lock
when the process ends, however it ends. Pinning needs no write permission. On a system without byte locks nothing is
pinned: a reader of a file that the vacuum has removed gets an error, never a missing key.
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

#: Bytes for each branch. A higher seq counts as the last byte: the vacuum then keeps more than it needs to.
SPAN = 1 << 40
_SPANS = 1 << 22

#: Who holds a pin, in words.
HERE = "this process"

_PAUSE = 0.0001  # seconds
#: The locked seq, in case an interrupt came between the two steps that record it.
_UNSURE: Final = -1


def span_of(branch: str) -> int:
    """Return the byte for seq 0 of a branch. If two branches share a byte, a pin on either keeps commits of both."""
    return 0 if branch == MAIN else (1 + int(branch, 16) % (_SPANS - 1)) * SPAN


class _Held(weakref.ref[object]):
    """A weak reference to an object that reads a commit."""

    __slots__ = ("seq",)

    seq: int

    # Two references to the same living object are equal; a reference to a collected object equals only itself.
    __hash__ = object.__hash__


class Pins:
    """The pins of one process on one branch of a repository. Safe in threads, after a fork, and at interrupts.

    `open_file` returns a descriptor of the file, or None if the file can't be opened, now or ever.
    """

    #: The thread that is settling the pins, or None. Not a lock, for two reasons. A finalizer may run at any point,
    #: also in the thread that is settling, so it may only try. And a thread that is interrupted while it takes a lock
    #: does not know whether it holds the lock.
    _turn: object = None

    def __init__(self, open_file: Callable[[], local.Descriptor | None], branch: str = MAIN) -> None:
        self._open_file = open_file
        self._first = span_of(branch)
        self._descriptor: local.Descriptor | None = None
        self._bytes: ByteLocks | None = None
        self._held: set[_Held] = set()
        # A weak reference, so that the two make no cycle: the file stays open as long as the pins exist.
        self._release = partial(_release, weakref.ref(self))
        self._is_settled = True  # no pinned object was collected since the last settling
        self._locked: set[int] = set()  # seqs whose bytes may be locked
        self._pinned: int | None = None
        self.is_child = False  # a fork closed the file, and this process has pinned nothing since
        processes.watch(self)

    def hold(self, thing: object, seq: int) -> None:
        """Pin a seq as long as `thing` lives. The caller must check after this call that the commit still exists."""
        held = _Held(thing, self._release)
        held.seq = min(seq, SPAN - 1)
        self._held.add(held)
        self._in_turn(self._settle)
        self._settle_what_is_gone()

    def renew(self) -> None:
        """Pin in a forked child the commits that its parent had pinned."""
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

    def holders(self, below: int, *, named: bool = True) -> str:
        """Say which processes have pinned a seq below `below`; of another machine or user only that there is one."""
        if self.is_held_here(below):
            return HERE
        locks = self._locks() if named else None
        found = [] if locks is None else locks.holders(min(below, SPAN))
        return " and ".join(map(processes.told, found)) or "a process"

    def _lowest(self, below: int) -> int | None:
        self._settle()
        ours = [held.seq for held in list(self._held) if held.seq < below]
        lowest = min(ours, default=None)
        locks = self._locks()
        if locks is not None:
            # The kernel names one of the conflicting locks, not the lowest.
            while (found := locks.one_held_elsewhere(below if lowest is None else lowest)) is not None:
                lowest = found
        return lowest

    def drop(self, thing: object) -> None:
        """Stop pinning for an object that still lives: an exception that the caller keeps may refer to it."""
        for held in list(self._held):
            if held() is thing:
                self._held.discard(held)
        self._in_turn(self._settle)
        self._settle_what_is_gone()

    def release(self) -> None:
        """Settle after a pinned object was collected."""
        self._is_settled = False
        self._settle_what_is_gone()

    def _settle_what_is_gone(self) -> None:
        # Never waits: this same thread may be settling already. The thread that settles checks again afterwards.
        while not self._is_settled and self._in_turn(self._settle, wait=False):
            pass

    def _in_turn(self, work: Callable[[], object], *, wait: bool = True) -> bool:
        """Run `work` while no other thread settles; return whether it ran. Without `wait`, only try."""
        me = object()
        try:
            # One atomic step, which also records the thread.
            while self.__dict__.setdefault("_turn", me) is not me:
                if not wait:
                    return False
                time.sleep(_PAUSE)
            work()
            return True
        finally:
            # An interrupt may come after any call, so no call comes before this.
            if self._turn is me:
                del self._turn

    def _settle(self) -> None:
        """Forget collected objects, and lock the lowest seq that is left; REQUIRES: called by `_in_turn`."""
        try:
            self._is_settled = True  # first: an object collected from now on causes another round
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
            self._forget_file()  # other code closed it: the next pin opens it again
            return
        for seq in self._locked - {lowest}:
            locks.unlock(seq)
            self._locked.discard(seq)
        self._pinned = lowest

    def _forget_file(self) -> None:
        if self._descriptor is not None:
            self._descriptor.detach()  # the number may belong to another file now
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
        self.__dict__.pop("_turn", None)  # a thread of the parent had it, and does not exist in this process
        self._pinned = None
        self._locked.clear()
        self.is_child = True
        self._bytes = None
        if self._descriptor is not None:
            self._descriptor.close()
            self._descriptor = None


def _release(of: weakref.ref[Pins], _: weakref.ref[object], is_over: Callable[[], bool] = sys.is_finalizing) -> None:
    if is_over():  # at exit the modules are gone, and the kernel frees all locks
        return
    if (pins := of()) is not None:
        pins.release()

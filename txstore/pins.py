"""What this process still reads, so that a vacuum leaves it alone.

Whoever reads a commit, or bases a transaction on it, holds a shared byte lock of the file `locks/pins`: of the byte
whose number is the seq. One lock a process is enough, on the lowest. It ends with the process, however that ends, and
needs no write permission. Where there are no such locks nothing is pinned: what a vacuum removes then is an error to
its readers, never a missing key.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable

from txstore.numbered_locks import ByteLocks, opening, watch_forks


class _Held(weakref.ref[object]):
    """One thing that reads a commit."""

    __slots__ = ("pins", "seq")

    seq: int
    pins: weakref.ref[Pins]  # that the two make no cycle: a file is open for as long as there are pins

    # A reference is equal to another of the same thing, and of a thing that is gone only to itself.
    __hash__ = object.__hash__


class Pins:
    """The pins of one process on one repository. Safe in threads and after a fork.

    `open_file` returns a descriptor of the file, None if there is none to be had, now or ever.
    """

    def __init__(self, open_file: Callable[[], int | None]) -> None:
        self._open_file = open_file
        self._lock = threading.Lock()
        self._descriptor = -1
        self._bytes: ByteLocks | None = None
        self._held: set[_Held] = set()
        self._gone: list[_Held] = []  # what a finalizer, which may run at any point, has left to `_settle`
        self._seqs: Counter[int] = Counter()
        self._pinned: int | None = None
        self._is_child = False  # a fork has closed the file, and nothing was pinned here since
        watch_forks(self)

    def hold(self, thing: object, seq: int) -> None:
        """Pin a seq for as long as `thing` lives. Then, not before, look whether the commit is still kept."""
        held = _Held(thing, _release)
        held.seq, held.pins = seq, weakref.ref(self)
        with self._lock:
            self._held.add(held)
            self._seqs[seq] += 1
            self._settle()
        self._release_gone()

    def renew(self) -> None:
        """Pin in a forked child what its parent had pinned."""
        if self._is_child:
            with self._lock:
                self._settle()
                self._is_child = False

    def lowest(self, below: int) -> int | None:
        """Return the lowest seq below `below` that a living process has pinned, this one included."""
        with self._lock:
            self._settle()
            ours = [seq for seq in self._seqs if seq < below]
            lowest = min(ours, default=None)
            locks = self._locks()
            if locks is not None:
                # The kernel names one of those that are in the way, not the first.
                while (found := locks.one_held_elsewhere(below if lowest is None else lowest)) is not None:
                    lowest = found
            return lowest

    def release(self, held: _Held) -> None:
        """What was held is gone."""
        self._gone.append(held)
        self._release_gone()

    def _release_gone(self) -> None:
        # Never waited for: it may be this very thread that has the lock. Whoever has it looks again afterwards.
        while self._gone and self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()

    def _settle(self) -> None:
        """Forget what is gone, and lock the lowest seq that is left; the caller has the lock."""
        while self._gone:
            held = self._gone.pop()
            if held in self._held:
                self._held.discard(held)
                self._seqs[held.seq] -= 1
                if not self._seqs[held.seq]:
                    del self._seqs[held.seq]
        lowest = min(self._seqs, default=None)
        if lowest == self._pinned:
            return
        locks = self._locks()
        if locks is None:
            return
        try:
            if lowest is not None and not locks.try_lock(lowest, shared=True):
                return
        except OSError:
            self._forget_file()  # it was closed behind our back: the next one to be pinned opens it anew
            return
        if self._pinned is not None:
            locks.unlock(self._pinned)
        self._pinned = lowest

    def _forget_file(self) -> None:
        self._bytes, self._descriptor, self._pinned = None, -1, None

    def _locks(self) -> ByteLocks | None:
        if self._bytes is None:
            with opening:
                descriptor = self._open_file()
                if descriptor is not None:
                    self._descriptor = descriptor
                    self._bytes = ByteLocks(descriptor, 0)
        return self._bytes

    def abandon(self) -> None:
        self._lock = threading.Lock()
        self._pinned = None
        self._is_child = True
        self._close()

    def _close(self) -> None:
        self._bytes = None
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self._close()


def _release(held: weakref.ref[object]) -> None:
    if isinstance(held, _Held) and (pins := held.pins()) is not None:
        pins.release(held)

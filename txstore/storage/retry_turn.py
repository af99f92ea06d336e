"""Lets the committers of one machine that have met conflicts repeat their work one after the other.

A committer that commits quickly would otherwise win against one that pauses between its tries, again and again. From
its first conflict until its commit, a committer holds a byte of the commit lock's file. The kernel serves those that
wait for the byte in the order in which they came. If its holder dies, the byte is free.

This is advice: the commit lock and the search for conflicts still decide (I2, I5). So nobody waits long for a holder
whose work takes long, and perhaps is in conflict with other work.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from txstore._native import local
from txstore.format import encoding
from txstore.storage import commit_lock

if TYPE_CHECKING:
    from typing import Self

if sys.platform == "linux":
    import fcntl

#: The bytes of branches: one of 2^32 behind the places of the commit queue, by the branch's id.
_FIRST = 1 << 41
#: A committer waits for others as long as so many of its own tries take, but at least and at most so many seconds. Then
#: it tries without the turn, and pauses between its tries.
_PATIENCE_TRIES, _LEAST_PATIENCE, _LONGEST_PATIENCE = 20, 3.0, 30.0
#: Seconds for which a process that has met a conflict takes the turn before its first try, too.
_MET = 60.0


#: When a process has met a conflict on a branch the last time, and how long it waits for others, by the branch's id.
MetConflicts: TypeAlias = dict[str, tuple[float, float]]


class RetryTurn:
    """The turn of one committer at a branch. A context manager."""

    def __init__(self, open_file: Callable[[], local.Descriptor], branch: str, met: MetConflicts) -> None:
        """`met` is of all committers of this process."""
        self._open = open_file
        self._branch = branch
        self._met = met
        self._descriptor: local.Descriptor | None = None

    def __enter__(self) -> Self:
        when, patience = self._met.get(self._branch, (-_MET, 0.0))
        if time.monotonic() - when < _MET:
            self._take(patience)
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            try:
                commit_lock.leave(self._descriptor.fileno())
            finally:
                self._descriptor.close()

    def lost(self, tried: float, until: float) -> bool:
        """Take the turn after a conflict, at the time `until` of `time.monotonic` at the latest.

        `tried`: when the try began. Return whether this committer has the turn.
        """
        now = time.monotonic()
        patience = min(max(_PATIENCE_TRIES * (now - tried), _LEAST_PATIENCE), _LONGEST_PATIENCE)
        self._met[self._branch] = now, patience
        return self._descriptor is not None or self._take(min(patience, until - now))

    def _take(self, timeout: float) -> bool:
        descriptor = self._open()
        place = _FIRST + encoding.crc32c(self._branch.encode())
        if commit_lock.lock_within(descriptor.fileno(), commit_lock.lock_of(fcntl.F_WRLCK, place, 1), timeout):
            self._descriptor = descriptor
            return True
        descriptor.close()
        self._met.pop(self._branch, None)  # the next one does not wait in vain
        return False

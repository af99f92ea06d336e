"""Turns at keys: the threads of one process that write the same key do so one after the other.

Who writes a part of a value reads it, changes it and stages it. Another thread's write must not come in between.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_LOCKS = 16


class KeyTurns:
    """The turns at the keys of one transaction. In a forked child, it needs others."""

    def __init__(self) -> None:
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def at(self, key: str) -> threading.Lock:
        """Return the lock of a key. Keys share locks: who has the turn at one must not wait for the turn at another."""
        return self._locks[hash(key) % _LOCKS]

    @contextmanager
    def at_all(self) -> Iterator[None]:
        """Have the turn at every key."""
        with ExitStack() as stack:
            for lock in self._locks:
                stack.enter_context(lock)
            yield

"""Turns at keys: the threads of one process that write the same key do so one after the other.

A thread that writes a part of a value reads it, changes it and stages it. Another thread's write must not come in
between. To change it may take long, and call anything: it keeps no thread from other keys.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager

_LOCKS = 16


class KeyTurns:
    """The turns at the keys of one transaction. In a forked child, it needs others."""

    def __init__(self) -> None:
        # Keys share locks, which are held for as long as it takes to stage, and no longer.
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._ended: dict[int, threading.Condition] = {}  # of locks at which somebody has waited: they are few
        self._changing: set[str] = set()  # keys whose values are being changed; each is guarded by its lock

    def at(self, key: str) -> threading.Lock:
        """Return the lock of a key. Its holder calls `wait` before anything is staged."""
        return self._locks[hash(key) % _LOCKS]

    def wait(self, key: str) -> None:
        """Wait until no other thread changes the value; the caller holds the lock of the key."""
        while key in self._changing:
            lock = hash(key) % _LOCKS
            ended = self._ended.get(lock)
            if ended is None:
                ended = self._ended[lock] = threading.Condition(self._locks[lock])
            ended.wait()

    @contextmanager
    def changing(self, key: str) -> Iterator[None]:
        """Keep all other threads from writing the key meanwhile.

        The caller holds no lock: what it waits for may stage other keys.
        """
        is_ours = False
        try:
            with self.at(key):
                self.wait(key)
                is_ours = True  # first, since an interrupt may come between any two calls
                self._changing.add(key)
            yield
        finally:
            if is_ours:
                with self.at(key):
                    self._changing.discard(key)
                    ended = self._ended.get(hash(key) % _LOCKS)
                    if ended is not None:
                        ended.notify_all()

    def _one_of(self, keys: Collection[str] | None) -> str | None:
        """Return one of these keys whose value is being changed."""
        if not self._changing:
            return None
        return next(iter(self._changing) if keys is None else filter(self._changing.__contains__, keys), None)

    @contextmanager
    def at_all(self, keys: Collection[str] | None = None) -> Iterator[None]:
        """Have the turn at every key. No other thread changes one of `keys` then, by default any."""
        while True:
            with ExitStack() as stack:
                for lock in self._locks:
                    stack.enter_context(lock)
                changing = self._one_of(keys)
                if changing is None:
                    yield
                    return
            with self.at(changing):
                self.wait(changing)

"""Lets threads of one process write the same key only one after another.

A thread that writes a part of a value reads the value, changes it and stages it. No other thread may write the key in
between. The change may take long, and may call any code. Meanwhile other threads can write other keys.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

_LOCKS = 8


class KeyTurns:
    """The turns at the keys of one transaction. A forked child needs a new object."""

    def __init__(self, *, is_slow: bool) -> None:
        """`is_slow`: to stage a value may take as long as an upload, so that other keys should not wait for it."""
        self.is_slow = is_slow
        # Several keys share a lock. A thread holds it only while it stages.
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._ended: dict[int, threading.Condition] = {}  # only for the few locks at which a thread has waited
        self._changing: set[str] = set()  # keys whose values a thread is changing; each is guarded by its lock

    def at(self, key: str) -> threading.Lock:
        """Return the lock of a key. Its holder calls `wait` before it stages anything."""
        return self._locks[hash(key) % _LOCKS]

    def wait(self, key: str) -> None:
        """Wait until no other thread changes the key's value. The caller holds the lock of the key."""
        while key in self._changing:
            lock = hash(key) % _LOCKS
            ended = self._ended.get(lock)
            if ended is None:
                ended = self._ended[lock] = threading.Condition(self._locks[lock])
            ended.wait()

    @contextmanager
    def changing(self, key: str) -> Iterator[None]:
        """Keep all other threads from writing the key during a `with` block.

        The caller holds no lock: a thread that it waits for may stage other keys.
        """
        is_ours = False
        try:
            with self.at(key):
                self.wait(key)
                is_ours = True  # set this first: an interrupt may come between any two calls
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
        """Return one of these keys whose value a thread is changing."""
        if not self._changing:
            return None
        return next(iter(self._changing) if keys is None else filter(self._changing.__contains__, keys), None)

    @contextmanager
    def at_all(self, keys: Collection[str] | None = None) -> Iterator[None]:
        """Take the turn at every key. During the `with` block no other thread changes one of `keys`, by default any."""
        while True:
            first, second, third, fourth, fifth, sixth, seventh, eighth = self._locks
            # Not in a loop: an interrupt could come when a lock is taken and not yet noted.
            with first, second, third, fourth, fifth, sixth, seventh, eighth:
                changing = self._one_of(keys)
                if changing is None:
                    yield
                    return
            with self.at(changing):
                self.wait(changing)

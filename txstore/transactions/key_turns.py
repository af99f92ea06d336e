"""Turns at keys: the threads of one process that write the same key do so one after the other.

Who writes a part of a value reads it, changes it and stages it. Another thread's write must not come in between.
"""

from __future__ import annotations

import threading

from txstore import processes

_locks = [processes.new_lock() for _ in range(64)]


def turn_at(key: str) -> threading.Lock:
    """Return the lock of a key. Keys share locks: who has the turn at one must not wait for the turn at another."""
    return _locks[hash(key) % len(_locks)]

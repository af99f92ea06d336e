"""What has to happen around a fork, so that what was made before it works in both processes afterwards.

A forked child has only the thread that forked: locks that other threads held stay held for ever, and it shares the open
file descriptions of its parent, whose kernel locks would outlive the parent in it.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol, TypeVar

T = TypeVar("T")

_locks: weakref.WeakSet[threading.Lock] = weakref.WeakSet()
_objects: weakref.WeakSet[Forked] = weakref.WeakSet()


class Forked(Protocol):
    """Something that has to know of a fork."""

    def before_fork(self) -> None:
        """Called in the parent. What it raises is printed and ignored."""

    def after_fork_in_child(self) -> None:
        """Called in the child, which may do little: no locks, no I/O but closing descriptors."""


def new_lock() -> threading.Lock:
    """Return a lock that is free in a forked child, whoever held it in the parent."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def new_rlock() -> threading.RLock:  # type: ignore[valid-type, unused-ignore]
    lock = threading.RLock()
    _locks.add(lock)  # type: ignore[arg-type, unused-ignore]
    return lock


def watch(thing: Forked) -> None:
    """Tell `thing` of every fork for as long as it lives."""
    _objects.add(thing)


def all_of(things: weakref.WeakSet[T]) -> list[T]:
    """Return what is in a set that other threads add to."""
    while True:
        try:
            return list(things)
        except RuntimeError:  # another thread has just made one
            continue


def _before() -> None:
    for thing in all_of(_objects):
        thing.before_fork()


def _after_in_child() -> None:
    for lock in all_of(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]
    for thing in all_of(_objects):
        thing.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=_after_in_child)

"""What has to happen around a fork, and at the end of a process.

What was made before a fork has to work in both processes afterwards. A forked child has only the thread that forked:
locks that other threads held stay held for ever, and it shares the open file descriptions of its parent, whose kernel
locks would outlive the parent in it.
"""

from __future__ import annotations

import atexit
import multiprocessing.process
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")

# --- around a fork


class Forked(Protocol):
    """Something that has to know in a forked child that it is in one."""

    def after_fork_in_child(self) -> None:
        """Called in the child, which may do little: no locks, no I/O but closing descriptors."""


class Forking(Protocol):
    """Something that has to know that a fork is to come."""

    def before_fork(self) -> None:
        """Called in the parent. What it raises is printed and ignored."""


#: To be held while something is opened or closed, so that no fork sees half of it.
opening = threading.RLock()


class _Living(Generic[T]):
    """Things as long as they live: a `WeakSet` in which each costs no call of Python. A transaction has a dozen."""

    def __init__(self) -> None:
        self._references: set[weakref.ref[T]] = set()

    def add(self, thing: T) -> None:
        self._references.add(weakref.ref(thing, self._references.discard))

    def __iter__(self) -> Iterator[T]:
        return (thing for reference in list(self._references) if (thing := reference()) is not None)


_locks: _Living[threading.Lock] = _Living()
_forking: _Living[Forking] = _Living()
_forked: _Living[Forked] = _Living()
_functions: list[Callable[[], None]] = []


def new_lock() -> threading.Lock:
    """Return a lock that is free in a forked child, even if a thread of the parent held it."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def new_rlock() -> threading.RLock:  # type: ignore[valid-type, unused-ignore]
    lock = threading.RLock()
    _locks.add(lock)  # type: ignore[arg-type, unused-ignore]
    return lock


def watch(thing: Forked) -> None:
    """Tell `thing` in each forked child, for as long as it lives."""
    _forked.add(thing)


def watch_before(thing: Forking) -> None:
    """Tell `thing` before each fork, for as long as it lives."""
    _forking.add(thing)


def in_child(function: Callable[[], None]) -> Callable[[], None]:
    """Call a function of a module in each forked child."""
    _functions.append(function)
    return function


def all_of(things: Iterable[T]) -> list[T]:
    """Return what is in a set that other threads add to."""
    while True:
        try:
            return list(things)
        except RuntimeError:  # another thread has just made one
            continue


def _before() -> None:
    opening.acquire()
    for thing in all_of(_forking):
        thing.before_fork()


def _after_in_child() -> None:
    for lock in all_of(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]
    for thing in all_of(_forked):
        thing.after_fork_in_child()
    for function in _functions:
        function()
    opening.release()


os.register_at_fork(before=_before, after_in_parent=opening.release, after_in_child=_after_in_child)


# --- at the end of a process

_registered_in: dict[Callable[[], None], int] = {}
_bootstrap: dict[int, FrameType | None] = {}  # of this process


def at_exit(function: Callable[[], None]) -> None:
    """Call a function, once, at the end of this process, if it ends in an orderly way."""
    if _registered_in.get(function) == os.getpid():
        return
    _registered_in[function] = os.getpid()
    _bootstrap[os.getpid()] = _find_bootstrap()
    atexit.register(function)
    if "multiprocessing.util" in sys.modules:  # before Python 3.13, its processes end without `atexit`
        from multiprocessing.util import Finalize

        Finalize(None, function, exitpriority=0)


def was_broken_off() -> bool:
    """Tell, when the process ends, whether it was an exception, or an exit with an error, that ended its work.

    That a script ends by `sys.exit` with an error can't be told.
    """
    bootstrap = _bootstrap.get(os.getpid())
    if bootstrap is not None:
        return bootstrap.f_locals.get("exitcode") != 0
    ending = sys.exc_info()[1]
    if ending is None and not hasattr(sys, "ps1"):  # else it says what was raised at the prompt
        ending = getattr(sys, "last_value", None)
    return ending is not None and not (isinstance(ending, SystemExit) and not ending.code)


def _find_bootstrap() -> FrameType | None:
    """Return the frame that runs a process of `multiprocessing`, which says nowhere else how the work has ended."""
    code = getattr(getattr(multiprocessing.process.BaseProcess, "_bootstrap", None), "__code__", None)
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame

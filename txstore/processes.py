"""Runs functions around a fork and at the end of a process.

Objects made before a fork have to work in both processes after it. A forked child has only the thread that forked, so
locks that other threads held stay locked forever. It also shares its parent's open file descriptions: kernel locks on
them would stay in the child after the parent has died.
"""

from __future__ import annotations

import atexit
import multiprocessing.process
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from types import FrameType
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")

# --- around a fork


class Forked(Protocol):
    """An object that needs a call in each forked child."""

    def after_fork_in_child(self) -> None:
        """Called in the child. It may take no locks, and do no I/O except closing descriptors."""


class Forking(Protocol):
    """An object that needs a call before each fork."""

    def before_fork(self) -> None:
        """Called in the parent. Python prints and ignores an exception from it."""


#: Hold this lock while you open or close a file, so that no fork happens in the middle.
opening = threading.RLock()


class _Living(Generic[T]):
    """A set of weak references. Unlike `WeakSet`, it runs no Python code per object; a transaction has a dozen."""

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


def this_thread() -> tuple[int, int]:
    """Return what names this thread among those of all processes of this machine."""
    return os.getpid(), threading.get_ident()


def watch(thing: Forked) -> None:
    """Call `thing.after_fork_in_child` in each forked child, as long as `thing` lives."""
    _forked.add(thing)


def watch_before(thing: Forking) -> None:
    """Call `thing.before_fork` before each fork, as long as `thing` lives."""
    _forking.add(thing)


def in_child(function: Callable[[], None]) -> Callable[[], None]:
    """Call a module's function in each forked child. For use as a decorator."""
    _functions.append(function)
    return function


def all_of(things: Iterable[T]) -> list[T]:
    """Return the elements of a set to which other threads may add."""
    while True:
        try:
            return list(things)
        except RuntimeError:  # another thread added an element during the iteration
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
    """Call a function once at the end of this process, unless the process is killed."""
    if _registered_in.get(function) == os.getpid():
        return
    _registered_in[function] = os.getpid()
    _bootstrap[os.getpid()] = _find_bootstrap()
    atexit.register(function)
    if "multiprocessing.util" in sys.modules:  # before Python 3.13, processes of multiprocessing skip `atexit`
        from multiprocessing.util import Finalize

        Finalize(None, function, exitpriority=0)


def was_broken_off() -> bool:
    """Tell, at the end of the process, whether an exception, or an exit with an error, ended its work.

    This can't detect that a script ended by `sys.exit` with an error.
    """
    bootstrap = _bootstrap.get(os.getpid())
    if bootstrap is not None:
        return bootstrap.f_locals.get("exitcode") != 0
    ending = sys.exc_info()[1]
    if ending is None and not hasattr(sys, "ps1"):  # at a prompt, `last_value` is any earlier exception
        ending = getattr(sys, "last_value", None)
    return ending is not None and not (isinstance(ending, SystemExit) and not ending.code)


def _find_bootstrap() -> FrameType | None:
    """Return the frame that runs a `multiprocessing` process. Only this frame knows how the work ended."""
    code = getattr(getattr(multiprocessing.process.BaseProcess, "_bootstrap", None), "__code__", None)
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame


def told(process: int) -> str:
    """Say which process of this machine has an id: its command, and since when it runs. Linux says that in `/proc`."""
    try:
        with open(f"/proc/{process}/cmdline", encoding="utf-8", errors="replace") as file:
            command = " ".join(file.read().split("\0")).strip()
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])  # since the machine was started
    except (OSError, ValueError, IndexError):
        return f"process {process}"
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    since = datetime.fromtimestamp(time.time() - age).astimezone().isoformat(" ", "seconds")
    return f"process {process} ({command if len(command) <= 80 else command[:77] + '...'}, since {since})"

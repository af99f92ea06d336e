"""Locks with numbers that vanish with the process that holds them: bytes of a file on Linux, small files elsewhere.

Both belong to an open file, not to a process or thread. Threads that use one object do not exclude each other; closing
the file is the end of its locks; a forked child has them in common with its parent, until it closes what it inherited.
So a child closes what it inherited, and never unlocks it: that would free what is the parent's.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable
from typing import Protocol

import filelock

from txstore import processes
from txstore.processes import opening
from txstore.storage.tree import Tree
from txstore.storage.turns import try_file

_FIRST_PAUSE = 0.0002  # seconds
_LAST_PAUSE = 0.01
_FLOCK = struct.Struct("hhqqi4x")  # struct flock: kind, where offsets count from, offset, length, process
_flock = _FLOCK.pack


def poll(attempt: Callable[[], bool], deadline: float | None) -> bool:
    """Try until it succeeds or the deadline (of `time.monotonic`; None: never) has passed, at least twice."""
    pause = _FIRST_PAUSE
    while True:
        remaining = pause if deadline is None else deadline - time.monotonic()
        time.sleep(max(0.0, min(pause, remaining)))
        if attempt():
            return True
        if remaining <= 0:
            return False
        pause = min(pause * 1.5, _LAST_PAUSE)


class NumberedLocks(Protocol):
    def try_lock(self, number: int) -> bool:
        """Take a lock unless another open file has it. One that is held already is no matter."""

    def unlock(self, number: int) -> None: ...

    def are_held_elsewhere(self, first: int, count: int) -> bool: ...


class ByteLocks:
    """Bytes of an open file, from an offset on, which may be far behind its end: OFD locks. Any number in one call."""

    def __init__(self, descriptor: int, offset: int) -> None:
        self._descriptor = descriptor
        self._offset = offset

    def try_lock(self, number: int, count: int = 1, *, shared: bool = False) -> bool:
        """All or none of them. Raises `OSError` if the file system has no such locks."""
        kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _flock(kind, 0, self._offset + number, count, 0))
        except (BlockingIOError, PermissionError):  # EAGAIN, EACCES
            return False
        return True

    def unlock(self, number: int, count: int = 1) -> None:
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, 0, self._offset + number, count, 0))
        except OSError as error:
            if error.errno != errno.EBADF:  # closed behind our back: then there are no locks left
                raise

    def are_held_elsewhere(self, first: int, count: int) -> bool:
        """Also if they are shared there."""
        question = _flock(fcntl.F_WRLCK, 0, self._offset + first, count, 0)
        answer = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, question)
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def one_held_elsewhere(self, below: int) -> int | None:
        """Return a number below `below` that is locked, perhaps shared, by another open file, if there is any."""
        if below <= 0:
            return None
        question = _flock(fcntl.F_WRLCK, 0, self._offset, below, 0)
        answer = _FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, question))
        return None if answer[0] == fcntl.F_UNLCK else max(0, int(answer[2]) - self._offset)


class LockFiles:
    """One small file for each number, made when it is first used and then kept."""

    def __init__(self, tree: Tree, prefix: str, mode: int) -> None:
        self._tree = tree
        self._prefix = prefix + "-"
        self._mode = mode
        self._held: dict[int, int] = {}  # number -> descriptor
        processes.watch(self)

    def try_lock(self, number: int) -> bool:
        if number in self._held:
            return True
        with opening:
            descriptor = self._open(number)
            locked = False
            try:
                locked = try_file(descriptor)
                if locked:
                    self._held[number] = descriptor
            finally:
                if not locked:
                    os.close(descriptor)
        return locked

    def unlock(self, number: int) -> None:
        """Nothing happens if it is not locked."""
        with opening:
            descriptor = self._held.pop(number, None)
            if descriptor is not None:
                try:
                    filelock.unlock_descriptor(descriptor)  # a child that has just been forked may still have it open
                finally:
                    os.close(descriptor)

    def are_held_elsewhere(self, first: int, count: int) -> bool:
        names = [name for name in self._tree.names("") if name.startswith(self._prefix)]
        there = [name.removeprefix(self._prefix) for name in names]
        numbers = {int(number) for number in there if number.isascii() and number.isdigit()} - self._held.keys()
        return any(not self._is_free(number) for number in numbers if first <= number < first + count)

    def close(self) -> None:
        for number in list(self._held):
            self.unlock(number)

    def after_fork_in_child(self) -> None:
        held, self._held = self._held, {}
        for descriptor in held.values():
            os.close(descriptor)

    def is_intact(self, number: int) -> bool:
        """Tell whether a lock that is held still is, and still on the file that others would open."""
        try:
            ours, theirs = os.fstat(self._held[number]), self._tree.status(self._name(number))
        except (KeyError, OSError):
            return False
        return os.path.samestat(ours, theirs)

    def _is_free(self, number: int) -> bool:
        free = self.try_lock(number)
        self.unlock(number)
        return free

    def _name(self, number: int) -> str:
        return f"{self._prefix}{number:02}"

    def _open(self, number: int) -> int:
        name = self._name(number)
        try:
            return self._tree.open(name, os.O_RDWR).detach()
        except FileNotFoundError:
            descriptor = self._tree.open(name, os.O_RDWR | os.O_CREAT, self._mode).detach()
            set_mode(descriptor, self._mode)
            return descriptor


def set_mode(descriptor: int, mode: int) -> None:
    """Give a new file its permissions, whatever the umask; leave it as it is where it was made by another user."""
    if os.fstat(descriptor).st_uid == os.geteuid():
        os.fchmod(descriptor, mode)

"""Numbered locks that the kernel frees when their process ends: bytes of a file on Linux, small files elsewhere.

Both belong to an open file, not to a process or thread. Threads that use one object do not exclude each other. Closing
the file frees its locks. A forked child shares the locks with its parent until it closes the files that it inherited.
So a child closes these files and never unlocks them: that would free the parent's locks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import struct
import time
from collections.abc import Callable

import filelock

from txstore import processes
from txstore.processes import opening
from txstore.storage.commit_lock import try_file
from txstore.storage.tree import Tree

_FIRST_PAUSE = 0.0002  # seconds
_LAST_PAUSE = 0.01
_FLOCK = struct.Struct("hhqqi4x")  # struct flock: kind, where offsets count from, offset, length, process
_flock = _FLOCK.pack


def poll(attempt: Callable[[], bool], deadline: float | None) -> bool:
    """Call `attempt` at least twice, until it succeeds or the deadline (of `time.monotonic`; None: never) passes."""
    pause = _FIRST_PAUSE
    while True:
        remaining = pause if deadline is None else deadline - time.monotonic()
        time.sleep(max(0.0, min(pause, remaining)))
        if attempt():
            return True
        if remaining <= 0:
            return False
        pause = min(pause * 1.5, _LAST_PAUSE)


class ByteLocks:
    """OFD locks on bytes of an open file, from an offset that may lie far beyond its end. One call locks any number."""

    def __init__(self, descriptor: int, offset: int) -> None:
        self._descriptor = descriptor
        self._offset = offset

    def try_lock(self, number: int, count: int = 1, *, shared: bool = False) -> bool:
        """Lock all of the bytes or none. What is held already is taken again, without effect.

        Raises `OSError` if the file system has no OFD locks.
        """
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
            if error.errno != errno.EBADF:  # other code closed the descriptor: then no locks are left
                raise

    def are_held_elsewhere(self, first: int, count: int) -> bool:
        """Tell whether another open file locks any of the bytes, exclusively or shared."""
        question = _flock(fcntl.F_WRLCK, 0, self._offset + first, count, 0)
        answer = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, question)
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def one_held_elsewhere(self, below: int) -> int | None:
        """Return a number below `below` that another open file locks, perhaps shared; None if it locks none."""
        if below <= 0:
            return None
        question = _flock(fcntl.F_WRLCK, 0, self._offset, below, 0)
        answer = _FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, question))
        return None if answer[0] == fcntl.F_UNLCK else max(0, int(answer[2]) - self._offset)

    def holders(self, below: int) -> list[int]:
        """Return the ids of this user's processes here, this one included, that lock a number below `below`.

        An OFD lock has no process id, but Linux lists it with its descriptor in `/proc`. Elsewhere none is known.
        """
        found = set()
        for path in glob.iglob("/proc/[0-9]*/fd/*"):
            with contextlib.suppress(OSError, ValueError):  # another user's, or it is closed now
                with open(path.replace("/fd/", "/fdinfo/"), encoding="utf-8") as file:
                    locks = [int(line.split()[-2]) - self._offset for line in file if line.startswith("lock:")]
                is_one = any(0 <= lock < below for lock in locks)
                if is_one and os.path.samestat(os.stat(path), os.fstat(self._descriptor)):
                    found.add(int(path.split("/")[2]))
        return sorted(found)


class LockFiles:
    """One small file for each number, created on first use and then kept."""

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
        """Does nothing if the number is not locked."""
        with opening:
            descriptor = self._held.pop(number, None)
            if descriptor is not None:
                try:
                    filelock.unlock_descriptor(descriptor)  # a child forked just now may still have it open
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
        """Tell whether this object still holds a lock, on the file that other processes would open."""
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


NumberedLocks = ByteLocks | LockFiles


def set_mode(descriptor: int, mode: int) -> None:
    """Give a new file its permissions, under any umask; leave a file that another user created unchanged."""
    if os.fstat(descriptor).st_uid == os.geteuid():
        os.fchmod(descriptor, mode)

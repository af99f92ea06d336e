"""Tells which processes are alive on a remote storage: each renews a small object, its lease.

They replace kernel locks on an object store. A lease is an object beside the object that it protects. Its holder renews
it every `BEAT` seconds. If a lease is not renewed for `TERM` seconds by the server's clock (I10), other processes
consider its holder dead, and one of them may take its place. They delete the protected object after `KEPT` seconds at
the earliest. A holder that could not renew its lease for half of that time gets an error: the lease is lost. A lease
also records that a commit may refer to the protected object: then only a process that checks every kept commit may
delete the object.
"""

from __future__ import annotations

import contextlib
import logging
import os
import posixpath
import threading
import time
from collections.abc import Collection, Iterable

from txstore import processes
from txstore.format import names
from txstore.storage.objects.interface import ObjectStore

_log = logging.getLogger(__name__)

#: Seconds between two renewals of a lease; after which it is over without one; after which what it is about may go.
BEAT, TERM, KEPT = 3.0, 30.0, 3600.0

_SUFFIX = names.LEASE
_PLAIN, _COMMITTING = 32, b" committing"  # the length of a lease; and what stands behind it then


def is_plain(length: int) -> bool:
    """Tell from the length of a lease whether no commit refers yet to what it is about."""
    return length == _PLAIN


class Leases:
    """The leases of one process on the objects of one repository. Safe in threads; a forked child has none."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._held: set[Lease] = set()
        self._lock = processes.new_lock()
        self._is_beating = False
        processes.watch(self)

    def after_fork_in_child(self) -> None:
        self._held, self._is_beating = set(), False

    def take(self, path: str) -> Lease:
        """Hold a path. Raises `BlockingIOError` if a living process does, `OSError`."""
        lease = Lease(self, self._objects, path + _SUFFIX)
        lease.take()
        with self._lock:
            self._held.add(lease)
            begins = not self._is_beating
            self._is_beating = True
        if begins:
            try:
                threading.Thread(target=self._beat, name="txstore leases", daemon=True).start()
            except RuntimeError:  # the interpreter is ending: the lease will do for what is left to be done
                self._is_beating = False
        return lease

    def is_held(self, path: str) -> bool:
        """Tell whether a living process holds a path: whether its lease was renewed within the term."""
        age = self.age(path)
        return age is not None and age < TERM

    def age(self, path: str) -> float | None:
        """Return how many seconds ago the lease on a path was renewed; None if there is none."""
        renewed = self._renewals([path]).get(path)
        return None if renewed is None else max(0.0, self._objects.now() - renewed)

    def holds(self, leased: str) -> bool:
        """Tell whether this process holds a path."""
        with self._lock:
            return any(lease.leased == leased for lease in self._held)

    def may_go(self, path: str, leased: str) -> bool:
        """Tell whether an object is to be taken for abandoned: it and the lease on it were written long ago.

        Never what this process holds, nor where the server does not say when it was written.
        """
        if self.holds(leased):
            return False
        written = self._written([path, leased + _SUFFIX]).values()
        return bool(written) and self._objects.now() - max(written) > KEPT

    def are_held(self, paths: Collection[str]) -> set[str]:
        """Return which of some paths living processes hold: wait until each lease is renewed or has expired.

        The lease of a process that was killed a moment ago looks like that of a living one.
        """
        with self._lock:
            alive = {lease.leased for lease in self._held}.intersection(paths)
        left = self._renewals(set(paths) - alive)
        if not left:
            return alive
        began, now = clock(), self._objects.now()
        left = {path: when for path, when in left.items() if now - when < TERM}
        while left:
            time.sleep(BEAT / 3)
            since, found = now + clock() - began, self._renewals(left)
            alive |= {path for path, when in left.items() if found.get(path, when) != when}
            # What is no longer there was let go.
            left = {path: when for path, when in left.items() if found.get(path) == when and since - when < TERM}
        return alive

    def _renewals(self, paths: Collection[str]) -> dict[str, float]:
        """Return when the leases on some paths were renewed, by the server's clock."""
        written = self._written(path + _SUFFIX for path in paths)
        return {path.removesuffix(_SUFFIX): when for path, when in written.items()}

    def _written(self, paths: Iterable[str]) -> dict[str, float]:
        """Return when objects were written, of those that exist and of which the server says it."""
        wanted: dict[str, set[str]] = {}
        for path in paths:
            directory, name = posixpath.split(path)
            wanted.setdefault(directory, set()).add(name)
        return {
            posixpath.join(directory, each.name): each.modified
            for directory, names_there in wanted.items()
            for each in self._objects.list(directory)
            if each.name in names_there and each.modified is not None
        }

    def forget(self, lease: Lease) -> None:
        with self._lock:
            self._held.discard(lease)

    def delete(self, path: str) -> None:
        """Delete the lease on a path that no process holds any more."""
        self._objects.delete([path + _SUFFIX])

    def _beat(self) -> None:
        while True:
            threading.main_thread().join(BEAT)
            with self._lock:
                held = list(self._held)
                if not held or not threading.main_thread().is_alive():
                    self._is_beating = False
                    return
            # What fails is tried again, and `check` tells when it was too long ago. Nothing may end this thread.
            for lease in held:
                try:
                    lease.renew()
                except (OSError, RuntimeError, ValueError) as error:
                    _log.warning("%s: lease not renewed: %s", lease.leased, error)
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                self._drop_what_ended(held)

    def _drop_what_ended(self, held: Collection[Lease]) -> None:
        """Let go of what others have deleted: they have ended a transaction that this process had joined."""
        for directory in {posixpath.dirname(path) for lease in held for path in lease.objects}:
            there = {posixpath.join(directory, found.name) for found in self._objects.list(directory)}
            for lease in held:
                if lease.objects and posixpath.dirname(lease.objects[0]) == directory:
                    lease.misses = 0 if there.intersection(lease.objects) else lease.misses + 1
                    if lease.misses > 1:  # once may be a list that was made while it got another name
                        lease.is_lost = True
                        lease.close()


class Lease:
    """One path that this process holds."""

    def __init__(self, leases: Leases, objects: ObjectStore, path: str) -> None:
        self._leases = leases
        self._objects = objects
        self._path = path
        self.leased = path.removesuffix(_SUFFIX)
        self.objects: tuple[str, ...] = ()  # which it is about; one of them is there for as long as it is needed
        self.misses = 0  # how often none of them was
        self.is_lost = False
        self._has_lapsed = False
        self._content = os.urandom(16).hex().encode()
        self._renewed = 0.0
        self._closing = processes.new_lock()
        self._is_closed = False

    def take(self) -> None:
        self._renewed = clock()
        try:
            self._objects.create(self._path, [self._content])
            return
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                if self._objects.get(self._path) == self._content:
                    return  # the answer to the first request was lost
        if self._leases.is_held(self.leased):
            raise BlockingIOError(f"{self._path}: another process holds this")
        # Of two that find it over, the first to create it anew has it; the second has deleted an old one, or this one.
        self._objects.delete([self._path])
        try:
            self._objects.create(self._path, [self._content])
        except FileExistsError as error:
            raise BlockingIOError(f"{self._path}: another process has just taken this") from error
        time.sleep(min(BEAT, 1.0))
        try:
            is_ours = self._objects.get(self._path) == self._content
        except FileNotFoundError:
            is_ours = False
        if not is_ours:
            raise BlockingIOError(f"{self._path}: another process has just taken this")
        _log.info("%s: lease of a dead process taken over", self._path)

    def renew(self) -> None:
        with self._closing:
            began = clock()
            self._has_lapsed |= began - self._renewed > TERM / 2
            if not self._is_closed and began - self._renewed <= KEPT / 2:
                self._objects.put(self._path, [self._content])
                self._renewed = began

    def say_committing(self) -> None:
        """Say that a commit may refer to what was stored. Raises `OSError`."""
        with self._closing:
            if self._is_closed or self._content.endswith(_COMMITTING):
                return
            self.check()
            began, content = clock(), self._content + _COMMITTING
            self._objects.put(self._path, [content])
            self._content, self._renewed = content, began

    def check(self) -> None:
        """Raise `OSError` if the lease was not renewed for so long that others may delete what it is about."""
        if self.is_lost and self.leased.endswith(".0"):  # else it ended, and who stages into it is told so
            raise OSError(f"{self.leased}: what was staged was taken for abandoned, and deleted: begin anew")
        if clock() - self._renewed > KEPT / 2:
            raise OSError(
                f"{self._path} could not be renewed for {KEPT / 2:.0f} s, so what was staged may be gone: begin anew"
            )

    def check_term(self) -> None:
        """Raise `OSError` if another process may have taken the place of this one, now or before."""
        if self._has_lapsed or clock() - self._renewed > TERM / 2:
            raise OSError(f"{self._path} was not renewed for {TERM / 2:.0f} s: another process may have taken over")

    def close(self, *, deletes: bool = True) -> None:
        """Let go of it. Without `deletes`, the caller deletes it together with what it is about."""
        self._leases.forget(self)
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                if not deletes:
                    return
                with contextlib.suppress(OSError):  # then it ends by itself
                    self._objects.delete([self._path])


def clock() -> float:
    """Return seconds by a clock that also runs while the machine sleeps, if the system has one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()

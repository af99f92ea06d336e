"""Chooses the kind of a repository's chunk-key locks when a process first uses them.

    "table"     words of a file that all processes map (`_native/_locktable.c`), at memory speed: local file systems
    "ranges"    byte locks of the same file (`exclusion.py`): network file systems, and where the C was not built
    "files"     a few locked files (`exclusion.py`): systems without such byte locks

A process uses the kind that the living members of the lock file use. If it can't, it has no locks. A process chooses
the kind anew only if the file has no living member. So two kinds of lock are never in use at the same time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from txstore import processes
from txstore._native import locktable
from txstore.errors import LocksLostError, LocksUnavailableError, LockTimeoutError, WrongFileTypeError
from txstore.locks.fallback_owner import (
    Exclusion,
    FallbackOwner,
    RangeLocks,
    SlotTurns,
    StripeLocks,
    describe_processes,
    inherited,
)
from txstore.locks.lock_file import NAME, KindInUseError, LockFile, recorded_kind
from txstore.storage.file_systems import file_system_type, is_of_one_machine
from txstore.storage.tree import Tree, of_writers

_UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
#: Errors of the system or the C that mean that this file can't be used; a full disk, for instance, is not one.
_UNUSABLE = (
    errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV, errno.EUSERS, errno.EXDEV, errno.EPROTO,
    errno.ETIMEDOUT, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO,
)  # fmt: skip


_ATTEMPTS = 10
_Result = TypeVar("_Result")


#: The owner bits of a table word (`_native/lock_words.h`), and the member bits among them.
_OWNER_BITS, _MEMBER_SHIFT = 30, 19


def is_parked(number: int) -> bool:
    """Tell whether this is a possible value of `Owner.parked`: the number comes from another process."""
    return number % 2 == 1 and 0 < number >> _MEMBER_SHIFT < 1 << (_OWNER_BITS - _MEMBER_SHIFT)


class Owner(Protocol):
    """The locks of one transaction. Several threads may use it; a forked child can't."""

    @property
    def identity(self) -> int:
        """A number that is unique among living transactions."""

    @property
    def parked(self) -> int:
        """The number that owners of other processes pass as `siblings` or `park(to=...)` to name this one."""

    def acquire(
        self, keys: str | Sequence[str], timeout: float | None = None, siblings: Sequence[int] = ()
    ) -> Sequence[str]:
        """Lock all of the keys, or none; return the keys whose last holder is known to have died with them.

        A key that this owner holds already is granted again and counted: release it once per acquire. `timeout` is in
        seconds: None waits for ever, 0 only tries. The owner may take keys that one of the `siblings` parked.
        Raises `LockTimeoutError`, and `TransactionStateError` in a forked child.
        """

    def release(self, keys: str | Sequence[str]) -> None:
        """Release keys; waiting owners may take them."""

    def park(self, keys: str | Sequence[str], to: int | None = None) -> None:
        """Release keys, but only to the siblings of this transaction (see `acquire`) or, with `to`, to that sibling.

        Kinds other than "table" release them to all: if another transaction then writes them, the commit finds a
        conflict.
        """

    def fence(self) -> None:
        """Raise `LocksLostError` unless this owner still holds every lock, in the file that other processes use."""

    def holds(self, key: str, /) -> bool:
        """Tell whether this owner locks a key, itself or because the key shares its slot with a locked one."""

    def close(self, sweep: bool = False) -> None:
        """Release everything, parked keys too; `sweep`: also the keys that siblings parked for this owner."""


class ChunkLocks:
    """The chunk-key locks of one repository, for one process. Safe in threads; a forked child starts afresh by itself.

    `directory` is the repository's `locks/`, an existing path without links (`tree`); `url` is for messages. The lock
    file is opened on first use. `kind` is the preferred kind, used if no living process has chosen one; by default the
    kind that suits the file system.
    """

    def __init__(self, directory: str, url: str, *, kind: str | None = None) -> None:
        self._tree = Tree(directory)
        self._path = self._tree.path(NAME)
        self._url = url
        self._preferred = kind
        self._mutex = threading.RLock()
        self._current: _Kind | None = None
        processes.watch(self)

    @property
    def kind(self) -> str:
        """The kind in use. Raises `LocksUnavailableError`, as do the methods below."""
        return self._use(lambda kind: kind.name)

    def owner(self) -> Owner:
        """Return an owner for a new transaction, which holds no locks yet."""
        return self._use(lambda kind: kind.owner())

    def close(self) -> None:
        """Leave the lock file: remaining owners lose their locks. The next call of any method opens it again."""
        with self._mutex:
            kind, self._current = self._current, None
            if kind is not None:
                kind.close()

    def after_fork_in_child(self) -> None:
        self._mutex = threading.RLock()
        self._current = None

    def _use(self, call: Callable[[_Kind], _Result]) -> _Result:
        """Call it with the open locks; if the file was replaced, open the new one first."""
        for _ in range(_ATTEMPTS):
            kind = None
            try:
                kind = self._open()
                with self._refusing():
                    return call(kind)
            except _OutdatedError:
                with self._mutex:
                    if self._current is kind:
                        self._current = None  # not closed: it has owners, and their fence must report the loss
        raise self._unsettled()

    def _open(self) -> _Kind:
        kind = self._current
        if kind is None:
            with self._mutex:
                kind = self._current
                if kind is None:
                    kind = self._current = self._choose()
        return kind

    def _choose(self) -> _Kind:
        file_system = file_system_type(self._tree.root)
        is_network = not is_of_one_machine(file_system)
        possible = ["files"] if sys.platform != "linux" else ["ranges", "files"]
        if locktable is not None and not is_network:
            possible.insert(0, "table")
        name = self._preferred or possible[0]
        for _ in range(_ATTEMPTS):
            if name not in possible:
                why = _why_impossible(name, file_system)
                raise LocksUnavailableError(self._url, why if name == self._preferred else _other_processes(name, why))
            try:
                return self._make(name, is_network=is_network)
            except KindInUseError as in_use:
                name = in_use.kind
            except _OutdatedError:
                continue
        raise self._unsettled()

    def _make(self, name: str, *, is_network: bool) -> _Kind:
        with self._refusing():
            mode = of_writers(self._tree.status("").st_mode) & 0o666
            if name == "table":
                return _Table(self._tree, mode)
            file = LockFile(self._tree, name, url=self._url, mode=mode, is_network=is_network)
            return _Fallback(name, file, RangeLocks(file) if name == "ranges" else StripeLocks(file, mode))

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except WrongFileTypeError as error:
            reason = f"{self._path} is {error.found}, but must be {error.wanted}: remove it"
            raise LocksUnavailableError(self._url, reason) from error
        except OSError as error:
            if error.errno in _UNWRITABLE:
                reason = f"locking needs write permission for {self._path} ({error.strerror})"
            elif error.errno in _UNUSABLE:
                reason = str(error)
            else:
                raise
            raise LocksUnavailableError(self._url, reason) from error

    def _unsettled(self) -> LocksUnavailableError:
        return LocksUnavailableError(self._url, f"{self._path} keeps being replaced: find the program that replaces it")


def _why_impossible(kind: str, file_system: str) -> str:
    if kind == "table" and locktable is None:
        why = "this process lacks the C extension for shared memory: install txstore where it can be built"
    elif kind == "table":
        why = f"memory can't be shared through the file system {file_system!r} from here"
    else:
        why = f"this system has no locks of kind {kind!r}"
    return why


def _other_processes(kind: str, why: str) -> str:
    return f"other processes use locks of kind {kind!r} there, and {why}; or wait until those processes have ended"


class _OutdatedError(Exception):
    """The lock file has been replaced, or has another kind now."""


class _Table:
    name = "table"

    def __init__(self, tree: Tree, mode: int) -> None:
        try:
            self._table = locktable.LockTable(
                tree.path(NAME), mode=mode, timed_out=_timed_out, lost=LocksLostError, forked=inherited
            )
        except BlockingIOError as error:
            in_use = recorded_kind(tree)
            raise KindInUseError(in_use) if in_use not in (None, self.name) else _OutdatedError from error

    def owner(self) -> Owner:
        """Raises `_OutdatedError` if the file is no longer the one that other processes open."""
        with self._finding_outdated():
            return self._table.owner()

    def close(self) -> None:
        self._table.close()

    @contextlib.contextmanager
    def _finding_outdated(self) -> Iterator[None]:
        """Any call may open the table again, after a reset or a fork, so it can raise every error of opening."""
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ESTALE, errno.EAGAIN):
                raise _OutdatedError from error
            raise


class _Fallback:
    def __init__(self, name: str, file: LockFile, exclusion: Exclusion) -> None:
        self.name = name
        self._file = file
        self._exclusion = exclusion
        self._turns: SlotTurns[int] = SlotTurns()

    def owner(self) -> Owner:
        self._check()
        return FallbackOwner(self._exclusion, self._turns)

    def close(self) -> None:
        self._exclusion.close()

    def _check(self) -> None:
        if not self._file.is_in_place():
            raise _OutdatedError


_Kind = _Table | _Fallback  # the locks as this process has opened them


def _timed_out(keys: list[str], pid: int) -> LockTimeoutError:
    ours = pid == os.getpid()
    return LockTimeoutError(keys, "a transaction of this process" if ours else describe_processes([pid] if pid else []))

"""The chunk-key locks of a repository: which kind of them, chosen when they are first used.

    "table"     words of a file that all processes map (`_native/_locktable.c`), at memory speed: local file systems
    "ranges"    byte locks of the same file (`exclusion.py`): network file systems, and where the C was not built
    "files"     a few locked files (`file_locks.py`): systems without such byte locks

A process adopts what the living members of the lock file use, or, if it can't, has no locks. Only while no member is
alive is the kind chosen anew. So two kinds of lock are never in use at the same time.
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
from txstore.locks.exclusion import RangeLocks
from txstore.locks.fallback_owner import Exclusion, FallbackOwner, SlotTurns, describe_processes, inherited
from txstore.locks.file_locks import StripeLocks
from txstore.locks.lock_file import NAME, KindInUseError, LockFile, recorded_kind
from txstore.storage.file_systems import file_system_type, is_of_one_machine
from txstore.storage.permissions import of_writers
from txstore.storage.tree import Tree

_UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
#: What the system or the C says when there is no using this file: not, for instance, a full disk.
_UNUSABLE = (
    errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV, errno.EUSERS, errno.EXDEV, errno.EPROTO,
    errno.ETIMEDOUT, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO,
)  # fmt: skip


_ATTEMPTS = 10
_Result = TypeVar("_Result")


#: Of a word of the table (`_native/lock_words.h`): the bits of its owner, and which of them are the member's.
_OWNER_BITS, _MEMBER_SHIFT = 30, 19


def is_parked(number: int) -> bool:
    """Tell whether this may be what `Owner.parked` of some process is: other processes say what theirs are."""
    return number % 2 == 1 and 0 < number >> _MEMBER_SHIFT < 1 << (_OWNER_BITS - _MEMBER_SHIFT)


class Owner(Protocol):
    """Who holds locks: one transaction. Several threads may use it; a forked child can't."""

    @property
    def identity(self) -> int:
        """A number that no other living transaction has."""

    @property
    def parked(self) -> int:
        """What `siblings` and `park(to=...)` of other processes' owners call this one."""

    def acquire(
        self, keys: str | Sequence[str], timeout: float | None = None, siblings: Sequence[int] = ()
    ) -> Sequence[str]:
        """Lock all of the keys, or none; return those whose last holder died with them, as far as that is known.

        What this owner holds already is granted and counted: it must be released as often. `timeout` is in seconds:
        None waits for ever, 0 only tries. What was parked under one of the `siblings` is there to be taken.
        Raises `LockTimeoutError`, and `TransactionStateError` in a forked child.
        """

    def release(self, keys: str | Sequence[str]) -> None:
        """Give keys up; waiting owners may have them."""

    def park(self, keys: str | Sequence[str], to: int | None = None) -> None:
        """Give keys up, but only to the siblings of this transaction (see `acquire`) or, with `to`, to that sibling.

        Kinds other than "table" release them: what others then do to them is found as a conflict by the commit.
        """

    def fence(self) -> None:
        """Raise `LocksLostError` unless all that is held is held still, in the file that the others use."""

    def holds(self, key: str, /) -> bool:
        """Tell whether a key is locked by this owner, itself or because it shares its slot with another."""

    def close(self, sweep: bool = False) -> None:
        """Release everything, parked keys too; `sweep`: also what siblings parked for this owner."""


class ChunkLocks:
    """The chunk-key locks of one repository, for one process. Safe in threads; a forked child begins anew by itself.

    `directory` is the repository's `locks/`, a path without links (`tree`), that exists; `url` is for messages. Nothing
    is opened before it is used. `kind` is what is preferred while no other process decides, by default what suits the
    file system.
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
        """Which kind it is. Raises `LocksUnavailableError`, as do the methods that follow."""
        return self._use(lambda kind: kind.name)

    def owner(self) -> Owner:
        """Return the locks of a new transaction, which holds none yet."""
        return self._use(lambda kind: kind.owner())

    def close(self) -> None:
        """Leave the lock file: owners that still exist lose what they hold. Whatever is called next opens it again."""
        with self._mutex:
            kind, self._current = self._current, None
            if kind is not None:
                kind.close()

    def after_fork_in_child(self) -> None:
        self._mutex = threading.RLock()
        self._current = None

    def _use(self, call: Callable[[_Kind], _Result]) -> _Result:
        """Call it with what is open or, if that is of no more use because the file was replaced, is opened anew."""
        for _ in range(_ATTEMPTS):
            kind = None
            try:
                kind = self._open()
                with self._refusing():
                    return call(kind)
            except _OutdatedError:
                with self._mutex:
                    if self._current is kind:
                        self._current = None  # not closed: it has owners, whose fence is to tell them
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
            reason = f"{self._path}: this is {error.found}, where only {error.wanted} can be: remove it"
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
        return LocksUnavailableError(self._url, f"{self._path} is being replaced again and again: find out by whom")


def _why_impossible(kind: str, file_system: str) -> str:
    if kind == "table" and locktable is None:
        why = "this process has not the C extension for shared memory: install txstore where it can be built"
    elif kind == "table":
        why = f"memory can't be shared through the file system {file_system!r} from here"
    else:
        why = f"this system has no locks of kind {kind!r}"
    return why


def _other_processes(kind: str, why: str) -> str:
    return f"other processes use locks of kind {kind!r} there, and {why}; or wait until those processes have ended"


class _OutdatedError(Exception):
    """The lock file is another one by now, or of another kind."""


class _Kind(Protocol):
    """The locks as this process has opened them."""

    name: str

    def owner(self) -> Owner:
        """Raises `_OutdatedError` if the file is not the one any more that others open."""

    def close(self) -> None: ...


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
        with self._finding_outdated():
            return self._table.owner()

    def close(self) -> None:
        self._table.close()

    @contextlib.contextmanager
    def _finding_outdated(self) -> Iterator[None]:
        """A table that was reset in between, or a child's that opens it afresh, meets all that opening it may meet."""
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
        self._file.close()

    def _check(self) -> None:
        if not self._file.is_in_place():
            raise _OutdatedError


def _timed_out(keys: list[str], pid: int) -> LockTimeoutError:
    ours = pid == os.getpid()
    return LockTimeoutError(keys, "a transaction of this process" if ours else describe_processes([pid] if pid else []))

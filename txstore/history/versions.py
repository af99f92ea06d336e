"""Takes a version: this is the moment of commit (I2)."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Protocol

from txstore.commit import Stored
from txstore.errors import CommitUnknownError, TxStoreError
from txstore.format import names
from txstore.format.commitfile import Header
from txstore.history.branch_names import OldestKept
from txstore.history.commit_files import CommitFiles
from txstore.history.heads import KnownHeads
from txstore.observing import carried
from txstore.steps import step
from txstore.storage.capabilities import LockOf
from txstore.storage.interface import Storage
from txstore.storage.request_threads import executor

#: Number of committers in one process that look for the head at the same time, each during its uploads.
_LOOKS = 8


class CommitStrategy:
    """The steps of a commit that depend on whether committers take turns: here they do, under the commit lock."""

    queues = True
    """Whether a commit may follow one that is on the way to its version."""

    def check_early(self, check: Callable[[], object]) -> None:
        """Look for conflicts before the turn, so that other committers wait less."""
        check()

    def begin_look(self, look: Callable[[], object]) -> Future[object] | None:
        """Start to look for the head while the committer makes its data durable. None if that saves no time."""
        return None

    def may_join(self, is_simple: Callable[[], bool]) -> bool:
        """Tell whether a commit may join a group commit."""
        return False


class AtVersion(CommitStrategy):
    """The strategy where all committers try to create the next version. Exactly one succeeds."""

    queues = False

    def check_early(self, check: Callable[[], object]) -> None:
        """No other committer waits for this one."""

    def begin_look(self, look: Callable[[], object]) -> Future[object] | None:
        # These threads are separate from those for single requests: a look may wait for such requests.
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts no more threads
            return executor("look for the head", _LOOKS).submit(carried(look))
        return None

    def may_join(self, is_simple: Callable[[], bool]) -> bool:
        return is_simple()


#: Seconds between two looks at a name that exists, but that this machine does not see yet.
_LOOK_AGAIN = 0.1


class VersionTakenError(Exception):
    """Another commit has the version. Internal: the committer tries the next one."""


class VersionTaking(Protocol):
    """How the committers of one repository compete for versions and take them."""

    #: Whether the commit lock keeps the processes of all machines out. Else committers may meet at a version.
    keeps_out_others: bool

    may_be_taken_twice: bool
    """Whether a server may let two committers create one version, so that the second replaces the first."""

    @property
    def strategy(self) -> CommitStrategy:
        """The steps of a commit that depend on whether committers take turns."""

    def take(self, source: str, stored: Stored, *, joins: bool = False) -> Stored:
        """Move a finished file to its version. Return the commit as it was made.

        `joins`: it may also follow other commits than its parent, if these touch nothing that it touches.

        Raises `VersionTakenError` if a foreign commit has the version, `CommitUnknownError` if it can't be told whose
        commit it has (I3), `OSError` if the commit was not made.
        """

    def may_have_taken(self, stored: Stored) -> bool:
        """Tell whether a proposed commit has its version, or may still get it."""

    def give_back(self, stored: Stored) -> None:
        """Free a version below the oldest kept one, which this process has just taken and no commit follows."""

    def is_passed(self, stored: Stored) -> bool:
        """Tell whether a new commit may have taken a version that a vacuum had freed (I10)."""

    def is_crowded(self, branch: str) -> bool:
        """Tell whether many committers are about to take the next version without taking turns."""

    def let_stand(self, paths: Collection[str]) -> None:
        """Wait until no committer can believe that the versions of these files were never taken (I10).

        The caller deletes the files afterwards.
        """

    def check_not_stopped(self, branch: str) -> None:
        """Raise `OSError` if commits may have taken each other's versions: a repair has to come first."""

    # --- what a committer does when a version was refused

    def read_back(self, header: Header, error: OSError) -> Stored | None:
        """Return the commit in the version. None if it is free."""

    def not_taken(self, header: Header, error: OSError) -> Exception:
        """Return the error for a version that is still free after the file was proposed to it."""

    def move_aside(self, orphan: Stored) -> None:
        """Free the version of a commit that does not follow the one below it."""


@step("take version")
def put_in_version(storage: Storage, source: str, stored: Stored, versions: VersionTaking) -> None:
    """Rename a finished file into its version: the moment of commit (I2).

    Raises `VersionTakenError` if a foreign commit has the version, `CommitUnknownError` if it can't be told whose
    commit it has (I3), `OSError` if the commit was not made.
    """
    header = stored.header
    try:
        storage.rename_noreplace(source, stored.path)
    except OSError as error:
        # I3: "it exists", or any error, is no proof of having lost. Only the version's content is.
        there = versions.read_back(header, error)
        if there is None:
            refused = versions.not_taken(header, error)
            try:
                if refused is error:
                    raise
                raise refused from error
            finally:
                del refused  # its traceback has this frame: they would keep each other, and the pins of all callers
        if there.hash != stored.hash:
            if there.has_parent_of(stored):
                raise VersionTakenError from error
            versions.move_aside(there)
            put_in_version(storage, source, stored, versions)


def read_back(storage: Storage, files: CommitFiles, header: Header, error: OSError) -> Stored | None:
    """Return the commit in a refused version. None if the version is free."""
    try:
        deadline = time.monotonic() + storage.capabilities.stale_seconds
        while (there := files.read(header.branch, header.version)) is None and isinstance(error, FileExistsError):
            if time.monotonic() >= deadline:
                break  # it was freed since
            time.sleep(_LOOK_AGAIN)
        return there
    except OSError:
        raise CommitUnknownError(header.id.hex(), reason="the version can't be read back") from error


class RenameUnderLock:
    """Versions on a disk: a committer renames its file under the commit lock. The rename replaces nothing."""

    strategy = CommitStrategy()
    may_be_taken_twice = False

    def __init__(self, storage: Storage, files: CommitFiles, oldest_kept: OldestKept, known: KnownHeads) -> None:
        self.keeps_out_others = storage.capabilities.lock_of is LockOf.ALL_PROCESSES
        self._storage = storage
        self._files = files
        self._oldest_kept = oldest_kept
        self._known = known

    def take(self, source: str, stored: Stored, *, joins: bool = False) -> Stored:
        put_in_version(self._storage, source, stored, self)
        self._known.note(stored.header.branch, stored)
        return stored

    def read_back(self, header: Header, error: OSError) -> Stored | None:
        return read_back(self._storage, self._files, header, error)

    def not_taken(self, header: Header, error: OSError) -> Exception:
        return error

    def move_aside(self, orphan: Stored) -> None:
        header = orphan.header
        aside = names.orphan_path(header.branch, header.version, header.id)
        try:
            self._storage.rename_noreplace(orphan.path, aside)
        except (FileExistsError, FileNotFoundError):
            there = self._files.read(header.branch, header.version)
            if there is not None and there.header.id == header.id:
                # A crash between link and unlink left both names. The lock keeps the version as it was just read.
                self._storage.rename_noreplace(orphan.path, f"{aside}-{os.urandom(4).hex()}")

    def may_have_taken(self, stored: Stored) -> bool:
        try:
            there = self._files.read(stored.header.branch, stored.header.version)
        except (OSError, TxStoreError):
            return True
        return there is not None and there.header.id == stored.header.id

    def give_back(self, stored: Stored) -> None:
        self._known.forget(stored.header.branch)
        self._storage.delete(stored.path)

    def is_passed(self, stored: Stored) -> bool:
        return self._oldest_kept.is_above(stored.header.branch, stored.header.decided_in)

    def is_crowded(self, branch: str) -> bool:
        return False

    def let_stand(self, paths: Collection[str]) -> None:
        """Do nothing: the commit lock keeps committers out."""

    def check_not_stopped(self, branch: str) -> None:
        """Do nothing: a rename gives a version to one commit only."""

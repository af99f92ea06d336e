"""What a storage has to do for the branches of a repository: to find heads, take versions, and make commits durable.

`branches_on_disk` and `branches_in_objects` do it: on a file system, a committer renames a file under the commit lock;
in an object store, it creates the next version, which succeeds once.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from txstore.commit import Stored
from txstore.errors import CommitUnknownError, CorruptionError
from txstore.format import names
from txstore.format.commitfile import Header
from txstore.format.records import HeadCache
from txstore.history.branch_names import BranchNames, OldestKept
from txstore.history.chain import Chain
from txstore.history.commit_files import CommitFiles
from txstore.history.identity import Identity
from txstore.steps import step
from txstore.storage.interface import Storage

#: Seconds between two looks at a name that exists, but that this machine does not see yet.
_LOOK_AGAIN = 0.1


class VersionTakenError(Exception):
    """Another commit has the version. Internal: the committer tries the next one."""


@dataclass(frozen=True)
class Ground:
    """What both kinds of storages share of a repository's history."""

    storage: Storage
    identity: Identity
    branches: BranchNames
    files: CommitFiles
    oldest_kept: OldestKept
    chain: Chain


class HeadCaches(Protocol):
    """The head caches of one repository, one for each branch."""

    def read(self, branch: str) -> HeadCache:
        """Return the head cache of a branch. Raises `OSError` or `MalformedError`."""

    def of(self, stored: Stored, *, durable: bool) -> HeadCache:
        """Return a head cache for a commit that is valid in this directory until the next boot."""

    def write(self, stored: Stored, *, durable: bool) -> None:
        """Write the head cache of a new commit. If this fails, the commit is valid all the same."""

    def write_of_copy(self, stored: Stored) -> None:
        """Write the head cache of a durable commit that a backup has copied."""

    def stop(self) -> None:
        """Wait until no earlier `write` is still running, and drop pending ones."""

    def forget(self) -> None:
        """Delete head caches that hold bytes of commit files, which the caller has replaced."""


class BranchStore(Protocol):
    """The branches of one repository, as they lie in its storage. Branches go by their ids."""

    takes_turns: bool
    """Whether committers take turns, under the commit lock. Else all try to create the next version."""

    keeps_out_others: bool
    """Whether the commit lock keeps the processes of all machines out. Else committers may meet at a version."""

    may_be_taken_twice: bool
    """Whether a server may let two committers create one version, so that the second replaces the first."""

    @property
    def head_caches(self) -> HeadCaches:
        """What says where to look for heads."""

    def head(self, branch: str) -> Stored | None:
        """Return the newest commit; for a branch without own commits, the one it starts at. None: no commit yet."""

    def to_follow(self, branch: str) -> Stored | None:
        """Return the newest commit, or the one that was the newest a moment ago.

        A committer that follows an old one loses the version, and looks again.
        """

    # --- taking a version: the moment of commit (I2)

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

    # --- what is durable (I1)

    def pending(self, branch: str, parent: Stored | None) -> int:
        """Return the number of commits of a branch, from `parent` downward, that are not known to be durable."""

    def is_fit_parent(self, branch: str, parent: Stored | None) -> bool:
        """Tell whether a durable commit may follow `parent` without `make_durable` (I1)."""

    def ensure(self, stored: Stored) -> None:
        """Make a commit and all its ancestors durable, unless they are known to be. Raises `OSError`."""

    def ensure_without_room(self, stored: Stored) -> None:
        """Do as `ensure`, on a disk that may be full."""

    def make_durable(self, newest: Stored | None, branch: str | None = None) -> None:
        """Make a commit, all its ancestors and the repository itself durable, unless they are known to be (I1).

        `branch`: the branch of the next commit. Raises `OSError`.
        """

    def settle(self, stored: Stored) -> None:
        """Make the new name of a commit durable. Raises `CommitUnknownError` (I3)."""


@step("take version")
def put_in_version(storage: Storage, source: str, stored: Stored, store: BranchStore) -> None:
    """Rename a finished file into its version: the moment of commit (I2).

    Raises `VersionTakenError` if a foreign commit has the version, `CommitUnknownError` if it can't be told whose
    commit it has (I3), `OSError` if the commit was not made.
    """
    header = stored.header
    try:
        storage.rename_noreplace(source, stored.path)
    except OSError as error:
        # I3: "it exists", or any error, is no proof of having lost. Only the version's content is.
        there = store.read_back(header, error)
        if there is None:
            refused = store.not_taken(header, error)
            try:
                if refused is error:
                    raise
                raise refused from error
            finally:
                del refused  # its traceback has this frame: they would keep each other, and the pins of all callers
        if there.hash != stored.hash:
            if there.has_parent_of(stored):
                raise VersionTakenError from error
            store.move_aside(there)
            put_in_version(storage, source, stored, store)


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


class KnownHeads:
    """The last head of each branch that this process has found. It must not be missing later (I4)."""

    def __init__(self, identity: Identity, branches: BranchNames) -> None:
        self._identity = identity
        self._branches = branches
        self._newest: dict[str, Stored] = {}

    def of(self, branch: str) -> Stored | None:
        return self._newest.get(branch)

    def note(self, branch: str, found: Stored) -> None:
        self._newest[branch] = found

    def note_newer(self, branch: str, found: Stored) -> None:
        """Record a head, unless another thread has found a newer one since."""
        there = self._newest.get(branch)
        if there is None or there.header.version < found.header.version:
            self._newest[branch] = found

    def forget(self, branch: str) -> None:
        self._newest.pop(branch, None)

    def forget_all(self) -> None:
        self._newest.clear()

    def check(self, branch: str, newest: Stored | None, found: Stored | None) -> None:
        """Raise `CorruptionError` if the found head is missing, or older than the one that was known before."""
        if found is None:
            self._identity.check_there()
        if newest is not None and (found is None or found.header.version < newest.header.version):
            self._branches.check_living(branch)
            # I4: a commit that existed is lost, not merely missing.
            reason = f"version {newest.header.version} was there and is gone: the repository was deleted or replaced"
            raise CorruptionError(names.commits_directory(branch), reason=reason)


def check_not_lost(branches: BranchNames, oldest_kept: OldestKept, branch: str, head_cache: HeadCache) -> None:
    """Raise `CorruptionError` for a commit that a head cache names and that is gone, unless it has expired (I4)."""
    if not oldest_kept.is_above(branch, head_cache.version):
        branches.check_living(branch)
        reason = f"commit {head_cache.commit_id.hex()} was durable in this version and is not there"
        raise CorruptionError(names.commit_path(branch, head_cache.version), reason=reason)

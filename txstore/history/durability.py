"""Makes commits durable, and tells which commits are known to be durable (I1)."""

from __future__ import annotations

import contextlib
from typing import Protocol

from txstore.commit import MAIN, Stored
from txstore.errors import CommitUnknownError, WrongFileTypeError
from txstore.format import encoding, names
from txstore.history.branch_names import BranchNames, DurableVersions, OldestKept
from txstore.history.chain import Chain
from txstore.history.commit_files import CommitFiles
from txstore.history.heads import FileHeadCaches
from txstore.history.identity import Identity
from txstore.steps import step
from txstore.storage.interface import Storage, paths_in

#: Commits that may follow one another before their directory is synced: as many as a search has to read, at most.
MAX_PENDING = 64


class Durability(Protocol):
    """Makes the commits of one repository durable."""

    def pending(self, branch: str, parent: Stored | None) -> int:
        """Return the number of commits of a branch, from `parent` downward, that are not known to be durable."""

    def is_fit_parent(self, branch: str, parent: Stored | None) -> bool:
        """Tell whether a durable commit may follow `parent` without `make` (I1)."""

    def ensure(self, stored: Stored) -> None:
        """Make a commit and all its ancestors durable, unless they are known to be. Raises `OSError`."""

    def ensure_without_room(self, stored: Stored) -> None:
        """Do as `ensure`, on a disk that may be full."""

    def make(self, newest: Stored | None, branch: str | None = None) -> None:
        """Make a commit, all its ancestors and the repository itself durable, unless they are known to be (I1).

        `branch`: the branch of the next commit. Raises `OSError`.
        """

    def settle(self, stored: Stored) -> None:
        """Make the new name of a commit durable. Raises `CommitUnknownError` (I3)."""


class DurableObjects:
    """Durability on an object store: an object is durable when the server has confirmed it."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def pending(self, branch: str, parent: Stored | None) -> int:
        return 0

    def is_fit_parent(self, branch: str, parent: Stored | None) -> bool:
        return parent is not None

    def ensure(self, stored: Stored) -> None:
        self.make(stored)

    def ensure_without_room(self, stored: Stored) -> None:
        """Do nothing: to ask the server whether it creates exclusively would take space."""

    def make(self, newest: Stored | None, branch: str | None = None) -> None:
        self._identity.create(durable=True)

    def settle(self, stored: Stored) -> None:
        """Do nothing: the object is durable since it was created."""


class SyncedFiles:
    """Durability on a disk: files and their names are durable after they were synced."""

    def __init__(
        self,
        storage: Storage,
        identity: Identity,
        branches: BranchNames,
        files: CommitFiles,
        oldest_kept: OldestKept,
        chain: Chain,
        durable: DurableVersions,
        head_caches: FileHeadCaches,
    ) -> None:
        self._storage = storage
        self._identity = identity
        self._branches = branches
        self._files = files
        self._oldest_kept = oldest_kept
        self._chain = chain
        self._durable = durable
        self._head_caches = head_caches

    def pending(self, branch: str, parent: Stored | None) -> int:
        """Return the number of commits of a branch, from `parent` downward, that are not known to be durable."""
        if parent is None or parent.header.branch != branch:
            return 0
        header = parent.header
        vouched = header.version - header.pending - 1 if header.synced else -1
        return max(0, header.version - max(vouched, self._durable.version(branch)))

    def is_fit_parent(self, branch: str, parent: Stored | None) -> bool:
        """Tell whether a durable commit may follow `parent` without `make` (I1).

        Names may be pending: the sync of the directory makes the new name durable, and all older ones. The first commit
        of a branch makes the name of the directory durable.
        """
        if branch in self._durable.copied or parent is None or parent.header.branch != branch:
            return False
        pending = self.pending(branch, parent)
        return not pending or (parent.header.synced and pending <= MAX_PENDING)

    def ensure(self, stored: Stored) -> None:
        """Make a commit and all its ancestors durable, unless they are known to be. Raises `OSError`."""
        if stored.header.branch in self._durable.copied or stored.header.version > self._durable.version(
            stored.header.branch
        ):
            self.make(stored)

    def ensure_without_room(self, stored: Stored) -> None:
        """Do as `ensure`, on a disk that may be full."""
        self.ensure(stored)

    @step("make durable")
    def make(self, newest: Stored | None, branch: str | None = None) -> None:
        """Make a commit, all its ancestors and the repository itself durable, unless they are known to be (I1).

        This syncs commits made with `durability="none"` file by file, down to the first durable commit: its committer
        has done the same for its ancestors. `branch`: the branch of the next commit. Raises `OSError`.
        """
        branch = branch or (MAIN if newest is None else newest.header.branch)
        self._identity.create(durable=True)  # in a copy, empty directories may be missing
        self._identity.make_durable()
        if self._durable.copied:
            self._sync_all()
        for stored in self._chain.ancestors(newest):
            if stored.header.synced or stored.header.version <= self._durable.version(stored.header.branch):
                break
            try:
                self._sync_files(stored)
            except FileNotFoundError:
                if not self._oldest_kept.is_above(stored.header.branch, stored.header.version):
                    raise
                break  # a vacuum has deleted it, and a vacuum is durable
        for each in dict.fromkeys([branch, branch if newest is None else newest.header.branch]):
            self._storage.sync_directory(names.commits_directory(each))
        self._durable.copied.clear()
        if newest is not None:
            self._durable.reach(newest.header.branch, newest.header.version)

    @step("sync copy")
    def _sync_all(self) -> None:
        of_commits = map(names.commits_directory, self._files.branch_directories())
        of_branches = [names.BRANCHES] if self._branches.files() else []
        of_records = [each for each in (names.ERASED, names.OPERATIONS) if paths_in(self._storage, each)]
        of_packs = paths_in(self._storage, names.PACKS)
        for directory in [*of_packs, names.TAGS, *of_branches, *of_commits, *of_records]:
            with contextlib.suppress(WrongFileTypeError):  # no directory, so no file of ours is in it
                for path in paths_in(self._storage, directory):
                    with contextlib.suppress(FileNotFoundError):  # a vacuum has just deleted it
                        self._storage.sync_file(path)
                self._storage.sync_directory(directory)
        self._storage.sync_directory(names.PACKS)

    @step("sync commit")
    def _sync_files(self, stored: Stored) -> None:
        packs = [pack.name for pack in stored.header.packs]
        for pack in packs:
            self._storage.sync_file(pack.path)
        for directory in sorted({names.data_pack_directory(pack.id) for pack in packs}):
            self._storage.sync_directory(directory)
        if packs:
            self._storage.sync_directory(names.PACKS)
        self._storage.sync_file(stored.path)

    @step("settle commit")
    def settle(self, stored: Stored) -> None:
        """Make the new name of a commit durable, and so the names of all its ancestors (I1).

        Raises `CommitUnknownError` (I3).
        """
        branch = stored.header.branch
        try:
            self._storage.sync_directory(names.commits_directory(branch))
        except OSError as error:
            raise CommitUnknownError(stored.header.id.hex(), reason="syncing the directory failed") from error
        self._durable.reach(branch, stored.header.version)
        with contextlib.suppress(OSError, encoding.MalformedError):
            # else it names a later commit already
            if self._head_caches.read(branch).commit_id == stored.header.id:
                self._head_caches.write(stored, durable=True)

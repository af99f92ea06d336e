"""The branches of a repository on a disk.

A committer takes its turn under the commit lock, and renames its file into the next version: the rename replaces
nothing. Files and their names are durable after they were synced. The head is found by following the head cache, then
each taken version above it; without a cache, by listing all versions.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

from txstore.commit import MAIN, Stored
from txstore.errors import CommitUnknownError, CorruptionError, TxStoreError, WrongFileTypeError
from txstore.format import encoding, names, records
from txstore.format.commitfile import Header
from txstore.format.records import HeadCache
from txstore.history.branch_names import BranchNames
from txstore.history.branch_store import Ground, KnownHeads, check_not_lost, put_in_version, read_back
from txstore.history.group_commits import decided
from txstore.steps import step
from txstore.storage.capabilities import LockOf
from txstore.storage.interface import Storage, paths_in

#: Number of searches for the head, if a vacuum invalidates them each time.
_SEARCHES = 20
#: Commits that may follow one another before their directory is synced: as many as a search has to read, at most.
MAX_PENDING = 64


class DurableVersions:
    """For each branch, the highest version that is known to be durable with all versions below it."""

    def __init__(self, branches: BranchNames) -> None:
        self._branches = branches
        self._versions: dict[str, int] = {}
        self.copied: set[str] = set()  # branches of a copied repository, whose files were never synced

    def version(self, branch: str) -> int:
        """Return the highest version up to which a branch is known to be durable."""
        known = self._versions.get(branch)
        if known is None:  # the commit that it starts at was durable before the branch was made
            fork = self._branches.fork(branch)
            known = self._versions[branch] = -1 if fork is None else fork.version
        return known

    def reach(self, branch: str, version: int) -> None:
        """Record that a branch is durable at least up to a version."""
        self._versions[branch] = max(self.version(branch), version)


class FileHeadCaches:
    """Head caches on a disk: a small file for each branch, written in place."""

    def __init__(self, storage: Storage, durable: DurableVersions) -> None:
        self._storage = storage
        self._durable = durable

    def read(self, branch: str) -> HeadCache:
        return HeadCache.decode(self._storage.read_range(names.head_cache_path(branch), 0, records.HEAD_CACHE_SIZE))

    def of(self, stored: Stored, *, durable: bool) -> HeadCache:
        place = self._storage.place()
        if not durable and stored.header.branch in self._durable.copied:
            place = place ^ 2 or 4  # the place of no directory: readers must know that the copy was not synced
        return stored.head_cache(durable=durable, boot=self._storage.boot(), place=place)

    def write(self, stored: Stored, *, durable: bool) -> None:
        head_cache = self.of(stored, durable=durable)
        with contextlib.suppress(OSError):
            self._storage.write_in_place(names.head_cache_path(stored.header.branch), head_cache.encode())

    def write_of_copy(self, stored: Stored) -> None:
        self.write(stored, durable=True)

    def stop(self) -> None:
        """Do nothing: `write` writes at once."""

    def forget(self) -> None:
        """Do nothing: these hold no bytes of commit files."""


class BranchesOnDisk:
    """The `BranchStore` of a file system."""

    takes_turns = True
    may_be_taken_twice = False

    def __init__(self, ground: Ground) -> None:
        self._storage, self._identity, self._branches = ground.storage, ground.identity, ground.branches
        self._files, self._oldest_kept, self._chain = ground.files, ground.oldest_kept, ground.chain
        self._known, self._durable = KnownHeads(ground.identity, ground.branches), DurableVersions(ground.branches)
        self.keeps_out_others = self._storage.capabilities.lock_of is LockOf.ALL_PROCESSES
        self.head_caches = FileHeadCaches(self._storage, self._durable)

    # --- the head: only versions are authoritative

    def to_follow(self, branch: str) -> Stored | None:
        return self.head(branch)

    def head(self, branch: str) -> Stored | None:
        newest = self._known.of(branch)
        found = (
            self._follow_head_cache(branch, newest) or self._search(branch, newest) or self._files.fork_point(branch)
        )
        for _ in range(_SEARCHES):
            while True:
                above = self._files.read(branch, 0 if found is None else found.header.version + 1)
                if above is None or not above.follows(found):  # nothing, or an orphan
                    break
                found = above
            # I10: below the oldest kept version there are gaps. A vacuum may have run during the search, or a process
            # may have written the head cache late.
            if not self._oldest_kept.is_above(branch, -1 if found is None else found.header.version):
                break
            found = self._search(branch, newest) or self._files.fork_point(branch)
        else:
            raise CorruptionError(
                names.oldest_kept_directory(branch), reason="it names a version that is above all commits"
            )
        if found is None or found.header.branch != branch:
            self._check_none_lost(branch)
        elif found.header.group_commit is not None:
            found = self._whole(found)
        # `newest` was known when the search began: another thread may have found a newer one since.
        self._known.check(branch, newest, found)
        if found is not None:
            self._known.note(branch, found)
        return found

    def _follow_head_cache(self, branch: str, newest: Stored | None) -> Stored | None:
        try:
            head_cache = self.head_caches.read(branch)
        except (OSError, encoding.MalformedError):
            return None  # it is only a cache: the versions decide
        is_durable = head_cache.durable
        if newest is not None and newest.header.id == head_cache.commit_id:
            # A commit never changes; but is it still there?
            found = newest if self._storage.exists(newest.path) else None
        else:
            found = self._files.read(branch, head_cache.version)
            # All commits below it existed when the head cache was written. They still exist, unless the power was lost
            # since, or this directory is a copy.
            place = self._storage.place()
            is_here = head_cache.place == place != 0
            is_durable = head_cache.is_durable_at(place)
            is_of_boot = is_here and head_cache.boot == self._storage.boot() != 0
            (self._durable.copied.discard if head_cache.place in (0, place) else self._durable.copied.add)(branch)
            if found is None or found.header.id != head_cache.commit_id:
                if is_durable or is_of_boot:
                    self._check_not_lost(branch, head_cache)
                return None
            if not (is_durable or is_of_boot or self._is_whole(found, newest)):
                return None
        is_newer = is_durable and found is not None and head_cache.version > self._durable.version(branch)
        if is_newer and head_cache.is_durable_at(self._storage.place()):
            self._durable.reach(branch, head_cache.version)
        return found

    def _check_not_lost(self, branch: str, head_cache: HeadCache) -> None:
        """Raise `CorruptionError` if a commit that was safe here is gone, unless a vacuum has expired it (I4)."""
        # On a network, the client asks the server for a list: it may still believe that there is no such file.
        if head_cache.version in self._files.versions(branch):
            found = self._files.read(branch, head_cache.version)
            if found is None or found.header.id == head_cache.commit_id:
                return
        check_not_lost(self._branches, self._oldest_kept, branch, head_cache)

    def _search(self, branch: str, newest: Stored | None) -> Stored | None:
        """Find a commit near the head without a head cache: the highest one with an unbroken chain of parents."""
        lowest: int | None = None  # the lowest version whose chain breaks at the same place
        for version in sorted(self._files.versions(branch), reverse=True):
            if lowest is not None and version >= lowest:
                continue  # only commits above could vouch for it
            found = self._files.read(branch, version)
            if found is not None:
                lowest = self._break_below(found, newest)
                if lowest is None:
                    return found
        return None

    def _check_none_lost(self, branch: str) -> None:
        """Raise `CorruptionError` if there are commits, but no whole one, and no lost power explains that (I4)."""
        fork = self._branches.fork(branch)
        first = 0 if fork is None else fork.version + 1
        for version in sorted(self._files.versions(branch)):
            stored = self._files.read(branch, version)
            if stored is None:
                continue
            vouches = stored.header.synced and version - stored.header.pending > first
            if vouches or (version > first and branch in self._durable.copied):
                raise _missing_below(branch, version)

    def _whole(self, found: Stored) -> Stored:
        """Return the last commit of a group commit. In a copy of an object store, files may be missing: write them."""
        group = found.header.group_commit
        leader = self._files.read(found.header.branch, found.header.decided_in)
        if group is None or group.place + 1 == group.length or leader is None or leader.header.group_commit is None:
            return found
        try:
            self._storage.make_directory(names.STAGING, durable=False)
            for member in decided(self._storage.read(leader.path), leader)[group.place + 1 :]:
                with contextlib.suppress(FileExistsError):
                    self._storage.write_once(member.stored.path, member.content, durable=True)
                found = member.stored
        except PermissionError:
            pass  # a process that may only read stops at the last commit whose file exists
        return found

    def _gap(self, stored: Stored, known: Stored | None) -> int | None:
        """Return the lowest missing version. In a copy any may be missing: commits vouch for the original only."""
        header, versions = stored.header, set(self._files.versions(stored.header.branch))
        fork = self._branches.fork(header.branch)
        first = max(
            header.oldest_kept,
            self._oldest_kept.of(header.branch),
            -1 if known is None else known.header.version,
            0 if fork is None else fork.version + 1,
        )
        return next((version for version in range(first, header.version) if version not in versions), None)

    def _is_whole(self, stored: Stored, known: Stored | None) -> bool:
        return self._break_below(stored, known) is None

    def _break_below(self, stored: Stored, known: Stored | None) -> int | None:
        """Return the version whose parent is missing. None if the chain is unbroken.

        The chain is unbroken if all parents exist down to one that was durable before its child was made. A synced
        commit vouches for all commits below it except the pending ones that it counts (I1). A commit made with
        `durability="none"` vouches for none.

        Raises `CorruptionError` if no commit is in a version that one of the commits above vouches for (I4).
        """
        if stored.header.branch in self._durable.copied and (gap := self._gap(stored, known)) is not None:
            self._check_none_lost_at(stored.header, gap, 0)
            return stored.header.version
        vouched = 0  # below this version, commits were durable when one of the commits above was made
        oldest_kept = self._oldest_kept.of(stored.header.branch)
        while known is None or stored.header.id != known.header.id:
            header = stored.header
            oldest_kept = max(oldest_kept, header.oldest_kept)
            if header.version <= oldest_kept:
                return None  # a vacuum may have deleted the commits below; it is durable before it deletes
            below = self._files.parent(stored)
            if not stored.follows(below):
                is_removed = below is None and self._oldest_kept.is_above(header.branch, header.version - 1)
                if below is None and not is_removed and not header.fork:
                    self._check_none_lost_at(header, header.version - 1, vouched)
                return None if is_removed else header.version
            if header.fork:
                return None  # the commit that a branch starts at was durable before the branch was made
            if header.synced:
                vouched = max(vouched, header.version - header.pending)
            if below is None or below.header.version < vouched:
                return None
            stored = below
        return None

    def _check_none_lost_at(self, header: Header, missing: int, vouched: int) -> None:
        """Raise `CorruptionError` if a missing version was durable, by a commit above it, or by `vouched`."""
        if header.synced:
            vouched = max(vouched, header.version - header.pending)
        # On a network, the client asks the server for a list: it may still believe that there is no such file.
        if missing < vouched and missing not in self._files.versions(header.branch):
            raise _missing_below(header.branch, header.version)

    # --- taking a version

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

    # --- what is durable

    def pending(self, branch: str, parent: Stored | None) -> int:
        """Return the number of commits of a branch, from `parent` downward, that are not known to be durable."""
        if parent is None or parent.header.branch != branch:
            return 0
        header = parent.header
        vouched = header.version - header.pending - 1 if header.synced else -1
        return max(0, header.version - max(vouched, self._durable.version(branch)))

    def is_fit_parent(self, branch: str, parent: Stored | None) -> bool:
        """Tell whether a durable commit may follow `parent` without `make_durable` (I1).

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
            self.make_durable(stored)

    def ensure_without_room(self, stored: Stored) -> None:
        """Do as `ensure`, on a disk that may be full."""
        self.ensure(stored)

    @step("make durable")
    def make_durable(self, newest: Stored | None, branch: str | None = None) -> None:
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
            if self.head_caches.read(branch).commit_id == stored.header.id:
                self.head_caches.write(stored, durable=True)


def _missing_below(branch: str, version: int) -> CorruptionError:
    reason = f"there is version {version}, and a commit below it is missing. If this is a copy, copy again"
    return CorruptionError(names.commits_directory(branch), reason=reason)

"""Finds the head of a branch: its newest commit. A head cache says where to look; only versions are authoritative."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from txstore.commit import Stored
from txstore.commit_queue.group_commits import decided
from txstore.errors import CorruptionError
from txstore.format import encoding, names, records
from txstore.format.commitfile import Header
from txstore.format.records import HeadCache
from txstore.history.branch_names import BranchNames, DurableVersions, OldestKept
from txstore.history.commit_files import CommitFiles
from txstore.history.identity import Identity
from txstore.storage.interface import Storage

#: Number of searches for the head, if a vacuum invalidates them each time.
_SEARCHES = 20


class HeadCaches(Protocol):
    """The head caches of one repository, one for each branch."""

    def read(self, branch: str) -> HeadCache:
        """Return the head cache of a branch. Raises `OSError` or `MalformedError`."""

    def is_durable(self, head_cache: HeadCache) -> bool:
        """Tell whether a head cache was written for this directory, and says that its commit is durable."""

    def of(self, stored: Stored, *, durable: bool) -> HeadCache:
        """Return a head cache for a commit that is valid in this directory until the next boot."""

    def write(self, stored: Stored, *, durable: bool) -> None:
        """Write the head cache of a new commit. If this fails, the commit is valid all the same."""

    def write_of_copy(self, stored: Stored) -> None:
        """Write the head cache of a durable commit that a backup has copied."""

    def stop(self) -> None:
        """Wait until no earlier `write` is still running, and drop pending ones."""

    def forget(self) -> None:
        """Delete head caches that hold bytes of commit files, which the caller is about to replace."""


class FileHeadCaches:
    """Head caches on a disk: a small file for each branch, written in place."""

    def __init__(self, storage: Storage, durable: DurableVersions) -> None:
        self._storage = storage
        self._durable = durable

    def read(self, branch: str) -> HeadCache:
        return HeadCache.decode(self._storage.read_range(names.head_cache_path(branch), 0, records.HEAD_CACHE_SIZE))

    def is_durable(self, head_cache: HeadCache) -> bool:
        return head_cache.durable and head_cache.place == self._storage.place() != 0

    def of(self, stored: Stored, *, durable: bool) -> HeadCache:
        place = self._storage.place()
        if not durable and stored.header.branch in self._durable.copied:
            place = place ^ 2 or 4  # the place of no directory: readers must know that the copy was not synced
        return stored.head_cache(durable=durable, boot=self._storage.boot(), place=place)

    def write(self, stored: Stored, *, durable: bool) -> None:
        head_cache = self.of(stored, durable=durable)
        with suppress(OSError):
            self._storage.write_in_place(names.head_cache_path(stored.header.branch), head_cache.encode())

    def write_of_copy(self, stored: Stored) -> None:
        self.write(stored, durable=True)

    def stop(self) -> None:
        """Do nothing: `write` writes at once."""

    def forget(self) -> None:
        """Do nothing: these hold no bytes of commit files."""


class Heads(Protocol):
    """Finds the heads of the branches of one repository."""

    def find(self, branch: str) -> Stored | None:
        """Return the newest commit; for a branch without own commits, the one it starts at. None: no commit yet."""

    def to_follow(self, branch: str) -> Stored | None:
        """Return the newest commit, or the one that was the newest a moment ago.

        A committer that follows an old one loses the version, and looks again.
        """


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


class FileHeads:
    """Heads on a disk: follows the head cache, then each taken version above. Without a cache, lists all versions."""

    def __init__(
        self,
        storage: Storage,
        branches: BranchNames,
        files: CommitFiles,
        oldest_kept: OldestKept,
        head_caches: FileHeadCaches,
        durable: DurableVersions,
        known: KnownHeads,
    ) -> None:
        self._storage = storage
        self._branches = branches
        self._files = files
        self._oldest_kept = oldest_kept
        self._head_caches = head_caches
        self._durable = durable
        self._known = known

    def to_follow(self, branch: str) -> Stored | None:
        return self.find(branch)

    def find(self, branch: str) -> Stored | None:
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
            head_cache = self._head_caches.read(branch)
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
            is_durable = is_here and head_cache.durable
            is_of_boot = is_here and head_cache.boot == self._storage.boot() != 0
            (self._durable.copied.discard if head_cache.place in (0, place) else self._durable.copied.add)(branch)
            if found is None or found.header.id != head_cache.commit_id:
                if is_durable or is_of_boot:
                    self._check_not_lost(branch, head_cache)
                return None
            if not (is_durable or is_of_boot or self._is_whole(found, newest)):
                return None
        if (
            is_durable
            and found is not None
            and head_cache.version > self._durable.version(branch)
            and self._head_caches.is_durable(head_cache)
        ):
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
                with suppress(FileExistsError):
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


def _missing_below(branch: str, version: int) -> CorruptionError:
    reason = f"there is version {version}, and a commit below it is missing. If this is a copy, copy again"
    return CorruptionError(names.commits_directory(branch), reason=reason)

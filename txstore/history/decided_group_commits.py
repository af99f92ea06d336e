"""Keeps the commits of group commits that were decided, but whose files this process has not seen."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Sequence

from txstore import processes
from txstore.commit import Stored
from txstore.commit_queue.group_commits import BranchListing, GroupCommitMember, GroupCommits
from txstore.errors import CorruptionError
from txstore.format import names, packfile
from txstore.history.commit_files import CommitFiles
from txstore.history.heads import KnownHeads
from txstore.history.listings import Contention, Listings
from txstore.storage.remote import RemoteStorage


class DecidedCommits:
    """The `GroupCommitHistory` of one repository."""

    def __init__(self, storage: RemoteStorage, files: CommitFiles, listings: Listings, known: KnownHeads) -> None:
        self._storage = storage
        self._files = files
        self._listings = listings
        self._known = known
        self._loose: dict[str, list[GroupCommitMember]] = {}  # by branch
        self._lock = processes.new_lock()

    def has_any(self, branch: str) -> bool:
        return bool(self._loose.get(branch))

    def last(self, branch: str, newest: Stored) -> Stored:
        """Return the last decided commit, or `newest` if the files of all are known to exist."""
        self.missing(branch, -1, ())  # this forgets commits whose files were seen since
        with self._lock:
            loose = self._loose.get(branch)
            return loose[-1].stored if loose else newest

    def list_from(self, branch: str, version: int) -> BranchListing:
        listed = self._listings.above(branch, version)
        if listed is None:
            raise OSError(f"{self._storage.url}: it can't be listed from a name on")
        return listed

    def read_file(self, branch: str, version: int) -> GroupCommitMember | None:
        path = names.commit_path(branch, version)
        try:
            content = self._storage.objects.get(path)
        except FileNotFoundError:
            return None
        return GroupCommitMember(self._files.decode_only(path, branch, version, content, len(content)), content)

    def decided(self, found: Sequence[GroupCommitMember]) -> None:
        with self._lock:
            for each in found:
                branch = each.stored.header.branch
                loose, newest = self._loose.setdefault(branch, []), self._known.of(branch)
                last = loose[-1].stored if loose else newest
                if last is None or each.stored.header.version > last.header.version:
                    loose.append(each)
                    self._storage.cache.keep(each.stored.header.id, 0, each.content)

    def missing(self, branch: str, upto: int, there: Collection[int]) -> list[GroupCommitMember]:
        with self._lock:  # else two threads could look at the same commit and remove two
            loose, newest = self._loose.get(branch, []), self._known.of(branch)
            while loose and (
                loose[0].stored.header.version in there
                or (newest and loose[0].stored.header.version <= newest.header.version)
            ):
                placed = loose.pop(0).stored
                if newest is None or placed.header.version > newest.header.version:
                    newest = placed
                    self._known.note(branch, placed)
            versions = [(each.stored.header.version, each) for each in loose]
            return [each for version, each in versions if version <= upto and version not in there]

    def first_unseen(self, branch: str) -> int:
        newest = self._known.of(branch)
        return 0 if newest is None else newest.header.version + 1


# --- whole groups


#: Seconds after which another process writes the missing files of a group commit.
_PATIENCE = 2.0


class WholeGroups:
    """Waits until all files of a group commit exist, or writes the missing ones."""

    def __init__(
        self,
        storage: RemoteStorage,
        files: CommitFiles,
        listings: Listings,
        contention: Contention,
        group_commits: GroupCommits,
    ) -> None:
        self._storage = storage
        self._files = files
        self._listings = listings
        self._contention = contention
        self._group_commits = group_commits

    def whole(self, stored: Stored, there: Collection[int]) -> Stored:
        """Return the last commit of a commit's group commit, after all files of the group exist.

        The leader writes them at once, unless it has died. `there`: versions whose files are known to exist.
        """
        group_commit = stored.header.group_commit
        if group_commit is None:
            return stored
        branch = stored.header.branch
        self._contention.note_group(stored, group_commit.length)
        first = stored.header.version - group_commit.place
        low = min(there, default=first)
        missing = {version for version in range(max(first, low), first + group_commit.length) if version not in there}
        began = asked = time.monotonic()
        while missing and asked < began + _PATIENCE:
            listed = self._listings.above(branch, min(missing)) if self._listings.can_list_on else None
            missing = {version for version in missing if not self._is_there(branch, version, listed)}
            time.sleep((time.monotonic() - asked) / 2 if missing else 0.0)
            asked = time.monotonic()
        if missing:
            try:
                self._group_commits.complete(branch, first)
            except PermissionError:  # a process that may only read stops at the last commit whose file exists
                last = self._files.read(branch, min(missing) - 1)
                return stored if last is None else last
        last = (
            stored
            if group_commit.place + 1 == group_commit.length
            else self._files.read(branch, first + group_commit.length - 1)
        )
        if last is None:
            raise CorruptionError(stored.path, reason="the files of its group commit are missing")
        self._take_along(last, first)
        return last

    def _is_there(self, branch: str, version: int, listed: BranchListing | None) -> bool:
        return (
            self._storage.exists(names.commit_path(branch, version)) if listed is None else version in listed.versions
        )

    def _take_along(self, last: Stored, first: int) -> None:
        """Read all commits of a group with one request, if they are not cached: their runs are small and many."""
        before = last.header.runs[1:2]
        pack = before[0].pack if before else None
        if pack is None or self._storage.cache.find(pack.id, packfile.HEAD_SIZE, 1) is not None:
            return
        with contextlib.suppress(OSError, CorruptionError):  # each can also be read alone
            for each in self._group_commits.read(last.header.branch, first):
                self._storage.cache.keep(each.stored.header.id, 0, each.content)

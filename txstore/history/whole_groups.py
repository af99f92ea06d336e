"""Finds the group commit that a commit belongs to, and waits until the files of all its commits exist."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection

from txstore.commit import Stored
from txstore.commit_queue.group_commits import BranchListing, GroupCommits
from txstore.errors import CorruptionError
from txstore.format import names, packfile
from txstore.history.commit_files import CommitFiles
from txstore.history.contention import Contention
from txstore.history.listings import Listings
from txstore.storage.remote import RemoteStorage

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

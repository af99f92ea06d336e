"""The group commit that a commit is of, when all of its commits are in their places."""

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

#: Seconds after which somebody else puts the commits of a group commit in their places.
_PATIENCE = 2.0


class WholeGroups:
    """Waits until a group commit is complete, or completes it."""

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
        """Return the last commit of the group commit that a commit is of, when all of them are in their places.

        The one who leads does that at once, unless it has died. `there`: versions that are known to be taken.
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
            except PermissionError:  # who may only read comes to what others have told to be made
                last = self._files.read(branch, min(missing) - 1)
                return stored if last is None else last
        last = (
            stored
            if group_commit.place + 1 == group_commit.length
            else self._files.read(branch, first + group_commit.length - 1)
        )
        if last is None:
            raise CorruptionError(stored.path, reason="what was decided with it is not there")
        self._take_along(last, first)
        return last

    def _is_there(self, branch: str, version: int, listed: BranchListing | None) -> bool:
        return (
            self._storage.exists(names.commit_path(branch, version)) if listed is None else version in listed.versions
        )

    def _take_along(self, last: Stored, first: int) -> None:
        """Read all of a group commit at once, if that is not at hand: its runs are many small ones."""
        before = last.header.runs[1:2]
        pack = before[0].pack if before else None
        if pack is None or self._storage.cache.find(pack.id, packfile.HEAD_SIZE, 1) is not None:
            return
        with contextlib.suppress(OSError, CorruptionError):  # each can be read by itself
            for each in self._group_commits.read(last.header.branch, first):
                self._storage.cache.keep(each.stored.header.id, 0, each.content)

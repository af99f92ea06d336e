"""Keeps the commits of group commits that were decided, but whose files this process has not seen."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from txstore import processes
from txstore.commit import Stored
from txstore.commit_queue.group_commits import BranchListing, GroupCommitMember
from txstore.format import names
from txstore.history.commit_files import CommitFiles
from txstore.history.heads import KnownHeads
from txstore.history.listings import Listings
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

"""What this process has seen of each branch on an object store.

It lists the taken versions, and the proposals for the next one. And it tracks whether other committers are about to
commit, as far as it has met them.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from txstore.commit import Stored
from txstore.commit_queue.group_commits import TRUSTED, BranchListing, Look
from txstore.format import names
from txstore.storage.objects.interface import Object, ObjectStore

_LISTED = 1000


class Listings:
    """Lists the branches of one repository."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self.can_list_on = True  # whether it lists from a name on; True until a listing has failed
        self.has_listed_on = False
        self.stopped: set[str] = set()  # branches whose commits are stopped until a repair

    def above(self, branch: str, version: int) -> BranchListing | None:
        """List a branch from a version on. None if the server can't do so with one request."""
        directory, after = names.commits_directory(branch), names.version_name(version - 1) if version else ""
        found = self._objects.list_after(directory, after, _LISTED)
        if found is None:
            self.can_list_on = False
            return None
        self.has_listed_on = True
        listed = list(found)
        while len(found) == _LISTED:
            found = self._objects.list_after(directory, listed[-1].name, _LISTED) or []
            listed += found
        return self._sorted_out(branch, listed)

    def _sorted_out(self, branch: str, found: Collection[Object]) -> BranchListing:
        listed = BranchListing.of(found)
        (self.stopped.add if listed.stops else self.stopped.discard)(branch)
        return listed

    def all(self, branch: str) -> BranchListing:
        """List a whole branch."""
        return self._sorted_out(branch, self._objects.list(names.commits_directory(branch)))


class Looks:
    """The times when this process last looked for the head of each branch."""

    def __init__(self) -> None:
        self._looks: dict[str, Look] = {}

    def of(self, branch: str) -> Look | None:
        return self._looks.get(branch)

    def note(self, branch: str, look: Look) -> None:
        self._looks[branch] = look

    def forget(self, branch: str) -> Look | None:
        """Forget the last look, so that the next committer looks for the head. Return the last look."""
        return self._looks.pop(branch, None)

    def note_free(self, branch: str, look: Look, before: Look | None) -> None:
        """Record that the version above the known head was free. The look before shows that it was never taken.

        If that look is too old, a vacuum may have freed the version since: then the next committer has to list.
        """
        if is_trusted(before):
            self.note(branch, look)
        else:
            self.forget(branch)


def is_trusted(look: Look | None) -> bool:
    """Tell whether a look is so recent that no vacuum can have freed versions that it saw (I10)."""
    return look is not None and look.age < TRUSTED


#: A group commit this young, in seconds, means that others are about to commit.
_RECENT = 2.0
#: Other committers that make it unlikely that a version is still free after a large upload.
_CROWD = 2


class Contention:
    """The other committers of each branch that this process knows of."""

    def __init__(self, listings: Listings) -> None:
        self._listings = listings
        self._is_contended: dict[str, bool] = {}  # other committers are about to commit, too
        self._is_crowded: dict[str, bool] = {}
        self._led: dict[str, int] = {}  # the version that another committer is about to take for a group
        self._has_lost = False  # the running commit has lost a version
        self._has_waited: bytes | None = None  # the last commit of this process that has let a group pass

    def is_contended(self, branch: str) -> bool:
        return self._listings.can_list_on and self._is_contended.get(branch, False)

    def has_crowd(self, branch: str) -> bool:
        return self._listings.can_list_on and self._is_crowded.get(branch, False)

    def is_led(self, branch: str, version: int) -> bool:
        return self._led.get(branch) == version

    def set_contended(self, branch: str, is_contended: bool) -> None:
        self._is_contended[branch] = is_contended

    def has_to_wait(self, stored: Stored) -> bool:
        """Tell whether a commit has to let a group commit pass first. True at most once for each commit."""
        header = stored.header
        if not self.is_contended(header.branch) or header.fork is not None or self._has_waited == header.id:
            return False
        self._has_waited = header.id
        return True

    def note_won(self) -> None:
        self._has_lost = False

    def note_lost(self, branch: str) -> None:
        """Note that another committer was faster.

        A committer that has met one other for the first time tries again alone: that takes fewer round trips than
        looking for more. It does not if the server has never listed from a name on.
        """
        self._is_contended[branch] = self._has_lost and self._listings.has_listed_on
        self._has_lost = True

    def note_line(self, branch: str, line: list[Stored]) -> None:
        """Note the commits that were found in a lost version and the versions above it."""
        is_group = line[-1].header.group_commit is not None
        self._is_contended[branch] |= (len(line) > 1 and self._listings.has_listed_on) or is_group

    def note_group(self, stored: Stored, length: int) -> None:
        """Note that a commit belongs to a group commit of `length` commits."""
        branch = stored.header.branch
        if abs(time.time() - stored.header.time / 1e6) < _RECENT:
            self._is_contended[branch] = True
            self._is_crowded[branch] = self._is_crowded.get(branch, False) or length > _CROWD

    def notice(self, branch: str, top: int, listed: BranchListing) -> None:
        """Note whether other committers are about to commit: the listing shows their proposals.

        A proposal may be for a version that is now below the head, if another committer takes versions fast.
        """
        newest = listed.versions[top].modified
        others = {
            commit
            for (version, commit), proposal in listed.proposals.items()
            if version >= top or (newest is not None and newest - (proposal.modified or 0.0) < _RECENT)
        }
        self._is_contended[branch], self._is_crowded[branch] = bool(others), len(others) >= _CROWD
        self._led[branch] = max(listed.leads, default=-1)
        self._has_lost = False

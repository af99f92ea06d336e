"""Lists a branch on an object store: the taken versions, and the proposals for the next one."""

from __future__ import annotations

from collections.abc import Collection

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

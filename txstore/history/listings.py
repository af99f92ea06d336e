"""Listings of a branch on an object store: which versions are taken, and who is about to take the next one."""

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
        self.can_list_on = True  # from a name on, as far as it was tried
        self.has_listed_on = False
        self.stopped: set[str] = set()  # branches that no process may commit to until they are repaired

    def above(self, branch: str, version: int) -> BranchListing | None:
        """Return what there is of a branch from a version on; None where one request can't tell that."""
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
        """Return what there is of a branch."""
        return self._sorted_out(branch, self._objects.list(names.commits_directory(branch)))


class Looks:
    """When this process has last looked for the head of each branch."""

    def __init__(self) -> None:
        self._looks: dict[str, Look] = {}

    def of(self, branch: str) -> Look | None:
        return self._looks.get(branch)

    def note(self, branch: str, look: Look) -> None:
        self._looks[branch] = look

    def forget(self, branch: str) -> Look | None:
        """Let the head be looked for; return when that was done last."""
        return self._looks.pop(branch, None)

    def note_free(self, branch: str, look: Look, before: Look | None) -> None:
        """Note that the version above what is known of a branch was free, and, as the look before says, never taken.

        If that was too long ago, a vacuum may have freed the version since: then a listing has to say what is there.
        """
        if is_trusted(before):
            self.note(branch, look)
        else:
            self.forget(branch)


def is_trusted(look: Look | None) -> bool:
    """Tell whether no vacuum can have freed what was seen then: it lets commits stand for longer (I10)."""
    return look is not None and look.age < TRUSTED

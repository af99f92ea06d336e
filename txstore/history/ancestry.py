"""What two commits have in common, by way of all their parents: what was merged is not merged again.

The *reach* of a commit is, of each branch, up to which slot it has come from its commits, or has merged them. That is
all there is to know of its ancestors: of one branch, what is in a lower slot is an ancestor of what is in a higher one.
A merge says it in its header, and so does a commit that raises the floor, for all below it that is given up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from txstore.errors import SnapshotExpiredError
from txstore.format import encoding
from txstore.history.commit import Stored
from txstore.history.commits import Commits


class Reach(NamedTuple):
    """What is known of the ancestors of a commit, itself among them; or of a merge that was never committed."""

    slots: Mapping[str, int]  # by branch
    ends: frozenset[tuple[str, int]]  # commits behind which nothing is known: history was given up there

    def has(self, branch: str, slot: int) -> bool:
        return self.slots.get(branch, -1) >= slot

    def is_within(self, other: Reach) -> bool:
        """Tell whether what is not known of this one is no more than what the other has."""
        return all(other.has(*end) for end in self.ends)

    def __or__(self, other: Reach) -> Reach:
        """Return the reach of a merge of both."""
        return Reach(_union(self.slots, other.slots), self.ends | other.ends)


class Ancestry:
    """Finds reaches, and remembers them: of a commit that follows one of these, little has to be read."""

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._known: dict[bytes, Reach] = {}  # by the hash of a commit

    def reach(self, stored: Stored) -> Reach:
        found = self._known[stored.hash] = self._find(stored)
        return found

    def _find(self, stored: Stored) -> Reach:
        slots: dict[str, int] = {}
        while True:
            header, known = stored.header, self._known.get(stored.hash)
            slots.setdefault(header.branch, header.slot)
            if known is not None:
                return Reach(_union(slots, known.slots), known.ends)
            if header.reach:
                return Reach(_union(slots, header.reach), frozenset())
            if header.parent_id == encoding.NO_ID:
                return Reach(slots, frozenset())
            below = self._commits.parent(stored)  # be it kept or not: its header is as true as ever
            if header.merged is not None or below is None or not stored.follows(below):
                # A merge says nothing of its reach if not all of that was known.
                return Reach(slots, frozenset([(header.branch, header.slot)]))
            stored = below

    def joined(self, one: Stored, other: Stored | None = None) -> Mapping[str, int]:
        """Return the reach of a commit on top of these; nothing, if not all of it is known."""
        reaches = [self.reach(each) for each in (one, other) if each is not None]
        whole = [reach for reach in reaches if not reach.ends]
        if all(any(reach.is_within(each) for each in whole) for reach in reaches):
            return _union(*(reach.slots for reach in reaches))
        return {}

    def common(self, one: Reach, other: Reach) -> list[Stored] | None:
        """Return the best common ancestors, oldest first: none is an ancestor of another one. Mostly there is one.

        None if one of them is not kept, or not known any more.
        """
        found, missing = [], []
        for branch in one.slots.keys() & other.slots.keys():
            slot = min(one.slots[branch], other.slots[branch])
            stored = self._commits.read(branch, slot)
            if stored is None:
                missing.append((branch, slot))
            else:
                found.append(stored)
        best: list[Stored] = []
        before: list[Reach] = []
        # Newest first: a commit is newer than all of its ancestors.
        for stored in sorted(found, key=lambda each: (each.header.time, each.hash), reverse=True):
            if not any(reach.has(stored.header.branch, stored.header.slot) for reach in before):
                best.append(stored)
                before.append(self.reach(stored))
        is_known = one.is_within(other) and other.is_within(one)
        if not is_known or any(not any(reach.has(*each) for reach in before) for each in missing):
            return None
        return best[::-1] if all(map(self._commits.is_kept, best)) else None


def _union(*reaches: Mapping[str, int]) -> dict[str, int]:
    branches = dict.fromkeys(branch for reach in reaches for branch in reach)
    return {branch: max(reach.get(branch, -1) for reach in reaches) for branch in branches}


def common_ancestors(commits: Commits, one: Stored, other: Stored) -> list[Stored]:
    """Return the best common ancestors of two commits, oldest first; none if they have begun apart.

    Raises `SnapshotExpiredError` if one is not kept, or is not known any more.
    """
    ancestry = Ancestry(commits)
    found = ancestry.common(ancestry.reach(one), ancestry.reach(other))
    if found is None:
        raise SnapshotExpiredError(f"what {one.commit} and {other.commit} have in common")
    return found

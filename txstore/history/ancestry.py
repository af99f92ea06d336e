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
    """What is known of the ancestors of a commit, itself among them."""

    slots: Mapping[str, int]  # by branch
    end: Stored | None  # behind which nothing is known: history was given up there. None: all is known

    def has(self, stored: Stored) -> bool:
        return self.slots.get(stored.header.branch, -1) >= stored.header.slot

    def is_within(self, other: Reach) -> bool:
        """Tell whether what is not known of this one is no more than what the other has."""
        return self.end is None or other.has(self.end)


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
                return Reach(_union(slots, known.slots), known.end)
            if header.reach:
                return Reach(_union(slots, header.reach), None)
            if header.parent_id == encoding.NO_ID:
                return Reach(slots, None)
            below = self._commits.parent(stored)  # be it kept or not: its header is as true as ever
            if header.merged is not None or below is None or not stored.follows(below):
                return Reach(slots, stored)  # a merge says nothing of its reach if not all of that was known
            stored = below

    def joined(self, one: Stored, other: Stored | None = None) -> Mapping[str, int]:
        """Return the reach of a commit on top of these; nothing, if not all of it is known."""
        reaches = [self.reach(each) for each in (one, other) if each is not None]
        whole = [reach for reach in reaches if reach.end is None]
        if all(any(reach.is_within(each) for each in whole) for reach in reaches):
            return _union(*(reach.slots for reach in reaches))
        return {}


def _union(*reaches: Mapping[str, int]) -> dict[str, int]:
    branches = dict.fromkeys(branch for reach in reaches for branch in reach)
    return {branch: max(reach.get(branch, -1) for reach in reaches) for branch in branches}


def merge_base(commits: Commits, one: Stored, other: Stored) -> Stored | None:
    """Return the newest commit that both have come from, or have merged; None: they have begun apart.

    Raises `SnapshotExpiredError` if it is not kept, or is not known any more.
    """
    ancestry = Ancestry(commits)
    ours, theirs = ancestry.reach(one), ancestry.reach(other)
    gone = not (ours.is_within(theirs) and theirs.is_within(ours))
    found, missing = [], []
    for branch in ours.slots.keys() & theirs.slots.keys():
        slot = min(ours.slots[branch], theirs.slots[branch])
        stored = commits.read(branch, slot)
        if stored is None or not commits.is_kept(stored):
            missing.append((branch, slot))
        else:
            found.append(stored)
    newest = max(found, key=lambda stored: stored.header.time, default=None)  # what is older may be an ancestor of it
    if newest is not None and missing:
        before = ancestry.reach(newest).slots
        missing = [(branch, slot) for branch, slot in missing if before.get(branch, -1) < slot]
    if gone or missing:
        raise SnapshotExpiredError(f"what {one.commit} and {other.commit} have in common")
    return newest

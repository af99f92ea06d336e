"""Finds the common ancestors of two commits through all their parents, so that no change is merged twice.

The *reach* of a commit maps each branch to the highest version among the commit's ancestors. This describes all
ancestors, because in one branch each version is an ancestor of every higher version. A merge stores its reach in its
header. So does a commit that raises the oldest kept version, because the commits below it expire.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from txstore.commit import Stored
from txstore.errors import SnapshotExpiredError
from txstore.format import encoding
from txstore.history.commits import Commits


class Reach(NamedTuple):
    """The known ancestors of a commit, including itself; or of a merge that was never committed."""

    versions: Mapping[str, int]  # by branch
    ends: frozenset[tuple[str, int]]  # commits with unknown ancestors, which a vacuum has expired

    def has(self, branch: str, version: int) -> bool:
        return self.versions.get(branch, -1) >= version

    def is_within(self, other: Reach) -> bool:
        """Tell whether the other reach includes all unknown ancestors of this one."""
        return all(other.has(*end) for end in self.ends)

    def __or__(self, other: Reach) -> Reach:
        """Return the reach of a merge of both."""
        return Reach(_union(self.versions, other.versions), self.ends | other.ends)


class Ancestry:
    """Finds reaches and caches them. For a commit that follows a cached one, little has to be read."""

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._known: dict[bytes, Reach] = {}  # by the hash of a commit

    def reach(self, stored: Stored) -> Reach:
        found = self._known[stored.hash] = self._find(stored)
        return found

    def _find(self, stored: Stored) -> Reach:
        versions: dict[str, int] = {}
        while True:
            header, known = stored.header, self._known.get(stored.hash)
            versions.setdefault(header.branch, header.version)
            if known is not None:
                return Reach(_union(versions, known.versions), known.ends)
            if header.reach:
                return Reach(_union(versions, header.reach), frozenset())
            if header.parent_id == encoding.NO_ID:
                return Reach(versions, frozenset())
            below = self._commits.files.parent(stored)  # even if it has expired: its header is still valid
            if header.merged is not None or below is None or not stored.follows(below):
                # A merge stores no reach if part of its reach was unknown.
                return Reach(versions, frozenset([(header.branch, header.version)]))
            stored = below

    def joined(self, one: Stored, other: Stored | None = None) -> Mapping[str, int]:
        """Return the reach of a commit with these parents. Empty if part of it is unknown."""
        reaches = [self.reach(each) for each in (one, other) if each is not None]
        whole = [reach for reach in reaches if not reach.ends]
        if all(any(reach.is_within(each) for each in whole) for reach in reaches):
            return _union(*(reach.versions for reach in reaches))
        return {}

    def common(self, one: Reach, other: Reach) -> list[Stored] | None:
        """Return the best common ancestors, oldest first: none is an ancestor of another. Usually there is only one.

        Returns None if one of them is not kept, or is unknown.
        """
        found, missing = [], []
        for branch in one.versions.keys() & other.versions.keys():
            version = min(one.versions[branch], other.versions[branch])
            stored = self._commits.files.read(branch, version)
            if stored is None:
                missing.append((branch, version))
            else:
                found.append(stored)
        best: list[Stored] = []
        before: list[Reach] = []
        # Newest first: a commit is newer than all of its ancestors.
        for stored in sorted(found, key=lambda each: (each.header.time, each.hash), reverse=True):
            if not any(reach.has(stored.header.branch, stored.header.version) for reach in before):
                best.append(stored)
                before.append(self.reach(stored))
        is_known = one.is_within(other) and other.is_within(one)
        if not is_known or any(not any(reach.has(*each) for reach in before) for each in missing):
            return None
        return best[::-1] if all(map(self._commits.kept.has, best)) else None


def _union(*reaches: Mapping[str, int]) -> dict[str, int]:
    branches = dict.fromkeys(branch for reach in reaches for branch in reach)
    return {branch: max(reach.get(branch, -1) for reach in reaches) for branch in branches}


def common_ancestors(commits: Commits, one: Stored, other: Stored) -> list[Stored]:
    """Return the best common ancestors of two commits, oldest first. Empty if they have no common history.

    Raises `SnapshotExpiredError` if one of them is not kept, or is unknown.
    """
    ancestry = Ancestry(commits)
    found = ancestry.common(ancestry.reach(one), ancestry.reach(other))
    if found is None:
        raise SnapshotExpiredError(f"(the common ancestor of {one.commit} and {other.commit})")
    return found

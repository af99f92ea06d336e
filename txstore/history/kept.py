"""Which commits a vacuum keeps, and which names keep them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from txstore.commit import MAIN, Stored
from txstore.history.branch_names import BranchNames
from txstore.history.chain import Chain
from txstore.history.oldest_kept import OldestKept
from txstore.history.tag_names import TagNames


class KeptCommits:
    """What tags, branches, merges and the oldest kept versions of a repository keep."""

    def __init__(
        self,
        branches: BranchNames,
        tags: TagNames,
        oldest_kept: OldestKept,
        chain: Chain,
        head: Callable[[str], Stored | None],
    ) -> None:
        self._branches = branches
        self._tags = tags
        self._oldest_kept = oldest_kept
        self._chain = chain
        self._head = head

    def has(self, stored: Stored) -> bool:
        """Tell whether a commit is kept: no vacuum has expired it.

        It is not below the oldest kept version of a branch that there is, or it is tagged, or a branch begins behind
        it, or it is the last that a commit that is kept has merged of a branch.
        """
        header = stored.header
        if self._oldest_kept.of(header.branch) <= header.version and self._branches.is_living(header.branch):
            return True
        return self._is_held(stored) or self._is_merged(stored)

    def stays(self, stored: Stored, *, but_tag: str | None = None, but_branch: str | None = None) -> bool:
        """Tell whether a commit is kept whatever becomes of one name that it has."""
        header = stored.header
        if header.version >= self._oldest_kept.of(header.branch) and self._branches.is_living(header.branch):
            return True
        return self._is_held(stored, but_tag=but_tag, but_branch=but_branch)

    def _is_held(self, stored: Stored, *, but_tag: str | None = None, but_branch: str | None = None) -> bool:
        """Tell whether a commit is tagged, or a branch begins behind it."""
        commit_id = stored.header.id
        if any(tag.commit_id == commit_id for name, tag in self._tags.all().items() if name != but_tag):
            return True
        return any(record.commit_id == commit_id for name, record in self._branches.all().items() if name != but_branch)

    def _is_merged(self, stored: Stored) -> bool:
        """Tell whether a commit that is kept has merged this one."""
        living = [MAIN, *(record.id for record in self._branches.all().values())]
        heads = [head for head in map(self._head, living) if head is not None]
        place, related = (stored.header.branch, stored.header.version), self._branches.related()
        return any(place in kept_with(child, related) for head in heads for child in self._chain.ancestors(head))


def kept_with(stored: Stored, related: Collection[str]) -> Iterator[tuple[str, int]]:
    """Yield the branches and versions of commits that are kept as long as a commit is: how far it reaches into others.

    They are what a later merge begins at, with any of the `related` branches.
    """
    header = stored.header
    if header.merged is not None:
        yield header.merged.branch, header.merged.version
    for branch, version in header.reach.items():
        if branch != header.branch and branch in related:
            yield branch, version

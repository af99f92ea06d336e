"""What two commits have in common, by way of all their parents: what was merged is not merged again."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count

from txstore.errors import SnapshotExpiredError
from txstore.history.changes import parent_of
from txstore.history.commit import Stored
from txstore.history.commits import Commits


def merge_base(commits: Commits, one: Stored, other: Stored) -> Stored | None:
    """Return the newest commit that both have come from, or have merged; None: they have begun apart.

    Commits are visited newest first, each before its parents, since it is later than these. On one branch, what is in a
    lower slot is an ancestor, be it that a vacuum has given up what is in between.

    Raises `SnapshotExpiredError` if it is not kept.
    """
    order, gone = count(), None
    waiting: list[tuple[int, int, Stored, int]] = []
    reached: tuple[dict[str, int], dict[str, int]] = {}, {}  # by branch, the highest slot that a side comes from

    def visit(stored: Stored, side: int) -> None:
        header = stored.header
        if reached[side].get(header.branch, -1) < header.slot:
            reached[side][header.branch] = header.slot
        heapq.heappush(waiting, (-header.time, next(order), stored, side))

    visit(one, 0)
    visit(other, 1)
    visited: set[tuple[bytes, int]] = set()
    while waiting:
        _, _, stored, side = heapq.heappop(waiting)
        if reached[1 - side].get(stored.header.branch, -1) >= stored.header.slot:
            return stored
        if (stored.hash, side) in visited:
            continue
        visited.add((stored.hash, side))
        for parent in _parents(commits, stored):
            if parent is None:
                gone = stored
            else:
                visit(parent, side)
    if gone is not None:
        raise SnapshotExpiredError(f"what {one.commit} and {other.commit} have in common")
    return None


def _parents(commits: Commits, stored: Stored) -> Iterator[Stored | None]:
    """Yield the parents of a commit; None for one that is not kept."""
    try:
        parent = parent_of(commits, stored)
        if parent is not None:
            yield parent
    except SnapshotExpiredError:
        yield None
    if stored.header.merged is not None:
        yield commits.named(stored.header.merged)

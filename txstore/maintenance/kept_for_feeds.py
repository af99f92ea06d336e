"""Tells which commits a vacuum keeps for feeds: those that they have not seen, up to the limit of each."""

from __future__ import annotations

from collections.abc import Iterator

from txstore.commit import Stored
from txstore.errors import CorruptionError
from txstore.format.cursors import Cursor, is_mark
from txstore.history.commits import Commits
from txstore.history.find import first_since
from txstore.maintenance.reachable import living_branches


def kept_for_feeds(commits: Commits, head: Stored) -> Iterator[int]:
    """Yield for each feed the lowest version that it needs of a branch, whose head is given.

    The cursors are those in the newest commits of all branches. A feed needs the commit where it is, too: the next
    change is told against it. Raises `CorruptionError` for a cursor that can't be understood.
    """
    branch = head.header.branch
    for cursor in _cursors(commits):
        version = max(cursor.place.version, 0)
        line = {cursor.branch: None, **dict(commits.branches.lineage(cursor.branch))}
        last = line.get(branch, -1)  # the last version of this branch that the followed one has
        if last is None or version <= last:
            yield max(version, _limit(commits, head, cursor))


def _limit(commits: Commits, head: Stored, cursor: Cursor) -> int:
    """Return the lowest version that the limit of a feed allows to keep."""
    of_commits, of_time = cursor.keep
    lowest = 0 if of_commits is None else head.header.version - of_commits
    if of_time is not None:
        lowest = max(lowest, first_since(commits, head, int(commits.storage.now() * 1_000_000) - of_time) - 1)
    return max(lowest, 0)


def _cursors(commits: Commits) -> Iterator[Cursor]:
    heads = filter(None, map(commits.head, living_branches(commits)))
    for head in heads:
        for name, written in head.header.declared.cursors.items():
            if not is_mark(name):
                try:
                    yield Cursor.from_dict(written)
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    raise CorruptionError(head.path, reason=f"cursor {name!r} is invalid: {error!r}") from error

"""Decides which sorted runs are merged into one, and when.

A run is merged with the newer ones while it has at most twice their entries together. So the result has at least half
as many again as any run that went in, and each entry is copied a logarithmic number of times.

A commit merges small runs itself, right before it is published, and larger ones when they are overdue. `optimize`
merges all runs into one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from txstore.format.commitfile import RunName

#: Bytes of runs that a small commit merges: on a disk, where that takes milliseconds; on an object store, where they go
#: to the server, and may have to come from there first.
ON_DISK, IN_OBJECTS = 256 << 10, 16 << 10
#: Overdue runs that a small commit tolerates: it merges no large ones. With each run more it merges twice as much; the
#: second number limits how often that doubles.
_SPARED, _DOUBLED_MOST = 8, 40


def merged_by_commit(names: Sequence[RunName], at_once: int, brought: int) -> Sequence[RunName]:
    """Return the adjacent runs of a commit that the next commit merges into one. Empty: none.

    A large commit, of `brought` bytes, merges half as many again, which takes little time beside its own. A small one
    merges `at_once` bytes, and twice as much with each overdue run above `_SPARED`. So the number of overdue runs is
    logarithmic, too: of all bytes by `at_once`.
    """
    doubled = min(max(_overdue(names) - _SPARED, 0), _DOUBLED_MOST)
    return _adjacent(names, max(at_once << doubled, brought // 2))


def together(entries: Iterable[int]) -> int:
    """Return how many runs, from the first and newest one on, are merged into one; `entries`: of each run."""
    count = total = 0
    for each in entries:
        weight = max(each, 1)
        if count and weight > 2 * total:
            break
        total, count = total + weight, count + 1
    return count


def _adjacent(names: Sequence[RunName], room: int) -> Sequence[RunName]:
    """Return the newest runs that are merged together and have at most `room` bytes."""
    for first in range(len(names) - 1):
        count = together(name.entries for name in _within(names[first:], room))
        if count > 1:
            return names[first : first + count]
    return ()


def _within(names: Sequence[RunName], room: int) -> Iterator[RunName]:
    length = 0
    for name in names:
        length += name.length
        if length > room:
            return
        yield name


def _overdue(names: Sequence[RunName]) -> int:
    """Return the number of runs that are at most twice as large as the next newer one."""
    return sum(max(older.entries, 1) <= 2 * max(newer.entries, 1) for newer, older in pairwise(names))

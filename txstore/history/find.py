"""Finding a commit by what a person knows of it: its slot, the beginning of its id, a date, a tag."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from operator import index
from typing import SupportsIndex

from txstore.errors import CommitNotFoundError, CorruptionError, SnapshotExpiredError
from txstore.format import names
from txstore.history.commit import EPOCH, MAIN, Stored
from txstore.history.commits import Commits


def find_commit(commits: Commits, at: SupportsIndex | str | datetime, branch: str = MAIN) -> Stored:
    """Return the commit by slot, by id (or its first 4 digits or more), or the newest at a date.

    Raises `CommitNotFoundError` if there is none, `ValueError` for a naive datetime.
    """
    commits.check_branch(branch)
    if isinstance(at, datetime):
        return _at_time(commits, at, branch, _existing_head(commits, branch))
    if isinstance(at, str):
        return _by_id(commits, at, _existing_head(commits, branch))
    if isinstance(at, bool) or not isinstance(at, SupportsIndex):
        raise TypeError(f"at= takes a slot, a commit id or a datetime, not {type(at).__name__}")
    slot = index(at)
    stored = commits.read(branch, slot) if slot >= 0 else None
    if stored is None:
        head = _existing_head(commits, branch)
        floor = max(head.header.floor, commits.floor(branch))
        if 0 <= slot < floor:
            raise SnapshotExpiredError(f"{branch}@{slot}")
        raise CommitNotFoundError(f"slot {slot}", hint=f"branch {branch!r} has slots {floor} to {head.header.slot}")
    return stored


def _existing_head(commits: Commits, branch: str) -> Stored:
    head = commits.head(branch)
    if head is None:
        raise CommitNotFoundError(f"branch {branch!r}", hint="this repository has no commits yet")
    return head


def _by_id(commits: Commits, commit_id: str, head: Stored) -> Stored:
    wanted = commit_id.lower()
    found: list[Stored] = []
    for stored in _kept(commits, head) if len(wanted) >= 4 else ():
        if stored.header.id.hex().startswith(wanted):
            found.append(stored)
            if len(wanted) == 32:
                break
    if len(found) == 1:
        return found[0]
    hint = "several commits begin like this: give more digits" if found else "there is no such commit; see repo.log()"
    raise CommitNotFoundError(f"commit {commit_id!r}", hint=hint)


def _kept(commits: Commits, head: Stored) -> Iterator[Stored]:
    """Yield the commits that are kept: down to the floor, then the tagged ones below it."""
    lowest = head.header.slot
    for stored in commits.ancestors(head):
        lowest = stored.header.slot
        yield stored
    below = {tag.slot for tag in commits.tags().values() if tag.branch == head.header.branch and tag.slot < lowest}
    for slot in sorted(below, reverse=True):
        if (tagged := commits.read(head.header.branch, slot)) is not None:
            yield tagged


def _at_time(commits: Commits, at: datetime, branch: str, head: Stored) -> Stored:
    if at.tzinfo is None:
        raise ValueError(f"{at.isoformat()} has no time zone: add one, for example at.astimezone() for local time")
    wanted = round((at - EPOCH) / timedelta(microseconds=1))
    floor = max(head.header.floor, commits.floor(branch))
    low, high, found = floor, head.header.slot, None
    while low <= high:  # times ascend with the slots
        middle = (low + high) // 2
        stored = commits.read(branch, middle)
        if stored is None and commits.is_below_floor(branch, middle):
            low = floor = commits.floor(branch)  # a vacuum has overtaken us
            continue
        if stored is None:
            raise CorruptionError(names.commit_path(branch, middle), reason="the file is missing")
        if stored.header.time <= wanted:
            low, found = middle + 1, stored
        else:
            high = middle - 1
    if found is None and floor:
        raise SnapshotExpiredError(f"{branch} at {at.isoformat()}")
    if found is None:
        raise CommitNotFoundError(f"commit at {at.isoformat()}", hint="the first commit is later; see repo.log()")
    return found


def first_since(commits: Commits, head: Stored, time: int) -> int:
    """Return the slot of the oldest commit, of those from the floor to `head`, that is not older than a time."""
    low, high = head.header.floor, head.header.slot
    while low < high:  # times ascend with the slots
        middle = (low + high) // 2
        stored = commits.read(head.header.branch, middle)
        if stored is not None and stored.header.time >= time:
            high = middle
        else:
            low = middle + 1
    return high


def find_tagged(commits: Commits, name: str) -> Stored:
    """Return the commit with a tag. Raises `CommitNotFoundError`."""
    tag = commits.read_tag(name)
    stored = commits.read(tag.branch, tag.slot)
    if stored is None or stored.header.id != tag.commit_id:
        raise CorruptionError(
            names.tag_path(name), reason=f"there is no commit {tag.commit_id.hex()} in slot {tag.slot}"
        )
    return stored

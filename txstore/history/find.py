"""Finds a commit by any name that a user may give: a version, the first digits of its id, a date, a tag, `HEAD~1`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from operator import index
from typing import SupportsIndex, TypeAlias

import numpy as np

from txstore.commit import EPOCH, MAIN, Commit, Stored
from txstore.errors import CommitNotFoundError, CorruptionError, KeyFormatError, SnapshotExpiredError
from txstore.format import names
from txstore.format.commitfile import CommitName
from txstore.history.commits import Commits
from txstore.history.kept_commits import near_names
from txstore.storage.objects.errors import NoListsError

#: The ways to name a commit: see `find_commit`. A negative number counts from the head, which is -1.
At: TypeAlias = Commit | SupportsIndex | str | datetime | np.datetime64

#: The name of the newest commit of a branch.
HEAD = "HEAD"

#: The error if a caller gives a tag or branch the commit None, a result of `repo.head()` or `commit()`.
NO_COMMIT = "there is no commit: nothing was committed yet, or commit() had no changes and no message"

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
#: Names of branches and tags can't have these forms: `main@3` is version 3 of main, `NAME~2` two commits before NAME.
_IN_VERSION = re.compile(r"(.+)@(-?\d+)")
_BEFORE = re.compile(r"(.+)~(\d*)")
_DIGITS = re.compile(r"[0-9A-Fa-f]{4,32}")
_UNDERSTOOD = "a version, a tag, a branch, HEAD, branch@version, the first 4 digits of an id or more, a date, or NAME~1"


def find_commit(commits: Commits, at: At, branch: str = MAIN) -> Stored:
    """Return the commit by version, by id (or its first 4 digits or more), by tag, or the newest at a date.

    `at` can also be a `Commit`, or a branch's name, which stands for its head; `HEAD` is the head of `branch`. `dev@3`,
    as commits are shown, is version 3 of dev. A name that ends in `~2` is two commits before, along first parents.

    A date is an aware `datetime`, ISO 8601 text with a zone, or a `numpy.datetime64`, which is in UTC. Versions and
    dates refer to `branch` and the branches that it forked from; ids are looked for in all branches. Raises
    `CommitNotFoundError` if there is no such commit, `ValueError` for a date without a zone.
    """
    if isinstance(at, Commit):
        return _of_commit(commits, at, branch)
    if isinstance(at, np.datetime64):
        at = _of_numpy(at)
    elif isinstance(at, str):
        if (named := _by_name(commits, at, branch)) is not None:
            return named
        if (before := _BEFORE.fullmatch(at)) is not None:
            later = find_commit(commits, before[1], branch)
            return _in_version(commits, later.header.branch, later.header.version - int(before[2] or 1), at)
        if (in_version := _IN_VERSION.fullmatch(at)) is not None:
            return find_commit(commits, int(in_version[2]), commits.branches.id_of(in_version[1]))
        if _DATE.match(at):
            at = _of_text(at)
    if isinstance(at, datetime):
        return _at_time(commits, at, branch, _existing_head(commits, branch))
    if isinstance(at, str):
        return _by_id(commits, at, branch)
    if isinstance(at, bool) or not isinstance(at, SupportsIndex):
        raise TypeError(f"at= takes a version, a commit, its id, a tag or a date, not {type(at).__name__}")
    version = index(at)
    if version < 0:
        version += _existing_head(commits, branch).header.version + 1
    return _in_version(commits, branch, version, f"version {index(at)}")


def _in_version(commits: Commits, branch: str, version: int, asked: str) -> Stored:
    stored = commits.files.at(branch, version) if version >= 0 else None
    if stored is None:
        head = _existing_head(commits, branch)
        older = commits.branches.owner(branch, 0)  # the branch of the first commit
        oldest_kept = (
            commits.oldest_kept.of(older)
            if older != branch
            else max(head.header.oldest_kept, commits.oldest_kept.of(branch))
        )
        if 0 <= version <= head.header.version and (
            version < oldest_kept or commits.branches.owner(branch, version) != branch
        ):
            raise SnapshotExpiredError(commits.branches.label(branch, version))
        shown = commits.branches.name_of(branch)
        raise CommitNotFoundError(asked, advice=f"branch {shown!r} has versions {oldest_kept} to {head.header.version}")
    return stored


def _of_commit(commits: Commits, commit: Commit, branch: str) -> Stored:
    """Find the stored commit of a `Commit`. Its branch may have been renamed since."""
    with contextlib.suppress(CommitNotFoundError):
        branch = commits.branches.id_of(commit.branch)
    stored = commits.files.at(branch, commit.version)
    if stored is not None and stored.header.id.hex() == commit.id:
        return stored
    try:
        return _by_id(commits, commit.id, branch)
    except CommitNotFoundError as error:
        if commit.version < commits.oldest_kept.of(branch):
            raise SnapshotExpiredError(str(commit)) from error
        raise


def _by_name(commits: Commits, name: str, branch: str) -> Stored | None:
    """Return the commit of a tag, or the head of a branch. None if no tag or branch has this name.

    Raises `CommitNotFoundError` if both have it. That happens if two processes created them at the same time, and died
    before they noticed.
    """
    tagged = branch_id = None
    with contextlib.suppress(CommitNotFoundError, KeyFormatError):
        tagged = find_tagged(commits, name)
    with contextlib.suppress(CommitNotFoundError, KeyFormatError):
        branch_id = commits.branches.id_of(name)
    if tagged is not None and branch_id is not None:
        advice = "a tag and a branch have this name: use tag= or branch=, and delete or rename one of them"
        raise CommitNotFoundError(f"commit {name!r}", advice=advice)
    if branch_id is not None:
        return commits.head(branch_id)
    if tagged is not None:
        return tagged
    return _existing_head(commits, branch) if name == HEAD else None


def _of_numpy(at: np.datetime64) -> datetime:
    if np.isnat(at):
        raise ValueError("NaT is no date")
    return EPOCH + timedelta(microseconds=int(at.astype("datetime64[us]").astype(np.int64)))


def _of_text(at: str) -> datetime:
    try:
        return datetime.fromisoformat(at)
    except ValueError as error:
        raise ValueError(f"{at!r} is no date: {error}; write a date like 2026-03-01T12:00Z") from None


def _existing_head(commits: Commits, branch: str) -> Stored:
    head = commits.head(branch)
    if head is None:
        shown = commits.branches.name_of(branch)
        raise CommitNotFoundError(f"branch {shown!r}", advice="this repository has no commits yet")
    return head


def may_be_id(name: str) -> bool:
    """Tell whether a name may be an id, or its first digits: to find out is a walk through the history."""
    return _DIGITS.fullmatch(name) is not None


def _by_id(commits: Commits, commit_id: str, branch: str) -> Stored:
    wanted = commit_id.lower()
    found: dict[bytes, Stored] = {}
    for stored in _kept(commits, branch) if may_be_id(wanted) else ():
        if stored.header.id.hex().startswith(wanted):
            found[stored.header.id] = stored
            if len(wanted) == 32:
                break
    if len(found) == 1:
        return found.popitem()[1]
    advice = "several ids begin with these digits: give more" if found else _advice(commits, commit_id)
    raise CommitNotFoundError(f"commit {commit_id!r}", advice=advice)


def _advice(commits: Commits, asked: str) -> str:
    """Return the text that lists the accepted forms, and existing names similar to the unknown one."""
    if re.fullmatch(r"[0-9a-f]{32}", asked):
        return "there is no such commit; repo.log() and `txstore log` list them"
    try:
        there = [*commits.tags.names(), MAIN, *commits.branches.all(), HEAD]
    except NoListsError:
        there = []
    meant = near_names(asked, there) or "there is no such commit"
    return f"{meant}; a commit is named by {_UNDERSTOOD}; repo.log() and `txstore log` list them"


def _kept(commits: Commits, branch: str) -> Iterator[Stored]:
    """Yield the kept commits of each branch, `branch` first, down to the oldest kept version. Then tagged commits."""
    met: set[CommitName] = set()
    _existing_head(commits, branch)
    for each in _branches_from(commits, branch):
        for stored in commits.chain.ancestors(commits.head(each)):
            if stored.name in met:
                break  # its ancestors were met, too
            met.add(stored.name)
            yield stored
    tagged = [(tag.branch, tag.version) for tag in commits.tags.all().values()]
    begun = [(record.fork.branch, record.fork.version) for record in commits.branches.all().values()]
    for place in sorted({*tagged, *begun} - {(name.branch, name.version) for name in met}, reverse=True):
        if (stored_there := commits.files.read(*place)) is not None:
            yield stored_there


def _branches_from(commits: Commits, first: str) -> Iterator[str]:
    yield first
    yield from sorted({MAIN, *(record.id for record in commits.branches.all().values())} - {first})


def _at_time(commits: Commits, at: datetime, branch: str, head: Stored) -> Stored:
    if at.tzinfo is None:
        raise ValueError(
            f"{at.isoformat()} has no time zone: add one, such as {at.isoformat()}Z, or at.astimezone() for local time"
        )
    wanted = round((at - EPOCH) / timedelta(microseconds=1))
    branch, fork = head.header.branch, commits.branches.fork(head.header.branch)
    oldest_kept = max(head.header.oldest_kept, commits.oldest_kept.of(branch))
    if fork is not None and oldest_kept == fork.version:  # all of the branch's own commits are kept
        before = commits.files.fork_point(branch)
        if before is not None and before.header.time > wanted:
            return _at_time(commits, at, fork.branch, before)
    low, high, found = oldest_kept, head.header.version, None
    while low <= high:  # times ascend with the versions
        middle = (low + high) // 2
        stored = commits.files.at(branch, middle)
        if stored is None and commits.oldest_kept.is_above(branch, middle):
            low = oldest_kept = commits.oldest_kept.of(branch)  # a vacuum expired it during the search
            continue
        if stored is None:
            raise CorruptionError(names.commit_path(branch, middle), reason="the file is missing")
        if stored.header.time <= wanted:
            low, found = middle + 1, stored
        else:
            high = middle - 1
    if found is None and oldest_kept:
        raise SnapshotExpiredError(f"{commits.branches.name_of(branch)} at {at.isoformat()}")
    if found is None:
        raise CommitNotFoundError(f"commit at {at.isoformat()}", advice="the first commit is later; see repo.log()")
    return found


def first_since(commits: Commits, head: Stored, time: int) -> int:
    """Return the version of the oldest kept commit, up to `head`, that is not older than a time."""
    low, high = head.header.oldest_kept, head.header.version
    while low < high:  # times ascend with the versions
        middle = (low + high) // 2
        stored = commits.files.at(head.header.branch, middle)
        if stored is not None and stored.header.time >= time:
            high = middle
        else:
            low = middle + 1
    return high


def find_tagged(commits: Commits, name: str) -> Stored:
    """Return the commit of a tag. Raises `CommitNotFoundError`."""
    while True:
        tag = commits.tags.read(name)
        stored = commits.files.read(tag.branch, tag.version)
        if stored is not None and stored.header.id == tag.commit_id:
            return stored
        if commits.tags.read(name) == tag:  # else a user deleted or replaced the tag, and a vacuum expired the commit
            reason = f"there is no commit {tag.commit_id.hex()} in version {tag.version}"
            raise CorruptionError(names.tag_path(name), reason=reason)

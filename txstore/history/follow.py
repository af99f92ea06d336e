"""Follows a branch: yields each new commit in order, whichever process makes it, even if that process then dies.

A follower learns of a commit only by reading it. If the system supports watches, a watch on the branch's directory only
says when to look. So a follower misses no commit of a writer that was killed.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from operator import index
from typing import SupportsIndex

from txstore._native import local
from txstore.commit import MAIN, Commit, Stored
from txstore.errors import CommitNotFoundError, CorruptionError, RepositoryNotFoundError, SnapshotExpiredError
from txstore.format import names
from txstore.format.cursors import FeedPlace
from txstore.history.commits import Commits
from txstore.history.find import At, find_commit

#: Seconds between two looks. Without a watch, the pause doubles from the first to the longest. With a watch, it is
#: always the longest: a watch may not report some commits, such as those made on another host of a network file system.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 1.0


def follow(
    commits: Commits,
    branch: str = MAIN,
    since: At | None = None,
    timeout: float | None = None,
    *,
    is_given_up: Callable[[], bool] = bool,
) -> Generator[Commit, None, None]:
    """Yield every commit after `since`, in order, and wait for the next: `Repository.follow`.

    It ends within a second when `is_given_up()` is true: another thread can't close a generator that waits.
    """
    check_timeout(timeout)
    # Find the start here, not at the first next(): the follower has to yield every commit from now on.
    return _follow(Follower(commits, branch, since), timeout, is_given_up)


def check_timeout(timeout: float | None) -> None:
    """Raise `ValueError` if this is no number of seconds to wait for a commit."""
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout={timeout!r}: give seconds, 0 or more, or None to wait without limit")


def _beginning(commits: Commits, branch: str, since: At | None) -> FeedPlace | None:
    """Return the commit after which to begin. None: begin with the branch's first commit."""
    if not commits.identity.exists():
        if since in (None, -1):
            return None
        raise RepositoryNotFoundError(commits.storage.url)
    if since == -1:
        return None
    if since is None:
        head = commits.head(branch)
        return None if head is None else _place(head)
    if isinstance(since, SupportsIndex) and index(since) < 0:  # its meaning would change with each commit
        raise CommitNotFoundError(
            f"version {since}", advice="-1 is before the first commit, and no lower number is possible"
        )
    place = _place(find_commit(commits, since.version if isinstance(since, Commit) else since, branch))
    asked = since.id if isinstance(since, Commit) else place.commit
    there = commits.files.at(branch, place.version)
    if there is None or there.header.id.hex() != asked:  # a name or an id may be that of another branch's commit
        shown = commits.branches.name_of(branch)
        advice = f"version {place.version} of branch {shown!r} holds another commit; see repo.log({shown!r})"
        raise CommitNotFoundError(f"commit {asked}", advice=advice)
    head = commits.head(branch)  # read after the commit above, so it is not older
    if head is None or (place.version >= head.header.version and place != _place(head)):
        raise CommitNotFoundError(
            f"version {place.version}", advice="it holds an orphan, which is no commit; see repo.log()"
        )
    return place


def _follow(
    follower: Follower, timeout: float | None, is_given_up: Callable[[], bool]
) -> Generator[Commit, None, None]:
    with closing(follower):
        while (found := follower.next(timeout, is_given_up=is_given_up)) is not None:
            yield found.commit


class Follower:
    """Reads one branch, commit after commit. `close` releases its watch; it may go on after that."""

    def __init__(self, commits: Commits, branch: str = MAIN, since: At | None = None) -> None:
        """Begin after `since`, as `Repository.follow` does, and with its errors."""
        self._commits = commits
        self._branch = branch
        self.last = _beginning(commits, branch, since)  # None: before the first commit
        self._bell: _Bell | None = None

    def next(self, timeout: float | None, *, is_given_up: Callable[[], bool] = bool) -> Stored | None:
        """Return the next commit. None if none comes for `timeout` seconds, or when `is_given_up()` is true."""
        bell = self._bell = self._bell or _Bell(self._commits, self._branch)
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while (found := _next(self._commits, self._branch, self.last)) is None:
            left = deadline - time.monotonic()
            if left <= 0 or is_given_up():
                return None
            bell.wait(left)
        self.last = _place(found)
        bell.rang()
        return found

    def close(self) -> None:
        if self._bell is not None:
            self._bell.close()


def _next(commits: Commits, branch: str, last: FeedPlace | None) -> Stored | None:
    """Return the commit that follows the last one. None if there is no such commit yet.

    If the commit in the next version has another parent, it is an orphan. But if the head is at or above it, the
    followed commits are no longer the history. Each time before a wait, this checks that the head has not changed.
    """
    if last is None:
        if not commits.identity.exists() or commits.head(branch) is None:
            return None
        return _read(commits, branch, 0)
    above = commits.files.at(branch, last.version + 1)
    if above is not None and _is_given_up(commits, branch, last.version + 1):
        # Below the oldest kept version there may be gaps, and files that are not part of the history.
        raise SnapshotExpiredError(commits.branches.label(branch, last.version + 1))
    if above is not None and above.header.parent_id.hex() == last.commit:
        return above
    head = commits.head(branch)
    if head is not None and _place(head) == last:
        commits.branches.check_living(branch)
        return None
    if head is None or head.header.version <= last.version:
        raise _replaced(branch, last.version)
    above = _read(commits, branch, last.version + 1)  # another process made it since the first look
    if above.header.parent_id.hex() != last.commit:
        raise _replaced(branch, last.version)
    return above


def _read(commits: Commits, branch: str, version: int) -> Stored:
    """Read a commit at or below the head."""
    stored = commits.files.at(branch, version)
    if _is_given_up(commits, branch, version):
        raise SnapshotExpiredError(commits.branches.label(branch, version))
    if stored is not None:
        return stored
    raise CorruptionError(names.commit_path(branch, version), reason="the file is missing")


def _is_given_up(commits: Commits, branch: str, version: int) -> bool:
    return commits.oldest_kept.is_above(commits.branches.owner(branch, version), version)


def _place(stored: Stored) -> FeedPlace:
    return FeedPlace(stored.header.version, stored.header.id.hex())


def _replaced(branch: str, version: int) -> CorruptionError:
    reason = "this commit was there and is gone: the repository was deleted or replaced while it was followed"
    return CorruptionError(names.commit_path(branch, version), reason=reason)


class _Bell:
    """Says when to look for a commit again: sometimes too early or in vain, never more than a second too late."""

    def __init__(self, commits: Commits, branch: str) -> None:
        self._storage = commits.storage
        self._directory = names.commits_directory(branch)
        self._descriptor = -1
        self._process = os.getpid()
        self._pause = _FIRST_PAUSE

    def rang(self) -> None:
        """Record that there was a commit: without a watch, poll fast again, because the next may follow soon."""
        self._pause = _FIRST_PAUSE

    def wait(self, seconds: float) -> None:
        """Return when it is time to look, after `seconds` at the latest."""
        if self._descriptor >= 0 and self._process != os.getpid():
            self.close()  # a forked child shares the watch, and would take events from its parent
        if self._descriptor >= 0:
            self._listen(min(seconds, _LONGEST_PAUSE))
        elif not self._open():
            # The system's limit of watches is reached, the directory does not exist yet, or there are no watches.
            time.sleep(min(seconds, self._pause))
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        # Otherwise the watch was opened after the last look: look again before waiting.

    def _open(self) -> bool:
        with suppress(OSError):
            self._descriptor = self._storage.watch(self._directory)
            self._process = os.getpid()
        return self._descriptor >= 0

    def _listen(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        if poll.poll(math.ceil(seconds * 1000)) and not local.drain_watch(self._descriptor):
            self.close()

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

"""Reads the branch that a feed follows, from a place on: the next commit with a change below its paths, or the sum."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from txstore.comparing.diff import Diff
from txstore.errors import CommitNotFoundError, FeedExpiredError, SnapshotExpiredError
from txstore.feeds.changes import Erased, FeedChange, between
from txstore.format.cursors import Cursor, FeedPlace
from txstore.format.keys import directory_prefix
from txstore.history.changes import changed
from txstore.history.follow import Follower, check_timeout
from txstore.segments.replaced import read_records

if TYPE_CHECKING:
    from txstore.commit import Stored
    from txstore.engine import Engine
    from txstore.history.snapshot import Snapshot


class Reading:
    """One pass over the commits that a feed has not seen. It writes nothing. Use it in one thread."""

    def __init__(self, engine: Engine, feed: str, cursor: Cursor) -> None:
        """Begin where the cursor is. Raises `FeedExpiredError`, and `CommitNotFoundError` for a deleted branch."""
        self.cursor = cursor
        self._engine = engine
        self._feed = feed
        self._start = cursor.place  # where the feed has to be for the next change
        #: The next change, of one commit or of all that are pending: after it, what differs, what was erased.
        self._ahead: tuple[Snapshot, Diff, Erased] | None = None
        engine.commits.branches.check_living(cursor.branch)
        with self._expiring():
            stored = self._stored(cursor.place)
            self._origin = self._before = engine.snapshots.of(stored)
            self._follower = self._follow(stored)
        self._told: set[str] = set()  # ids of erasures
        self._met: set[str] = set()  # ids of those that the next change tells
        if cursor.handed_out is not None:
            self._jump_to(cursor.handed_out)

    @property
    def passed(self) -> FeedPlace:
        """The newest commit that is known to change nothing since the start, or the start."""
        return _place_of(self._before)

    def peek(self, timeout: float | None) -> bool:
        """Look for the next commit that changes something below the paths; wait for it, if need be."""
        check_timeout(timeout)
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        with self._expiring():
            while self._ahead is None:
                left = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
                last = self._follower.last
                try:
                    stored = self._follower.next(left)
                    if stored is None:
                        return False
                    self._look_at(stored)
                except BaseException:
                    self._follower.last = last  # no error lets this pass over a commit
                    raise
        return True

    def _look_at(self, stored: Stored) -> None:
        after = self._engine.snapshots.of(stored)
        erased = self._erased(after)
        if any(erased) or _has_data(stored):
            diff = between(self._engine, self._before, after, self.cursor.paths)
            if any(erased) or diff.nodes:
                self._ahead = after, diff, erased
                return
        self._before = after

    def next(self, timeout: float | None) -> FeedChange | None:
        """Return the change of the next commit that has one. None if none comes for `timeout` seconds."""
        return self._taken() if self.peek(timeout) else None

    def peek_sum(self, timeout: float | None) -> bool:
        """Look whether all that is pending changes something below the paths; wait until it does, if need be."""
        check_timeout(timeout)
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self._is_handed_out:
            head = self._engine.commits.head(self.cursor.branch)
            known = self._before if self._ahead is None else self._ahead[0]
            if head is not None and head.header.version > known.version:
                self._jump(head)
            if self._ahead is not None:
                return True
            if not self.peek(None if timeout is None else max(0.0, deadline - time.monotonic())):
                return False
        return True

    @property
    def _is_handed_out(self) -> bool:
        """Whether the next change is one that a job was given: it stays as it is, whatever comes later."""
        end = self.cursor.handed_out
        return end is not None and self._ahead is not None and _place_of(self._ahead[0]) == end

    def sum(self, timeout: float | None) -> FeedChange | None:
        """Return all pending changes as one, with the newest values. None if none comes for `timeout` seconds."""
        return self._taken() if self.peek_sum(timeout) else None

    def until(self, place: FeedPlace) -> FeedChange | None:
        """Return all changes up to a commit as one. None if they cancel each other."""
        self._jump_to(place)
        return self._taken()

    def is_pending(self) -> bool:
        """Tell whether the newest commit differs from the start below the paths, without looking at all of it."""
        if self._ahead is not None:
            return True
        with self._expiring():
            head = self._engine.snapshots.newest(self.cursor.branch)
            if head.version <= self._before.version:
                return False
            if any(self._erased(head)):
                return True
            paths = self.cursor.paths or ("",)
            return any(next(changed(self._before, head, path), None) is not None for path in paths)

    def close(self) -> None:
        self._follower.close()

    def _jump_to(self, place: FeedPlace) -> None:
        with self._expiring():
            stored = self._stored(place)
            assert stored is not None  # a change ends at a commit
            self._jump(stored)

    def _jump(self, stored: Stored) -> None:
        """Look at all changes up to a commit as one; pass over them if they cancel each other."""
        with self._expiring():
            after = self._engine.snapshots.of(stored)
            # Not against what was passed over: the change has the same token whichever commits this reading has seen.
            diff = between(self._engine, self._origin, after, self.cursor.paths)
            self.close()
            self._ahead, self._follower = None, self._follow(stored)
        erased = self._erased(after)
        if diff.nodes or any(erased):
            self._ahead = after, diff, erased
        else:
            self._before = after

    def _erased(self, after: Snapshot) -> Erased:
        """Return what was erased between the last place and a commit."""
        found: tuple[set[str], set[str]] = set(), set()
        before, self._met = self._before.version, set()
        for record in read_records(self._engine.storage):
            # The commits that have deleted such paths tell nothing: the ones before have nothing there any more. Rows
            # may also go from commits that the feed has seen, with no commit up to there that says so.
            until, of_rows = record.until.get(self.cursor.branch, -1), record.table is not None
            is_new = before < until <= after.version or (of_rows and before == until)
            if is_new and record.id not in self._told:
                self._met.add(record.id)
                found[of_rows].update(_common(record.paths, self.cursor.paths))
        return Erased(*(tuple(sorted(paths)) for paths in found))

    def _taken(self) -> FeedChange | None:
        if self._ahead is None:
            return None
        (after, diff, erased), self._ahead = self._ahead, None
        self._told |= self._met
        change = FeedChange(self._feed, self._start, self._engine, diff, after, erased)
        self._origin, self._before, self._start = after, after, change.place
        return change

    def _follow(self, stored: Stored | None) -> Follower:
        return Follower(self._engine.commits, self.cursor.branch, -1 if stored is None else stored.commit)

    def _stored(self, place: FeedPlace) -> Stored | None:
        if place.commit is None:
            return None
        commits = self._engine.commits
        stored = commits.files.at(self.cursor.branch, place.version)
        label = commits.branches.label(self.cursor.branch, place.version)
        if stored is None and commits.oldest_kept.is_above(
            commits.branches.owner(self.cursor.branch, place.version), place.version
        ):
            raise SnapshotExpiredError(label)
        if stored is None or stored.header.id.hex() != place.commit:
            reason = f"commit {place.commit} is not in the history any more, where {label} was"
            raise FeedExpiredError(self._feed, reason)
        return stored

    @contextmanager
    def _expiring(self) -> Iterator[None]:
        try:
            yield
        except (SnapshotExpiredError, CommitNotFoundError) as error:
            self._engine.commits.branches.check_living(self.cursor.branch)
            raise FeedExpiredError(self._feed, f"a vacuum has expired commits that it has not seen: {error}") from error


def _has_data(stored: Stored) -> bool:
    """Tell whether a commit may change any key. Commits that only move a cursor do not, nor does a vacuum."""
    header = stored.header
    return bool(header.sections or header.merged is not None or any(header.statistics.as_tuple()))


def _place_of(snapshot: Snapshot) -> FeedPlace:
    stored = snapshot.stored
    return FeedPlace(-1, None) if stored is None else FeedPlace(stored.header.version, stored.header.id.hex())


def _common(erased: Sequence[str], paths: Sequence[str]) -> Iterator[str]:
    """Yield what erased paths and the paths of a feed have in common: of two, the one below the other."""
    for one in erased:
        for other in paths or ("",):
            inner, outer = (one, other) if len(one) > len(other) else (other, one)
            if directory_prefix(inner).startswith(directory_prefix(outer)):
                yield inner

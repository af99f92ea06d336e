"""A feed: a durable cursor in the history of a branch, from which jobs take each change once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from txstore.commit import EPOCH
from txstore.engine import Engine
from txstore.errors import FeedExpiredError, FeedMovedError, FeedNotFoundError
from txstore.feeds.changes import FeedChange
from txstore.feeds.kept_cursor import KeptCursor, new_token
from txstore.feeds.reading import Reading
from txstore.feeds.shares import Share, begin_sharing
from txstore.format.cursors import BEGINNING, Cursor, FeedPlace
from txstore.history.find import At
from txstore.history.follow import Follower

if TYPE_CHECKING:
    from txstore.engine import Engine
    from txstore.history.declarations import Cursors
    from txstore.history.snapshot import Snapshot
    from txstore.store import TxStore


#: Commits that change nothing below the paths, for which a commit of its own moves the feed: it is one more of them.
_WORTH_MOVING = 64


@dataclass(frozen=True)
class FeedStatus:
    """How far a feed has come.

    Attributes
    ----------
    name : str
    branch : str
        The branch that the feed follows.
    kept_on : str
        The branch that the job commits to: its commits have the cursor.
    paths : tuple of str
        The arrays and groups that it follows; empty: everything.
    version, commit : int, str or None
        The last commit that is done; -1 and None before the first one.
    behind : int
        The number of commits since then, also of those that change nothing below the paths.
    pending : bool
        Whether the newest commit differs from that one below the paths. If not, the job has nothing to do.
    too_late : str or None
        Why the feed can't go on, if a vacuum has expired what it has not seen, or its branch was deleted.
    shared : bool
        Whether several workers share a change now.
    created : datetime
    keep : int, timedelta or None
        What a vacuum keeps for the feed, at most.
    """

    name: str
    branch: str
    kept_on: str
    paths: tuple[str, ...]
    version: int
    commit: str | None
    behind: int
    pending: bool
    too_late: str | None
    shared: bool
    created: datetime
    keep: int | timedelta | None

    def as_dict(self) -> dict[str, Any]:
        """Return the status for JSON."""
        keep = self.keep
        return {
            "name": self.name, "branch": self.branch, "kept_on": self.kept_on, "paths": list(self.paths),
            "version": self.version, "commit": self.commit, "behind": self.behind, "pending": self.pending,
            "too_late": self.too_late, "shared": self.shared, "created": self.created.isoformat(),
            "keep_commits": keep if isinstance(keep, int) else None,
            "keep_seconds": keep.total_seconds() if isinstance(keep, timedelta) else None,
        }  # fmt: skip


class Feed:
    """One feed of a repository: `repo.feeds[name]`. Iterating yields each pending `FeedChange`, oldest first.

    Iterating moves nothing: `advance` does. Each iteration begins where the feed is in the newest commit. An object is
    for one thread; make one for each.
    """

    def __init__(self, engine: Engine, name: str, kept_on: str) -> None:
        self._kept = KeptCursor(engine, name, kept_on)
        self._waiting: Reading | None = None  # has passed over commits that change nothing
        self._is_combining = False  # whether it has passed over commits that cancel each other, too

    @property
    def name(self) -> str:
        return self._kept.name

    def __repr__(self) -> str:
        return f"<Feed {self.name} of {self._kept.engine.url}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Feed, (self._kept.engine, self.name, self._kept.branch)

    # --- taking changes

    def __iter__(self) -> Iterator[FeedChange]:
        return self.changes()

    def changes(self, *, combine: bool = False, timeout: float | None = 0.0) -> Iterator[FeedChange]:
        """Yield each change that is pending, in the order of commits; then wait `timeout` seconds for the next.

        Commits that change nothing below the paths are passed over, such as those that only move a feed.

        Parameters
        ----------
        combine : bool
            Yield all that is pending as one change: what the newest commit has, against the last one that is done.
            Changes that cancel each other are not told. Before it is yielded, a commit notes where it ends: until
            `advance` the feed tells the same change, with the same token, whatever is committed meanwhile. The
            iteration ends if it has to tell the next one and `advance` has not moved the feed.
        timeout : float, optional
            By default it does not wait; None: without limit.

        Raises
        ------
        FeedExpiredError
            A vacuum has expired commits that the feed has not seen.
        FeedNotFoundError
            The feed was deleted.
        CommitNotFoundError
            The branch that it follows was deleted.
        """
        if combine:
            yield from self._combined(timeout)
            return
        reading = self._reading(self._kept.read(), combine=False)
        with closing(reading):
            while (change := reading.next(timeout)) is not None:
                yield change

    def _combined(self, timeout: float | None) -> Iterator[FeedChange]:
        cursor, told = self._kept.read(), None
        while cursor.place != told:
            with closing(self._reading(cursor, combine=True)) as reading:
                change = reading.sum(timeout)
            if change is None:
                return
            if self._hand_out(cursor, change.place):
                told = cursor.place
                yield change
            cursor = self._kept.read()

    def _hand_out(self, cursor: Cursor, end: FeedPlace) -> bool:
        """Note where a combined change ends, before the job has it. False if the feed was moved, or did so, meanwhile.

        If the job writes elsewhere and is killed, the change has to come again as it was, whatever the source is then.
        """
        if cursor.handed_out == end or cursor.shares is not None:  # workers that share a change move the feed
            return True

        def note(cursors: Cursors) -> bool:
            if self._kept.decode(cursors) != cursor:
                return False
            self._kept.put(cursors, cursor._replace(handed_out=end, token=new_token()))
            return True

        try:
            return self._kept.commit(f"feed {self.name} hands out all up to version {end.version}", note)
        except PermissionError:  # a process that can't commit can't move the feed either: it only looks
            return True

    def wait(self, timeout: float | None = None, *, combine: bool = False) -> bool:
        """Wait until a change is pending, `timeout` seconds at most. Return whether one is. It writes nothing.

        `combine` as in `changes`: it goes on waiting if all that is pending cancels itself. For `claim`, too; then it
        does not wait if workers share a change that is not done.
        """
        cursor = self._kept.read()
        if combine and cursor.shares is not None:
            return True
        self._waiting = reading = self._reading(cursor, combine=combine)
        return reading.peek_sum(timeout) if combine else reading.peek(timeout)

    def _reading(self, cursor: Cursor, *, combine: bool) -> Reading:
        known, self._waiting = self._waiting, None
        if known is not None and (known.cursor, self._is_combining) == (cursor, combine):
            return known
        if known is not None:
            known.close()
        self._is_combining = combine
        return Reading(self._kept.engine, self.name, cursor)

    def claim(self, shares: int = 16, *, timeout: float | None = 0.0) -> Iterator[Share]:
        """Yield shares of all that is pending, as one change, to one of several workers: each calls this.

        The workers divide the changed regions. Each commits its output with `share.done(store)`. A share whose worker
        dies goes to another one. When all shares are done, the feed moves, and the iteration of each worker ends. The
        same process, or thread, holds one share at a time: until it takes the next one.

        Parameters
        ----------
        shares : int
            Into how many shares the first worker divides the change, at most 256. The others join with its number.
        timeout : float, optional
            Seconds to wait until something is pending.

        Raises
        ------
        LocksUnavailableError
            The repository is where processes can't lock.
        """
        sharing = begin_sharing(self._kept, shares, timeout)
        if sharing is not None:
            yield from sharing.take()

    # --- moving

    def advance(self, store: TxStore | None = None, to: FeedChange | None = None) -> None:
        """Move the feed behind a change, in the commit of a transaction that has the job's output: both, or neither.

        Without a store, this makes a commit of its own: for a job whose output is elsewhere. Without a change, it moves
        over the next commits that change nothing below the paths, if there are 64 or more; in a job that combines
        changes, also over those that cancel each other. A job that waits long for a change does this now and then, so
        that a vacuum need not keep them.

        Raises
        ------
        FeedMovedError
            Another worker has done this change, or the feed was reset: roll back. If another worker does so at the same
            time, the commit raises `ConflictError`; one that `repo.run` then repeats raises this one.
        """
        if to is None:
            if store is not None:
                raise ValueError("say how far: feed.advance(store, to=change)")
            self._pass_over()
        elif not isinstance(to, FeedChange):
            raise TypeError(f"to={to!r}: give a change that the feed has told")
        elif store is None:
            where = f"feed {self.name} moved to {to.commit}"
            self._kept.commit(where, lambda cursors: self._move(cursors, to.start, to.place))
        else:
            if to.feed != self.name:
                raise ValueError(f"this is a change of feed {to.feed!r}, not of {self.name!r}")
            self._check_store(store)
            self._move(store.cursors, to.start, to.place)

    def _check_store(self, store: TxStore) -> None:
        if store.url != self._kept.engine.url:
            raise ValueError(
                f"the store is of {store.url}, and the feed of {self._kept.engine.url}: commit there first, with "
                "properties={'token': change.token}, then call feed.advance(to=change)"
            )
        if store.branch != self._kept.branch:
            raise ValueError(
                f"the store commits to branch {store.branch!r}, and this feed is kept on {self._kept.branch!r}: use "
                f"repo.feeds.on({store.branch!r})"
            )

    def _move(self, cursors: Cursors, start: FeedPlace, place: FeedPlace) -> None:
        try:
            cursor = self._kept.decode(cursors)
        except FeedNotFoundError as error:
            raise FeedMovedError(self.name, "the feed was deleted meanwhile") from error
        if cursor.shares is not None:
            raise FeedMovedError(self.name, "several workers share its changes now, see feed.claim()")
        if cursor.place != start:
            told = f"it is at version {cursor.place.version} now, and this change begins behind version {start.version}"
            raise FeedMovedError(self.name, told)
        if cursor.handed_out is not None and cursor.handed_out.version > place.version:
            told = f"a change up to version {cursor.handed_out.version} was handed out, and this one ends before"
            raise FeedMovedError(self.name, told)
        self._kept.put(cursors, cursor._replace(place=place, token=new_token(), handed_out=None))

    def _pass_over(self) -> None:
        cursor = self._kept.read()
        if cursor.shares is not None:
            return
        combine = self._is_combining  # as the job does
        self._waiting = reading = self._reading(cursor, combine=combine)
        reading.peek_sum(0.0) if combine else reading.peek(0.0)
        passed = reading.passed
        if passed.version - cursor.place.version >= _WORTH_MOVING:
            message = f"feed {self.name} moved over commits that change nothing"
            self._kept.commit(message, lambda cursors: self._move(cursors, cursor.place, passed))

    def reset(self, since: At | None = None, *, store: TxStore | None = None) -> None:
        """Move the feed to any commit: what comes after it is pending. By default to the newest one.

        `since` is as in `Repository.follow`: a commit, -1 is before the first one. With a store, the transaction's
        commit moves the feed, together with what it was made anew. Workers that share a change are told.
        """
        place, pinned = place_since(self._kept.engine, self._kept.read().branch, since)

        def move(cursors: Cursors) -> None:
            cursor = self._kept.decode(cursors)
            cursor = cursor._replace(place=place, token=new_token(), shares=None, handed_out=None)
            self._kept.put(cursors, cursor)

        if store is None:
            self._kept.commit(f"feed {self.name} reset", move)
        else:
            self._check_store(store)
            move(store.cursors)
        del pinned

    # --- where it is

    def status(self) -> FeedStatus:
        """Return how far the feed has come, and how far it is behind."""
        kept, cursor, commits = self._kept, self._kept.read(), self._kept.engine.commits
        pending, late, behind = False, None, 0
        try:
            reading = Reading(kept.engine, self.name, cursor)
            with closing(reading):
                pending = reading.is_pending()
        except (FeedExpiredError, LookupError) as error:
            late = str(error)
        if commits.branches.is_living(cursor.branch):
            head = commits.head(cursor.branch)
            behind = 0 if head is None else max(0, head.header.version - cursor.place.version)
        keep = cursor.keep
        return FeedStatus(
            name=self.name,
            branch=commits.branches.name_of(cursor.branch),
            kept_on=kept.branch,
            paths=cursor.paths,
            version=cursor.place.version,
            commit=cursor.place.commit,
            behind=behind,
            pending=pending,
            too_late=late,
            shared=cursor.shares is not None,
            created=EPOCH + timedelta(microseconds=cursor.created),
            keep=keep.commits if keep.microseconds is None else timedelta(microseconds=keep.microseconds),
        )


def place_since(engine: Engine, branch: str, since: At | None) -> tuple[FeedPlace, Snapshot]:
    """Return the place of a commit of a branch, as `Repository.follow` takes it, and its snapshot. Raises its errors.

    While the snapshot is kept, no vacuum expires the commit; from then on, none does because of the feed's cursor.
    """
    last = Follower(engine.commits, branch, since).last
    if last is None:
        return BEGINNING, engine.snapshots.of(None)
    pinned = engine.snapshots.of(engine.commits.files.at(branch, last.version))
    return last, pinned

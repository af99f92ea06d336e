"""The feeds of a repository: a mapping from names, which creates and deletes them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from txstore.commit import MAIN
from txstore.errors import CommitNotFoundError, FeedNotFoundError
from txstore.feeds.feed import Feed, FeedStatus, place_since
from txstore.feeds.kept_cursor import KeptCursor, new_token
from txstore.format.cursors import Cursor, Keep, is_mark
from txstore.format.keys import check_name, directory_prefix
from txstore.history.find import At

if TYPE_CHECKING:
    from txstore.engine import Engine
    from txstore.history.declarations import Cursors

#: What a vacuum keeps for a feed, unless another limit is given when it is created.
KEEP = timedelta(days=30)


class Feeds(Mapping[str, Feed]):
    """The feeds that are kept on one branch, by name: `Repository.feeds`. `on` gives those of another branch.

    A feed is kept on the branch that its job commits to. A branch that begins at a commit has the feeds of that commit,
    which from then on are others.
    """

    def __init__(self, engine: Engine, kept_on: str = MAIN) -> None:
        self._engine = engine
        self._kept_on = kept_on

    def on(self, branch: str) -> Feeds:
        """Return the feeds that are kept on another branch: those of jobs that commit there."""
        return Feeds(self._engine, branch)

    def __getitem__(self, name: str) -> Feed:
        self._kept(name).read()
        return Feed(self._engine, name, self._kept_on)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(name for name in self._kept("").written() if not is_mark(name)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and not is_mark(name) and name in self._kept("").written()

    def create(
        self,
        name: str,
        *,
        branch: str | None = None,
        paths: str | Sequence[str] = (),
        since: At | None = None,
        keep: int | timedelta | None = KEEP,
    ) -> Feed:
        """Create a feed, in a commit that changes nothing else.

        Parameters
        ----------
        name : str
            1 to 100 letters, digits, ".", "_" or "-".
        branch : str, optional
            The branch to follow; by default the one that the feed is kept on.
        paths : str or sequence of str
            The arrays and groups to follow, each with all that is below it; by default everything. If the job commits
            to the followed branch, its output must lie elsewhere, or it is a change that the feed tells, too.
        since : optional
            The commit after which to begin, as in `Repository.follow`: -1 is before the first one. By default the
            newest one.
        keep : int or timedelta, optional
            A vacuum keeps the commits that the feed has not seen; so many of the newest at most, or those of so long.
            If it has expired one, the feed raises `FeedExpiredError`. None: without limit.

        Raises
        ------
        ValueError
            There is a feed with this name.
        """
        check_name("feed", name)
        engine, kept = self._engine, self._kept(name)
        followed = engine.branch(self._kept_on if branch is None else branch)
        place, pinned = place_since(engine, followed, since)
        now = time.time_ns() // 1000
        cursor = Cursor(followed, _outermost(paths), place, new_token(), now, _checked(keep))

        def create(cursors: Cursors) -> None:
            if name in cursors:
                raise ValueError(f"there is a feed {name!r} already: take repo.feeds[{name!r}], or delete it first")
            kept.put(cursors, cursor)

        kept.commit(f"feed {name} created", create)
        del pinned
        return Feed(self._engine, name, self._kept_on)

    def statuses(self) -> list[FeedStatus]:
        """Return how far all feeds of the repository have come: those kept here, then those of other branches.

        Of a name that is kept on several branches, this lists the first: a branch has those of the commit at which it
        begins.
        """
        found: dict[str, FeedStatus] = {}
        for branch in [self._kept_on, MAIN, *sorted(self._engine.commits.branches.all())]:
            feeds = self.on(branch)
            with suppress(CommitNotFoundError):  # the branch was deleted meanwhile
                for name in feeds:
                    if name not in found:
                        with suppress(FeedNotFoundError):
                            found[name] = feeds[name].status()
        return list(found.values())

    def __delitem__(self, name: str) -> None:
        kept = self._kept(name)

        def delete(cursors: Cursors) -> None:
            if name not in cursors:
                raise FeedNotFoundError(name, self._kept_on)
            kept.put(cursors, None)

        kept.commit(f"feed {name} deleted", delete)

    def __repr__(self) -> str:
        return f"<Feeds {', '.join(self)}>"

    def _kept(self, name: str) -> KeptCursor:
        return KeptCursor(self._engine, name, self._kept_on)


def _outermost(paths: str | Sequence[str]) -> tuple[str, ...]:
    """Return the paths without those that lie below others; none if one is the root."""
    told = [paths] if isinstance(paths, str) else list(paths)
    if not all(isinstance(path, str) for path in told):
        raise TypeError(f"paths={paths!r}: a path, or a list of paths")
    given = sorted({path.strip("/") for path in told})
    for path in given:
        directory_prefix(path)  # raises `KeyFormatError`
    if "" in given:
        return ()
    return tuple(path for path in given if not any(path.startswith(f"{other}/") for other in given))


def _checked(keep: int | timedelta | None) -> Keep:
    if keep is None:
        return Keep()
    if isinstance(keep, timedelta):
        if keep <= timedelta(0):
            raise ValueError(f"keep={keep!r}: give a positive time")
        return Keep(microseconds=keep // timedelta(microseconds=1))
    if isinstance(keep, bool) or not isinstance(keep, int):
        raise TypeError(f"keep= takes a number of commits or a timedelta, not {type(keep).__name__}")
    if keep < 1:
        raise ValueError(f"keep={keep}: 1 is the least")
    return Keep(commits=keep)

"""Divides one change among several workers: each takes a share, and commits its output with a mark that it is done.

The cursor says where the change ends, so that all workers divide the same change. A worker takes a share by a lock that
dies with its process. The mark is a cursor of its own: workers of other shares do not conflict with it, and two that
have done the same share do. Each also sets the feed's cursor to what it is, and so conflicts with a reset. The worker
that finds all shares done moves the cursor.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from txstore.errors import FeedMovedError, FeedNotFoundError, LockTimeoutError
from txstore.feeds.changes import FeedChange, FeedNode, divided
from txstore.feeds.kept_cursor import KeptCursor, new_token
from txstore.feeds.reading import Reading
from txstore.format.cursors import MAX_SHARES, Cursor, Shares, mark_of
from txstore.history.follow import Follower

if TYPE_CHECKING:
    from txstore.history.declarations import Cursors
    from txstore.store import TxStore

#: Seconds between two looks for a share whose worker has died.
_LOOK_AGAIN = 0.25

Regions = Sequence[tuple[str, tuple[slice, ...]]]


class Share:
    """A part of a change for one worker, which holds it until it takes the next one, or dies.

    Attributes
    ----------
    change : FeedChange
        The whole change: all that was pending, as one.
    regions : list of (str, tuple of slice)
        The paths and regions of arrays that this worker has to do.
    nodes : list of FeedNode
        Nodes that were added, removed, moved, or have other shapes or attributes. Only the first share has them, and
        no regions; the others are handed out when it is done.
    """

    def __init__(
        self, kept: KeptCursor, change: FeedChange, shares: Shares, number: int, nodes: list[FeedNode], regions: Regions
    ) -> None:
        self.change = change
        self.number = number
        self.nodes = nodes
        self.regions = list(regions)
        self._kept = kept
        self._shares = shares

    def done(self, store: TxStore) -> None:
        """Let a transaction commit its output together with the mark that this share is done.

        Raises `FeedMovedError` if another worker has done it, or the feed was reset. If that happens at the same time,
        the commit raises `ConflictError`, and nothing is committed.
        """
        kept, cursors = self._kept, store.cursors
        written = dict(cursors)
        try:
            shares = kept.decode(written).shares
        except FeedNotFoundError as error:
            raise FeedMovedError(kept.name, "the feed was deleted meanwhile") from error
        if shares is None or shares.token != self._shares.token:
            raise FeedMovedError(kept.name, "this change is done, or the feed was reset")
        if self.number not in kept.undone(written, shares, self.number + 1):
            raise FeedMovedError(kept.name, "another worker has done this share")
        cursors[mark_of(kept.name, self.number)] = {"shares": shares.token, "token": new_token()}
        cursors[kept.name] = written[kept.name]  # so that a reset at the same time conflicts

    def __repr__(self) -> str:
        return f"<Share {self.number} of {self.change}: {len(self.nodes)} nodes, {len(self.regions)} regions>"


class SharedChange:
    """One worker's view of a change that is shared."""

    def __init__(self, kept: KeptCursor, change: FeedChange | None, into: int) -> None:
        self.shares: Shares | None = None
        self._kept = kept
        self._change = change
        nodes = [] if change is None else change.nodes
        self._nodes = [node for node in nodes if _is_structural(node)]  # those whose documents have changed
        self._has_first = bool(self._nodes or (change is not None and (change.erased or change.rows_erased)))
        self._divisions: list[Regions] = [*divided([(node.path, node.chunks) for node in nodes], into)]

    @property
    def division(self) -> str:
        """A digest of all shares."""
        told = repr(([node.path for node in self._nodes], self._has_first, self._divisions))
        return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()

    def take(self) -> Iterator[Share]:
        """Yield one share after another, as long as any is undone; wait for those of other workers."""
        kept, engine = self._kept, self._kept.engine
        follower = Follower(engine.commits, engine.branch(kept.branch))
        with contextlib.closing(follower):
            while (left := self._left()) is not None:
                if not left:
                    self._settle()
                    return
                random.shuffle(left)
                for number in left:
                    owner = engine.owner()
                    try:
                        owner.acquire([f"feed/{kept.branch}/{kept.name}/{number}"], timeout=0)
                        if number in (self._left() or ()):
                            yield self._share(number)
                            break
                    except LockTimeoutError:
                        continue
                    finally:
                        owner.close()
                else:
                    follower.next(_LOOK_AGAIN)  # until another worker commits, or may have died

    def _left(self) -> list[int] | None:
        """Return the shares to do now. None if this change is done as a whole, or the feed was reset."""
        written = self._kept.written()
        try:
            shares = self._kept.decode(written).shares
        except FeedNotFoundError:
            return None
        if shares is None or shares != self.shares:
            return None
        undone = self._kept.undone(written, shares, len(self._divisions) + 1)
        if not self._has_first:
            return [number for number in undone if number]
        return [0] if 0 in undone else undone

    def _share(self, number: int) -> Share:
        assert self._change is not None  # else nothing is left to do
        assert self.shares is not None
        nodes, regions = (self._nodes, []) if number == 0 else ([], self._divisions[number - 1])
        return Share(self._kept, self._change, self.shares, number, list(nodes), regions)

    def _settle(self) -> None:
        """All shares are done: move the cursor, unless another worker has."""

        def settle(cursors: Cursors) -> None:
            cursor = self._kept.decode(cursors) if self._kept.name in cursors else None
            if cursor is not None and cursor.shares is not None and cursor.shares == self.shares:
                done = cursor._replace(place=cursor.shares.to, token=new_token(), shares=None, handed_out=None)
                self._kept.put(cursors, done)

        self._kept.commit(f"feed {self._kept.name} moved", settle)


def begin_sharing(kept: KeptCursor, into: int, timeout: float | None) -> SharedChange | None:
    """Join the workers that share a change, or begin to share all that is pending. None if nothing is."""
    if not 0 < into <= MAX_SHARES:
        raise ValueError(f"shares={into!r}: give a number from 1 to {MAX_SHARES}")
    while True:
        cursor = kept.read()
        reading, shares = Reading(kept.engine, kept.name, cursor), cursor.shares
        with contextlib.closing(reading):
            change = reading.sum(timeout) if shares is None else reading.until(shares.to)
        if shares is None and change is None:
            return None
        shared = SharedChange(kept, change, into if shares is None else shares.into)
        if shares is not None and shares.division == shared.division:
            shared.shares = shares
            return shared
        # Nobody shares it yet. Or this worker divides it otherwise than the one that has begun, because something was
        # erased since, or the two have different versions of this program. Then all begin anew.
        if shares is None:
            assert change is not None
            to = change.place
        else:
            to, into = shares.to, shares.into
        new = cursor._replace(token=new_token(), shares=Shares(to, into, new_token(), shared.division))

        def begin(cursors: Cursors, old: Cursor = cursor, new: Cursor = new) -> None:
            if kept.decode(cursors) == old:  # else another worker was faster
                kept.put(cursors, new)

        kept.commit(f"feed {kept.name} shared by workers", begin)


def _is_structural(node: FeedNode) -> bool:
    diff = node.diff
    return node.change != "changed" or bool(diff.fields or diff.attributes or diff.keys)

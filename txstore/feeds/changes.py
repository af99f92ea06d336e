"""What a feed tells of one commit, or of several together: nodes, regions, and the commits before and after."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Never

from txstore.comparing.diff import Diff, OpenArray
from txstore.comparing.nodes import ADDED, CHANGED, MOVED, REMOVED, NodeDiff, compare
from txstore.feeds.regions import ChangedChunks, changed_chunks
from txstore.format.cursors import FeedPlace
from txstore.history.changes import changed

if TYPE_CHECKING:
    from txstore.commit import Commit
    from txstore.engine import Engine
    from txstore.history.snapshot import Snapshot
    from txstore.store import TxStore


@dataclass(frozen=True)
class FeedNode:
    """An array or group that a change concerns.

    Attributes
    ----------
    path, change, kind, moved_from
        As of `NodeDiff`. A node that was moved into the paths of the feed, or out of them, was added or removed.
    regions : list of tuple of slice
        The regions of an array that may differ, within its present shape: chunks, with neighbours joined, each chunk
        once. A moved array has none. Of a new array these are the chunks that are stored.
    diff : NodeDiff
        More about the change: `fields` such as the shape, `attributes`, counts of chunks and bytes.
    """

    diff: NodeDiff = field(repr=False)

    @property
    def path(self) -> str:
        return self.diff.path

    @property
    def change(self) -> str:
        return self.diff.change

    @property
    def kind(self) -> str:
        return self.diff.kind

    @property
    def moved_from(self) -> str | None:
        return self.diff.moved_from

    @cached_property
    def chunks(self) -> ChangedChunks:
        """The regions as boxes of chunks."""
        return changed_chunks(self.diff)

    @property
    def regions(self) -> list[tuple[slice, ...]]:
        return self.chunks.regions()

    def __repr__(self) -> str:
        came = "" if self.moved_from is None else f" from {self.moved_from!r}"
        return f"<FeedNode {self.path!r} {self.change}{came}>"

    def as_dict(self) -> dict[str, Any]:
        """Return the node for JSON."""
        told: dict[str, Any] = {"path": self.path, "change": self.change, "kind": self.kind}
        if self.moved_from is not None:
            told["moved_from"] = self.moved_from
        if self.diff.shape is not None:
            told["shape"] = list(self.diff.shape)
        told["fields"] = [each.as_dict() for each in self.diff.fields]
        told["attributes"] = [each.as_dict() for each in self.diff.attributes]
        if self.kind == "array":
            told["regions"] = [[[part.start, part.stop] for part in region] for region in self.regions]
        return told


class Erased(NamedTuple):
    """The paths of which every version was erased, and those of arrays of which rows were."""

    paths: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()


class FeedChange:
    """What one commit changed below the paths of a feed; or, with `combine=True`, what several changed together.

    Iterating yields a `FeedNode` for each array and group, by path.

    Attributes
    ----------
    feed : str
        The name of the feed.
    commit : Commit
        The commit; of several, the newest.
    before : Commit or None
        The commit that the changes are told against. None: before the first one.
    token : str
        32 hexadecimal digits, the same whenever the feed tells this change. A job that writes elsewhere stores it with
        what it writes, and so finds out whether it has done that before.
    nodes : list of FeedNode
    erased : tuple of str
        Paths of which `Repository.erase` has erased every version: delete what you have made of them, before all else.
        Nodes there are those that came after that.
    rows_erased : tuple of str
        Paths of arrays of which it has erased rows, from every version: make what you have made of them anew. No record
        says which rows they were.
    """

    def __init__(
        self, feed: str, start: FeedPlace, engine: Engine, diff: Diff, after: Snapshot, erased: Erased
    ) -> None:
        self.feed = feed
        self.erased, self.rows_erased = erased
        self.start = start
        self.diff = diff
        self._engine = engine
        self._after = after
        self.nodes = [FeedNode(node) for node in diff.nodes]
        assert diff.after is not None
        self.commit: Commit = diff.after
        repository = engine.commits.identity.id.hex()
        told = [repository, feed, "" if self.before is None else self.before.id, self.commit.id]
        self.token = hashlib.blake2b("/".join(told).encode(), digest_size=16).hexdigest()

    @property
    def before(self) -> Commit | None:
        return self.diff.before

    @property
    def place(self) -> FeedPlace:
        """Where the feed is when this change is done."""
        return FeedPlace(self.commit.version, self.commit.id)

    def __iter__(self) -> Iterator[FeedNode]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def _of(self, change: str) -> list[FeedNode]:
        return [node for node in self.nodes if node.change == change]

    @property
    def added(self) -> list[FeedNode]:
        return self._of(ADDED)

    @property
    def removed(self) -> list[FeedNode]:
        return self._of(REMOVED)

    @property
    def moved(self) -> list[FeedNode]:
        return self._of(MOVED)

    @property
    def changed(self) -> list[FeedNode]:
        return self._of(CHANGED)

    def snapshot(self) -> TxStore:
        """Return a read-only store at the commit, to read the new values."""
        return opened(self._engine, self._after)

    def as_dict(self) -> dict[str, Any]:
        """Return the change for JSON."""
        return {
            "feed": self.feed,
            "before": None if self.before is None else self.before.id,
            "commit": self.commit.id,
            "branch": self.commit.branch,
            "version": self.commit.version,
            "time": self.commit.time.isoformat(),
            "message": self.commit.message,
            "token": self.token,
            "erased": list(self.erased),
            "rows_erased": list(self.rows_erased),
            "nodes": [node.as_dict() for node in self.nodes],
        }

    def __reduce__(self) -> Never:
        raise TypeError(
            "a change stays in its process: send change.snapshot(), and the paths and regions that another process is "
            "to do; or let each process take its share, with feed.claim()"
        )

    def __repr__(self) -> str:
        return f"<FeedChange {self.before or 'nothing'} to {self.commit}: {len(self)} nodes>"


def opened(engine: Engine, snapshot: Snapshot) -> TxStore:
    """Return a read-only store at a snapshot."""
    from txstore.store import TxStore  # late: listing feeds works without zarr 3

    return TxStore.at(engine, snapshot)


def _opener(engine: Engine, snapshot: Snapshot) -> OpenArray:
    def open_array(path: str) -> Any:
        from txstore.pipeline import open_own

        return open_own(opened(engine, snapshot), path, mode="r")

    return open_array


def between(engine: Engine, before: Snapshot, after: Snapshot, paths: Sequence[str]) -> Diff:
    """Return how two commits of one branch differ at or below some paths, none of which lies below another one."""
    changes = chain.from_iterable(changed(before, after, path) for path in paths or ("",))
    open_before, open_after = _opener(engine, before), _opener(engine, after)
    return Diff(before.commit, after.commit, compare(changes, before, after), open_before, open_after)

"""What a feed tells of one commit, or of several together: nodes, regions, and the commits before and after."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Never

from txstore.comparing.diff import Diff, OpenArray
from txstore.comparing.elements import Box, joined
from txstore.comparing.nodes import ADDED, CHANGED, MOVED, REMOVED, NodeDiff, compare
from txstore.format.cursors import FeedPlace
from txstore.format.documents import Described, DocumentChange, compare_documents
from txstore.format.grids import Chunk
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


class ChangedChunks(NamedTuple):
    """The changed chunks of an array as boxes, and how each axis is cut into chunks."""

    axes: Sequence[Any] = ()
    boxes: Sequence[Box] = ()

    def regions(self) -> list[tuple[slice, ...]]:
        return [self.region(box) for box in self.boxes]

    def region(self, box: Box) -> tuple[slice, ...]:
        """Return the elements of a box, clipped to the array's shape."""
        ends = zip(self.axes, box, strict=True)
        return tuple(
            slice(int(axis.start_of(first)), min(int(axis.start_of(last)), axis.extent)) for axis, (first, last) in ends
        )


def changed_chunks(node: NodeDiff) -> ChangedChunks:
    """Return which chunks of an array may differ. What was only moved has none, nor has what is gone.

    Of a new array these are the stored chunks: all else is fill value. An array that has another dtype, fill value,
    grid or codecs now differs as a whole.
    """
    new, old = node.after, node.before
    if new is None or new.kind != "array" or node.change == MOVED:
        return ChangedChunks()
    axes = new.grid().axes
    counts = [axis.count for axis in axes]
    if old is not None and old.kind == "array":
        if old.key != new.key or compare_documents(new.key, old.content, new.content) is DocumentChange.STRUCTURE:
            whole: Box = tuple((0, count) for count in counts)
            return ChangedChunks(axes, [whole] if all(counts) else [])
        edges = iter(()) if old is new else _edges(old, counts, axes)
    else:
        edges = iter(())
    chunks = {each for each in node.chunks if all(at < count for at, count in zip(each, counts, strict=True))}
    chunks.update(edges)
    return ChangedChunks(axes, joined(chunks))


def _edges(old: Described, counts: Sequence[int], axes: Sequence[Any]) -> Iterator[Chunk]:
    """Yield the chunks in whose middle the old array ended, along axes where it has grown.

    An array that had shrunk before shows again there what these chunks still have.
    """
    for number, (was, axis) in enumerate(zip(old.grid().axes, axes, strict=True)):
        if axis.extent > was.extent > 0 and int(was.start_of(was.count)) > was.extent:
            along = [range(count) for count in counts]
            along[number] = range(was.count - 1, was.count)
            yield from itertools.product(*along)


# --- shares


def divided(found: Sequence[tuple[str, ChangedChunks]], shares: int) -> list[list[tuple[str, tuple[slice, ...]]]]:
    """Divide the changed regions of arrays into at most so many lists of about equally many chunks, in their order."""
    total = sum(_size(box) for _, chunks in found for box in chunks.boxes)
    divisions: list[list[tuple[str, tuple[slice, ...]]]] = []
    taken = 0  # chunks in all lists so far
    for path, chunks in found:
        for box in chunks.boxes:
            rest = [box]
            while rest:
                # The list that the next chunk belongs to, and how many more belong there.
                at = taken * shares // total
                room = -(-(at + 1) * total // shares) - taken
                part, left = _cut(rest.pop(), room)
                rest += reversed(left)
                if len(divisions) <= at:
                    divisions += [[] for _ in range(at + 1 - len(divisions))]
                divisions[at].append((path, chunks.region(part)))
                taken += _size(part)
    return [each for each in divisions if each]


def _size(box: Box) -> int:
    return math.prod(last - first for first, last in box)


def _cut(box: Box, room: int) -> tuple[Box, list[Box]]:
    """Return the first part of a box, with at most `room` chunks, and the boxes that are left of it."""
    if _size(box) <= room:
        return box, []
    number = next(number for number, (first, last) in enumerate(box) if last - first > 1)
    first, last = box[number]
    layers = room * (last - first) // _size(box)

    def along(start: int, stop: int) -> Box:
        return (*box[:number], (start, stop), *box[number + 1 :])

    if layers:
        return along(first, first + layers), [along(first + layers, last)]
    part, left = _cut(along(first, first + 1), room)
    return part, [*left, along(first + 1, last)]

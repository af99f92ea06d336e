"""Finds which regions of an array a change concerns, within its present shape: boxes of chunks, each chunk once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from txstore.comparing.elements import Box, joined
from txstore.comparing.nodes import MOVED, NodeDiff
from txstore.format.documents import Described, DocumentChange, compare_documents
from txstore.format.grids import Chunk


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

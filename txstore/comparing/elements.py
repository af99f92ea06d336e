"""Finds what changed in an array: regions of elements, and the elements themselves, read chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from txstore.format.documents import Described
from txstore.format.grids import Chunk

#: Along each axis the first chunk, and the one after the last.
Box = tuple[tuple[int, int], ...]


def joined(chunks: Collection[Chunk]) -> list[Box]:
    """Return boxes that cover each of these chunks once, in the order of their first chunks.

    Neighbours along the last axis are joined first, then rows of equal extent along the one before, and so on.
    """
    if len(chunks) <= 1:
        return [tuple((at, at + 1) for at in chunk) for chunk in chunks]
    low = np.unique(np.array(list(chunks), np.int64), axis=0)
    high = low + 1
    dimensions = low.shape[1]
    for axis in reversed(range(dimensions)):
        others = [each[:, other] for other in range(dimensions) if other != axis for each in (low, high)]
        order = np.lexsort([low[:, axis], *reversed(others)])
        low, high = low[order], high[order]
        begins = np.ones(len(low), bool)
        begins[1:] = low[1:, axis] != high[:-1, axis]
        for other in range(dimensions):
            if other != axis:
                begins[1:] |= (low[1:, other] != low[:-1, other]) | (high[1:, other] != high[:-1, other])
        ends = np.append(begins[1:], True)
        merged = low[begins]
        high = np.where(np.arange(dimensions) == axis, high[ends], high[begins])
        low = merged
    order = np.lexsort(low.T[::-1]) if dimensions else np.zeros(1, int)
    boxes = zip(low[order].tolist(), high[order].tolist(), strict=True)
    return [tuple(zip(first, last, strict=True)) for first, last in boxes]


_WITH_NAN = "fcmM"  # numpy's kinds
#: Opens an array of one side, for reads of TxStore's own.
OpenArray = Callable[[], Any]


class ChunkValues(NamedTuple):
    """A region of an array that may have changed: old and new values, and the mask of elements that differ."""

    region: tuple[slice, ...]
    before: npt.NDArray[Any]
    after: npt.NDArray[Any]
    differs: npt.NDArray[np.bool_]


def regions_of(before: Described | None, after: Described | None, chunks: Collection[Chunk]) -> list[tuple[slice, ...]]:
    """Return the changed chunks of an array as slices of it, with neighbours joined."""
    sides = _arrays(before, after)
    if not sides:
        return []
    if _is_whole(sides):
        return [tuple(slice(0, extent) for extent in sides[-1].node.shape)]
    axes = _axes(sides)
    return [region for box in joined(chunks) if _has_elements(region := _region(axes, box))]


def _arrays(*sides: Described | None) -> list[Described]:
    return [side for side in sides if side is not None and side.kind == "array"]


def _is_whole(sides: Sequence[Described]) -> bool:
    """Tell whether the array now has other chunks, so that they can't be compared one by one."""
    return any(side.node.chunks != sides[0].node.chunks or not _is_comparable(sides) for side in sides)


def _is_comparable(sides: Sequence[Described]) -> bool:
    return len({len(side.node.shape) for side in sides}) == 1


def _has_elements(region: tuple[slice, ...]) -> bool:
    """Tell whether a region has elements. If not, its chunks are beyond the end of the array."""
    return all(part.stop > part.start for part in region)


def _axes(sides: Sequence[Described]) -> list[Any]:
    """Return how each axis is cut into chunks; if the array grew or shrank, up to the larger extent."""
    grids = [side.grid().axes for side in sides]
    return [max(along, key=lambda axis: axis.extent) for along in zip(*grids, strict=True)]


def _region(axes: Sequence[Any], box: Sequence[tuple[int, int]]) -> tuple[slice, ...]:
    """Return the elements of a box of chunks."""
    parts = []
    for axis, (first, last) in zip(axes, box, strict=True):
        start, stop = (min(int(axis.start_of(min(at, axis.count))), axis.extent) for at in (first, last))
        parts.append(slice(start, stop))
    return tuple(parts)


def changed_values(
    before: Described | None,
    after: Described | None,
    chunks: Collection[Chunk],
    open_before: OpenArray,
    open_after: OpenArray,
) -> Iterator[ChunkValues]:
    """Yield the changes of an array, chunk by chunk. Raises `ValueError` if it had another number of dimensions,
    and what opening the arrays raises.

    `before` and `after` are the nodes at its path; at least one is an array.
    """
    sides = _arrays(before, after)
    if not _is_comparable(sides):
        shapes = [side.node.shape for side in sides]
        raise ValueError(f"{sides[0].path!r} had shape {shapes[0]}, and has {shapes[1]}: nothing can be compared")
    arrays = [
        open_array if side in sides else None for side, open_array in ((before, open_before), (after, open_after))
    ]
    return _changed_values(sides, chunks, *arrays)


def _changed_values(
    sides: Sequence[Described], chunks: Collection[Chunk], open_before: OpenArray | None, open_after: OpenArray | None
) -> Iterator[ChunkValues]:
    before = None if open_before is None else open_before()
    after = None if open_after is None else open_after()
    is_whole = _is_whole(sides)
    axes = _axes(sides[-1:] if is_whole else sides)
    for chunk in sides[-1].grid().everything() if is_whole else sorted(set(chunks)):
        region = _region(axes, [(at, at + 1) for at in chunk])
        if _has_elements(region):
            old, new = _read(before, after, region), _read(after, before, region)
            yield ChunkValues(region, old, new, _differs(old, new, before, after, region))


def _inside(array: Any, region: tuple[slice, ...]) -> tuple[slice, ...]:
    pairs = zip(region, array.shape, strict=True)
    return tuple(slice(min(part.start, n), min(part.stop, n)) for part, n in pairs)


def _relative(inside: tuple[slice, ...], region: tuple[slice, ...]) -> tuple[slice, ...]:
    pairs = zip(inside, region, strict=True)
    return tuple(slice(part.start - of.start, part.stop - of.start) for part, of in pairs)


def _read(array: Any, other: Any, region: tuple[slice, ...]) -> npt.NDArray[Any]:
    """Return a region of an array; elements beyond its end, or of a missing array, are fill value."""
    source = other if array is None else array
    shape = tuple(part.stop - part.start for part in region)
    fill = source.fill_value
    found = np.full(shape, np.zeros((), source.dtype)[()] if fill is None else fill, source.dtype)
    if array is not None:
        inside = _inside(array, region)
        found[_relative(inside, region)] = array[inside]
    return found


def _differs(
    old: npt.NDArray[Any], new: npt.NDArray[Any], before: Any, after: Any, region: tuple[slice, ...]
) -> npt.NDArray[np.bool_]:
    """Return which elements differ by value; NaN equals NaN. An element on only one side differs."""
    if before is None or after is None:
        return np.ones(old.shape, bool)
    differs = np.asarray(old != new, bool)
    if old.dtype.kind in _WITH_NAN and new.dtype.kind in _WITH_NAN:
        differs &= ~(np.isnan(old) & np.isnan(new))
    for array in (before, after):
        is_outside = np.ones(differs.shape, bool)
        is_outside[_relative(_inside(array, region), region)] = False
        differs |= is_outside
    return differs

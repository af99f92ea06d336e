"""Copying an array block by block: how large chunks and blocks are, and whether what was written is what was read."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from txstore.errors import CorruptionError

Selection = tuple[slice, ...]

#: Bytes: chunks of a source that hold less are put together; an array without chunks gets some of about that size.
_SMALL_CHUNK, _GOOD_CHUNK = 64 << 10, 1 << 20
#: Bytes that are read and written at a time, if a chunk is not larger.
_BLOCK = 16 << 20


def chunk_shape(
    shape: Sequence[int],
    itemsize: int,
    *,
    given: Sequence[int] | None,
    dimensions: Sequence[str | None],
    wanted: Mapping[str | int, int],
) -> tuple[int, ...]:
    """Return the chunks that an array gets.

    `given` are those of the source, `wanted` lengths by the name of a dimension or the number of an axis.
    """
    itemsize = max(1, itemsize)
    chunks = [max(1, n) for n in (given or shape)]
    if given is None:
        while math.prod(chunks) * itemsize > _GOOD_CHUNK and max(chunks) > 1:
            longest = chunks.index(max(chunks))
            chunks[longest] = -(-chunks[longest] // 2)
    else:
        for axis in range(len(chunks)):
            while math.prod(chunks) * itemsize < _SMALL_CHUNK and chunks[axis] < shape[axis]:
                chunks[axis] *= 2
    for axis, name in enumerate(dimensions):
        chunks[axis] = max(1, wanted.get(axis, chunks[axis] if name is None else wanted.get(name, chunks[axis])))
    return tuple(chunks)


def blocks(start: Sequence[int], stop: Sequence[int], chunks: Sequence[int], itemsize: int) -> Iterator[Selection]:
    """Yield regions that cover [start, stop) and end where chunks do, so that no chunk is written twice."""
    sides = list(chunks)
    for axis in reversed(range(len(sides))):
        while math.prod(sides) * max(1, itemsize) * 2 <= _BLOCK and sides[axis] < stop[axis]:
            sides[axis] *= 2
    ranges = []
    for first, last, side in zip(start, stop, sides, strict=True):
        edges = [first, *range((first // side + 1) * side, last, side), last]
        ranges.append([slice(a, b) for a, b in itertools.pairwise(edges) if a < b])
    yield from itertools.product(*ranges)


def copy_array(
    read: Callable[[Selection], Any],
    target: Any,
    *,
    at: Sequence[int],
    shape: Sequence[int],
    verify: bool,
    resuming: bool,
    advance: Callable[[int], None],
) -> None:
    """Copy an array of `shape` to where `at` says in a larger zarr array.

    `resuming` leaves alone what is there already. With `verify` each block is read back and compared. `advance` is told
    the bytes done. Raises `CorruptionError` if something else comes back.
    """
    stop = [first + length for first, length in zip(at, shape, strict=True)]
    for region in blocks(at, stop, target.shards or target.chunks, target.dtype.itemsize):
        inside = tuple(slice(s.start - a, s.stop - a) for s, a in zip(region, at, strict=True))
        block = np.asarray(read(inside))
        if not (resuming and same(target[region], block)):
            target[region] = block
            if verify and not same(target[region], block):
                reason = f"what was written to {_shown(region)} is not what comes back"
                raise CorruptionError(str(target.store), key=target.path, reason=reason)
        advance(block.nbytes)


def same(a: Any, b: Any) -> bool:
    """Tell whether two arrays hold equal values; NaN equals NaN, the byte order does not matter."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        return False
    if a.dtype.names is not None and a.dtype.names == b.dtype.names:
        return all(same(a[name], b[name]) for name in a.dtype.names)
    if a.dtype == b.dtype and a.dtype.kind not in "OT" and a.tobytes() == b.tobytes():
        return True
    if a.dtype.kind in "OTUS" or b.dtype.kind in "OTUS":
        return bool(np.array_equal(a.astype(object), b.astype(object)))
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fcmM" and b.dtype.kind in "fcmM"))


def _shown(region: Selection) -> str:
    return "[" + ", ".join(f"{s.start}:{s.stop}" for s in region) + "]"

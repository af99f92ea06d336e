"""Arrays of a file that is imported: how each format's importer describes them, and how they are copied."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from txstore.errors import CorruptionError

Selection = tuple[slice, ...]

#: Attributes that change the meaning of the numbers. Files that differ in them can't be joined unchanged.
MEANING = (
    "units",
    "calendar",
    "scale_factor",
    "add_offset",
    "_FillValue",
    "missing_value",
    "_Unsigned",
    "dtype",
    "flag_masks",
    "flag_meanings",
    "flag_values",
)

#: Bytes: smaller chunks of a source are combined; an array without chunks gets chunks of about this size.
_SMALL_CHUNK, _GOOD_CHUNK = 64 << 10, 1 << 20
#: Bytes read and written at a time, unless a chunk is larger.
_BLOCK = 16 << 20


@dataclass(frozen=True)
class ForeignArray:
    """One array of a file. `read` takes slices and returns a numpy array."""

    shape: tuple[int, ...]
    dtype: Any
    dimensions: tuple[str | None, ...]
    read: Callable[[Selection], Any] = field(repr=False, compare=False)
    meaning: Mapping[str, Any]
    itemsize: int

    @property
    def nbytes(self) -> int:
        size = self.itemsize
        for length in self.shape:
            size *= length
        return size

    def axis(self, dimension: str | int) -> int | None:
        """Return the number of a dimension, None if this array does not have it."""
        if isinstance(dimension, int):
            return dimension if dimension < len(self.shape) else None
        return self.dimensions.index(dimension) if dimension in self.dimensions else None


def meaning_of(attributes: Mapping[str, Any]) -> dict[str, str]:
    return {name: repr(attributes[name]) for name in MEANING if name in attributes}


def is_excluded(path: str, patterns: Sequence[str]) -> bool:
    """Tell whether a node, or one above it, matches a pattern."""
    parts = path.split("/")
    above = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
    return any(fnmatch.fnmatchcase(each, pattern.strip("/")) for each in above for pattern in patterns)


# --- copying, block by block


def chunk_shape(
    shape: Sequence[int],
    itemsize: int,
    *,
    given: Sequence[int] | None,
    dimensions: Sequence[str | None],
    wanted: Mapping[str | int, int],
) -> tuple[int, ...]:
    """Return the chunk shape of an imported array.

    `given` is that of the source, `wanted` has lengths by name of a dimension or number of an axis.
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
    yield from _regions(list(zip(start, stop, sides, strict=True)))


def _regions(axes: Sequence[tuple[int, int, int]]) -> Iterator[Selection]:
    """Yield the regions one by one: a small file may declare an array of any size."""
    if not axes:
        yield ()
        return
    (begin, last, side), *others = axes
    while begin < last:
        end = min((begin // side + 1) * side, last)
        yield from ((slice(begin, end), *below) for below in _regions(others))
        begin = end


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

    `resuming` skips blocks that are staged already. With `verify` each block is read back and compared. `advance` gets
    the bytes done. Raises `CorruptionError` if a block reads back differently.
    """
    stop = [first + length for first, length in zip(at, shape, strict=True)]
    for region in blocks(at, stop, target.shards or target.chunks, target.dtype.itemsize):
        inside = tuple(slice(s.start - a, s.stop - a) for s, a in zip(region, at, strict=True))
        block = np.asarray(read(inside))
        if not (resuming and same(target[region], block)):
            target[region] = block
            if verify and not same(target[region], block):
                reason = f"{_shown(region)} reads back differently from what was written"
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

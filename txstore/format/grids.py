"""Computes how an array is cut into chunks, and which chunks a selection touches.

A shard counts as a chunk here: it is stored under one key. This module imports numpy, so a transaction imports it late:
most transactions lock nothing.
"""

from __future__ import annotations

import operator
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

#: The place of a chunk in its grid.
Chunk = tuple[int, ...]
_Indices = npt.NDArray[np.intp]

#: Chunks that are counted one by one at most; and numpy has no more dimensions.
MAX_CHUNKS, _MAX_DIMENSIONS = 1 << 18, 64
#: Of an axis, and of a chunk: two of them can be added where numpy adds.
_MAX_EXTENT = sys.maxsize >> 1


class Grid:
    """The chunks of the array that a parsed metadata document, of Zarr 3 or 2, describes.

    Raises `ValueError`, `TypeError`, `KeyError` or `AttributeError` for a document that can't be understood. What the
    methods raise for a selection: `IndexError` where it is outside of the array, `TypeError` where it is none, and
    `OverflowError` where more than `MAX_CHUNKS` would have to be counted to tell. What they return may be more,
    and takes no memory before it is iterated over.
    """

    def __init__(self, path: str, document: Mapping[str, Any]) -> None:
        self.path = path
        self.shape = tuple(_extent(extent) for extent in document["shape"])
        if len(self.shape) > _MAX_DIMENSIONS:
            raise ValueError(f"it has {len(self.shape)} dimensions, and at most {_MAX_DIMENSIONS} are possible")
        self.encode: Callable[[Chunk], str]
        sizes: Sequence[Any]
        if "chunk_grid" in document:
            sizes = _chunk_sizes(document["chunk_grid"])
            self.encode = _encoder(document["chunk_key_encoding"])
        else:
            sizes = document["chunks"]
            separator = document.get("dimension_separator", ".")
            if not isinstance(separator, str):
                raise TypeError(f"its dimension_separator is {separator!r}")
            self.encode = partial(_encode_format_2, separator)
        self.axes = tuple(
            _Axis(extent, size if isinstance(size, tuple) else _extent(size))
            for extent, size in zip(self.shape, sizes, strict=True)
        )

    def keys(self, chunks: Iterable[Chunk]) -> Iterator[str]:
        prefix = self.path + "/" if self.path else ""
        return (prefix + self.encode(chunk) for chunk in chunks)

    def everything(self) -> Iterable[Chunk]:
        return _lazy_product([range(axis.count) for axis in self.axes])

    def touched(self, selection: Any) -> Iterable[Chunk]:
        """Return the chunks of a numpy selection. Index arrays count as orthogonal: that covers points, too."""
        items = _items(selection)
        if len(items) == 1 and len(self.shape) > 1 and _is_mask(items[0], self.shape):
            return self.points(selection)
        return _lazy_product([*self._per_axis(self.axes, selection)])

    def blocks(self, selection: Any) -> Iterable[Chunk]:
        """Return the chunks that are selected by their place in the grid."""
        return _lazy_product([*self._per_axis([_Axis(axis.count, 1) for axis in self.axes], selection)])

    def points(self, selection: Any) -> Iterable[Chunk]:
        """Return the chunks of the points that one index array for each axis, or a mask, selects."""
        items = _items(selection)
        if len(items) == 1 and _is_mask(items[0], self.shape):
            items = list(np.nonzero(items[0]))
        if len(items) != len(self.axes):
            raise self._outside_error(f"{_shown(selection)} has not one index for each axis")
        indices = [self._indices(axis.extent, item, selection) for axis, item in zip(self.axes, items, strict=True)]
        chunks = [axis.chunk_of(along) for axis, along in zip(self.axes, indices, strict=True)]
        if not chunks:
            return [()]
        places = np.stack([along.ravel() for along in np.broadcast_arrays(*chunks)])
        return zip(*np.unique(places, axis=1).tolist(), strict=True) if places.size else []

    def partly_filled(self, axis: int) -> Iterable[Chunk]:
        """Return the chunks at the end of an axis that reach beyond it."""
        if not -len(self.axes) <= operator.index(axis) < len(self.axes):
            raise self._outside_error(f"it has no axis {axis} to append along")
        along = self.axes[axis]
        last = along.count - 1
        reaches_beyond = last >= 0 and along.start_of(last + 1) > along.extent
        ranges = [range(each.count) for each in self.axes]
        ranges[axis] = range(last, last + 1) if reaches_beyond else range(0)
        return _lazy_product(ranges)

    def outside(self, shape: Sequence[int]) -> Iterator[Chunk]:
        """Yield the chunks that lie outside of a shape, wholly or in part."""
        if len(shape) != len(self.shape):
            raise self._outside_error(f"it can't be resized to {tuple(shape)}")
        counts = [axis.count for axis in self.axes]
        kept = [
            int(axis.chunk_of(extent)) if extent < axis.extent else axis.count
            for axis, extent in zip(self.axes, shape, strict=True)
        ]
        for number, (whole, count) in enumerate(zip(kept, counts, strict=True)):
            yield from _lazy_product(
                [*map(range, kept[:number]), range(whole, count), *map(range, counts[number + 1 :])]
            )

    def _per_axis(self, axes: Sequence[_Axis], selection: Any) -> Iterator[Sequence[int]]:
        """Yield the chunks that a selection touches along each axis."""
        items = _items(selection)
        dots = [place for place, item in enumerate(items) if item is Ellipsis]
        if len(dots) > 1 or len(items) - len(dots) > len(axes):
            raise self._outside_error(f"too many indices in {_shown(selection)}")
        begin = dots[0] if dots else len(items)
        left_out = len(axes) - (len(items) - len(dots))
        items = [*items[:begin], *[slice(None)] * left_out, *items[begin + len(dots) :]]
        for axis, item in zip(axes, items, strict=True):
            if isinstance(item, slice):
                yield axis.chunks_of_range(range(*item.indices(axis.extent)))
            else:
                yield np.unique(axis.chunk_of(self._indices(axis.extent, item, selection))).tolist()

    def _indices(self, extent: int, item: Any, selection: Any) -> _Indices:
        """Return an integer, or an array of integers or booleans, as indices from 0 on."""
        found = np.asarray(item)
        if found.dtype == bool:
            if found.shape != (extent,):
                raise self._outside_error(f"a mask of shape {found.shape} does not fit in {_shown(selection)}")
            return np.flatnonzero(found)
        if found.ndim and not found.size:
            return np.empty(0, np.intp)
        if found.dtype.kind not in "iu":
            raise TypeError(
                f"{_shown(item)} can't be in a selection: use integers, slices, `...`, or arrays of integers or "
                "booleans"
            )
        if found.min() < -extent or found.max() >= extent:
            raise self._outside_error(f"{_shown(selection)} is outside of it")
        indices = found.astype(np.intp)
        return np.where(indices < 0, indices + extent, indices)

    def _outside_error(self, reason: str) -> IndexError:
        return IndexError(f"{self.path!r} has shape {self.shape}: {reason}")


def _lazy_product(along: Sequence[Sequence[int]]) -> Iterator[Chunk]:
    """Return what `itertools.product` does, which first makes tuples of them all: an axis may have a billion chunks."""
    if sum(map(len, along)) <= MAX_CHUNKS:
        return product(*along)
    if not all(map(len, along)):
        return iter(())  # there would be no end of looking for one along the others
    return ((*first, last) for first in _lazy_product(along[:-1]) for last in along[-1])


def _extent(number: Any) -> int:
    extent = operator.index(number)
    if not 0 <= extent <= _MAX_EXTENT:
        raise ValueError(f"{extent} is no length of an axis or chunk: it is from 0 to {_MAX_EXTENT}")
    return extent


@dataclass(frozen=True)
class _Axis:
    """How one axis is cut into chunks: of one size, or of the sizes listed."""

    extent: int
    sizes: int | Sequence[int]

    def __post_init__(self) -> None:
        if not isinstance(self.sizes, int):
            _extent(sum(self.sizes))

    @cached_property
    def _bounds(self) -> _Indices:
        return np.concatenate([[0], np.cumsum(self.sizes)])

    def chunk_of(self, index: Any) -> Any:
        """Return the chunk in which an index, or each of an array of them, lies."""
        if isinstance(self.sizes, int):
            return index // max(self.sizes, 1)  # zarr 2 wrote 0 for arrays without elements
        return np.searchsorted(self._bounds, index, side="right") - 1

    def start_of(self, chunk: Any) -> Any:
        if isinstance(self.sizes, int):
            return chunk * max(self.sizes, 1)
        return self._bounds[chunk]

    @property
    def count(self) -> int:
        """How many chunks begin before the end."""
        return int(self.chunk_of(self.extent - 1)) + 1 if self.extent else 0

    def chunks_of_range(self, indices: range) -> Sequence[int]:
        if not indices:
            return ()
        if indices.step < 0:
            indices = indices[::-1]
        chunks = range(int(self.chunk_of(indices[0])), int(self.chunk_of(indices[-1])) + 1)
        if indices.step == 1:
            return chunks
        if len(indices) <= len(chunks):  # at most one in each
            _check_countable(len(indices))
            met = np.unique(self.chunk_of(np.arange(indices.start, indices.stop, indices.step)))
            return [int(chunk) for chunk in met]
        # A step may pass over chunks: keep those in which the first index at or after their start still lies.
        _check_countable(len(chunks))
        starts = self.start_of(np.arange(chunks.start, chunks.stop + 1))
        steps = np.maximum(-(-(starts[:-1] - indices.start) // indices.step), 0)
        met = indices.start + steps * indices.step < starts[1:]
        return [chunk for chunk, is_met in zip(chunks, met.tolist(), strict=True) if is_met]


def _check_countable(number: int) -> None:
    if number > MAX_CHUNKS:
        raise OverflowError(f"{number} chunks would have to be counted, and at most {MAX_CHUNKS} are")


# --- what documents say


def _encode_format_2(separator: str, chunk: Chunk) -> str:
    return separator.join(map(str, chunk)) or "0"


def _encoder(encoding: Any) -> Callable[[Chunk], str]:
    from zarr.registry import get_chunk_key_encoding_class  # late: zarr 2 has none, and needs none

    if "separator" in encoding:  # as zarr, too, takes it
        encoding = {"name": encoding["name"], "configuration": {"separator": encoding["separator"]}}
    return get_chunk_key_encoding_class(encoding["name"]).from_dict(encoding).encode_chunk_key


def _chunk_sizes(grid: Mapping[str, Any]) -> Sequence[int | Sequence[int]]:
    """Return for each axis the size of its chunks, or the size of each of them."""
    if grid["name"] == "regular":
        sizes: Sequence[int] = grid["configuration"]["chunk_shape"]
        return sizes
    if (grid["name"], grid["configuration"].get("kind")) != ("rectilinear", "inline"):
        raise ValueError(f"TxStore knows no chunk grid {grid['name']!r}")
    return [_edges(sizes) if isinstance(sizes, list) else sizes for sizes in grid["configuration"]["chunk_shapes"]]


def _edges(sizes: list[Any]) -> tuple[int, ...]:
    """Return the size of each chunk along an axis. A pair says how often there is a size."""
    pairs = [each if isinstance(each, list) else (each, 1) for each in sizes]
    if not pairs or any(operator.index(size) < 1 or operator.index(count) < 1 for size, count in pairs):
        raise ValueError("its chunk grid has an axis without chunks, or a chunk without elements")
    if sum(count for _, count in pairs) - len(pairs) > MAX_CHUNKS:
        raise ValueError(f"its chunk grid lists more than {MAX_CHUNKS} chunks along an axis")
    return tuple([size for size, count in pairs for _ in range(count)])


# --- what selections are made of


def _items(selection: Any) -> list[Any]:
    """Return the items of a selection without the names of fields, which say nothing about chunks."""
    items = selection if isinstance(selection, tuple) else (selection,)
    return [item for item in items if not isinstance(item, str)]


def is_index_array(items: list[Any]) -> bool:
    """Tell whether a list is an array of indices, or a mask. A list of lists of integers covers the same as each."""
    return all(isinstance(item, int | np.integer | np.bool_) for item in items) or _is_mask_list(items)


def _is_mask_list(items: Any) -> bool:
    if isinstance(items, list):
        return all(_is_mask_list(item) for item in items)
    return isinstance(items, bool | np.bool_)


def _is_mask(item: Any, shape: tuple[int, ...]) -> bool:
    if item is Ellipsis or isinstance(item, slice):
        return False
    mask = np.asarray(item)
    return bool(mask.dtype == bool and mask.shape == shape)


def _shown(selection: Any) -> str:
    return reprlib.repr(selection)

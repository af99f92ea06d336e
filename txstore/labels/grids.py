"""Reads the grid of an array from zarr's metadata, and cuts selections along it.

The pieces of a selection fit in a budget of memory, and share no chunk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.buffer import default_buffer_prototype

Positions = npt.NDArray[np.intp]

#: Bytes of one piece, about: small enough that some fit in memory, large enough that few calls are made.
PIECE = 64 << 20


@dataclass(frozen=True)
class Axis:
    """How one axis of an array is cut into the chunks that are stored (of a sharded array: into shards).

    `starts` and `sizes` are those of each chunk. The last one may reach beyond the length of the axis.
    """

    length: int
    starts: Positions
    sizes: Positions

    @property
    def ends(self) -> Positions:
        """Where the rows of each chunk end that belong to the array."""
        return np.append(self.starts[1:], self.length) if len(self.starts) else self.starts

    def chunk_of(self, positions: Positions) -> Positions:
        if len(self.sizes) and self.sizes.min() == self.sizes.max() > 0:  # as in most arrays: faster than a search
            return positions // int(self.sizes[0])
        return np.searchsorted(self.starts, positions, side="right") - 1


def axes_of(metadata: Any) -> list[Axis]:
    """Return the axes of the array that zarr's metadata describe: its grid is regular, or lists the chunks' lengths."""
    if metadata.zarr_format == 2:
        along: Sequence[Any] = metadata.chunks
    else:
        grid = metadata.chunk_grid.to_dict()
        along = grid["configuration"]["chunk_shape" if grid["name"] == "regular" else "chunk_shapes"]
    return [_axis(length, sizes) for length, sizes in zip(metadata.shape, along, strict=True)]


def _axis(length: int, size: Any) -> Axis:
    if isinstance(size, int):
        starts = np.arange(0, length, max(size, 1), dtype=np.intp)
        return Axis(length, starts, np.full(len(starts), size, np.intp))
    listed = [one for each in size for one in ([each[0]] * each[1] if isinstance(each, list | tuple) else [each])]
    sizes = np.array(listed, np.intp)
    starts = np.cumsum(sizes) - sizes
    inside = starts < length
    return Axis(length, starts[inside], sizes[inside])


def chunk_prefix(metadata: Any) -> str:
    """Return the directory below an array that has all its chunks and nothing else; "" if there is none."""
    return "c" if metadata.shape and chunk_key_parts(metadata) == ("c/", "/") else ""


def chunk_key_parts(metadata: Any) -> tuple[str, str]:
    """Return what stands before the numbers in the keys of an array's chunks, and what stands between them.

    Raises `ValueError` if the keys are not made in that way.
    """
    ndim = len(metadata.shape)
    key = metadata.encode_chunk_key((0,) * ndim)
    lead = key[: key.index("0")] if ndim else key
    separator = key[len(lead) + 1] if ndim > 1 else "/"
    numbers = range(10, 10 + ndim)
    if ndim and metadata.encode_chunk_key(tuple(numbers)) != lead + separator.join(map(str, numbers)):
        raise ValueError(f"the keys of chunks, such as {key!r}, are not numbers with one character between")
    return lead, separator


def documents(metadata: Any) -> dict[str, bytes]:
    """Return the documents of an array by name, as zarr writes them."""
    return {name: value.to_bytes() for name, value in metadata.to_buffer_dict(default_buffer_prototype()).items()}


@dataclass(frozen=True)
class Piece:
    """A part of a selection: positions in the source along each axis, and those of the array that they belong to."""

    source: tuple[Positions, ...]
    target: tuple[Positions, ...]

    def only(self, kept: Sequence[npt.NDArray[np.bool_] | None]) -> Piece:
        """Return the part with the positions that masks keep, axis by axis. None keeps all."""

        def cut(along: tuple[Positions, ...]) -> tuple[Positions, ...]:
            return tuple(each if mask is None else each[mask] for each, mask in zip(along, kept, strict=True))

        return Piece(cut(self.source), cut(self.target))


def pieces(
    array: zarr.Array[Any], source: Sequence[Positions], target: Sequence[Positions], budget: int = PIECE
) -> Iterator[Piece]:
    """Yield the pieces of a selection, in the order of the array. No two pieces touch one chunk.

    `source` and `target` say, for each axis, which positions of the source go to which positions of the array. A piece
    has about `budget` bytes at most, and at least what lies in one chunk.
    """
    if not all(len(along) for along in target):
        return
    room = max(1, budget // max(array.dtype.itemsize, 1))
    cut: list[list[Positions]] = []  # for each axis: places in `source`, grouped by chunk
    for axis, along in zip(axes_of(array.metadata), target, strict=True):
        order = np.argsort(along, kind="stable")
        chunks = axis.chunk_of(along[order])
        cut.append(np.split(order, np.flatnonzero(np.diff(chunks)) + 1))
    smallest = [max(map(len, groups)) for groups in cut]
    joined: list[list[Positions]] = []
    for number in reversed(range(len(cut))):  # the last axis grows first: its chunks lie next to each other
        others = math.prod(smallest[:number]) * math.prod(max(map(len, groups)) for groups in joined)
        joined.insert(0, _joined(cut[number], max(1, room // max(others, 1))))
    for groups in product(*joined):
        yield Piece(
            tuple(along[group] for along, group in zip(source, groups, strict=True)),
            tuple(along[group] for along, group in zip(target, groups, strict=True)),
        )


def _joined(groups: list[Positions], room: int) -> list[Positions]:
    """Put neighbouring groups together as long as they fit."""
    found: list[list[Positions]] = []
    size = room + 1
    for group in groups:
        if size + len(group) > room:
            found.append([])
            size = 0
        found[-1].append(group)
        size += len(group)
    return [np.concatenate(each) for each in found]


def is_run(positions: Positions) -> bool:
    """Tell whether positions follow one another without gaps."""
    return (
        len(positions) > 0
        and int(positions[-1]) - int(positions[0]) == len(positions) - 1
        and bool((np.diff(positions) == 1).all())
    )


def select(positions: Sequence[Positions]) -> tuple[Any, ...]:
    """Return an orthogonal selection, with slices where positions follow one another."""
    return tuple(slice(int(along[0]), int(along[-1]) + 1) if is_run(along) else along for along in positions)


def read(source: Any, positions: Sequence[Positions]) -> npt.NDArray[Any]:
    """Read positions of a zarr array, axis by axis."""
    chosen = select(positions)
    is_plain = all(isinstance(each, slice) for each in chosen)
    return np.asarray(source[chosen] if is_plain else source.oindex[chosen])


def write(array: zarr.Array[Any], positions: Sequence[Positions], values: npt.NDArray[Any]) -> None:
    """Write values to positions of a zarr array, axis by axis."""
    chosen = select(positions)
    if all(isinstance(each, slice) for each in chosen):
        array[chosen] = values
    else:
        array.oindex[chosen] = values


def differ(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which elements of two arrays of one shape differ: numbers by their bits, so that a NaN equals itself."""
    if one.dtype != other.dtype or one.dtype.kind not in "biufcmM":
        return np.asarray(one != other, bool)
    size = one.dtype.itemsize
    if size in (1, 2, 4, 8):
        return np.asarray(one.view(f"u{size}") != other.view(f"u{size}"))
    first, second = (np.ascontiguousarray(each).reshape(-1).view(np.uint8).reshape(-1, size) for each in (one, other))
    return np.asarray((first != second).any(axis=1).reshape(one.shape))

"""Finds which elements of an array's chunks belong to rows, at one commit: by its own coordinates, shape and grid."""

from __future__ import annotations

import base64
import contextlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from txstore.codecs.chunk_codec import ChunkDecoder, NotMergeableError
from txstore.errors import ErasedError, ErasureError
from txstore.format.cf import decoded
from txstore.format.documents import Described, describe, index_of
from txstore.format.keys import ancestors, directory_prefix, document_key
from txstore.history.changes import refs_of
from txstore.history.snapshot import Snapshot
from txstore.labels.choosing import Choice, Positions

if TYPE_CHECKING:
    from txstore.codecs.chunk_codec import Places
    from txstore.format.grids import Grid

#: What a chunk key's elements are chosen by: boxes whose union counts, one for each way to assign axes to dimensions.
Boxes = tuple["Places", ...]


@dataclass(frozen=True)
class ArrayAt:
    """An array at one commit, and the chunks that have rows to erase, by their keys.

    `is_labelled`: its coordinates say which rows those are. Of two with the same `signature`, `boxes` are the same.
    `axes` are those that the rows are chosen along.
    """

    described: Described
    is_labelled: bool
    signature: tuple[Any, ...]
    axes: tuple[int, ...]
    grid: Grid = field(repr=False)
    boxes: Mapping[str, Boxes] = field(repr=False)

    @property
    def document(self) -> str:
        return self.described.key.rpartition("/")[2]

    @property
    def extents(self) -> tuple[int, ...]:
        """How long it is along these axes."""
        return tuple(self.described.node.shape[axis] for axis in self.axes)

    def shown(self, key: str) -> dict[int, int]:
        """Return how much of a chunk the array shows along these axes, except those along which it shows all."""
        index = index_of(key[len(directory_prefix(self.described.path)) :], len(self.grid.shape))
        found = dict[int, int]()
        if index is None:
            return found
        with contextlib.suppress(IndexError):  # behind the last one of a grid of chunks of several lengths
            for axis in self.axes:
                along = self.grid.axes[axis]
                if along.start_of(index[axis] + 1) > along.extent:
                    found[axis] = along.extent - int(along.start_of(index[axis]))
        return found

    @property
    def is_coordinate(self) -> bool:
        """Whether it has the labels of the dimension that it is named after."""
        return self.described.dimensions == (self.described.path.rpartition("/")[2],)

    @property
    def missing(self) -> Any:
        """What stands for a missing value in the conventions of CF, if the data type holds it; None: the fill value."""
        return _missing(self.described.attributes.get("_FillValue"))


class ArrayRows:
    """Finds the rows of arrays at one commit after the other. A coordinate that stays the same is read once."""

    def __init__(self, choices: Sequence[Choice]) -> None:
        self._choices = choices
        self._positions: dict[tuple[Any, ...], Positions | None] = {}
        self._last: dict[str, ArrayAt] = {}
        self.coordinates: set[str] = set()  # that labels were looked for in

    def at(self, snapshot: Snapshot, path: str) -> ArrayAt | None:
        """Return an array at a commit; None if there is none, or it lacks one of the dimensions.

        Raises `ErasureError` if its documents or coordinates can't be read.
        """
        described = _describe(snapshot, path)
        if described is None or described.kind != "array":
            return None
        names = described.dimensions
        dimensions = [choice.dimension for choice in self._choices]
        axes = {each: [n for n, name in enumerate(names) if name == each] for each in dimensions}
        if not all(axes.values()):
            return None
        try:
            grid = described.grid()
            if len(names) != len(grid.shape):
                return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ErasureError([path], f"its document can't be understood: {error}") from error
        positions = {
            choice.dimension: self._rows(snapshot, path, choice, grid.shape[axes[choice.dimension][0]])
            for choice in self._choices
        }
        known = {name: found for name, found in positions.items() if found is not None}
        is_labelled = len(known) == len(positions)
        chosen = [n for each in axes.values() for n in each]
        others = tuple(axis.count for n, axis in enumerate(grid.axes) if n not in chosen)
        described_grid = described.document.get("chunk_grid") or described.document.get("chunks")
        signature = (
            is_labelled, repr(described_grid), repr(described.document.get("chunk_key_encoding")), others, names,
            *(found.tobytes() for found in known.values()),
        )  # fmt: skip
        last = self._last.get(path)
        if last is not None and last.signature == signature:
            boxes = last.boxes
        else:
            boxes = dict(_boxes(described, axes, known)) if is_labelled else {}
        found = ArrayAt(described, is_labelled, signature, tuple(dict.fromkeys(chosen)), grid, boxes)
        self._last[path] = found
        return found

    def _rows(self, snapshot: Snapshot, path: str, choice: Choice, length: int) -> Positions | None:
        """Return the positions of the rows along one dimension; None if the commit has no labels for it."""
        if choice.by_position:
            return choice.in_length(length)
        coordinate = coordinate_of(snapshot, path, choice.dimension)
        if coordinate is None:
            return None
        self.coordinates.add(coordinate.path)
        grid = coordinate.grid()
        if grid.shape != (length,):
            return None
        (axis,) = grid.axes
        keys = list(grid.keys(grid.everything()))
        refs = list(refs_of(snapshot, keys))
        for chunk in {*range(axis.count)} - {keys.index(key) for key, _ in refs} if len(refs) < len(keys) else ():
            # It is not written, or all of it is the fill value: several rows can't have that as their label.
            if min(axis.start_of(chunk + 1), length) - axis.start_of(chunk) > 1:
                return None
        token = choice.dimension, coordinate.path, coordinate.content, *refs
        if token not in self._positions:
            if len(self._positions) > 64:
                self._positions.clear()
            values = _values_of(snapshot, coordinate, keys)
            try:
                self._positions[token] = choice.among(decoded(choice.dimension, values, coordinate.attributes))
            except OverflowError as error:
                raise ErasureError([path], f"the labels in {coordinate.path!r} can't be compared: {error}") from error
        return self._positions[token]


def _describe(snapshot: Snapshot, path: str) -> Described | None:
    """Return the description of a node; None if there is none, or all of it was erased at this commit."""
    try:
        return describe(snapshot.get_view, path)
    except ErasedError:
        return None


def coordinate_of(snapshot: Snapshot, path: str, dimension: str) -> Described | None:
    """Return the coordinate of a dimension: the array of its name in the group of an array, or in one above."""
    for group in ancestors(path):
        if "/" in dimension:
            return None
        found = _describe(snapshot, f"{group}/{dimension}" if group else dimension)
        if found is not None and found.kind == "array" and found.dimensions == (dimension,):
            return found
    return None


def _values_of(snapshot: Snapshot, coordinate: Described, keys: Sequence[str]) -> npt.NDArray[Any]:
    parts, skip = [], len(document_key(coordinate.path, ""))
    name = coordinate.key.rpartition("/")[2]
    (length,) = coordinate.grid().shape
    try:
        for key in keys:
            parts.append(ChunkDecoder(name, coordinate.content, key[skip:]).decode(snapshot.get_view(key)))
    except NotMergeableError as error:
        raise ErasureError([coordinate.path], f"its labels can't be read: {error}") from error
    if not parts:
        return np.empty(0)
    found: npt.NDArray[Any] = np.concatenate(parts)[:length]
    return found


def _boxes(
    described: Described, axes: Mapping[str, Sequence[int]], known: Mapping[str, Positions]
) -> Iterator[tuple[str, Boxes]]:
    """Yield the key of each chunk that has a row, and where."""
    grid = described.grid()
    found: dict[str, list[Places]] = {}
    for assigned in product(*axes.values()):
        along: list[Mapping[int, Positions | None]] = [dict.fromkeys(range(axis.count)) for axis in grid.axes]
        for axis, positions in zip(assigned, known.values(), strict=True):
            along[axis] = _by_chunk(grid.axes[axis], positions)
        for chunk in product(*along):
            (key,) = grid.keys([chunk])
            box = tuple(places[at] for places, at in zip(along, chunk, strict=True))
            found.setdefault(key, []).append(box)
    return ((key, tuple(boxes)) for key, boxes in found.items())


def _by_chunk(axis: Any, positions: Positions) -> dict[int, Positions | None]:
    """Return positions along an axis by the chunk that they lie in, each from where the chunk begins."""
    inside = positions[positions < axis.extent]
    chunks = np.asarray(axis.chunk_of(inside))
    return {
        int(chunk): (inside[chunks == chunk] - int(axis.start_of(int(chunk)))).astype(np.intp)
        for chunk in np.unique(chunks)
    }


def _missing(written: Any) -> Any:
    """Return a `_FillValue` as xarray writes it to an attribute; None if there is none that is understood."""
    if isinstance(written, str):
        try:
            content = base64.standard_b64decode(written)
        except ValueError:
            return None
        return struct.unpack("<d", content)[0] if len(content) == 8 else None
    return written if isinstance(written, int | float) and not isinstance(written, bool) else None

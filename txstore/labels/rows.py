"""Writes rows of one variable: piece by piece, in parallel if they are lazy, and only where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from txstore.labels.grids import Piece, Positions, differ, pieces, read, select, write

#: Bytes that are compared at once, about: in a row that has changed, most often the first ones tell.
_COMPARED = 4 << 20


@dataclass(frozen=True)
class RowBlock:
    """Positions of the source along each axis, and those of the array. `is_stored`: all of them have values already.

    `axes` are the axes whose rows have labels.
    """

    source: list[Positions]
    target: list[Positions]
    axes: tuple[int, ...]
    is_stored: bool

    def of_labels(self, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which combinations of labels have an element that a mask marks."""
        return mask.any(axis=tuple(axis for axis in range(mask.ndim) if axis not in self.axes))


def blocks(positions: Sequence[Positions], is_new: Mapping[int, npt.NDArray[np.bool_]]) -> Iterator[RowBlock]:
    """Cut a selection into one block that is stored, and the others, each of which is new along some axis.

    `is_new` has the axes whose rows have labels, ascending.
    """
    for choice in product((False, True), repeat=len(is_new)):
        source = [np.arange(len(along)) for along in positions]
        for wants_new, (axis, new) in zip(choice, is_new.items(), strict=True):
            source[axis] = np.flatnonzero(new == wants_new)
        if all(map(len, source)):
            target = [along[chosen] for along, chosen in zip(positions, source, strict=True)]
            yield RowBlock(source, target, tuple(is_new), is_stored=not any(choice))


def write_block(array: zarr.Array[Any], values: Any, block: RowBlock) -> npt.NDArray[np.bool_] | None:
    """Write a block. Of one that is stored, write only rows that differ.

    Return which combinations of labels of `values` do, along the labelled axes; None for a block that is new.
    """
    found = list(pieces(array, block.source, block.target))
    if isinstance(values, np.ndarray):
        masks = [_write_piece(array, values[_place(piece)], piece, block) for piece in found]
    else:
        from dask.base import compute  # late: only lazy data need it
        from dask.delayed import delayed

        tasks = [delayed(_write_piece)(array, _lazy(values, piece), piece, block) for piece in found]
        masks = list(compute(*tasks))  # type: ignore[no-untyped-call]
    if not block.is_stored:
        return None
    differs = np.zeros([values.shape[axis] for axis in block.axes], bool)
    for piece, mask in zip(found, masks, strict=True):
        if mask is not None:
            differs[np.ix_(*(piece.source[axis] for axis in block.axes))] |= mask
    return differs


def _place(piece: Piece) -> tuple[Any, ...]:
    chosen = select(piece.source)
    return chosen if all(isinstance(each, slice) for each in chosen) else np.ix_(*piece.source)


def part_of(values: Any, piece: Piece) -> npt.NDArray[Any]:
    """Return the part of a numpy array, or of a lazy one, that a piece names."""
    return np.asarray(values[_place(piece)] if isinstance(values, np.ndarray) else _lazy(values, piece))


def _lazy(values: Any, piece: Piece) -> Any:
    """Return the part of a lazy array, which is computed when the piece is written."""
    for axis, chosen in enumerate(select(piece.source)):
        values = values[(slice(None),) * axis + (chosen,)]
    return values


def _write_piece(
    array: zarr.Array[Any], part: npt.NDArray[Any], piece: Piece, block: RowBlock
) -> npt.NDArray[np.bool_] | None:
    """Write one piece; return which labels have elements that differ from the stored ones, None if there are none."""
    if not block.is_stored:
        write(array, piece.target, part)
        return None
    mask = _differing(array, part, piece, block)
    if not mask.any():
        return None
    kept: list[npt.NDArray[np.bool_] | None] = [None] * part.ndim
    for number, axis in enumerate(block.axes):
        kept[axis] = mask.any(axis=tuple(other for other in range(mask.ndim) if other != number))
    for axis, along in enumerate(kept):
        if along is not None and not along.all():
            part = np.compress(along, part, axis=axis)
    write(array, piece.only(kept).target, part)
    return mask


def _differing(array: zarr.Array[Any], part: npt.NDArray[Any], piece: Piece, block: RowBlock) -> npt.NDArray[np.bool_]:
    """Return which combinations of labels of a piece have an element that differs; what is known is not read for."""
    mask = np.zeros([part.shape[axis] for axis in block.axes], bool)
    for small in pieces(array, [np.arange(length) for length in part.shape], piece.target, _COMPARED):
        labels = np.ix_(*(small.source[axis] for axis in block.axes))
        if not mask[labels].all():
            there = read(array, small.target).astype(part.dtype, copy=False)
            mask[labels] |= block.of_labels(differ(part[_place(small)], there))
    return mask

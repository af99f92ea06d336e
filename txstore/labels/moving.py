"""Moves rows of arrays along their axes: whole chunks by reference, and only the rest is read and written again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from txstore.errors import TransactionStateError
from txstore.format.row_moves import ATTRIBUTE, RowMoves
from txstore.labels.grids import Axis, Positions, axes_of, chunk_prefix, documents, pieces, read, write
from txstore.labels.interface import LabelStore, zarr_store
from txstore.labels.matching import Segment

#: Of a chunk of the array as it will be: no stored row comes to lie in it, or it has to be written again.
_EMPTY, _REWRITTEN = -1, -2


@dataclass(frozen=True)
class Moved:
    """What becomes of one axis: its new length, and where its rows go."""

    length: int
    segments: Sequence[Segment]

    @property
    def offset(self) -> int | None:
        """How far all rows move that stay; None if some move farther than others, or if none stays."""
        offsets = {to - begin for begin, _, to in self.segments}
        return offsets.pop() if len(offsets) == 1 else None


def move_rows(store: LabelStore, moved: Mapping[str, Mapping[int, Moved]]) -> None:
    """Move rows of arrays, by their paths, along some axes. Rows that no stored row comes to are the fill value.

    The arrays have to be as they are in the base commit: whole chunks are taken from there by reference. Raises
    `TransactionStateError`, and moves nothing, if this transaction has changed one of them.
    """
    arrays = [_Rearranged(_unchanged(store, path), path, axes) for path, axes in moved.items()]
    keys: dict[str, str] = {}
    for each in arrays:
        keys |= each.by_reference()
    store.copy_keys(keys, below=[each.below for each in arrays])
    # The documents are set behind the deletion: they may lie below what is deleted.
    for each in arrays:
        each.write(store)


def _unchanged(store: LabelStore, path: str) -> zarr.Array[Any]:
    """Return an array as it is in the base commit."""
    new = zarr.open_array(zarr_store(store), path=path, mode="r")
    try:
        old = zarr.open_array(zarr_store(store.at_base()), path=path, mode="r")
    except FileNotFoundError:  # this transaction has created the array, or moved it here
        old = None
    if old is None or documents(new.metadata) != documents(old.metadata):
        raise TransactionStateError(
            f"this transaction has changed {path!r} already, and can't move its rows any more: commit first, or move "
            "them before other changes",
            state="open",
        )
    return old


class _Rearranged:
    """An array after its rows were moved."""

    def __init__(self, old: zarr.Array[Any], path: str, axes: Mapping[int, Moved]) -> None:
        self._old = old
        self._path = path
        self._start = f"{path}/" if path else ""
        shape = tuple(axes[axis].length if axis in axes else length for axis, length in enumerate(old.shape))
        offsets = [axes[axis].offset if axis in axes else 0 for axis in range(old.ndim)]
        moves = RowMoves.of(old.metadata.attributes, old.ndim).moved(offsets)
        attributes = {**old.metadata.attributes, ATTRIBUTE: moves.encode()}
        self._metadata = metadata = old.metadata.update_shape(shape).update_attributes(attributes)
        #: Where its chunks lie: `move_rows` deletes those there that no new key refers to.
        self.below = (self._start + chunk_prefix(old.metadata)).rstrip("/")
        before, after = axes_of(old.metadata), axes_of(metadata)
        # Per axis: for each new chunk, the old chunk that it equals; and for each new row, the old row.
        self._chunks: list[npt.NDArray[np.intp]] = []
        self._rows: list[Positions] = []
        self._after = after
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            moved = axes.get(number) or Moved(one.length, ((0, one.length, 0),))
            rows = np.full(moved.length, _EMPTY, np.intp)
            for begin, end, to in moved.segments:
                rows[to : to + end - begin] = np.arange(begin, end)
            self._rows.append(rows)
            self._chunks.append(_sources(one, other, rows))

    def by_reference(self) -> dict[str, str]:
        """Return the keys of what stays as it is, and the keys that it has in the base."""
        encode_new, encode_old = self._metadata.encode_chunk_key, self._old.metadata.encode_chunk_key
        places = [np.flatnonzero(along >= 0) for along in self._chunks]
        new = product(*(along.tolist() for along in places))
        old = product(*(chunks[along].tolist() for chunks, along in zip(self._chunks, places, strict=True)))
        start = self._start
        kept = [start + name for name in documents(self._metadata)] if self.below == self._path else []
        chunks = {start + encode_new(to): start + encode_old(source) for to, source in zip(new, old, strict=True)}
        return dict(zip(kept, kept, strict=True)) | chunks

    def write(self, store: LabelStore) -> None:
        """Write the documents, and the rows of chunks that no stored one equals."""
        for name, value in documents(self._metadata).items():
            store[self._start + name] = value
        new = zarr.open_array(zarr_store(store), path=self._path, mode="r+")
        for source, target in self._others():
            for piece in pieces(new, source, target):
                write(new, piece.target, read(self._old, piece.source))

    def _others(self) -> Iterator[tuple[list[Positions], list[Positions]]]:
        """Yield selections that together have each row of a chunk that is written again, once."""
        for number in range(len(self._chunks)):
            wanted = [
                along >= 0 if axis < number else along == _REWRITTEN if axis == number else along != _EMPTY
                for axis, along in enumerate(self._chunks)
            ]
            target = [
                np.flatnonzero(mask[axis.chunk_of(np.arange(axis.length))] & (rows >= 0))
                for mask, axis, rows in zip(wanted, self._after, self._rows, strict=True)
            ]
            yield [rows[along] for rows, along in zip(self._rows, target, strict=True)], target


def _sources(before: Axis, after: Axis, rows: Positions) -> npt.NDArray[np.intp]:
    """Return, for each new chunk along an axis, the old chunk with exactly its rows, `_EMPTY` or `_REWRITTEN`."""
    count = len(after.starts)
    found = np.full(count, _REWRITTEN, np.intp)
    if not count:
        return found
    filled = np.add.reduceat(rows >= 0, after.starts)
    found[filled == 0] = _EMPTY
    lengths = after.ends - after.starts
    first, last = rows[after.starts], rows[after.ends - 1]
    jumps = np.zeros(len(rows), np.intp)
    jumps[1:] = np.diff(rows) != 1
    jumps[after.starts] = 0
    is_run = (filled == lengths) & (np.add.reduceat(jumps, after.starts) == 0)
    runs = np.flatnonzero(is_run)
    sources = before.chunk_of(first[runs])
    is_whole = (before.starts[sources] == first[runs]) & (before.ends[sources] == last[runs] + 1)
    same = is_whole & (before.sizes[sources] == after.sizes[runs])
    found[runs[same]] = sources[same]
    return found

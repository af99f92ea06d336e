"""Moves rows of arrays along their axes: whole chunks by reference, and only the rest is read and written again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from txstore.errors import TransactionStateError
from txstore.format.chunk_moves import ChunkMoves
from txstore.format.row_moves import with_moves
from txstore.interfaces import AnyStore, zarr_store
from txstore.labels.grids import Axis, Positions, axes_of, chunk_key_parts, chunk_prefix, documents, pieces, read, write
from txstore.labels.matching import Segment
from txstore.pipeline import open_own

_NO_ROWS = np.empty(0, np.intp)
#: Of a chunk of the array as it will be: no stored row comes to lie in it, or it has to be written again.
_EMPTY, _REWRITTEN = -1, -2


@dataclass(frozen=True)
class Moved:
    """What becomes of one axis: its new length, and where its rows go."""

    length: int
    segments: Sequence[Segment]

    @property
    def has_moved(self) -> bool:
        """Whether a position means another row afterwards."""
        return not self.segments or any(begin != to for begin, _, to in self.segments)


def move_rows(store: AnyStore, moved: Mapping[str, Mapping[int, Moved]]) -> None:
    """Move rows of arrays, by their paths, along some axes. Rows that no stored row comes to are the fill value.

    The arrays have to be as they are in the base commit: whole chunks are taken from there by reference. Raises
    `TransactionStateError`, and moves nothing, if this transaction has changed one of them.
    """
    arrays = [_Rearranged(_unchanged(store, path), path, axes) for path, axes in moved.items()]
    store.move_chunks({each.below: each.chunk_moves() for each in arrays})
    # The documents are set behind the deletion: they may lie below what is deleted.
    for each in arrays:
        each.write(store)


def _unchanged(store: AnyStore, path: str) -> zarr.Array[Any]:
    """Return an array as it is in the base commit."""
    new = open_own(zarr_store(store), path, mode="r")
    try:
        old = open_own(zarr_store(store.at_base()), path, mode="r")
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
        attributes = with_moves(
            old.metadata.attributes, old.ndim, [axis for axis, each in axes.items() if each.has_moved]
        )
        self._metadata = metadata = old.metadata.update_shape(shape).update_attributes(attributes)
        self.below = (self._start + chunk_prefix(old.metadata)).rstrip("/")
        before, after = axes_of(old.metadata), axes_of(metadata)
        moved = [axes.get(number) or Moved(one.length, ((0, one.length, 0),)) for number, one in enumerate(before)]
        self._after = after
        self._rows = [_Rows.of(each.segments) for each in moved]
        # Per axis, for each new chunk: the old chunk that it equals.
        self._chunks = [_sources(*each) for each in zip(before, after, self._rows, strict=True)]

    def chunk_moves(self) -> ChunkMoves:
        """Return where the chunks go that stay as they are."""
        lead, separator = chunk_key_parts(self._old.metadata)
        start = chunk_prefix(self._old.metadata)
        return ChunkMoves(lead[len(start) :].removeprefix("/"), separator, self._chunks)

    def write(self, store: AnyStore) -> None:
        """Write the documents, and the rows of chunks that no stored one equals."""
        for name, value in documents(self._metadata).items():
            store[self._start + name] = value
        new = open_own(zarr_store(store), self._path, mode="r+")
        for source, target in self._others():
            for piece in pieces(new, source, target):
                write(new, piece.target, read(self._old, piece.source))

    def _others(self) -> Iterator[tuple[list[Positions], list[Positions]]]:
        """Yield selections that together have each row of a chunk that is written again, once."""
        for number in range(len(self._chunks)):
            if not (self._chunks[number] == _REWRITTEN).any():
                continue
            wanted = [
                along >= 0 if axis < number else along == _REWRITTEN if axis == number else along != _EMPTY
                for axis, along in enumerate(self._chunks)
            ]
            found = [
                rows.within(axis, chunks) for rows, axis, chunks in zip(self._rows, self._after, wanted, strict=True)
            ]
            yield [source for source, _ in found], [target for _, target in found]


@dataclass(frozen=True)
class _Rows:
    """The rows of one axis that stay: where each segment of them begins and ends, and where it begins afterwards."""

    begin: Positions
    end: Positions
    to: Positions

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> _Rows:
        table = np.array(sorted(segments, key=lambda each: each[2]), np.intp).reshape(-1, 3)
        return cls(*table[table[:, 0] < table[:, 1]].T)

    @cached_property
    def stop(self) -> Positions:
        """Where each segment ends afterwards."""
        return self.to + self.end - self.begin

    def segment_of(self, positions: Any) -> Any:
        """Return the last segment that begins at, or before, each new position; -1 if none does."""
        return np.searchsorted(self.to, positions, side="right") - 1

    def within(self, axis: Axis, chunks: npt.NDArray[np.bool_]) -> tuple[Positions, Positions]:
        """Return the rows that come to lie in some chunks: where they are, and where they come to."""
        sources, targets = [_NO_ROWS], [_NO_ROWS]
        for first, stop in np.flatnonzero(np.diff(chunks, prepend=False, append=False)).reshape(-1, 2):
            begin, end = axis.starts[first], axis.ends[stop - 1]
            for number in range(max(0, self.segment_of(begin)), self.segment_of(end - 1) + 1):
                to = self.to[number]
                target = np.arange(max(begin, to), min(end, self.stop[number]))
                sources.append(target - to + self.begin[number])
                targets.append(target)
        return np.concatenate(sources), np.concatenate(targets)


def _sources(before: Axis, after: Axis, rows: _Rows) -> npt.NDArray[np.intp]:
    """Return, for each new chunk along an axis, the old chunk with exactly its rows, `_EMPTY` or `_REWRITTEN`."""
    found = np.full(len(after.starts), _EMPTY, np.intp)
    if not len(after.starts) or not len(rows.to):
        return found
    starts, ends = after.starts, after.ends
    first, last = rows.segment_of(starts), rows.segment_of(ends - 1)
    is_in_one = (first == last) & (first >= 0)
    # Rows come to lie in a chunk if a segment begins in it, or reaches into it.
    found[(first != last) | ((first >= 0) & (starts < rows.stop[first]))] = _REWRITTEN
    whole = np.flatnonzero(is_in_one)
    whole = whole[ends[whole] <= rows.stop[first[whole]]]
    offset = rows.begin[first[whole]] - rows.to[first[whole]]
    sources = before.chunk_of(starts[whole] + offset)
    is_same = (before.starts[sources] == starts[whole] + offset) & (before.ends[sources] == ends[whole] + offset)
    is_same &= before.sizes[sources] == after.sizes[whole]
    found[whole[is_same]] = sources[is_same]
    return found

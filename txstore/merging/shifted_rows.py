"""Follows rows that one side has shifted: what the other side has changed is changed where these rows are now.

A side says in `format.row_moves` that all rows of an array have moved equally far along each axis, as `prepend`, `roll`
and `shift` do. The other side has written to the positions of before. The result is the array of the one that moved,
with the elements that the other one changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txstore.codecs.chunk_codec import ChunkCodec, NotMergeableError
from txstore.format.documents import Described, below
from txstore.format.grids import Chunk
from txstore.format.keys import is_document
from txstore.format.mapping import Hierarchy
from txstore.format.row_moves import RowMoves
from txstore.merging import elements
from txstore.merging.document_fields import chunks_of

if TYPE_CHECKING:
    import numpy.typing as npt

#: A range of elements along each axis.
_Box = tuple[slice, ...]


def shifted(base: Described | None, ours: Described | None, theirs: Described | None) -> Shifted | None:
    """Return how one side has shifted the rows of an array. None if none has, or both, or in another way."""
    if base is None or ours is None or theirs is None or base.node.chunks is None:
        return None
    if not base.key == ours.key == theirs.key or not chunks_of(base) == chunks_of(ours) == chunks_of(theirs):
        return None
    before, *after = (RowMoves.of(each.attributes, len(each.node.shape)) for each in (base, ours, theirs))
    moved = [each != before for each in after]
    if sum(moved) != 1 or any(each.mixed != before.mixed for each in after):
        return None
    at = moved.index(True)
    mover, writer = (ours, theirs)[at], (theirs, ours)[at]
    if writer.node.shape != base.node.shape:
        return None
    offsets = tuple(now - then for now, then in zip(after[at].origin, before.origin, strict=True))
    return Shifted(base, mover, offsets, is_ours=at == 0)


@dataclass(frozen=True)
class Shifted:
    """An array whose rows one side has shifted, while the other side has not moved or added any.

    Attributes
    ----------
    base, mover : Described
        The array at the base, and on the side that moved its rows.
    offsets : tuple of int
        How far, along each axis.
    is_ours : bool
        Whether ours has moved them.
    """

    base: Described
    mover: Described
    offsets: tuple[int, ...]
    is_ours: bool

    def follow(
        self, base: Hierarchy, mover: Hierarchy, writer: Hierarchy, changed: Sequence[str]
    ) -> dict[str, bytes | None]:
        """Return the chunks of the side that moved, with the elements that the other one changed. None deletes one.

        `changed` are the keys that the other one changed. Raises `NotMergeableError`: if it changed elements that are
        gone now, or that the side that moved has changed, too; or if the codecs do not allow a comparison of elements.
        """
        following = _Following(self, mover)
        for key in changed:
            if not is_document(key) and (index := self.base.node.index_of(below(self.base.key, key))) is not None:
                codec = ChunkCodec.of(self.base, key)
                following.add(index, codec.decode(base.get_view(key)), codec.decode(writer.get_view(key)))
        return following.encoded()


class _Following:
    """The chunks of the side that moved, as they become. They stay decoded until the end."""

    def __init__(self, shifted: Shifted, view: Hierarchy) -> None:
        self._shifted = shifted
        self._view = view
        self._before, self._now = shifted.base.grid(), shifted.mover.grid()
        self._chunks: dict[Chunk, tuple[npt.NDArray[Any], npt.NDArray[Any]]] = {}  # as stored, and as they become

    def add(self, index: Chunk, old: npt.NDArray[Any], new: npt.NDArray[Any]) -> None:
        """Change the elements in which a chunk of the other side differs from that of the base."""
        inside = tuple(
            slice(0, min(axis.extent - int(axis.start_of(at)), length))
            for at, axis, length in zip(index, self._before.axes, old.shape, strict=True)
        )
        differs = elements.differ(new[_at(inside)], old[_at(inside)])
        if not differs.any():
            return
        box = elements.bounds(differs)
        starts = [
            int(axis.start_of(at)) + offset
            for at, axis, offset in zip(index, self._before.axes, self._shifted.offsets, strict=True)
        ]
        target = tuple(slice(start + along.start, start + along.stop) for start, along in zip(starts, box, strict=True))
        if any(at.start < 0 or at.stop > extent for at, extent in zip(target, self._now.shape, strict=True)):
            raise NotMergeableError("some of the elements that one side has changed are gone on the other side")
        for chunk in self._now.touched(target):
            there, here = self._parts(chunk, target, starts)
            stored, becomes = self._of(chunk)
            wanted = differs[_at(here)]
            if elements.differ(stored[_at(there)], old[_at(here)])[wanted].any():
                raise NotMergeableError("both have changed the same elements")
            becomes[_at(there)][wanted] = new[_at(here)][wanted]

    def _parts(self, chunk: Chunk, target: _Box, starts: Sequence[int]) -> tuple[_Box, _Box]:
        """Return what of a box lies in a chunk: relative to that chunk, and to the other side's one."""
        there, here = [], []
        for at, axis, along, start in zip(chunk, self._now.axes, target, starts, strict=True):
            first, stop = int(axis.start_of(at)), int(axis.start_of(at + 1))
            begin, end = max(along.start, first), min(along.stop, stop)
            there.append(slice(begin - first, end - first))
            here.append(slice(begin - start, end - start))
        return tuple(there), tuple(here)

    def _of(self, chunk: Chunk) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        if chunk not in self._chunks:
            key = self._key(chunk)
            stored = ChunkCodec.of(self._shifted.mover, key).decode(self._view.get_view(key))
            self._chunks[chunk] = stored, stored.copy()
        return self._chunks[chunk]

    def encoded(self) -> dict[str, bytes | None]:
        found = {self._key(chunk): becomes for chunk, (_, becomes) in self._chunks.items()}
        return {key: ChunkCodec.of(self._shifted.mover, key).encode(each) for key, each in found.items()}

    def _key(self, chunk: Chunk) -> str:
        (key,) = self._now.keys([chunk])
        return key


def _at(box: _Box) -> Any:
    """Return an index that gives an array, of an array without axes, too."""
    return (*box, ...)

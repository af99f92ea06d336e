"""Merges chunks element by element, and rows that both sides appended to an array.

An element has changed if its bits differ from the base's. Appended rows of theirs go after ours, whole chunks by
reference. Arrays that share a named dimension must be appended to together, because their rows belong together; else
the merge reports a conflict.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from txstore.codecs.chunk_codec import ChunkCodec, NotMergeableError
from txstore.format.documents import Described, below
from txstore.format.grids import Chunk, Grid
from txstore.format.keys import is_document
from txstore.format.mapping import Hierarchy
from txstore.merging.document_fields import structure_of

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Buffer

    #: The stored values of a chunk at the base, and at both sides.
    Three: TypeAlias = tuple[Buffer | None, Buffer | None, Buffer | None]


#: Element sizes, in bytes, that numpy compares as one number each.
_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True)
class Sides:
    """One decoded chunk, at the base and at both sides; a missing chunk is all fill value.

    `in_doubt` marks elements whose base value is unreliable: both sides count as having changed them.
    """

    base: npt.NDArray[Any]
    ours: npt.NDArray[Any]
    theirs: npt.NDArray[Any]
    in_doubt: npt.NDArray[np.bool_] | None = None

    @classmethod
    def decode(cls, codec: ChunkCodec, values: Three, in_doubt: npt.NDArray[np.bool_] | None = None) -> Sides:
        """Raises `NotMergeableError`."""
        base, ours, theirs = map(codec.decode, values)
        return cls(base, ours, theirs, in_doubt)

    @classmethod
    def decode_all(
        cls, codec: ChunkCodec, values: Sequence[Three], in_doubt: npt.NDArray[np.bool_] | None = None
    ) -> Sides:
        """Return many chunks of one shape, stacked along a new first axis. Raises `NotMergeableError`."""
        base, ours, theirs = map(codec.decode_all, zip(*values, strict=True))
        return cls(base, ours, theirs, in_doubt)

    @cached_property
    def _by_ours(self) -> npt.NDArray[np.bool_]:
        return self._changed(self.ours)

    @cached_property
    def _by_theirs(self) -> npt.NDArray[np.bool_]:
        return self._changed(self.theirs)

    def _changed(self, side: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        found = differ(self.base, side)
        return found if self.in_doubt is None else found | self.in_doubt

    def conflicts(self, *, is_strict: bool = False) -> npt.NDArray[np.bool_]:
        """Return which elements both changed differently; with `is_strict`, also those changed equally."""
        both = self._by_ours & self._by_theirs
        return both if is_strict or not both.any() else both & differ(self.ours, self.theirs)

    def merged(self) -> npt.NDArray[Any]:
        """Return ours, with the elements that only theirs changed."""
        import numpy as np  # late: most processes merge nothing

        chunk = self.ours.copy()
        np.copyto(chunk, self.theirs, where=self._by_theirs & ~self._by_ours)
        return chunk


def differ(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which elements of two arrays of one shape and dtype differ in their bits: so a NaN equals itself."""
    import numpy as np

    size = one.dtype.itemsize
    if not size:
        return np.zeros(one.shape, bool)
    first, second = (np.ascontiguousarray(each).reshape(-1) for each in (one, other))
    found: npt.NDArray[np.bool_]
    if size in _SIZES:
        found = first.view(f"u{size}") != second.view(f"u{size}")
    else:
        found = (first.view(np.uint8).reshape(-1, size) != second.view(np.uint8).reshape(-1, size)).any(axis=1)
    return found.reshape(one.shape)


def bounds(mask: npt.NDArray[np.bool_]) -> tuple[slice, ...]:
    """Return the smallest box that contains all set elements; at least one must be set.

    `array[(*box, ...)]` is that part of an array. An array without axes has the box `()`.
    """
    import numpy as np

    if not mask.ndim:
        return ()
    return tuple(slice(int(along.min()), int(along.max()) + 1) for along in np.nonzero(mask))


#: A node at the base, and on both sides.
_Nodes = Sequence["Described | None"]


class Rows(NamedTuple):
    """The length of an array along an axis: at the base, and on both sides."""

    base: int
    ours: int
    theirs: int


@dataclass
class Joined:
    """The result of joining the appended rows of an array."""

    taken: dict[str, str] = field(default_factory=dict)
    values: dict[str, bytes] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)


def appended(nodes: Mapping[str, _Nodes], join: Callable[[Appended], Joined]) -> dict[str, Appended]:
    """Return the arrays to which both sides appended, if the rows can be joined. `join` raises `NotMergeableError`."""
    found: dict[str, Appended] = {}
    for path, three in nodes.items():
        if (array := _appended(path, three)) is not None:
            with contextlib.suppress(NotMergeableError):
                found[path] = replace(array, joined=join(array))
    torn = {name for path, three in nodes.items() if path not in found for name in _resized(path, three)}
    torn |= {
        name
        for name, rows in _by_dimension(found).items()
        if len(set(rows)) > 1  # rows of one array would be beside wrong rows of the next
    }
    return {path: array for path, array in found.items() if torn.isdisjoint(array.dimension())}


def _by_dimension(arrays: Mapping[str, Appended]) -> dict[tuple[str, str], list[Rows]]:
    found: dict[tuple[str, str], list[Rows]] = {}
    for array in arrays.values():
        for name in array.dimension():
            found.setdefault(name, []).append(array.rows)
    return found


def _resized(path: str, three: _Nodes) -> Iterator[tuple[str, str]]:
    """Yield named dimensions along which only one side resized an array, or a side resized it without appending."""
    base, ours, theirs = three
    if base is None:
        return
    for side in (ours, theirs):
        shape = () if side is None else side.node.shape
        for axis, (before, now) in enumerate(zip(base.node.shape, shape, strict=False)):
            if before != now:
                yield from _dimension(path, base, axis)


def _appended(path: str, three: _Nodes) -> Appended | None:
    base, ours, theirs = three
    if base is None or ours is None or theirs is None:
        return None
    if base.node.chunks is None or not structure_of(base) == structure_of(ours) == structure_of(theirs):
        return None
    shapes = [side.node.shape for side in (base, ours, theirs)]
    axes = [axis for axis, each in enumerate(zip(*shapes, strict=True)) if len(set(each)) > 1]
    if len(axes) != 1:
        return None
    rows = Rows(*(shape[axes[0]] for shape in shapes))
    return Appended(path, axes[0], rows, ours) if rows.base < min(rows.ours, rows.theirs) else None


def _dimension(path: str, node: Described, axis: int) -> Iterator[tuple[str, str]]:
    """Yield group and name of a named dimension: from format 3, or from xarray's attribute in format 2."""
    name = node.dimensions[axis] if len(node.dimensions) > axis else None
    if name is not None:
        yield path.rpartition("/")[0], name


@dataclass(frozen=True)
class Appended:
    """An array to which both sides appended along one axis."""

    path: str
    axis: int
    rows: Rows
    ours: Described
    joined: Joined = field(default_factory=Joined, compare=False)

    @property
    def extent(self) -> int:
        """The final length of the array."""
        return self.rows.ours + self.rows.theirs - self.rows.base

    def dimension(self) -> list[tuple[str, str]]:
        return [*_dimension(self.path, self.ours, self.axis)]

    @property
    def _chunks(self) -> tuple[int, ...]:
        assert self.ours.node.chunks is not None  # `appended` chooses only arrays with chunks
        return self.ours.node.chunks

    def holds(self, key: str) -> bool:
        """Tell whether a chunk holds rows that theirs appended."""
        index = self._index(key)
        return index is not None and (index[self.axis] + 1) * self._chunks[self.axis] > self.rows.base

    def _index(self, key: str) -> Chunk | None:
        return self.ours.node.index_of(below(self.ours.key, key))

    def put_together(self, base: Hierarchy, ours: Hierarchy, theirs: Hierarchy, changed: Sequence[str]) -> Joined:
        """Return the resulting chunks. `changed` are the keys that theirs changed.

        Raises `NotMergeableError`.
        """
        join = _Join(self, base, ours, theirs)
        for key in changed:
            if not is_document(key) and self.holds(key):
                join.add(key)
        return join.joined()


class _Join:
    """Joins the chunks of one array. Rewritten chunks stay decoded until the end."""

    def __init__(self, array: Appended, base: Hierarchy, ours: Hierarchy, theirs: Hierarchy) -> None:
        self._array = array
        self._views = base, ours, theirs
        self._grid = Grid(array.path, array.ours.document)
        self._axis, self._rows = array.axis, array.rows
        self._length = array._chunks[array.axis]
        self._shift = array.rows.ours - array.rows.base
        self._found = Joined()
        self._written: dict[Chunk, npt.NDArray[Any]] = {}

    def add(self, key: str) -> None:
        """Put the rows of one chunk of theirs in their final place."""
        index = self._array._index(key)
        if index is None:
            return
        first = index[self._axis] * self._length
        begin, end = max(first, self._rows.base), min(first + self._length, self._rows.theirs)
        if begin == first and self._shift % self._length == 0:
            target = self._moved(index, index[self._axis] + self._shift // self._length)
            if key in self._views[2]:
                self._found.taken[self._key(target)] = key
            return
        chunk = self._decoded(self._views[2], index)
        if begin > first:
            self._merge_seam(index, chunk, begin - first)
        place = begin + self._shift
        while begin < end:
            number, offset = divmod(place, self._length)
            count = min(end - begin, self._length - offset)
            target_rows = self._rows_of(self._moved(index, number))
            target_rows[self._along(offset, count)] = chunk[self._along(begin - first, count)]
            begin, place = begin + count, place + count

    def _merge_seam(self, index: Chunk, theirs: npt.NDArray[Any], old: int) -> None:
        """Merge the old rows of a chunk, which come before the appended ones."""
        rows = self._along(0, old)
        base, ours = self._decoded(self._views[0], index), self._rows_of(index)
        sides = Sides(base[rows], ours[rows], theirs[rows])
        if sides.conflicts().any():
            raise NotMergeableError("both have changed rows that existed before")
        ours[rows] = sides.merged()

    def _rows_of(self, index: Chunk) -> npt.NDArray[Any]:
        """Return a chunk in its final form, decoded."""
        if index not in self._written:
            self._written[index] = self._decoded(self._views[1], index)
        return self._written[index]

    def joined(self) -> Joined:
        for index, chunk in self._written.items():
            key = self._key(index)
            encoded = self._codec(key).encode(chunk)
            if encoded is not None:
                self._found.values[key] = encoded
            elif key in self._views[1]:
                self._found.deleted.append(key)
        return self._found

    def _key(self, index: Chunk) -> str:
        return next(iter(self._grid.keys([index])))

    def _codec(self, key: str) -> ChunkCodec:
        return ChunkCodec.of(self._array.ours, key)

    def _decoded(self, view: Hierarchy, index: Chunk) -> npt.NDArray[Any]:
        key = self._key(index)
        return self._codec(key).decode(view.get_view(key))

    def _along(self, start: int, count: int) -> tuple[slice, ...]:
        return (*(slice(None),) * self._axis, slice(start, start + count))

    def _moved(self, index: Chunk, number: int) -> Chunk:
        return tuple(chain(index[: self._axis], (number,), index[self._axis + 1 :]))

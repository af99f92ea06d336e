"""Merges three ways: given a base and two sides, finds the changes to ours that add the changes of theirs.

The cost depends on what was changed, not on the size of the hierarchy. The rules for a key that theirs has changed
since the base:

| ours                                    | what becomes of it                                                      |
|-----------------------------------------|-------------------------------------------------------------------------|
| has not changed it                      | theirs, by reference                                                    |
| has changed it to the same              | ours                                                                    |
| has changed a document                  | field by field (`documents`): attributes, each axis of the shape        |
| has changed a chunk                     | element by element (`elements`); a chunk that is missing is fill value  |
| has changed another value               | a conflict                                                              |

and for nodes, as a whole:

| one side                                | the other                                                  | conflict    |
|-----------------------------------------|------------------------------------------------------------|-------------|
| deleted the node                        | changed anything at it or below it                         | "deleted"   |
| changed what chunks mean (`STRUCTURAL`) | changed chunks or nodes below, or that too, otherwise      | "structure" |
| shrank the array                        | changed chunks that lose elements                          | "structure" |
| grew the array over elements that are   | wrote the chunk anew, without these elements               | "structure" |
| in a chunk already: it had shrunk       |                                                            |             |
| moved rows of the array (`row_moves`)   | changed chunks, or moved rows, too                         | "structure" |
| moved rows of the array                 | shortened it there, or made an array with this dimension   | "structure" |
| resized the array along an axis         | resized it along this axis to another extent               | "append"    |
| resized the array along an axis         | made an array with this dimension, as long as that was     | "structure" |
| moved the node                          | moved it elsewhere, or made something where it is now      | "moved"     |
| moved the node                          | deleted it                                                 | "deleted"   |

If one side moved a node, the other side's changes to it follow (`moved_nodes`). Positions are compared, never labels:
no change follows a row that has moved. Arrays along a dimension whose rows one side moved, or whose length it changed,
are in conflict together, and are all settled by one side: a row of one belongs to a row of the next.

If the base itself is a merge, it may have places in doubt (`doubts`): both sides count as having changed these. So they
do with the chunks of an array if both have changed what chunks or positions mean, to the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from txstore.codecs.chunk_codec import ChunkCodec, NotMergeableError
from txstore.format.display import html_head
from txstore.format.documents import Described, Node, below, cuts_chunk, describe
from txstore.format.encoding import MalformedError, json_value
from txstore.format.grids import Chunk, Grid
from txstore.format.keys import ancestors, directory_prefix, is_document, node_of_document
from txstore.format.mapping import Hierarchy
from txstore.format.row_moves import kept, moved_along, moves_of
from txstore.merging.document_fields import Extent, merge_documents, structure_of
from txstore.merging.doubts import Doubts
from txstore.merging.merge_conflicts import Answers, Conflict, table_of
from txstore.merging.merge_side import Side
from txstore.merging.moved_nodes import Aligned, align
from txstore.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

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
    """Return the arrays to which both sides appended, if the rows can be joined. `join` raises `NotMergeableError`.

    Arrays that share a named dimension must be appended to together, because their rows belong together: else none is.
    """
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


_THREE = ("base", "ours", "theirs")
#: About this many bytes of one side are decoded at a time.
_PAGE = 4 << 20
#: A dimension, and how long it was; None: its rows have moved.
_Length = tuple[str, int | None]


@dataclass(repr=False)
class MergePlan:
    """The changes to make to ours. Moves come first, by reference; all other paths are those after the moves."""

    moved: dict[str, str] = field(default_factory=dict)  # from path to new path, with everything below: all at once
    taken: dict[str, str] = field(default_factory=dict)  # from key to the key of theirs with its new value
    values: dict[str, bytes] = field(default_factory=dict)  # merged values, by key
    deleted: list[str] = field(default_factory=list)  # keys
    deleted_below: list[str] = field(default_factory=list)  # nodes, as a whole
    conflicts: list[Conflict] = field(default_factory=list)  # without an answer
    is_cut: bool = False  # a vacuum expired commits with which there might be fewer conflicts

    @property
    def is_empty(self) -> bool:
        return not (self.moved or self.taken or self.values or self.deleted or self.deleted_below)

    def as_dict(self) -> dict[str, Any]:
        """Return the keys and nodes, without values, for JSON."""
        return {
            "moved": dict(self.moved),
            "taken": dict(self.taken),
            "put_together": list(self.values),
            "deleted": list(self.deleted),
            "deleted_below": list(self.deleted_below),
            "conflicts": [each.as_dict() for each in self.conflicts],
        }

    def __str__(self) -> str:
        counts = {
            "moved": len(self.moved),
            "taken": len(self.taken),
            "put together": len(self.values),
            "deleted": len(self.deleted) + len(self.deleted_below),
            "conflicts": len(self.conflicts),
        }
        return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count) or "nothing"

    def __repr__(self) -> str:
        return f"<MergePlan: {self}>"

    def _repr_html_(self) -> str:
        return html_head("MergePlan", str(self)) + table_of(self.conflicts)


def three_way(
    base: Hierarchy,
    ours: Side,
    theirs: Side,
    answers: Answers | None = None,
    doubts: Doubts | None = None,
    *,
    is_strict: bool = False,
    concatenates: bool = False,
    progress: Progress | None = None,
) -> MergePlan:
    """Return the plan that adds the changes of theirs to ours. It includes conflicts without an answer.

    With `is_strict`, a change by both is a conflict even if equal, as between transactions (I5). With `concatenates`,
    rows that theirs appended along an axis go after those of ours (`elements`). `progress` gets the bytes of the
    chunks that both changed.
    """
    answers, doubts = answers or Answers(None), doubts or Doubts()
    aligned = align(base, ours, theirs, answers, doubts)
    if doubts:
        doubts = doubts.moved(aligned.of_base.of)
    merge = _ThreeWayMerge(aligned, answers, doubts, is_strict=is_strict, concatenates=concatenates, progress=progress)
    plan = merge.run(aligned.conflicts)
    if aligned.of_theirs:
        origins = {key: aligned.of_theirs.origin(source) for key, source in plan.taken.items()}
        plan.taken = {key: origin for key, origin in origins.items() if origin is not None}
    plan.moved = dict(aligned.of_ours.moves)
    return plan


class _Chunk(NamedTuple):
    """A chunk that both changed, with its array, and its values on all sides."""

    key: str
    path: str
    document: str
    content: bytes
    values: tuple[memoryview | None, memoryview | None, memoryview | None]

    @property
    def name(self) -> str:
        """The key relative to the array."""
        return self.key[len(directory_prefix(self.path)) :]

    @property
    def size(self) -> int:
        """The length of its stored values, in bytes."""
        return sum(len(value) for value in self.values if value is not None)

    def codec(self) -> ChunkCodec:
        """Raises `NotMergeableError`."""
        return ChunkCodec(self.document.rpartition("/")[2], self.content, self.name)


class _ThreeWayMerge:
    def __init__(
        self,
        aligned: Aligned,
        answers: Answers,
        doubts: Doubts,
        *,
        is_strict: bool,
        concatenates: bool,
        progress: Progress | None,
    ) -> None:
        self._ours, self._theirs = aligned.ours, aligned.theirs
        self._views = aligned.base, aligned.ours.view, aligned.theirs.view
        self._doubts = Doubts(keys=self._unlike_base())
        self._doubts.add(doubts)
        if self._doubts:
            self._ours, self._theirs = self._doubts.changed_by_both(*self._sides)
        self._answers = answers
        self._is_strict = is_strict
        self._concatenates = concatenates
        self._progress = progress
        self._appended: dict[str, Appended] = {}  # arrays to join: both sides appended to them
        self._plan = MergePlan()
        self._settled: set[str] = set()  # nodes taken whole from one side, or in conflict
        self._documents: dict[str, tuple[str, bytes] | None] = {}
        self._chunks: list[_Chunk] = []  # changed by both

    def run(self, conflicts: Sequence[Conflict]) -> MergePlan:
        for conflict in sorted(conflicts, key=lambda each: each.path):
            if not self._is_settled(conflict.path):
                self._settle(conflict.path, conflict)
        for path in self._answers.derived:
            if None not in self._described(path)[1:]:  # also where theirs alone has changed it: its type, say
                self._settled.add(path)
        paths = sorted(self._nodes_changed() | self._doubts.nodes.keys())
        if self._concatenates:
            # If an array is in doubt, it is unknown which rows are new.
            sure = (path for path in paths if not (self._doubts and self._doubts.is_below(path)))
            self._appended = appended({path: self._described(path) for path in sure}, self._joined)
        found: dict[str, Conflict] = {}
        for path in paths:
            if not self._is_settled(path) and (of_node := self._node(path)) is not None:
                found[path] = of_node
                self._settled.add(path)
        self._tie(found, paths)
        for path, conflict in found.items():
            self._settle(path, conflict)
        for key in self._theirs.keys:
            if not (self._is_settled(key) or self._is_appended(key)):
                self._key(key)
        self._merge_chunks()
        for path, each in self._appended.items():
            if not self._is_settled(path):
                self._plan.taken |= each.joined.taken
                self._plan.values |= each.joined.values
                self._plan.deleted += each.joined.deleted
        return self._plan

    def _unlike_base(self) -> set[str]:
        """Return the changed chunks of arrays of which both changed what chunks or positions mean: so the base's mean
        something else.
        """
        found = set[str]()
        for key in self._ours.changes.keys() & self._theirs.changes.keys():
            if is_document(key):
                base, *sides = map(structure_of, self._described(node_of_document(key)))
                if base is not None and None not in sides and base not in sides:
                    below = (side.changes_below(node_of_document(key)) for side in self._sides)
                    found.update(each for each in chain.from_iterable(below) if not is_document(each))
        return found

    def _is_appended(self, key: str) -> bool:
        """Tell whether a key is that of a chunk with appended rows."""
        if not self._appended or is_document(key):
            return False
        return any(each.holds(key) for path in ancestors(key) if (each := self._appended.get(path)) is not None)

    def _joined(self, array: Appended) -> Joined:
        return array.put_together(*self._views, self._theirs.changes_below(array.path))

    # --- nodes

    def _nodes_changed(self) -> set[str]:
        return {
            node_of_document(key) for side in (self._ours, self._theirs) for key in side.changes if is_document(key)
        }

    def _described(self, path: str) -> list[Described | None]:
        """Return the node at a path: at the base, and on both sides."""
        return [describe(view.get_view, path) for view in self._views]

    def _is_settled(self, path: str) -> bool:
        return bool(self._settled) and (path in self._settled or not self._settled.isdisjoint(ancestors(path)))

    def _node(self, path: str) -> Conflict | None:
        """Return the conflict about a node as a whole; if theirs has deleted it, and that is none, plan that."""
        base, ours, theirs = self._described(path)
        kind = None
        if base is None and self._is_beside_moved_rows(ours, theirs):
            kind = "structure"
        elif self._doubts.is_of(path) and (ours is None) != (theirs is None):
            kind = "deleted"
        elif base is not None and (ours is None) != (theirs is None):
            changed = self._theirs if ours is None else self._ours
            if changed.has_changed(path):
                kind = "deleted"
            elif theirs is None and not self._theirs.view.has_keys_below(path):
                self._settled.add(path)
                self._plan.deleted_below.append(path)
        elif ours is not None and theirs is not None:
            kind = self._between(path, base, ours, theirs)
        return None if kind is None else self._of_node(path, kind)

    def _of_node(self, path: str, kind: str) -> Conflict:
        sides = {name: partial(_document_of, each) for name, each in zip(_THREE, self._described(path), strict=True)}
        return Conflict(path, kind, path, _sides=sides)

    def _tie(self, found: dict[str, Conflict], paths: Sequence[str]) -> None:
        """Add the arrays that share a moved or resized dimension with an array in conflict, to be settled with it.

        Raises `ValueError` if the answers for these differ.
        """
        open_ones = [path for path, conflict in found.items() if conflict.kind in ("structure", "append")]
        arrays = {path: _Along.of(path, *self._described(path)) for path in paths} if open_ones else {}
        arrays = {path: each for path, each in arrays.items() if path in found or not self._is_settled(path)}
        while open_ones:
            tied = [open_ones.pop()]
            for path in tied:
                here = arrays.pop(path, None)
                beside = [other for other, each in arrays.items() if here is not None and here.belongs_to(each)]
                tied += [other for other in beside if other not in tied]
            open_ones = [path for path in open_ones if path not in tied]
            for path in tied:
                found.setdefault(path, self._of_node(path, found[tied[0]].kind))
            self._answers.check_alike([found[path] for path in tied])

    def _is_beside_moved_rows(self, ours: Described | None, theirs: Described | None) -> bool:
        """Tell whether one side alone has made an array, and the other has moved rows along one of its dimensions.

        Or has resized an array along one, which was as long before as the new array is.
        """
        if (ours is None) == (theirs is None):
            return False
        made, of_other = (ours, 1) if theirs is None else (theirs, 0)
        if made is None or not made.dimensions:
            return False
        moved = self._moved[of_other]
        along = {*zip(made.dimensions, made.node.shape, strict=False), *((name, None) for name in made.dimensions)}
        return any(not moved[group].isdisjoint(along) for group in ancestors(made.path) if group in moved)

    @cached_property
    def _moved(self) -> tuple[dict[str, set[_Length]], dict[str, set[_Length]]]:
        """Along which dimensions arrays have moved rows, or had another length before, by group: on our side, and on
        theirs.
        """
        found: tuple[dict[str, set[_Length]], dict[str, set[_Length]]] = {}, {}
        for path in self._nodes_changed():
            base, *sides = self._described(path)
            for moved, side in zip(found, sides, strict=True):
                if path and base is not None and side is not None:
                    along = moved.setdefault(path.rpartition("/")[0], set())
                    along |= {(name, None) for name in moved_along(base.attributes, side.attributes, side.dimensions)}
                    lengths = zip(side.dimensions, base.node.shape, side.node.shape, strict=False)
                    along |= {(name, was) for name, was, is_now in lengths if name is not None and was != is_now}
        return found

    def _between(self, path: str, base: Described | None, ours: Described, theirs: Described) -> str | None:
        """Return the kind of conflict between two sides about a node and the nodes below it; None if there is none."""
        has_below = tuple(
            any(not is_document(key) or node_of_document(key) != path for key in side.changes_below(path))
            for side in self._sides
        )
        is_alike = structure_of(ours) == structure_of(theirs)
        if path in self._appended:
            return None
        changed = [base is None or structure_of(base) != structure_of(side) for side in (ours, theirs)]
        if base is None or all(changed) or self._doubts.has_all_of(path):
            is_same = is_alike and ours.node.shape == theirs.node.shape
            return None if is_same or "array" not in (ours.kind, theirs.kind) else "structure"
        if (changed[0] and not changed[1] and has_below[1]) or (changed[1] and not changed[0] and has_below[0]):
            return "structure"
        if _cuts_where_rows_moved(base, ours, theirs) or _cuts_where_rows_moved(base, theirs, ours):
            return "structure"
        if self._both_resized(base, ours, theirs):
            return "append"
        dropped = (base, ours, self._theirs, theirs), (base, theirs, self._ours, ours)
        if any(self._drops_what_changed(*each) for each in dropped):
            return "structure"
        if self._loses_what_is_shown(base, ours, *self._sides) or self._loses_what_is_shown(
            base, theirs, *reversed(self._sides)
        ):
            return "structure"
        return None

    @property
    def _sides(self) -> tuple[Side, Side]:
        return self._ours, self._theirs

    def _both_resized(self, base: Described, ours: Described, theirs: Described) -> bool:
        axes = zip(base.node.shape, ours.node.shape, theirs.node.shape, strict=False)
        # Rows that can't go one behind the other are not laid one over the other, though they are as many.
        if_equal = self._is_strict or (self._concatenates and not self._doubts.is_below(base.path))
        return any(len({b, o, t}) == 3 or (if_equal and b not in (o, t)) for b, o, t in axes)

    def _drops_what_changed(self, base: Described, shrunk: Described, other: Side, there: Described) -> bool:
        """Tell whether a side changed chunks of which the other dropped elements by shrinking the array.

        A chunk that a side has deleted is a change to fill values, unless it lies beyond the side's own array.
        """
        extents = zip(shrunk.node.shape, base.node.shape, strict=False)
        if shrunk.kind != "array" or all(now >= before for now, before in extents):
            return False
        return any(
            not is_document(key)
            and cuts_chunk(shrunk.key, base.content, shrunk.content, key)
            and (other.changes[key].after is not None or not cuts_chunk(shrunk.key, base.content, there.content, key))
            for key in other.changes_below(shrunk.path)
        )

    def _loses_what_is_shown(self, base: Described, grown: Described, side: Side, other: Side) -> bool:
        """Tell whether a side grew over elements that the base hides in its last chunks, and the other lost them."""
        if grown.kind != "array" or base.node.chunks is None or structure_of(base) != structure_of(grown):
            return False
        extents = zip(base.node.shape, grown.node.shape, base.node.chunks, strict=True)
        cut = {axis: (old // n, old % n) for axis, (old, new, n) in enumerate(extents) if new > old and old % n}
        for key in other.changes_below(base.path) if cut else ():
            index = base.node.index_of(below(base.key, key))
            if index is None or is_document(key) or key in side.changes:
                continue
            if any(
                index[axis] == at and self._hide_others(base, key, axis, end, other) for axis, (at, end) in cut.items()
            ):
                return True
        return False

    def _hide_others(self, array: Described, key: str, axis: int, begin: int, other: Side) -> bool:
        """Tell whether a chunk holds other elements from `begin` on, along an axis, than at the base."""
        codec = ChunkCodec.of(array, key)
        try:
            before, after = (codec.decode(view.get_view(key)) for view in (self._views[0], other.view))
        except NotMergeableError:
            return True
        hidden = (slice(None),) * axis + (slice(begin, None),)
        return bool(differ(before[hidden], after[hidden]).any())

    def _settle(self, path: str, conflict: Conflict) -> None:
        """Take a whole node from one side, if an answer names a side."""
        self._settled.add(path)
        answer = self._answers.side_of(conflict)
        if answer is None:
            self._plan.conflicts.append(conflict)
        elif answer == "theirs":
            changed = {*self._ours.changes_below(path), *self._theirs.changes_below(path)}
            for key in sorted(changed):
                self._take(key)

    # --- keys

    def _take(self, key: str) -> None:
        """Bring a key to the state of theirs: its value, or deleted."""
        if self._theirs.has(key):
            self._plan.taken[key] = key
        elif self._ours.has(key):
            self._plan.deleted.append(key)

    def _key(self, key: str) -> None:
        if key not in self._ours.changes:
            self._take(key)
            return
        base, ours, theirs = (view.get_view(key) for view in self._views)
        has_shapes = is_document(key) or key.rpartition("/")[2] == ".zmetadata"
        if (
            _bytes(ours) == _bytes(theirs)
            and not (has_shapes and self._appended)
            and (not self._is_strict or (base is None and self._is_of_group(key)))
        ):
            return
        if has_shapes and ours is not None and theirs is not None:
            self._document(key, base, ours, theirs)
            return
        array = self._array_above(key)
        if array is None:
            self._value(key, "value", key)
            return
        if self._doubts.has_all_of(key):
            base = None  # it may belong to another array
        self._chunks.append(_Chunk(key, *array, (base, ours, theirs)))

    def _is_of_group(self, key: str) -> bool:
        """Tell whether a key is a group's document. Both sides may create a group: it is the same group."""
        node = describe(self._ours.view.get_view, node_of_document(key)) if is_document(key) else None
        return node is not None and node.kind == "group"

    def _value(self, key: str, kind: str, path: str) -> None:
        sides = {name: partial(_value_of, view, key) for name, view in zip(_THREE, self._views, strict=True)}
        conflict = Conflict(path, kind, key, _sides=sides)
        answer = self._answers.of(conflict)
        if answer is None:
            self._plan.conflicts.append(conflict)
        elif answer == "theirs":
            self._take(key)
        elif callable(answer):
            found = answer(conflict)
            if not isinstance(found, bytes | bytearray | memoryview):
                raise TypeError(f"resolve: for {conflict}, bytes were to be returned, not {type(found).__name__}")
            self._plan.values[key] = bytes(found)

    def _document(self, key: str, base: memoryview | None, ours: memoryview, theirs: memoryview) -> None:
        three = _bytes(base), bytes(ours), bytes(theirs)
        merge = partial(merge_documents, key, *three, extent=self._extent_of(key), in_doubt=self._doubts.fields_of(key))
        merged, conflicting = merge(is_strict=self._is_strict)
        if conflicting:
            conflict = Conflict(
                node_of_document(key), "document", key, fields=conflicting,
                _sides={name: partial(_parsed, content) for name, content in zip(_THREE, three, strict=True)},
            )  # fmt: skip
            answer = self._answers.of(conflict)
            if answer is None:
                self._plan.conflicts.append(conflict)
                return
            if callable(answer):
                written = _written(answer(conflict), conflict)
                self._plan.values[key] = bytes(kept(key, merged, written, ""))
                return
            merged, _ = merge(prefers=answer)
        if merged == bytes(theirs):
            self._take(key)
        elif merged != bytes(ours):
            self._plan.values[key] = merged

    def _extent_of(self, key: str) -> Extent | None:
        """Return the final extent along the axis along which both appended; None if they did not."""
        appended = self._appended.get(node_of_document(key))
        return None if appended is None else lambda axis: appended.extent if axis == appended.axis else None

    def _merge_chunks(self) -> None:
        """Merge the chunks that both changed, many of an array at a time: decoding and encoding take longest."""
        done, total = 0, sum(chunk.size for chunk in self._chunks)
        for _, of_array in groupby(self._chunks, lambda chunk: (chunk.path, chunk.content)):
            page: list[_Chunk] = []
            shape: tuple[int, ...] | None = None
            for chunk in of_array:
                if self._progress is not None:
                    self._progress(done, total)
                done += chunk.size
                try:
                    codec = chunk.codec()
                except NotMergeableError:
                    self._value(chunk.key, "chunk", chunk.path)
                    continue
                if page and (codec.shape != shape or len(page) * codec.size >= _PAGE):
                    self._merge_page(page)
                    page = []
                shape = codec.shape
                page.append(chunk)
            self._merge_page(page)
        if self._progress is not None and total:
            self._progress(total, total)

    def _merge_page(self, page: Sequence[_Chunk]) -> None:
        """Merge chunks of one array and shape together; if one of them can't be merged, one by one."""
        if not page:
            return
        codec = page[0].codec()
        try:
            in_doubt = self._doubts.masks_of([chunk.key for chunk in page], codec.shape) if self._doubts else None
            sides = Sides.decode_all(codec, [chunk.values for chunk in page], in_doubt)
            conflicting = sides.conflicts(is_strict=self._is_strict).reshape(len(page), -1).any(axis=1)
            encoded = iter(codec.encode_all(sides.merged()[~conflicting]))
        except NotMergeableError:
            if len(page) == 1:
                self._value(page[0].key, "chunk", page[0].path)
            else:
                for chunk in page:
                    self._merge_page([chunk])
            return
        for chunk, has_conflicts in zip(page, conflicting.tolist(), strict=True):
            if has_conflicts:
                self._settle_chunk(chunk)
            else:
                self._write_chunk(chunk, next(encoded))

    def _settle_chunk(self, chunk: _Chunk) -> None:
        """Answer the conflicts of a chunk, or note them."""
        codec = chunk.codec()
        sides = Sides.decode(codec, chunk.values, self._doubts.mask(chunk.key, codec.shape))
        mask = sides.conflicts(is_strict=self._is_strict)
        box = bounds(mask)
        conflict = _ElementConflict(self, chunk, box).conflict
        answer = self._answers.of(conflict)
        if answer is None:
            self._plan.conflicts.append(conflict)
            return
        merged = sides.merged()
        if callable(answer):
            place: Any = (*box, ...)
            part, wanted = merged[place], mask[place]
            part[wanted] = _elements(answer(conflict), part, conflict)[wanted]
        elif answer == "theirs":
            merged[mask] = sides.theirs[mask]
        try:
            self._write_chunk(chunk, codec.encode(merged))
        except NotMergeableError:
            self._value(chunk.key, "chunk", chunk.path)

    def _write_chunk(self, chunk: _Chunk, encoded: bytes | None) -> None:
        if encoded is not None:
            self._plan.values[chunk.key] = encoded
        elif chunk.values[1] is not None:
            self._plan.deleted.append(chunk.key)

    def _array_above(self, key: str) -> tuple[str, str, bytes] | None:
        """Return the path of the array that a key belongs to, and its document as both sides have it now."""
        for path in ancestors(key):
            if path not in self._documents:
                found = describe(self._ours.view.get_view, path) or describe(self._theirs.view.get_view, path)
                is_array = found is not None and found.kind == "array"
                self._documents[path] = (found.key, found.content) if found is not None and is_array else None
            known = self._documents[path]
            if known is not None:
                return path, *known
        return None


class _ElementConflict:
    """The conflict of one chunk. Its sides are decoded on demand, since there may be many conflicts."""

    def __init__(self, merge: _ThreeWayMerge, chunk: _Chunk, box: tuple[slice, ...]) -> None:
        self._views = merge._views
        self._is_strict = merge._is_strict
        self._doubts = merge._doubts
        self._chunk = chunk._replace(values=(None, None, None))
        self._box = box
        self._place: tuple[Any, ...] = (*box, ...)  # with `...`, an array without axes gives an array, too
        sides: dict[str, Callable[[], Any]] = {name: partial(self._part, name) for name in _THREE}
        sides["mask"] = lambda: self._mask()[self._place]
        sides["mask of chunk"] = self._mask
        region = self._region(Node.parse(chunk.document, chunk.content))
        self.conflict = Conflict(chunk.path, "elements", chunk.key, region, _sides=sides)

    def _decoded(self) -> Sides:
        base, ours, theirs = (view.get_view(self._chunk.key) for view in self._views)
        codec = self._chunk.codec()
        in_doubt = self._doubts.mask(self._chunk.key, codec.shape)
        if self._doubts.has_all_of(self._chunk.key):
            base = None
        return Sides.decode(codec, (base, ours, theirs), in_doubt)

    def _mask(self) -> npt.NDArray[np.bool_]:
        return self._decoded().conflicts(is_strict=self._is_strict)

    def _part(self, side: str) -> Any:
        return getattr(self._decoded(), side)[self._place]

    def _region(self, node: Node) -> tuple[slice, ...] | None:
        index = node.index_of(self._chunk.name)
        if index is None or node.chunks is None:
            return None
        starts = [place * length for place, length in zip(index, node.chunks, strict=True)]
        return tuple(
            slice(start + along.start, start + along.stop) for start, along in zip(starts, self._box, strict=True)
        )


class _Along(NamedTuple):
    """The names of an array's dimensions, and those along which a side has moved its rows, or changed its length."""

    group: str
    names: frozenset[str | None]
    changed: frozenset[str | None]

    @classmethod
    def of(cls, path: str, base: Described | None, *sides: Described | None) -> _Along:
        names, changed = set[str | None](), set[str | None]()
        for each in sides:
            if each is not None:
                names.update(each.dimensions)
                if base is not None:
                    changed |= moved_along(base.attributes, each.attributes, each.dimensions)
                    lengths = zip(each.dimensions, base.node.shape, each.node.shape, strict=False)
                    changed.update(name for name, was, is_now in lengths if was != is_now)
        return cls(path.rpartition("/")[0], frozenset(names - {None}), frozenset(changed - {None}))

    def belongs_to(self, other: _Along) -> bool:
        """Tell whether rows of one belong to rows of the other, and have moved, are new, or are gone."""
        groups = sorted((self.group, other.group), key=len)
        is_near = groups[0] in (groups[1], *ancestors(groups[1]))
        return is_near and not (self.changed.isdisjoint(other.names) and other.changed.isdisjoint(self.names))


def _cuts_where_rows_moved(base: Described, mover: Described, other: Described) -> bool:
    """Tell whether a side has shortened an array along an axis along which the other has moved its rows."""
    shapes = base.node.shape, other.node.shape
    moves = [moves_of(each.attributes, len(shapes[0])) for each in (base, mover)]
    return any(length < before and was != now for before, length, was, now in zip(*shapes, *moves, strict=False))


def _bytes(value: memoryview | None) -> bytes | None:
    return None if value is None else bytes(value)


# The sides of a conflict, read on demand.


def _value_of(view: Hierarchy, key: str) -> bytes | None:
    return _bytes(view.get_view(key))


def _document_of(node: Described | None) -> dict[str, Any] | None:
    return None if node is None else dict(node.document)


def _parsed(content: bytes | None) -> Any:
    """Return a document's JSON; the bytes themselves if it can't be parsed."""
    try:
        return None if content is None else json_value(content)
    except MalformedError:
        return content


def _written(document: Any, conflict: Conflict) -> bytes:
    """Encode a document that a caller's function returned to settle a conflict."""
    import json

    if not isinstance(document, dict):
        raise TypeError(f"resolve: for {conflict}, a dict was to be returned, not {type(document).__name__}")
    return json.dumps(document, indent=2).encode()


def _elements(found: Any, place: Any, conflict: Conflict) -> Any:
    """Check elements that a caller's function returned to settle a conflict."""
    import numpy as np

    array = np.asarray(found)
    if array.shape != place.shape or not np.can_cast(array.dtype, place.dtype, "same_kind"):
        raise ValueError(
            f"resolve: for {conflict}, an array of shape {place.shape} and dtype {place.dtype} was to be returned, not "
            f"one of shape {array.shape} and dtype {array.dtype}"
        )
    return array.astype(place.dtype)

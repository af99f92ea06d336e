"""Finds how each node changed between two commits: groups the keys that differ by the node they belong to.

Of a chunk it keeps only the place in the grid. Values are read on demand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from txstore.errors import ErasedError
from txstore.format.documents import ABSENT, Described, describe, index_of
from txstore.format.keys import ancestors, directory_prefix, is_document, node_of_document
from txstore.format.mapping import Hierarchy
from txstore.history.changes import KeyChange

if TYPE_CHECKING:
    from txstore.format.grids import Chunk


#: The kinds of change of a node.
ADDED, REMOVED, MOVED, CHANGED = "added", "removed", "moved", "changed"


@dataclass
class NodeDiff:
    """How one array or group differs.

    Attributes
    ----------
    path : str
        Its path; for a removed node, the old one. The root is empty.
    change : {"added", "removed", "moved", "changed"}
    kind : str
        "array" or "group"; "unknown" for unreadable documents, and for keys that belong to no node.
    moved_from : str or None
        The old path of a moved node: all its values are still at the same places in the packs.
    fields : list of FieldChange
        For a node that exists before and after: `shape`, `dtype`, `chunks`, `codecs`, `fill_value`, ...
    attributes : list of FieldChange
        Attributes, those in nested objects one by one: `path`, `before`, `after`.
    chunks_added, chunks_removed, chunks_changed : int
        Stored chunks. A chunk that is not stored is all fill value.
    bytes_added, bytes_dropped : int
        Of new values, and of values that are gone, including documents.
    keys : list of str
        Keys that are neither documents nor chunks.
    """

    path: str
    change: str
    kind: str
    moved_from: str | None = None
    fields: list[FieldChange] = field(default_factory=list)
    attributes: list[FieldChange] = field(default_factory=list)
    chunks_added: int = 0
    chunks_removed: int = 0
    chunks_changed: int = 0
    bytes_added: int = 0
    bytes_dropped: int = 0
    keys: list[str] = field(default_factory=list)
    before: Described | None = field(default=None, repr=False)
    after: Described | None = field(default=None, repr=False)
    chunks: list[Chunk] = field(default_factory=list, repr=False)  # places in the grid

    @cached_property
    def regions(self) -> list[tuple[slice, ...]]:
        """The changed regions of an array, as slices: its chunks, with neighbours joined into boxes.

        If the array has shrunk, chunks beyond its end are those of the longer one.
        """
        from txstore.comparing.elements import regions_of  # late: it imports numpy

        return regions_of(self.before, self.after, self.chunks)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of an array: the new one, or the old one if it was removed."""
        described = self.after or self.before
        return described.node.shape if described is not None and described.kind == "array" else None

    def as_dict(self) -> dict[str, Any]:
        """Return the changes for JSON."""
        told: dict[str, Any] = {"path": self.path, "change": self.change, "kind": self.kind}
        if self.moved_from is not None:
            told["moved_from"] = self.moved_from
        if self.shape is not None:
            told["shape"] = list(self.shape)
        told["fields"] = [each.as_dict() for each in self.fields]
        told["attributes"] = [each.as_dict() for each in self.attributes]
        if self.kind == "array":
            told["chunks"] = {
                "added": self.chunks_added, "removed": self.chunks_removed, "changed": self.chunks_changed,
            }  # fmt: skip
            told["regions"] = [[[part.start, part.stop] for part in region] for region in self.regions]
        told["keys"] = self.keys
        return told | {"bytes_added": self.bytes_added, "bytes_dropped": self.bytes_dropped}


# --- from keys to nodes


def compare(changes: Iterable[KeyChange], before: Hierarchy, after: Hierarchy) -> list[NodeDiff]:
    """Return the changes of the nodes to which the differing keys belong, by path.

    An array that has become a group, or the reverse, is removed and added. What is removed there, also below, comes
    before what is added.
    """
    nodes = _Nodes(before, after)
    for change in changes:
        nodes.add(change)
    found = [(node.told(), node) for node in sorted(nodes.all(), key=nodes.order)]
    return _joined_by_moves(found)


class _Nodes:
    """Finds the node that a key belongs to on each side: the nearest array above it, or the group right above."""

    def __init__(self, before: Hierarchy, after: Hierarchy) -> None:
        self._before, self._after = before, after
        self._nodes: dict[str, list[_FoundNode]] = {}  # by path: one, or the one of before and the one of after
        self._described: dict[str, tuple[Described | None, Described | None]] = {}
        self._array: _FoundNode | None = None  # of the last key: the next key usually belongs to it, too
        self._below = "\0"

    def all(self) -> Iterable[_FoundNode]:
        return chain.from_iterable(self._nodes.values())

    def order(self, node: _FoundNode) -> tuple[str, bool, str]:
        """Return what to sort nodes by."""
        if node.change == REMOVED:
            replaced = (path for path in ancestors(node.path) if len(self._nodes.get(path, ())) == 2)
            return next(replaced, node.path), False, node.path
        return node.path, True, node.path

    def add(self, change: KeyChange) -> None:
        key, before, after = change
        if self._array is not None and key.startswith(self._below) and self._array.holds(change):
            self._array.add(change)
            return
        old = None if before is None else self._of(key, 0)
        new = None if after is None else self._of(key, 1)
        if old is not None and new is not None and old is not new:
            old.add(KeyChange(key, before, None))
            new.add(KeyChange(key, None, after))
            return
        node = old or new
        if node is not None:
            node.add(change)
            if node.is_array:
                self._array, self._below = node, directory_prefix(node.path)

    def _of(self, key: str, side: int) -> _FoundNode:
        """Return the node of a key before (0), or after (1)."""
        path = node_of_document(key) if is_document(key) else self._array_above(key, side)
        if path not in self._nodes:
            before, after = self._describe(path)
            if before is not None and after is not None and {before.kind, after.kind} == {"array", "group"}:
                self._nodes[path] = [_FoundNode(path, before, None), _FoundNode(path, None, after)]
            else:
                self._nodes[path] = [_FoundNode(path, before, after)]
        return self._nodes[path][side if len(self._nodes[path]) == 2 else 0]

    def _array_above(self, key: str, side: int) -> str:
        """Return the nearest array above a key, of this side, or else of the other; or else what is right above."""
        of_other = None
        for path in ancestors(key):
            found = self._describe(path)
            if (here := found[side]) is not None and here.kind == "array":
                return path
            if of_other is None and (there := found[1 - side]) is not None and there.kind == "array":
                of_other = path
        return key.rpartition("/")[0] if of_other is None else of_other

    def _describe(self, path: str) -> tuple[Described | None, Described | None]:
        found = self._described.get(path)
        if found is None:
            before = describe(_unerased(self._before), path)
            found = before, describe(_unerased(self._after), path, before)
            if not path.rpartition("/")[2].isdecimal():  # a number is a row of chunks, and there may be many
                self._described[path] = found
        return found


def _unerased(view: Hierarchy) -> Callable[[str], memoryview | None]:
    """Return what reads a document, or None in the place of one that was erased."""

    def get(key: str) -> memoryview | None:
        try:
            return view.get_view(key)
        except ErasedError:
            return None

    return get


class _FoundNode:
    """The changes found for one node so far."""

    def __init__(self, path: str, before: Described | None, after: Described | None) -> None:
        self.path = path
        self.before, self.after = before, after
        self.is_array = any(each is not None and each.kind == "array" for each in (before, after))
        self._skip = len(directory_prefix(path))
        shapes = [each.node.shape for each in (after, before) if each is not None and each.kind == "array"]
        self._dimensions = len(shapes[0]) if shapes else 0
        self.counts = {ADDED: 0, REMOVED: 0, CHANGED: 0}
        self.bytes_added = self.bytes_dropped = 0
        self.chunks: list[Chunk] = []
        self.keys: list[str] = []
        self._digests = {ADDED: 0, REMOVED: 0}

    def holds(self, change: KeyChange) -> bool:
        """Tell whether a changed key below is one of this array, on both sides."""
        sides = ((change.before, self.before), (change.after, self.after))
        return all(ref is None or (node is not None and node.kind == "array") for ref, node in sides)

    def add(self, change: KeyChange) -> None:
        key, before, after = change
        suffix = key[self._skip :]
        what = ADDED if before is None else REMOVED if after is None else CHANGED
        self.bytes_dropped += before.length if before is not None else 0
        self.bytes_added += after.length if after is not None else 0
        ref = after or before
        if what != CHANGED and ref is not None:
            self._digests[what] += hash((suffix, ref.kind, ref.pack.id, ref.offset, ref.length))
        if is_document(key):
            return
        chunk = index_of(suffix, self._dimensions) if self.is_array else None
        if chunk is None:
            self.keys.append(key)
        else:
            self.counts[what] += 1
            self.chunks.append(chunk)

    @property
    def change(self) -> str:
        if self.before is None and self.after is not None:
            return ADDED
        return REMOVED if self.before is not None and self.after is None else CHANGED

    def digest(self, what: str) -> int:
        """Return a digest: it is equal for two nodes if all of their keys lead to the same places, and else differs."""
        return self._digests[what]

    def told(self) -> NodeDiff:
        described = self.after or self.before
        is_there = self.before is not None and self.after is not None
        return NodeDiff(
            path=self.path,
            change=self.change,
            kind="array" if self.is_array else "unknown" if described is None else described.kind,
            fields=changed_fields(self.before, self.after) if is_there else [],
            attributes=changed_attributes(self.before, self.after),
            chunks_added=self.counts[ADDED],
            chunks_removed=self.counts[REMOVED],
            chunks_changed=self.counts[CHANGED],
            bytes_added=self.bytes_added,
            bytes_dropped=self.bytes_dropped,
            keys=self.keys,
            before=self.before,
            after=self.after,
            chunks=self.chunks,
        )


def _joined_by_moves(found: Sequence[tuple[NodeDiff, _FoundNode]]) -> list[NodeDiff]:
    """Turn an added node into a moved one, if a removed node held the same values in the same places."""
    removed: dict[int, list[str]] = {}
    for told, node in found:
        if told.change == REMOVED:
            removed.setdefault(node.digest(REMOVED), []).append(told.path)
    gone = set()
    for told, node in found:
        candidates = removed.get(node.digest(ADDED), []) if told.change == ADDED else []
        left = [path for path in candidates if path not in gone]
        if left:
            name = told.path.rpartition("/")[2]
            told.moved_from = next((path for path in left if path.rpartition("/")[2] == name), left[0])
            gone.add(told.moved_from)
            told.change = MOVED
            told.attributes, told.chunks = [], []
            told.chunks_added = told.bytes_added = 0
    return [told for told, _ in found if told.change != REMOVED or told.path not in gone]


#: Members with another name here, or reported separately.
_NAMES = {"data_type": "dtype", "chunk_grid": "chunks"}
_LEFT_OUT = frozenset({"attributes", "consolidated_metadata", "node_type"})


class FieldChange(NamedTuple):
    """One member of a document, or one attribute, before and after; `ABSENT` if it does not exist."""

    path: tuple[str, ...]
    before: Any
    after: Any

    @property
    def name(self) -> str:
        return ".".join(self.path)

    def as_dict(self) -> dict[str, Any]:
        told = {"name": list(self.path) if len(self.path) > 1 else self.path[0]}
        sides = {"before": self.before, "after": self.after}
        return told | {side: value for side, value in sides.items() if value is not ABSENT}


def changed_fields(before: Described | None, after: Described | None) -> list[FieldChange]:
    """Return the members of two documents that differ: shape, dtype, chunks, codecs, fill value, and all others."""
    if before is after:
        return []
    old, new = _fields(before), _fields(after)
    return [
        FieldChange((name,), old.get(name, ABSENT), new.get(name, ABSENT))
        for name in (*old, *(name for name in new if name not in old))
        if not _is_equal(old.get(name, ABSENT), new.get(name, ABSENT))
    ]


def changed_attributes(before: Described | None, after: Described | None) -> list[FieldChange]:
    """Return the attributes that differ, those in nested objects one by one."""
    if before is after:
        return []
    old = {} if before is None else before.attributes
    new = {} if after is None else after.attributes
    return [*_differences((), old, new)]


def _differences(path: tuple[str, ...], old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[FieldChange]:
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name, ABSENT), new.get(name, ABSENT)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _differences((*path, name), before, after)
        elif not _is_equal(before, after):
            yield FieldChange((*path, name), before, after)


def _is_equal(before: Any, after: Any) -> bool:
    """Tell whether two JSON values are the same: 1 is not True, and 1.0 not 1; NaN is NaN."""
    if type(before) is not type(after):
        return False
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(_is_equal(before[name], after[name]) for name in before)
    if isinstance(before, list):
        return len(before) == len(after) and all(map(_is_equal, before, after))
    return bool(before == after) or (isinstance(before, float) and math.isnan(before) and math.isnan(after))


def _fields(described: Described | None) -> dict[str, Any]:
    if described is None:
        return {}
    fields = {}
    for name, value in described.document.items():
        if name == "chunk_grid" and described.node.chunks is not None:
            fields["chunks"] = list(described.node.chunks)
        elif name not in _LEFT_OUT:
            fields[_NAMES.get(name, name)] = value
    return {"kind": described.kind, **fields}

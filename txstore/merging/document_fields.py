"""Merges metadata documents field by field: attributes key by key, shapes axis by axis. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from txstore.format.documents import ABSENT, Described
from txstore.format.encoding import MalformedError, json_value
from txstore.format.row_moves import moves_of

#: Fields of an array's document, in formats 3 and 2, that define the meaning of chunks.
STRUCTURAL = (
    "node_type", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs", "storage_transformers",
    "dtype", "chunks", "compressor", "filters", "order", "dimension_separator",
)  # fmt: skip


def structure_of(node: Described | None) -> Any:
    """Return what defines the meaning of a node's chunks, and of positions; for a group, only that it is one."""
    if node is None:
        return None
    if node.kind != "array":
        return node.kind
    fields = {name: node.document[name] for name in STRUCTURAL if name in node.document}
    return len(node.node.shape), fields, moves_of(node.attributes, len(node.node.shape))


#: The base's value where it is in doubt (`doubts`): nothing is equal to it.
_IN_DOUBT = object()

#: Returns an array's extent along one axis after a merge; None if unknown.
Extent: TypeAlias = "Callable[[int], int | None]"


def merge_documents(
    key: str,
    base: bytes | None,
    ours: bytes,
    theirs: bytes,
    *,
    prefers: str = "ours",
    is_strict: bool = False,
    extent: Extent | None = None,
    in_doubt: Collection[str] = (),
) -> tuple[bytes, tuple[str, ...]]:
    """Merge two versions of a document. `prefers` is the side that wins if both changed a field differently.

    Return the document, and the fields in conflict ("attributes.units"; "" is the document as a whole). For these it
    has the preferred side's values.

    With `is_strict`, a field that both changed is a conflict even if equal. `extent` settles axes that both changed.
    `in_doubt` are fields, as in the conflicts, for which the base's value is unreliable.
    """
    if ours == theirs and not is_strict and extent is None:
        return ours, ()
    try:
        sides = [None if side is None else json_value(side) for side in (base, ours, theirs)]
    except MalformedError:
        return ours if prefers == "ours" else theirs, ("",)
    merge = _DocumentMerge(prefers, is_strict, extent, in_doubt)
    before = merge.base("", ABSENT if sides[0] is None else sides[0])
    merged = merge.document(key.rpartition("/")[2], before, sides[1], sides[2])
    for side, content in ((sides[1], ours), (sides[2], theirs)):
        if merged == side and _is_same(merged, side):
            return content, tuple(merge.conflicts)
    return json.dumps(merged, indent=2).encode(), tuple(merge.conflicts)


class _DocumentMerge:
    """One merge. Its methods return the merged value, and note the fields in conflict."""

    def __init__(self, prefers: str, is_strict: bool, extent: Extent | None, in_doubt: Collection[str]) -> None:
        self.conflicts: list[str] = []
        self._in_doubt = in_doubt
        self._extent = extent
        self._prefers = prefers
        self._is_strict = is_strict

    def base(self, where: str, found: Any) -> Any:
        return _IN_DOUBT if where in self._in_doubt else found

    def document(self, name: str, base: Any, ours: Any, theirs: Any, where: str = "") -> Any:
        if not isinstance(ours, dict) or not isinstance(theirs, dict):
            return self._whole(base, ours, theirs, where)
        if name == ".zattrs":
            return self._nested(base, ours, theirs, where)
        return self._fields(base, ours, theirs, where, self._field_of_document)

    def _field_of_document(self, name: str, base: Any, ours: Any, theirs: Any, where: str) -> Any:
        if name == "attributes":
            return self._nested(base, ours, theirs, where)
        if name == "shape":
            return self._shape(base, ours, theirs, where)
        return self._whole(base, ours, theirs, where)

    def _nested(self, base: Any, ours: Any, theirs: Any, where: str) -> Any:
        if not isinstance(ours, dict) or not isinstance(theirs, dict):
            return self._whole(base, ours, theirs, where)
        return self._fields(base, ours, theirs, where, lambda _, *sides: self._nested(*sides))

    def _fields(
        self, base: Any, ours: Mapping[str, Any], theirs: Mapping[str, Any], where: str, merge: Callable[..., Any]
    ) -> dict[str, Any]:
        before = base if isinstance(base, dict) else {}
        missing = _IN_DOUBT if base is _IN_DOUBT else ABSENT
        merged = {}
        for name in [*ours, *(name for name in theirs if name not in ours)]:
            there = f"{where}.{name}" if where else name
            known = self.base(there, before.get(name, missing))
            found = merge(name, known, ours.get(name, ABSENT), theirs.get(name, ABSENT), there)
            if found is not ABSENT:
                merged[name] = found
        return merged

    def _shape(self, base: Any, ours: Any, theirs: Any, where: str) -> Any:
        lengths = [len(side) if isinstance(side, list) else -1 for side in (base, ours, theirs)]
        if lengths[0] < 0 or len(set(lengths)) > 1:
            return self._whole(base, ours, theirs, where)
        shape = []
        for axis, extents in enumerate(zip(base, ours, theirs, strict=True)):
            settled = None if self._extent is None else self._extent(axis)
            if settled is None:
                there, (before, mine, other) = f"{where}[{axis}]", extents
                settled = self._whole(self.base(there, before), mine, other, there)
            shape.append(settled)
        return shape

    def _whole(self, base: Any, ours: Any, theirs: Any, where: str) -> Any:
        if _is_same(theirs, base):
            return ours
        if _is_same(ours, base):
            return theirs
        if self._is_strict or not _is_same(ours, theirs):
            self.conflicts.append(where)
        return ours if self._prefers == "ours" else theirs


def _is_same(one: Any, other: Any) -> bool:
    """Tell whether two values are the same JSON: 1 is not 1.0, nor true, and NaN is NaN."""
    if one is ABSENT or other is ABSENT:
        return one is other
    if one is _IN_DOUBT or other is _IN_DOUBT:
        return False
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)

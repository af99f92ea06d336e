"""Compares the documents of one node: fields by the names that users know, attributes key by key. No I/O."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from txstore.format.documents import ABSENT, Described

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

"""Walks the nodes of a hierarchy, group by group, and describes each in plain words. No I/O of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from txstore.format.documents import Described, describe
from txstore.format.keys import DOCUMENT_NAMES, document_key
from txstore.format.mapping import Hierarchy


class Member(NamedTuple):
    """A node below a group. `described` is None where keys lie below, and no document says what they are."""

    path: str
    described: Described | None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def kind(self) -> str:
        return "group" if self.described is None else self.described.kind


def members(view: Hierarchy, path: str = "") -> Iterator[Member]:
    """Yield the nodes right below a group, by name. What is below them is not looked at."""
    for name in view.list_dir(path):
        if name in DOCUMENT_NAMES:
            continue
        below = document_key(path.strip("/"), name)
        described = describe(view.get_view, below)
        if described is not None or view.has_keys_below(below):
            yield Member(below, described)


#: Lines of a tree, and levels, that are shown.
_LINES, _LEVELS = 40, 4


def tree_lines(view: Hierarchy, lines: int = _LINES) -> Iterator[str]:
    """Yield what a hierarchy looks like, a node a line: its name, and of an array shape and data type."""
    below = _lines_below(view, "", 0)
    yield from islice(below, lines)
    if next(below, None) is not None:
        yield "..."


def _lines_below(view: Hierarchy, path: str, level: int) -> Iterator[str]:
    for member in members(view, path):
        indent = "  " * level
        if member.kind != "array" or member.described is None:
            yield f"{indent}{member.name}/"
            if level + 1 < _LEVELS:
                yield from _lines_below(view, member.path, level + 1)
        else:
            shape = "×".join(map(str, member.described.node.shape)) or "scalar"
            document = member.described.document
            yield f"{indent}{member.name}  {shape}  {_name(document.get('data_type', document.get('dtype')))}"


def _name(dtype: Any) -> str:
    if isinstance(dtype, Mapping):
        return str(dtype.get("name", "unknown"))
    if isinstance(dtype, list):
        return "structured"
    return str(dtype)

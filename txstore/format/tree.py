"""Walks the nodes of a hierarchy, group by group, and describes each in plain words. No I/O of its own."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from txstore.format.documents import Described, describe
from txstore.format.keys import DOCUMENT_NAMES, document_key
from txstore.format.mapping import Hierarchy

_SIZED = re.compile(r"(?:u?int|float|bfloat|complex|r)(\d{1,6})(?:_.*)?")
_FORMAT_2 = re.compile(r"[<>|=]?([biufcmMVSU])(\d{1,9})(?:\[.*\])?")


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


def count_members(view: Hierarchy, path: str, most: int) -> int:
    """Return how many nodes lie right below a group, up to `most`. Their documents are not read."""
    names = (name for name in view.list_dir(path) if name not in DOCUMENT_NAMES)
    return sum(1 for _ in islice((name for name in names if view.has_keys_below(document_key(path, name))), most))


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
            yield f"{indent}{member.name}  {shape}  {layout_of(member.described).dtype}"


class StoredLayout(NamedTuple):
    """How an array is stored, in either format."""

    dtype: str
    itemsize: int | None  # bytes; None where elements differ in length, or it is not known
    chunks: list[int] | None  # None: they are of several sizes
    shards: list[int] | None
    codecs: list[Any]

    def logical_bytes(self, shape: Sequence[int]) -> int | None:
        return None if self.itemsize is None else math.prod(shape) * self.itemsize


def layout_of(described: Described) -> StoredLayout:
    """Return how an array is stored. What its document doesn't say, or not as it should, is left out."""
    document = described.document
    chunks = None if described.node.chunks is None else list(described.node.chunks)
    if "data_type" in document:
        codecs = document.get("codecs")
        codecs = codecs if isinstance(codecs, list) else []
        inner = next((inner for each in codecs if (inner := _inner_chunks(each)) is not None), None)
        dtype = _name(document["data_type"])
        shards = None if inner is None else chunks
        return StoredLayout(dtype, _itemsize(document["data_type"]), chunks if inner is None else inner, shards, codecs)
    filters = document.get("filters")
    compressor = document.get("compressor")
    codecs = [*(filters if isinstance(filters, list) else []), *([] if compressor is None else [compressor])]
    return StoredLayout(_name(document.get("dtype")), _itemsize_2(document.get("dtype")), chunks, None, codecs)


def _inner_chunks(codec: Any) -> list[int] | None:
    if not isinstance(codec, Mapping) or codec.get("name") != "sharding_indexed":
        return None
    configuration = codec.get("configuration")
    found = configuration.get("chunk_shape") if isinstance(configuration, Mapping) else None
    return found if isinstance(found, list) else None


def _name(dtype: Any) -> str:
    if isinstance(dtype, Mapping):
        return str(dtype.get("name", "unknown"))
    if isinstance(dtype, list):
        return "structured"
    return str(dtype)


def _itemsize(dtype: Any) -> int | None:
    """Return the bytes of an element of a data type of format 3."""
    if isinstance(dtype, Mapping):
        configuration = dtype.get("configuration")
        length = configuration.get("length_bytes") if isinstance(configuration, Mapping) else None
        if isinstance(length, int):
            return length
        dtype = dtype.get("name")
    if dtype == "bool":
        return 1
    if dtype in ("numpy.datetime64", "numpy.timedelta64"):
        return 8
    match = _SIZED.fullmatch(dtype) if isinstance(dtype, str) else None
    return None if match is None else -(-int(match[1]) // 8)


def _itemsize_2(dtype: Any) -> int | None:
    if isinstance(dtype, list):
        sizes = [_itemsize_2(field[1]) for field in dtype if isinstance(field, list) and len(field) == 2]
        return sum(filter(None, sizes)) if len(sizes) == len(dtype) and None not in sizes else None
    match = _FORMAT_2.fullmatch(dtype) if isinstance(dtype, str) else None
    return None if match is None else int(match[2]) * (4 if match[1] == "U" else 1)

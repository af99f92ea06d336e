"""Reads from metadata documents what conflicts depend on, and compares two versions of a document. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from txstore.format.encoding import MalformedError, json_value
from txstore.format.keys import document_key
from txstore.format.mapping import Hierarchy
from txstore.format.row_moves import rows_have_moved

if TYPE_CHECKING:
    from txstore.format.grids import Grid

#: Documents that say what a node is. `.zattrs` holds attributes only.
NODE_DOCUMENTS = ("zarr.json", ".zarray", ".zgroup")


def is_node_document(key: str) -> bool:
    """Tell whether the key is that of a document that says what a node is."""
    return key.rpartition("/")[2] in NODE_DOCUMENTS


class DocumentChange(Enum):
    """How one version of a metadata document differs from another, for transactions that rely on the first.

    Mildest first.
    """

    NONE = "unchanged"
    ATTRIBUTES = "attributes"  # or the creation of a group
    GROWTH = "growth"
    SHRINK = "shrink"
    MOVED = "rows have moved"  # so that a position means another row
    STRUCTURE = "structure: chunks, codecs, dtype or existence"

    def or_worse(self, other: DocumentChange) -> DocumentChange:
        order = list(DocumentChange)
        return max(self, other, key=order.index)


def compare_documents(key: str, before: bytes | None, after: bytes | None) -> DocumentChange:
    """Classify a change of the document `key`; None stands for a document that is not there."""
    if before == after:
        return DocumentChange.NONE
    if key.rpartition("/")[2] == ".zattrs":
        return DocumentChange.MOVED if rows_have_moved(key, before, after) else DocumentChange.ATTRIBUTES
    old, new = Node.parse(key, before), Node.parse(key, after)
    if new.kind == "group" and old.kind in ("group", "absent"):
        return DocumentChange.ATTRIBUTES
    if old.kind != "array" or new.kind != "array" or old.structure != new.structure or len(old.shape) != len(new.shape):
        return DocumentChange.STRUCTURE
    if rows_have_moved(key, before, after):
        return DocumentChange.MOVED
    if old.shape == new.shape:
        return DocumentChange.ATTRIBUTES
    if all(n >= o for o, n in zip(old.shape, new.shape, strict=True)):
        return DocumentChange.GROWTH
    return DocumentChange.SHRINK


def is_left(before: bytes | None, after: bytes | None, now: bytes | None, *, is_kept: bool) -> bool:
    """Tell whether a field or an attribute that changed from `before` to `after` has changed no more in `now`.

    `now` was made from `after` if `is_kept`; else from `before`.
    """
    old, new, present = map(_fields, (before, after, now))
    left = new if is_kept else old
    changed = (name for name in {**old, **new} if old.get(name, ABSENT) != new.get(name, ABSENT))
    return before is not None and any(left.get(name, ABSENT) == present.get(name, ABSENT) for name in changed)


def _fields(content: bytes | None) -> dict[str, Any]:
    document = _object(content or b"{}")
    attributes = document.pop("attributes", None)
    if isinstance(attributes, dict):
        document |= {f"attributes.{name}": value for name, value in attributes.items()}
    return document


def cuts_chunk(document: str, before: bytes | None, after: bytes | None, key: str) -> bool:
    """Tell whether an array that shrinks loses elements of chunk `key`. What can't be told counts as lost."""
    old, new = Node.parse(document, before), Node.parse(document, after)
    index = new.index_of(below(document, key))
    if index is None or len(old.shape) != len(new.shape):
        return True
    axes = zip(index, new.chunks or (), old.shape, new.shape, strict=True)
    return any(n < o and min((i + 1) * c, o) > n for i, c, o, n in axes)


def drops_chunk(document: str, after: bytes | None, key: str) -> bool:
    """Tell whether the array that `after` describes has no chunk `key`. What can't be told counts as dropped."""
    return Node.parse(document, after).drops(below(document, key))


def moved_edges(document: str, before: bytes | None, after: bytes | None) -> frozenset[tuple[int, int]]:
    """Return (dimension, index) of the chunks in whose middle the old shape ends, where the new one ends elsewhere.

    An array object of the old shape takes all that it can write to such a chunk for the whole of it, and does not read
    what others have put behind the old end.
    """
    old, new = Node.parse(document, before), Node.parse(document, after)
    return frozenset(
        (dimension, o // max(c, 1))
        for dimension, (o, n, c) in enumerate(zip(old.shape, new.shape, old.chunks or (), strict=False))
        if o != n and o % max(c, 1)
    )


def is_at_edge(document: str, after: bytes | None, key: str, edges: frozenset[tuple[int, int]]) -> bool:
    """Tell whether chunk `key` is one that `moved_edges` found. What can't be told counts as one."""
    index = Node.parse(document, after).index_of(below(document, key))
    return index is None or any(place in edges for place in enumerate(index))


def may_be_array(document: str, content: bytes | None) -> bool:
    """Tell whether there may be chunks that a document describes."""
    return not document.endswith(".zattrs") and Node.parse(document, content).kind in ("array", "unknown")


def below(document: str, key: str) -> str:
    """Return a key relative to the node that a document describes."""
    return key[len(document) - len(document.rpartition("/")[2]) :]


def kind_of_node(view: Hierarchy, path: str) -> str:
    """Return "array", "group", "unknown", or "absent" where a path has no document."""
    for name in NODE_DOCUMENTS:
        key = document_key(path, name)
        if (content := view.get_view(key)) is not None:
            return Node.parse(key, bytes(content)).kind
    return "absent"


@dataclass(frozen=True, slots=True)
class Node:
    """The parts of a metadata document that conflicts depend on."""

    kind: str  # "array", "group", "absent", or "unknown" for what can't be parsed
    shape: tuple[int, ...] = ()
    chunks: tuple[int, ...] | None = None  # None: no regular grid
    structure: Any = None

    @classmethod
    def parse(cls, key: str, content: bytes | None) -> Node:
        if content is None:
            return cls("absent")
        try:
            document = json_value(content)
            name = key.rpartition("/")[2]
            kind = {".zarray": "array", ".zgroup": "group"}.get(name) or document["node_type"]
            if kind != "array":
                return cls("group" if kind == "group" else "unknown")
            shape = tuple(int(n) for n in document["shape"])
            chunks = _regular_chunks(document)
            if chunks is not None and len(chunks) != len(shape):
                chunks = None  # no grid that says which chunk is where
            rest = {k: v for k, v in document.items() if k not in ("attributes", "shape", "consolidated_metadata")}
            return cls("array", shape, chunks, rest)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):  # the last of float("inf")
            return cls("unknown")

    def index_of(self, suffix: str) -> tuple[int, ...] | None:
        """Return the index of the chunk whose key below the array is `suffix`: `c/0/1`, `c.0.1`, `0.1` or `0/1`."""
        parts = suffix.replace(".", "/").split("/")
        if parts[:1] == ["c"]:
            parts = parts[1:]
        if not self.shape:
            parts = [part for part in parts if part != "0"]  # the one chunk of a scalar is `c` or `0`
        if self.kind != "array" or self.chunks is None or len(parts) != len(self.shape):
            return None
        if not all(part.isascii() and part.isdigit() for part in parts):
            return None
        return tuple(map(int, parts))

    def drops(self, suffix: str) -> bool:
        index = self.index_of(suffix)
        if index is None or self.chunks is None:
            return True
        return any(i * c >= n for i, c, n in zip(index, self.chunks, self.shape, strict=True))


def index_of(suffix: str, dimensions: int) -> tuple[int, ...] | None:
    """Return the place in the grid of a key below an array: `c/0/1`, `c.0.1`, `0.1` or `0/1`; None for other keys."""
    parts = suffix.replace(".", "/").split("/")
    if parts[0] == "c":
        parts = parts[1:]
    if not dimensions:
        return () if parts in ([], ["0"]) else None
    if len(parts) != dimensions or not all(parts):
        return None
    digits = "".join(parts)
    return tuple(map(int, parts)) if digits.isascii() and digits.isdecimal() else None


def _regular_chunks(document: Mapping[str, Any]) -> tuple[int, ...] | None:
    if "chunks" in document:  # format 2
        return tuple(int(n) for n in document["chunks"])
    grid = document["chunk_grid"]
    return tuple(int(n) for n in grid["configuration"]["chunk_shape"]) if grid["name"] == "regular" else None


# --- what stands at a path


class Absent:
    """In place of a value that is not there; None is a value."""

    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = Absent()


@dataclass(frozen=True)
class Described:
    """The content of a node's documents."""

    path: str
    key: str  # of the document that says what it is
    content: bytes
    node: Node
    document: Mapping[str, Any]
    attributes: Mapping[str, Any]

    @property
    def dimensions(self) -> tuple[str | None, ...]:
        """The names of an array's dimensions, None for one without; xarray keeps those of Zarr 2 in an attribute."""
        names = self.document.get("dimension_names") or self.attributes.get("_ARRAY_DIMENSIONS")
        return tuple(name if isinstance(name, str) else None for name in names) if isinstance(names, list) else ()

    @property
    def kind(self) -> str:
        """ "array", "group", or "unknown" for what can't be understood."""
        return self.node.kind

    def grid(self) -> Grid:
        """Raises what `Grid` does for a document that can't be understood."""
        from txstore.format.grids import Grid  # late: it imports numpy

        return Grid(self.path, self.document)


def describe(
    get: Callable[[str], bytes | memoryview | None], path: str, like: Described | None = None
) -> Described | None:
    """Return what is at a path; None if there is nothing. `get` returns documents.

    `like` is what is there in another commit. It is returned itself if nothing differs, which is soon compared.
    """
    for name in NODE_DOCUMENTS:
        key = document_key(path, name)
        if (found := get(key)) is not None:
            content = bytes(found)
            is_3 = name == "zarr.json"
            if is_3 and like is not None and (like.key, like.content) == (key, content):
                return like
            document = _object(content)
            attributes = document.get("attributes") if is_3 else _object(get(document_key(path, ".zattrs")))
            if not isinstance(attributes, dict):
                attributes = {}
            return Described(path, key, content, Node.parse(key, content), document, attributes)
    return None


def written_by_zarr(key: str, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an array's document as zarr writes it. Raises `ImportError` with zarr 2, and what zarr raises."""
    from zarr.buffer import default_buffer_prototype  # late: most commits compare nothing

    from txstore.zarr_private import ArrayV2Metadata, ArrayV3Metadata

    name = key.rpartition("/")[2]
    kind = ArrayV3Metadata if name == "zarr.json" else ArrayV2Metadata
    written = kind.from_dict(dict(document)).to_buffer_dict(default_buffer_prototype())[name]
    return _object(written.to_bytes())


def _object(content: bytes | memoryview | None) -> dict[str, Any]:
    try:
        found = json_value(content or b"{}")
    except MalformedError:
        return {}
    return found if isinstance(found, dict) else {}

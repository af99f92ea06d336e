"""When two transactions conflict (I5), and how a change of a metadata document bears on the chunks below it.

No I/O of its own: everything is asked of the snapshots that are passed in. The cases, for a transaction that began at
`base` and finds `head`:

| the transaction                                  | somebody else, since base                         | conflict |
|--------------------------------------------------|---------------------------------------------------|----------|
| wrote or deleted a key                           | wrote it, or deleted it (or a prefix above it)    | yes      |
| created a group document                         | created it with the same bytes                    | no       |
| deleted a key that was not there                 | deleted it too                                    | no       |
| deleted a prefix                                 | wrote a key below it, which is there              | yes      |
| deleted a prefix                                 | deleted it too                                    | no       |
| wrote a key below an array                       | changed the array structurally, or dropped it     | yes      |
| wrote a chunk                                    | shrank its array so that the chunk is dropped     | yes      |
| wrote a key                                      | turned a group above it into something else       | yes      |
| changed a node structurally                      | wrote any key below it                            | yes      |
| shrank an array                                  | wrote a chunk that the new shape drops            | yes      |
| wrote a chunk, grew an array, edited attributes  | grew or edited the *other* document, other chunks | no       |

"Structurally" is in more than attributes or growth: grid, dtype, codecs, fill value, existence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from txstore import format
from txstore.errors import ConflictError
from txstore.keys import after_prefix, directory_prefix, document_key, is_document, node_of_document
from txstore.listing import Hierarchy
from txstore.snapshot import Snapshot

#: A conflict names at most so many keys.
MAX_NAMED = 100

#: Documents that say what a node is. `.zattrs` holds attributes only.
_NODE_DOCUMENTS = ("zarr.json", ".zarray", ".zgroup")


class DocumentChange(Enum):
    """How one version of a metadata document differs from another, for those who rely on the first. Mildest first."""

    NONE = "unchanged"
    ATTRIBUTES = "attributes"  # or the creation of a group
    GROWTH = "growth"
    SHRINK = "shrink"
    STRUCTURE = "structure"

    def or_worse(self, other: DocumentChange) -> DocumentChange:
        order = list(DocumentChange)
        return max(self, other, key=order.index)


@dataclass(frozen=True, slots=True)
class Writes:
    """What a transaction would publish, and what it relies on.

    `documents` holds the staged bytes of every metadata document that it set (None: deleted).
    """

    set: Iterable[str]
    deleted: Iterable[str]
    prefixes: Iterable[str]
    documents: Mapping[str, bytes | None] = field(default_factory=dict)


def compare_documents(key: str, before: bytes | None, after: bytes | None) -> DocumentChange:
    """Classify a change of the document `key`; None stands for a document that is not there."""
    if before == after:
        return DocumentChange.NONE
    if key.rpartition("/")[2] == ".zattrs":
        return DocumentChange.ATTRIBUTES
    old, new = _Node.parse(key, before), _Node.parse(key, after)
    if new.kind == "group" and old.kind in ("group", "absent"):
        return DocumentChange.ATTRIBUTES
    if old.kind != "array" or new.kind != "array" or old.structure != new.structure or len(old.shape) != len(new.shape):
        return DocumentChange.STRUCTURE
    if old.shape == new.shape:
        return DocumentChange.ATTRIBUTES
    if all(n >= o for o, n in zip(old.shape, new.shape, strict=True)):
        return DocumentChange.GROWTH
    return DocumentChange.SHRINK


def drops_chunk(document: str, after: bytes | None, key: str) -> bool:
    """Tell whether the array that `after` describes has no chunk `key`. What can't be told counts as dropped."""
    return _Node.parse(document, after).drops(_below(document, key))


def moved_edges(document: str, before: bytes | None, after: bytes | None) -> frozenset[tuple[int, int]]:
    """Return (dimension, index) of the chunks in whose middle the old shape ends, where the new one ends elsewhere.

    An array object of the old shape takes all that it can write to such a chunk for the whole of it, and does not read
    what others have put behind the old end.
    """
    old, new = _Node.parse(document, before), _Node.parse(document, after)
    return frozenset(
        (dimension, o // c)
        for dimension, (o, n, c) in enumerate(zip(old.shape, new.shape, old.chunks or (), strict=False))
        if o != n and o % c
    )


def is_at_edge(document: str, after: bytes | None, key: str, edges: frozenset[tuple[int, int]]) -> bool:
    """Tell whether chunk `key` is one of those that `moved_edges` found. What can't be told counts as one."""
    index = _Node.parse(document, after).index_of(_below(document, key))
    return index is None or any(place in edges for place in enumerate(index))


def may_be_array(document: str, content: bytes | None) -> bool:
    """Tell whether there may be chunks that a document describes."""
    return not document.endswith(".zattrs") and _Node.parse(document, content).kind in ("array", "unknown")


def _below(document: str, key: str) -> str:
    """Return a key relative to the node that a document describes."""
    return key[len(document) - len(document.rpartition("/")[2]) :]


def kind_of_node(view: Hierarchy, path: str) -> str:
    """Return "array", "group", "unknown", or "absent" where a path has no document."""
    for name in _NODE_DOCUMENTS:
        key = document_key(path, name)
        if (content := view.get_view(key)) is not None:
            return _Node.parse(key, bytes(content)).kind
    return "absent"


@dataclass(frozen=True, slots=True)
class _Node:
    """What a metadata document says, as far as conflicts depend on it."""

    kind: str  # "array", "group", "absent", or "unknown" for what can't be parsed
    shape: tuple[int, ...] = ()
    chunks: tuple[int, ...] | None = None  # None: no regular grid
    structure: Any = None

    @classmethod
    def parse(cls, key: str, content: bytes | None) -> _Node:
        if content is None:
            return cls("absent")
        try:
            document = json.loads(content)
            name = key.rpartition("/")[2]
            kind = {".zarray": "array", ".zgroup": "group"}.get(name) or document["node_type"]
            if kind != "array":
                return cls("group" if kind == "group" else "unknown")
            shape = tuple(int(n) for n in document["shape"])
            rest = {k: v for k, v in document.items() if k not in ("attributes", "shape", "consolidated_metadata")}
            return cls("array", shape, _regular_chunks(document), rest)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
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


def _regular_chunks(document: Mapping[str, Any]) -> tuple[int, ...] | None:
    if "chunks" in document:  # format 2
        return tuple(int(n) for n in document["chunks"])
    grid = document["chunk_grid"]
    return tuple(int(n) for n in grid["configuration"]["chunk_shape"]) if grid["name"] == "regular" else None


def check(mine: Writes, base: Snapshot, head: Snapshot, since: int) -> None:
    """Raise `ConflictError` if `mine`, begun at `base`, conflicts with what `head` has newer than seq `since`."""
    if head.seq <= since:
        return
    checker = _Checker(mine, base, head, since)
    for reason, keys in checker.cases():
        named = [key for _, key in zip(range(MAX_NAMED), keys, strict=False)]
        if named:
            raise ConflictError(named, reason=reason, base=base.commit, head=head.commit)


class _Checker:
    def __init__(self, mine: Writes, base: Snapshot, head: Snapshot, since: int) -> None:
        self.mine = mine
        self.base = base
        self.head = head
        self.since = since
        self.recent = head.runs_since(since)
        self._changed_nodes: dict[str, list[str]] = {}
        self._node_changes: dict[str, tuple[DocumentChange, _Node]] = {}

    def cases(self) -> Iterator[tuple[str, Iterable[str]]]:
        yield "keys were also written by another commit", self.written_keys()
        yield "another commit changed the array or group above these keys", self.keys_below_changed_nodes()
        yield "another commit wrote below a node that is changed structurally here", self.keys_below_my_changes()
        yield "another commit wrote below what is deleted here", self.keys_below_my_prefixes()

    # --- what changed at the head

    def changed(self, key: str) -> bool:
        """Tell whether the head has something newer on this key: a value, a tombstone, or a prefix tombstone above."""
        found = self.recent.lookup(key.encode())
        return found is not None and found.seq > self.since

    def new_keys_below(self, path: str, *, deleted: bool = False) -> Iterator[str]:
        """Yield the keys below a path that were written since and are there at the head, or deleted since."""
        prefix = directory_prefix(path)
        stop = after_prefix(prefix)
        seen = set()
        for change in self.recent.changes(prefix.encode(), None if stop is None else stop.encode(), self.since):
            if change.key not in seen and (deleted or change.kind == format.REF_PACK):
                seen.add(change.key)
                key = change.key.decode()
                if deleted or (self.head.seq_of(key) or 0) > self.since:
                    yield key

    def changed_documents(self, path: str) -> list[str]:
        """Return the documents of this node and those above it that changed since."""
        known = self._changed_nodes.get(path)
        if known is None:
            own = [document_key(path, name) for name in _NODE_DOCUMENTS]
            above = self.changed_documents(path.rpartition("/")[0]) if path else []
            known = self._changed_nodes[path] = [key for key in own if self.changed(key)] + above
        return known

    # --- the cases

    def written_keys(self) -> Iterator[str]:
        for key in self.mine.set:
            if self.changed(key) and not self.is_equal_group_creation(key):
                yield key
        for key in self.mine.deleted:
            if self.changed(key) and (key in self.head or key in self.base):
                yield key

    def is_equal_group_creation(self, key: str) -> bool:
        mine = self.mine.documents.get(key)
        if mine is None or key in self.base or _bytes(self.head, key) != mine:
            return False
        if key.rpartition("/")[2] == ".zattrs":
            return self.mine.documents.get(document_key(node_of_document(key), ".zgroup")) is not None
        return _Node.parse(key, mine).kind == "group"

    def keys_below_changed_nodes(self) -> Iterator[str]:
        for keys in (self.mine.set, self.mine.deleted):
            for key in keys:
                for document in self.changed_documents(key.rpartition("/")[0]):
                    if document != key and self.change_concerns(document, key):
                        yield key
                        break

    def change_concerns(self, document: str, key: str) -> bool:
        known = self._node_changes.get(document)
        if known is None:
            before, after = _bytes(self.base, document), _bytes(self.head, document)
            known = compare_documents(document, before, after), _Node.parse(document, after)
            self._node_changes[document] = known
        change, node = known
        if change is DocumentChange.SHRINK and not is_document(key):
            return node.drops(_below(document, key))
        return change is DocumentChange.STRUCTURE

    def keys_below_my_changes(self) -> Iterator[str]:
        for document, after in self.mine.documents.items():
            change = compare_documents(document, _bytes(self.base, document), after)
            if change is DocumentChange.STRUCTURE:
                # A chunk that was deleted has become the fill value, which may be another now.
                yield from self.new_keys_below(node_of_document(document), deleted=True)
            elif change is DocumentChange.SHRINK:
                for key in self.new_keys_below(node_of_document(document)):
                    if not is_document(key) and drops_chunk(document, after, key):
                        yield key

    def keys_below_my_prefixes(self) -> Iterator[str]:
        for prefix in self.mine.prefixes:
            yield from self.new_keys_below(prefix)


def _bytes(snapshot: Snapshot, key: str) -> bytes | None:
    view = snapshot.get_view(key)
    return None if view is None else bytes(view)

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
| serializable: read a key, or that it was absent  | changed, made or deleted it                       | yes      |
| serializable: listed names, or all keys, below   | made one appear or vanish                         | yes      |
| serializable: looked whether there are keys      | made the first appear or the last vanish          | yes      |

"Structurally" is in more than attributes or growth: grid, dtype, codecs, fill value, existence. What is in the table is
in `CLAUSES`, clause by clause: tests take out each of them, and see that it is missed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Any, NamedTuple

from txstore import format
from txstore.errors import ConflictError
from txstore.index import Change
from txstore.keys import after_prefix, directory_prefix, document_key, is_document, node_of_document
from txstore.listing import Hierarchy
from txstore.reads import NOTHING_READ, Reads
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
    reads: Reads = NOTHING_READ


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
    check = Check(mine, base, head, since)
    for clause in CLAUSES:
        named = list(islice(clause.keys(check), MAX_NAMED))
        if named:
            raise ConflictError(named, reason=clause.reason, base=base.commit, head=head.commit)


class Check:
    """What the clauses are asked about: `mine` and all that is newer at the head than seq `since`."""

    def __init__(self, mine: Writes, base: Snapshot, head: Snapshot, since: int) -> None:
        self.mine = mine
        self.base = base
        self.head = head
        self.since = since
        self.recent = head.runs_since(since)
        self._changed_nodes: dict[str, list[str]] = {}
        self._node_changes: dict[str, tuple[DocumentChange, _Node]] = {}

    def changed(self, key: str) -> bool:
        """Tell whether the head has something newer on this key: a value, a tombstone, or a prefix tombstone above."""
        found = self.recent.lookup(key.encode())
        return found is not None and found.seq > self.since

    def touched_below(self, prefix: str) -> Iterator[Change]:
        """Yield what was written below a prefix since, or deleted key by key, each key once."""
        stop = after_prefix(prefix)
        seen = set()
        for change in self.recent.changes(prefix.encode(), None if stop is None else stop.encode(), self.since):
            if change.key not in seen:
                seen.add(change.key)
                yield change

    def new_keys_below(self, prefix: str) -> Iterator[str]:
        """Yield the keys below a prefix that were written since and are there at the head."""
        for change in self.touched_below(prefix):
            key = change.key.decode()
            if change.kind == format.REF_PACK and (self.head.seq_of(key) or 0) > self.since:
                yield key

    def changed_keys_below(self, prefix: str) -> Iterator[str]:
        """Yield the keys below a prefix that were written or deleted since."""
        for change in self.touched_below(prefix):
            yield change.key.decode()
        yield from self.cleared_keys_below(prefix)

    def cleared_keys_below(self, prefix: str) -> Iterator[str]:
        """Yield the base's keys below a prefix that are gone because somebody has deleted all below some prefix."""
        for cleared in self.recent.new_prefixes(self.since):
            if cleared.startswith(prefix) or prefix.startswith(cleared):
                for key in self.base.keys_below(max(cleared, prefix, key=len)):
                    if key not in self.head:
                        yield key

    def changed_documents(self, path: str) -> list[str]:
        """Return the documents of this node and those above it that changed since."""
        known = self._changed_nodes.get(path)
        if known is None:
            own = [document_key(path, name) for name in _NODE_DOCUMENTS]
            above = self.changed_documents(path.rpartition("/")[0]) if path else []
            known = self._changed_nodes[path] = [key for key in own if self.changed(key)] + above
        return known

    def node_change(self, document: str) -> tuple[DocumentChange, _Node]:
        """Return how a document has changed from the base to the head, and what it says there."""
        known = self._node_changes.get(document)
        if known is None:
            before, after = _bytes(self.base, document), _bytes(self.head, document)
            known = compare_documents(document, before, after), _Node.parse(document, after)
            self._node_changes[document] = known
        return known


# --- the clauses


def _set_keys(check: Check) -> Iterator[str]:
    for key in check.mine.set:
        if check.changed(key) and not _is_equal_group_creation(check, key):
            yield key


def _is_equal_group_creation(check: Check, key: str) -> bool:
    mine = check.mine.documents.get(key)
    if mine is None or key in check.base or _bytes(check.head, key) != mine:
        return False
    if key.rpartition("/")[2] == ".zattrs":
        return check.mine.documents.get(document_key(node_of_document(key), ".zgroup")) is not None
    return _Node.parse(key, mine).kind == "group"


def _deleted_keys(check: Check) -> Iterator[str]:
    for key in check.mine.deleted:
        if check.changed(key) and (key in check.head or key in check.base):
            yield key


def _keys_below_changed_nodes(check: Check) -> Iterator[str]:
    for keys in (check.mine.set, check.mine.deleted):
        for key in keys:
            for document in check.changed_documents(key.rpartition("/")[0]):
                if document != key:
                    change, node = check.node_change(document)
                    concerns = FOREIGN_CHANGES.get(change)
                    if concerns is not None and concerns(node, document, key):
                        yield key
                        break


def _keys_below_my_changes(check: Check) -> Iterator[str]:
    for document, after in check.mine.documents.items():
        change = compare_documents(document, _bytes(check.base, document), after)
        concerned = MY_CHANGES.get(change)
        if concerned is not None:
            yield from concerned(check, document, after)


def _keys_below_my_prefixes(check: Check) -> Iterator[str]:
    for prefix in check.mine.prefixes:
        yield from check.new_keys_below(prefix)


def _keys_read(check: Check) -> Iterator[str]:
    for key in check.mine.reads.keys:
        if check.changed(key) and (key in check.head or key in check.base):
            yield key


def _names_listed(check: Check) -> Iterator[str]:
    for prefix in check.mine.reads.names_below:
        touched = (change.key.decode() for change in check.touched_below(prefix))
        names = {key[len(prefix) :].partition("/")[0] for key in touched}
        for cleared in check.recent.new_prefixes(check.since):
            if prefix.startswith(cleared):
                names.update(check.base.list_dir(prefix))
            elif cleared.startswith(prefix):
                names.add(cleared[len(prefix) :].partition("/")[0])
        for name in sorted(names):
            if _is_name(check.base, prefix + name) != _is_name(check.head, prefix + name):
                yield prefix + name


def _is_name(snapshot: Snapshot, path: str) -> bool:
    return path in snapshot or snapshot.has_keys_below(path)


def _keys_listed(check: Check) -> Iterator[str]:
    for prefix in check.mine.reads.keys_below:
        for key in check.changed_keys_below(prefix):
            if (key in check.base) != (key in check.head):
                yield key


def _emptiness(check: Check) -> Iterator[str]:
    for prefix in check.mine.reads.any_below:
        before, after = (next(view.keys_below(prefix), None) for view in (check.base, check.head))
        if (before is None) != (after is None):
            yield before or after or prefix


class Clause(NamedTuple):
    """One reason for a conflict, and the keys that there is a conflict about."""

    name: str
    reason: str
    keys: Callable[[Check], Iterator[str]]


CLAUSES: tuple[Clause, ...] = (
    Clause("set", "keys were also written by another commit", _set_keys),
    Clause("deleted", "keys were also written by another commit", _deleted_keys),
    Clause(
        "foreign change",
        "another commit changed the array or group above these keys",
        _keys_below_changed_nodes,
    ),
    Clause(
        "my change",
        "another commit wrote below a node that is changed structurally here",
        _keys_below_my_changes,
    ),
    Clause("my prefix", "another commit wrote below what is deleted here", _keys_below_my_prefixes),
    # Of serializable transactions: in others, nothing is read.
    Clause("read", "another commit changed keys that were read here", _keys_read),
    Clause("names", "another commit changed which names there are where they were listed here", _names_listed),
    Clause("keys", "another commit changed which keys there are where they were listed here", _keys_listed),
    Clause("any", "another commit changed whether there are any keys where this was asked here", _emptiness),
)

#: What a write of a key relies on, if somebody else has changed a document above it. What is not here is no conflict.
FOREIGN_CHANGES: dict[DocumentChange, Callable[[_Node, str, str], bool]] = {
    DocumentChange.STRUCTURE: lambda *_: True,
    DocumentChange.SHRINK: lambda node, document, key: not is_document(key) and node.drops(_below(document, key)),
}


def _all_below(check: Check, document: str, _: bytes | None) -> Iterator[str]:
    # A chunk that was deleted has become the fill value, which may be another now.
    return check.changed_keys_below(directory_prefix(node_of_document(document)))


def _dropped_below(check: Check, document: str, after: bytes | None) -> Iterator[str]:
    for key in check.new_keys_below(directory_prefix(node_of_document(document))):
        if not is_document(key) and drops_chunk(document, after, key):
            yield key


#: The other way round: which newer keys below a document a change of it does not go with.
MY_CHANGES: dict[DocumentChange, Callable[[Check, str, bytes | None], Iterator[str]]] = {
    DocumentChange.STRUCTURE: _all_below,
    DocumentChange.SHRINK: _dropped_below,
}


def _bytes(snapshot: Snapshot, key: str) -> bytes | None:
    view = snapshot.get_view(key)
    return None if view is None else bytes(view)

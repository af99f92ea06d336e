"""Decides whether two transactions conflict (I5).

This does no I/O of its own: it asks the snapshots that the caller passes. The cases, for a transaction that began at
`base` and finds `head`:

| the transaction                                  | another commit, since base                        | conflict |
|--------------------------------------------------|---------------------------------------------------|----------|
| wrote or deleted a key                           | wrote it, or deleted it (or a prefix above it)    | yes      |
| wrote some elements of a chunk                   | changed only other elements of the chunk          | no       |
| wrote some elements of a chunk                   | changed one of them, or deleted a prefix above    | yes      |
| created a group document                         | created it with the same bytes                    | no       |
| consolidated the metadata of a group             | consolidated it too                               | no       |
| deleted a key that was not there                 | deleted it too                                    | no       |
| deleted a prefix                                 | wrote a key below it, which is there              | yes      |
| deleted a prefix                                 | deleted it too                                    | no       |
| moved, copied or restored something to a path    | wrote a key below it, which is there              | yes      |
| moved something, or chunks within an array       | wrote or deleted a key where it was, or moved it  | yes      |
| deleted a prefix                                 | moved or copied what was below it, and deleted it | yes      |
| wrote a key below an array                       | changed the array structurally, or dropped it     | yes      |
| wrote a chunk                                    | shrank its array so that the chunk loses elements | yes      |
| wrote a chunk                                    | moved rows of its array (`format.row_moves`)      | yes      |
| wrote a key                                      | turned a group above it into something else       | yes      |
| changed a node structurally                      | wrote any key below it                            | yes      |
| shrank an array                                  | wrote a chunk that loses elements                 | yes      |
| made an array                                    | moved rows along one of its dimensions            | yes      |
| moved rows along a dimension                     | made an array with this dimension                 | yes      |
| wrote a chunk, grew an array, edited attributes  | grew or edited the *other* document, other chunks | no       |
| serializable: read a key, or that it was absent  | changed, made or deleted it                       | yes      |
| serializable: listed names, or all keys, below   | made one appear or vanish                         | yes      |
| serializable: looked whether there are keys      | made the first appear or the last vanish          | yes      |

An element has changed if its bits differ between base and head; a missing chunk has the fill value. In a serializable
transaction, or if the array's codecs do not allow a comparison of elements, a chunk is one key like any other.

A dimension is one by its name, in a group and the groups below it: an array that was made along it has been computed
from rows as they were.

A structural change is more than attributes or growth: grid, dtype, codecs, fill value, existence. `CLAUSES` has one
clause for each case of the table. The tests remove each clause, and check that they then fail.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, TypeAlias

from txstore.errors import ConflictError
from txstore.format import packfile
from txstore.format.consolidated import decoded, is_consolidated, is_marked, plain_document
from txstore.format.documents import (
    NODE_DOCUMENTS,
    Described,
    DocumentChange,
    Node,
    compare_documents,
    cuts_chunk,
    describe,
)
from txstore.format.keys import (
    after_prefix,
    ancestors,
    directory_prefix,
    document_key,
    encode_key,
    is_document,
    node_of_document,
    stored_key,
)
from txstore.format.mapping import Hierarchy
from txstore.format.row_moves import moved_along, rows_have_moved
from txstore.history.changes import KeyChange, refs_of
from txstore.history.snapshot import Snapshot
from txstore.segments.runs import Change
from txstore.transactions.reads import NOTHING_READ, Reads

#: The values of keys that a transaction has staged and other commits have changed. None deletes the key.
Settled: TypeAlias = Mapping[str, bytes | None]
#: Computes these values from the base, the transaction's view, its staged keys, its changes, and the head. Raises
#: `ConflictError`.
Settle: TypeAlias = Callable[[Snapshot, Hierarchy, Collection[str], Iterable[KeyChange], Snapshot], Settled]

#: Number of keys that a conflict names, at most.
MAX_NAMED = 100


@dataclass(frozen=True, slots=True)
class Writes:
    """The keys that a transaction would publish, and the reads that it relies on.

    `documents` has the staged bytes of every metadata document that it set, None for a deleted one.
    """

    set: Iterable[str]
    deleted: Iterable[str]
    prefixes: Iterable[str]
    #: Prefixes of what was moved away: it is somewhere else as the base has it.
    moved: Iterable[str] = ()
    documents: Mapping[str, bytes | None] = field(default_factory=dict)
    reads: Reads = NOTHING_READ
    #: Tells whether other commits changed only those elements of a chunk that this transaction did not write.
    is_apart: Callable[[str, Snapshot, Snapshot], bool] = lambda *_: False


def check(mine: Writes, base: Snapshot, head: Snapshot, since: int) -> None:
    """Raise `ConflictError` if `mine`, begun at `base`, conflicts with changes at `head` newer than seq `since`."""
    if head.seq <= since:
        return
    check = Check(mine, base, head, since)
    for clause in CLAUSES:
        named = list(islice(clause.keys(check), MAX_NAMED))
        if named:
            reason = clause.reason + _told_of_commit(head, named[0]) + _told_of_structure(check, named[0])
            raise ConflictError(named, reason=reason, base=base.commit, head=head.commit)


def _told_of_commit(head: Snapshot, key: str) -> str:
    """Return what a message adds of the commit that has written a key: its name, and if it is the newest, whose."""
    found, commit = head.runs.lookup(encode_key(key)), head.commit
    if found is None or commit is None:
        return ""
    title = commit.message.partition("\n")[0][:60]
    whose = f" by {commit.author}{f', {title!r}' if title else ''}" if found.seq == head.seq else ""
    return f" ({commit.branch}@{commit.version - (head.seq - found.seq)}{whose})"


def _told_of_structure(check: Check, key: str) -> str:
    """Return what a message adds if the key's node has another structure now: its old chunks are of no use."""
    for document in check.changed_documents(key.rpartition("/")[0]):
        change, node = check.node_change(document)
        if document != key and change is DocumentChange.STRUCTURE:
            now = "is gone" if node.kind == "absent" else "has other chunks, codecs or another dtype"
            return f", and {node_of_document(document)!r} {now} since then: open it again"
        if change is DocumentChange.MOVED:
            path = node_of_document(document)
            return f", and rows of {path!r} have moved since then: open it again"
    return ""


class Check:
    """The input of the clauses: `mine`, and all changes at the head that are newer than seq `since`."""

    def __init__(self, mine: Writes, base: Snapshot, head: Snapshot, since: int) -> None:
        self.mine = mine
        self.base = base
        self.head = head
        self.since = since
        self.recent = head.runs_since(since)
        self._changed_nodes: dict[str, list[str]] = {}
        self._node_changes: dict[str, tuple[DocumentChange, Node]] = {}

    def changed(self, key: str) -> bool:
        """Tell whether the head has a newer entry on this key: a value, a tombstone, or a prefix tombstone above."""
        found = self.recent.lookup(key.encode())
        return found is not None and found.seq > self.since

    def touched_below(self, prefix: str) -> Iterator[Change]:
        """Yield the newer writes and deletions of single keys below a prefix, each key once."""
        stop = after_prefix(prefix)
        seen = set()
        for change in self.recent.changes(prefix.encode(), None if stop is None else stop.encode(), self.since):
            if change.key not in seen:
                seen.add(change.key)
                yield change

    def new_keys_below(self, prefix: str) -> Iterator[str]:
        """Yield the keys below a prefix that were written since and exist at the head."""
        for change in self.touched_below(prefix):
            key = stored_key(change.key, "a run")
            if change.kind != packfile.REF_TOMBSTONE and (self.head.seq_of(key) or 0) > self.since:
                yield key

    def changed_keys_below(self, prefix: str) -> Iterator[str]:
        """Yield the keys below a prefix that were written or deleted since."""
        for change in self.touched_below(prefix):
            yield stored_key(change.key, "a run")
        yield from self.cleared_keys_below(prefix)

    def cleared_keys_below(self, prefix: str) -> Iterator[str]:
        """Yield the base's keys below a prefix that are gone because another commit deleted a whole prefix."""
        for cleared in self.recent.new_prefixes(self.since):
            if cleared.startswith(prefix) or prefix.startswith(cleared):
                for key in self.base.keys_below(max(cleared, prefix, key=len)):
                    if key not in self.head:
                        yield key

    def changed_documents(self, path: str) -> list[str]:
        """Return the documents of this node and of the nodes above it that changed since."""
        nodes = [path, *ancestors(path)]
        known = next((i for i, node in enumerate(nodes) if node in self._changed_nodes), len(nodes))
        found = self._changed_nodes[nodes[known]] if known < len(nodes) else []
        for node in reversed(nodes[:known]):
            own = [document_key(node, name) for name in NODE_DOCUMENTS]
            found = self._changed_nodes[node] = [key for key in own if self.changed(key)] + found
        return found

    def node_change(self, document: str) -> tuple[DocumentChange, Node]:
        """Return how a document changed from the base to the head, and its node at the head."""
        known = self._node_changes.get(document)
        if known is None:
            before, after = _bytes(self.base, document), _bytes(self.head, document)
            known = compare_documents(document, before, after), Node.parse(document, after)
            self._node_changes[document] = known
        return known


# --- the clauses


def _set_keys(check: Check) -> Iterator[str]:
    for key in check.mine.set:
        if check.changed(key) and not _is_equal_of_group(check, key) and not _is_apart(check, key):
            yield key


def _is_apart(check: Check, key: str) -> bool:
    if any(key.startswith(cleared) for cleared in check.recent.new_prefixes(check.since)):
        return False  # the array may have been replaced
    return check.mine.is_apart(key, check.base, check.head)


def _is_equal_of_group(check: Check, key: str) -> bool:
    """Tell whether both commits created a group, or consolidated its metadata, with the same bytes."""
    if is_consolidated(key):
        return key in check.head
    mine, base = check.mine.documents.get(key), _bytes(check.base, key)
    if mine is None or _bytes(check.head, key) != mine:
        return False
    if base is not None:
        return is_marked(key, mine) and decoded(plain_document(key, mine)) == decoded(plain_document(key, base))
    if key.rpartition("/")[2] == ".zattrs":
        return check.mine.documents.get(document_key(node_of_document(key), ".zgroup")) is not None
    return Node.parse(key, mine).kind == "group"


def _deleted_keys(check: Check) -> Iterator[str]:
    for key in check.mine.deleted:
        if check.changed(key) and (key in check.head or key in check.base) and not _is_apart(check, key):
            yield key


def _keys_below_changed_nodes(check: Check) -> Iterator[str]:
    for keys in (check.mine.set, check.mine.deleted):
        for key in keys:
            for document in check.changed_documents(key.rpartition("/")[0]):
                if document != key:
                    concerns = FOREIGN_CHANGES.get(check.node_change(document)[0])
                    if concerns is not None and concerns(check, document, key):
                        yield key
                        break


def _keys_below_my_changes(check: Check) -> Iterator[str]:
    for document, after in check.mine.documents.items():
        change = compare_documents(document, _bytes(check.base, document), after)
        concerned = MY_CHANGES.get(change)
        if concerned is not None:
            yield from concerned(check, document, after)


def _arrays_beside_moved_rows(check: Check) -> Iterator[str]:
    """Yield arrays that are made here, and along whose dimensions others have moved rows."""
    moved: dict[str, frozenset[str]] = {}
    for document in check.mine.documents:
        made = _made(check.base, check.mine.documents.get, document)
        if made is None or not made.dimensions:
            continue
        for group in ancestors(made.path):
            if group not in moved:
                moved[group] = frozenset().union(*_moved_by_others(check, group))
            if not moved[group].isdisjoint(made.dimensions):
                yield document
                break


def _moved_by_others(check: Check, group: str) -> Iterator[frozenset[str]]:
    prefix = directory_prefix(group)
    for name in check.base.list_dir(group):
        path = prefix + name
        if any(check.changed(document_key(path, each)) for each in (*NODE_DOCUMENTS, ".zattrs")):
            before, after = (describe(view.get_view, path) for view in (check.base, check.head))
            if before is not None and after is not None:
                yield moved_along(before.attributes, after.attributes, after.dimensions)


def _arrays_beside_my_moves(check: Check) -> Iterator[str]:
    """Yield arrays that others have made along dimensions whose rows are moved here."""
    moved: dict[str, frozenset[str]] = {}
    for document, content in check.mine.documents.items():
        if not rows_have_moved(document, _bytes(check.base, document), content):
            continue
        path = node_of_document(document)
        before, after = describe(check.base.get_view, path), describe(check.mine.documents.get, path)
        if before is not None and after is not None:
            along = moved_along(before.attributes, after.attributes, after.dimensions)
            group = path.rpartition("/")[0]
            moved[group] = moved.get(group, frozenset()) | along
    for group, along in moved.items():
        for key in check.new_keys_below(directory_prefix(group)) if along else ():
            made = _made(check.base, check.head.get_view, key) if is_document(key) else None
            if made is not None and not along.isdisjoint(made.dimensions):
                yield key


def _made(base: Snapshot, get: Callable[[str], bytes | memoryview | None], document: str) -> Described | None:
    """Return the array that a document makes where the base has none."""
    path = node_of_document(document)
    if any(document_key(path, name) in base for name in NODE_DOCUMENTS):
        return None
    found = describe(get, path)
    return found if found is not None and found.kind == "array" else None


def _keys_below_my_prefixes(check: Check) -> Iterator[str]:
    for prefix in check.mine.prefixes:
        yield from check.new_keys_below(prefix)


def _keys_below_what_i_moved(check: Check) -> Iterator[str]:
    for prefix in check.mine.moved:
        for change in check.touched_below(prefix):
            if (key := stored_key(change.key, "a run")) in check.base or key in check.head:
                yield key
        yield from check.cleared_keys_below(prefix)


def _keys_that_others_moved(check: Check) -> Iterator[str]:
    """Yield documents that are deleted here with what is around them, and are at another path now."""
    below = (key for prefix in check.mine.prefixes for key in check.cleared_keys_below(prefix))
    gone = {(ref.pack, ref.offset): key for key, ref in refs_of(check.base, filter(is_document, below))}
    if gone:
        changed = (stored_key(change.key, "a run") for change in check.touched_below(""))
        for _, ref in refs_of(check.head, changed):
            if (ref.pack, ref.offset) in gone:
                yield gone[ref.pack, ref.offset]


def _keys_read(check: Check) -> Iterator[str]:
    for key in check.mine.reads.keys:
        if check.changed(key) and (key in check.head or key in check.base):
            yield key


def _names_listed(check: Check) -> Iterator[str]:
    for prefix in check.mine.reads.names_below:
        touched = (stored_key(change.key, "a run") for change in check.touched_below(prefix))
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
    """One reason for a conflict, and a function that yields the conflicting keys."""

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
    Clause(
        "beside moved rows",
        "another commit moved rows along a dimension of arrays that are made here",
        _arrays_beside_moved_rows,
    ),
    Clause(
        "beside my moves",
        "another commit made arrays along a dimension whose rows are moved here",
        _arrays_beside_my_moves,
    ),
    Clause("my prefix", "another commit wrote below what is deleted here", _keys_below_my_prefixes),
    Clause("my moves", "another commit changed what is moved here", _keys_below_what_i_moved),
    Clause("their moves", "another commit moved what is deleted here", _keys_that_others_moved),
    # Of a transaction that is not serializable: the keys that its caller relies on.
    Clause("read", "another commit changed keys that were read here", _keys_read),
    Clause("names", "another commit changed which names there are where they were listed here", _names_listed),
    Clause("keys", "another commit changed which keys there are where they were listed here", _keys_listed),
    Clause("any", "another commit changed whether there are any keys where this was asked here", _emptiness),
)


def _is_cut(check: Check, document: str, key: str) -> bool:
    before, after = (_bytes(view, document) for view in (check.base, check.head))
    return not is_document(key) and cuts_chunk(document, before, after, key)


#: Tests by kind of change: whether another commit's change of a document conflicts with a write of a key below it. A
#: kind that is not listed never conflicts.
FOREIGN_CHANGES: dict[DocumentChange, Callable[[Check, str, str], bool]] = {
    DocumentChange.STRUCTURE: lambda *_: True,
    DocumentChange.MOVED: lambda *about: not is_document(about[-1]),
    DocumentChange.SHRINK: _is_cut,
}


def _all_below(check: Check, document: str, after: bytes | None) -> Iterator[str]:
    prefix = directory_prefix(node_of_document(document))
    # A deleted chunk has become the fill value, and the new document may change that. If the node is deleted, a deleted
    # chunk does not matter.
    return check.new_keys_below(prefix) if after is None else check.changed_keys_below(prefix)


def _cut_below(check: Check, document: str, after: bytes | None) -> Iterator[str]:
    before = _bytes(check.base, document)
    for key in check.new_keys_below(directory_prefix(node_of_document(document))):
        if not is_document(key) and cuts_chunk(document, before, after, key):
            yield key


#: The other direction, by kind of change: the newer keys below a document that conflict with this transaction's change.
MY_CHANGES: dict[DocumentChange, Callable[[Check, str, bytes | None], Iterator[str]]] = {
    DocumentChange.STRUCTURE: _all_below,
    DocumentChange.SHRINK: _cut_below,
}


def _bytes(snapshot: Snapshot, key: str) -> bytes | None:
    view = snapshot.get_view(key)
    return None if view is None else bytes(view)

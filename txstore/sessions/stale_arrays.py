"""Tracks the metadata documents that array objects of a session hold, and refuses stale array objects (I6).

Array and group objects cache the metadata document that they were opened with. `append` writes a new document without
reading the present one, and the cached document decides how chunks are coded. So a session records the documents that
it has handed out. It refuses to read or write chunks below a document that another commit, another participant or a
rollback has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from txstore import processes
from txstore.codecs.chunk_codec import ChunkDecoder, NotMergeableError, bits
from txstore.errors import MisalignedError, StaleArrayError, TxStoreError
from txstore.format.documents import (
    Described,
    DocumentChange,
    compare_documents,
    describe,
    drops_chunk,
    is_at_edge,
    is_node_document,
    may_be_array,
    moved_edges,
)
from txstore.format.keys import (
    DOCUMENT_NAMES,
    after_prefix,
    ancestors,
    directory_prefix,
    document_key,
    is_document,
    node_of_document,
)
from txstore.history.snapshot import Snapshot
from txstore.segments.runs import Runs
from txstore.transactions.participants.chains import Link
from txstore.transactions.participants.membership import Held
from txstore.transactions.transaction import Transaction


class _Stale(NamedTuple):
    """The differences between a document and the versions of it that array objects may hold."""

    change: DocumentChange  # the worst change: one that was undone counts, too
    document: bytes | None  # the present document
    edges: frozenset[tuple[int, int]]  # chunks that look complete to an old object, but are not

    def then(self, later: _Stale) -> _Stale:
        return _Stale(self.change.or_worse(later.change), later.document, self.edges | later.edges)


#: For a document that can't be read: any change is possible.
_UNREADABLE = _Stale(DocumentChange.STRUCTURE, None, frozenset())


class Reliance(NamedTuple):
    """The documents that array objects of a session rely on, for its pickle."""

    handed_out: Held
    stale: dict[str, _Stale]
    overtaken: dict[str, _Stale]
    unread: dict[str, bool]

    def covers(self, other: Reliance) -> bool:
        """Tell whether this includes everything in `other`."""
        both: Iterable[tuple[dict[str, Any], dict[str, Any]]] = zip(self, other, strict=True)
        return all(told.items() <= known.items() for known, told in both)


class HeldDocuments:
    """The documents that array objects of one session hold. Safe in threads.

    Each method that reads or writes takes the open transaction. The check, and the read or write after it, must use the
    same transaction, even while another thread commits.
    """

    def __init__(self, *, is_serializable: bool) -> None:
        self.handed_out: Held = {}
        self.is_serializable = is_serializable
        self._stale: dict[str, _Stale] = {}  # changed by other commits
        # Changed by other participants of the transaction, or by other stores here that stage into it, until they are
        # read again. A change that was looked at counts as handed out.
        self._overtaken: dict[str, _Stale] = {}
        self._learned = 0  # number of the transaction's news that were looked at; -1: look at everything
        self._knowing = processes.new_lock()  # guards these fields
        self._moved_to: dict[str, str] = {}  # documents that this transaction moved, with their new keys
        self._cleared: dict[str, _Stale] = {}  # stale documents below a path that this transaction cleared
        self._unread: dict[str, bool] = {}  # staged documents that a rollback dropped; True: there may be chunks

    # --- for other processes

    @property
    def reliance(self) -> Reliance:
        """The data for a pickle, so that another process checks unpickled array objects as this one does."""
        with self._knowing:
            return Reliance(dict(self.handed_out), dict(self._stale), dict(self._overtaken), dict(self._unread))

    def rely_on(self, reliance: Reliance, *, knows_frames: bool) -> None:
        """Rely on the data of a pickle. Without `knows_frames`, the pickle was made in another transaction."""
        handed_out, self._stale, self._overtaken, self._unread = reliance
        self.handed_out = handed_out if knows_frames else dict.fromkeys(handed_out)

    def look_at_all(self) -> None:
        """Look again at everything that was staged, because this is another process or another transaction."""
        self._learned = -1

    # --- reading

    def is_current(self, transaction: Transaction) -> bool:
        """Tell whether no handed-out document is known to have changed, and there is no news to look at."""
        is_looked_at = len(transaction.members.staged.news) == self._learned
        return is_looked_at and not (self._stale or self._unread or self._overtaken)

    def are_newest(self, transaction: Transaction | None) -> bool:
        """Tell whether array objects are known to hold the newest documents of the transaction."""
        return not self._overtaken and (transaction is None or len(transaction.members.staged.news) == self._learned)

    def read(self, key: str, transaction: Transaction) -> memoryview | None:
        """Return a document. From now on, array objects hold it."""
        known = key in self.handed_out
        self.handed_out.setdefault(key, None)  # before the read: a commit in another thread must not overlook it
        link, view = _read(transaction, key)
        # A caller that opens a node asks for all possible names of its documents. It may have read the existing one
        # before a rollback. So an absent document says nothing about the others.
        self._forget_unread(key, of_node=view is not None and is_node_document(key))
        # An array object does not rely on an absent document, except on absent attributes: then it has none.
        if view is None and not known and not key.endswith(".zattrs"):
            with self._knowing:
                self.handed_out.pop(key, None)
                self._overtaken.pop(key, None)
        else:
            self._hold(key, link, transaction)
        return view

    def hold(self, key: str, transaction: Transaction) -> None:
        """Record that array objects hold the document as it is staged now."""
        self._hold(key, transaction.members.staged.present(key), transaction)

    def _hold(self, key: str, link: Link | None, transaction: Transaction) -> None:
        """Record the version of a document that array objects hold from now on."""
        with self._knowing:
            self.handed_out[key] = link
            self._overtaken.pop(key, None)
            self._moved_to.pop(key, None)
            self._look_at_locked(key, transaction)  # another thread may have learned of a newer version

    def note_written(self, key: str, transaction: Transaction) -> None:
        """Record that the caller has set a document, unless another participant has set it since."""
        link = transaction.members.staged.present(key)
        if transaction.members.is_own(link):
            self._hold(key, link, transaction)

    def note_absent(self, key: str, transaction: Transaction) -> None:
        """Record that a document is absent. A caller that then creates the node does not rely on an old one."""
        self._forget_unread(key, of_node=True)
        if key in self._overtaken:
            self.hold(key, transaction)

    def count_as_read(self, key: str, transaction: Transaction) -> None:
        """Count as read the held documents of nodes above a key, even those from an earlier transaction."""
        for path in ancestors(key):
            for name in DOCUMENT_NAMES:
                document = document_key(path, name)
                if document in self.handed_out:
                    transaction.rely_on_base(document)

    def _forget_unread(self, key: str, *, of_node: bool) -> None:
        """Count a document, or all documents of its node, as read again."""
        if self._unread:
            node = node_of_document(key)
            for each in [document_key(node, name) for name in DOCUMENT_NAMES] if of_node else [key]:
                self._unread.pop(each, None)

    # --- checking

    def check_readable(self, key: str, transaction: Transaction) -> None:
        """Raise `StaleArrayError` if a document above a key differs from the one that was handed out."""
        if self.is_current(transaction):
            return
        self.learn(transaction)
        document = self._stale_above(key)
        if document is not None:
            raise self.error_of(document)

    def stale_for_write(self, key: str, transaction: Transaction) -> str | None:
        """Return a document that differs from the one that was handed out, and so forbids a write of a key."""
        if self.is_serializable:
            self.count_as_read(key, transaction)
        if self.is_current(transaction):
            return None
        self.learn(transaction)
        if is_document(key) and (key in self._stale or key in self._unread or key in self._overtaken):
            return key
        return self._stale_above(key, writing=True)

    def is_of_older_transaction(self, document: str) -> bool:
        """Tell whether a stale document was handed out by an earlier transaction, and not changed in this one."""
        return document in self._stale or document in self._unread

    def _stale_above(self, key: str, *, writing: bool = False) -> str | None:
        """Return a document that this key depends on and that differs from the one that was handed out."""
        for path in ancestors(key):
            for name in DOCUMENT_NAMES:
                document = document_key(path, name)
                if document == key:
                    continue
                if self._unread.get(document):
                    return document
                for stale in (self._stale.get(document), self._overtaken.get(document)):
                    if stale is not None and self._concerns(stale, document, key, writing):
                        return document
        return None

    def _concerns(self, stale: _Stale, document: str, key: str, writing: bool) -> bool:
        """Tell whether a change of a document matters for a write or read of a key below it."""
        if stale.change in (DocumentChange.MOVED, DocumentChange.STRUCTURE) or self.is_serializable:
            return True
        if stale.change is DocumentChange.SHRINK and drops_chunk(document, stale.document, key):
            return True
        return writing and bool(stale.edges) and is_at_edge(document, stale.document, key, stale.edges)

    def error_of(self, document: str) -> StaleArrayError:
        """Return the error for a stale document."""
        path = node_of_document(document)
        if document in self._unread:
            reason = "its metadata was staged here and rolled back; open it again before using it"
            return StaleArrayError(path, reason=reason)
        if (stale := self._stale.get(document)) is not None:
            return StaleArrayError(path, reason=f"another commit changed its metadata ({stale.change.value})")
        if (moved := self._moved_to.get(document)) is not None:
            return StaleArrayError(
                path, reason="it was moved in this transaction", advice=f"open {node_of_document(moved)!r}"
            )
        stale = self._overtaken.get(document)
        change = "" if stale is None else f" ({stale.change.value})"  # None: another thread has just read it again
        return StaleArrayError(
            path,
            reason=f"its metadata was changed elsewhere in this transaction{change}",
            advice="open it again through this store, within the block of store.lock() if you lock",
        )

    def learn(self, transaction: Transaction) -> None:
        """Look at documents that changed since they were handed out."""
        if len(transaction.members.staged.news) == self._learned:
            return
        with self._knowing:
            news = transaction.members.staged.news
            start, stop = self._learned, len(news)
            keys: set[str] = set(self.handed_out) if start < 0 else set()
            for changed in news[max(start, 0) : stop]:
                if is_document(changed):
                    keys.add(changed)
                else:
                    keys.update(self._below(changed))
            for key in keys:
                self._look_at_locked(key, transaction)
            self._learned = stop  # last: until then, other threads wait

    def _look_at_locked(self, key: str, transaction: Transaction) -> None:
        """Record how a staged document differs from the held version. `move_on` does this for committed documents."""
        if key not in self.handed_out:
            return
        known, present = self.handed_out[key], transaction.members.staged.present(key)
        if present == known:
            return
        self.handed_out[key] = present
        noted = _compare_links(key, transaction, known, present)
        if noted is not None:
            stale = self._overtaken.get(key)
            self._overtaken[key] = noted if stale is None else stale.then(noted)

    # --- writing whole nodes

    def replace_below(self, path: str, transaction: Transaction) -> None:
        """Record that the caller has cleared a node: it wants to replace the node, whatever its present state is."""
        prefix = directory_prefix(path)
        for key in self._below(prefix):
            self.hold(key, transaction)
        if self._stale or self._unread:
            self._cleared |= {key: stale for key, stale in self._stale.items() if key.startswith(prefix)}
            self._stale = {key: stale for key, stale in self._stale.items() if not key.startswith(prefix)}
            self._unread = {key: kind for key, kind in self._unread.items() if not key.startswith(prefix)}

    def move_below(self, source: str, destination: str) -> None:
        """Record that a node was moved: objects that were opened at its old path are stale from now on."""
        prefix = directory_prefix(source)
        with self._knowing:
            for key in self._below(prefix):
                self._overtaken[key] = _UNREADABLE
                self._moved_to[key] = directory_prefix(destination) + key[len(prefix) :]

    def contents_below(self, path: str, transaction: Transaction) -> dict[str, bytes | None]:
        """Return the present content of the documents below a path that array objects hold."""
        return {key: _peek(transaction, key) for key in self._below(directory_prefix(path))}

    def restore_below(self, before: Mapping[str, bytes | None], transaction: Transaction) -> None:
        """Record that documents were restored: arrays whose document differs from `before` are stale."""
        with self._knowing:
            for key, content in before.items():
                self.handed_out[key] = transaction.members.staged.present(key)
                noted = _difference(key, content, _peek(transaction, key))
                if noted is not None:
                    self._overtaken[key] = noted

    def _below(self, prefix: str) -> list[str]:
        return [key for key in list(self.handed_out) if key.startswith(prefix)]

    # --- from one transaction to the next

    def check_aligned(self, transaction: Transaction) -> None:
        """Raise `MisalignedError` if an array has grown, and an array with an open object does not fit it any more.

        Nothing is checked of an ended transaction, whose commit raises `TransactionStateError`.
        """
        if transaction.state != "open":
            return
        staged = transaction.members.staged
        documents = {key: staged.present(key) for key in list(self.handed_out) if is_node_document(key)}
        changed = [key for key, link in documents.items() if link is not None]
        if not changed:
            return
        before = transaction.base.without_request

        def after(key: str) -> bytes | memoryview | None:
            link = documents.get(key)
            return before(key) if link is None else transaction.staged.content(key, link)

        grown = list(_grown(changed, before, after))
        left = list(_left_behind(grown, documents, before, after))
        relabelled = list(_relabelled(transaction, grown, before, after))
        if (left or relabelled) and (views := transaction.views.read()):  # the commit resizes what they make
            derived = {output for view in views.values() for output in view.outputs}
            left = [each for each in left if not {*each[:2]} & derived]
            relabelled = [each for each in relabelled if not {*each} & derived]
        if left or relabelled:
            raise MisalignedError(left=left, relabelled=relabelled)

    def staged_in(self, transaction: Transaction) -> dict[str, bool]:
        """Return the documents that a rollback will drop, each with whether there may be chunks below it."""
        changes = transaction.changes()
        below = tuple(directory_prefix(path) for path in changes["deleted_below"] + changes["reflinked"])
        documents = {key for key in changes["set"] + changes["deleted"] if is_document(key)}
        documents |= {key for key in list(self.handed_out) if key.startswith(below)}
        return {key: any(_may_be_array(view, key) for view in (transaction, transaction.base)) for key in documents}

    @property
    def distrusted(self) -> tuple[dict[str, bool], dict[str, _Stale]]:
        """The state that `distrust` changes, for `restore_trust`."""
        return self._unread, self._stale

    def distrust(self, documents: Mapping[str, bool]) -> None:
        """Refuse array objects that hold documents which a rollback drops, until they are opened again."""
        self._unread = {**self._unread, **documents}
        self._stale = {**self._stale, **self._cleared}

    def restore_trust(self, distrusted: tuple[dict[str, bool], dict[str, _Stale]]) -> None:
        """Undo `distrust`: the transaction was not rolled back."""
        self._unread, self._stale = distrusted

    def forget_cleared(self) -> None:
        """Forget the cleared paths of this transaction, which has ended."""
        self._cleared = {}

    def move_on(self, old: Snapshot, new: Snapshot, *, own: int | None, settled: Collection[str]) -> None:
        """Record the documents that other commits changed from `old` to `new`, the base of the next transaction.

        `own` is the seq of this session's commit. In it, the `settled` keys also include changes of other commits.
        """
        stale = dict(self._stale)
        recent = _newer(new, old.seq)
        for key in list(self.handed_out) if new.seq > old.seq else ():
            noted = _compare(key, old, new, recent, None if key in settled else own)
            if noted is not None:
                stale[key] = stale[key].then(noted) if key in stale else noted
        self._stale = stale
        with self._knowing:
            self.handed_out = dict.fromkeys(self.handed_out)
            self._learned = 0


def _newer(new: Snapshot, seq: int) -> Runs | None:
    """Return the runs with entries newer than `seq`. None if they can't be opened."""
    try:
        return new.runs.newer(seq)
    except (OSError, TxStoreError):
        return None


def _compare(key: str, old: Snapshot, new: Snapshot, recent: Runs | None, own: int | None) -> _Stale | None:
    if recent is None:
        return _UNREADABLE
    try:
        found = recent.lookup(key.encode())
        if found is None or found.seq <= old.seq or found.seq == own:
            return None
        before, after = _content(old, key), _content(new, key)
    except (OSError, TxStoreError):
        return _UNREADABLE
    return _difference(key, before, after)


def _compare_links(key: str, transaction: Transaction, known: Link | None, present: Link | None) -> _Stale | None:
    try:
        before, after = transaction.staged.content(key, known), transaction.staged.content(key, present)
    except (OSError, TxStoreError):
        return _UNREADABLE
    return _difference(key, before, after)


def _difference(key: str, before: bytes | None, after: bytes | None) -> _Stale | None:
    change = compare_documents(key, before, after)
    return None if change is DocumentChange.NONE else _Stale(change, after, moved_edges(key, before, after))


def _read(transaction: Transaction, key: str) -> tuple[Link | None, memoryview | None]:
    """Return a document, and its frame."""
    while True:
        link = transaction.members.staged.present(key)
        view = transaction.get_view(key)
        if transaction.members.staged.present(key) == link:  # else this process learned of a newer frame meanwhile
            return link, view


def _peek(transaction: Transaction, key: str) -> bytes | None:
    view = transaction.get_view(key)
    return None if view is None else bytes(view)


def _content(snapshot: Snapshot, key: str) -> bytes | None:
    view = snapshot.get_view(key)
    return None if view is None else bytes(view)


def _may_be_array(view: Transaction | Snapshot, key: str) -> bool:
    try:
        content = view.get_view(key)
    except (OSError, TxStoreError):  # a rollback must not fail
        return True
    return may_be_array(key, None if content is None else bytes(content))


# --- arrays that a transaction forgot to extend: they had the same length along a dimension as one that it grew

#: Returns the document at a key. None if there is no document, or if reading it would take long.
Get = Callable[[str], bytes | memoryview | None]


#: Path, path of the array that grew, dimension, its axis in the array that grew, that one's lengths before and after.
_LeftBehind = tuple[str, str, str, int, tuple[int, int]]
#: An array that has grown: as it is now, the axis, and its lengths along it before and after.
_Grown = tuple[Described, int, tuple[int, int]]


def _grown(changed: Collection[str], before: Get, after: Get) -> Iterator[_Grown]:
    """Yield each named dimension along which an array has grown. `changed` are the documents that are staged."""
    for path in sorted({node_of_document(key) for key in changed}):
        old, new = describe(before, path), describe(after, path)
        if old is None or new is None or old.kind != "array" or len(old.node.shape) != len(new.node.shape):
            continue
        for axis, (name, was, now) in enumerate(zip(new.dimensions, old.node.shape, new.node.shape, strict=False)):
            if name is not None and now > was:
                yield new, axis, (was, now)


def _left_behind(grown: Iterable[_Grown], known: Collection[str], before: Get, after: Get) -> Iterator[_LeftBehind]:
    """Yield the arrays that did not grow with another array of their group. The only I/O is in `before` and `after`.

    `known` are the keys of all documents that array objects hold: xarray opens all arrays of a group to append to it.
    """
    told: set[str] = set()
    for array, axis, lengths in grown:
        path, name = array.path, str(array.dimensions[axis])
        group = path.rpartition("/")[0]
        for sibling in sorted({node_of_document(key) for key in known} - {"", path} - told):
            if sibling.rpartition("/")[0] == group and _has(sibling, name, lengths[0], before, after):
                told.add(sibling)
                yield sibling, path, name, axis, lengths


def _relabelled(
    transaction: Transaction, grown: Iterable[_Grown], before: Get, after: Get
) -> Iterator[tuple[str, str]]:
    """Yield the coordinates that got other labels while an array grew along another dimension, with that array.

    A coordinate has the name of its only dimension. An array of no elements had no labels.
    """
    staged, base = transaction.members.staged, transaction.base
    for array, axis, (was, _) in grown:
        group = array.path.rpartition("/")[0]
        for name in {*array.dimensions} - {None, array.dimensions[axis]} if was else ():
            coordinate = f"{group}/{name}" if group else str(name)
            prefix = directory_prefix(coordinate)
            keys = [key for key in staged.between(prefix, after_prefix(prefix)) if not is_document(key)]
            old, new = (describe(get, coordinate) if keys else None for get in (before, after))
            if old is None or new is None or not old.dimensions == new.dimensions == (name,):
                continue
            if old.node.shape == new.node.shape and any(
                _decoded(old, key, base.get_view(key)) != _decoded(new, key, transaction.get_view(key)) for key in keys
            ):
                yield coordinate, array.path


def _decoded(array: Described, key: str, value: memoryview | None) -> bytes | None:
    """Return the bytes of a chunk's elements; of one that can't be decoded, its value."""
    try:
        return bits(ChunkDecoder.of(array, key).decode(value))
    except NotMergeableError:
        return None if value is None else bytes(value)


def _has(path: str, dimension: str, length: int, before: Get, after: Get) -> bool:
    """Tell whether an array had this length along a dimension, and still has it."""
    return all(
        found is not None
        and found.kind == "array"
        and (dimension, length) in zip(found.dimensions, found.node.shape, strict=False)
        for found in (describe(before, path), describe(after, path))
    )

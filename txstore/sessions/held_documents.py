"""The metadata documents that array objects of a session hold, and which of these objects are stale by now (I6).

Array and group objects cache the metadata document that they were opened with. `append` writes a new document without
reading the present one, and the cached one says how chunks are coded. So a session notes which documents it has handed
out, and refuses to read or write chunks below one that another commit, another participant or a rollback has changed.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from txstore import processes
from txstore.errors import StaleArrayError, TxStoreError, UnequalLengthsWarning
from txstore.format.documents import (
    DocumentChange,
    compare_documents,
    drops_chunk,
    is_at_edge,
    is_node_document,
    may_be_array,
    moved_edges,
)
from txstore.format.keys import (
    DOCUMENT_NAMES,
    ancestors,
    directory_prefix,
    document_key,
    is_document,
    node_of_document,
)
from txstore.history.snapshot import Snapshot
from txstore.segments.runs import Runs
from txstore.sessions.left_behind import left_behind
from txstore.transactions.participants.chains import Link
from txstore.transactions.participants.membership import Held
from txstore.transactions.transaction import Transaction


class _Stale(NamedTuple):
    """How a document differs from those versions of it that array objects may hold."""

    change: DocumentChange  # the worst of them: what changed back has still been different
    document: bytes | None  # as it is now
    edges: frozenset[tuple[int, int]]  # chunks that look complete to an old object, and are not

    def then(self, later: _Stale) -> _Stale:
        return _Stale(self.change.or_worse(later.change), later.document, self.edges | later.edges)


#: Of a document that can't be read: it may have changed in any way.
_UNREADABLE = _Stale(DocumentChange.STRUCTURE, None, frozenset())


class Reliance(NamedTuple):
    """What array objects of a session rely on, for its pickle."""

    handed_out: Held
    stale: dict[str, _Stale]
    overtaken: dict[str, _Stale]
    unread: dict[str, bool]

    def covers(self, other: Reliance) -> bool:
        """Tell whether all that `other` says is said here."""
        both: Iterable[tuple[dict[str, Any], dict[str, Any]]] = zip(self, other, strict=True)
        return all(told.items() <= known.items() for known, told in both)


class HeldDocuments:
    """The documents that array objects of one session hold. Safe in threads.

    Each method that reads or writes is given the transaction that is open: what is checked, and what is then read or
    written, must be of one transaction, also while another thread commits.
    """

    def __init__(self, *, is_serializable: bool) -> None:
        self.handed_out: Held = {}
        self._is_serializable = is_serializable
        self._stale: dict[str, _Stale] = {}  # by commits of others
        # By other participants of one transaction, or other stores that stage into it here, until they are read again.
        # What was looked at counts as handed out.
        self._overtaken: dict[str, _Stale] = {}
        self._learned = 0  # how many of the transaction's news were looked at; -1: everything is to be
        self._knowing = processes.new_lock()  # of these
        self._moved_to: dict[str, str] = {}  # of documents that this transaction has moved: the keys that they have now
        self._cleared: dict[str, _Stale] = {}  # what was stale below a path that this transaction has cleared
        self._unread: dict[str, bool] = {}  # staged documents that a rollback dropped; True: there may be chunks

    # --- for other processes

    @property
    def reliance(self) -> Reliance:
        """What a pickle carries, so that array objects unpickled elsewhere are checked as they are here."""
        with self._knowing:
            return Reliance(dict(self.handed_out), dict(self._stale), dict(self._overtaken), dict(self._unread))

    def rely_on(self, reliance: Reliance, *, knows_frames: bool) -> None:
        """Rely on what a pickle says. Without `knows_frames`, the transaction is not the one that it was made in."""
        handed_out, self._stale, self._overtaken, self._unread = reliance
        self.handed_out = handed_out if knows_frames else dict.fromkeys(handed_out)

    def look_at_all(self) -> None:
        """Look again at everything that was staged: the process, or its transaction, is another."""
        self._learned = -1

    # --- reading

    def is_current(self, transaction: Transaction) -> bool:
        """Tell whether no document that was handed out is known to have changed, and none is to be looked at."""
        is_looked_at = len(transaction.members.staged.news) == self._learned
        return is_looked_at and not (self._stale or self._unread or self._overtaken)

    def are_newest(self, transaction: Transaction | None) -> bool:
        """Tell whether array objects are known to hold the newest documents of the transaction."""
        return not self._overtaken and (transaction is None or len(transaction.members.staged.news) == self._learned)

    def read(self, key: str, transaction: Transaction) -> memoryview | None:
        """Return a document, which array objects hold from now on."""
        known = key in self.handed_out
        self.handed_out.setdefault(key, None)  # before it is read: a commit in another thread must not overlook it
        link, view = _read(transaction, key)
        # Who opens a node asks for all the names that its documents may have, and may have read the one that is there
        # before a rollback: so what is absent says nothing of the others.
        self._forget_unread(key, of_node=view is not None and is_node_document(key))
        # Absence is nothing that an array object could rely on, but that of attributes is: it holds none.
        if view is None and not known and not key.endswith(".zattrs"):
            with self._knowing:
                self.handed_out.pop(key, None)
                self._overtaken.pop(key, None)
        else:
            self._hold(key, link, transaction)
        return view

    def hold(self, key: str, transaction: Transaction) -> None:
        """Note that array objects hold the document as it is staged now."""
        self._hold(key, transaction.members.staged.present(key), transaction)

    def _hold(self, key: str, link: Link | None, transaction: Transaction) -> None:
        """Note which version of a document array objects hold from now on."""
        with self._knowing:
            self.handed_out[key] = link
            self._overtaken.pop(key, None)
            self._moved_to.pop(key, None)
            self._look_at_locked(key, transaction)  # another thread may have learned more, and looked at it already

    def note_written(self, key: str, transaction: Transaction) -> None:
        """Note that the caller has set a document, unless another participant has done so since."""
        link = transaction.members.staged.present(key)
        if transaction.members.is_own(link):
            self._hold(key, link, transaction)

    def note_absent(self, key: str, transaction: Transaction) -> None:
        """Note that a document is absent. A caller that then creates the node does not rely on an old one."""
        self._forget_unread(key, of_node=True)
        if key in self._overtaken:
            self.hold(key, transaction)

    def count_as_read(self, key: str, transaction: Transaction) -> None:
        """Count as read what array objects know of the nodes above a key, perhaps from an earlier transaction."""
        for path in ancestors(key):
            for name in DOCUMENT_NAMES:
                document = document_key(path, name)
                if document in self.handed_out:
                    transaction.rely_on_base(document)

    def _forget_unread(self, key: str, *, of_node: bool) -> None:
        """Count a document as read again, or all those of its node."""
        if self._unread:
            node = node_of_document(key)
            for each in [document_key(node, name) for name in DOCUMENT_NAMES] if of_node else [key]:
                self._unread.pop(each, None)

    # --- checking

    def check_readable(self, key: str, transaction: Transaction) -> None:
        """Raise `StaleArrayError` if a document above a key is not the one that was handed out."""
        if self.is_current(transaction):
            return
        self.learn(transaction)
        document = self._stale_above(key)
        if document is not None:
            raise self.error_of(document)

    def stale_for_write(self, key: str, transaction: Transaction) -> str | None:
        """Return a document that is not the one that was handed out, and forbids to write a key."""
        if self._is_serializable:
            self.count_as_read(key, transaction)
        if self.is_current(transaction):
            return None
        self.learn(transaction)
        if is_document(key) and (key in self._stale or key in self._unread or key in self._overtaken):
            return key
        return self._stale_above(key, writing=True)

    def is_of_older_transaction(self, document: str) -> bool:
        """Tell whether a stale document was handed out by an earlier transaction, and not changed within this one."""
        return document in self._stale or document in self._unread

    def _stale_above(self, key: str, *, writing: bool = False) -> str | None:
        """Return a document that this key depends on and that is not the one that was handed out."""
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
        """Tell whether a change of a document concerns who writes or reads a key below it."""
        if stale.change is DocumentChange.STRUCTURE or self._is_serializable:
            return True
        if stale.change is DocumentChange.SHRINK and drops_chunk(document, stale.document, key):
            return True
        return writing and bool(stale.edges) and is_at_edge(document, stale.document, key, stale.edges)

    def error_of(self, document: str) -> StaleArrayError:
        """Return what a stale document is refused with."""
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
        """Look at the documents that were changed since they were handed out."""
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
            self._learned = stop  # last: no thread goes on meanwhile

    def _look_at_locked(self, key: str, transaction: Transaction) -> None:
        """Note how a document differs from what array objects hold; `move_on` does so of what was committed."""
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
        """Note that the caller has cleared a node: it means to replace it, whatever it has become."""
        prefix = directory_prefix(path)
        for key in self._below(prefix):
            self.hold(key, transaction)
        if self._stale or self._unread:
            self._cleared |= {key: stale for key, stale in self._stale.items() if key.startswith(prefix)}
            self._stale = {key: stale for key, stale in self._stale.items() if not key.startswith(prefix)}
            self._unread = {key: kind for key, kind in self._unread.items() if not key.startswith(prefix)}

    def move_below(self, source: str, destination: str) -> None:
        """Note that a node was moved: what was opened where it was is stale from now on."""
        prefix = directory_prefix(source)
        with self._knowing:
            for key in self._below(prefix):
                self._overtaken[key] = _UNREADABLE
                self._moved_to[key] = directory_prefix(destination) + key[len(prefix) :]

    def contents_below(self, path: str, transaction: Transaction) -> dict[str, bytes | None]:
        """Return the documents below a path that array objects hold, as they are now."""
        return {key: _peek(transaction, key) for key in self._below(directory_prefix(path))}

    def restore_below(self, before: Mapping[str, bytes | None], transaction: Transaction) -> None:
        """Note that documents were restored: of those that have changed since `before`, the arrays are stale."""
        with self._knowing:
            for key, content in before.items():
                self.handed_out[key] = transaction.members.staged.present(key)
                noted = _difference(key, content, _peek(transaction, key))
                if noted is not None:
                    self._overtaken[key] = noted

    def _below(self, prefix: str) -> list[str]:
        return [key for key in list(self.handed_out) if key.startswith(prefix)]

    # --- from one transaction to the next

    def warn_of_left_behind(self, transaction: Transaction) -> None:
        """Warn if an array has grown along a dimension, and another that array objects hold has not.

        Says nothing of a transaction that has ended: its commit raises `TransactionStateError`.
        """
        if transaction.state != "open":
            return
        staged = transaction.members.staged
        documents = {key: staged.present(key) for key in list(self.handed_out) if is_node_document(key)}
        changed = [key for key, link in documents.items() if link is not None]
        if not changed:
            return
        base = transaction.base
        before = base.without_request

        def after(key: str) -> bytes | memoryview | None:
            link = documents.get(key)
            return before(key) if link is None else transaction.staged.content(key, link)

        found = list(left_behind(changed, documents, before, after))
        if found:
            warnings.warn(UnequalLengthsWarning(found), stacklevel=4)

    def staged_in(self, transaction: Transaction) -> dict[str, bool]:
        """Return the documents that a rollback will drop, and of each whether there may be chunks below it."""
        changes = transaction.changes()
        below = tuple(directory_prefix(path) for path in changes["deleted_below"] + changes["reflinked"])
        documents = {key for key in changes["set"] + changes["deleted"] if is_document(key)}
        documents |= {key for key in list(self.handed_out) if key.startswith(below)}
        return {key: any(_may_be_array(view, key) for view in (transaction, transaction.base)) for key in documents}

    @property
    def distrusted(self) -> tuple[dict[str, bool], dict[str, _Stale]]:
        """What `distrust` adds to, for `restore_trust`."""
        return self._unread, self._stale

    def distrust(self, documents: Mapping[str, bool]) -> None:
        """Refuse the array objects that hold what a rollback drops, until they are opened again."""
        self._unread = {**self._unread, **documents}
        self._stale = {**self._stale, **self._cleared}

    def restore_trust(self, distrusted: tuple[dict[str, bool], dict[str, _Stale]]) -> None:
        """Undo `distrust`: the transaction was not rolled back."""
        self._unread, self._stale = distrusted

    def forget_cleared(self) -> None:
        """Forget what this transaction has cleared: it has ended."""
        self._cleared = {}

    def move_on(self, old: Snapshot, new: Snapshot, *, own: int | None, settled: Collection[str]) -> None:
        """Note which documents somebody else has changed from `old` to `new`, which the next transaction is based on.

        `own` is the seq of the commit that this session has made, in which `settled` keys are partly what somebody else
        has made of them.
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
    """Return the runs with what is newer than `seq`; None if they can't be opened."""
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
    """Read a document, and which frame it is."""
    while True:
        link = transaction.members.staged.present(key)
        view = transaction.get_view(key)
        if transaction.members.staged.present(key) == link:  # else it was learned meanwhile that another has written it
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

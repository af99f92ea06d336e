"""Session: a series of successive transactions that array objects outlive, and what those objects may rely on (I6).

Array and group objects cache the metadata document that they were opened with. `append` writes a new document without
reading the present one, and chunks are coded by the cached one. So a session remembers which documents it handed out,
and when its base moves over a foreign change of one, it refuses what would silently corrupt the array.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, NamedTuple

from txstore.commits import MAIN, Commit
from txstore.conflicts import DocumentChange, compare_documents, drops_chunk
from txstore.draining import drain_zarr
from txstore.engine import Engine, Position
from txstore.errors import StaleArrayError, TransactionStateError
from txstore.keys import DOCUMENT_NAMES, ancestors, directory_prefix, document_key, is_document, node_of_document
from txstore.snapshot import Snapshot
from txstore.transaction import Transaction

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _Stale(NamedTuple):
    change: DocumentChange
    document: bytes | None  # as it is now


class Session:
    """What a writable `TxStore` and its read-only copies share. Safe in threads."""

    def __init__(
        self,
        engine: Engine,
        position: Position,
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        self.engine = engine
        self.branch = branch
        self.message = message
        self.properties = properties
        self.position = position
        self.process = os.getpid()
        self.token = os.urandom(16).hex()  # by which a pickle made in this process finds it again
        self.depth = 0  # of nested `with` blocks
        self._transaction: Transaction | None = None
        self._written_by_zarr = False  # in this transaction
        self._ended: str | None = None
        self._handed_out: set[str] = set()
        self._stale: dict[str, _Stale] = {}
        self._unread: set[str] = set()  # staged documents that a rollback dropped
        self._lock = threading.RLock()

    # --- the present transaction

    @property
    def transaction(self) -> Transaction:
        """The transaction that is open. It begins at the first use."""
        transaction = self._transaction
        return transaction if transaction is not None else self._begin()

    def _begin(self) -> Transaction:
        with self._lock:
            if self._ended is not None:
                raise TransactionStateError(self._ended, state="ended")
            if self._transaction is None:
                base = self.position.snapshot()
                self._transaction = self.engine.begin(
                    base, branch=self.branch, message=self.message, properties=self.properties
                )
            return self._transaction

    @property
    def staged_count(self) -> int:
        return 0 if self._transaction is None else self._transaction.staged_count

    # --- reading

    def get_view(self, key: str) -> memoryview | None:
        """Return a value; remember that a document was handed out. Raises `StaleArrayError`."""
        transaction = self.transaction
        if is_document(key):
            view = transaction.get_view(key)
            self._hand_out(key, view is not None)
            return view
        if self._stale or self._unread:
            self._check_above(key)
        return transaction.get_view(key)

    def get_part(self, key: str, part: slice) -> memoryview | None:
        if is_document(key):
            view = self.get_view(key)
            return None if view is None else view[part]
        if self._stale or self._unread:
            self._check_above(key)
        return self.transaction.get_part(key, part)

    def _hand_out(self, key: str, exists: bool) -> None:
        self._unread.discard(key)
        if exists:  # absence is nothing that an array object could rely on
            self._handed_out.add(key)

    # --- writing

    def set(self, key: str, value: Buffer) -> None:
        """Stage a value for zarr. Raises `StaleArrayError`."""
        self._check_writable(key)
        self._written_by_zarr = True
        self.transaction.set(key, value)
        if is_document(key):
            self._hand_out(key, exists=True)

    def delete(self, key: str) -> None:
        self._check_writable(key)
        self._written_by_zarr = True
        self.transaction.delete(key)

    def delete_dir(self, path: str) -> None:
        self._written_by_zarr = True
        self.transaction.delete_dir(path)
        if self._stale or self._unread:
            # Whoever clears a node means to replace it, whatever it has become.
            prefix = directory_prefix(path)
            self._stale = {key: stale for key, stale in self._stale.items() if not key.startswith(prefix)}
            self._unread = {key for key in self._unread if not key.startswith(prefix)}

    def _check_writable(self, key: str) -> None:
        if not (self._stale or self._unread):
            return
        try:
            if is_document(key) and (key in self._stale or key in self._unread):
                raise self._stale_error(key)
            self._check_above(key)
        except StaleArrayError as error:
            self.transaction.poison(error)  # the statement may be half done: a resize deletes chunks first
            raise

    def _check_above(self, key: str) -> None:
        """Raise if a document that this key depends on is not the one that was handed out."""
        for path in ancestors(key):
            for name in DOCUMENT_NAMES:
                document = document_key(path, name)
                if document == key:
                    continue
                if document in self._unread:
                    raise self._stale_error(document)
                stale = self._stale.get(document)
                if stale is None:
                    continue
                if stale.change is DocumentChange.STRUCTURE:
                    raise self._stale_error(document)
                if stale.change is DocumentChange.SHRINK and drops_chunk(document, stale.document, key):
                    raise self._stale_error(document)

    def _stale_error(self, document: str) -> StaleArrayError:
        if document in self._unread:
            reason = "its metadata was staged here and rolled back; open it again before using it"
        else:
            reason = f"another commit changed its metadata ({self._stale[document].change.value})"
        return StaleArrayError(node_of_document(document), reason=reason)

    # --- from one transaction to the next

    def commit(self, message: str | None = None) -> Commit | None:
        """Commit what is staged; the next transaction is based on the new commit."""
        with self._lock:
            ended = self.transaction
            self._drain()
            mine = {key for key in ended.changes()["set"] if is_document(key)} if self._handed_out else set()
            new = ended.commit(message)
            self._move(ended.base, new, self._handed_out - mine)
            return new.commit

    def rollback(self) -> None:
        """Drop what is staged; the next transaction is based on the head."""
        with self._lock:
            ended = self.transaction
            changes = ended.changes()
            ended.rollback()  # late writes fail from now on, and so are soon done
            self._drain()
            dropped = {key for key in changes["set"] + changes["deleted"] if is_document(key)}
            below = tuple(directory_prefix(path) for path in changes["deleted_below"])
            self._unread |= dropped | {key for key in self._handed_out if key.startswith(below)}
            self._move(ended.base, self.engine.newest(self.branch), self._handed_out)

    def _drain(self) -> None:
        if self._written_by_zarr:
            drain_zarr()
            self._written_by_zarr = False

    def end(self, reason: str) -> None:
        """Roll back and end the session: whatever is used of it from now on raises `TransactionStateError`."""
        with self._lock:
            self._ended = reason
            if self._transaction is not None:
                self._transaction.rollback()
                self._transaction = None

    def _move(self, old: Snapshot, new: Snapshot, relied_on: AbstractSet[str]) -> None:
        """Base the next transaction on `new`, and note which documents somebody else has changed since `old`."""
        self._transaction, self.position = None, Position.of(self.engine, new)
        if new.seq <= old.seq:
            return
        recent = new.runs.newer(old.seq)
        for key in relied_on:
            found = recent.lookup(key.encode())
            if found is None or found.seq <= old.seq:
                continue
            before, after = _content(old, key), _content(new, key)
            change = compare_documents(key, before, after)
            if change is not DocumentChange.NONE:
                self._stale[key] = _Stale(change, after)


def _content(snapshot: Snapshot, key: str) -> bytes | None:
    view = snapshot.get_view(key)
    return None if view is None else bytes(view)

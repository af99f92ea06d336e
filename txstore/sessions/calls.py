"""Makes the calls of zarr on the open transaction of a session: each passes the session's gate.

The store's methods for zarr call these. What array objects may rely on is checked here (I6, `stale_arrays`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from threading import get_ident
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from txstore._native import chunks
from txstore.format.chunk_moves import ChunkMoves
from txstore.format.keys import is_document
from txstore.format.regions import Region
from txstore.history.snapshot import Snapshot
from txstore.segments.runs import Located
from txstore.sessions import zarr_operations
from txstore.sessions.session import Session
from txstore.sessions.zarr_operations import Finish, of_context
from txstore.transactions.transaction import Transaction

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Buffer


P = ParamSpec("P")
T = TypeVar("T")


def _call(method: Callable[Concatenate[SessionCalls, P], T]) -> Callable[Concatenate[SessionCalls, P], T]:
    """Let a method pass the session's gate. No such method calls another one."""
    return _through_the_gate(method, stages=False)


def _write(method: Callable[Concatenate[SessionCalls, P], T]) -> Callable[Concatenate[SessionCalls, P], T]:
    """Let a method that stages pass the session's gate."""
    return _through_the_gate(method, stages=True)


def _through_the_gate(
    method: Callable[Concatenate[SessionCalls, P], T], *, stages: bool
) -> Callable[Concatenate[SessionCalls, P], T]:
    @wraps(method)
    def through_the_gate(self: SessionCalls, /, *arguments: P.args, **named: P.kwargs) -> T:
        gate, me = self.session.gate, get_ident()
        try:
            gate.calls.add(me)
            if gate.is_closed:
                gate.wait_to_call()
            operation = of_context.get()
            if operation is not None and operation.has_failed:
                raise zarr_operations.late()
            if stages and operation is not None:
                operation.has_written = True
            elif stages and gate.may_be_unnoted:
                gate.note_write()
            if stages and self.session.may_count_by_operation:
                return self._in_operation(lambda: method(self, *arguments, **named))
            return method(self, *arguments, **named)
        finally:
            gate.calls.discard(me)
            if gate.is_closed:
                gate.tell()

    return through_the_gate


class SessionCalls:
    """The calls of zarr on one session. Safe in threads: each operation belongs to one transaction (`gate`)."""

    __slots__ = ("session",)

    def __init__(self, session: Session) -> None:
        self.session = session

    @property
    def _transaction(self) -> Transaction:
        current = self.session.current
        transaction = current.present  # on the hot paths
        return current.get() if transaction is None else transaction

    def _in_operation(self, call: Callable[[], T]) -> T:
        """Make a call as a part of its operation, or as an operation of its own if it belongs to none.

        At the end of each, what this process has staged is whole, if it stages into the transaction of another (I8).
        """
        transaction = self._transaction
        if not transaction.part.counts_by_operation:
            return call()
        end = transaction.lifecycle.end_operation
        operation = of_context.get()
        # A thread of the codec pipeline does not know its operation: it is one of those inside.
        of = [operation] if operation is not None else self.session.gate.inside()
        for each in of:
            if transaction.part.seals.begin_operation(each):
                finish = Finish(partial(end, each), self.session.engine.storage.dispatch)
                if not each.finish_with(finish):
                    end(each, True)  # the operation has ended already: this call came late
        if of:
            return call()
        own, has_failed = object(), True
        try:
            transaction.part.seals.begin_operation(own)
            result = call()
            has_failed = False
        finally:
            end(own, has_failed)
        return result

    # --- reading. Each method takes the transaction first: the check, and the read or write after it, must use the same
    # transaction, even while another thread commits.

    @_call
    def get_view(self, key: str) -> memoryview | None:
        """Return a value. Record a document as handed out. Raises `StaleArrayError`."""
        transaction = self._transaction
        if is_document(key):
            return self.session.held.read(key, transaction)
        if self.session.held.is_serializable:
            self.session.held.count_as_read(key, transaction)
        view = transaction.get_view(key)
        self.session.held.check_readable(key, transaction)  # only now: a read may learn of frames of other participants
        return view

    @_call
    def get_part(self, key: str, part: slice) -> memoryview | None:
        if is_document(key):
            view = self.session.held.read(key, self._transaction)
            return None if view is None else view[part]
        transaction = self._transaction
        if self.session.held.is_serializable:
            self.session.held.count_as_read(key, transaction)
        view = transaction.get_part(key, part)
        self.session.held.check_readable(key, transaction)
        return view

    @_call
    def locate(self, keys: Sequence[str]) -> Located | None:
        """Return where many chunks of the base lie, as `Snapshot.locate` does. Raises `StaleArrayError`."""
        transaction = self._transaction
        located = transaction.locate(keys)
        if not self.session.held.is_current(transaction):
            for key in keys:
                self.session.held.check_readable(key, transaction)
        return located

    @_call
    def is_foreign(self, key: str) -> bool:
        return self._transaction.staged.is_foreign(key)

    @_call
    def exists(self, key: str) -> bool:
        exists = key in self._transaction
        if not exists and is_document(key):
            self.session.held.note_absent(key, self._transaction)
        return exists

    # --- writing

    @_write
    def set(self, key: str, value: Buffer) -> None:
        """Stage a value for zarr. Raises `StaleArrayError`."""
        transaction = self._transaction
        self._check_writable(key, transaction)
        transaction.set(key, value)
        if is_document(key):
            self.session.held.note_written(key, transaction)

    @_write
    def set_chunks(self, keys: Sequence[str], batch: chunks.Batch, threads: int) -> list[int]:
        """Stage many chunks. Return the rows that the caller has to set one by one. Raises `StaleArrayError`."""
        transaction = self._transaction
        for key in keys:
            self._check_writable(key, transaction)
        return transaction.set_chunks(keys, batch, threads)

    @_write
    def modify(self, key: str, change: Callable[[memoryview | None], Buffer | None], region: Region) -> None:
        """Write a part of a chunk. Raises `StaleArrayError`."""
        transaction = self._transaction
        self._check_writable(key, transaction)
        transaction.modify(key, change, region)

    @_write
    def set_reference(
        self,
        key: str,
        url: str | os.PathLike[str],
        offset: int,
        length: int | None,
        *,
        size: int | None,
        version: str | None,
    ) -> None:
        """Stage a reference to a value in a file outside."""
        transaction = self._transaction
        self._check_writable(key, transaction)
        transaction.set_reference(key, url, offset, length, size=size, version=version)

    @_write
    def set_references(
        self, keys: Sequence[str], urls: Sequence[str], offsets: npt.ArrayLike, lengths: npt.ArrayLike
    ) -> None:
        """Stage many references."""
        transaction = self._transaction
        for key in keys:
            self._check_writable(key, transaction)
        transaction.set_references(keys, urls, offsets, lengths)

    @_write
    def delete(self, key: str) -> None:
        transaction = self._transaction
        self._check_writable(key, transaction)
        transaction.delete(key)
        if key in self.session.held.handed_out:
            self.session.held.hold(key, transaction)

    @_write
    def delete_dir(self, path: str) -> None:
        transaction = self._transaction
        transaction.delete_dir(path)
        self.session.held.replace_below(path, transaction)

    @_write
    def move(self, source: str, destination: str) -> None:
        """Move a node. Objects that were opened at its old path are stale afterwards."""
        transaction = self._transaction
        transaction.nodes.move(source, destination)
        self.session.held.move_below(source, destination)

    @_write
    def copy(self, source: str, destination: str, at: Snapshot | None) -> None:
        self._transaction.nodes.copy(source, destination, at)

    @_write
    def rely_on(self, keys: Iterable[str]) -> None:
        """Count keys as read, at any isolation."""
        transaction = self._transaction
        for key in keys:
            transaction.rely_on_base(key)

    @_write
    def move_chunks(self, moves: Mapping[str, ChunkMoves]) -> None:
        """Move the chunks below some paths by reference."""
        transaction = self._transaction
        transaction.nodes.move_chunks(moves)
        for path in moves:
            self.session.held.replace_below(path, transaction)

    @_write
    def restore(self, path: str, at: Snapshot) -> None:
        """Restore everything below a path. Objects whose documents change by that are stale afterwards."""
        transaction = self._transaction
        before = self.session.held.contents_below(path, transaction)
        transaction.nodes.restore(path, at)
        self.session.held.restore_below(before, transaction)

    def _check_writable(self, key: str, transaction: Transaction) -> None:
        held = self.session.held
        document = held.stale_for_write(key, transaction)
        if document is None:
            return
        error = held.error_of(document)
        # The operation may be half done: a resize deletes chunks first. If it has not begun, no rollback is needed: the
        # caller opens the array again and goes on.
        if held.is_of_older_transaction(document) or self.session.gate.has_begun_to_write():
            transaction.lifecycle.fail(error)
        elif (operation := of_context.get()) is not None:
            operation.refuse()
        raise error

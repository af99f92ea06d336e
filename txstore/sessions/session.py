"""Session: a series of successive transactions that array objects outlive, and what those objects may rely on (I6).

Array and group objects cache the metadata document that they were opened with. `append` writes a new document without
reading the present one, and chunks are coded by the cached one. So a session remembers which documents it handed out,
and when its base moves over a foreign change of one, it refuses what would silently corrupt the array.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial, wraps
from threading import get_ident
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from txstore import processes
from txstore._native import chunks
from txstore.commit import MAIN, Commit
from txstore.engine import Engine, Position
from txstore.errors import StaleArrayError, TransactionStateError, TxStoreError, UnequalLengthsWarning
from txstore.format.documents import (
    DocumentChange,
    compare_documents,
    drops_chunk,
    is_at_edge,
    is_node_document,
    may_be_array,
    moved_edges,
)
from txstore.format.keys import DOCUMENT_NAMES, ancestors, directory_prefix, document_key, is_document, node_of_document
from txstore.format.records import SERIALIZABLE, SNAPSHOT
from txstore.format.regions import Region
from txstore.history.snapshot import Snapshot
from txstore.segments.runs import Located, Runs
from txstore.sessions import operations
from txstore.sessions.gate import PATIENCE, Gate, busy
from txstore.sessions.left_behind import left_behind
from txstore.sessions.operations import Finish, of_context
from txstore.transactions.begin import check_description
from txstore.transactions.conflicts import Settle
from txstore.transactions.participants.chains import Link
from txstore.transactions.participants.membership import Held
from txstore.transactions.reads import check_isolation
from txstore.transactions.transaction import Transaction

if TYPE_CHECKING:
    from typing_extensions import Buffer


P = ParamSpec("P")
T = TypeVar("T")


def _call(method: Callable[Concatenate[Session, P], T]) -> Callable[Concatenate[Session, P], T]:
    """Make a method a call through the session's gate. No such method calls another."""
    return _through_the_gate(method, stages=False)


def _write(method: Callable[Concatenate[Session, P], T]) -> Callable[Concatenate[Session, P], T]:
    """Make a method that stages a call through the session's gate."""
    return _through_the_gate(method, stages=True)


def _through_the_gate(
    method: Callable[Concatenate[Session, P], T], *, stages: bool
) -> Callable[Concatenate[Session, P], T]:
    @wraps(method)
    def through_the_gate(self: Session, /, *arguments: P.args, **named: P.kwargs) -> T:
        gate, me = self.gate, get_ident()
        try:
            gate.calls.add(me)
            if gate.is_closed:
                gate.wait_to_call()
            operation = of_context.get()
            if operation is not None and operation.has_failed:
                raise operations.late()
            if stages and self._may_count_by_operation:
                return self._in_operation(lambda: method(self, *arguments, **named))
            return method(self, *arguments, **named)
        finally:
            gate.calls.discard(me)
            if gate.is_closed:
                gate.tell()

    return through_the_gate


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


class Joining(NamedTuple):
    """What a pickle says of the transaction that it was made in."""

    transaction: bytes
    repository_id: bytes
    seen: Mapping[int, int]  # by participant, the last frame that its sender has seen


class Session:
    """What a writable `TxStore` and its read-only copies share.

    Safe in threads: each operation is of one transaction, and a commit publishes whole operations (`gate`).
    """

    def __init__(
        self,
        engine: Engine,
        position: Position,
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Mapping[str, Any] | None = None,
        first: Transaction | None = None,
        joining: Joining | None = None,
        beside: Session | None = None,
        token: str | None = None,
        isolation: str = SNAPSHOT,
        settle_conflicts: Settle | None = None,
    ) -> None:
        """`first`: the transaction that is already open; `joining`: that of another process, to be joined.

        `beside`: a session that has joined it here, for other array objects.
        """
        check_description(message, properties)
        check_isolation(isolation)
        self.engine = engine
        self.branch = branch
        self.message = message
        self.properties = properties
        self.settle_conflicts = settle_conflicts
        self.isolation = isolation if first is None else first.isolation
        self._is_serializable = self.isolation == SERIALIZABLE
        self.position = position
        self.token = token or os.urandom(16).hex()  # by which a pickle finds it again
        self.depth = 0  # of nested `with` blocks of this process
        self.is_block = False  # it is for one `with` block of a participant
        self._may_count_by_operation = joining is not None  # see `Part.counts_by_operation`
        self.may_fork = first is not None  # children that it forks stage into its transaction, used by then or not
        self._process = os.getpid()
        self._joining = joining
        self._beside: Session | None = beside if beside is None else beside._beside or beside
        self._transaction = first
        self.ended: str | None = None
        self.unchanged = False  # whether the last commit has changed nothing
        self._has_ended_one = False  # a transaction, within a block
        self._handed_out: Held = {}
        self._stale: dict[str, _Stale] = {}  # by commits of others
        # By other participants of one transaction, or other stores that stage into it here, until they are read again.
        # What was looked at counts as handed out.
        self._overtaken: dict[str, _Stale] = {}
        self._learned = 0  # how many of the transaction's news were looked at; -1: everything is to be
        self._knowing = processes.new_lock()  # of these
        self._moved_to: dict[str, str] = {}  # of documents that this transaction has moved: the keys that they have now
        self._cleared: dict[str, _Stale] = {}  # what was stale below a path that this transaction has cleared
        self._unread: dict[str, bool] = {}  # staged documents that a rollback dropped; True: there may be chunks
        self.gate = Gate(self._writes)
        self._lock = processes.new_rlock()  # of the transaction that is open. No thread waits for zarr's loop with it
        operations.expect()
        processes.watch(self)
        processes.watch_before(self)

    def before_fork(self) -> None:
        if (self.depth or self.may_fork) and self.ended is None and self._joining is None:
            with suppress(OSError, TxStoreError):  # the child is told if it writes
                self.transaction.share()

    def after_fork_in_child(self) -> None:
        self.depth = 0  # the `with` blocks are the parent's
        self._may_count_by_operation = True
        self.gate = Gate(self._writes)  # and so are the threads inside
        self._learned = -1

    # --- the present transaction

    @property
    def transaction(self) -> Transaction:
        """The transaction that is open. It begins at the first use."""
        transaction = self._transaction
        return transaction if transaction is not None else self._begin()

    def _begin(self) -> Transaction:
        with self._lock:
            if self.ended is not None:
                raise TransactionStateError(self.ended, state="ended")
            if self._transaction is None and self._joining is not None:
                self._transaction = self._join(self._joining)
            elif self._transaction is None:
                base = self.position.snapshot()
                self._transaction = self.engine.begin(
                    base,
                    branch=self.branch,
                    message=self.message,
                    properties=self.properties,
                    isolation=self.isolation,
                    settle_conflicts=self.settle_conflicts,
                )
                self.position = self.position.held_by(self._transaction.base)  # which it lets go of when it fails
            return self._transaction

    def _join(self, joining: Joining) -> Transaction:
        transaction = None if self._beside is None else self._beside.transaction
        if transaction is None or transaction.shared_id != joining.transaction or transaction.state != "open":
            transaction = self.engine.join(joining.transaction, joining.repository_id, block=self.is_block)
        transaction.members.see(joining.seen)
        transaction.members.rely_on(self._handed_out)
        self._learned = -1
        self.position = Position.of(self.engine, transaction.base, self.branch)
        return transaction

    @_call
    def share(self) -> Joining | None:
        """Let processes that unpickle this stage into its transaction; None if there is no repository yet."""
        if self.ended is not None:
            return None
        if self._joining is not None and self._transaction is None:
            return self._joining
        with self._lock:
            shared = self.transaction.share()
            if shared is None:
                return None
            return Joining(shared, self.engine.commits.identity.id, self.transaction.part.seen())

    def stages_into(self, joining: Joining | None) -> bool:
        """Tell whether a pickle that says `joining` is of this session, and of the transaction that it has here."""
        if joining is None or (self._joining is None and self._process == os.getpid()):
            return True
        transaction = self._transaction
        if transaction is not None and transaction.state == "failed" and transaction.is_participant:
            return False  # what it has staged is given up: who is sent the store again begins anew
        here = transaction.shared_id if transaction is not None else self._joining and self._joining.transaction
        return here == joining.transaction

    def knows(self, joining: Joining | None, reliance: Reliance) -> bool:
        """Tell whether a pickle of the same transaction says nothing that this session does not know.

        Array objects that come with it may know more, or hold other documents, than those of this session.
        """
        if joining is None or (self._joining is None and self._process == os.getpid() and not self.is_named):
            return True
        transaction = self._transaction
        if transaction is None:
            has_seen = self._joining is not None and self._joining.seen == joining.seen
        else:
            has_seen = transaction.members.has_seen(joining.seen)
        return has_seen and self.reliance.covers(reliance)

    @property
    def is_participant(self) -> bool:
        """Whether the transaction is one that another process has begun, and will end."""
        if self._transaction is None:
            return self._joining is not None
        return self._transaction.is_participant

    @property
    def is_named(self) -> bool:
        return self._transaction is not None and self._transaction.is_named

    def for_block(self) -> Session:
        """Return the session that a `with` block is to use: in a participant one for that block alone.

        What fails in it is given up with it, and with nothing else, so that it can be tried again.
        """
        if not self.is_participant or (self.is_block and self.depth) or not self.transaction.is_participant:
            return self
        block = Session(
            self.engine,
            self.position,
            branch=self.branch,
            message=self.message,
            properties=self.properties,
            joining=self.share(),
            token=self.token,
            isolation=self.isolation,
        )
        block.rely_on(self.reliance)
        block.is_block = True
        return block

    def leave_block(self, *, complete: bool) -> None:
        """Leave a block of a participant: its part is sealed, or given up. Then this session is used no more."""
        with self.gate.shut():
            try:
                if complete and not self.gate.close():
                    raise busy()
            except BaseException:
                complete = False
                raise
            finally:
                if self._transaction is not None:
                    self._transaction.leave_block(complete=complete)

    def enter(self) -> None:
        """Enter a `with` block. Raises `TransactionStateError` if a transaction with a name has ended by now."""
        if self.depth == 0 and self.is_named and self._transaction is not None:
            self._transaction.enter()
        self.depth += 1

    def leave(self, *, complete: bool) -> None:
        """Leave a `with` block of a transaction that goes on without this process."""
        transaction = self._transaction
        if transaction is None:
            return
        with self.gate.shut():
            if (complete or self.is_named) and not self.gate.close():
                raise busy()
            if self.is_named:
                transaction.leave()
            elif complete:
                transaction.seal()
            else:
                self.fail("a `with` block was left by an exception")

    def fail(self, reason: str) -> None:
        """Let nothing be committed before a rollback."""
        if self._transaction is not None:
            self._transaction.fail(TransactionStateError(reason, state="failed"))

    @property
    def staged_count(self) -> int:
        return 0 if self._transaction is None else self._transaction.staged_count

    @property
    def version(self) -> Hashable:
        """What tells what is staged from what was staged before, also where the keys are the same; None: nothing is."""
        return None if self._transaction is None else self._transaction.version

    @property
    def reliance(self) -> Reliance:
        """What a pickle carries, so that array objects unpickled elsewhere are checked as they are here."""
        with self._knowing:
            return Reliance(dict(self._handed_out), dict(self._stale), dict(self._overtaken), dict(self._unread))

    def rely_on(self, reliance: Reliance) -> None:
        handed_out, self._stale, self._overtaken, self._unread = reliance
        # Of a transaction that this does not join, no frames are known.
        self._handed_out = handed_out if self._joining is not None else dict.fromkeys(handed_out)

    # --- operations

    def _in_operation(self, call: Callable[[], T]) -> T:
        """Make a call as a part of its operation; as an operation of its own if it belongs to none.

        At the end of each, what this process has staged is whole, if it stages into the transaction of another (I8).
        """
        transaction = self.transaction
        if not transaction.part.counts_by_operation:
            return call()
        operation = of_context.get()
        # A thread of the codec pipeline does not know its operation: it is one of those inside.
        of = [operation] if operation is not None else self.gate.inside()
        for each in of:
            if transaction.part.seals.begin_operation(each):
                finish = Finish(partial(transaction.end_operation, each), self.engine.storage.dispatch)
                if not each.finish_with(finish):
                    transaction.end_operation(each, True)  # it has ended, and this is what is left of it
        if of:
            return call()
        own, has_failed = object(), True
        try:
            transaction.part.seals.begin_operation(own)
            result = call()
            has_failed = False
        finally:
            transaction.end_operation(own, has_failed)
        return result

    # --- reading. The transaction is taken first: what is checked, and what is then read or written, must be of one
    # transaction, also while another thread commits.

    @_call
    def get_view(self, key: str) -> memoryview | None:
        """Return a value; remember that a document was handed out. Raises `StaleArrayError`."""
        transaction = self.transaction
        if is_document(key):
            return self._hand_out(key, transaction)
        if self._is_serializable:
            self._rely_on_documents(key, transaction)
        view = transaction.get_view(key)
        # Only now: who reads may learn what others have staged.
        if len(transaction.members.staged.news) != self._learned or self._stale or self._unread or self._overtaken:
            self._check_readable(key, transaction)
        return view

    @_call
    def get_part(self, key: str, part: slice) -> memoryview | None:
        if is_document(key):
            view = self._hand_out(key, self.transaction)
            return None if view is None else view[part]
        transaction = self.transaction
        if self._is_serializable:
            self._rely_on_documents(key, transaction)
        view = transaction.get_part(key, part)
        if len(transaction.members.staged.news) != self._learned or self._stale or self._unread or self._overtaken:
            self._check_readable(key, transaction)
        return view

    @_call
    def locate(self, keys: Sequence[str]) -> Located | None:
        """Return where the base has the chunks of many keys, as `Snapshot.locate` does. Raises `StaleArrayError`."""
        transaction = self.transaction
        located = transaction.locate(keys)
        if len(transaction.members.staged.news) != self._learned or self._stale or self._unread or self._overtaken:
            for key in keys:
                self._check_readable(key, transaction)
        return located

    @_call
    def is_foreign(self, key: str) -> bool:
        return self.transaction.staged.is_foreign(key)

    def _hand_out(self, key: str, transaction: Transaction) -> memoryview | None:
        known = key in self._handed_out
        self._handed_out.setdefault(key, None)  # before it is read: a commit in another thread must not overlook it
        link, view = _read(transaction, key)
        # Who opens a node asks for all the names that its documents may have, and may have read the one that is there
        # before a rollback: so what is absent says nothing of the others.
        self._forget_unread(key, of_node=view is not None and is_node_document(key))
        # Absence is nothing that an array object could rely on, but that of attributes is: it holds none.
        if view is None and not known and not key.endswith(".zattrs"):
            with self._knowing:
                self._handed_out.pop(key, None)
                self._overtaken.pop(key, None)
        else:
            self._hold(key, link, transaction)
        return view

    def _hold(self, key: str, link: Link | None, transaction: Transaction) -> None:
        """Note which version of a document array objects hold from now on."""
        with self._knowing:
            self._handed_out[key] = link
            self._overtaken.pop(key, None)
            self._moved_to.pop(key, None)
            self._look_at_locked(key, transaction)  # another thread may have learned more, and looked at it already

    @_call
    def exists(self, key: str) -> bool:
        exists = key in self.transaction
        if not exists and is_document(key):  # a caller that looks before it creates a node does not rely on an old one
            self._forget_unread(key, of_node=True)
            if key in self._overtaken:
                self._hold(key, self.transaction.members.staged.present(key), self.transaction)
        return exists

    def _rely_on_documents(self, key: str, transaction: Transaction) -> None:
        """Count as read what array objects know of the nodes above a key, perhaps from an earlier transaction."""
        for path in ancestors(key):
            for name in DOCUMENT_NAMES:
                document = document_key(path, name)
                if document in self._handed_out:
                    transaction.rely_on_base(document)

    def _forget_unread(self, key: str, *, of_node: bool) -> None:
        """Count a document as read again, or all those of its node."""
        if self._unread:
            node = node_of_document(key)
            for each in [document_key(node, name) for name in DOCUMENT_NAMES] if of_node else [key]:
                self._unread.pop(each, None)

    # --- writing

    @_write
    def set(self, key: str, value: Buffer) -> None:
        """Stage a value for zarr. Raises `StaleArrayError`."""
        transaction = self.transaction
        self._check_writable(key, transaction)
        transaction.set(key, value)
        if is_document(key):
            link = transaction.members.staged.present(key)
            if transaction.members.is_own(link):
                self._hold(key, link, transaction)

    @_write
    def set_chunks(self, keys: Sequence[str], batch: chunks.Batch, threads: int) -> list[int]:
        """Stage many chunks; return which have to be set one by one. Raises `StaleArrayError`."""
        transaction = self.transaction
        for key in keys:
            self._check_writable(key, transaction)
        return transaction.set_chunks(keys, batch, threads)

    @_write
    def modify(self, key: str, change: Callable[[memoryview | None], Buffer | None], region: Region) -> None:
        """Write a part of a chunk. Raises `StaleArrayError`."""
        transaction = self.transaction
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
        """Stage a value that lies in a file outside, for zarr to read."""
        transaction = self.transaction
        self._check_writable(key, transaction)
        transaction.set_reference(key, url, offset, length, size=size, version=version)

    @_write
    def delete(self, key: str) -> None:
        transaction = self.transaction
        self._check_writable(key, transaction)
        transaction.delete(key)
        if key in self._handed_out:
            self._hold(key, transaction.members.staged.present(key), transaction)

    @_write
    def delete_dir(self, path: str) -> None:
        transaction = self.transaction
        transaction.delete_dir(path)
        # A caller that clears a node means to replace it, whatever it has become.
        prefix = directory_prefix(path)
        for key in [key for key in list(self._handed_out) if key.startswith(prefix)]:
            self._hold(key, transaction.members.staged.present(key), transaction)
        if self._stale or self._unread:
            self._cleared |= {key: stale for key, stale in self._stale.items() if key.startswith(prefix)}
            self._stale = {key: stale for key, stale in self._stale.items() if not key.startswith(prefix)}
            self._unread = {key: kind for key, kind in self._unread.items() if not key.startswith(prefix)}

    @_write
    def move(self, source: str, destination: str) -> None:
        """Move a node. What was opened where it was is stale from now on."""
        transaction = self.transaction
        transaction.move(source, destination)
        prefix = directory_prefix(source)
        with self._knowing:
            for key in [key for key in list(self._handed_out) if key.startswith(prefix)]:
                self._overtaken[key] = _UNREADABLE
                self._moved_to[key] = directory_prefix(destination) + key[len(prefix) :]

    @_write
    def copy(self, source: str, destination: str, at: Snapshot | None) -> None:
        self.transaction.copy(source, destination, at)

    @_write
    def restore(self, path: str, at: Snapshot) -> None:
        """Restore what is below a path. What was opened there is stale where it is another by that."""
        transaction = self.transaction
        prefix = directory_prefix(path)
        held = {key: _peek(transaction, key) for key in list(self._handed_out) if key.startswith(prefix)}
        transaction.restore(path, at)
        with self._knowing:
            for key, before in held.items():
                self._handed_out[key] = transaction.members.staged.present(key)
                noted = _difference(key, before, _peek(transaction, key))
                if noted is not None:
                    self._overtaken[key] = noted

    def _check_writable(self, key: str, transaction: Transaction) -> None:
        if self._is_serializable:
            self._rely_on_documents(key, transaction)
        if len(transaction.members.staged.news) == self._learned and not (
            self._stale or self._unread or self._overtaken
        ):
            return
        self._learn(transaction)
        if is_document(key) and (key in self._stale or key in self._unread or key in self._overtaken):
            document: str | None = key
        else:
            document = self._stale_above(key, writing=True)
        if document is None:
            return
        error = self._stale_error(document)
        # The operation may be half done: a resize deletes chunks first. If it has not begun, what other participants
        # do need not be rolled back for it: the array is opened again, and the work goes on.
        if document in self._stale or document in self._unread or self.gate.has_begun_to_write():
            transaction.fail(error)
        elif (operation := of_context.get()) is not None:
            operation.refuse()
        raise error

    def _check_readable(self, key: str, transaction: Transaction) -> None:
        self._learn(transaction)
        document = self._stale_above(key)
        if document is not None:
            raise self._stale_error(document)

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

    def _stale_error(self, document: str) -> StaleArrayError:
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

    # --- what was changed elsewhere in the transaction

    @property
    def holds_newest(self) -> bool:
        """Whether array objects are known to hold the newest documents."""
        transaction = self._transaction
        return not self._overtaken and (transaction is None or len(transaction.members.staged.news) == self._learned)

    def _learn(self, transaction: Transaction) -> None:
        """Look at the documents that were changed since they were handed out."""
        if len(transaction.members.staged.news) == self._learned:
            return
        with self._knowing:
            news = transaction.members.staged.news
            start, stop = self._learned, len(news)
            keys: set[str] = set(self._handed_out) if start < 0 else set()
            for changed in news[max(start, 0) : stop]:
                if is_document(changed):
                    keys.add(changed)
                else:
                    keys.update(key for key in list(self._handed_out) if key.startswith(changed))
            for key in keys:
                self._look_at_locked(key, transaction)
            self._learned = stop  # last: no thread goes on meanwhile

    def _look_at_locked(self, key: str, transaction: Transaction) -> None:
        """Note how a document differs from what array objects hold; `_move` does so of what was committed."""
        if key not in self._handed_out:
            return
        known, present = self._handed_out[key], transaction.members.staged.present(key)
        if present == known:
            return
        self._handed_out[key] = present
        noted = _compare_links(key, transaction, known, present)
        if noted is not None:
            stale = self._overtaken.get(key)
            self._overtaken[key] = noted if stale is None else stale.then(noted)

    def _writes(self) -> int:
        transaction = self._transaction if self._beside is None else self._transaction or self._beside._transaction
        return 0 if transaction is None else transaction.writes

    # --- from one transaction to the next

    def commit(self, message: str | None = None, *, allow_lost: bool = False, at_end: bool = False) -> Commit | None:
        """Commit what is staged; the next transaction is based on the new commit. None if there is no new one.

        `at_end`: of a block, which needs no further commit for its message if it has made one.
        """
        with self.gate.shut():
            if not self.gate.close():
                raise busy()
            ended = self.transaction
            old = ended.base
            ended.members.follow_others()
            self._learn(ended)
            self._warn_of_left_behind(ended)
            ended.needs_change = at_end and self._has_ended_one
            made = ended.commit(message, allow_lost=allow_lost)
            if made is not None or not ended.needs_change:
                self.unchanged = ended.unchanged
            self._has_ended_one |= made is not None
            self._learn(ended)  # of what came last; it raises nothing
            self._cleared = {}
            new = old if made is None else made
            self._move(old, new, own=new.seq, settled=ended.settled)  # raises nothing: the commit is made
            if ended.is_named:
                self.ended = "this transaction was committed: begin a new one with repo.transaction()"
            return None if made is None else made.commit

    def _warn_of_left_behind(self, transaction: Transaction) -> None:
        """Warn if an array has grown along a dimension, and another that array objects hold has not.

        Says nothing of a transaction that has ended: its commit raises `TransactionStateError`.
        """
        if transaction.state != "open":
            return
        staged = transaction.members.staged
        documents = {key: staged.present(key) for key in list(self._handed_out) if is_node_document(key)}
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

    def rollback(self) -> None:
        """Drop what is staged; the next transaction is based on the head."""
        with self.gate.shut():
            ended = self.transaction
            is_closed = self.gate.close(PATIENCE)
            documents = self._staged_documents(ended)
            trusted = self._unread, self._stale
            try:
                # An interrupt may come as soon as it is rolled back, and a call that is late may read until then.
                self._distrust(documents)
                ended.rollback()  # late writes fail from now on, and so are soon done
            except BaseException:
                if ended.state == "open":  # it was refused, or has not begun: all is there as it was
                    self._unread, self._stale = trusted
                raise
            self._has_ended_one = True
            self._distrust(documents)
            self._cleared = {}
            if ended.is_named:
                self.ended = "this transaction was rolled back: begin a new one with repo.transaction()"
            if not is_closed and not self.gate.close():
                raise busy()
            self._move(ended.base, self.engine.newest(self.branch))

    def _distrust(self, documents: Mapping[str, bool]) -> None:
        """Refuse the array objects that hold what a rollback drops, until they are opened again."""
        self._unread = {**self._unread, **documents}
        self._stale = {**self._stale, **self._cleared}

    def _staged_documents(self, transaction: Transaction) -> dict[str, bool]:
        """Return the documents that a rollback will drop, and of each whether there may be chunks below it."""
        changes = transaction.changes()
        below = tuple(directory_prefix(path) for path in changes["deleted_below"] + changes["reflinked"])
        documents = {key for key in changes["set"] + changes["deleted"] if is_document(key)}
        documents |= {key for key in list(self._handed_out) if key.startswith(below)}
        return {key: any(_may_be_array(view, key) for view in (transaction, transaction.base)) for key in documents}

    def end(self, reason: str) -> None:
        """Roll back and end the session: whatever is used of it from now on raises `TransactionStateError`."""
        with self.gate.shut():
            with self._lock:
                self.ended = reason
                transaction = self._transaction
            if transaction is not None and not transaction.is_named:
                transaction.rollback()
            self._transaction = None
            self.position.let_go()

    def _move(self, old: Snapshot, new: Snapshot, *, own: int | None = None, settled: Collection[str] = ()) -> None:
        """Base the next transaction on `new`, and note which documents somebody else has changed since `old`.

        `own` is the seq of the commit that this session has made, in which `settled` keys are partly what somebody else
        has made of them. The gate is closed meanwhile.
        """
        stale = dict(self._stale)
        recent = _newer(new, old.seq)
        for key in list(self._handed_out) if new.seq > old.seq else ():
            noted = _compare(key, old, new, recent, None if key in settled else own)
            if noted is not None:
                stale[key] = stale[key].then(noted) if key in stale else noted
        self._stale = stale
        with self._knowing:
            self._handed_out = dict.fromkeys(self._handed_out)
            self._learned = 0
        with self._lock:
            self._transaction, self.position = None, Position.of(self.engine, new, self.branch)


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

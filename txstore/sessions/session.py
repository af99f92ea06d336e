"""Runs the transactions of one store, one after the other. Array objects outlive them.

Each call of zarr is of one transaction. What array objects may rely on from one to the next: `stale_arrays` (I6).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import partial, wraps
from threading import get_ident
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from txstore import processes
from txstore._native import chunks
from txstore.commit import MAIN, Commit
from txstore.engine import Engine, Position
from txstore.errors import TransactionStateError, TxStoreError
from txstore.format.keys import is_document
from txstore.format.records import SERIALIZABLE, SNAPSHOT
from txstore.format.regions import Region
from txstore.history.snapshot import Snapshot
from txstore.segments.runs import Located
from txstore.sessions import operations
from txstore.sessions.gate import PATIENCE, Gate, busy
from txstore.sessions.operations import Finish, of_context
from txstore.sessions.stale_arrays import HeldDocuments, Reliance
from txstore.transactions.begin import check_description
from txstore.transactions.conflicts import Settle
from txstore.transactions.reads import check_isolation
from txstore.transactions.transaction import Transaction

if TYPE_CHECKING:
    from typing_extensions import Buffer


P = ParamSpec("P")
T = TypeVar("T")


def _call(method: Callable[Concatenate[Session, P], T]) -> Callable[Concatenate[Session, P], T]:
    """Let a method pass the session's gate. No such method calls another one."""
    return _through_the_gate(method, stages=False)


def _write(method: Callable[Concatenate[Session, P], T]) -> Callable[Concatenate[Session, P], T]:
    """Let a method that stages pass the session's gate."""
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
            if stages:
                gate.note_write(operation)
            if stages and self._may_count_by_operation:
                return self._in_operation(lambda: method(self, *arguments, **named))
            return method(self, *arguments, **named)
        finally:
            gate.calls.discard(me)
            if gate.is_closed:
                gate.tell()

    return through_the_gate


class Joining(NamedTuple):
    """The transaction that a pickle was made in."""

    transaction: bytes
    repository_id: bytes
    seen: Mapping[int, int]  # for each participant, the last frame that the sender saw


class Session:
    """The state that a writable `TxStore` and its read-only copies share.

    Safe in threads: each operation belongs to one transaction, and a commit publishes whole operations (`gate`).
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
        """`first`: a transaction that is already open. `joining`: another process's transaction, which this one joins.

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
        self.token = token or os.urandom(16).hex()  # identifies this session in pickles
        self.depth = 0  # nesting of this process's `with` blocks
        self.is_block = False  # this session serves one `with` block of a participant
        self._may_count_by_operation = joining is not None  # see `Part.counts_by_operation`
        self.may_fork = first is not None  # forked children stage into its transaction, even one without writes so far
        self._process = os.getpid()
        self._joining = joining
        self._beside: Session | None = beside if beside is None else beside._beside or beside
        self._transaction = first
        self.ended: str | None = None
        self.unchanged = False  # the last commit changed no value
        self._has_ended_one = False  # a transaction has ended within this block
        self.held = HeldDocuments(is_serializable=self._is_serializable)
        self.gate = Gate(self._writes, self.fail)
        self._lock = processes.new_rlock()  # guards the open transaction. No thread that holds it waits for zarr's loop
        operations.expect()
        processes.watch(self)
        processes.watch_before(self)

    def before_fork(self) -> None:
        if (self.depth or self.may_fork) and self.ended is None and self._joining is None:
            with suppress(OSError, TxStoreError):  # if the child writes, it gets an error that says so
                self.transaction.share()

    def after_fork_in_child(self) -> None:
        self.depth = 0  # the `with` blocks belong to the parent
        self._may_count_by_operation = True
        self.gate = Gate(self._writes, self.fail)  # and so do the threads inside
        self.held.look_at_all()

    # --- the present transaction

    @property
    def transaction(self) -> Transaction:
        """The open transaction. It begins at the first use."""
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
                # The transaction releases its base when it fails.
                self.position = self.position.held_by(self._transaction.base)
            return self._transaction

    def _join(self, joining: Joining) -> Transaction:
        transaction = None if self._beside is None else self._beside.transaction
        if transaction is None or transaction.shared_id != joining.transaction or transaction.state != "open":
            transaction = self.engine.join(joining.transaction, joining.repository_id, block=self.is_block)
        transaction.members.see(joining.seen)
        transaction.members.rely_on(self.held.handed_out)
        self.held.look_at_all()
        self.position = Position.of(self.engine, transaction.base, self.branch)
        return transaction

    @_call
    def share(self) -> Joining | None:
        """Let processes that unpickle this store stage into its transaction. None if there is no repository yet."""
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
        """Tell whether a pickle with `joining` was made by this session in its present transaction."""
        if joining is None or (self._joining is None and self._process == os.getpid()):
            return True
        transaction = self._transaction
        if transaction is not None and transaction.state == "failed" and transaction.members.is_participant:
            return False  # its part is aborted: a store that is sent again joins anew
        here = transaction.shared_id if transaction is not None else self._joining and self._joining.transaction
        return here == joining.transaction

    def knows(self, joining: Joining | None, reliance: Reliance) -> bool:
        """Tell whether this session knows everything that a pickle of the same transaction says.

        The pickle's array objects may know more, or hold other documents, than those of this session.
        """
        if joining is None or (self._joining is None and self._process == os.getpid() and not self.is_named):
            return True
        transaction = self._transaction
        if transaction is None:
            has_seen = self._joining is not None and self._joining.seen == joining.seen
        else:
            has_seen = transaction.members.has_seen(joining.seen)
        return has_seen and self.held.reliance.covers(reliance)

    @property
    def is_participant(self) -> bool:
        """Whether another process has begun the transaction, and will end it."""
        if self._transaction is None:
            return self._joining is not None
        return self._transaction.members.is_participant

    @property
    def is_named(self) -> bool:
        return self._transaction is not None and self._transaction.members.is_named

    def for_block(self) -> Session:
        """Return the session for a `with` block: in a participant, a new one for that block alone.

        If something fails in the block, only the block's writes are aborted, so that it can be tried again.
        """
        if not self.is_participant or (self.is_block and self.depth) or not self.transaction.members.is_participant:
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
        block.rely_on(self.held.reliance)
        block.is_block = True
        return block

    def leave_block(self, *, complete: bool) -> None:
        """Leave a block of a participant: seal its part, or give it up. Afterwards this session is not used again."""
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
        """Enter a `with` block. Raises `TransactionStateError` if a named transaction has ended meanwhile."""
        if self.depth == 0 and self.is_named and self._transaction is not None:
            self._transaction.enter()
        self.depth += 1

    def leave(self, *, complete: bool) -> None:
        """Leave a `with` block. The transaction goes on without this process."""
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
        """Fail the transaction: it can't be committed before a rollback."""
        if self._transaction is not None:
            self._transaction.lifecycle.fail(TransactionStateError(reason, state="failed"))

    @property
    def staged_count(self) -> int:
        return 0 if self._transaction is None else self._transaction.staged_count

    @property
    def version(self) -> Hashable:
        """A value that changes whenever the staged writes change, even for the same keys. None if nothing is staged."""
        return None if self._transaction is None else self._transaction.version

    def rely_on(self, reliance: Reliance) -> None:
        """Check the array objects of a pickle as the session that made it would."""
        self.held.rely_on(reliance, knows_frames=self._joining is not None)

    @property
    def holds_newest(self) -> bool:
        """Whether array objects are known to hold the newest documents."""
        return self.held.are_newest(self._transaction)

    # --- operations

    def _in_operation(self, call: Callable[[], T]) -> T:
        """Make a call as a part of its operation, or as an operation of its own if it belongs to none.

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
                    transaction.end_operation(each, True)  # the operation has ended already: this call came late
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

    # --- reading. Each method takes the transaction first: the check, and the read or write after it, must use the same
    # transaction, even while another thread commits.

    @_call
    def get_view(self, key: str) -> memoryview | None:
        """Return a value. Record a document as handed out. Raises `StaleArrayError`."""
        transaction = self.transaction
        if is_document(key):
            return self.held.read(key, transaction)
        if self._is_serializable:
            self.held.count_as_read(key, transaction)
        view = transaction.get_view(key)
        self.held.check_readable(key, transaction)  # only now: a read may learn of frames of other participants
        return view

    @_call
    def get_part(self, key: str, part: slice) -> memoryview | None:
        if is_document(key):
            view = self.held.read(key, self.transaction)
            return None if view is None else view[part]
        transaction = self.transaction
        if self._is_serializable:
            self.held.count_as_read(key, transaction)
        view = transaction.get_part(key, part)
        self.held.check_readable(key, transaction)
        return view

    @_call
    def locate(self, keys: Sequence[str]) -> Located | None:
        """Return where many chunks of the base lie, as `Snapshot.locate` does. Raises `StaleArrayError`."""
        transaction = self.transaction
        located = transaction.locate(keys)
        if not self.held.is_current(transaction):
            for key in keys:
                self.held.check_readable(key, transaction)
        return located

    @_call
    def is_foreign(self, key: str) -> bool:
        return self.transaction.staged.is_foreign(key)

    @_call
    def exists(self, key: str) -> bool:
        exists = key in self.transaction
        if not exists and is_document(key):
            self.held.note_absent(key, self.transaction)
        return exists

    # --- writing

    @_write
    def set(self, key: str, value: Buffer) -> None:
        """Stage a value for zarr. Raises `StaleArrayError`."""
        transaction = self.transaction
        self._check_writable(key, transaction)
        transaction.set(key, value)
        if is_document(key):
            self.held.note_written(key, transaction)

    @_write
    def set_chunks(self, keys: Sequence[str], batch: chunks.Batch, threads: int) -> list[int]:
        """Stage many chunks. Return the rows that the caller has to set one by one. Raises `StaleArrayError`."""
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
        """Stage a reference to a value in a file outside."""
        transaction = self.transaction
        self._check_writable(key, transaction)
        transaction.set_reference(key, url, offset, length, size=size, version=version)

    @_write
    def delete(self, key: str) -> None:
        transaction = self.transaction
        self._check_writable(key, transaction)
        transaction.delete(key)
        if key in self.held.handed_out:
            self.held.hold(key, transaction)

    @_write
    def delete_dir(self, path: str) -> None:
        transaction = self.transaction
        transaction.delete_dir(path)
        self.held.replace_below(path, transaction)

    @_write
    def move(self, source: str, destination: str) -> None:
        """Move a node. Objects that were opened at its old path are stale afterwards."""
        transaction = self.transaction
        transaction.move(source, destination)
        self.held.move_below(source, destination)

    @_write
    def copy(self, source: str, destination: str, at: Snapshot | None) -> None:
        self.transaction.copy(source, destination, at)

    @_write
    def restore(self, path: str, at: Snapshot) -> None:
        """Restore everything below a path. Objects whose documents change by that are stale afterwards."""
        transaction = self.transaction
        before = self.held.contents_below(path, transaction)
        transaction.restore(path, at)
        self.held.restore_below(before, transaction)

    def _check_writable(self, key: str, transaction: Transaction) -> None:
        document = self.held.stale_for_write(key, transaction)
        if document is None:
            return
        error = self.held.error_of(document)
        # The operation may be half done: a resize deletes chunks first. If it has not begun, no rollback is needed: the
        # caller opens the array again and goes on.
        if self.held.is_of_older_transaction(document) or self.gate.has_begun_to_write():
            transaction.lifecycle.fail(error)
        elif (operation := of_context.get()) is not None:
            operation.refuse()
        raise error

    def _writes(self) -> int:
        transaction = self._transaction if self._beside is None else self._transaction or self._beside._transaction
        return 0 if transaction is None else transaction.lifecycle.writes

    # --- from one transaction to the next

    def commit(self, message: str | None = None, *, allow_lost: bool = False, at_end: bool = False) -> Commit | None:
        """Commit the staged writes, and base the next transaction on the new commit. None if there is no new commit.

        `at_end`: the block ends. It needs no further commit for its message if it has made one.
        """
        with self.gate.shut():
            if not self.gate.close():
                raise busy()
            ended = self.transaction
            old = ended.base
            ended.members.follow_others()
            self.held.learn(ended)
            self.held.warn_of_left_behind(ended)
            ended.ending.needs_change = at_end and self._has_ended_one
            made = ended.commit(message, allow_lost=allow_lost)
            if made is not None or not ended.ending.needs_change:
                self.unchanged = ended.unchanged
            self._has_ended_one |= made is not None
            self.held.learn(ended)  # of the last changes; this raises nothing
            self.held.forget_cleared()
            new = old if made is None else made
            self._move(old, new, own=new.seq, settled=ended.ending.settled)  # this raises nothing: the commit is made
            if ended.members.is_named:
                self.ended = "this transaction was committed: begin a new one with repo.transaction()"
            return None if made is None else made.commit

    def rollback(self) -> None:
        """Drop the staged writes, and base the next transaction on the head."""
        with self.gate.shut():
            ended = self.transaction
            is_closed = self.gate.close(PATIENCE)
            documents = self.held.staged_in(ended)
            distrusted = self.held.distrusted
            try:
                # An interrupt may come as soon as it is rolled back, and a call that is late may read until then.
                self.held.distrust(documents)
                ended.rollback()  # late writes fail from now on, so this soon ends
            except BaseException:
                if ended.state == "open":  # the rollback was refused, or has not begun: nothing has changed
                    self.held.restore_trust(distrusted)
                raise
            self._has_ended_one = True
            self.held.distrust(documents)
            self.held.forget_cleared()
            if ended.members.is_named:
                self.ended = "this transaction was rolled back: begin a new one with repo.transaction()"
            if not is_closed and not self.gate.close():
                raise busy()
            self._move(ended.base, self.engine.newest(self.branch))

    def end(self, reason: str) -> None:
        """Roll back and end the session: each later use raises `TransactionStateError`."""
        with self.gate.shut():
            with self._lock:
                self.ended = reason
                transaction = self._transaction
            if transaction is not None and not transaction.members.is_named:
                transaction.rollback()
            self._transaction = None
            self.position.let_go()

    def _move(self, old: Snapshot, new: Snapshot, *, own: int | None = None, settled: Collection[str] = ()) -> None:
        """Base the next transaction on `new`, and record the documents that other commits have changed since `old`.

        `own` is the seq of this session's own commit. In it, `settled` keys partly hold what other commits wrote. The
        gate is closed meanwhile.
        """
        self.held.move_on(old, new, own=own, settled=settled)
        with self._lock:
            self._transaction, self.position = None, Position.of(self.engine, new, self.branch)

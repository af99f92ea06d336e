"""Runs the transactions of one store, one after the other. Array objects outlive them.

Each call of zarr is of one transaction. What array objects may rely on from one to the next: `stale_arrays` (I6).

In the block of `with store.lock(...)`, one thread locks chunks, and always releases them at the end. While the block
runs, its thread is inside the session's gate: a commit by another thread waits for the end of the block.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from txstore import processes
from txstore.commit import MAIN, Commit
from txstore.engine import Engine, Position
from txstore.errors import TransactionStateError, TxStoreError
from txstore.format.records import SERIALIZABLE, SNAPSHOT
from txstore.history.snapshot import Snapshot
from txstore.sessions import zarr_operations
from txstore.sessions.gate import PATIENCE, Block, Gate, busy
from txstore.sessions.session_transaction import Joining, SessionTransaction, Terms
from txstore.sessions.stale_arrays import HeldDocuments, Reliance
from txstore.transactions.conflicts import Settle
from txstore.transactions.held_locks import Turn, deadline_of, remaining
from txstore.transactions.reads import check_isolation
from txstore.transactions.regions import Lock
from txstore.transactions.transaction import Transaction, check_description


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
        is_block: bool = False,
    ) -> None:
        """`first`, `joining`, `beside` and `is_block` are as in `SessionTransaction`."""
        check_description(message, properties)
        check_isolation(isolation)
        terms = Terms(branch, message, properties, isolation if first is None else first.isolation, settle_conflicts)
        self.engine = engine
        self.held = HeldDocuments(is_serializable=terms.isolation == SERIALIZABLE)
        self.current: SessionTransaction = SessionTransaction(
            engine,
            terms,
            position,
            self.held,
            first=first,
            joining=joining,
            beside=None if beside is None else beside.current,
            is_block=is_block,
        )
        self.token = token or os.urandom(16).hex()  # identifies this session in pickles
        self.depth = 0  # nesting of this process's `with` blocks
        self.may_count_by_operation = joining is not None  # see `Part.counts_by_operation`
        self.may_fork = first is not None  # forked children stage into its transaction, even one without writes so far
        self.unchanged = False  # the last commit changed no value
        self._has_ended_one = False  # a transaction has ended within this block
        self.gate = Gate(self.current.writes, self.fail)
        zarr_operations.expect()
        processes.watch(self)
        processes.watch_before(self)

    def before_fork(self) -> None:
        if (self.depth or self.may_fork) and self.current.ended is None and not self.current.is_joined:
            with suppress(OSError, TxStoreError):  # if the child writes, it gets an error that says so
                self.transaction.lifecycle.share()

    def after_fork_in_child(self) -> None:
        self.depth = 0  # the `with` blocks belong to the parent
        self.may_count_by_operation = True
        self.gate = Gate(self.current.writes, self.fail)  # and so do the threads inside
        self.held.look_at_all()

    @property
    def transaction(self) -> Transaction:
        """The open transaction. It begins at the first use."""
        return self.current.get()

    def share(self, *, creating: bool = False) -> Joining | None:
        """Let processes that unpickle this store stage into its transaction.

        None if there is no repository yet, unless this is `creating` it. Within a `with` block it is created, too: what
        others stage is to be committed.
        """
        return self.gate.call(lambda: self.current.share(creating=creating or self.depth > 0))

    # --- blocks

    def for_block(self) -> Session:
        """Return the session for a `with` block: in a participant, a new one for that block alone.

        If something fails in the block, only the block's writes are aborted, so that it can be tried again. In a
        transaction with a name, other threads that were sent the same store go on.
        """
        current, terms = self.current, self.current.terms
        if not (current.is_joined or current.is_participant) or (current.is_block and self.depth):
            return self
        is_named = current.get().members.is_named
        if not is_named and not current.get().members.is_participant:
            return self
        block = Session(
            self.engine,
            current.position,
            branch=terms.branch,
            message=terms.message,
            properties=terms.properties,
            joining=self.share(),
            token=self.token,
            isolation=terms.isolation,
            is_block=True,
        )
        block.rely_on(self.held.reliance)
        if is_named:
            block.current.get()
        return block

    def leave_block(self, outside: Session | None, *, complete: bool) -> None:
        """Leave a block of a participant: seal its part, or give it up. Afterwards this session is not used again.

        `outside` goes on, and sees what the block has staged.
        """
        with self.gate.shut():
            try:
                if complete and not self.gate.close():
                    raise busy()
            except BaseException:
                complete = False
                raise
            finally:
                if self.current.is_named:
                    self.transaction.lifecycle.leave()
                elif self.current.present is not None:
                    self.current.present.lifecycle.leave_block(complete=complete)
        if complete and self.current.present and outside and outside.current.present:
            with suppress(TransactionStateError):  # it has just ended: the next call will say so
                outside.current.present.members.see(dict(self.current.present.members.staged.version))

    def enter(self) -> None:
        """Enter a `with` block. Raises `TransactionStateError` if a named transaction has ended meanwhile."""
        if self.depth == 0 and self.current.is_named and self.current.present is not None:
            self.current.present.lifecycle.enter()
        self.depth += 1

    def leave(self, *, complete: bool) -> None:
        """Leave a `with` block. The transaction goes on without this process."""
        transaction = self.current.present
        if transaction is None:
            return
        with self.gate.shut():
            if (complete or self.current.is_named) and not self.gate.close():
                raise busy()
            if self.current.is_named:
                transaction.lifecycle.leave()
            elif complete:
                transaction.lifecycle.seal()
            else:
                self.fail("a `with` block was left by an exception")

    def fail(self, reason: str) -> None:
        """Fail the transaction: it can't be committed before a rollback."""
        if self.current.present is not None:
            self.current.present.lifecycle.fail(TransactionStateError(reason, state="failed"))

    @property
    def staged_count(self) -> int:
        return 0 if self.current.present is None else self.current.present.staged_count

    @property
    def version(self) -> Hashable:
        """A value that changes whenever the staged writes change, even for the same keys. None if nothing is staged."""
        return None if self.current.present is None else self.current.present.version

    def rely_on(self, reliance: Reliance) -> None:
        """Check the array objects of a pickle as the session that made it would."""
        self.held.rely_on(reliance, knows_frames=self.current.is_joined)

    @property
    def holds_newest(self) -> bool:
        """Whether array objects are known to hold the newest documents."""
        return self.held.are_newest(self.current.present)

    # --- from one transaction to the next

    def commit(
        self,
        message: str | None = None,
        *,
        allow_lost: bool = False,
        allow_misaligned: bool = False,
        at_end: bool = False,
    ) -> Commit | None:
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
            if not allow_misaligned:
                self.held.check_aligned(ended)
            ended.lifecycle.needs_change = at_end and self._has_ended_one
            made = ended.commit(message, allow_lost=allow_lost)
            if made is not None or not ended.lifecycle.needs_change:
                self.unchanged = ended.unchanged
            self._has_ended_one |= made is not None
            self.held.learn(ended)  # of the last changes; this raises nothing
            self.held.forget_cleared()
            new = old if made is None else made
            # This raises nothing: the commit is made.
            self._move(old, new, own=new.seq, settled=ended.lifecycle.settled)
            if ended.members.is_named:
                self.current.ended = "this transaction was committed: begin a new one with repo.transaction()"
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
                self.current.ended = "this transaction was rolled back: begin a new one with repo.transaction()"
            if not is_closed and not self.gate.close():
                raise busy()
            self._move(ended.base, self.engine.newest(self.current.terms.branch))

    def end(self, reason: str) -> None:
        """Roll back and end the session: each later use raises `TransactionStateError`."""
        with self.gate.shut():
            transaction = self.current.end(reason)
            if transaction is not None and not transaction.members.is_named:
                transaction.rollback()
            self.current.present = None
            self.current.position.let_go()

    def _move(self, old: Snapshot, new: Snapshot, *, own: int | None = None, settled: Collection[str] = ()) -> None:
        """Base the next transaction on `new`, and record the documents that other commits have changed since `old`.

        `own` is the seq of this session's own commit. In it, `settled` keys partly hold what other commits wrote. The
        gate is closed meanwhile.
        """
        self.held.move_on(old, new, own=own, settled=settled)
        self.current.move_to(new)


class LockBlock:
    """A context manager, entered once. The block gets the keys whose last holder died while it held them.

    `present` returns the transaction to lock in. If another thread ends that transaction while this thread waits, it
    returns the next one.
    """

    _transaction: Transaction | None = None  # the transaction that holds the locks
    _inside: Block | None = None

    def __init__(self, present: Callable[[], Transaction], gate: Gate, lock: Lock, timeout: float | None) -> None:
        self._present = present
        self._gate = gate
        self._lock = lock
        self._timeout = timeout
        self._turns: list[Turn] = []  # each turn is added here before it takes anything

    def __enter__(self) -> Sequence[str]:
        if self._transaction is not None:
            raise TransactionStateError("this lock was entered before: call store.lock() for each block", state="used")
        deadline = deadline_of(self._timeout)
        try:
            while True:
                self._transaction = self._present()
                # Keep no error in a variable: it would keep this object, and its locks, until a garbage collection.
                try:
                    dirty = self._transaction.lifecycle.lock(self._turns, self._lock, remaining(deadline))
                except TransactionStateError:
                    if self._is_inside():
                        raise
                else:
                    if self._is_inside():
                        return dirty
                self._give_up()
        except BaseException:
            self._give_up()
            raise

    def _is_inside(self) -> bool:
        """Enter the gate; return False if another thread has committed or rolled back meanwhile.

        Enter only after locking: a thread that commits in its own block must not wait for a thread that waits for its
        locks.
        """
        self._inside = Block()
        self._gate.enter_block(self._inside)
        return self._transaction is self._present()

    def __exit__(self, *_: object) -> None:
        self._give_up()

    def __del__(self) -> None:
        # An interrupt at the start or the end of the block may have prevented `__exit__`.
        self._give_up(waits=False)

    def _give_up(self, *, waits: bool = True) -> None:
        if self._transaction is None or (not self._turns and self._inside is None):
            return
        try:
            self._leave(self._transaction, waits=waits)
        except BaseException:
            self._leave(self._transaction, waits=waits)  # after an interrupt: complete it
            raise

    def _leave(self, transaction: Transaction, *, waits: bool) -> None:
        if self._inside is not None:
            if not self._gate.end_operations(self._inside, waits=waits):
                reason = "an operation in a lock block was interrupted, and may still write when others have the lock"
                transaction.lifecycle.fail(TransactionStateError(reason, state="failed"))
            self._gate.leave_block(self._inside)
            self._inside = None
        transaction.lifecycle.unlock(self._turns)

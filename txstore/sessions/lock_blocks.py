"""Implements the block of `with store.lock(...)`: one thread locks chunks, and always releases them at the end.

While the block runs, its thread is inside the session's gate: a commit by another thread waits for the end of the
block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from txstore.errors import TransactionStateError
from txstore.sessions.gate import Block, Gate
from txstore.transactions.held_locks import Turn, deadline_of, remaining
from txstore.transactions.regions import Lock

if TYPE_CHECKING:
    from txstore.transactions.transaction import Transaction


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

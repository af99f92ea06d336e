"""Tracks the state of a transaction in this process, and the running writes of its threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from txstore import processes
from txstore.errors import TransactionStateError, raise_if_full
from txstore.locks.kernel_locks import poll
from txstore.transactions.staging import Staging

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

#: Seconds that the end of a transaction waits for writes of other threads.
TIMEOUT = 60.0


class Lifecycle:
    """The states: "open", then "failed" by a failed write, "committing", "committed", "rolled back", "left", or "of
    unknown outcome". Safe in threads, and after a fork.
    """

    def __init__(self, staging: Staging) -> None:
        self.state = "open"
        self.lock = processes.new_lock()  # guards the state, and its check at the beginning of a write
        self.writes = 0  # number of writes that have begun
        self.attempt: object = None  # the running attempt to commit
        self.cause: BaseException | None = None  # the error of the failed write
        self._staging = staging
        self._in_flight: set[object] = set()  # running writes
        processes.watch(self)

    def after_fork_in_child(self) -> None:
        self._in_flight = set()  # the writing threads exist only in the parent

    @property
    def may_end(self) -> bool:
        """Whether the transaction can still be committed or rolled back."""
        return self.state in ("open", "failed")

    def check_open(self) -> None:
        """Raise `TransactionStateError` if this process can stage and commit nothing any more."""
        if self.state == "failed" and self._staging.part.has_given_up:
            raise TransactionStateError(
                f"an earlier write failed here ({self.cause!r}), so all writes of that work are aborted: do all of the "
                "work again, in a new `with store:` block",
                state=self.state,
            ) from self.cause
        if self.state == "failed":
            raise TransactionStateError(
                f"an earlier write of this transaction failed ({self.cause!r}): call rollback(), then write again",
                state=self.state,
            ) from self.cause
        if self.state != "open":
            raise TransactionStateError(
                f"this transaction is {self.state}: begin a new one with repo.transaction()", state=self.state
            )

    def write(self, stage: Callable[[], T]) -> T:
        """Call `stage`, and return its result. After an error, the transaction has failed until `rollback`."""
        write = object()
        try:  # begins before the write counts: an interrupt may come between any two calls
            with self.lock:
                if self.state != "open":
                    self.check_open()
                self._in_flight.add(write)
                self.writes += 1
            try:
                return stage()
            except BaseException as error:
                self.fail(error)
                raise_if_full(error)
                raise
        finally:
            self._in_flight.discard(write)

    def stage(self, kind: int, key: str, encoded: bytes, value: Buffer) -> None:
        """Stage a frame. No other thread of this process writes the key meanwhile."""
        turns = self._staging.turns
        if turns.is_slow:
            with turns.changing(key):
                self.stage_in_turn(kind, key, encoded, value)
            return
        with turns.at(key):
            turns.wait(key)
            self.stage_in_turn(kind, key, encoded, value)

    def stage_in_turn(self, kind: int, key: str, encoded: bytes, value: Buffer) -> None:
        """Stage a frame, as a thread that has its turn at the key."""
        self.write(lambda: self._staging.stage(kind, key, encoded, value))

    def fail(self, error: BaseException) -> None:
        """Refuse everything except `rollback` from now on: incomplete work must not be committed (I6)."""
        with self.lock:
            if self.state == "open":
                self.state, self.cause = "failed", error
                self._staging.let_go()
            self._staging.part.has_failed = True
            if not (isinstance(error, TransactionStateError) and error.state in ("committing", "ended")):
                self._staging.part.give_up()  # else the write came too late: the commit decides on earlier frames

    def begin_commit(self, attempt: object) -> None:
        """Let no more writes begin, because an attempt to commit begins.

        Raises `TransactionStateError` if writes are in flight, or the transaction is not open.
        """
        with self.lock:
            self.check_open()
            if self._in_flight:
                raise TransactionStateError(
                    f"{len(self._in_flight)} writes are in flight: wait for the threads that write, then commit",
                    state="open",
                )
            self.state, self.attempt = "committing", attempt  # in one statement: an interrupt may follow

    def leave(self) -> str:
        """Let no more writes begin here. Other processes continue with the transaction. Return the state before."""
        with self.lock:
            before = self.state
            if self.may_end:
                self.state = "left"
        return before

    def finish_writes(self) -> None:
        """Wait for running writes of other threads. No new writes begin."""
        if self._in_flight and not poll(lambda: not self._in_flight, time.monotonic() + TIMEOUT):
            raise TransactionStateError(
                f"{len(self._in_flight)} writes of other threads are in flight after {TIMEOUT:.0f} s: wait for these "
                "threads, then try again",
                state=self.state,
            )

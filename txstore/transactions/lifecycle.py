"""Lifecycle: the state of a transaction in this process, and the writes of its threads that are in flight."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from txstore import processes
from txstore.errors import TransactionStateError, raise_if_full
from txstore.locks.kernel_locks import poll
from txstore.transactions.staging import Staging

T = TypeVar("T")

#: Seconds that the end of a transaction waits for writes of other threads.
TIMEOUT = 60.0


class Lifecycle:
    """The states: "open", then "failed" by a failed write, "committing", "committed", "rolled back", "left", or "of
    unknown outcome". Safe in threads, and after a fork.
    """

    def __init__(self, staging: Staging) -> None:
        self.state = "open"
        self.lock = processes.new_lock()  # of the state, and of what becomes of it when a write begins
        self.writes = 0  # that have begun
        self.attempt: object = None  # to commit, by a thread that is about it
        self.cause: BaseException | None = None  # the error of the write that has failed
        self._staging = staging
        self._in_flight: set[object] = set()  # writes
        processes.watch(self)

    def after_fork_in_child(self) -> None:
        self._in_flight = set()  # the threads that write are the parent's

    @property
    def may_end(self) -> bool:
        """Whether the transaction can still be committed or rolled back."""
        return self.state in ("open", "failed")

    def check_open(self) -> None:
        """Raise `TransactionStateError` if nothing can be staged or committed any more."""
        if self.state == "failed" and self._staging.part.has_given_up:
            raise TransactionStateError(
                f"an earlier write failed here ({self.cause!r}), and what this process had staged since it began that "
                "work is given up: do it again, all of it, in a new `with store:` block",
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
        """Stage something, and return what `stage` returns. An error fails the transaction until `rollback`."""
        write = object()
        try:  # before it counts: an interrupt may come between any two calls
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

    def fail(self, error: BaseException) -> None:
        """Refuse everything but `rollback` from now on: what is half done must not be committed (I6)."""
        with self.lock:
            if self.state == "open":
                self.state, self.cause = "failed", error
                self._staging.let_go()
            self._staging.part.has_failed = True
            if not (isinstance(error, TransactionStateError) and error.state in ("committing", "ended")):
                self._staging.part.give_up()  # else it came too late: the commit judges what was staged before

    def begin_commit(self, attempt: object) -> None:
        """Let no more writes begin: an attempt to commit has begun.

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
        """Let no more writes begin here, where others go on with the transaction; return the state before."""
        with self.lock:
            before = self.state
            if self.may_end:
                self.state = "left"
        return before

    def finish_writes(self) -> None:
        """Wait for writes of other threads that are in flight. No more begin."""
        if self._in_flight and not poll(lambda: not self._in_flight, time.monotonic() + TIMEOUT):
            raise TransactionStateError(
                f"{len(self._in_flight)} writes of other threads are in flight after {TIMEOUT:.0f} s: wait for these "
                "threads, then try again",
                state=self.state,
            )

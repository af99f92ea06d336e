"""Takes part in a transaction of several processes: shares it, seals this process's part, and leaves."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from contextlib import suppress

from txstore import processes
from txstore.errors import TransactionStateError, TxStoreError, UncommittedChangesWarning, warn
from txstore.transactions.lifecycle import Lifecycle
from txstore.transactions.locking import Locking
from txstore.transactions.staging import Staging


class Participation:
    """The participation of one `Transaction` object. Several objects of a process may use the same part of it.

    If `owner`, the object, is dropped before it has ended or left the transaction, what it staged is cleaned up.
    """

    def __init__(self, owner: object, staging: Staging, lifecycle: Lifecycle, locking: Locking) -> None:
        self._staging = staging
        self._lifecycle = lifecycle
        self._locking = locking
        self._name = object()  # the name of the owner in `Part.attached`
        self._finalizer = weakref.finalize(owner, drop, staging, self._name)
        staging.storage.dispatch.expect_cleanup()  # of the finalizer
        staging.part.attached.add(self._name)
        processes.watch_before(self)

    def before_fork(self) -> None:
        if self._lifecycle.state == "open" and not self._staging.members.is_named:
            with suppress(OSError, TxStoreError):  # if the child writes, it gets an error that says so
                self.share()

    def share(self, *, creating: bool = False) -> bytes | None:
        """Let other processes stage into this transaction. Return its id, or None if there is nothing to share yet.

        `creating`: create the repository if it does not exist.
        """
        with self._lifecycle.lock:
            if not self._lifecycle.may_end:
                return None
            # Under the lock: the commit must find every process that joins.
            self._staging.share(creating=creating)
            if not self._staging.members.is_shared:
                return None
            self._locking.share()
            return self._staging.record.id

    def enter(self) -> None:
        """Keep other threads from ending a named transaction before this thread ends or leaves it.

        Raises `TransactionStateError` if it has ended, or if another thread is ending it.
        """
        if self._staging.members.is_named and self._lifecycle.state == "open":
            self._staging.part.enter(self._name)

    def end_operation(self, operation: object, has_failed: bool) -> None:
        """Note that an operation has ended. Unless it failed, its writes count, even if this process dies afterwards.

        An `OSError` fails the transaction.
        """
        try:
            self._staging.part.end_operation(operation, has_failed=has_failed)
        except OSError as error:
            self._lifecycle.fail(error)
            raise

    def seal(self) -> None:
        """Declare the part of this process complete, in a transaction that another process will commit (I8)."""
        if self._lifecycle.state == "open":
            self._staging.part.seal()

    def leave(self) -> None:
        """Leave a named transaction, which goes on without this process."""
        if self._lifecycle.leave() not in ("open", "failed"):
            return
        self._lifecycle.finish_writes()
        try:
            self._staging.part.leave(self._name)
            self.end()  # last: an interrupt may come before
        finally:
            self._locking.release()

    def leave_block(self, *, complete: bool) -> None:
        """End the part that a participant staged in a `with` block: seal it, or give it up.

        Raises `OSError`, and `TransactionStateError` if it should be complete but a write in it has failed.
        """
        part, lifecycle = self._staging.part, self._lifecycle
        if not complete:
            lifecycle.fail(TransactionStateError("a `with` block was left by an exception", state="failed"))
        has_failed = lifecycle.leave() == "failed"
        lifecycle.finish_writes()
        try:
            if has_failed:
                part.give_up()  # again: writes were in flight
                part.close()
            else:
                part.seal()
            part.attached.discard(self._name)  # another block may go on there
            self.end()
        finally:
            self._locking.release()
        if has_failed and complete:
            raise TransactionStateError(
                f"a write of this block failed ({lifecycle.cause!r}): all its writes are aborted. Do the work again",
                state="failed",
            ) from lifecycle.cause

    def end(self) -> None:
        """Leave nothing to clean up when the owner is dropped: the transaction has ended here."""
        self._finalizer.detach()


# --- a transaction that the caller drops without commit or rollback, or whose outcome is unknown
#
# Finalizers hand requests to a background thread (`storage.dispatch`).


def drop(staging: Staging, attached: object) -> None:
    """Warn of lost writes if the caller drops a transaction without commit or rollback, or the interpreter ends.

    `attached` is the transaction's entry in `Part.attached`.
    """
    if not staging.members.is_used_here:
        return
    if staging.is_unsettled or staging.view.committed is not None:
        staging.storage.dispatch.clean_up_later(staging.part.close)  # I3: nothing is deleted
        return
    staging.storage.dispatch.outside_loop(lambda: _drop(staging, attached))


def _drop(staging: Staging, attached: object) -> None:
    if not staging.members.is_owner:
        # Seal at once if possible: otherwise a process that waits for this one may consider it dead.
        if _is_in_event_loop():
            staging.storage.dispatch.clean_up_later(lambda: _drop_part(staging, attached))
        else:
            _drop_part(staging, attached)
        return
    staging.part.attached.discard(attached)
    try:
        count = staging.count
    except (OSError, TransactionStateError):  # the changes of other participants can't be read now
        count = staging.known_count
    try:
        if count:
            warn(
                f"{staging.storage.url}: {count} staged writes were NOT COMMITTED and are dropped: call commit(), or "
                "use `with repo.transaction() as store:`",
                UncommittedChangesWarning,
            )
    finally:  # a user may have turned the warning into an error
        staging.storage.dispatch.clean_up_later(staging.discard)


def _drop_part(staging: Staging, attached: object) -> None:
    with contextlib.suppress(OSError, TransactionStateError):
        if staging.members.is_named:
            staging.part.leave(attached)
        else:
            staging.part.attached.discard(attached)
            if not staging.part.attached:
                staging.part.rest()


def _is_in_event_loop() -> bool:
    return asyncio._get_running_loop() is not None

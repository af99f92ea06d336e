"""Cleans up a transaction that the caller drops without commit or rollback, or whose outcome is unknown.

Finalizers hand requests to a background thread (`storage.dispatch`).
"""

from __future__ import annotations

import asyncio
import contextlib
import warnings

from txstore.errors import TransactionStateError, UncommittedChangesWarning
from txstore.transactions.staging import Staging


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
            warnings.warn(
                f"{staging.storage.url}: {count} staged writes were NOT COMMITTED and are dropped: call commit(), or "
                "use `with repo.transaction() as store:`",
                UncommittedChangesWarning,
                stacklevel=2,
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

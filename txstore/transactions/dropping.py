"""What becomes of a transaction that is dropped: without commit or rollback, or when its outcome is unknown.

The garbage collector calls a finalizer in any thread at any point: in that of an event loop, which no request may hold
up, and in which some libraries refuse to make one; or in a thread that holds a lock which the request needs. So
finalizers leave requests to a thread of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import warnings
from collections.abc import Callable

from txstore import processes
from txstore.errors import TransactionStateError, TxStoreError, UncommittedChangesWarning
from txstore.transactions.staging import Staging

Work = Callable[[], object]

_waiting: queue.SimpleQueue[tuple[int, Work]] = queue.SimpleQueue()  # whose `put` may be called by a finalizer
_lock = processes.new_lock()
_process = 0  # that has the thread


def expect(staging: Staging) -> None:
    """Be ready for it to be dropped: have the thread ready. A finalizer itself must not start one."""
    global _process  # noqa: PLW0603
    if staging.storage.ranges is None:
        return
    with _lock:
        if _process != os.getpid():
            threading.Thread(target=_work, name="txstore late work", daemon=True).start()
            processes.at_exit(_finish)
            _process = os.getpid()


def drop(staging: Staging, attached: object) -> None:
    """Warn of what is lost when a transaction is dropped without commit or rollback, or the interpreter ends.

    `attached` is what it counts as in `Staging.attached`.
    """
    if not staging.is_used_here:
        return
    if staging.is_unsettled or staging.committed is not None:
        _afterwards(staging, staging.close)  # I3: nothing is deleted
        return
    if staging.storage.is_remote and _is_in_event_loop():
        # It must not wait for a server: the loop may be the one that the answer would come through.
        try:
            threading.Thread(target=_drop, args=(staging, attached), name="txstore end").start()
        except RuntimeError:  # the interpreter ends
            _drop(staging, attached)
    else:
        _drop(staging, attached)


def _drop(staging: Staging, attached: object) -> None:
    if not staging.is_owner:
        # Sealed at once, if it can be: who waits for this process may take it for dead otherwise.
        if _is_in_event_loop():
            _afterwards(staging, lambda: _drop_part(staging, attached))
        else:
            _drop_part(staging, attached)
        return
    staging.attached.discard(attached)
    try:
        count = staging.count
    except (OSError, TransactionStateError):  # what others have staged can't be read now
        count = staging.known_count
    try:
        if count:
            warnings.warn(
                f"{staging.url}: {count} staged writes were NOT COMMITTED and are dropped: call commit(), or use "
                f"`with repo.transaction() as store:`",
                UncommittedChangesWarning,
                stacklevel=2,
            )
    finally:  # the warning may be an error
        _afterwards(staging, staging.discard)


def _drop_part(staging: Staging, attached: object) -> None:
    with contextlib.suppress(OSError, TransactionStateError):
        if staging.is_named:
            staging.leave(attached)
        else:
            staging.attached.discard(attached)
            if not staging.attached:
                staging.seal()


def _afterwards(staging: Staging, work: Work) -> None:
    """Do it without making requests where the finalizer happens to be called: in the thread, at the process's end here.

    What is left to the thread drops its `OSError` and `TxStoreError`.
    """
    if staging.storage.ranges is None:
        work()
    elif _process == os.getpid() and threading.main_thread().is_alive():
        _waiting.put((os.getpid(), work))
    else:
        _do(os.getpid(), work)


def _is_in_event_loop() -> bool:
    return asyncio._get_running_loop() is not None


def _work() -> None:
    while True:
        _do(*_waiting.get())


def _finish() -> None:
    """Do what is left when the process ends, whose threads may not come to it any more."""
    with contextlib.suppress(queue.Empty):
        while True:
            _do(*_waiting.get_nowait())


def _do(process: int, work: Work) -> None:
    if process == os.getpid():  # else it was the parent's, before a fork
        with contextlib.suppress(OSError, TxStoreError):
            work()

"""Background clean-up: requests that no caller waits for. One thread sends them, one after the other.

A finalizer must not send a request itself. The garbage collector calls it in any thread, at any point. An event loop's
thread must not block, and some libraries refuse to send a request there. Another thread may hold a lock that the
request needs.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable

from txstore import processes
from txstore.errors import TxStoreError

Work = Callable[[], object]

_waiting: queue.SimpleQueue[tuple[int, Work]] = queue.SimpleQueue()  # whose `put` may be called by a finalizer
_lock = processes.new_lock()
_process = 0  # that has the thread


def expect() -> None:
    """Start the thread, if it does not run yet. A finalizer must not start one."""
    global _process  # noqa: PLW0603
    with _lock:
        if _process != os.getpid():
            threading.Thread(target=_work, name="txstore background clean-up", daemon=True).start()
            processes.at_exit(_finish)
            _process = os.getpid()


def do_later(work: Work) -> None:
    """Do it in the thread, unless the process ends.

    What is left to the thread drops its `OSError` and `TxStoreError`.
    """
    if _process == os.getpid() and threading.main_thread().is_alive():
        _waiting.put((os.getpid(), work))
    else:
        _do(os.getpid(), work)


def wait_for_all(seconds: float) -> bool:
    """Wait until the thread has run all requests queued so far; return False if the time ran out first."""
    if _process != os.getpid():
        return True
    done = threading.Event()
    _waiting.put((os.getpid(), done.set))
    return done.wait(seconds)


def _work() -> None:
    while True:
        _do(*_waiting.get())


def _finish() -> None:
    """Run the remaining requests when the process ends: its threads may not get to them."""
    with contextlib.suppress(queue.Empty):
        while True:
            _do(*_waiting.get_nowait())


def _do(process: int, work: Work) -> None:
    if process == os.getpid():  # else it was the parent's, before a fork
        with contextlib.suppress(OSError, TxStoreError):
            work()

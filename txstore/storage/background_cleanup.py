"""Background clean-up: requests that no caller waits for. A thread of their own makes them, one after the other.

Some must not be made where they come up. The garbage collector calls a finalizer in any thread at any point: in that of
an event loop, which no request may hold up, and in which some libraries refuse to make one; or in a thread that holds a
lock which the request needs.
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
    """Have the thread ready. A finalizer itself must not start one."""
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
    """Wait until all is done that was left to the thread so far; return whether that was in time."""
    if _process != os.getpid():
        return True
    done = threading.Event()
    _waiting.put((os.getpid(), done.set))
    return done.wait(seconds)


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

"""Requests that finalizers leave to a thread.

The garbage collector calls a finalizer in any thread at any point: in that of an event loop, which no request may hold
up, and in which some libraries refuse to make one; or in a thread that holds a lock which the request needs.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable

from txstore import processes
from txstore.errors import TxStoreError
from txstore.processes import at_exit

Work = Callable[[], object]

_waiting: queue.SimpleQueue[tuple[int, Work]] = queue.SimpleQueue()  # whose `put` may be called by a finalizer
_lock = processes.new_lock()
_process = 0  # that has the thread


def expect() -> None:
    """Have the thread ready. Called by whoever makes what has a finalizer: that itself must not start one."""
    global _process  # noqa: PLW0603
    with _lock:
        if _process != os.getpid():
            threading.Thread(target=_work, name="txstore late work", daemon=True).start()
            at_exit(_finish)
            _process = os.getpid()


def later(work: Work) -> None:
    """Call a function in the thread; at the end of the process, here. Its `OSError` and `TxStoreError` are dropped."""
    if _process == os.getpid() and threading.main_thread().is_alive():
        _waiting.put((os.getpid(), work))
    else:
        _do(os.getpid(), work)


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

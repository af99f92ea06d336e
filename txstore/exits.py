"""The end of a process: being called at it, and whether the process has come to it by doing its work."""

from __future__ import annotations

import atexit
import multiprocessing.process
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType

_registered_in: dict[Callable[[], None], int] = {}
_bootstrap: dict[int, FrameType | None] = {}  # of this process


def at_exit(function: Callable[[], None]) -> None:
    """Call a function, once, at the end of this process, if it ends in an orderly way."""
    if _registered_in.get(function) == os.getpid():
        return
    _registered_in[function] = os.getpid()
    _bootstrap[os.getpid()] = _find_bootstrap()
    atexit.register(function)
    if "multiprocessing.util" in sys.modules:  # before Python 3.13, its processes end without `atexit`
        from multiprocessing.util import Finalize

        Finalize(None, function, exitpriority=0)


def was_broken_off() -> bool:
    """Tell, when the process ends, whether it was an exception, or an exit with an error, that ended its work.

    That a script ends by `sys.exit` with an error can't be told.
    """
    bootstrap = _bootstrap.get(os.getpid())
    if bootstrap is not None:
        return bootstrap.f_locals.get("exitcode") != 0
    ending = sys.exc_info()[1]
    if ending is None and not hasattr(sys, "ps1"):  # else it says what was raised at the prompt
        ending = getattr(sys, "last_value", None)
    return ending is not None and not (isinstance(ending, SystemExit) and not ending.code)


def _find_bootstrap() -> FrameType | None:
    """Return the frame that runs a process of `multiprocessing`, which says nowhere else how the work has ended."""
    code = getattr(getattr(multiprocessing.process.BaseProcess, "_bootstrap", None), "__code__", None)
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame

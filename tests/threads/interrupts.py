"""KeyboardInterrupt where a real one can come, and where TxStore can do something about it.

Between two instructions that take a lock and enter a `try`, an interrupt can leave a lock of the standard library
locked for good, such as that of a future, for which zarr's loop then waits for ever. No store can prevent that. So
interrupts come only in frames of TxStore, in what these call in `threading`, `contextlib` and `asyncio`, and while a
thread is asleep.

In the main thread they are signals. In others, where signals are not handled, a profile function raises them, which is
called in the same places: at the beginning of a Python function, and after a function in C has returned.
"""

import asyncio
import contextlib
import functools
import linecache
import os
import random
import signal
import sys
import threading
import unittest.mock
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import CORO_CREATED, getcoroutinestate
from types import CoroutineType, FrameType
from typing import Any

import txstore

SIGNAL = signal.SIGUSR1  # SIGINT is for whoever runs this
_OURS = os.path.dirname(txstore.__file__) + os.sep
_CALLED = {
    each.__file__ for each in (threading, contextlib, functools, asyncio.base_events, asyncio.events, asyncio.futures)
}


def may_come(frame: FrameType | None) -> bool:
    """Tell whether an interrupt in this frame is TxStore's to survive."""
    if frame is not None and is_asleep(frame):
        return True
    while frame is not None and frame.f_code.co_filename in _CALLED:
        if _waits(frame):
            return False  # it may have given its lock up, and not be where it takes it again in any case
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_OURS)


def is_asleep(frame: FrameType) -> bool:
    """Tell whether a thread waits in a condition, where the standard library is ready for interrupts."""
    return _waits(frame) and "waiter.acquire(" in linecache.getline(frame.f_code.co_filename, frame.f_lineno)


def _waits(frame: FrameType) -> bool:
    return frame.f_code.co_filename == threading.__file__ and frame.f_code.co_qualname == "Condition.wait"


class Signals:
    """Interrupts the main thread now and then, where it says that one `may_come`."""

    def __init__(self, chance: random.Random, longest_pause: float) -> None:
        self.armed = False
        self.count = 0
        self.chance = chance
        self.pause = longest_pause
        self.main = threading.main_thread().ident
        self.stop = threading.Event()

    @contextmanager
    def coming(self) -> Iterator[None]:
        before = signal.signal(SIGNAL, self.handle)
        thread = threading.Thread(target=self.send, name="signals", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.armed = False
            self.stop.set()
            thread.join()
            signal.signal(SIGNAL, before)

    @contextmanager
    def may_come(self) -> Iterator[None]:
        """Let one signal come while a `with` block runs."""
        around, before = self.armed, self.count
        self.armed = True
        try:
            yield
        finally:
            self.armed = around and self.count == before

    def send(self) -> None:
        assert self.main is not None
        while not self.stop.wait(self.chance.uniform(0, self.pause)):
            if self.armed:
                signal.pthread_kill(self.main, SIGNAL)

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.armed and may_come(frame):
            self.armed = False
            self.count += 1
            raise KeyboardInterrupt


@contextmanager
def interrupted_after(places: int) -> Iterator[None]:
    """Interrupt the present thread in a `with` block, at the place of so many where an interrupt can come."""
    left = places

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left
        if event in ("call", "c_return") and may_come(frame):
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    around = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(around)


@contextmanager
def ignored_in_finalizers() -> Iterator[list[str]]:
    """Keep quiet about interrupts that came in finalizers, where no caller can be told; note all else that did.

    Also about a call of zarr that was interrupted before it began: Python's warning is about its coroutine.
    """
    others: list[str] = []

    def note(told: Any) -> None:
        has_begun = not isinstance(told.object, CoroutineType) or getcoroutinestate(told.object) != CORO_CREATED
        if not isinstance(told.exc_value, KeyboardInterrupt) and has_begun:
            others.append(f"{told.exc_value!r} in {told.object!r}")

    with unittest.mock.patch.object(sys, "unraisablehook", note):
        yield others

"""A watchdog over what threads wait for. It does not take a machine that stands still for a thread that hangs."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident

#: Seconds between two beats.
BEAT = 0.05


def dump_and_exit(what: str) -> None:
    """Say what hangs, and where every thread is, then end the process: nothing that hangs could be joined."""
    print(f"HANG: {what}", file=sys.stderr, flush=True)
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    os._exit(3)


class Watchdog:
    """Says when a thread has been in one call for longer than `limit` seconds.

    Time is counted in beats of a thread of its own. If a beat comes late, so did everything else in this process: the
    machine had other things to do, or it slept. A late beat counts no more than one that is on time.
    """

    def __init__(self, limit: float, on_hang: Callable[[str], None] = dump_and_exit) -> None:
        self.limit = limit
        self.beats = 0
        self.stalled = 0.0  # seconds that are not counted
        self.longest: dict[str, float] = defaultdict(float)  # of each kind of call
        self.on_hang = on_hang
        self.calls: dict[int, tuple[str, int]] = {}
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()

    @contextmanager
    def over(self, what: str) -> Iterator[None]:
        """Watch the present thread while a `with` block runs. What is watched around that begins anew after it."""
        me, begun = get_ident(), self.beats
        around = self.calls.get(me)
        self.calls[me] = what, begun
        try:
            yield
        finally:
            self.calls.pop(me, None)
            if around is not None:
                self.calls[me] = around[0], self.beats
            self.longest[what] = max(self.longest[what], (self.beats - begun) * BEAT)

    def watch(self) -> None:
        last = time.monotonic()
        while not self.stop.wait(BEAT):
            now = time.monotonic()
            self.beats += 1
            self.stalled += max(0.0, now - last - 2 * BEAT)
            last = now
            for thread, (what, begun) in list(self.calls.items()):
                if (self.beats - begun) * BEAT > self.limit:
                    name = next((each.name for each in threading.enumerate() if each.ident == thread), "?")
                    self.on_hang(f"{name} has been in {what} for {(self.beats - begun) * BEAT:.1f} s")
                    self.calls.pop(thread, None)

"""Several processes that serve one repository on one port: each is a whole server, and they share nothing in memory.

This process serves nothing. It starts the workers, starts another one when one has died, and ends them. Workers are
spawned, not forked: clients of object stores do not survive a fork.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess

from txstore.serving.entrance import Entrance
from txstore.serving.repository_protocol import Served
from txstore.serving.server import LONGEST_END, Server

_log = logging.getLogger(__name__)

#: Seconds before a worker is started in place of one that has died: it may die again at once.
_PAUSE = 0.5

_spawn = multiprocessing.get_context("spawn")


class Workers:
    """One worker process for each socket of an entrance. Each calls `begin` first, which can be pickled."""

    def __init__(self, repository: Served, entrance: Entrance, begin: Callable[[], None]) -> None:
        self._repository = repository
        self._entrance = entrance
        self._begin = begin
        self._workers: list[SpawnProcess] = []

    def serve_here(self) -> None:
        """Keep the workers running until a signal comes. Assumes that the process does nothing else."""
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            self._workers = [self._start(number) for number in range(len(self._entrance.sockets))]
            while True:
                wait([worker.sentinel for worker in self._workers])
                time.sleep(_PAUSE)
                for number, worker in enumerate(self._workers):
                    if worker.exitcode is not None:
                        _log.error("a worker has ended with status %d: another one starts", worker.exitcode)
                        self._workers[number] = self._start(number)
        except KeyboardInterrupt:
            pass  # either signal
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._end()

    def _start(self, number: int) -> SpawnProcess:
        given = self._repository, self._entrance, number, self._begin
        worker = _spawn.Process(target=_serve, args=given, daemon=True)
        with _without_interrupts():
            worker.start()
        return worker

    def _end(self) -> None:
        for worker in self._workers:
            worker.terminate()
        until = time.monotonic() + LONGEST_END
        for worker in self._workers:
            worker.join(max(0, until - time.monotonic()))
            worker.kill()


def _serve(repository: Served, entrance: Entrance, number: int, begin: Callable[[], None]) -> None:
    """Serve in a worker process, until it gets a signal or its parent has died."""
    begin()
    threading.Thread(target=_end_with_parent, name="txstore parent", daemon=True).start()
    Server(repository, entrance, number).serve_here()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Start processes in this block that get no Ctrl-C. A terminal sends it to all processes; the parent ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

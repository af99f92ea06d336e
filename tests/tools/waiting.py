"""Waiting for what another thread or process is about to do."""

import threading
import time
from collections.abc import Callable

from txstore.storage.dispatch import wait_for_cleanup
from txstore.storage.request_threads import REQUESTS, executor

TIMEOUT = 60


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


def wait_for_requests() -> None:
    """Wait until none is under way in the background: each of the threads that make them has come to a barrier."""
    threads, barrier = executor("single request", REQUESTS), threading.Barrier(REQUESTS)
    for arrived in [threads.submit(barrier.wait, TIMEOUT) for _ in range(REQUESTS)]:
        arrived.result()


def wait_for_background_cleanup() -> None:
    """Wait until all is done that was left to the thread that nobody waits for."""
    assert wait_for_cleanup(TIMEOUT)

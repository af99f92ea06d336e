"""Waiting for zarr's background work, so that no late write enters the next transaction (I6).

zarr runs the writes of one statement concurrently. When one of them fails, the statement raises at once and the others
still arrive later: as tasks of zarr's event loop, and from the threads of the fused codec pipeline.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import zarr.core.codec_pipeline
import zarr.core.sync

from txstore import forking
from txstore.errors import TransactionStateError

#: Seconds to wait for what other threads may be doing with zarr meanwhile.
TIMEOUT = 60.0
_PASSES = 8

_one_at_a_time = forking.new_lock()


def drain_zarr(timeout: float = TIMEOUT) -> None:
    """Return when what zarr was doing in the background at the time of the call is done.

    Does nothing on zarr's own threads, which would wait for themselves. Raises `TransactionStateError`.
    """
    here = threading.current_thread()
    loop, pool = zarr.core.sync.loop[0], _pool()
    if here is zarr.core.sync.iothread[0] or (pool is not None and here in pool._threads):
        return
    try:
        with _one_at_a_time:
            if loop is not None and loop.is_running():
                asyncio.run_coroutine_threadsafe(_finish_tasks(), loop).result(timeout)
            if pool is not None:
                _finish_work(pool, timeout)
    except TimeoutError as error:
        raise TransactionStateError(
            f"zarr is still busy after {timeout:.0f} s: wait for other threads that read or write, then try again",
            state="open",
        ) from error


def _pool() -> ThreadPoolExecutor | None:
    """The threads of the fused codec pipeline, of zarr 3.4 and later."""
    return getattr(zarr.core.codec_pipeline, "_pool", None)


async def _finish_tasks() -> None:
    for _ in range(_PASSES):  # a task that fails may leave tasks of its own behind
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if not others:
            return
        await asyncio.wait(others)


def _finish_work(pool: ThreadPoolExecutor, timeout: float) -> None:
    # Each worker can be in the barrier only when it has finished what it did before.
    barrier = threading.Barrier(pool._max_workers)
    while pool._idle_semaphore.acquire(blocking=False):
        pass  # it may count idle threads that are not: now `submit` starts threads until there are all
    done, late = wait([pool.submit(barrier.wait, timeout) for _ in range(pool._max_workers)], timeout)
    if late or any(future.exception() for future in done):
        raise TimeoutError(f"zarr's codec threads are still busy after {timeout} s")

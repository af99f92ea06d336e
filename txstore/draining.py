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

#: Seconds to wait for what other threads may be doing with zarr meanwhile.
TIMEOUT = 60.0
_PASSES = 8

_one_at_a_time = threading.Lock()


def drain_zarr(timeout: float = TIMEOUT) -> None:
    """Return when what zarr was doing in the background at the time of the call is done.

    Does nothing on zarr's own threads, which would wait for themselves. Raises `TimeoutError`.
    """
    with _one_at_a_time:
        _drain_loop(timeout)
        _drain_pool(timeout)


def _drain_loop(timeout: float) -> None:
    loop, thread = zarr.core.sync.loop[0], zarr.core.sync.iothread[0]
    if loop is None or not loop.is_running() or threading.current_thread() is thread:
        return
    asyncio.run_coroutine_threadsafe(_finish_tasks(), loop).result(timeout)


async def _finish_tasks() -> None:
    for _ in range(_PASSES):  # a task that fails may leave tasks of its own behind
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if not others:
            return
        await asyncio.wait(others)


def _drain_pool(timeout: float) -> None:
    pool: ThreadPoolExecutor | None = getattr(zarr.core.codec_pipeline, "_pool", None)  # zarr 3.4 and later
    if pool is None or threading.current_thread() in pool._threads:
        return
    # Each worker can be in the barrier only when it has finished what it did before.
    barrier = threading.Barrier(pool._max_workers)
    while pool._idle_semaphore.acquire(blocking=False):
        pass  # it may count idle threads that are not: now `submit` starts threads until there are all
    done, late = wait([pool.submit(barrier.wait, timeout) for _ in range(pool._max_workers)], timeout)
    if late or any(future.exception() for future in done):
        raise TimeoutError(f"zarr's codec threads are still busy after {timeout} s")

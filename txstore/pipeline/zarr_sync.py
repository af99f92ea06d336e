"""Replaces zarr's `sync`, which runs each call of its API, for calls of arrays and groups over a `TxStore`.

zarr has no hook for it. Calls for other stores, calls with a timeout, and calls from a thread that runs an event loop
go to zarr's own `sync`. So does every call if the environment says `TXSTORE_CALLING_THREAD=off`.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Coroutine
from functools import wraps
from typing import Any, TypeVar

import zarr.core.sync

from txstore.pipeline.chunk_store import ChunkStore
from txstore.sessions import calling_thread

T = TypeVar("T")

_sync = zarr.core.sync.sync
#: The arguments of zarr's functions that say what a call is for.
_ARGUMENTS = ("self", "store_path", "store")


@wraps(_sync)
def sync(
    coro: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop | None = None, timeout: float | None = None
) -> T:
    try:
        if loop is None and timeout is None and _is_of_our_store(coro) and calling_thread.is_free():
            return calling_thread.run(coro)
    except BaseException:
        coro.close()  # after an interrupt it may not have begun
        raise
    return _sync(coro, loop, timeout)


def install() -> None:
    """Replace `sync` in all modules of zarr that have it by name."""
    if list(inspect.signature(_sync).parameters) != ["coro", "loop", "timeout"]:
        return  # a zarr that does it in another way
    for name, module in list(sys.modules.items()):
        if name.startswith("zarr.") and getattr(module, "sync", None) is _sync:
            module.sync = sync  # type: ignore[attr-defined]


def _is_of_our_store(coroutine: Any) -> bool:
    """Tell whether a call that has not begun is for a `TxStore`, by its arguments."""
    frame = getattr(coroutine, "cr_frame", None)
    if frame is None:
        return False
    arguments = frame.f_locals
    for name in _ARGUMENTS:
        given = arguments.get(name)
        given = getattr(given, "store_path", given)
        if isinstance(getattr(given, "store", given), ChunkStore):
            return True
    return False

"""Reads samples window by window, one window ahead.

A thread with its own event loop reads all chunks of a window in one call, instead of one call to zarr's loop for each
chunk. It starts when the caller asks for the first window, and ends with the iteration.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import zarr

from txstore.loaders.chunks import Block, read_blocks
from txstore.loaders.order import MixedWindow
from txstore.loaders.samples import Sample

#: Bytes of samples that are read at once; a block may be larger.
_BYTES_AT_ONCE = 8 << 20
#: Number of threads that decode.
_DECODERS = min(4, os.cpu_count() or 1)

#: Event loops that a forked child inherits. Closing one, even by dropping it, would stop the parent's loop.
_inherited: list[asyncio.AbstractEventLoop] = []


def windows_read(
    arrays: Mapping[str, zarr.Array[Any]], windows: Iterator[MixedWindow]
) -> Generator[Sample, None, None]:
    """Yield the samples of each window as one batch, mixed, while the next one is read.

    An error of reading is raised in place of the window. Closing the generator waits for the window being read.
    """
    process = os.getpid()
    loop = asyncio.new_event_loop()
    decoders = ThreadPoolExecutor(_DECODERS, "txstore decoder")
    reader = ThreadPoolExecutor(1, "txstore reader")
    loop.set_default_executor(decoders)
    try:
        ahead = None
        for window in windows:
            now, ahead = ahead, reader.submit(_run, loop, arrays, window)
            if now is not None:
                batch = now.result()
                del now
                yield batch
                del batch
        if ahead is not None:
            yield ahead.result()
    finally:
        if os.getpid() == process:
            reader.shutdown(cancel_futures=True)
            decoders.shutdown()
            loop.close()
        else:
            _inherited.append(loop)


def _run(loop: asyncio.AbstractEventLoop, arrays: Mapping[str, zarr.Array[Any]], window: MixedWindow) -> Sample:
    return loop.run_until_complete(read_window(arrays, window))


async def read_window(arrays: Mapping[str, zarr.Array[Any]], window: MixedWindow) -> Sample:
    """Return the samples of a window as one batch: all arrays, and 8 MiB or one block of them, are read together."""
    batch = {name: np.empty((window.length, *array.shape[1:]), array.dtype) for name, array in arrays.items()}
    size = sum(values.nbytes for values in batch.values()) // window.length
    together: list[Block] = []
    pending = 0
    for block in zip(window.blocks, window.places, strict=True):
        (start, stop), _ = block
        if together and pending + (stop - start) * size > _BYTES_AT_ONCE:
            await _all([read_blocks(array, together, batch[name]) for name, array in arrays.items()])
            together, pending = [], 0
        together.append(block)
        pending += (stop - start) * size
    await _all([read_blocks(array, together, batch[name]) for name, array in arrays.items()])
    return batch


async def _all(reads: list[Coroutine[Any, Any, None]]) -> None:
    """Wait for all reads, even if one fails, so that none is still running when the loop is closed."""
    for done in await asyncio.gather(*reads, return_exceptions=True):
        if isinstance(done, BaseException):
            raise done

"""Reads samples: window by window, one window ahead, or by number, through a cache of whole blocks.

A thread with its own event loop reads all chunks of a window in one call, instead of one call to zarr's loop for each
chunk. It starts when the caller asks for the first window, and ends with the iteration.

The order of samples: they are read in blocks, which end at chunk boundaries. An epoch is a permutation of the blocks;
shard s of n takes its blocks s, s + n, s + 2n, ... A window is as many blocks as fit; its samples are shuffled. Every
number follows from the seed and the epoch, so ranks need no communication, and the position in a shard is the number of
samples before it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import OrderedDict
from collections.abc import Coroutine, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from operator import index
from typing import Any, NamedTuple

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.buffer import default_buffer_prototype

from txstore import processes
from txstore.loaders.samples import Sample, Samples
from txstore.sessions.calling_thread import result_of
from txstore.zarr_private import ArraySpec


class MixedWindow(NamedTuple):
    """Blocks that are shuffled together: start and stop of each, and the places of its samples in the window."""

    blocks: tuple[tuple[int, int], ...]
    places: tuple[NDArray[np.intp] | slice, ...]
    length: int


@dataclass(frozen=True)
class Order:
    """The order of samples: `block` samples are read together, the samples of `window` blocks are shuffled."""

    samples: int
    block: int
    window: int
    shuffle: bool
    seed: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def length(self, epoch: int, shard: int, shards: int) -> int:
        """Return the number of samples in a shard."""
        blocks = self._blocks(epoch)[shard::shards]
        short = self.samples % self.block
        last = self.samples // self.block  # the number of the short block, if any
        return len(blocks) * self.block - (self.block - short if short and last in blocks else 0)

    def windows(self, epoch: int, shard: int, shards: int) -> Iterator[MixedWindow]:
        """Yield the windows of a shard, in order."""
        blocks = self._blocks(epoch)[shard::shards]
        for first in range(0, len(blocks), self.window):
            mine = blocks[first : first + self.window].tolist()
            yield self._window(epoch, mine)

    def _blocks(self, epoch: int) -> NDArray[np.intp]:
        count = -(-self.samples // self.block)
        return self._random(epoch, 0).permutation(count) if self.shuffle else np.arange(count)

    def _window(self, epoch: int, numbers: list[int]) -> MixedWindow:
        blocks = tuple((n * self.block, min((n + 1) * self.block, self.samples)) for n in numbers)
        ends = np.cumsum([stop - start for start, stop in blocks]).tolist()
        begins = [0, *ends[:-1]]
        if not self.shuffle:
            return MixedWindow(blocks, tuple(slice(a, b) for a, b in zip(begins, ends, strict=True)), ends[-1])
        mixed = self._random(epoch, numbers[0] + 1).permutation(ends[-1])
        return MixedWindow(blocks, tuple(mixed[a:b] for a, b in zip(begins, ends, strict=True)), ends[-1])

    def _random(self, epoch: int, number: int) -> np.random.RandomState:
        # Not a Generator: its numbers may change with numpy's version, and ranks or resumed runs may have another one.
        words = [word for value in (self.seed, epoch, number) for word in (value & 0xFFFFFFFF, value >> 32)]
        return np.random.RandomState(words)


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


# --- blocks


#: Start and stop of a block, and its rows in the result.
Block = tuple[tuple[int, int], Any]


async def read_blocks(array: zarr.Array[Any], blocks: Sequence[Block], result: NDArray[Any]) -> None:
    """Put the samples of blocks of one array in their rows of `result`.

    Whole chunks are fetched, and many are decoded at a time with zarr's codecs. That saves the selection, the event
    loop and the copy that zarr's indexing needs for each chunk. Arrays with shards, of another format or of elements of
    variable length are read by zarr's indexing.
    """
    if array.metadata.zarr_format == 3 and array.shards is None and array.dtype.kind in "biufc":
        await _decode_chunks(array, blocks, result)
    else:
        for (start, stop), rows in blocks:
            result[rows] = await array.async_array.getitem(slice(start, stop))


async def _decode_chunks(array: zarr.Array[Any], blocks: Sequence[Block], result: NDArray[Any]) -> None:
    prototype = default_buffer_prototype()
    metadata: Any = array.metadata
    chunks = array.chunks
    spec = ArraySpec(chunks, metadata.dtype, metadata.fill_value, array.async_array.config, prototype)
    regions = list(itertools.product(*map(_parts, array.shape[1:], chunks[1:])))
    keys: list[str] = []
    targets: list[tuple[Any, Any]] = []  # a part of a chunk, and its place in the result
    for (start, stop), rows in blocks:
        for first, inside, outside in _rows_of_chunks(start, stop, rows, chunks[0]):
            for region in regions:
                keys.append(metadata.encode_chunk_key((first, *(number for number, _ in region))))
                within = tuple(slice(part.stop - part.start) for _, part in region)
                targets.append(((inside, *within), (outside, *(part for _, part in region))))
    fetched = await asyncio.gather(*((array.store_path / key).get(prototype) for key in keys))
    decoded = await array.async_array.codec_pipeline.decode([(chunk, spec) for chunk in fetched])
    for values, (inside, outside) in zip(decoded, targets, strict=True):
        result[outside] = metadata.fill_value if values is None else values.as_numpy_array()[inside]


def _parts(length: int, chunk: int) -> list[tuple[int, slice]]:
    """Return the chunks along a dimension: their numbers, and the part of it that each covers."""
    return [(number, slice(first, min(first + chunk, length))) for number, first in enumerate(range(0, length, chunk))]


def _rows_of_chunks(start: int, stop: int, rows: Any, chunk: int) -> list[tuple[int, slice, Any]]:
    """Return the chunks along the first dimension: their numbers, the wanted part of each, and its rows."""
    found = []
    for number in range(start // chunk, -(-stop // chunk)):
        first, last = max(start, number * chunk), min(stop, (number + 1) * chunk)
        inside = slice(first - number * chunk, last - number * chunk)
        if isinstance(rows, slice):
            found.append((number, inside, slice(rows.start + first - start, rows.start + last - start)))
        else:
            found.append((number, inside, rows[first - start : last - start]))
    return found


# --- samples by number


#: Bytes of decoded blocks in the cache of a process.
CACHE = 64 << 20


class CachedSamples:
    """The samples of one process. A pickle has the source of the samples, but not the cache."""

    def __init__(self, samples: Samples, size: int = CACHE) -> None:
        self._samples = samples
        self._size = size
        self._block = samples.block_length(size)
        self._kept: OrderedDict[int, Sample] = OrderedDict()
        self._lock = processes.new_lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedSamples, (self._samples, self._size)

    def take(self, indices: Sequence[int]) -> list[Sample]:
        """Return samples in the order of `indices`. Negative numbers count from the end. Raises `IndexError`."""
        total = len(self._samples)
        numbers = [index(number) for number in indices]
        outside = [number for number in numbers if not -total <= number < total]
        if outside:
            raise IndexError(f"there is no sample {outside[0]}: there are {total}")
        places = [divmod(number % total, self._block) for number in numbers]
        found: dict[int, Sample] = {}
        taken: list[Sample | None] = [None] * len(places)
        for place in sorted(range(len(places)), key=lambda place: places[place]):  # each block once
            number, row = places[place]
            if number not in found:
                found = {number: self._block_at(number)}
            taken[place] = {name: values[row].copy() for name, values in found[number].items()}
        return [sample for sample in taken if sample is not None]

    def _block_at(self, number: int) -> Sample:
        with self._lock:
            if number in self._kept:
                self._kept.move_to_end(number)
                return self._kept[number]
        start, stop = number * self._block, min((number + 1) * self._block, len(self._samples))
        block = MixedWindow(((start, stop),), (slice(0, stop - start),), stop - start)
        read = result_of(read_window(self._samples.arrays, block))
        with self._lock:
            self._kept[number] = read
            most = max(1, self._size // (self._block * self._samples.sample_bytes))
            while len(self._kept) > most:
                self._kept.popitem(last=False)
        return read

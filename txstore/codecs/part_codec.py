"""Converts one chunk of an array between its stored value and an array in memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from txstore._native import chunks, local
from txstore.codecs.layout import ELIDE_EQUAL, KEEP, Layout
from txstore.zarr_private import ArraySpec

if TYPE_CHECKING:
    from typing_extensions import Buffer
    from zarr.abc.codec import CodecPipeline

AnyArray = np.ndarray[Any, Any]

_KEYS, _SEEN = (b"",), bytes(1)
#: In a table of places: there is no value.
_NO_PACK = -1
#: What one thread is given at least, in bytes.
_SHARE = 256 << 10


class PartCodec:
    """Decodes and encodes the chunks of one spec, by the C libraries, or as `ordinary` does. Safe in threads."""

    def __init__(self, spec: ArraySpec, layout: Layout | None, ordinary: CodecPipeline) -> None:
        self._spec = spec
        self._layout = layout if layout is not None and layout.shape == spec.shape else None
        self._ordinary = ordinary
        fill = spec.fill_value
        self._fill = spec.dtype.default_scalar() if fill is None else fill

    @property
    def is_lossless(self) -> bool:
        """Whether the codecs are known to lose nothing: the C has none that does."""
        return self._layout is not None

    def decode(self, value: memoryview | None) -> AnyArray:
        """Return a chunk of the caller's own; if there is no value, it is all fill value."""
        spec = self._spec
        if value is None:
            made = spec.prototype.nd_buffer.create(
                shape=spec.shape, dtype=spec.dtype.to_native_dtype(), order=spec.order, fill_value=self._fill
            )
            return _array(made)
        if self._layout is not None:
            array = np.empty(spec.shape, self._layout.dtype)
            table = np.array([0, 0, len(value), local.crc32c(value)], np.int64)
            if self._layout.batch([_whole(spec.shape)], array, writable=True).read([value], table, 1)[0] == chunks.READ:
                return array
        buffer = spec.prototype.buffer.from_bytes(value)
        transform = getattr(self._ordinary, "sync_transform", None)  # of zarr 3.4 and later
        if transform is not None:
            return _array(transform.decode_chunk(buffer, spec)).copy()
        (decoded,) = _run(_decode(self._ordinary, buffer, spec))
        return _array(decoded).copy()

    def decode_all(self, values: Sequence[memoryview | None]) -> AnyArray:
        """Return many chunks, one behind the other along a new first axis."""
        spec, layout = self._spec, self._layout
        found = np.empty((len(values), *spec.shape), spec.dtype.to_native_dtype())
        left: Iterable[int] = range(len(values))
        if layout is not None and spec.shape:
            packs: list[Buffer] = [value for value in values if value is not None]
            numbers = iter(range(len(packs)))
            table = np.array(
                [
                    (_NO_PACK, 0, 0, 0) if value is None else (next(numbers), 0, len(value), local.crc32c(value))
                    for value in values
                ],
                np.int64,
            )
            batch = layout.batch(_stacked(len(values), spec.shape), _flat(found), writable=True)
            states = batch.read(packs, table, _threads(found.nbytes))
            left = [row for row, state in enumerate(states) if state not in (chunks.READ, chunks.MISSING)]
        for row in left:
            chunk = self.decode(values[row])
            if chunk.shape != spec.shape or chunk.dtype.newbyteorder("=") != found.dtype.newbyteorder("="):
                raise ValueError(f"a chunk has {chunk.shape} elements of {chunk.dtype}")
            found[row] = chunk
        return found

    def encode_all(self, stacked: AnyArray) -> list[bytes | None]:
        """Return the stored values of many chunks."""
        spec, layout = self._spec, self._layout
        encoded: list[bytes | None] = [None] * len(stacked)
        left: Iterable[int] = range(len(stacked))
        elides = KEEP if spec.config.write_empty_chunks or layout is None else layout.elides
        if layout is not None and spec.shape and elides is not None and stacked.dtype == layout.dtype:
            stacked = np.ascontiguousarray(stacked)
            batch = layout.batch(_stacked(len(stacked), spec.shape), _flat(stacked), empties=elides)
            arena = memoryview(bytearray(batch.bound))
            batch.encode(_KEYS * len(stacked), bytes(len(stacked)), arena, 0, 0, _threads(stacked.nbytes))
            placed = np.frombuffer(batch.placed(), np.int64).reshape(-1, 5)
            for row, (state, offset, length, _, _) in enumerate(placed.tolist()):
                if state == chunks.PLACED:
                    encoded[row] = bytes(arena[offset : offset + length])
            left = np.flatnonzero((placed[:, 0] != chunks.PLACED) & (placed[:, 0] != chunks.EMPTY)).tolist()
        for row in left:
            value = self.encode(stacked[row])
            encoded[row] = None if value is None else bytes(value)
        return encoded

    def encode(self, array: AnyArray) -> memoryview | None:
        """Return the stored value of a chunk; None if all of the chunk is the fill value."""
        spec, layout = self._spec, self._layout
        elides = KEEP if spec.config.write_empty_chunks else ELIDE_EQUAL if layout is None else layout.elides
        if layout is not None and elides is not None and array.dtype == layout.dtype:
            batch = layout.batch([_whole(spec.shape)], array, empties=elides)
            arena = memoryview(bytearray(batch.bound))
            batch.encode(_KEYS, _SEEN, arena, 0, 0, 1)
            state, offset, length, _, _ = np.frombuffer(batch.placed(), np.int64).tolist()
            if state == chunks.EMPTY:
                return None
            if state == chunks.PLACED:
                return arena[offset : offset + length]
        chunk = spec.prototype.nd_buffer.from_ndarray_like(array)
        if not spec.config.write_empty_chunks and chunk.all_equal(self._fill):
            return None
        transform = getattr(self._ordinary, "sync_transform", None)
        if transform is not None:
            encoded = transform.encode_chunk(chunk, spec)
        else:
            (encoded,) = _run(_encode(self._ordinary, chunk, spec))
        return None if encoded is None else memoryview(np.ascontiguousarray(encoded.as_numpy_array()))


def _whole(shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return a row that takes a whole chunk."""
    selection = tuple([slice(0, extent, 1) for extent in shape])
    return None, None, selection, selection, True


def _stacked(count: int, shape: tuple[int, ...]) -> list[tuple[Any, ...]]:
    """Return rows that take whole chunks of an array in which they lie one behind the other along the first axis."""
    whole = tuple([slice(0, extent, 1) for extent in shape])
    places = (slice(at * shape[0], (at + 1) * shape[0], 1) for at in range(count))
    return [(None, None, whole, (place, *whole[1:]), True) for place in places]


def _flat(stacked: AnyArray) -> AnyArray:
    """Return the same chunks as one array, whose first axis is that of the chunks."""
    return stacked.reshape(-1, *stacked.shape[2:])


def _threads(work: int) -> int:
    return max(1, min(work // _SHARE, os.cpu_count() or 1))


def _array(buffer: Any) -> AnyArray:
    array: AnyArray = np.asanyarray(buffer.as_ndarray_like())
    return array


def _run(coding: Coroutine[Any, Any, Any]) -> Any:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coding)
    with ThreadPoolExecutor(1) as thread:  # zarr's own loop runs here, and waits for this
        return thread.submit(asyncio.run, coding).result()


async def _decode(pipeline: CodecPipeline, buffer: Any, spec: ArraySpec) -> Any:
    return await pipeline.decode([(buffer, spec)])


async def _encode(pipeline: CodecPipeline, chunk: Any, spec: ArraySpec) -> Any:
    return await pipeline.encode([(chunk, spec)])

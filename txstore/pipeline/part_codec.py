"""One chunk of an array, between its stored value and an array in memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
from zarr.core.array_spec import ArraySpec

from txstore._native import chunks, local
from txstore.pipeline.layout import ELIDE_EQUAL, KEEP, Layout

if TYPE_CHECKING:
    from zarr.abc.codec import CodecPipeline

AnyArray = np.ndarray[Any, Any]

_KEYS, _SEEN = (b"",), bytes(1)


class PartCodec:
    """Decodes and encodes the chunks of one spec, by the C libraries, or as `ordinary` does. Safe in threads."""

    def __init__(self, spec: ArraySpec, layout: Layout | None, ordinary: CodecPipeline) -> None:
        self._spec = spec
        self._layout = layout if layout is not None and layout.shape == spec.shape else None
        self._ordinary = ordinary
        fill = spec.fill_value
        self._fill = spec.dtype.default_scalar() if fill is None else fill

    def decode(self, value: memoryview | None) -> AnyArray:
        """Return a chunk that nobody else has; if there is no value, it is all fill value."""
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
        (decoded,) = asyncio.run(_decode(self._ordinary, buffer, spec))
        return _array(decoded).copy()

    def encode(self, array: AnyArray) -> memoryview | None:
        """Return what is stored of a chunk; None if that is nothing, as all of it is the fill value."""
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
            (encoded,) = asyncio.run(_encode(self._ordinary, chunk, spec))
        return None if encoded is None else memoryview(np.ascontiguousarray(encoded.as_numpy_array()))


def _whole(shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return a row that takes a whole chunk."""
    selection = tuple([slice(0, extent, 1) for extent in shape])
    return None, None, selection, selection, True


def _array(buffer: Any) -> AnyArray:
    array: AnyArray = np.asanyarray(buffer.as_ndarray_like())
    return array


async def _decode(pipeline: CodecPipeline, buffer: Any, spec: ArraySpec) -> Any:
    return await pipeline.decode([(buffer, spec)])


async def _encode(pipeline: CodecPipeline, chunk: Any, spec: ArraySpec) -> Any:
    return await pipeline.encode([(chunk, spec)])

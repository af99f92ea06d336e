"""Reads chunks of a snapshot through the cache of decoded chunks (`codecs/chunk_cache.py`).

The unit is a chunk, or an inner chunk of a shard. What is not in the cache is read whole, by the pipeline, into memory
beside the array; the wanted part of it is copied from there.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from zarr.buffer.cpu import NDBuffer

from txstore.codecs.chunk_cache import AnyArray, ChunkCache, Key
from txstore.zarr_private import ArraySpec

#: Of a batch of zarr's: key, spec, what is taken of the chunk, to where, and whether that is the whole chunk.
Row = tuple[Any, ArraySpec, Any, Any, bool]
#: Reads rows to a buffer; returns zarr's result for each row, if it has any.
Read = Callable[[list[Row], NDBuffer], Awaitable[Any]]

#: Kinds of elements whose size in memory is known.
_KINDS = "biufcMmSUV"


class _Part(NamedTuple):
    """A part of one row: what it takes of a chunk or inner chunk, and to where."""

    row: int
    key: Key
    begin: tuple[int, ...]  # where the inner chunk begins in its shard
    taken: Any
    to: Any


class CachedReads(NamedTuple):
    """The reads of one array of a snapshot. `shape` is that of its chunks, or of its inner chunks if `is_sharded`."""

    cache: ChunkCache
    snapshot: int
    shape: tuple[int, ...]
    is_sharded: bool

    async def read(self, rows: list[Row], array: AnyArray, read: Read) -> Any:
        """Read rows to an array. Returns zarr's result for each, or None if the cache is not for these rows."""
        if not self.shape or array.dtype.kind not in _KINDS:
            return None
        parts = self._parts(rows, most=self.cache.most_at_once // (math.prod(self.shape) * array.dtype.itemsize))
        if parts is None:
            return None
        missing: list[_Part] = []
        results: list[Any] = [{"status": "present"}] * len(rows)
        for part in parts:
            chunk = self.cache.get(part.key)
            if chunk is None:
                missing.append(part)
            else:
                array[part.to] = chunk[part.taken]
        if missing:
            await self._fill(missing, rows, array, read, results)
        return tuple(results)

    async def _fill(
        self, missing: list[_Part], rows: list[Row], array: AnyArray, read: Read, results: list[Any]
    ) -> None:
        """Read chunks that are not in the cache, and put them there."""
        first, *rest = self.shape
        beside = np.empty((len(missing) * first, *rest), array.dtype)
        whole = tuple([slice(0, extent, 1) for extent in rest])
        wanted: list[Row] = []
        for at, part in enumerate(missing):
            getter, spec, *_ = rows[part.row]
            box = tuple([slice(low, low + extent, 1) for low, extent in zip(part.begin, self.shape, strict=True)])
            wanted.append((getter, spec, box, (slice(at * first, (at + 1) * first, 1), *whole), not self.is_sharded))
        found = await read(wanted, NDBuffer.from_numpy_array(beside))
        for at, part in enumerate(missing):
            chunk = beside[at * first : (at + 1) * first]
            array[part.to] = chunk[part.taken]
            result = found[at] if found else None
            results[part.row] = result
            if result is None or result["status"] == "present":
                self.cache.put(part.key, chunk if len(missing) == 1 else chunk.copy())

    def _parts(self, rows: list[Row], most: int) -> list[_Part] | None:
        """Return what the rows take of each chunk or inner chunk. None: more than `most`, or not told by slices."""
        parts: list[_Part] = []
        if len(rows) > most:
            return None
        for number, (getter, _, chunk, out, _) in enumerate(rows):
            if not self.is_sharded:
                parts.append(_Part(number, (self.snapshot, getter.path, ()), (0,) * len(self.shape), chunk, out))
                continue
            axes = self._axes(chunk, out)
            if axes is None or len(parts) + math.prod(map(len, axes)) > most:
                return None
            for pieces in product(*axes):
                inner = tuple([piece.inner for piece in pieces])
                begin = tuple([piece.inner * extent for piece, extent in zip(pieces, self.shape, strict=True)])
                to = tuple([piece.to for piece in pieces if piece.to is not None])
                key = self.snapshot, getter.path, inner
                parts.append(_Part(number, key, begin, tuple([piece.taken for piece in pieces]), to))
        return parts

    def _axes(self, chunk: Any, out: Any) -> list[list[_AxisPart]] | None:
        """Return, for each axis of a shard, what a selection takes of each inner chunk along it."""
        if not isinstance(chunk, tuple) or not isinstance(out, tuple) or len(chunk) != len(self.shape):
            return None
        axes: list[list[_AxisPart]] = []
        targets = iter(out)
        for taken, extent in zip(chunk, self.shape, strict=True):
            if isinstance(taken, int | np.integer):
                axes.append([_AxisPart(int(taken) // extent, int(taken) % extent, None)])
                continue
            to: Any = next(targets, None)
            if not (_is_run(taken) and _is_run(to)) or taken.stop - taken.start != to.stop - to.start:
                return None
            axes.append(_pieces(taken, to, extent))
        return None if next(targets, None) is not None else axes


class _AxisPart(NamedTuple):
    """What a selection takes of one inner chunk along one axis."""

    inner: int
    taken: int | slice
    to: slice | None  # None: the axis is dropped


def _is_run(item: Any) -> bool:
    return isinstance(item, slice) and item.start is not None and item.stop is not None and item.step in (None, 1)


def _pieces(taken: slice, to: slice, extent: int) -> list[_AxisPart]:
    pieces = []
    for inner in range(taken.start // extent, -(-taken.stop // extent)):
        low, high = max(taken.start, inner * extent), min(taken.stop, (inner + 1) * extent)
        shift = to.start - taken.start
        pieces.append(
            _AxisPart(inner, slice(low - inner * extent, high - inner * extent), slice(low + shift, high + shift))
        )
    return pieces

"""Reads blocks of one array straight into the rows of a result.

It fetches whole chunks, decodes many at a time with zarr's codecs, and copies the samples to their rows. That saves the
selection, the event loop and the copy that zarr's indexing needs for each chunk. For arrays with shards, another format
or dtypes of variable length it uses zarr's indexing.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import zarr
from numpy.typing import NDArray
from zarr.buffer import default_buffer_prototype

from txstore.zarr_private import ArraySpec

#: Start and stop of a block, and its rows in the result.
Block = tuple[tuple[int, int], Any]


async def read_blocks(array: zarr.Array[Any], blocks: Sequence[Block], result: NDArray[Any]) -> None:
    """Put the samples of blocks in their rows of `result`."""
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

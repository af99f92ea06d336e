"""Makes the metadata of an array with other chunks, shards or compressors, and nothing else changed."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numcodecs
import zarr
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import BloscCodec, ShardingCodec
from zarr.storage import MemoryStore

from txstore.labels.grids import axes_of
from txstore.rechunk.plans import ReadAxis
from txstore.zarr_private import ArrayV2Metadata, ArrayV3Metadata

#: In place of a value: as it is now.
KEEP = "keep"

#: Bytes that an element of variable length, such as a text, is taken to have.
_OF_VARIABLE_LENGTH = 64


@dataclass(frozen=True)
class ArrayForm:
    """The chunks, shards and compressors that an array shall have. `compressors` are as the documents list them."""

    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    compressors: tuple[Any, ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "chunks": list(self.chunks),
            "shards": self.shards and list(self.shards),
            "compressors": list(self.compressors),
        }

    @property
    def written(self) -> tuple[int, ...]:
        """The shape of what is written at once: a shard, or a chunk."""
        return self.shards or self.chunks

    def metadata(self, present: Any) -> Any:
        """Return the metadata of an array in this form. `present` are its metadata now.

        Raises what zarr raises for chunks that can't be.
        """
        if present.zarr_format == 2:
            (compressor,) = self.compressors or (None,)
            return ArrayV2Metadata.from_dict(
                {**_document(present), "chunks": list(self.chunks), "compressor": compressor}
                | {"attributes": present.attributes}
            )
        inner, sharding = _codecs_of(present)
        codecs = [codec.to_dict() for codec in inner if not isinstance(codec, BytesBytesCodec)] + [*self.compressors]
        if self.shards is not None:
            known: Any = (ShardingCodec(chunk_shape=self.chunks) if sharding is None else sharding).to_dict()
            configuration = {**known["configuration"], "chunk_shape": list(self.chunks), "codecs": codecs}
            codecs = [{"name": "sharding_indexed", "configuration": configuration}]
        grid: Any = {"name": "regular", "configuration": {"chunk_shape": list(self.written)}}
        return ArrayV3Metadata.from_dict({**_document(present), "chunk_grid": grid, "codecs": codecs})


def target_of(
    array: zarr.Array[Any], chunks: int | Sequence[int] | None, shards: int | Sequence[int] | None, compressors: Any
) -> ArrayForm:
    """Return the form that a user asks for. Raises `ValueError` or `TypeError` if an array can't have it."""
    metadata = array.metadata
    inner, outer = read_units(metadata), None
    if chunks is None:
        if inner is None:
            raise ValueError(f"{array.path!r} has chunks of several lengths: give the new ones with chunks=")
        sizes, outer = inner, array.shards
    else:
        sizes = _shape("chunks", chunks, array.ndim)
    if shards is not None:
        outer = _shape("shards", shards, array.ndim)
    if outer is not None:
        if metadata.zarr_format == 2:
            raise ValueError(f"{array.path!r} is of zarr format 2, which has no shards: leave out shards=")
        if any(whole % part for whole, part in zip(outer, sizes, strict=True)):
            raise ValueError(f"shards {outer} are not made of whole chunks {sizes}: give a multiple along each axis")
    return ArrayForm(sizes, outer, tuple(_compressors(metadata, compressors)))


def between(metadata: Any, chunks: tuple[int, ...], target: ArrayForm) -> ArrayForm:
    """Return the form of an array that is read once, and then deleted: compressed in little time, if at all."""
    if not target.compressors:
        return ArrayForm(chunks, None, ())
    fast: Any
    if metadata.zarr_format == 2:
        fast = numcodecs.Blosc(cname="lz4", clevel=1, shuffle=numcodecs.Blosc.SHUFFLE)
    else:
        dtype = metadata.dtype.to_native_dtype()
        size = dtype.itemsize if dtype.kind not in "OT" and 0 < dtype.itemsize < 256 else 1
        fast = BloscCodec(typesize=size, cname="lz4", clevel=1, shuffle="shuffle")
    return ArrayForm(chunks, None, tuple(_compressors(metadata, fast)))


def read_units(metadata: Any) -> tuple[int, ...] | None:
    """Return the shape of what can be read by itself: an inner chunk of a shard, or a chunk. None: they differ."""
    if metadata.zarr_format == 2:
        return tuple(metadata.chunks)
    _, sharding = _codecs_of(metadata)
    if sharding is not None:
        return tuple(sharding.chunk_shape)
    grid = metadata.chunk_grid.to_dict()
    return tuple(grid["configuration"]["chunk_shape"]) if grid["name"] == "regular" else None


def read_axes(metadata: Any) -> list[ReadAxis]:
    """Return how the axes of an array are cut into what can be read by itself."""
    units = read_units(metadata)
    if units is None:
        return [ReadAxis(axis.length, axis.starts) for axis in axes_of(metadata)]
    return [ReadAxis.regular(length, size) for length, size in zip(metadata.shape, units, strict=True)]


def element_size(metadata: Any) -> int:
    """Return the bytes of one element in memory; of one of variable length, about."""
    dtype = metadata.dtype.to_native_dtype()
    return _OF_VARIABLE_LENGTH if dtype.kind in "OT" else max(1, dtype.itemsize)


def _document(metadata: Any) -> dict[str, Any]:
    found: dict[str, Any] = metadata.to_dict()
    return found


def _codecs_of(metadata: Any) -> tuple[Sequence[Any], Any]:
    """Return the codecs of an array of format 3, of its inner chunks if it is sharded, and then its sharding codec."""
    codecs = tuple(metadata.codecs)
    sharding = codecs[0] if len(codecs) == 1 and isinstance(codecs[0], ShardingCodec) else None
    return codecs if sharding is None else tuple(sharding.codecs), sharding


def _shape(what: str, given: int | Sequence[int], dimensions: int) -> tuple[int, ...]:
    sizes = (given,) if isinstance(given, int) else tuple(map(operator.index, given))
    if len(sizes) != dimensions or not all(size > 0 for size in sizes):
        raise ValueError(f"{what}={given!r}: give {dimensions} lengths in elements, one for each axis, each 1 or more")
    return sizes


def _compressors(metadata: Any, given: Any) -> list[Any]:
    """Return compressors as documents list them."""
    if isinstance(given, str) and given == KEEP:
        found = metadata
    else:
        # zarr knows all ways to name a compressor, and what fits an array of this format and dtype.
        made = zarr.create_array(
            MemoryStore(), shape=(1,), dtype=metadata.dtype, chunks=(1,), zarr_format=metadata.zarr_format,
            compressors=given,
        )  # fmt: skip
        found = made.metadata
    if found.zarr_format == 2:
        compressor = found.to_dict()["compressor"]
        return [] if compressor is None else [getattr(compressor, "get_config", lambda: compressor)()]
    return [codec.to_dict() for codec in _codecs_of(found)[0] if isinstance(codec, BytesBytesCodec)]

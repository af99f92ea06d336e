"""Translates the metadata of an array into the chunk layout that `_native.chunks` understands, if it can.

Zarr's own pipeline handles the rest: irregular grids, structured, complex (in writes) and variable-length elements,
elements whose stored byte order differs from that in memory, and codecs without a C library.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numcodecs
import numpy as np
from zarr.buffer.cpu import buffer_prototype
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, ShardingCodec, TransposeCodec, ZstdCodec

from txstore._native import chunks
from txstore.zarr_private import ArrayConfig, ArraySpec, ArrayV2Metadata, ArrayV3Metadata

Codecs = tuple[tuple[str | int, ...], ...]

#: `Batch`: which chunks are all fill value, and not stored.
KEEP, ELIDE_EQUAL, ELIDE_NAN = 0, 1, 2

_LARGEST = (1 << 31) - 64  # of a chunk, in bytes: Blosc counts in 32 bits
_MOST_AXES, _MOST_CODECS = 16, 8
_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
_AUTOMATIC = -1


#: How a chunk lies in its bytes, by its strides, and what these go through.
_Encoded = tuple[tuple[int, ...], Codecs]


class Layout(NamedTuple):
    """The chunks of one array, or its shards."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    inner: tuple[tuple[int, ...], tuple[int, ...], bool, bool] | None
    codecs: Codecs
    fill: bytes  # one element
    elides: int | None  # how it is told that a chunk is not stored; None: not by us

    @property
    def size(self) -> int:
        """The bytes of a chunk in memory."""
        return math.prod(self.shape) * self.dtype.itemsize

    def place(self, row: tuple[Any, ...], array: np.ndarray[Any, Any]) -> memoryview | None:
        """Return the bytes of an array that a row reads into, if the bytes of its chunk are the same; else None."""
        _, _, chunk, out, _ = row
        if (
            self.inner is not None
            or self.codecs
            or self.strides != _strides(self.shape, self.dtype.itemsize, range(len(self.shape)))
        ):
            return None
        if not isinstance(chunk, tuple) or not isinstance(out, tuple) or len(out) != array.ndim:
            return None
        if not all(isinstance(each, slice) for each in (*chunk, *out)):
            return None
        if [each.indices(extent) for each, extent in zip(chunk, self.shape, strict=True)] != [
            (0, extent, 1) for extent in self.shape
        ]:
            return None
        part = array[(*out, ...)]  # of an array without axes, too, a view
        if part.shape != self.shape or not part.flags.c_contiguous:
            return None
        return part.reshape(-1).view(np.uint8).data

    def batch(
        self, rows: list[tuple[Any, ...]], array: np.ndarray[Any, Any], *, empties: int = KEEP, writable: bool = False
    ) -> chunks.Batch:
        """Return rows of zarr's as a batch that reads into an array (`writable`), or writes it."""
        itemsize = self.dtype.itemsize
        raw = array.view(f"V{itemsize}")  # dates can't be had as a buffer
        chunk = self.shape, self.strides
        return chunks.Batch(rows, raw, chunk, self.inner, itemsize, self.codecs, self.fill, empties, writable)


@cache
def libraries() -> tuple[str, ...]:
    """Return which compressors were found in the extension modules of numcodecs."""
    return chunks.load(*[_path_of(f"numcodecs.{name}") for name in ("zstd", "blosc")])


def _path_of(module: str) -> str | None:
    try:
        spec = find_spec(module)
    except ImportError:
        return None
    return None if spec is None else spec.origin


def layout_of(metadata: ArrayV2Metadata | ArrayV3Metadata) -> Layout | None:
    """Return how the chunks of an array lie, or None."""
    shape = chunk_shape(metadata)
    zdtype, dtype = _zdtype(metadata), dtype_of(metadata)
    if shape is None or len(shape) > _MOST_AXES or dtype.kind not in "biufcMmSUV" or dtype.names or not dtype.itemsize:
        return None
    if dtype.subdtype is not None or 0 in shape or math.prod(shape) * dtype.itemsize > _LARGEST:
        return None
    fill = metadata.fill_value if metadata.fill_value is not None else zdtype.default_scalar()
    item = np.array(fill, dtype).tobytes()
    elides = _elides(dtype, item)
    if isinstance(metadata, ArrayV2Metadata):
        encoded = _format2(metadata, shape, dtype)
        return None if encoded is None else Layout(dtype, shape, encoded[0], None, encoded[1], item, elides)
    codecs = _evolved(metadata.codecs, shape, zdtype, metadata.fill_value)
    if len(codecs) == 1 and type(codecs[0]) is ShardingCodec:
        return _sharded(codecs[0], shape, dtype, zdtype, metadata.fill_value, item, elides)
    encoded = _encoded(codecs, shape, dtype)
    return None if encoded is None else Layout(dtype, shape, encoded[0], None, encoded[1], item, elides)


def _zdtype(metadata: ArrayV2Metadata | ArrayV3Metadata) -> Any:
    return metadata.dtype if isinstance(metadata, ArrayV2Metadata) else metadata.data_type


def dtype_of(metadata: ArrayV2Metadata | ArrayV3Metadata) -> np.dtype[Any]:
    """Return the type of the elements of an array in memory."""
    dtype: np.dtype[Any] = np.dtype(_zdtype(metadata).to_native_dtype())
    return dtype


def chunk_shape(metadata: ArrayV2Metadata | ArrayV3Metadata) -> tuple[int, ...] | None:
    """Return the shape of an array's chunks, or of its shards. None if it is not the same for all."""
    if isinstance(metadata, ArrayV2Metadata):
        return tuple(metadata.chunks)
    grid: Any = metadata.chunk_grid
    return tuple(grid.chunk_shape) if type(grid).__name__.startswith("Regular") else None


def _elides(dtype: np.dtype[Any], item: bytes) -> int | None:
    """Return how to tell that each element is the fill value as zarr does."""
    if dtype.kind == "c":
        return None
    if dtype.kind == "f" and np.isnan(np.frombuffer(item, dtype)[0]):
        return ELIDE_NAN if dtype.isnative and dtype.itemsize in (2, 4, 8) else None
    return ELIDE_EQUAL


def _evolved(codecs: Iterable[Any], shape: tuple[int, ...], zdtype: Any, fill_value: Any) -> list[Any]:
    """Return codecs with what they take from the array."""
    config = ArrayConfig.from_dict({})
    spec = ArraySpec(shape=shape, dtype=zdtype, fill_value=fill_value, config=config, prototype=buffer_prototype)
    evolved = []
    for codec in codecs:
        evolved.append(codec.evolve_from_array_spec(spec))
        spec = evolved[-1].resolve_metadata(spec)
    return evolved


def _strides(shape: Sequence[int], itemsize: int, order: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of an array whose axes lie in this order in its bytes, the slowest first."""
    strides, stride = [0] * len(shape), itemsize
    for axis in reversed(order):
        strides[axis] = stride
        stride *= shape[axis]
    return tuple(strides)


def _encoded(codecs: list[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> _Encoded | None:
    order: Sequence[int] = range(len(shape))
    rest = list(codecs)
    if rest and type(rest[0]) is TransposeCodec:
        order = rest.pop(0).order
    if not rest or type(rest[0]) is not BytesCodec or not _is_in_order(dtype, rest.pop(0).endian):
        return None
    known = _codecs(rest)
    return None if known is None else (_strides(shape, dtype.itemsize, order), known)


def _is_in_order(dtype: np.dtype[Any], endian: Any) -> bool:
    """Tell whether elements are stored in the byte order that they have in memory."""
    if dtype.byteorder == "|" or dtype.itemsize == 1:
        return True
    return dtype.isnative == (_text(endian) == sys.byteorder)


def _text(name: Any) -> str:
    return str(getattr(name, "value", name))  # zarr 3.1 has enumerations


def _codecs(codecs: list[Any]) -> Codecs | None:
    found: list[tuple[str | int, ...]] = []
    for codec in codecs:
        if type(codec) is Crc32cCodec:
            found.append(("crc32c",))
        elif type(codec) is ZstdCodec:
            found.append(("zstd", codec.level, int(codec.checksum)))
        elif type(codec) is BloscCodec:
            shuffle = _SHUFFLES[_text(codec.shuffle)]
            found.append(("blosc", codec.clevel, shuffle, codec.typesize, codec.blocksize, _text(codec.cname)))
        else:
            return None
    return _if_available(found)


def _if_available(codecs: list[tuple[str | int, ...]]) -> Codecs | None:
    compressors = [codec[0] for codec in codecs if codec[0] != "crc32c"]
    is_known = len(codecs) <= _MOST_CODECS and len(compressors) < 2 and set(compressors) <= set(libraries())
    return tuple(codecs) if is_known else None


def _format2(metadata: ArrayV2Metadata, shape: tuple[int, ...], dtype: np.dtype[Any]) -> _Encoded | None:
    if metadata.filters:
        return None
    compressor: Any = metadata.compressor
    order = range(len(shape)) if metadata.order == "C" else range(len(shape) - 1, -1, -1)
    found: list[tuple[str | int, ...]] = []
    if type(compressor) is numcodecs.Zstd:
        found.append(("zstd", compressor.level, int(compressor.checksum)))
    elif type(compressor) is numcodecs.Blosc:
        shuffle = compressor.shuffle
        if shuffle == _AUTOMATIC:
            shuffle = 2 if dtype.itemsize == 1 else 1
        found.append(("blosc", compressor.clevel, shuffle, dtype.itemsize, compressor.blocksize, compressor.cname))
    elif compressor is not None:
        return None
    known = _if_available(found)
    return None if known is None else (_strides(shape, dtype.itemsize, order), known)


def _sharded(
    codec: ShardingCodec,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    zdtype: Any,
    fill_value: Any,
    item: bytes,
    elides: int | None,
) -> Layout | None:
    inner_shape = tuple(codec.chunk_shape)
    encoded = _encoded(_evolved(codec.codecs, inner_shape, zdtype, fill_value), inner_shape, dtype)
    index = [*codec.index_codecs]
    if encoded is None or not index or type(index[0]) is not BytesCodec or _text(index[0].endian) != "little":
        return None
    if any(type(each) is not Crc32cCodec for each in index[1:]) or len(index) > 2:
        return None
    if any(whole % part for whole, part in zip(shape, inner_shape, strict=True)):
        return None
    inner = inner_shape, encoded[0], _text(codec.index_location) == "start", len(index) == 2
    strides = _strides(shape, dtype.itemsize, range(len(shape)))
    return Layout(dtype, shape, strides, inner, encoded[1], item, elides)

"""Codecs that decode no more bytes than the array's document says that a chunk has.

A library decodes whatever a stranger has compressed: 10 MiB to 10 GiB. So for reads of TxStore's own, a stored value is
measured before a codec decodes it: by its header, or where the header does not say it, by decompressing it piece by
piece without keeping the pieces. Codecs that the user has allowed in the environment are not measured.
"""

from __future__ import annotations

import asyncio
import bz2
import dataclasses
import lzma
import math
import zlib
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
from zarr.abc.codec import Codec
from zarr.codecs import ShardingCodec
from zarr.codecs._v2 import V2Codec
from zarr.core.array_spec import ArraySpec
from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata

#: What a chunk may decode to beside its elements, in bytes: for headers, checksums, and what is only known roughly.
_SPARE = 1 << 20
#: The same for each element: between codecs it may have another type, and an inner chunk of a shard has an index entry.
_SPARE_OF_ELEMENT = 32
#: What a chunk of texts may decode to, in bytes: no document says how long they are.
_TEXTS = 256 << 20
_PIECE = 1 << 20
#: Of zstd: what a compressed block has at most, in bytes.
_ZSTD_BLOCK = 128 << 10


def bounded_codecs(metadata: Any) -> list[Codec]:
    """Return the codecs of an array, each of which decodes no more than a chunk may have. They encode as before."""
    if isinstance(metadata, ArrayV3Metadata):
        return _bounded(metadata.codecs)
    assert isinstance(metadata, ArrayV2Metadata)
    chunk = _DecodedSize.of(metadata.chunks, metadata.dtype)
    filters = None if metadata.filters is None else tuple([_numcodec(each, chunk) for each in metadata.filters])
    return [V2Codec(filters=filters, compressor=_numcodec(metadata.compressor, chunk))]


def _bounded(codecs: Iterable[Any]) -> list[Codec]:
    found: list[Any] = []
    for codec in codecs:
        if isinstance(codec, ShardingCodec):
            inner, index = _bounded(codec.codecs), _bounded(codec.index_codecs)
            found.append(dataclasses.replace(codec, codecs=inner, index_codecs=index))  # type: ignore[arg-type]
        else:
            found.append(_as(_measuring(codec.__class__), codec) if _name(codec) in _MEASURES else codec)
    return found


def _name(codec: Any) -> str:
    name: str = codec.to_dict()["name"]
    return name.removeprefix("numcodecs.")


def _numcodec(codec: Any, chunk: _DecodedSize) -> Any:
    if codec is None or codec.codec_id not in _MEASURES:
        return codec
    found = _as(_measuring_numcodec(codec.__class__), codec)
    found._chunk = chunk  # an underscore: it is no part of its configuration
    return found


def _as(kind: type, codec: Any) -> Any:
    made: Any = object.__new__(kind)
    made.__dict__.update(codec.__dict__)
    return made


@dataclasses.dataclass(frozen=True)
class _DecodedSize:
    """How many elements a chunk has, and how many bytes it may decode to."""

    elements: int
    most: int

    @classmethod
    def of(cls, shape: Iterable[int], dtype: Any) -> _DecodedSize:
        native = np.dtype(dtype.to_native_dtype())
        elements = math.prod(shape)
        is_text = native.hasobject or native.kind == "T"
        return cls(elements, _TEXTS if is_text else elements * (native.itemsize + _SPARE_OF_ELEMENT) + _SPARE)


@cache
def _measuring(kind: Any) -> type:
    """Return a class of zarr's codecs that measures before it decodes."""

    class Measuring(kind):  # type: ignore[misc]
        def _decode_sync(self, chunk_bytes: Any, chunk_spec: ArraySpec) -> Any:
            _measure(_name(self), chunk_bytes.as_numpy_array(), _DecodedSize.of(chunk_spec.shape, chunk_spec.dtype))
            return super()._decode_sync(chunk_bytes, chunk_spec)

        async def _decode_single(self, chunk_bytes: Any, chunk_spec: ArraySpec) -> Any:
            if hasattr(kind, "_decode_sync"):
                return await asyncio.to_thread(self._decode_sync, chunk_bytes, chunk_spec)
            _measure(_name(self), chunk_bytes.as_numpy_array(), _DecodedSize.of(chunk_spec.shape, chunk_spec.dtype))
            return await super()._decode_single(chunk_bytes, chunk_spec)

    return Measuring


@cache
def _measuring_numcodec(kind: Any) -> type:
    """Return a class of numcodecs' codecs that measures before it decodes."""

    class MeasuringNumcodec(kind):  # type: ignore[misc]
        _chunk: _DecodedSize

        def decode(self, buf: Any, out: Any = None) -> Any:
            _measure(self.codec_id, buf, self._chunk)
            return super().decode(buf, out)

    return MeasuringNumcodec


# --- measuring


def _measure(name: str, encoded: Any, chunk: _DecodedSize) -> None:
    """Raise `ValueError` if a value decodes to more than a chunk may have."""
    data = memoryview(np.ascontiguousarray(np.asarray(encoded)).reshape(-1).view(np.uint8))
    most = chunk.elements if name.startswith("vlen") else chunk.most
    if _MEASURES[name](data, most) > most:
        raise ValueError(
            f"{len(data):,} bytes decode by {name} to more than their chunk has, of {chunk.elements:,} elements by the "
            "array's document: TxStore decodes no more than that on its own"
        )


def _number(data: memoryview, at: int, size: int = 4) -> int:
    return int.from_bytes(data[at : at + size], "little")


def _blosc(data: memoryview, _most: int) -> int:
    if _number(data, 12) > len(data):
        raise ValueError("a value is shorter than its header says (blosc)")
    return _number(data, 4)


def _first_number(data: memoryview, _most: int) -> int:
    return _number(data, 0)


def _zstd(data: memoryview, most: int) -> int:
    """Return the content size of a single frame; else the most that the blocks of all frames decode to."""
    at = total = frames = 0
    content = None
    while at < len(data) and (total <= most or frames == 1):
        if _number(data, at) & ~15 == 0x184D2A50:  # a frame to skip
            at += 8 + _number(data, at + 4)
            continue
        frames += 1
        descriptor = _number(data, at + 4, 1)
        is_single_segment = descriptor >> 5 & 1
        at += 5 + (1 - is_single_segment) + (0, 1, 2, 4)[descriptor & 3]
        size = (is_single_segment, 2, 4, 8)[descriptor >> 6]
        content = _number(data, at, size) + (256 if size == 2 else 0) if size else None
        at += size
        is_last = False
        is_known = frames == 1 and content is not None and content <= most
        while not is_last and at < len(data) and (total <= most or is_known):
            block = _number(data, at, 3)
            is_last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
            total += size if kind < 2 else _ZSTD_BLOCK
            at += 3 + (1 if kind == 1 else size)
        at += 4 * (descriptor >> 2 & 1)
        if frames == 1 and content is not None and at >= len(data):
            return content  # the library decodes to a buffer of this size
    return total


def _inflated(data: memoryview, most: int, new: Callable[[], Any]) -> int:
    """Return how much zlib makes of all members of a value, or more than `most`."""
    total, decoder, is_behind = 0, new(), False
    for at in range(0, len(data), _PIECE):
        left = bytes(data[at : at + _PIECE])
        while left and total <= most:
            try:
                total += len(decoder.decompress(left, _PIECE))
            except zlib.error:
                if is_behind:  # libraries leave what is behind the first member, and is none
                    return total
                raise
            left = decoder.unconsumed_tail
            if decoder.eof:
                left, decoder, is_behind = decoder.unused_data, new(), True
    return total


def _decompressed(data: memoryview, most: int, new: Callable[[], Any]) -> int:
    """Return how much bz2 or lzma make of all streams of a value, or more than `most`."""
    total, decoder, left, is_behind = 0, new(), bytes(data), False
    while total <= most:
        try:
            made = decoder.decompress(left, _PIECE)
        except (OSError, lzma.LZMAError):
            if is_behind:
                return total
            raise
        total += len(made)
        left = b""
        if decoder.eof:
            left, decoder, is_behind = decoder.unused_data, new(), True
        if not made and not left:
            break
    return total


def _lzma(data: memoryview, most: int) -> int:
    # Raw streams are refused: they don't say how much memory they take.
    return _decompressed(data, most, lambda: lzma.LZMADecompressor(memlimit=2 * most + (128 << 20)))


_MEASURES: dict[str, Callable[[memoryview, int], int]] = {
    "blosc": _blosc,
    "lz4": _first_number,
    "vlen-utf8": _first_number,
    "vlen-bytes": _first_number,
    "zstd": _zstd,
    "gzip": lambda data, most: _inflated(data, most, lambda: zlib.decompressobj(31)),
    "zlib": lambda data, most: _inflated(data, most, zlib.decompressobj),
    "bz2": lambda data, most: _decompressed(data, most, bz2.BZ2Decompressor),
    "lzma": _lzma,
}

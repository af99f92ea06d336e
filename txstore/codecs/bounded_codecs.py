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
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
from zarr.abc.codec import Codec, CodecPipeline
from zarr.codecs import ShardingCodec

from txstore.zarr_private import (
    ArraySpec,
    ArrayV2Metadata,
    ArrayV3Metadata,
    BatchedCodecPipeline,
    FusedCodecPipeline,
    V2Codec,
)

#: Codecs whose configuration says of what type the elements are.
_CONVERTING = ("astype", "delta", "fixedscaleoffset", "quantize")
#: What a chunk may decode to beside its elements, in bytes: for headers, checksums, and what is only known roughly.
_SPARE = 1 << 20
#: The same for each element: between codecs it may have another type, and an inner chunk of a shard has an index entry.
_SPARE_OF_ELEMENT = 32
#: What a chunk of texts may decode to, in bytes: no document says how long they are.
_TEXTS = 256 << 20
_PIECE = 1 << 20
#: What a chunk may decode to on this machine, in bytes: an array may declare chunks of any size.
MOST_IN_MEMORY = max(2 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8)
#: How many gzip members, or streams of bz2 or lzma, a value has: finding the next one takes time.
_MEMBERS = 1000
#: The length of Blosc's header, in bytes.
_BLOSC_HEADER = 16
#: Of zstd: what a compressed block has at most, in bytes.
_ZSTD_BLOCK = 128 << 10


def zarr_pipeline(
    metadata: Any, spec: ArraySpec, kind: type[CodecPipeline] | None = None, *, is_bounded: bool = True
) -> CodecPipeline:
    """Return a pipeline of zarr's own for an array. Bounded: its codecs decode no more than a chunk may have.

    `kind`: the class of the pipeline; by default the newest one that works on one chunk at a time.
    """
    codecs = _bounded_codecs(metadata) if is_bounded else _codecs(metadata)
    if kind is None:
        kind = FusedCodecPipeline or BatchedCodecPipeline
    if FusedCodecPipeline is not None:
        return kind.from_codecs(codecs).evolve_from_array_spec(spec)
    for place, codec in enumerate(codecs):  # pipelines of older versions can't do that
        codecs[place] = codec.evolve_from_array_spec(spec)
        spec = codecs[place].resolve_metadata(spec)
    return kind.from_codecs(codecs)


def _codecs(metadata: Any) -> list[Codec]:
    if isinstance(metadata, ArrayV3Metadata):
        return list(metadata.codecs)
    return [V2Codec(filters=metadata.filters, compressor=metadata.compressor)]


def _bounded_codecs(metadata: Any) -> list[Codec]:
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
            shard: Any = dataclasses.replace(codec, codecs=inner, index_codecs=index)  # type: ignore[arg-type]
            found.append(_as(_measuring(shard.__class__), shard))
        else:
            _check_types(_name(codec), codec.to_dict().get("configuration") or {})
            found.append(_as(_measuring(codec.__class__), codec) if _name(codec) in _MEASURES else codec)
    return found


def _name(codec: Any) -> str:
    name: str = codec.to_dict()["name"]
    return name.removeprefix("numcodecs.")


def _numcodec(codec: Any, chunk: _DecodedSize) -> Any:
    if codec is None or codec.codec_id not in _MEASURES:
        return codec
    _check_types(codec.codec_id, codec.get_config())
    found = _as(_measuring_numcodec(codec.__class__), codec)
    found._chunk = chunk  # an underscore: it is no part of its configuration
    return found


def _check_types(name: str, configuration: Mapping[str, Any]) -> None:
    """Raise `ValueError` if a codec converts to what is no number: a text may be of any length."""
    for member in ("dtype", "astype", "encode_dtype", "decode_dtype"):
        given = configuration.get(member)
        if name in _CONVERTING and given is not None and np.dtype(given).kind not in "biufcmM":
            raise ValueError(f"{name} converts to {given}: TxStore converts only numbers on its own")


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
            _measure_chunk(self, chunk_bytes, chunk_spec)
            return super()._decode_sync(chunk_bytes, chunk_spec)

        async def _decode_single(self, chunk_bytes: Any, chunk_spec: ArraySpec) -> Any:
            if hasattr(kind, "_decode_sync"):
                return await asyncio.to_thread(self._decode_sync, chunk_bytes, chunk_spec)
            _measure_chunk(self, chunk_bytes, chunk_spec)
            return await super()._decode_single(chunk_bytes, chunk_spec)

    return Measuring


@cache
def _measuring_numcodec(kind: Any) -> type:
    """Return a class of numcodecs' codecs that measures before it decodes."""

    class MeasuringNumcodec(kind):  # type: ignore[misc]
        _chunk: _DecodedSize

        def decode(self, buf: Any, out: Any = None) -> Any:
            _measure(self.codec_id, self, buf, self._chunk)
            return super().decode(buf, out)

    return MeasuringNumcodec


# --- measuring


def _measure_chunk(codec: Any, encoded: Any, spec: ArraySpec) -> None:
    if isinstance(codec, ShardingCodec):  # as a whole; parts of it are decoded one by one
        check_size(spec)
        return
    _measure(_name(codec), codec, encoded.as_numpy_array(), _DecodedSize.of(spec.shape, spec.dtype))


def check_size(spec: ArraySpec) -> None:
    """Raise `ValueError` if a chunk takes too much memory on this machine."""
    _check_memory(math.prod(spec.shape) * np.dtype(spec.dtype.to_native_dtype()).itemsize)


def _check_memory(size: int) -> None:
    if size > MOST_IN_MEMORY:
        raise ValueError(
            f"a chunk decodes to {size:,} bytes or more: on this machine TxStore decodes at most {MOST_IN_MEMORY:,} "
            "on its own (2 GiB, or an eighth of its memory). By zarr, copy the array to one with smaller chunks"
        )


def _measure(name: str, codec: Any, encoded: Any, chunk: _DecodedSize) -> None:
    """Raise `ValueError` if a value decodes to more than a chunk may have."""
    data = memoryview(np.ascontiguousarray(np.asarray(encoded)).reshape(-1).view(np.uint8))
    # Each text has four bytes for its length: the library makes as many as the value says before it looks at them.
    most = min(chunk.elements, len(data) // 4) if name.startswith("vlen") else chunk.most
    size = _MEASURES[name](codec, data, min(most, MOST_IN_MEMORY))
    if size > most:
        raise ValueError(
            f"{len(data):,} bytes decode by {name} to more than their chunk has, of {chunk.elements:,} elements by the "
            "array's document: TxStore decodes no more than that on its own"
        )
    _check_memory(size)


def _number(data: memoryview, at: int, size: int = 4) -> int:
    return int.from_bytes(data[at : at + size], "little")


def _blosc(_codec: Any, data: memoryview, _most: int) -> int:
    # The library reads the header, and as many bytes as it says, wherever the value ends.
    if len(data) < _BLOSC_HEADER or _number(data, 12) > len(data):
        raise ValueError("a value is shorter than its header says (blosc)")
    return _number(data, 4)


def _first_number(_codec: Any, data: memoryview, _most: int) -> int:
    return _number(data, 0)


def zstd_size(_codec: Any, data: memoryview, most: int) -> int:
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
        if content is not None and content > most:
            return content
        at += size
        is_last = False
        is_known = frames == 1 and content is not None
        while not is_last and at < len(data) and (total <= most or is_known):
            block = _number(data, at, 3)
            is_last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
            total += size if kind < 2 else _ZSTD_BLOCK
            at += 3 + (1 if kind == 1 else size)
        at += 4 * (descriptor >> 2 & 1)
        if frames == 1 and content is not None and at >= len(data):
            return content  # the library decodes to a buffer of this size
    return total


def _inflated(_codec: Any, data: memoryview, most: int, window: int) -> int:
    """Return how much zlib makes of all members of a value, or more than `most`."""
    total, members, decoder = 0, 1, zlib.decompressobj(window)
    for at in range(0, len(data), _PIECE):
        left = bytes(data[at : at + _PIECE])
        while left and total <= most:
            total += len(decoder.decompress(left, _PIECE))
            left = decoder.unconsumed_tail
            if decoder.eof:
                left, members, decoder = decoder.unused_data, _one_more(members), zlib.decompressobj(window)
    return total


def _decompressed(data: memoryview, most: int, new: Callable[[], Any]) -> int:
    """Return how much bz2 or lzma make of all streams of a value, or more than `most`."""
    total, members, decoder, left = 0, 1, new(), bytes(data)
    while total <= most:
        made = decoder.decompress(left, _PIECE)
        total += len(made)
        left = b""
        if decoder.eof:
            left, members, decoder = decoder.unused_data, _one_more(members), new()
        if not made and not left:
            break
    return total


def _one_more(members: int) -> int:
    if members == _MEMBERS:
        raise ValueError(f"a value has more than {_MEMBERS:,} compressed members: TxStore decodes no more on its own")
    return members + 1


def _bz2(_codec: Any, data: memoryview, most: int) -> int:
    return _decompressed(data, most, bz2.BZ2Decompressor)


def _lzma(codec: Any, data: memoryview, most: int) -> int:
    # In the codec's own format: the same bytes may be short in one and long in another. Python refuses raw streams
    # with a limit: they don't say how much memory they take.
    form, limit = getattr(codec, "_codec", codec).format, 2 * most + (128 << 20)
    return _decompressed(data, most, lambda: lzma.LZMADecompressor(form, memlimit=limit))


def _length(_codec: Any, data: memoryview, _most: int) -> int:
    """Return how long a value is before a filter makes it at most 32 times as long: of many filters each does so."""
    return len(data)


_MEASURES: dict[str, Callable[[Any, memoryview, int], int]] = {
    "blosc": _blosc,
    "lz4": _first_number,
    "vlen-utf8": _first_number,
    "vlen-bytes": _first_number,
    "zstd": zstd_size,
    "gzip": partial(_inflated, window=31),
    "zlib": partial(_inflated, window=15),
    "bz2": _bz2,
    "lzma": _lzma,
    "packbits": _length,
    "astype": _length,
    "delta": _length,
    "fixedscaleoffset": _length,
    "quantize": _length,
}

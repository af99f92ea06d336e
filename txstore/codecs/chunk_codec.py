"""Decodes and encodes one chunk of an array as zarr does, from the array's metadata document."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

from txstore.codecs.allowed_codecs import allowed_by_user, check_codecs
from txstore.errors import CodecRefusedError
from txstore.format.documents import Described, below

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Buffer

    from txstore.codecs.part_codec import PartCodec

#: Bytes of a chunk that is decoded: how large it is, a document says.
MAX_CHUNK = 2 << 30
#: The kinds of numpy types whose elements have a fixed size, and can be compared as bytes.
_FIXED_SIZE = "biufcmMSUV"


class NotMergeableError(Exception):
    """TxStore can't decode and re-encode the chunks of an array. Internal: the caller reports a conflict."""


class ChunkDecoder:
    """Decodes one chunk; what is stored under one key, so a shard is one.

    Raises `NotMergeableError` for what can't be decoded, or not without doing what only the user may ask for.
    """

    def __init__(self, document: str, content: bytes, chunk: str, *, keeps_empty: bool = False) -> None:
        """`document` is the name of a metadata document, `chunk` a key relative to it.

        `keeps_empty`: a chunk that is all fill value is encoded, too, whatever zarr is told to do with it.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # zarr has said it to the user
                self._part, self._spec = _of_chunk(document, content, chunk, keeps_empty=keeps_empty)
        except CodecRefusedError as error:
            raise NotMergeableError(error.reason) from error
        except Exception as error:  # whatever zarr, or a library of codecs, makes of a document
            raise NotMergeableError(f"zarr can't code its chunks: {error!r}") from error
        self.shape: tuple[int, ...] = self._spec.shape
        self.size = math.prod(self.shape) * self.dtype.itemsize
        if self.size > MAX_CHUNK:
            raise NotMergeableError(f"a chunk of {self.shape} elements is larger than {MAX_CHUNK} bytes")

    @classmethod
    def of(cls, array: Described, key: str) -> Self:
        """Return that of a key of an array."""
        return cls(array.key.rpartition("/")[2], array.content, below(array.key, key))

    @property
    def dtype(self) -> np.dtype[Any]:
        native: np.dtype[Any] = self._spec.dtype.to_native_dtype()
        return native

    @property
    def _fill_value(self) -> Any:
        fill_value = self._spec.fill_value
        return self._spec.dtype.default_scalar() if fill_value is None else fill_value

    def decode(self, encoded: Buffer | None) -> npt.NDArray[Any]:
        """Return a chunk that the caller may write to; one that is missing is all fill value."""
        import numpy as np  # late: most commits merge nothing

        if encoded is None:
            return np.full(self.shape, self._fill_value, self.dtype)
        try:
            found = self._part.decode(memoryview(encoded))
        except Exception as error:  # whatever a library of codecs raises
            raise NotMergeableError(f"its codecs fail: {error!r}") from error
        dtype = self.dtype
        if found.shape != self.shape or native(found.dtype) != native(dtype):
            raise NotMergeableError(f"a chunk has {found.shape} elements of {found.dtype}")
        return found.astype(dtype, copy=False)  # zarr 3.1 leaves them in the byte order that they are stored in


class ChunkCodec(ChunkDecoder):
    """Decodes and encodes one chunk, whose elements have a fixed size."""

    def __init__(self, document: str, content: bytes, chunk: str, *, keeps_empty: bool = False) -> None:
        super().__init__(document, content, chunk, keeps_empty=keeps_empty)
        if self.dtype.hasobject or self.dtype.kind not in _FIXED_SIZE:
            raise NotMergeableError(f"elements of {self.dtype} can't be compared bit by bit")

    def decode_all(self, encoded: Sequence[Buffer | None]) -> npt.NDArray[Any]:
        """Return many chunks of this shape, one behind the other along a new first axis."""
        try:
            found = self._part.decode_all([None if each is None else memoryview(each) for each in encoded])
        except Exception as error:  # whatever a library of codecs raises
            raise NotMergeableError(f"its codecs fail: {error!r}") from error
        if found.dtype != self.dtype:
            raise NotMergeableError(f"a chunk has elements of {found.dtype}")
        return found

    def encode_all(self, stacked: npt.NDArray[Any]) -> list[bytes | None]:
        """Return what `encode` returns of each of many chunks."""
        if not self._part.is_lossless:
            return [self.encode(chunk) for chunk in stacked]
        try:
            return self._part.encode_all(stacked)
        except Exception as error:  # whatever a library of codecs raises
            raise NotMergeableError(f"its codecs fail: {error!r}") from error

    def encode(self, chunk: npt.NDArray[Any]) -> bytes | None:
        """Return a chunk as zarr would store it; None if it would be deleted.

        Raises `NotMergeableError` if decoding it again does not give the same bits.
        """
        try:
            encoded = self._part.encode(chunk)
        except Exception as error:  # whatever a library of codecs raises
            raise NotMergeableError(f"its codecs fail: {error!r}") from error
        if encoded is None:
            return None
        content = bytes(encoded)
        if not self._part.is_lossless and bits(self.decode(content)) != bits(chunk):
            raise NotMergeableError("its codecs lose something")
        return content


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype in the byte order of this machine."""
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def bits(chunk: npt.NDArray[Any]) -> bytes:
    """Return the bits of some elements, by which NaNs are equal to themselves, and 0.0 is not -0.0."""
    return chunk.tobytes()


def _of_chunk(document: str, content: bytes, chunk: str, *, keeps_empty: bool) -> tuple[PartCodec, Any]:
    import zarr

    more = allowed_by_user()
    metadata = _metadata(document, content, more)
    shape = _shape(metadata, chunk) if document == "zarr.json" else metadata.chunks
    writes_empty = keeps_empty or zarr.config.get("array.write_empty_chunks")
    return _coded(document, content, more, tuple(shape), writes_empty)


@lru_cache(8)
def _metadata(document: str, content: bytes, more: frozenset[str]) -> Any:
    from txstore.zarr_private import ArrayV2Metadata, ArrayV3Metadata

    described = json.loads(content)
    check_codecs("", document, described, more)
    if document == "zarr.json":
        from txstore.format.grids import Grid  # late: it imports numpy

        Grid("", described)  # zarr writes out how often a grid says that there is a size
        return ArrayV3Metadata.from_dict(described)
    return ArrayV2Metadata.from_dict(described)


@lru_cache(64)
def _coded(
    document: str, content: bytes, more: frozenset[str], shape: tuple[int, ...], write_empty_chunks: bool
) -> tuple[PartCodec, Any]:
    """Return what codes a chunk, and what it is.

    What the C libraries can't do is done by a pipeline of zarr's own, whatever is configured: another may be ours.
    """
    from zarr.buffer.cpu import buffer_prototype

    from txstore.codecs.bounded_codecs import zarr_pipeline  # late: as all that needs zarr
    from txstore.codecs.layout import layout_of
    from txstore.codecs.part_codec import PartCodec
    from txstore.zarr_private import ArrayConfig, ArraySpec

    metadata = _metadata(document, content, more)
    options: Any = {"write_empty_chunks": write_empty_chunks}
    if document == "zarr.json":
        dtype = metadata.data_type
    else:
        dtype = metadata.dtype
        options["order"] = metadata.order
    config = ArrayConfig.from_dict(options)
    spec = ArraySpec(shape, dtype, metadata.fill_value, config, buffer_prototype)
    return PartCodec(spec, layout_of(metadata), zarr_pipeline(metadata, spec)), spec


def _shape(metadata: Any, chunk: str) -> Sequence[int]:
    grid = metadata.chunk_grid
    if hasattr(grid, "chunk_shape"):
        shape: Sequence[int] = grid.chunk_shape
        return shape
    place = metadata.chunk_key_encoding.decode_chunk_key(chunk)
    return [sizes if isinstance(sizes, int) else sizes[at] for sizes, at in zip(grid.chunk_shapes, place, strict=True)]

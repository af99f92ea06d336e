"""Decodes and encodes one chunk of an array as zarr does, from the array's metadata document.

Merges partly written chunks: the regions that one writer has written replace those of the newest chunk. For erasures of
rows, puts a fill value into some elements.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

from txstore.codecs.allowed_codecs import allowed_by_user, check_codecs
from txstore.errors import CodecRefusedError
from txstore.format.documents import Described, below
from txstore.format.regions import Region

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Buffer

    from txstore.codecs.part_codec import PartCodec

    #: What is stored under the key of a chunk; None if there is nothing, which is all fill value.
    Value: TypeAlias = Buffer | None

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


class ChunkMerger:
    """Merges what is stored under one key. Raises `NotMergeableError`."""

    def __init__(self, document: str, content: bytes, chunk: str) -> None:
        """`document` is the name of the array's metadata document, `chunk` the key relative to it."""
        self._about = document, content, chunk
        self._codec = ChunkCodec(*self._about)

    @property
    def whole(self) -> Region:
        """The box of the whole chunk."""
        return Region.of_box(tuple([(0, extent) for extent in self._codec.shape]))

    def all_fill(self) -> bytes | None:
        """Return a chunk of nothing but fill values, as it is stored where such chunks are not left out."""
        codec = ChunkCodec(*self._about, keeps_empty=True)
        return codec.encode(codec.decode(None))

    def differ(self, one: Value, other: Value, region: Region) -> bool:
        """Tell whether two versions of a chunk differ in an element of a region: by their bits, not their values."""
        before, after = self._codec.decode(one), self._codec.decode(other)
        return any(bits(before[box]) != bits(after[box]) for box in self._boxes(region))

    def merged(self, below: Value, layers: Sequence[tuple[Value, Region]]) -> bytes | None:
        """Return a chunk with regions of others laid over it, one after the other; None if it is to be deleted."""
        chunk = self._codec.decode(below)
        for value, region in layers:
            layer = self._codec.decode(value)
            for box in self._boxes(region):
                chunk[box] = layer[box]
        return self._codec.encode(chunk)

    def _boxes(self, region: Region) -> list[tuple[slice, ...]]:
        if not region.fits(self._codec.shape):
            raise NotMergeableError(f"{region} is no region of chunks of {self._codec.shape}")
        if region.boxes is None:
            return [(slice(None),) * len(self._codec.shape)]
        return [tuple(slice(start, stop) for start, stop in box) for box in region.boxes]


#: For each axis the positions in the chunk, None for all: the elements at each combination of them.
Places = tuple["npt.NDArray[np.intp] | None", ...]


class ChunkFiller(ChunkDecoder):
    """Fills elements of one chunk; what is stored under one key, so a shard is one. Raises `NotMergeableError`."""

    def __init__(self, document: str, content: bytes, chunk: str) -> None:
        super().__init__(document, content, chunk, keeps_empty=True)

    def filled(
        self, encoded: Buffer, places: Sequence[Places], value: Any = None, *, shown: Mapping[int, int] | None = None
    ) -> bytes | None:
        """Return a chunk with the fill value, or another that fits the data type, in some elements.

        None if it has that already. What lies behind the elements that are `shown` along an axis gets the fill value.
        All other elements are the same, bit by bit.
        """
        chunk = self.decode(encoded)
        new = chunk.copy()
        fitting = _fitting(value, chunk.dtype)
        for each in places:
            new[self._index(each)] = self._fill_value if fitting is None else fitting
        hidden = [(slice(None),) * axis + (slice(max(end, 0), None),) for axis, end in (shown or {}).items()]
        for each in hidden:
            new[each] = self._fill_value
        if _equal(chunk, new):
            return None
        try:
            made = self._part.encode(new)
        except Exception as error:  # whatever a library of codecs raises
            raise NotMergeableError(f"its codecs fail: {error!r}") from error
        if made is None:
            raise NotMergeableError("its codecs don't store a chunk that is all fill value")
        content = bytes(made)
        if content == bytes(encoded):  # its codecs round the fill value, and did so before
            return None
        again = self.decode(content)
        for each in (*map(self._index, places), *hidden):
            again[each] = new[each]
        if not _equal(again, new):
            raise NotMergeableError("its codecs would change other elements, too")
        return content

    def _index(self, places: Places) -> Any:
        import numpy as np  # late: as in `decode`

        return np.ix_(*(np.arange(n) if each is None else each for each, n in zip(places, self.shape, strict=True)))


def _fitting(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a number as a data type holds it; None if it can't."""
    import numpy as np  # late: as in `decode`

    try:
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            return int(value) if int(value) == value and limits.min <= value <= limits.max else None
        if dtype.kind in "mM":
            return np.array(int(value), np.int64).astype(dtype) if int(value) == value else None
        if dtype.kind in "fc":
            with np.errstate(over="ignore"):
                found = dtype.type(value)
            return found if np.isinf(found) == np.isinf(float(value)) else None
    except (TypeError, ValueError, OverflowError):  # no number, not finite, or too large
        return None
    return None


def _equal(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    """Tell whether chunks are equal: numbers by their bits."""
    if one.dtype.kind in "OT":
        return bool((one == other).all())
    return one.tobytes() == other.tobytes()

"""Merges partly written chunks: the regions that one writer has written replace those of the newest chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from txstore.codecs.chunk_codec import ChunkCodec, NotMergeableError, bits
from txstore.format.regions import Region

if TYPE_CHECKING:
    from typing import TypeAlias

    from typing_extensions import Buffer

    #: What is stored under the key of a chunk; None if there is nothing, which is all fill value.
    Value: TypeAlias = Buffer | None


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

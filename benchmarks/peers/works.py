"""What is written and read: float32 arrays, cut along the first axis alone, so that a line crosses all chunks.

The numbers are a random walk in hundredths, as what is measured over time has it: each differs from the one before by
at most 0.10. zstd makes two fifths of them, blosc with lz4 three quarters: there are no runs of equal values that would
let a codec shine. Of 512 MiB the same 64 MiB come eight times; no store here notices, as each chunk is encoded alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

_BASE = 16 << 20  # values: 64 MiB


@dataclass(frozen=True)
class Work:
    """An array of `chunks` square chunks, one below the other."""

    dtype: ClassVar[str] = "f4"

    name: str
    chunks: int
    side: int  # of a chunk, in elements of 4 bytes
    codec: str = "raw"  # or "zstd", "blosc"
    in_a_shard: int = 0  # chunks; 0: no shards

    @property
    def shape(self) -> tuple[int, int]:
        return (self.chunks * self.side, self.side)

    @property
    def chunk(self) -> tuple[int, int]:
        return (self.side, self.side)

    @property
    def shard(self) -> tuple[int, int] | None:
        return (self.in_a_shard * self.side, self.side) if self.in_a_shard else None

    @property
    def files(self) -> int:
        """How many values a store keeps."""
        return self.chunks // (self.in_a_shard or 1)

    def resized(self, chunks: int) -> Work:
        """Return the same work with another number of chunks, in one shard, if in any."""
        return Work(self.name, chunks, self.side, self.codec, min(self.in_a_shard, chunks))

    def data(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.resize(_base(min(_BASE, self.shape[0] * self.side)), self.shape)

    def random_chunks(self, count: int) -> list[tuple[slice, slice]]:
        """Return selections of whole chunks, the same ones for everybody."""
        numbers = np.random.default_rng(1).integers(0, self.chunks, count)
        return [np.s_[n * self.side : (n + 1) * self.side, :] for n in numbers.tolist()]


@cache
def _base(values: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    steps = np.random.default_rng(0).integers(-10, 11, values, dtype=np.int8)
    return np.cumsum(steps, dtype=np.float32) * np.float32(0.01)  # whole numbers are exact there


_SIZES = {"4096 × 16 KiB": (4096, 64), "512 × 1 MiB": (512, 512), "32 × 16 MiB": (32, 2048)}
SHARDED = Work("4096 × 16 KiB in 16 shards, zstd", 4096, 64, "zstd", 256)
WORKS = {
    work.name: work
    for codec in ("raw", "zstd", "blosc")
    for work in [*(Work(f"{name}, {codec}", *size, codec) for name, size in _SIZES.items()), SHARDED]
}

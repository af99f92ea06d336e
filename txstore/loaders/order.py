"""Computes the order of samples in an epoch, and the samples of each shard. It reads nothing.

Samples are read in blocks, which end at chunk boundaries. An epoch is a permutation of the blocks; shard s of n takes
its blocks s, s + n, s + 2n, ... A window is as many blocks as fit; its samples are shuffled. Every number follows from
the seed and the epoch, so ranks need no communication, and the position in a shard is the number of samples before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class MixedWindow(NamedTuple):
    """Blocks that are shuffled together: start and stop of each, and the places of its samples in the window."""

    blocks: tuple[tuple[int, int], ...]
    places: tuple[NDArray[np.intp] | slice, ...]
    length: int


@dataclass(frozen=True)
class Order:
    """The order of samples: `block` samples are read together, the samples of `window` blocks are shuffled."""

    samples: int
    block: int
    window: int
    shuffle: bool
    seed: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def length(self, epoch: int, shard: int, shards: int) -> int:
        """Return the number of samples in a shard."""
        blocks = self._blocks(epoch)[shard::shards]
        short = self.samples % self.block
        last = self.samples // self.block  # the number of the short block, if any
        return len(blocks) * self.block - (self.block - short if short and last in blocks else 0)

    def windows(self, epoch: int, shard: int, shards: int) -> Iterator[MixedWindow]:
        """Yield the windows of a shard, in order."""
        blocks = self._blocks(epoch)[shard::shards]
        for first in range(0, len(blocks), self.window):
            mine = blocks[first : first + self.window].tolist()
            yield self._window(epoch, mine)

    def _blocks(self, epoch: int) -> NDArray[np.intp]:
        count = -(-self.samples // self.block)
        return self._random(epoch, 0).permutation(count) if self.shuffle else np.arange(count)

    def _window(self, epoch: int, numbers: list[int]) -> MixedWindow:
        blocks = tuple((n * self.block, min((n + 1) * self.block, self.samples)) for n in numbers)
        ends = np.cumsum([stop - start for start, stop in blocks]).tolist()
        begins = [0, *ends[:-1]]
        if not self.shuffle:
            return MixedWindow(blocks, tuple(slice(a, b) for a, b in zip(begins, ends, strict=True)), ends[-1])
        mixed = self._random(epoch, numbers[0] + 1).permutation(ends[-1])
        return MixedWindow(blocks, tuple(mixed[a:b] for a, b in zip(begins, ends, strict=True)), ends[-1])

    def _random(self, epoch: int, number: int) -> np.random.RandomState:
        # Not a Generator: its numbers may change with numpy's version, and ranks or resumed runs may have another one.
        words = [word for value in (self.seed, epoch, number) for word in (value & 0xFFFFFFFF, value >> 32)]
        return np.random.RandomState(words)

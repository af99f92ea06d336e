"""The order of samples in an epoch, and which shard gets which: arithmetic, without any reading.

Samples are read in blocks, which end where chunks do. An epoch is a permutation of the blocks; shard s of n takes the
blocks s, s + n, s + 2n, ... of it. As many blocks as fit make a window, whose samples are mixed. Every number follows
from the seed and the epoch: processes need not agree on anything, and a place in a shard is the count of the samples
before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class MixedWindow(NamedTuple):
    """Blocks that are mixed: where each begins and ends, and to which place in the window its samples go."""

    blocks: tuple[tuple[int, int], ...]
    places: tuple[NDArray[np.intp] | slice, ...]
    length: int


@dataclass(frozen=True)
class Order:
    """How samples are put in order: `block` samples are read together, those of `window` blocks are mixed."""

    samples: int
    block: int
    window: int
    shuffle: bool
    seed: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def length(self, epoch: int, shard: int, shards: int) -> int:
        """Return how many samples a shard has."""
        blocks = self._blocks(epoch)[shard::shards]
        short = self.samples % self.block
        last = self.samples // self.block  # the number of the short block, if there is one
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
        # Not a Generator: what that draws may change with numpy, and ranks and resumed runs need not have the same one.
        words = [word for value in (self.seed, epoch, number) for word in (value & 0xFFFFFFFF, value >> 32)]
        return np.random.RandomState(words)

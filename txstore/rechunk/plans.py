"""Plans a copy between two grids in bounded memory: the pieces it is made in, and whether it takes two passes.

A piece is a box of whole chunks of the new grid, so no chunk is written twice. The old chunks that reach beyond a piece
are read again for the next one. If they would be read many times, a first pass copies everything to a grid between the
two, whose chunks few pieces of either pass share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

#: Where a box begins and ends along each axis, in elements.
Box = tuple[slice, ...]

#: Bytes: a piece need not be larger, if a larger one saves no reads; and a chunk of the grid between is no smaller.
_ENOUGH, _SMALLEST = 32 << 20, 256 << 10
#: A copy reads each old chunk this often, on average, before two passes take less time: they write everything twice.
_TWO_PASSES = 3.0
#: The lengths that are tried for the chunks of the grid between: so many along each axis.
_TRIED = 5


@dataclass(frozen=True)
class ReadAxis:
    """How one axis of the array to read is cut: where its chunks begin, from 0 on."""

    length: int
    starts: npt.NDArray[np.intp]

    @classmethod
    def regular(cls, length: int, size: int) -> ReadAxis:
        return cls(length, np.arange(0, length, max(size, 1), dtype=np.intp))

    @property
    def longest(self) -> int:
        return int(np.diff(np.append(self.starts, self.length)).max()) if self.length else 1

    def reads(self, piece: int) -> float:
        """Return how often each chunk is read on average, if pieces of a length are read."""
        if not self.length:
            return 1.0
        cuts = np.arange(piece, self.length, piece)
        return 1 + float(np.count_nonzero(~np.isin(cuts, self.starts))) / len(self.starts)


@dataclass(frozen=True)
class Pieces:
    """The boxes that a copy is made in, in the order of the array."""

    shape: tuple[int, ...]  # of the array
    piece: tuple[int, ...]

    @property
    def _counts(self) -> list[int]:
        return [-(-length // size) for length, size in zip(self.shape, self.piece, strict=True)]

    def __len__(self) -> int:
        return math.prod(self._counts)

    def box(self, place: Sequence[int]) -> Box:
        """Return the elements of the piece at a place in the grid of pieces."""
        return tuple(
            slice(at * size, min((at + 1) * size, length))
            for at, size, length in zip(place, self.piece, self.shape, strict=True)
        )

    def __iter__(self) -> Iterator[Box]:
        return map(self.box, product(*map(range, self._counts)))


def size_of(box: Box, itemsize: int) -> int:
    """Return the bytes of a box in memory."""
    elements: int = math.prod(part.stop - part.start for part in box)
    return elements * itemsize


@dataclass(frozen=True)
class CopyPlan:
    """One pass or two: the shape of the pieces of each, and the chunks of the grid between. All is JSON."""

    pieces: tuple[tuple[int, ...], ...]
    between: tuple[int, ...] | None = None

    def as_dict(self) -> dict[str, Any]:
        return {"pieces": [list(each) for each in self.pieces], "between": self.between and list(self.between)}

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> CopyPlan:
        return cls(tuple(map(tuple, told["pieces"])), tuple(told["between"]) if told["between"] else None)


def plan(old: Sequence[ReadAxis], new: Sequence[int], itemsize: int, room: int) -> CopyPlan:
    """Plan a copy of an array to chunks (or shards) of the shape `new`, with pieces of `room` bytes at most.

    Raises `ValueError` if one chunk does not fit in.
    """
    for what, along in (("new", new), ("present", [axis.longest for axis in old])):
        if math.prod(along) * itemsize > room:
            raise ValueError(
                f"one {what} chunk, of shape {tuple(along)}, takes {math.prod(along) * itemsize:,} bytes, and a piece "
                f"may have {room:,}: give more max_memory=, fewer workers=, or choose smaller chunks"
            )
    piece, reads = _best(old, new, itemsize, room)
    direct = CopyPlan((piece,))
    if reads <= _TWO_PASSES:
        return direct
    found = [
        (first[1] + second[1] + max(0.0, _SMALLEST / (math.prod(between) * itemsize) - 1), first, second, between)
        for between in _between(old, new, itemsize, room)
        for first in [_best(old, between, itemsize, room)]
        for second in [
            _best(
                [ReadAxis.regular(axis.length, size) for axis, size in zip(old, between, strict=True)],
                new,
                itemsize,
                room,
            )
        ]
    ]
    best = min(found, key=lambda each: (each[0], -math.prod(each[3])), default=None)
    if best is None or best[0] + 1 >= reads:  # what is written in between counts, too
        return direct
    _, first, second, between = best
    return CopyPlan((first[0], second[0]), between)


def _best(old: Sequence[ReadAxis], new: Sequence[int], itemsize: int, room: int) -> tuple[tuple[int, ...], float]:
    """Return the shape of a piece of whole new chunks that reads old chunks the fewest times, and how often that is."""
    choices = [_lengths(axis, size) for axis, size in zip(old, new, strict=True)]
    best: tuple[float, int, tuple[int, ...]] | None = None
    for chosen in product(*choices):
        size = math.prod(length for length, _ in chosen) * itemsize
        if size <= room:
            candidate = math.prod(reads for _, reads in chosen), size, tuple(length for length, _ in chosen)
            best = candidate if best is None else min(best, candidate)
    assert best is not None  # `plan` has looked whether one chunk fits
    return _grown(best[2], old, itemsize, min(room, _ENOUGH)), best[0]


def _lengths(axis: ReadAxis, size: int) -> list[tuple[int, float]]:
    """Return lengths of a piece along an axis, each with the reads it causes: longer ones only if they save some."""
    count = max(1, -(-axis.length // size))
    chunk = int(axis.starts[1] - axis.starts[0]) if len(axis.starts) > 1 else max(axis.length, 1)
    step = math.lcm(size, chunk) // size
    tried = {1, count}
    for multiple in (1, step):
        number = multiple
        while number < count:
            tried |= {number, min(count, number + number // 2)}
            number *= 2
    found: list[tuple[int, float]] = []
    for number in sorted(tried):
        reads = axis.reads(number * size)
        if not found or reads < found[-1][1]:
            found.append((number * size, reads))
    return found


def _grown(piece: tuple[int, ...], old: Sequence[ReadAxis], itemsize: int, room: int) -> tuple[int, ...]:
    """Return the piece, several times as long along some axes if that fits: so there are fewer calls."""
    grown = list(piece)
    for number in reversed(range(len(grown))):
        times = min(room // max(1, math.prod(grown) * itemsize), -(-old[number].length // grown[number]))
        grown[number] *= max(1, times)
    return tuple(grown)


def _between(old: Sequence[ReadAxis], new: Sequence[int], itemsize: int, room: int) -> Iterator[tuple[int, ...]]:
    """Yield shapes of chunks for the grid between: along each axis from the old length to the new one."""
    steps = _TRIED if len(new) <= 3 else 3
    along = []
    for axis, size in zip(old, new, strict=True):
        low, high = sorted((min(axis.longest, max(axis.length, 1)), min(size, max(axis.length, 1))))
        lengths = [low * (high / low) ** (step / (steps - 1)) for step in range(steps)]
        along.append(sorted({min(high, max(low, round(length / low) * low)) for length in lengths}))
    for shape in product(*along):
        if math.prod(shape) * itemsize <= room:
            yield shape

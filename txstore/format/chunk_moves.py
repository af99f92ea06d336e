"""Says where the chunks of an array move: numbers in their keys become other numbers, axis by axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ChunkMoves:
    """Where the chunks of an array move.

    A key of a chunk is `lead`, then its number along each axis, in decimal, with `separator` between. All other keys
    stay as they are. `sources` says for each axis which old chunk each new one is: `sources[axis][new] = old`; a
    negative number: none. An old chunk that no new one is goes away.

    Raises `ValueError` if one chunk would be in two places.
    """

    lead: str
    separator: str
    sources: Sequence[Numbers]

    def __post_init__(self) -> None:
        for along in self.sources:
            if len(along) and np.bincount(along[along >= 0]).max(initial=0) > 1:
                raise ValueError("a chunk moves to one place")

    @cached_property
    def targets(self) -> tuple[Numbers, ...]:
        """For each axis the new number of each old chunk; -1: it goes away."""
        return tuple([_inverted(along) for along in self.sources])

    def source(self, name: str) -> str | None:
        """Return which key a new key was. None: no chunk has moved there."""
        return self._moved(name, self.sources)

    def target(self, name: str) -> str | None:
        """Return what becomes of a key. None: it goes away."""
        return self._moved(name, self.targets)

    def _moved(self, name: str, tables: Sequence[Numbers]) -> str | None:
        if not name.startswith(self.lead):
            return name
        numbers = name[len(self.lead) :].split(self.separator)
        if len(numbers) != len(tables) or not all(map(_is_number, numbers)):
            return name
        moved = []
        for number, table in zip(map(int, numbers), tables, strict=True):
            if number >= len(table) or table[number] < 0:
                return None
            moved.append(str(table[number]))
        return self.lead + self.separator.join(moved)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS and (text == "0" or text[0] != "0")


#: More digits than any number of a chunk has.
_DIGITS = 18


def _inverted(sources: Numbers) -> Numbers:
    new = np.flatnonzero(sources >= 0)
    found = np.full(sources.max(initial=-1) + 1, -1, np.int64)
    found[sources[new]] = new
    return found

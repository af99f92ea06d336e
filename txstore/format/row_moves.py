"""The attribute of an array that says where its rows have moved: since then, a position means another row.

Programs that move rows (`prepend`, `roll`, `shift`, an upsert that inserts) write it. A merge compares that of its
sides, and so knows that one side's positions are not the other's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from txstore.format.encoding import MalformedError, json_value

#: Its value: the origin along each axis, and what is `mixed` behind a space: "24,0,0", "0,0 5f3a9c2e".
ATTRIBUTE = "txstore_rows"
_VALUE = re.compile(r"(-?\d{1,18}(?:,-?\d{1,18})*)(?: ([0-9a-f]{8}))?")


class RowMoves(NamedTuple):
    """Where the rows of an array are.

    `origin`: the index along each axis, now, of the row that was the first one when the array was made; it may be
    dropped by now. `mixed`: another text after each move in which not all rows moved equally far; empty before.
    """

    origin: tuple[int, ...]
    mixed: str = ""

    @classmethod
    def of(cls, attributes: Mapping[str, Any], ndim: int) -> Self:
        """Return what an array's attributes say. What is no value of `ATTRIBUTE` is `mixed`, as a whole."""
        told = attributes.get(ATTRIBUTE)
        found = _VALUE.fullmatch(told) if isinstance(told, str) else None
        origin = tuple(map(int, found[1].split(","))) if found is not None else ()
        if found is not None and len(origin) == ndim:
            return cls(origin, found[2] or "")
        return cls((0,) * ndim, "" if told is None else repr(told))

    def moved(self, offsets: Sequence[int | None]) -> Self:
        """Return where the rows are after a move by `offsets` along the axes; None along one where they differ."""
        mixed = os.urandom(4).hex() if None in offsets else self.mixed
        return type(self)(tuple(at + (offset or 0) for at, offset in zip(self.origin, offsets, strict=True)), mixed)

    def encode(self) -> str:
        return " ".join([",".join(map(str, self.origin)), *([self.mixed] if self.mixed else [])])


def moved_along(
    before: Mapping[str, Any], after: Mapping[str, Any], dimensions: Sequence[str | None]
) -> frozenset[str]:
    """Return along which of its dimensions, given their names, rows of an array have moved: compare its attributes."""
    old, new = (RowMoves.of(each, len(dimensions)) for each in (before, after))
    is_mixed = old.mixed != new.mixed
    moved = zip(dimensions, old.origin, new.origin, strict=True)
    return frozenset(name for name, was, is_now in moved if name is not None and (is_mixed or was != is_now))


def rows_have_moved(key: str, before: bytes | None, after: bytes | None) -> bool:
    """Tell whether two versions of the document that has an array's attributes say different things of its rows."""
    return bool(_told(key, before) != _told(key, after))


def _told(key: str, document: bytes | None) -> Any:
    if document is None or ATTRIBUTE.encode() not in document:
        return None
    try:
        found = json_value(document)
    except MalformedError:
        return None
    attributes = found if key.rpartition("/")[2] == ".zattrs" else found.get("attributes")
    return attributes.get(ATTRIBUTE) if isinstance(attributes, dict) else None

"""The attribute of an array that says which moves its rows have made: after each, a position means another row.

A program that moves rows (`prepend`, `roll`, `shift`, an upsert that inserts) writes `MOVED` for the axis. What is
stored instead is the id of the transaction, and so of the commit; no other write changes the attribute. So two versions
with the same text have made the very same moves. How far rows have moved would not say so: `roll` by 2, then `prepend`
of 2 rows is a move by 0.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from txstore.format.encoding import MalformedError, json_value

#: Its value has a part for each axis, with commas between: "0", or the id of the transaction that moved rows last.
ATTRIBUTE = "txstore_rows"
#: What a program writes for an axis along which it moves rows.
MOVED = "moved"
_HOLDERS = ("zarr.json", ".zattrs")


def moves_of(attributes: Mapping[str, Any], ndim: int) -> tuple[str, ...]:
    """Return, for each axis, the text that stands for the moves. What has other parts is one text for all axes."""
    told = attributes.get(ATTRIBUTE, ",".join(["0"] * ndim))
    parts = tuple(told.split(",")) if isinstance(told, str) and " " not in told else ()
    return parts if len(parts) == ndim else (repr(told),) * ndim


def with_moves(attributes: Mapping[str, Any], ndim: int, axes: Collection[int]) -> dict[str, Any]:
    """Return the attributes of an array to write if its rows move along some axes."""
    parts = [MOVED if axis in axes else part for axis, part in enumerate(moves_of(attributes, ndim))]
    return {**attributes, ATTRIBUTE: ",".join(parts)} if axes else dict(attributes)


def moved_along(
    before: Mapping[str, Any], after: Mapping[str, Any], dimensions: Sequence[str | None]
) -> frozenset[str]:
    """Return along which of its dimensions, given their names, rows of an array have moved: compare its attributes."""
    sides = (moves_of(each, len(dimensions)) for each in (before, after))
    moved = zip(dimensions, *sides, strict=True)
    return frozenset(name for name, was, is_now in moved if name is not None and was != is_now)


def rows_have_moved(key: str, before: bytes | None, after: bytes | None) -> bool:
    """Tell whether two versions of the document that has an array's attributes say different things of its rows."""
    return bool(_told(key, before) != _told(key, after))


def kept(key: str, present: bytes | memoryview | None, written: bytes | memoryview, mover: str) -> bytes | memoryview:
    """Return what to store if a program writes a document where there is a `present` one.

    The attribute stays as it is. If what is written says `MOVED`, it becomes the id of the transaction, `mover`.
    """
    name = key.rpartition("/")[2]
    if name not in _HOLDERS or not (_names_it(present) or _names_it(written)):
        return written
    document = _object(written)
    attributes = document if name == ".zattrs" else document.setdefault("attributes", {})
    if not isinstance(attributes, dict) or (name == "zarr.json" and document.get("node_type") != "array"):
        return written
    told = attributes.get(ATTRIBUTE)
    parts = told.split(",") if isinstance(told, str) else []
    if MOVED in parts:
        now: Any = ",".join(mover if part == MOVED else part for part in parts)
    else:
        now = told if present is None else _told(key, present)
    if now == told:
        return written
    attributes.pop(ATTRIBUTE, None)
    if now is not None:
        attributes[ATTRIBUTE] = now
    return json.dumps(document, indent=2).encode()


def _names_it(document: bytes | memoryview | None) -> bool:
    return document is not None and ATTRIBUTE.encode() in bytes(document)


def _told(key: str, document: bytes | memoryview | None) -> Any:
    if document is None or not _names_it(document):
        return None
    found = _object(document)
    attributes = found if key.rpartition("/")[2] == ".zattrs" else found.get("attributes")
    return attributes.get(ATTRIBUTE) if isinstance(attributes, dict) else None


def _object(document: bytes | memoryview) -> dict[str, Any]:
    try:
        found = json_value(document)
    except MalformedError:
        return {}
    return found if isinstance(found, dict) else {}

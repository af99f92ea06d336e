"""Finds arrays that a transaction forgot to extend: they had the same length along a dimension as one that it grew."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from txstore.format.documents import describe
from txstore.format.keys import node_of_document

#: Returns the document at a key. None if there is no document, or if reading it would take long.
Get = Callable[[str], bytes | memoryview | None]


class LeftBehind(NamedTuple):
    path: str
    grown: str  # the path of the array that grew
    dimension: str
    axis: int  # of the array that grew
    lengths: tuple[int, int]  # of the array that grew: before and after


def left_behind(changed: Collection[str], known: Collection[str], before: Get, after: Get) -> Iterator[LeftBehind]:
    """Yield the arrays that did not grow with another array of their group. The only I/O is in `before` and `after`.

    `changed` are the keys of documents that the transaction set. `known` are the keys of all documents that array
    objects hold: xarray opens all arrays of a group to append to it.
    """
    told: set[str] = set()
    for path in sorted({node_of_document(key) for key in changed}):
        old, new = describe(before, path), describe(after, path)
        if old is None or new is None or old.kind != "array" or len(old.node.shape) != len(new.node.shape):
            continue
        for axis, (name, was, now) in enumerate(zip(new.dimensions, old.node.shape, new.node.shape, strict=False)):
            if name is not None and now > was:
                group = path.rpartition("/")[0]
                for sibling in sorted({node_of_document(key) for key in known} - {"", path} - told):
                    if sibling.rpartition("/")[0] == group and _has(sibling, name, was, before, after):
                        told.add(sibling)
                        yield LeftBehind(sibling, path, name, axis, (was, now))


def _has(path: str, dimension: str, length: int, before: Get, after: Get) -> bool:
    """Tell whether an array had this length along a dimension, and still has it."""
    return all(
        found is not None
        and found.kind == "array"
        and (dimension, length) in zip(found.dimensions, found.node.shape, strict=False)
        for found in (describe(before, path), describe(after, path))
    )

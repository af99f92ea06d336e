"""Computes with boxes: for each axis of an array, a half-open range of indices. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: For each axis, the first index and the one after the last.
Box = tuple[tuple[int, int], ...]


def whole(shape: Sequence[int]) -> Box:
    return tuple((0, extent) for extent in shape)


def is_empty(box: Box) -> bool:
    return any(begin >= end for begin, end in box)


def common(one: Box, other: Box) -> Box:
    """Return what lies in both; it may be empty."""
    return tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))


def around(boxes: Iterable[Box]) -> Box:
    """Return the smallest box that holds all of some."""
    return tuple((min(begin for begin, _ in along), max(end for _, end in along)) for along in zip(*boxes, strict=True))


def slices(box: Box, origin: Box | None = None) -> tuple[slice, ...]:
    """Return the selection of a box, in an array that begins where `origin` does."""
    starts = (0,) * len(box) if origin is None else tuple(begin for begin, _ in origin)
    return tuple(slice(begin - start, end - start) for (begin, end), start in zip(box, starts, strict=True))


def shape_of(box: Box) -> tuple[int, ...]:
    return tuple(end - begin for begin, end in box)

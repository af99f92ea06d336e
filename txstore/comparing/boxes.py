"""Joins changed chunks into boxes: arithmetic."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from txstore.format.grids import Chunk

#: Along each axis the first chunk, and the one after the last.
Box = tuple[tuple[int, int], ...]


def joined(chunks: Collection[Chunk]) -> list[Box]:
    """Return boxes that cover each of these chunks once, in the order of their first chunks.

    Neighbours along the last axis are joined first, then rows of equal extent along the one before, and so on.
    """
    if len(chunks) <= 1:
        return [tuple((at, at + 1) for at in chunk) for chunk in chunks]
    low = np.unique(np.array(list(chunks), np.int64), axis=0)
    high = low + 1
    dimensions = low.shape[1]
    for axis in reversed(range(dimensions)):
        others = [each[:, other] for other in range(dimensions) if other != axis for each in (low, high)]
        order = np.lexsort([low[:, axis], *reversed(others)])
        low, high = low[order], high[order]
        begins = np.ones(len(low), bool)
        begins[1:] = low[1:, axis] != high[:-1, axis]
        for other in range(dimensions):
            if other != axis:
                begins[1:] |= (low[1:, other] != low[:-1, other]) | (high[1:, other] != high[:-1, other])
        ends = np.append(begins[1:], True)
        merged = low[begins]
        high = np.where(np.arange(dimensions) == axis, high[ends], high[begins])
        low = merged
    order = np.lexsort(low.T[::-1]) if dimensions else np.zeros(1, int)
    boxes = zip(low[order].tolist(), high[order].tolist(), strict=True)
    return [tuple(zip(first, last, strict=True)) for first, last in boxes]

"""Computes where on the ground a coarser array lies: https://github.com/zarr-conventions/spatial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from txstore.format.documents import Described

TRANSFORM = "spatial:transform"


def placed_coarser(
    attributes: Mapping[str, Any], source: Described, factors: Sequence[int], method: str
) -> dict[str, Any]:
    """Return where an array lies that is coarser by some factors: its `spatial:transform`.

    Nothing, if `attributes` do not say where the finer one lies, or not by an affine transform.
    """
    transform, names = attributes.get(TRANSFORM), source.document.get("dimension_names") or []
    dimensions = attributes.get("spatial:dimensions") or names[-2:]
    if attributes.get("spatial:transform_type", "affine") != "affine" or not isinstance(transform, list):
        return {}
    if len(transform) != 6 or len(dimensions) != 2 or not set(dimensions) <= set(names):
        return {}
    down, across = (factors[names.index(name)] for name in dimensions)
    is_of_centres = attributes.get("spatial:registration") == "node" and method != "nearest"
    return {TRANSFORM: _coarser(transform, across, down, is_of_centres=is_of_centres)}


def _coarser(transform: Sequence[float], across: int, down: int, *, is_of_centres: bool) -> list[float]:
    """Return what maps a column and a row of a level to the ground: [a, b, c, d, e, f], as `spatial` says.

    It maps them to the centres of elements, or else to their corners.
    """
    found = []
    for column, row, origin in (transform[:3], transform[3:]):
        moved = (column * (across - 1) + row * (down - 1)) / 2 if is_of_centres else 0
        found += [column * across, row * down, origin + moved]
    return found

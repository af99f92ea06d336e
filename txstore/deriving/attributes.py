"""Decides which attributes an output takes from its source, which say what its numbers mean, and when it takes them.

Where on the ground a coarser array lies: https://github.com/zarr-conventions/spatial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from txstore.deriving.stages import CoarsenStage, DerivingStage
from txstore.format.cf import MEANING, OF_TYPE
from txstore.format.documents import ABSENT, Described
from txstore.format.row_moves import ATTRIBUTE

_DIMENSIONS = "_ARRAY_DIMENSIONS"


def handed_on(stage: DerivingStage, source: Described, *, is_of_its_type: bool) -> dict[str, Any]:
    """Return the attributes that an output has from its source. `is_of_its_type`: whether both have one data type."""
    dropped = {ATTRIBUTE, *stage.dropped} | (frozenset() if is_of_its_type else OF_TYPE)
    found = {name: each for name, each in source.attributes.items() if name not in dropped}
    if isinstance(names := found.get(_DIMENSIONS), list) and len(names) == len(source.node.shape):
        found[_DIMENSIONS] = stage.dimensions(names)
    if isinstance(stage, CoarsenStage):
        placed = placed_coarser(source.attributes, source, stage.factors, stage.method)
        if placed:
            found.pop("spatial:shape", None)
        found |= placed
    return found


def followed(
    stage: DerivingStage, output: Described, before: Described | None, after: Described, *, is_of_its_type: bool
) -> dict[str, Any] | None:
    """Return an output's attributes where those of its source have changed; None if they need not change.

    What only the output has stays, and so does what was set there to something else. `before` is None if the output is
    derived as a whole. What the source had when the output was made isn't known then: so what says which numbers the
    elements are is taken from the source.
    """
    if before is not None and before.attributes == after.attributes:
        return None
    new = handed_on(stage, after, is_of_its_type=is_of_its_type)
    if before is not None:
        old = handed_on(stage, before, is_of_its_type=is_of_its_type)
    else:
        others = stage.dropped if is_of_its_type else stage.dropped | OF_TYPE
        names = {name for name in MEANING if name in new or name not in ("units", "calendar")} - others
        old = {name: each for name, each in output.attributes.items() if name in names}
    found = dict(output.attributes)
    for name in old.keys() | new.keys():
        was, is_now = old.get(name, ABSENT), new.get(name, ABSENT)
        if was != is_now and found.get(name, ABSENT) == was:
            if is_now is ABSENT:
                del found[name]
            else:
                found[name] = is_now
    return None if found == output.attributes else found


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

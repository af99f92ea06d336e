"""Decides which attributes an output takes from its source, which say what its numbers mean, and when it takes them."""

from __future__ import annotations

from typing import Any

from txstore.deriving.spatial import placed_coarser
from txstore.deriving.stages import CoarsenStage, DerivingStage
from txstore.format.cf import OF_TYPE
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
    stage: DerivingStage, output: Described, before: Described, after: Described, *, is_of_its_type: bool
) -> dict[str, Any] | None:
    """Return an output's attributes where those of its source have changed; None if they need not change.

    What only the output has stays, and so does what was set there to something else.
    """
    if before.attributes == after.attributes:
        return None
    old, new = (handed_on(stage, each, is_of_its_type=is_of_its_type) for each in (before, after))
    found = dict(output.attributes)
    for name in old.keys() | new.keys():
        was, is_now = old.get(name, ABSENT), new.get(name, ABSENT)
        if was != is_now and found.get(name, ABSENT) == was:
            if is_now is ABSENT:
                del found[name]
            else:
                found[name] = is_now
    return None if found == output.attributes else found

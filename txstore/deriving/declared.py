"""Encodes and decodes the views in commit headers, and puts them in order. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from txstore.deriving.definitions import KINDS, ViewDefinition
from txstore.errors import CorruptionError, UnsupportedFormatError
from txstore.format.declarations import Written

#: Views by name.
Views = Mapping[str, ViewDefinition]


def encode(view: ViewDefinition) -> dict[str, Any]:
    """Return a view as JSON that `decode` can read. Raises `TypeError` if it is of a class that others do not know."""
    if type(view) is not KINDS.get(view.kind):
        kinds = ", ".join(f"views.{kind.__name__}" for kind in KINDS.values())
        raise TypeError(f"not every writer can derive {view!r}: use one of {kinds}")
    written: dict[str, Any] = json.loads(json.dumps({"kind": view.kind, **view.as_dict()}))
    return written


def decode(url: str, written: Written) -> dict[str, ViewDefinition]:
    """Return the views of a header.

    Raises `UnsupportedFormatError` for a kind that this version can't derive, `CorruptionError` for an invalid entry.
    """
    found = {}
    for name, fields in written.items():
        try:
            kind = KINDS.get(fields["kind"])
            if kind is not None:
                found[name] = kind.from_dict(fields)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptionError(url, reason=f"view {name!r} of a commit is invalid: {error!r}") from error
        if kind is None:
            known = ", ".join(map(repr, KINDS))
            raise UnsupportedFormatError(url, found=f"a view of kind {fields['kind']!r}", supported=known)
    return found


def outputs_of(url: str, written: Written) -> list[str]:
    """Return the outputs of the views of a header. Raises what `decode` does."""
    return [output for view in decode(url, written).values() for output in view.outputs]


def ordered(views: Views) -> list[str]:
    """Return the names of views, each after those that make its sources.

    Raises `ValueError` if two views make the same array, or if there is no such order.
    """
    makers: dict[str, str] = {}
    for name, view in sorted(views.items()):
        for output in view.outputs:
            if makers.setdefault(output, name) != name:
                raise ValueError(f"the views {makers[output]!r} and {name!r} both make {output!r}")
    needed = {
        name: {makers[source] for source in view.sources if source in makers} for name, view in sorted(views.items())
    }
    try:
        return list(TopologicalSorter(needed).static_order())
    except CycleError as error:
        raise ValueError(f"these views are derived from each other: {', '.join(sorted(set(error.args[1])))}") from error

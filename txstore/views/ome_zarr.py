"""Says in the group of a pyramid what its levels are: OME-Zarr 0.5 in Zarr 3, 0.4 in Zarr 2.

https://ngff.openmicroscopy.org/0.5/#multiscale-md. Only for axes that OME-Zarr has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from txstore.deriving.definitions import Coarsen
from txstore.format.documents import Described
from txstore.format.keys import document_key
from txstore.views.interface import ViewStore

_TYPES = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}


def describe_image(
    store: ViewStore, view: Coarsen, source: Described, described: Callable[[str], Described | None]
) -> None:
    """List the levels in the attributes of their group, if they are beside their source and have such axes."""
    path = view.source.rpartition("/")[0]
    group = described(path)
    if group is None or any(each.rpartition("/")[0] != path for each in view.outputs):
        return
    is_3 = group.key.endswith("zarr.json")
    attributes = dict(group.attributes)
    ome = dict(attributes.get("ome") or {}) if is_3 else attributes
    listed = [dict(each) for each in ome.get("multiscales") or []]
    scales = next((each for each in listed if _dataset(each, view.source) is not None), None)
    if scales is None:
        axes = _axes(source)
        if axes is None:
            return
        identity = {"type": "scale", "scale": [1.0] * len(axes)}
        first = {"path": _name(view.source), "coordinateTransformations": [identity]}
        scales = {"name": _name(path) or "image", "axes": axes, "datasets": [first]}
        scales |= {} if is_3 else {"version": "0.4"}
        listed.append(scales)
    levels = [_level(view, scales, level, output) for level, output in enumerate(view.outputs, 1)]
    names = {each["path"] for each in levels}
    scales["datasets"] = [each for each in scales["datasets"] if each["path"] not in names] + levels
    scales["type"] = view.method
    ome["multiscales"] = listed
    if is_3:
        attributes["ome"] = {"version": "0.5", **ome}
        store[group.key] = json.dumps({**group.document, "attributes": attributes}, indent=2).encode()
    else:
        store[document_key(path, ".zattrs")] = json.dumps(attributes, indent=2).encode()


def _axes(source: Described) -> list[dict[str, str]] | None:
    """Return the axes of an image, by the names of its dimensions, or else t, c, z, y, x; None if it is none."""
    names = source.document.get("dimension_names") or source.attributes.get("_ARRAY_DIMENSIONS")
    ndim = len(source.node.shape)
    names = list("tczyx"[-ndim:]) if names is None else list(names)
    is_ordered = names == sorted(names, key=lambda name: "tczyx".find(str(name)))
    if not 2 <= ndim <= 5 or not set(names) <= set(_TYPES) or not is_ordered or not {"y", "x"} <= set(names):
        return None
    return [{"name": name, "type": _TYPES[name]} for name in names]


def _dataset(scales: Mapping[str, Any], source: str) -> Mapping[str, Any] | None:
    return next((each for each in scales.get("datasets", []) if each["path"] == _name(source)), None)


def _level(view: Coarsen, scales: Mapping[str, Any], level: int, output: str) -> dict[str, Any]:
    """Return what is said of a level: its scale, and where the centre of its first element lies."""
    first = _dataset(scales, view.source) or {}
    told = {
        each["type"]: each[each["type"]]
        for each in first.get("coordinateTransformations", [])
        if each.get("type") in each and len(each[each["type"]]) == len(view.factors)
    }
    scale: Sequence[float] = told.get("scale", [1.0] * len(view.factors))
    moved: Sequence[float] = told.get("translation", [0.0] * len(scale))
    factors = [factor**level for factor in view.factors]
    transformations: list[dict[str, Any]] = [
        {"type": "scale", "scale": [size * factor for size, factor in zip(scale, factors, strict=True)]}
    ]
    if view.method != "nearest":  # each element stands for all that it combines, and lies in their middle
        moved = [at + size * (factor - 1) / 2 for at, size, factor in zip(moved, scale, factors, strict=True)]
    if any(moved):
        transformations.append({"type": "translation", "translation": list(moved)})
    return {"path": _name(output), "coordinateTransformations": transformations}


def _name(path: str) -> str:
    return path.rpartition("/")[2]

"""Says in the group of a pyramid what its levels are, as GeoZarr does: https://geozarr.org/conventions.

The convention `multiscales` lists the levels; `spatial` maps the indices of an array to places on the ground. Only in
Zarr 3.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from itertools import pairwise

from txstore.deriving.definitions import Coarsen
from txstore.deriving.spatial import TRANSFORM, placed_coarser
from txstore.format.documents import Described
from txstore.format.keys import ancestors
from txstore.views.interface import ViewStore

_UUID = "d35379db-88df-4056-af3a-620245f8e347"
_REPOSITORY = "zarr-conventions/multiscales"
_CONVENTION = {
    "schema_url": f"https://raw.githubusercontent.com/{_REPOSITORY}/refs/tags/v1/schema.json",
    "spec_url": f"https://github.com/{_REPOSITORY}/blob/v1/README.md",
    "uuid": _UUID,
    "name": "multiscales",
    "description": "Multiscale layout of zarr datasets",
}
#: What GeoZarr, as GDAL, calls a method otherwise.
_METHODS = {"mean": "average"}
_PREFIXES = "spatial:", "proj:"
#: Names of dimensions that only places on the ground have.
_DIMENSIONS = {"lat", "latitude", "lon", "longitude"}


def is_geospatial(source: Described, described: Callable[[str], Described | None]) -> bool:
    """Tell whether the array, or a group that it is in, says where on the ground it lies."""
    groups = [node for path in ancestors(source.path) if (node := described(path)) is not None]
    named = any(name.startswith(_PREFIXES) for node in (source, *groups) for name in node.attributes)
    return named or not _DIMENSIONS.isdisjoint(source.document.get("dimension_names") or [])


def describe_overviews(
    store: ViewStore, view: Coarsen, source: Described, described: Callable[[str], Described | None]
) -> None:
    """List the levels in the attributes of the group that has all of them, if that is in Zarr 3."""
    paths = [view.source, *view.outputs]
    above = os.path.commonpath([path.rpartition("/")[0] for path in paths]) if "/" in view.source else ""
    group = described(above)
    if group is None or not group.key.endswith("zarr.json"):
        return
    assets = _assets([path[len(above) :].lstrip("/") for path in paths])
    stored = group.attributes.get("multiscales")
    told = dict(stored) if isinstance(stored, dict) else {}
    listed = {each["asset"]: each for each in told.get("layout") or []}
    ndim = len(source.node.shape)
    first = listed.get(assets[0]) or {"asset": assets[0], "transform": {"scale": [1.0] * ndim}}
    attributes = {**group.attributes, **source.attributes, **first}
    placed = {TRANSFORM: attributes[TRANSFORM]} if TRANSFORM in attributes else {}
    listed[assets[0]] = {**first, **placed}
    for before, asset in pairwise(assets):
        placed = placed_coarser({**attributes, **placed}, source, view.factors, view.method)
        listed[asset] = {
            "asset": asset,
            "derived_from": before,
            "transform": {"scale": [float(each) for each in view.factors], "translation": [0.0] * ndim},
            "resampling_method": _METHODS.get(view.method, view.method),
            **placed,
        }
    others = [each for each in group.attributes.get("zarr_conventions") or [] if each.get("uuid") != _UUID]
    written = {
        **group.attributes,
        "zarr_conventions": [*others, _CONVENTION],
        "multiscales": {**told, "layout": list(listed.values())},
    }
    store[group.key] = json.dumps({**group.document, "attributes": written}, indent=2).encode()


def _assets(paths: Sequence[str]) -> list[str]:
    """Return what the levels are: groups, if each array is in a group of its own and all have one name."""
    groups, names = zip(*(path.rpartition("/")[::2] for path in paths), strict=True)
    return list(groups if len(set(names)) == 1 and len(set(groups)) == len(paths) else paths)

"""Makes the arrays that the outputs of a view are stored in, as their sources are stored.

What the levels of a pyramid are stands in their group: as GeoZarr has it, or OME-Zarr.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from txstore.deriving.attributes import TRANSFORM, handed_on, placed_coarser
from txstore.deriving.definitions import Coarsen, Reduce, ViewDefinition
from txstore.deriving.stages import CoarsenStage, DerivingStage, ReduceStage
from txstore.errors import warn
from txstore.format.documents import Described, describe
from txstore.format.keys import ancestors, document_key
from txstore.interfaces import AnyStore

if TYPE_CHECKING:
    import numpy.typing as npt
    from zarr.abc.store import Store


def make_outputs(store: AnyStore, view: ViewDefinition) -> None:
    """Create the outputs that are not there, and say in the group of a pyramid what its levels are.

    Raises `ValueError` if a source is no array, or if something else is where an output belongs.
    """

    sources = _StoredSources(store)
    for stage in view.stages(sources):
        source = sources.after(stage.source)
        assert source is not None  # for mypy: `stages` has found it, or this has made it
        present = sources.after(stage.output)
        if isinstance(stage, CoarsenStage) and stage.method == "mean" and _is_boolean(present or source):
            raise ValueError(
                f"{stage.output!r} can't hold means of booleans: take method='mode' for what most of them are, 'max' "
                "for whether any is true, or create it first, as an array of floats"
            )
        if present is None:
            _make(store, view, stage, source)
        elif present.kind != "array" or len(present.node.shape) != len(stage.shape):
            raise ValueError(f"{stage.output!r} is no array of {len(stage.shape)} dimensions: delete or move it first")
    if isinstance(view, Coarsen) and (source := sources.after(view.source)) is not None:
        describe = describe_overviews if is_geospatial(source, sources.after) else describe_image
        describe(store, view, source, sources.after)
        _warn_of_two_sizes(sources, view, source)


def _is_boolean(array: Described) -> bool:
    return array.document.get("dtype" if array.key.endswith(".zarray") else "data_type") in ("bool", "|b1")


def _warn_of_two_sizes(sources: _StoredSources, view: Coarsen, source: Described) -> None:
    """Warn if xarray can't open the group of the source any more: it takes a dimension of a group to have one size."""
    group = source.path.rpartition("/")[0]
    for dim, factor in zip(source.dimensions, view.factors, strict=False):
        labels = sources.after(f"{group}/{dim}" if group else str(dim)) if dim is not None and factor > 1 else None
        for output in view.outputs if labels is not None and labels.kind == "array" else ():
            level = sources.after(output)
            if output.rpartition("/")[0] == group and level is not None and dim in level.dimensions:
                told = (
                    f"{output!r} has fewer elements along {dim!r} than {source.path!r}, which is in the same group: "
                    "xr.open_dataset will refuse this group. Give the levels groups of their own, as in "
                    "to='levels/{level}/name', or create them first with other names of dimensions"
                )
                warn(told)
                return


class _StoredSources:
    """The arrays of a store."""

    def __init__(self, store: AnyStore) -> None:
        self._store = store

    def after(self, path: str) -> Described | None:
        return describe(self._store.mapping.get_view, path)

    def before(self, path: str) -> Described | None:
        return None

    def elements(self, path: str) -> npt.NDArray[Any]:
        import numpy as np

        from txstore.pipeline import open_own

        try:
            return np.asarray(open_own(self._store, path, mode="r")[...])
        except FileNotFoundError:
            raise ValueError(f"there is no array {path!r}") from None

    def elements_before(self, path: str) -> npt.NDArray[Any] | None:
        return None


def _make(store: AnyStore, view: ViewDefinition, stage: DerivingStage, source: Described) -> None:
    _require_group(store, stage.output.rpartition("/")[0], 3 if source.key.endswith("zarr.json") else 2)
    is_alike = len(stage.shape) == len(source.node.shape) and source.node.chunks is not None
    if is_alike and not isinstance(view, Reduce):
        _copy(store, stage, source)
    else:
        _create(store, stage, source)


def _require_group(store: AnyStore, path: str, zarr_format: int) -> None:
    import zarr

    root = zarr.open_group(cast("Store", store), mode="a", zarr_format=cast(Any, zarr_format))
    if path:
        root.require_group(path)


def _copy(store: AnyStore, stage: DerivingStage, source: Described) -> None:
    """Store the output as its source is stored: chunks, codecs, type, fill value."""
    name = source.key.rpartition("/")[2]
    document = {**source.document, "shape": list(stage.shape)}
    attributes = handed_on(stage, source, is_of_its_type=True)
    if name == "zarr.json":
        document["attributes"] = attributes
    elif attributes:
        store[document_key(stage.output, ".zattrs")] = json.dumps(attributes, indent=2).encode()
    store[document_key(stage.output, name)] = json.dumps(document, indent=2).encode()


def _create(store: AnyStore, stage: DerivingStage, source: Described) -> None:
    import numpy as np
    import zarr

    from txstore.pipeline import open_own

    array = open_own(store, source.path, mode="r")
    dtype, fill_value = array.dtype, array.fill_value
    if isinstance(stage, ReduceStage) and stage.method == "count":
        dtype, fill_value = np.dtype("int64"), 0
    elif isinstance(stage, ReduceStage) and stage.method == "mean" and dtype.kind in "iub":
        dtype = np.dtype("float64")
    chunks = [max(1, min(_longest(array, axis), 1 << 20)) for axis in range(array.ndim)]
    if isinstance(stage, ReduceStage):
        chunks[stage.axis : stage.axis + 1] = [] if stage.groups is None else [1]
    is_3 = source.key.endswith("zarr.json")
    if not is_3 and dtype != array.dtype and fill_value is not None:
        # xarray takes it for missing values, and in this type none of the source's is one.
        fill_value = np.nan if dtype.kind == "f" else None
    made = zarr.create_array(
        cast("Store", store), name=stage.output, shape=stage.shape, chunks=tuple(chunks) or "auto", dtype=dtype,
        fill_value=fill_value, zarr_format=3 if is_3 else 2,
        dimension_names=stage.dimensions(source.dimensions) if is_3 and source.dimensions else None,
    )  # fmt: skip
    if attributes := handed_on(stage, source, is_of_its_type=dtype == array.dtype):
        made.attrs.update(attributes)


def _longest(array: Any, axis: int) -> int:
    try:
        return int((array.shards or array.chunks)[axis])
    except NotImplementedError:  # chunks of different lengths
        return int(array.shape[axis])


# --- GeoZarr, https://geozarr.org/conventions, in Zarr 3: the convention `multiscales` lists the levels; `spatial` maps
# the indices of an array to places on the ground


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
    store: AnyStore, view: Coarsen, source: Described, described: Callable[[str], Described | None]
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


# --- OME-Zarr 0.5 in Zarr 3, 0.4 in Zarr 2: https://ngff.openmicroscopy.org/0.5/#multiscale-md, for axes that it has


_TYPES = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}


def describe_image(
    store: AnyStore, view: Coarsen, source: Described, described: Callable[[str], Described | None]
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

"""Makes the arrays that the outputs of a view are stored in, as their sources are stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from txstore.deriving.definitions import Coarsen, Reduce, ViewDefinition
from txstore.deriving.stages import DerivingStage, ReduceStage
from txstore.format.documents import Described, describe
from txstore.format.keys import document_key
from txstore.views.geozarr import describe_overviews, is_geospatial, placed_coarser
from txstore.views.interface import ViewStore
from txstore.views.ome_zarr import describe_image

if TYPE_CHECKING:
    import numpy.typing as npt
    from zarr.abc.store import Store


def make_outputs(store: ViewStore, view: ViewDefinition) -> None:
    """Create the outputs that are not there, and say in the group of a pyramid what its levels are.

    Raises `ValueError` if a source is no array, or if something else is where an output belongs.
    """

    sources = _StoredSources(store)
    for stage in view.stages(sources):
        source = sources.after(stage.source)
        assert source is not None  # for mypy: `stages` has found it, or this has made it
        present = sources.after(stage.output)
        if present is None:
            _make(store, view, stage, source)
        elif present.kind != "array" or len(present.node.shape) != len(stage.shape):
            raise ValueError(f"{stage.output!r} is no array of {len(stage.shape)} dimensions: delete or move it first")
    if isinstance(view, Coarsen) and (source := sources.after(view.source)) is not None:
        describe = describe_overviews if is_geospatial(source, sources.after) else describe_image
        describe(store, view, source, sources.after)


class _StoredSources:
    """The arrays of a store."""

    def __init__(self, store: ViewStore) -> None:
        self._store = store

    def after(self, path: str) -> Described | None:
        return describe(self._store.mapping.get_view, path)

    def elements(self, path: str) -> npt.NDArray[Any]:
        import numpy as np
        import zarr

        try:
            return np.asarray(zarr.open_array(cast("Store", self._store), path=path, mode="r")[...])
        except FileNotFoundError:
            raise ValueError(f"there is no array {path!r}") from None

    def elements_before(self, path: str) -> npt.NDArray[Any] | None:
        return None


def _make(store: ViewStore, view: ViewDefinition, stage: DerivingStage, source: Described) -> None:
    _require_group(store, stage.output.rpartition("/")[0], 3 if source.key.endswith("zarr.json") else 2)
    is_alike = len(stage.shape) == len(source.node.shape) and source.node.chunks is not None
    if is_alike and not isinstance(view, Reduce):
        placed = placed_coarser(source.attributes, source, view) if isinstance(view, Coarsen) else {}
        _copy(store, stage, source, placed)
    else:
        _create(store, view, stage, source)


def _require_group(store: ViewStore, path: str, zarr_format: int) -> None:
    import zarr

    root = zarr.open_group(cast("Store", store), mode="a", zarr_format=cast(Any, zarr_format))
    if path:
        root.require_group(path)


def _copy(store: ViewStore, stage: DerivingStage, source: Described, placed: Mapping[str, Any]) -> None:
    """Store the output as its source is stored: chunks, codecs, type, fill value, attributes, with those `placed`."""
    name = source.key.rpartition("/")[2]
    document = {**source.document, "shape": list(stage.shape)}
    if placed:
        kept = {name: each for name, each in source.attributes.items() if name != "spatial:shape"}
        document["attributes"] = {**kept, **placed}
    store[document_key(stage.output, name)] = json.dumps(document, indent=2).encode()
    if name == ".zarray" and source.attributes:
        store[document_key(stage.output, ".zattrs")] = json.dumps(source.attributes, indent=2).encode()


def _create(store: ViewStore, view: ViewDefinition, stage: DerivingStage, source: Described) -> None:
    import numpy as np
    import zarr

    array = zarr.open_array(cast("Store", store), path=source.path, mode="r")
    dtype, fill_value = array.dtype, array.fill_value
    if isinstance(stage, ReduceStage) and stage.method == "count":
        dtype, fill_value = np.dtype("int64"), 0
    elif isinstance(stage, ReduceStage) and stage.method == "mean" and dtype.kind in "iub":
        dtype = np.dtype("float64")
    kept = [axis for axis in range(array.ndim) if not (isinstance(stage, ReduceStage) and stage.axis == axis)]
    names = source.document.get("dimension_names") or source.attributes.get("_ARRAY_DIMENSIONS")
    format_3 = source.key.endswith("zarr.json")
    chunks = [max(1, min(_longest(array, axis), 1 << 20)) for axis in range(array.ndim)]
    if isinstance(stage, ReduceStage) and stage.groups is not None:
        kept, chunks[stage.axis] = list(range(array.ndim)), 1
    named = None if names is None else [names[axis] for axis in kept]
    if isinstance(view, Reduce) and view.by is not None and named is not None:
        named = [view.name_of_periods if name == view.dim else name for name in named]
    made = zarr.create_array(
        cast("Store", store), name=stage.output, shape=stage.shape,
        chunks=tuple(chunks[axis] for axis in kept) or "auto", dtype=dtype, fill_value=fill_value,
        zarr_format=3 if format_3 else 2, dimension_names=named if format_3 else None,
    )  # fmt: skip
    others = {"_ARRAY_DIMENSIONS"}
    if dtype != array.dtype:  # xarray would read them as values of this type
        others |= {"_FillValue", "missing_value"}
    if isinstance(stage, ReduceStage) and stage.method == "count":
        others |= {"units", "scale_factor", "add_offset"}
    attributes = {name: each for name, each in source.attributes.items() if name not in others}
    if named is not None and not format_3:
        attributes["_ARRAY_DIMENSIONS"] = named
    if attributes:
        made.attrs.update(attributes)


def _longest(array: Any, axis: int) -> int:
    try:
        return int((array.shards or array.chunks)[axis])
    except NotImplementedError:  # chunks of different lengths
        return int(array.shape[axis])

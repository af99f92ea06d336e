"""Makes the arrays that the outputs of a view are stored in, as their sources are stored."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any, cast

from txstore.deriving.attributes import handed_on
from txstore.deriving.definitions import Coarsen, Reduce, ViewDefinition
from txstore.deriving.stages import CoarsenStage, DerivingStage, ReduceStage
from txstore.format.documents import Described, describe
from txstore.format.keys import document_key
from txstore.views.geozarr import describe_overviews, is_geospatial
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
                warnings.warn(told, UserWarning, stacklevel=2)
                return


class _StoredSources:
    """The arrays of a store."""

    def __init__(self, store: ViewStore) -> None:
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


def _make(store: ViewStore, view: ViewDefinition, stage: DerivingStage, source: Described) -> None:
    _require_group(store, stage.output.rpartition("/")[0], 3 if source.key.endswith("zarr.json") else 2)
    is_alike = len(stage.shape) == len(source.node.shape) and source.node.chunks is not None
    if is_alike and not isinstance(view, Reduce):
        _copy(store, stage, source)
    else:
        _create(store, stage, source)


def _require_group(store: ViewStore, path: str, zarr_format: int) -> None:
    import zarr

    root = zarr.open_group(cast("Store", store), mode="a", zarr_format=cast(Any, zarr_format))
    if path:
        root.require_group(path)


def _copy(store: ViewStore, stage: DerivingStage, source: Described) -> None:
    """Store the output as its source is stored: chunks, codecs, type, fill value."""
    name = source.key.rpartition("/")[2]
    document = {**source.document, "shape": list(stage.shape)}
    attributes = handed_on(stage, source, is_of_its_type=True)
    if name == "zarr.json":
        document["attributes"] = attributes
    elif attributes:
        store[document_key(stage.output, ".zattrs")] = json.dumps(attributes, indent=2).encode()
    store[document_key(stage.output, name)] = json.dumps(document, indent=2).encode()


def _create(store: ViewStore, stage: DerivingStage, source: Described) -> None:
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

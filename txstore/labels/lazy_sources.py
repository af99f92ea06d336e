"""Finds the zarr arrays that lazy data of Dask are computed from: what xarray and `dask.array.from_zarr` open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import zarr


def arrays_read(values: Any) -> Iterator[zarr.Array[Any]]:
    """Yield the zarr arrays in the graph of a lazy array. A user's function may open others, which this can't see."""
    graph = values.__dask_graph__()
    layers: Mapping[str, Any] = getattr(graph, "layers", {"": graph})
    for layer in layers.values():
        # A layer of `blockwise` makes its tasks when it is computed, all with the same arguments beside the blocks.
        tasks = [value for value, _ in layer.indices] if hasattr(layer, "indices") else layer.values()
        for task in tasks:
            yield from _within(task, 4)


def _within(value: Any, depth: int) -> Iterator[zarr.Array[Any]]:
    """Yield the zarr arrays that a task has as arguments, or that xarray's lazy arrays are around."""
    if isinstance(value, zarr.Array):
        yield value
    elif isinstance(value, list | tuple):
        for each in value if depth else ():
            yield from _within(each, depth - 1)
    elif type(value).__module__.startswith("dask."):
        for name in ("args", "value"):
            yield from _within(getattr(value, name, None), depth - 1) if depth else ()
    elif type(value).__module__.startswith("xarray."):
        for name in ("array", "_array"):  # one around the other; the last one is around zarr's
            yield from _within(getattr(value, name, None), depth)

"""A job that keeps a copy of `src` at `copy`, by nothing but what its feed tells."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import zarr

import txstore
from txstore.feeds import FeedChange, FeedNode


def there(path: str) -> str:
    assert path == "src" or path.startswith("src/")
    return "copy" + path.removeprefix("src")


def copy_structure(change: FeedChange, nodes: Iterable[FeedNode], store: txstore.TxStore) -> None:
    """Do what concerns whole nodes. Moved ones are taken from the copy as it was."""
    nodes = [*nodes]
    new, old, copy = change.snapshot(), store.at_base(), zarr.open_group(store, mode="a")
    for path in change.erased:
        _delete(copy, there(path))
    gone = [
        node.moved_from if node.change == "moved" else node.path
        for node in nodes
        if node.change in ("removed", "moved")
    ]
    for path in sorted(filter(None, gone), key=len, reverse=True):
        _delete(copy, there(path))
    for node in sorted(nodes, key=lambda node: len(node.path)):
        if node.change == "removed":
            continue
        source = zarr.open(new, path=node.path, mode="r")
        found = copy.get(there(node.path))
        if isinstance(source, zarr.Group):
            if isinstance(found, zarr.Array):
                _delete(copy, there(node.path))
            zarr.open_group(store, path=there(node.path), mode="a").attrs.put(dict(source.attrs))
        elif node.change == "moved":
            was = zarr.open_array(old, path=there(node.moved_from or ""), mode="r")
            _like(store, source, there(node.path))[...] = was[...]
        elif not isinstance(found, zarr.Array) or any(each.name != "shape" for each in node.diff.fields):
            _like(store, source, there(node.path))
        else:
            found.resize(source.shape)
            found.attrs.put(dict(source.attrs))


def copy_regions(change: FeedChange, regions: Iterable[tuple[str, tuple[slice, ...]]], store: txstore.TxStore) -> None:
    new = change.snapshot()
    for path, region in regions:
        source = zarr.open_array(new, path=path, mode="r")
        assert all(0 <= part.start < part.stop <= length for part, length in zip(region, source.shape, strict=True))
        zarr.open_array(store, path=there(path))[region] = source[region]


def apply(change: FeedChange, store: txstore.TxStore) -> None:
    copy_structure(change, list(change.nodes), store)
    copy_regions(change, ((node.path, region) for node in change.nodes for region in node.regions), store)


def _delete(copy: zarr.Group, path: str) -> None:
    if path in copy:
        del copy[path]


def _like(store: txstore.TxStore, source: zarr.Array[Any], path: str) -> zarr.Array[Any]:
    return zarr.create_array(
        store, name=path, shape=source.shape, chunks=source.chunks, shards=source.shards, dtype=source.dtype,
        fill_value=source.fill_value, attributes=dict(source.attrs), overwrite=True,
    )  # fmt: skip


def content(store: txstore.TxStore, path: str) -> dict[str, Any]:
    """Return all that is below a path, in a form that can be compared."""
    found: dict[str, Any] = {}
    try:
        top = zarr.open_group(store, path=path, mode="r")
    except (FileNotFoundError, zarr.errors.GroupNotFoundError):
        return found
    found[""] = dict(top.attrs)
    for name, node in top.members(max_depth=None):
        if isinstance(node, zarr.Group):
            found[name] = dict(node.attrs)
        else:
            values = np.asarray(node[...])
            found[name] = (
                node.shape,
                node.chunks,
                str(node.dtype),
                str(node.fill_value),
                dict(node.attrs),
                values.tolist(),
            )
    return found

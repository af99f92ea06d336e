"""Reads plain Zarr of format 2 or 3: copies it key by key, byte for byte, or array by array if sources are joined."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from txstore.codecs import bounded_codecs
from txstore.errors import CorruptionError, SourceError
from txstore.format.consolidated import is_consolidated, plain_document
from txstore.format.keys import document_key, encode_key, is_document
from txstore.interchange.arrays import ForeignArray, is_excluded, meaning_of
from txstore.interchange.destinations import in_parallel
from txstore.interchange.import_targets import check_documents
from txstore.interchange.places import ROOT_DOCUMENTS, ForeignFile, Place
from txstore.store import TxStore

#: Files left by a killed zarr, and by desktops.
DEBRIS = re.compile(r"(.*/)?(\.DS_Store|[^/]*\.[0-9a-f]{32}\.partial)")


def hierarchy_files(place: Place, exclude: Sequence[str] = ()) -> dict[str, ForeignFile]:
    """Return the files of a hierarchy by key, without consolidated metadata.

    Raises `SourceError` if the listing has no hierarchy.
    """
    files = place.files()
    if not any(name in files for name in ROOT_DOCUMENTS):
        reason = f"no Zarr hierarchy is listed here (no {', '.join(ROOT_DOCUMENTS[:-1])} or {ROOT_DOCUMENTS[-1]})"
        raise SourceError(place.url, f"{reason}: look at the path; over HTTP, the server has to list its directories")
    found = {
        key: file
        for key, file in files.items()
        if not is_consolidated(key) and not DEBRIS.fullmatch(key) and not is_excluded(key, exclude) and encode_key(key)
    }
    place.check_inside(found)
    check_documents(place.url, {key: file.size for key, file in found.items()})
    return found


def read_documents(place: Place, files: Mapping[str, ForeignFile]) -> dict[str, bytes]:
    """Return the documents of a hierarchy. Raises `SourceError` if the length of one has changed."""
    keys = [key for key in files if is_document(key)]
    found = {}
    for key, content in in_parallel(place.read, keys, lambda key: files[key].size):
        check_size(place, files, key, content)
        found[key] = plain_document(key, content)
    return found


def check_size(place: Place, files: Mapping[str, ForeignFile], key: str, content: bytes) -> None:
    if len(content) != files[key].size:
        raise SourceError(place.url, f"{key!r} has changed while it was read: let its writers end first")


def copy_hierarchy(
    place: Place,
    files: Mapping[str, ForeignFile],
    store: TxStore,
    path: str,
    *,
    verify: bool,
    resuming: bool,
    advance: Callable[[int], None],
) -> None:
    """Stage the files that are not documents below `path`, unchanged, unless the same is there.

    `resuming` skips files that have a version, and are staged already. Raises `SourceError` if a file's length has
    changed, `CorruptionError` if it reads back differently.
    """
    staged = store.mapping
    missing = []
    for key, file in files.items():
        if resuming and file.version and document_key(path, key) in staged:
            advance(file.size)  # the sources are unchanged, and each file was staged whole or not at all
        else:
            missing.append(key)
    for key, content in in_parallel(place.read, missing, lambda key: files[key].size):
        check_size(place, files, key, content)
        target = document_key(path, key)
        if target not in staged or store[target] != content:
            store[target] = content
        if verify and store[target] != content:
            raise CorruptionError(store.url, key=target, reason="what was staged is not what comes back")
        advance(len(content))


class ZarrArrays:
    """A plain Zarr hierarchy, as arrays that can be joined with others."""

    def __init__(self, place: Place, exclude: Sequence[str] = ()) -> None:
        import zarr

        from txstore.pipeline import made_own

        self._place = place
        self._exclude = exclude
        # Consolidated metadata may be older than the documents, and name arrays outside of this place.
        root = zarr.open(place.store(), mode="r", use_consolidated=False)
        nodes: dict[str, Any] = {"": root}
        if isinstance(root, zarr.Group):
            below = root.members(max_depth=None, use_consolidated_for_children=False)
            nodes |= {node.path: node for _, node in below}
        arrays = {
            path: node
            for path, node in nodes.items()
            if isinstance(node, zarr.Array) and not is_excluded(path, exclude)
        }
        for path, array in arrays.items():
            made_own(array)
            chunk = array.shards or array.chunks
            size = prod(map(min, chunk, array.shape)) * array.dtype.itemsize
            if size > bounded_codecs.MOST_IN_MEMORY:
                most = f"{bounded_codecs.MOST_IN_MEMORY:,} at once (2 GiB, or an eighth of its memory)"
                told = f"its chunks have {size:,} bytes each, and on this machine an import reads at most {most}"
                raise place.refused(path, told)
        self.arrays = {path: _array(array) for path, array in arrays.items()}

    def close(self) -> None:
        pass

    def describe(self, store: Any, shapes: Mapping[str, tuple[int, ...]], chunks: Mapping[str | int, int]) -> None:
        """Create the groups and arrays, with attributes, in a dictionary that zarr takes as a store.

        The caller resizes them to `shapes`. Their values do not matter. Those of HDF5 and NetCDF do the same.
        """
        from zarr.buffer import cpu

        if chunks:
            raise ValueError("plain Zarr is copied with its own chunks: leave chunks out")
        for key in hierarchy_files(self._place, self._exclude):
            if key.rpartition("/")[2] in ("zarr.json", ".zarray", ".zgroup", ".zattrs"):
                store[key] = cpu.Buffer.from_bytes(plain_document(key, self._place.read(key)))


def _array(node: Any) -> ForeignArray:
    names = getattr(node.metadata, "dimension_names", None) or node.attrs.get("_ARRAY_DIMENSIONS")
    meaning = meaning_of(node.attrs)
    if names and node.metadata.zarr_format == 2:
        meaning["fill_value"] = repr(node.fill_value)  # xarray takes it for missing data
    return ForeignArray(
        shape=node.shape,
        dtype=node.dtype,
        dimensions=tuple(names or [None] * node.ndim),
        read=node.__getitem__,
        meaning=meaning,
        itemsize=node.dtype.itemsize,
    )

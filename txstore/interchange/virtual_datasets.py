"""`txstore.write_virtual`: writes VirtualiZarr's data sets, whose chunks stay in the files in which they are.

The arrays of a manifest (paths, offsets, lengths) become references without a detour over kerchunk's manifests.
Documents are those that VirtualiZarr's writer for Icechunk makes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from txstore.codecs.allowed_codecs import check_array
from txstore.commit import MAIN, Commit
from txstore.errors import SourceError
from txstore.format.keys import document_key
from txstore.interchange.arrays import MEANING
from txstore.interchange.import_targets import checked_path, groups_above
from txstore.store import TxStore
from txstore.transactions.transaction import Transaction

if TYPE_CHECKING:
    import xarray as xr

    from txstore.store import OpenedRepository

Mode: TypeAlias = Literal["w", "w-", "a"]

#: Encoding that xarray looks for among the attributes.
_ENCODING = ("_FillValue", "missing_value", "scale_factor", "add_offset")
_MODES = (None, "w", "w-", "a")


def write_virtual(
    dataset: xr.Dataset | xr.DataTree,
    target: TxStore | OpenedRepository,
    group: str = "",
    *,
    mode: Mode | None = None,
    append_dim: str | None = None,
    write_inherited_coords: bool = False,
    message: str | None = None,
    branch: str = MAIN,
) -> Commit | None:
    """Write a data set of VirtualiZarr: its virtual variables as references to the files in which their chunks lie.

    Variables in memory are written as `Dataset.to_zarr` does. Chunks that a manifest leaves out are missing chunks. It
    looks at each file once, and records its size and version: a read of one that has changed since raises
    `SourceChangedError`.

    Parameters
    ----------
    dataset : xarray.Dataset or xarray.DataTree
        As `virtualizarr.open_virtual_dataset` returns it. A tree's groups are written below `group`.
    target : TxStore or Repository
        A store stages into its transaction. A repository makes one commit, with `message`, on `branch`. The files lie
        below one of its `sources`.
    group : str
        The path of the group; "" is the root. Groups that are missing above it are made.
    mode : {"w-", "w", "a"}, optional
        "w-", the default: the group must not exist. "w" replaces it. "a" keeps its other arrays, and replaces an array
        if the new one is like it. Not with `append_dim`.
    append_dim : str, optional
        Append to the arrays of the group along this dimension. They have to end at the end of a chunk.
    write_inherited_coords : bool
        Write the coordinates that groups of a tree inherit into each group.

    Returns
    -------
    Commit or None
        The commit, if the target is a repository.

    Raises
    ------
    SourceError
        A file may not be read here, does not exist, is named by a relative path, or does not hold a range.
    ValueError
        The data set does not fit what is in the group.
    FileExistsError
        The group exists.
    CodecRefusedError
        An array that exists, and gets values in memory, has codecs that may not run.
    """
    if isinstance(target, TxStore):
        if message is not None or branch != MAIN:
            raise ValueError("message and branch are those of the store's own transaction: give them to that")
        _write(dataset, target, checked_path(group), mode, append_dim, write_inherited_coords)
        return None
    if not hasattr(target, "transaction"):
        raise TypeError(f"a repository, or a store of repo.transaction(), not {type(target).__name__}")
    with target.transaction(message or "virtual data set", branch=branch) as store:
        _write(dataset, store, checked_path(group), mode, append_dim, write_inherited_coords)
        return store.commit()


class _Virtual(NamedTuple):
    """One virtual variable, and where it goes."""

    path: str
    document: bytes | None  # None: that of an array that grows
    shape: tuple[int, ...]
    keys: list[str]  # of the chunks that lie in files
    paths: list[str]
    offsets: Any
    lengths: Any
    inlined: dict[str, bytes]  # by keys: chunks that the manifest has itself


def _write(dataset: Any, store: TxStore, path: str, mode: Mode | None, append_dim: str | None, inherits: bool) -> None:
    import zarr

    if mode not in _MODES:
        raise ValueError(f"mode={mode!r} is not one of {', '.join(map(repr, _MODES))}")
    if append_dim is not None and mode not in (None, "a"):
        raise ValueError(f"append_dim goes with no mode, not with mode={mode!r}: the group exists")
    transaction = store.mapping
    if not isinstance(transaction, Transaction):
        raise ValueError("the store is read-only: write to one of repo.transaction()")
    nodes = list(_nodes(dataset, path, inherits))
    if append_dim is not None and not any(append_dim in each.dims for _, each in nodes):
        raise ValueError(f"append_dim={append_dim!r} is no dimension of the data set")
    opened: dict[str, Any] = {}
    for where, _ in nodes:
        opened[where] = None if mode == "w" else _existing(store, where)
        if opened[where] is not None and mode != "a" and append_dim is None:
            raise FileExistsError(f"{store.url}: there is a group at {where or '/'!r}: mode='w' replaces it")
        if opened[where] is None and append_dim is not None:
            raise ValueError(f"append_dim: there is no group at {where or '/'!r} to append to")
    for where, each in nodes:
        if wrong := [name for name in each.variables if not isinstance(name, str) or "/" in name]:
            raise ValueError(f"{wrong[0]!r} is no name of a variable: rename it to a text without slashes")
        there = dict(opened[where].arrays()) if opened[where] is not None else {}
        for name in there.keys() & each.variables.keys():
            if not _is_virtual(each.variables[name]):
                check_array(there[name])  # xarray decodes elements of it to encode the new ones in its units
    above = {} if append_dim is not None else dict(groups_above(store, path, 3))
    found = [
        _virtual(where, str(name), variable, opened[where], append_dim)
        for where, each in nodes
        for name, variable in each.variables.items()
        if _is_virtual(variable)
    ]
    # All at once: if one of them is refused, nothing is staged.
    keys, paths = [key for each in found for key in each.keys], [url for each in found for url in each.paths]
    arrays = [np.concatenate([np.empty(0, np.uint64), *[each[at] for each in found]]) for at in (5, 6)]
    staged_before = transaction.version
    try:
        if mode == "w":
            transaction.delete_dir(path)
        for each in found:
            if each.document is not None and transaction.has_keys_below(each.path):
                transaction.delete_dir(each.path)  # chunks that the manifest leaves out, too
        store.set_references(keys, paths, *arrays)
        for key, content in above.items():
            store[key] = content
        for each in found:
            for key, content in each.inlined.items():
                store[key] = content
            if each.document is not None:
                store[document_key(each.path, "zarr.json")] = each.document
            else:
                zarr.open_array(store, path=each.path, mode="r+").resize(each.shape)
        for where, each in nodes:
            _write_rest(store, where, each, append_dim)
    except BaseException as error:
        if transaction.version != staged_before:
            transaction.lifecycle.fail(error)  # a half of it must not be committed
        raise


def _nodes(dataset: Any, path: str, inherits: bool) -> Iterator[tuple[str, Any]]:
    import xarray as xr

    if isinstance(dataset, xr.Dataset):
        yield path, dataset
    elif isinstance(dataset, xr.DataTree):
        for node in dataset.subtree:
            below = "" if node is dataset else node.relative_to(dataset)
            yield "/".join(filter(None, (path, below))), node.to_dataset(inherits or node is dataset)
    else:
        raise TypeError(f"a data set of xarray, or a tree of these, not {type(dataset).__name__}")


def _existing(store: TxStore, path: str) -> Any:
    import zarr

    if document_key(path, "zarr.json") not in store:
        return None
    found = zarr.open(store, path=path, mode="r")
    if not isinstance(found, zarr.Group):
        raise ValueError(f"{path or '/'!r} is an array: a data set is a group")
    return found


def _is_virtual(variable: Any) -> bool:
    from virtualizarr.manifests import ManifestArray

    return isinstance(variable.data, ManifestArray)


def _virtual(where: str, name: str, variable: Any, group: Any, append_dim: str | None) -> _Virtual:
    import zarr
    from zarr.buffer import default_buffer_prototype
    from zarr.registry import get_chunk_key_encoding_class

    array, path = variable.data, f"{where}/{name}" if where else name
    told = {**variable.attrs, **{key: variable.encoding[key] for key in _ENCODING if key in variable.encoding}}
    metadata = dataclasses.replace(
        array.metadata,
        attributes=_encoded(told),
        dimension_names=tuple(map(str, variable.dims)),
        chunk_key_encoding=get_chunk_key_encoding_class("default")(),
    )
    existing: Any = None if group is None else group.get(name)
    first, shape = [0] * len(metadata.shape), metadata.shape
    axis = variable.dims.index(append_dim) if append_dim in variable.dims else None
    if existing is not None:
        if not isinstance(existing, zarr.Array):
            raise ValueError(f"{path!r} is a group: a variable is an array")
        _check_alike(path, existing.metadata, metadata, axis)
    if axis is not None:
        if existing is None:
            raise ValueError(f"append_dim: there is no array {path!r} to append to")
        extent, chunk = existing.shape[axis], metadata.chunk_grid.chunk_shape[axis]
        if extent % chunk:
            raise ValueError(
                f"{path!r} has {extent} elements along {append_dim!r}, in chunks of {chunk}: it ends within a chunk, "
                "so no other file can follow"
            )
        first[axis] = extent // chunk
        shape = tuple(size + (extent if at == axis else 0) for at, size in enumerate(shape))
    encoding = (metadata if axis is None else existing.metadata).chunk_key_encoding
    document = metadata.to_buffer_dict(default_buffer_prototype())["zarr.json"].to_bytes() if axis is None else None
    sides = metadata.chunk_grid.chunk_shape
    grid = tuple(-(-size // side) for size, side in zip(metadata.shape, sides, strict=True))
    return _Virtual(path, document, shape, *_chunks(path, array.manifest, grid, first, encoding))


def _chunks(path: str, manifest: Any, grid: tuple[int, ...], first: list[int], encoding: Any) -> tuple[Any, ...]:
    from virtualizarr.manifests.manifest import INLINED_CHUNK_PATH

    urls = manifest._paths.ravel()
    rows = np.flatnonzero((urls != "") & (urls != INLINED_CHUNK_PATH))
    there = manifest.shape_chunk_grid  # of one without chunks it may be anything
    is_inside = len(there) == len(grid) and all(count <= most for count, most in zip(there, grid, strict=True))
    if grid and (rows.size or manifest._inlined) and not is_inside:
        raise ValueError(f"{path!r} has {grid} chunks, and its manifest {there}")
    offsets, lengths = manifest._offsets.ravel()[rows], manifest._lengths.ravel()[rows]
    names: dict[str, str] = {}  # one text for a file, instead of one for each of its chunks
    urls = [names.setdefault(url, url) for url in urls[rows]]
    for url in names:
        if "://" not in url and not url.startswith("/"):
            reason = "a reference has an absolute path or a URL: dataset.vz.rename_paths gives the whole path"
            raise SourceError(url, reason)
    places = np.unravel_index(rows, manifest.shape_chunk_grid) if first else []
    inlined = {
        f"{path}/{encoding.encode_chunk_key(tuple(map(sum, zip(place, first, strict=True))))}": content
        for place, content in manifest._inlined.items()
    }
    # The key of one chunk says what stands before the numbers of all, and between them.
    sample = encoding.encode_chunk_key((0,) * len(first))
    if not first:
        return [f"{path}/{sample}"] * len(rows), urls, offsets, lengths, inlined
    begin, separator = path + "/" + sample[: sample.index("0")], encoding.separator
    numbers = [map(str, (place + at).tolist()) for place, at in zip(places, first, strict=True)]
    keys = [begin + separator.join(place) for place in zip(*numbers, strict=True)]
    return keys, urls, offsets, lengths, inlined


def _check_alike(path: str, stored: Any, given: Any, axis: int | None) -> None:
    """Raise `ValueError` unless chunks of one array, along an axis, may follow those of another."""
    before, after = stored.to_dict(), given.to_dict()
    for each in (before, after):
        shape = [size for at, size in enumerate(each["shape"]) if at != axis]
        each |= {"shape": shape, "chunk_key_encoding": None}
        each["attributes"] = {key: each["attributes"][key] for key in MEANING if key in each["attributes"]}
    if axis is None and stored.chunk_key_encoding != given.chunk_key_encoding:
        before["chunk_key_encoding"] = "another"
    different = sorted(
        name for name in before.keys() | after.keys() if _plain(before.get(name)) != _plain(after.get(name))
    )
    if different:
        told = "; ".join(f"{name}: {before.get(name)} there, {after.get(name)} here" for name in different)
        raise ValueError(f"{path!r} exists, and its chunks mean something else: {told}")


def _plain(value: Any) -> Any:
    """Return a member of a document so that equal ones are equal: lists for tuples, and NaN as text."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return repr(value) if isinstance(value, float | np.floating) else value


def _encoded(attributes: Mapping[str, Any]) -> dict[str, Any]:
    from xarray.backends.zarr import encode_zarr_attr_value

    return {key: encode_zarr_attr_value(value) for key, value in attributes.items()}  # type: ignore[no-untyped-call]


def _write_rest(store: TxStore, path: str, dataset: Any, append_dim: str | None) -> None:
    """Write the variables that are in memory, and the attributes of the group."""
    import xarray as xr
    import zarr

    loaded = {name: each for name, each in dataset.variables.items() if not _is_virtual(each)}
    growing = {name: each for name, each in loaded.items() if append_dim in each.dims}
    fixed = {name: each for name, each in loaded.items() if name not in growing}
    group = zarr.open_group(store, path=path, mode="a", zarr_format=3)
    options: dict[str, Any] = {"group": path or None, "zarr_format": 3, "consolidated": False}
    if fixed:
        xr.Dataset(fixed).to_zarr(store, mode="a", **options)
    if growing:
        xr.Dataset(growing).to_zarr(store, append_dim=append_dim, **options)
    attributes = _encoded(dataset.attrs)
    if dataset.coords:
        attributes["coordinates"] = " ".join(map(str, dataset.coords))
    group.update_attributes(attributes)

"""Reads HDF5 files, through h5py: groups, data sets, attributes, and dimension names from attached scales."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from txstore.errors import SourceError
from txstore.interchange.arrays import ForeignArray, Selection, chunk_shape, is_excluded, meaning_of
from txstore.interchange.places import Place

#: HDF5 attributes that attach scales to dimensions; in Zarr the dimensions have names instead.
_OF_SCALES = {"CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "DIMENSION_LABELS"}

#: What a user can do about values that lie elsewhere.
_WHOLE = "Write a file that has them itself, with h5py or xarray"

#: How many groups may lie above a node, and how many paths may lead to a group.
_DEEPEST, _MOST_PATHS = 100, 64


class Hdf5Arrays:
    """An open HDF5 file."""

    def __init__(self, place: Place, exclude: Sequence[str] = ()) -> None:
        self._h5py = h5py = _h5py()
        self._url = place.url
        self._exclude = exclude
        self._opened = None if place.is_local else place.fs.open(place.root, "rb")
        self._file = h5py.File(place.root if self._opened is None else self._opened, "r")
        self._nodes: dict[str, Any] = {}
        try:
            self._nodes = dict(self._walk())
            self.arrays = {path: self._array(path, node) for path, node in self._nodes.items() if self._is_array(node)}
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()
        if self._opened is not None:
            self._opened.close()

    def _is_array(self, node: Any) -> bool:
        return isinstance(node, self._h5py.Dataset)

    def _walk(self) -> Iterator[tuple[str, Any]]:
        try:
            for path, node in nodes_inside(self._file, self._exclude):
                if not isinstance(node, self._h5py.Group | self._h5py.Dataset):
                    raise NotInsideError(path, "it is a named data type")
                yield path, node
        except NotInsideError as error:
            raise self._refused(*error.args) from None

    def _refused(self, path: str, reason: str) -> SourceError:
        return SourceError(self._url, f"{path!r} can't be imported: {reason}. To leave it out: exclude=[{path!r}]")

    def _array(self, path: str, node: Any) -> ForeignArray:
        if node.shape is None:
            raise self._refused(path, "it has no shape (a null dataspace)")
        text = self._h5py.check_string_dtype(node.dtype)
        dtype: Any = node.dtype
        read: Any = node.__getitem__
        if text is not None and text.length is None:
            from zarr.dtype import VariableLengthUTF8

            dtype = VariableLengthUTF8()
            decoded = node.asstr()

            def read_text(selection: Selection) -> Any:
                return np.asarray(decoded[selection], dtype=object)

            read = read_text
        elif dtype.hasobject or self._h5py.check_ref_dtype(dtype) is not None:
            raise self._refused(path, f"zarr has no equivalent of its data type, {dtype}")
        else:
            if (values := self._h5py.check_enum_dtype(dtype)) is not None and values != {"FALSE": 0, "TRUE": 1}:
                dtype = np.dtype(dtype.str)  # the names go to the attributes
            dtype = np.dtype(dtype.str) if dtype.metadata and dtype.names is None else dtype
        return ForeignArray(
            shape=node.shape,
            dtype=dtype,
            dimensions=tuple(self._dimension(node, axis) for axis in range(len(node.shape))),
            read=read,
            meaning=meaning_of(self._attributes(node)),
            itemsize=node.dtype.itemsize,
        )

    def _dimension(self, node: Any, axis: int) -> str | None:
        if node.is_scale and len(node.shape) == 1:
            return str(node.name.rpartition("/")[2])
        dimension = node.dims[axis]
        if len(dimension):
            return str(dimension[0].name.rpartition("/")[2])
        return dimension.label or None

    def _attributes(self, node: Any) -> dict[str, Any]:
        found = {}
        for name in node.attrs:
            if name in _OF_SCALES and self._is_array(node):
                continue
            value = node.attrs[name]
            if isinstance(value, self._h5py.Reference | self._h5py.RegionReference):
                raise self._refused(node.name.strip("/"), f"its attribute {name!r} refers to another object")
            found[name] = _as_json(value)
        if self._is_array(node):
            names = self._h5py.check_enum_dtype(node.dtype)
            if names is not None and node.dtype != np.bool_:
                found.setdefault("flag_meanings", " ".join(names))
                found.setdefault("flag_values", [int(value) for value in names.values()])
        return found

    def describe(self, store: Any, shapes: Mapping[str, tuple[int, ...]], chunks: Mapping[str | int, int]) -> None:
        import zarr

        for path, node in self._nodes.items():
            attributes = self._attributes(node)
            if not self._is_array(node):
                zarr.create_group(store, path=path, attributes=attributes)
                continue
            array = self.arrays[path]
            dimensions = None if all(name is None for name in array.dimensions) else array.dimensions
            try:
                zarr.create_array(
                    store,
                    name=path,
                    shape=shapes[path],
                    dtype=array.dtype,
                    chunks=chunk_shape(
                        shapes[path], array.itemsize, given=node.chunks, dimensions=array.dimensions, wanted=chunks
                    ),
                    fill_value=_fill_value(node, array),
                    dimension_names=dimensions,
                    attributes=attributes,
                )
            except (TypeError, ValueError) as error:
                raise self._refused(path, str(error)) from error


class NotInsideError(ValueError):
    """A node of a file that can't be read: its path, and why."""


def nodes_inside(file: Any, exclude: Sequence[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yield all nodes by their paths, a group before what is below it. Raises `NotInsideError`.

    Several links may lead to one group. In a small file, they may make any number of paths.
    """
    import h5py

    reached: Counter[Any] = Counter()
    waiting: list[tuple[str, Any, tuple[Any, ...]]] = [("", file["/"], ())]
    while waiting:
        path, group, above = waiting.pop()
        yield path, group
        reached[group.id] += 1
        if group.id in above:
            raise NotInsideError(path, "a link leads back to a group above it")
        if len(above) == _DEEPEST:
            raise NotInsideError(path, f"it lies below {_DEEPEST} groups")
        if reached[group.id] > _MOST_PATHS:
            raise NotInsideError(path, f"links make more than {_MOST_PATHS} paths to it")
        for name in group:
            below = f"{path}/{name}" if path else name
            if is_excluded(below, exclude):
                continue
            try:
                node = inside(group, name)
            except ValueError as error:
                raise NotInsideError(below, str(error)) from None
            if isinstance(node, h5py.Group):
                waiting.append((below, node, (*above, group.id)))
            else:
                yield below, node


def inside(group: Any, name: str) -> Any:
    """Return what a group has under a name. Raises `ValueError` unless all of it lies in the file itself.

    A file may name any other file of this machine, and HDF5 would read that one in its place.
    """
    import h5py

    kind = group.id.links.get_info(name.encode(errors="surrogateescape")).type
    if kind == h5py.h5l.TYPE_EXTERNAL:
        raise ValueError(f"it is a link to another file, {group.get(name, getlink=True).filename!r}")
    if kind not in (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT):
        raise ValueError("it is a link of a program's own kind")
    try:
        node = group[name]
    except KeyError:
        raise ValueError("it is a link to nothing") from None
    if h5py.h5o.get_info(node.id).fileno != h5py.h5o.get_info(group.id).fileno:
        raise ValueError("it is a link by way of one to another file")
    if isinstance(node, h5py.Dataset):
        created = node.id.get_create_plist()
        if created.get_layout() == h5py.h5d.VIRTUAL:
            raise ValueError(f"it is a virtual data set, whose values lie elsewhere. {_WHOLE}")
        if created.get_external_count():
            raise ValueError(
                f"its values lie in other files, such as {os.fsdecode(created.get_external(0)[0])!r}. {_WHOLE}"
            )
    return node


def check_inside(url: str, content: Any) -> None:
    """Raise `SourceError` unless all of an HDF5 file that another library reads lies in the file itself.

    `content`: its path, or an open file.
    """
    h5py = _h5py()
    try:
        opened = h5py.File(content, "r")
    except OSError as error:
        raise SourceError(url, f"h5py can't read it: {error}") from error
    with opened as file:
        try:
            for _ in nodes_inside(file):
                pass
        except NotInsideError as error:
            path, reason = error.args
            raise SourceError(url, f"{path!r} can't be imported: {reason}") from None


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise ModuleNotFoundError("HDF5 files are read by h5py: pip install 'txstore[import]'") from None
    return h5py


def _fill_value(node: Any, array: ForeignArray) -> Any:
    if array.dtype == node.dtype and node.dtype.kind in "biufc" and math.prod(node.shape):
        return node.fillvalue
    return None


def _as_json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_as_json(item) for item in value] if value.ndim else _as_json(value[()])
    if isinstance(value, np.generic):
        return _as_json(value.item())
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, tuple):
        return [_as_json(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)

"""Reads HDF5 files, through h5py, and NetCDF files, through xarray.

Groups, data sets, attributes, and dimension names from attached scales are read from HDF5. Of NetCDF, xarray's way to
write it as Zarr is kept: values are not decoded or changed.

HDF5 believes that a chunk decodes to as many bytes as its values have. Of a shorter one, it returns what lies behind it
in the memory of this process. A longer one takes memory without bound. So chunks are looked at before HDF5 reads them.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Any, TypeAlias

import numpy as np

from txstore.codecs import bounded_codecs
from txstore.codecs.allowed_codecs import allowed_by_user
from txstore.codecs.bounded_codecs import MOST_IN_MEMORY
from txstore.errors import SourceError
from txstore.format.keys import encode_key
from txstore.interchange.arrays import ForeignArray, Selection, blocks, chunk_shape, is_excluded, meaning_of
from txstore.interchange.format3 import missing_value
from txstore.interchange.places import Place

_SHUFFLE, _FLETCHER32 = 2, 3
#: The numbers and names of HDF5's filters that are not measured. A filter of others is called by its number.
_OTHERS = {4: "szip", 5: "nbit", 6: "scaleoffset"}
#: How many bytes `fletcher32` adds.
_CHECKSUM = 4
_PIECE = 1 << 20

Refused: TypeAlias = Callable[[str, str], Exception]


def guarded(path: str, node: Any, read: Callable[[Selection], Any], refused: Refused) -> Callable[[Selection], Any]:
    """Return what reads a data set by `read`. It raises `refused` before HDF5 reads a chunk that is too short."""
    _check_places(path, node, refused)

    def checked(selection: Selection) -> Any:
        _are_written(path, node, selection, refused)
        return read(selection)

    return checked


def of_netcdf(path: str, node: Any, read: Callable[[Selection], Any], refused: Refused) -> Callable[[Selection], Any]:
    """Return what reads a variable of NetCDF, whose values lie in a data set, by `read`.

    The library of NetCDF returns memory of this process for values that were never written and have no fill value, and
    for those behind the end of the data set: of dimensions without a limit, another variable may have more.
    """
    _check_places(path, node, refused)
    created = node.id.get_create_plist()
    is_filled = created.get_fill_time() != 1 and created.fill_value_defined() != 0

    def checked(selection: Selection) -> Any:
        inner = tuple(
            slice(min(each.start, side), min(each.stop, side)) for each, side in zip(selection, node.shape, strict=True)
        )
        if not _are_written(path, node, inner, refused) and not is_filled:
            raise refused(path, "some of its values were never written, and it has no fill value for them")
        values = read(inner)
        if inner == selection:
            return values
        fill_value = "" if values.dtype == object else node.fillvalue
        padded = np.full([each.stop - each.start for each in selection], fill_value, values.dtype)
        padded[tuple(map(slice, values.shape))] = values
        return padded

    return checked


def _check_places(path: str, node: Any, refused: Refused) -> None:
    """Raise `refused` if two chunks without filters lie at one place: HDF5 tells of the first, and reads the second."""
    seen = set[Any]()
    if node.chunks is not None and not node.id.get_create_plist().get_nfilters():
        node.id.chunk_iter(lambda told: seen.add(told.chunk_offset))
        if len(seen) < node.id.get_num_chunks():
            raise refused(path, "there are two chunks at one place")


def _are_written(path: str, node: Any, selection: Selection, refused: Refused) -> bool:
    """Tell whether all chunks of a part of a data set were written. Raises `refused` for one that is too short."""
    try:
        return check_chunks(node, selection)
    except ValueError as error:
        raise refused(path, str(error)) from None


def check_chunks(node: Any, selection: Selection) -> bool:
    """Tell whether all chunks of a part of a data set were written. Raises `ValueError` for one that is too short.

    `selection`: slices with a start and an end inside the shape.
    """
    if node.chunks is None:
        return not node.size or node.id.get_storage_size() > 0
    created = node.id.get_create_plist()
    filters = [created.get_filter(number)[0] for number in range(created.get_nfilters())]
    unknown = {_OTHERS.get(each, str(each)) for each in filters if each not in (_SHUFFLE, _FLETCHER32, *_MEASURES)}
    is_trusted = bool(unknown) and unknown <= allowed_by_user()
    size = math.prod(node.chunks) * _item_size(node)
    are_written = True
    places = [
        range(each.start // side * side, each.stop, side) for each, side in zip(selection, node.chunks, strict=True)
    ]
    is_raw_at_end = cache(partial(_is_raw_at_end, node, size))
    for place in itertools.product(*places):
        stored = _stored(node, place, is_filtered=bool(filters))
        is_at_end = any(at + side > end for at, side, end in zip(place, node.chunks, node.shape, strict=True))
        if stored is None:
            are_written = False
            continue
        own = [] if filters and is_at_end and is_raw_at_end() else filters
        if not is_trusted and (found := _decoded(*stored, own, size)) != size:
            raise ValueError(f"its chunk at {place} decodes to {found:,} bytes, or more, instead of {size:,}")
    return are_written


def _item_size(node: Any) -> int:
    """Return how many bytes an element has in its chunk. That of a text is its length, and where it lies in a heap."""
    if node.dtype.hasobject:
        return 4 + int(node.file.id.get_create_plist().get_sizes()[0]) + 4
    return int(node.id.get_type().get_size())


def _is_raw_at_end(node: Any, size: int) -> bool:
    """Tell whether chunks that reach behind the end of a data set go through no filter.

    h5py has no way to ask for that option of HDF5. So a data set with the same properties is made in memory: of zeros,
    with one such chunk.
    """
    import h5py

    created, axes = node.id.get_create_plist(), len(node.chunks)
    with h5py.File("end", "w", driver="core", backing_store=False, libver="latest") as file:
        try:
            created.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            created.set_fill_time(h5py.h5d.FILL_TIME_ALLOC)
            if not node.dtype.hasobject:
                created.set_fill_value(np.zeros((), node.dtype))
            space = h5py.h5s.create_simple((1,) * axes, (h5py.h5s.UNLIMITED,) * axes)
            made = h5py.h5d.create(file.id, b"end", node.id.get_type(), space, created)
            content = made.read_direct_chunk((0,) * axes)[1]
        except (TypeError, ValueError, RuntimeError, OSError, MemoryError):
            return True
    return bytes(content) == bytes(size)


def _stored(node: Any, place: tuple[int, ...], *, is_filtered: bool) -> tuple[int, int, memoryview] | None:
    """Return which filters a chunk does not have, by their bits, how many bytes, and if it has filters, these.

    None if it was never written.
    """
    told = node.id.get_chunk_info_by_coord(place)
    size, is_told = told.size, told.byte_offset is not None
    # Then HDF5 has told of another chunk, or of none: it numbers them as if they grew along the first axis.
    is_of_another = node.maxshape.count(None) == 1 and node.maxshape[0] is not None
    if not is_of_another and not (is_told and is_filtered):
        return (0, size, memoryview(b"")) if is_told else None
    if size > bounded_codecs.MOST_IN_MEMORY:
        raise ValueError(f"its chunk at {place} has {size:,} bytes")
    try:
        mask, content = node.id.read_direct_chunk(place) if is_told or node.id.get_num_chunks() else (0, None)
    except (RuntimeError, OSError, MemoryError) as error:
        if not re.search("not allocated|address isn't defined", str(error)):
            raise ValueError(f"its chunk at {place} can't be read ({error or 'it has no bytes'})") from None
        content = None
    if content is None:
        return None
    if not is_of_another and (mask, len(content)) != (told.filter_mask, size):
        raise ValueError(f"there are two chunks at {place}")
    # Without filters, as many bytes are read as a chunk should have, and what is told of any is right.
    return mask, len(content) if is_filtered or not is_told else size, memoryview(content)


def _decoded(mask: int, length: int, content: memoryview, filters: list[int], most: int) -> int:
    """Return to how many bytes a chunk decodes, or a number above `most`."""
    active = [each for number, each in enumerate(filters) if not mask >> number & 1]
    is_measured = False
    for number in reversed(active):
        if number == _FLETCHER32:
            length -= _CHECKSUM
        elif number in _MEASURES and not is_measured:
            length = _MEASURES[number](content[:length], most + _CHECKSUM * len(filters))
        elif number != _SHUFFLE:
            name = _OTHERS.get(number, str(number))
            raise ValueError(
                f"how long its chunks are behind the filter {name} can't be checked: write the file anew, with "
                f"h5repack -f GZIP=4; or, if you trust the file, set TXSTORE_CODECS={name}"
            )
        is_measured |= number != _FLETCHER32
    return int(length)


def _deflate(content: memoryview, most: int) -> int:
    """HDF5 reads one stream, and nothing behind it."""
    decoder, total, left = zlib.decompressobj(), 0, bytes(content)
    while not decoder.eof and left and total <= most:
        total += len(decoder.decompress(left, _PIECE))
        left = decoder.unconsumed_tail
    if not decoder.eof and total <= most:
        total += len(decoder.flush())
    return total


def _lzf(content: memoryview, most: int) -> int:
    """LZF: a byte below 32 says how many bytes follow it, less one; others say how many to repeat, less two."""
    at = total = 0
    while at < len(content) and total <= most:
        told = content[at]
        if told < 32:
            at, total = at + told + 2, total + told + 1
        elif told < 224:
            at, total = at + 2, total + (told >> 5) + 2
        else:
            at, total = at + 3, total + 9 + (content[at + 1] if at + 1 < len(content) else 0)
    return total


#: Filters by their numbers, which tell how long a chunk is behind them.
_MEASURES: dict[int, Callable[[memoryview, int], int]] = {
    1: _deflate,
    32000: _lzf,
    32015: partial(bounded_codecs.zstd_size, None),
}


#: HDF5 attributes of arrays, and of scales, that attach scales to dimensions. In Zarr the dimensions have names.
_OF_ARRAYS, _OF_SCALES = {"DIMENSION_LIST", "REFERENCE_LIST", "DIMENSION_LABELS"}, {"CLASS", "NAME"}

#: What a user can do about values that lie elsewhere.
_WHOLE = "Write a file that has them itself, with h5py or xarray"

#: How many groups may lie above a node, and how many paths may lead to it.
_DEEPEST, _MOST_PATHS = 100, 64

#: How many characters one attribute of texts may have, or all arrays of texts where they are read at once; and how many
#: bytes all attributes.
_MOST_AT_ONCE, _MOST_ATTRIBUTES = 1 << 30, 256 << 20
#: How many characters of each text may come from nowhere: they may stand for elements that were never written.
_SHORT = 64


class Hdf5Arrays:
    """An open HDF5 file."""

    def __init__(self, place: Place, exclude: Sequence[str] = ()) -> None:
        self._h5py = h5py = _h5py()
        self._refused = place.refused
        self._texts = Texts(place)
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
            for path, node in nodes_inside(self._file, self._texts, self._exclude):
                if not isinstance(node, self._h5py.Group | self._h5py.Dataset):
                    raise NotInsideError(path, "it is a named data type")
                yield path, node
        except NotInsideError as error:
            raise self._refused(*error.args) from None

    def _array(self, path: str, node: Any) -> ForeignArray:
        if node.shape is None:
            raise self._refused(path, "it has no shape (a null dataspace)")
        if node.dtype.subdtype is not None:
            raise self._refused(path, "its elements are arrays")
        text = self._h5py.check_string_dtype(node.dtype)
        dtype: Any = node.dtype
        read: Any = guarded(path, node, node.__getitem__, self._refused)
        if text is not None and text.length is None:
            from zarr.dtype import VariableLengthUTF8

            dtype = VariableLengthUTF8()
            read = self._texts.reader(path, node, self._refused)
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
        found: dict[str, Any] = {}
        for name in node.attrs:
            if self._is_array(node) and (name in _OF_ARRAYS or (node.is_scale and name in _OF_SCALES)):
                continue
            if _refers(node.attrs.get_id(name).dtype):
                raise self._refused(node.name.strip("/"), f"its attribute {name!r} refers to another object")
            found[name] = _as_json(node.attrs[name])
        if self._is_array(node):
            match found.get("_FillValue"):
                case (int() | float() as value) | [int() | float() as value]:
                    found["_FillValue"] = missing_value(value, node.dtype.kind)
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


class Texts:
    """Bounds the texts of a file, and other values of varying length.

    Each lies in a heap of the file, uncompressed. HDF5 writes one for each element. In a file that somebody has made,
    any number of elements may lead to one text, and need a few bytes each, or none where chunks are compressed.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._size = place.file().size
        self._characters = self._of_attributes = 0

    @cached_property
    def _longest(self) -> int:
        """The most bytes that a text can have: those of the largest heap."""
        longest, rest = 1, b""
        with self._place.fs.open(self._place.root, "rb") as file:
            while piece := file.read(1 << 24):
                found = re.findall(rb"GCOL(?=.{4}(.{8}))", rest + piece, re.DOTALL)
                longest = max([longest, *[int.from_bytes(size, "little") for size in found]])
                rest = (rest + piece)[-15:]
        return min(longest, self._size)

    def reader(self, path: str, node: Any, refused: Callable[[str, str], Exception]) -> Callable[[Selection], Any]:
        """Return what reads an array of texts, in pieces. It raises `refused` once they are longer than the file."""
        decoded, length = node.asstr(), 0

        def read(selection: Selection) -> Any:
            nonlocal length
            start, stop = [s.start for s in selection], [s.stop for s in selection]
            found = np.empty(np.subtract(stop, start).astype(int), object)
            for part in blocks(start, stop, [1] * len(start), self._longest):
                try:
                    texts = np.asarray(decoded[part], object)
                except UnicodeDecodeError as error:
                    raise refused(path, f"a text in it is no {error.encoding}") from None
                length += sum(max(0, len(text) - _SHORT) for text in texts.flat)
                if length > self._size:
                    raise refused(path, "many of its elements lead to one text")
                found[tuple(slice(s.start - at, s.stop - at) for s, at in zip(part, start, strict=True))] = texts[()]
            return found

        return guarded(path, node, read, refused)

    def check_array(self, path: str, node: Any) -> None:
        """Raise `NotInsideError` unless all arrays of texts, to here, fit in memory as xarray opens them.

        It reads all of them, and gives each element as many characters as the longest of its array has.
        """
        self._check_characters(path, node.size * _SHORT)
        texts = self.reader(path, node, NotInsideError)(tuple(slice(0, length) for length in node.shape))
        self._check_characters(path, node.size * (max([_SHORT, *map(len, texts.flat)]) - _SHORT))

    def _check_characters(self, path: str, more: int) -> None:
        self._characters += more
        if self._characters > _MOST_AT_ONCE:
            reason = "xarray reads all texts at once, and up to this array they take more than 4 GiB of memory"
            raise NotInsideError(path, f"{reason}: import the file with format='hdf5' (--format hdf5)")

    def check_attributes(self, path: str, node: Any) -> None:
        """Raise `NotInsideError` unless the attributes of all nodes, to here, fit in memory together."""
        for name in node.attrs:
            attribute = node.attrs.get_id(name)
            try:
                _dtype_of(attribute)
            except ValueError as error:
                raise NotInsideError(path, f"its attribute {name!r}: {error}") from None
            size = attribute.get_storage_size() if attribute.get_space().get_select_npoints() else 0
            if depth := _depth(attribute.dtype):
                count = size // 16  # what leads to a heap has 16 bytes
                most = count * self._size
                if depth > 1 or (most > _MOST_AT_ONCE and count * self._longest > _MOST_AT_ONCE):
                    raise NotInsideError(path, f"{count:,} elements of its attribute {name!r} may lead to one text")
                size = len(str(_as_json(node.attrs[name])))
            self._of_attributes += size
            if self._of_attributes > _MOST_ATTRIBUTES:
                raise NotInsideError(path, f"attributes have more than {_MOST_ATTRIBUTES:,} bytes up to it")


def _depth(dtype: Any) -> int:
    """Return how many heaps lie between an element of a type and its values, one behind the other."""
    import h5py

    if h5py.check_string_dtype(dtype) is not None:
        return int(dtype.hasobject)
    if dtype.subdtype is not None:
        return _depth(dtype.subdtype[0])
    if dtype.names is not None:
        return max([_depth(dtype[name]) for name in dtype.names])
    base = h5py.check_vlen_dtype(dtype)
    return 0 if base is None else 1 + _depth(np.dtype(base))


def _refers(dtype: Any) -> bool:
    """Tell whether values of a type refer to other objects of the file."""
    import h5py

    if dtype.subdtype is not None:
        return _refers(dtype.subdtype[0])
    if dtype.names is not None:
        return any(_refers(dtype[name]) for name in dtype.names)
    base = h5py.check_vlen_dtype(dtype)
    return h5py.check_ref_dtype(dtype) is not None or (base is not None and _refers(np.dtype(base)))


def nodes_inside(file: Any, texts: Texts, exclude: Sequence[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yield all nodes by their paths, a group before what is below it. Raises `NotInsideError`.

    Several links may lead to one node. In a small file, they may make any number of paths.
    """
    import h5py

    reached: Counter[Any] = Counter()
    waiting: list[tuple[str, Any, tuple[Any, ...]]] = [("", file["/"], ())]
    while waiting:
        path, node, above = waiting.pop()
        reached[node.id] += 1
        if node.id in above:
            raise NotInsideError(path, "a link leads back to a group above it")
        if len(above) == _DEEPEST:
            raise NotInsideError(path, f"it lies below {_DEEPEST} groups")
        if reached[node.id] > _MOST_PATHS:
            raise NotInsideError(path, f"links make more than {_MOST_PATHS} paths to it")
        texts.check_attributes(path, node)
        yield path, node
        for name in map(os.fsdecode, node) if isinstance(node, h5py.Group) else ():  # bytes, if they are no UTF-8
            below = f"{path}/{name}" if path else name
            if is_excluded(below, exclude):
                continue
            try:
                encode_key(below)
                waiting.append((below, inside(node, name), (*above, node.id)))
            except ValueError as error:
                raise NotInsideError(below, str(error)) from None


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
        _dtype_of(node)
        created = node.id.get_create_plist()
        if created.get_layout() == h5py.h5d.VIRTUAL:
            raise ValueError(f"it is a virtual data set, whose values lie elsewhere. {_WHOLE}")
        if created.get_external_count():
            raise ValueError(
                f"its values lie in other files, such as {os.fsdecode(created.get_external(0)[0])!r}. {_WHOLE}"
            )
        size = math.prod(node.chunks or (1,)) * node.id.get_type().get_size()
        if size > MOST_IN_MEMORY:
            raise ValueError(
                f"its chunks have {size:,} bytes each, and on this machine an import reads at most {MOST_IN_MEMORY:,} "
                "at once (2 GiB, or an eighth of its memory). Write a file with smaller chunks, with h5repack -l"
            )
    return node


def _dtype_of(holder: Any) -> Any:
    """Return the data type of a data set or attribute. Raises `ValueError` for one that numpy lacks."""
    try:
        return holder.dtype
    except TypeError as error:
        raise ValueError(f"numpy has no equivalent of its data type ({error})") from None


def check_inside(place: Place, content: Any, exclude: Sequence[str]) -> Any:
    """Return an open HDF5 file. Raises `SourceError` unless all that xarray reads lies in it, and fits in memory.

    `content`: its path, or an open file. `exclude`: xarray reads the attributes and the texts of these, too.
    """
    h5py, texts, read = _h5py(), Texts(place), set[Any]()
    try:
        file = h5py.File(content, "r")
    except OSError as error:
        raise SourceError(place.url, f"h5py can't read it: {error}") from error
    try:
        for path, node in nodes_inside(file, texts):
            if not isinstance(node, h5py.Dataset) or node.id in read:
                continue
            read.add(node.id)
            if h5py.check_string_dtype(node.dtype) is None:
                if _depth(node.dtype) and not is_excluded(path, exclude):
                    raise NotInsideError(path, f"zarr has no equivalent of its data type, {node.dtype}")
            elif node.dtype.hasobject:
                texts.check_array(path, node)
    except BaseException as error:
        file.close()
        if not isinstance(error, NotInsideError):
            raise
        path, reason = error.args
        raise SourceError(place.url, f"{path!r} can't be imported: {reason}") from None
    return file


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise ModuleNotFoundError("HDF5 files are read by h5py: pip install 'txstore[import]'") from None
    return h5py


def _fill_value(node: Any, array: ForeignArray) -> Any:
    value = node.fillvalue
    return value.decode() if node.dtype.hasobject else value if array.dtype == node.dtype else None


def _as_json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_as_json(item) for item in value] if value.ndim else _as_json(value[()])
    if isinstance(value, np.generic):
        item = value.item()
        # Python has no number for some, and a time would lose its unit.
        return str(value) if isinstance(item, np.generic) or value.dtype.kind in "mM" else _as_json(item)
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")  # as h5py does for texts that vary in length
    if isinstance(value, tuple):
        return [_as_json(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, _h5py().Empty):
        return "" if value.dtype.kind in "OS" else []
    return str(value)


#: Given one by one: some versions of open_groups silently ignore `decode_cf=False` and decode.
_AS_IT_IS: Mapping[str, Any] = {
    "mask_and_scale": False,
    "decode_times": False,
    "decode_timedelta": False,
    "concat_characters": False,
    "decode_coords": False,
    "create_default_indexes": False,  # to make one, all of a coordinate is read, whatever length it declares
}

#: What xarray takes for an array of texts, also if it has no elements.
_TEXT = np.dtype("O", metadata={"element_type": str})


class NetcdfArrays:
    """An open NetCDF file, with all its groups."""

    def __init__(self, place: Place, exclude: Sequence[str] = ()) -> None:
        try:
            import xarray
        except ImportError:
            raise ModuleNotFoundError("NetCDF files are read by xarray: pip install 'txstore[import]'") from None
        self._opened = None if place.is_local else place.fs.open(place.root, "rb")
        self._datasets: list[Any] = []  # opened by xarray: only closing these closes the file
        self._groups: dict[str, Any] = {}
        self._refused = place.refused
        self._file: Any = None  # as HDF5
        try:
            content = place.root if self._opened is None else self._opened
            if place.is_netcdf_3():
                _check_length(place)
            else:
                self._file = check_inside(place, content, exclude)
                if self._opened is not None:
                    self._opened.seek(0)
            opened = xarray.open_groups(content, **_AS_IT_IS)
            self._datasets += opened.values()
            for path, dataset in opened.items():
                group = path.strip("/")
                names = [n for n in dataset.variables if is_excluded(_join(group, str(n)), exclude)]
                if not is_excluded(group, exclude):
                    self._groups[group] = dataset.drop_vars(names)
            self.arrays = {
                _join(group, name): self._array(_join(group, name), variable)
                for group, dataset in self._groups.items()
                for name, variable in dataset.variables.items()
            }
        except BaseException as error:
            self.close()
            if not isinstance(error, ValueError) or isinstance(error, SourceError):
                raise
            raise SourceError(place.url, f"xarray can't read it: {error}. pip install 'txstore[import]'") from error

    def close(self) -> None:
        for dataset in self._datasets:
            dataset.close()
        if self._file is not None:
            self._file.close()
        if self._opened is not None:
            self._opened.close()

    def describe(self, store: Any, shapes: Mapping[str, tuple[int, ...]], chunks: Mapping[str | int, int]) -> None:
        for group, dataset in self._groups.items():
            # xarray writes one element of each array, which stands for those that the import copies: it reads no chunk.
            sample = dataset.isel(dict.fromkeys(dataset.dims, slice(0, 1))).drop_encoding()
            for name, variable in sample.variables.items():
                path = _join(group, name)
                array = self.arrays[path]
                value, dtype = ("", _TEXT) if _is_text(variable) else (0, variable.dtype)
                sample[name] = (variable.dims, np.full(variable.shape, value, dtype), variable.attrs)
                sample[name].encoding = {
                    "chunks": chunk_shape(
                        shapes[path],
                        array.itemsize,
                        given=dataset.variables[name].encoding.get("chunksizes"),
                        dimensions=array.dimensions,
                        wanted=chunks,
                    )
                }
            sample.to_zarr(store, group=group or None, mode="a", consolidated=False)

    def _array(self, path: str, variable: Any) -> ForeignArray:
        if "_FillValue" in variable.attrs and variable.dtype.kind in "OSTU":
            raise self._refused(path, "xarray can't open Zarr in which texts have a fill value (_FillValue)")

        def read(selection: Selection) -> Any:
            values = variable[selection].values
            return np.asarray(values, dtype=object) if _is_text(variable) else values

        return ForeignArray(
            shape=variable.shape,
            dtype="text" if _is_text(variable) else variable.dtype,
            dimensions=tuple(variable.dims),
            read=read if self._file is None else of_netcdf(path, self._node(path), read, self._refused),
            meaning=meaning_of(variable.attrs),
            itemsize=variable.dtype.itemsize,
        )

    def _node(self, path: str) -> Any:
        """Return the data set of a variable. NetCDF has another name for one that is called as a dimension is."""
        above, _, name = path.rpartition("/")
        for each in (_join(above, f"_nc4_non_coord_{name}"), path):
            if each in self._file:
                return self._file[each]
        raise self._refused(path, "its values are not found in the file")


#: How many bytes a value has, by the number of its type in NetCDF 3.
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 4, 6: 8, 7: 1, 8: 2, 9: 4, 10: 8, 11: 8}


def _check_length(place: Place) -> None:
    """Raise `SourceError` if a file of NetCDF 3 is shorter than its header says.

    For values that a shorter file lacks, the library of NetCDF returns others of the file, and zeros.
    """
    size = place.file().size
    with place.fs.open(place.root, "rb") as file:
        try:
            length = _length_of_netcdf_3(file)
        except (ValueError, LookupError, OverflowError, OSError) as error:
            raise SourceError(place.url, f"the header of this NetCDF file can't be understood ({error!r})") from None
    if length > size:
        raise SourceError(place.url, f"it is cut off: it has {size:,} bytes, and its header says {length:,}")


def _length_of_netcdf_3(file: Any) -> int:
    """Return where the last value ends, in bytes: "The NetCDF Classic Format Specification"."""
    version = file.read(4)[3]
    wide, far = 8 if version == 5 else 4, 4 if version == 1 else 8

    def number(size: int = wide) -> int:
        content = file.read(size)
        if len(content) < size:
            raise ValueError("it ends in its header")
        return int.from_bytes(content, "big")

    def skip(size: int) -> None:
        file.seek(-(-size // 4) * 4, 1)

    def skip_attributes() -> None:
        number(4)
        for _ in range(number()):
            skip(number())
            kind = number(4)
            skip(number() * _SIZES[kind])

    records = number()
    if records == (1 << 8 * wide) - 1:  # as many as there is room for
        records = 0
    number(4)
    sides = []
    for _ in range(number()):
        skip(number())
        sides.append(number())
    skip_attributes()
    number(4)
    ends, of_records = [0], []
    for _ in range(number()):
        skip(number())
        shape = [sides[number()] for _ in range(number())]
        skip_attributes()
        item = _SIZES[number(4)]
        number()
        begin = number(far)
        if shape and not shape[0]:  # the dimension without a limit
            of_records.append((begin, item * math.prod(shape[1:])))
        else:
            ends.append(begin + item * math.prod(shape))
    # A record has a part of each, padded unless it is the only one.
    whole = sum(-(-size // 4) * 4 if len(of_records) > 1 else size for _, size in of_records)
    return max([*ends, *[begin + (records - 1) * whole + size for begin, size in of_records if records]])


def _join(group: str, name: str) -> str:
    return f"{group}/{name}" if group else name


def _is_text(variable: Any) -> bool:
    return variable.dtype.kind in "OUT"

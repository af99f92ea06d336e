"""Looks at the chunks of HDF5 data sets before HDF5 reads them.

HDF5 believes that a chunk decodes to as many bytes as its values have. Of a shorter one, it returns what lies behind it
in the memory of this process. A longer one takes memory without bound.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from txstore.codecs import bounded_codecs
from txstore.codecs.allowed_codecs import allowed_by_user
from txstore.interchange.arrays import Selection

_SHUFFLE, _FLETCHER32 = 2, 3
#: The numbers and names of HDF5's filters that are not measured. A filter of others is called by its number.
_OTHERS = {4: "szip", 5: "nbit", 6: "scaleoffset"}
#: How many bytes `fletcher32` adds.
_CHECKSUM = 4
_PIECE = 1 << 20

Refused: TypeAlias = Callable[[str, str], Exception]


def guarded(path: str, node: Any, read: Callable[[Selection], Any], refused: Refused) -> Callable[[Selection], Any]:
    """Return what reads a data set by `read`. It raises `refused` before HDF5 reads a chunk that is too short."""

    def checked(selection: Selection) -> Any:
        _are_written(path, node, selection, refused)
        return read(selection)

    return checked


def of_netcdf(path: str, node: Any, read: Callable[[Selection], Any], refused: Refused) -> Callable[[Selection], Any]:
    """Return what reads a variable of NetCDF, whose values lie in a data set, by `read`.

    The library of NetCDF returns memory of this process for values that were never written and have no fill value, and
    for those behind the end of the data set: of dimensions without a limit, another variable may have more.
    """
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
    for place in itertools.product(*places):
        stored = node.id.get_chunk_info_by_coord(place)
        if stored.byte_offset is None:
            are_written = False
        elif not is_trusted and (found := _decoded(node, place, stored, filters, size)) != size:
            raise ValueError(f"its chunk at {place} decodes to {found:,} bytes, or more, instead of {size:,}")
    return are_written


def _item_size(node: Any) -> int:
    """Return how many bytes an element has in its chunk. That of a text is its length, and where it lies in a heap."""
    if node.dtype.hasobject:
        return 4 + int(node.file.id.get_create_plist().get_sizes()[0]) + 4
    return int(node.id.get_type().get_size())


def _decoded(node: Any, place: tuple[int, ...], stored: Any, filters: list[int], most: int) -> int:
    """Return to how many bytes a chunk decodes, or a number above `most`."""
    active = [each for number, each in enumerate(filters) if not stored.filter_mask >> number & 1]
    length, is_measured = stored.size, False
    for number in reversed(active):
        if number == _FLETCHER32:
            length -= _CHECKSUM
        elif number in _MEASURES and not is_measured and length <= bounded_codecs.MOST_IN_MEMORY:
            content = memoryview(node.id.read_direct_chunk(place)[1])
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

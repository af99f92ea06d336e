"""Writes Zarr format 2 for readers that know no other: the same chunks, under equivalent documents."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

#: Codecs with the same name and the same bytes in formats 3 and 2.
_COMPRESSORS = {"gzip", "zstd", "blosc", "crc32c"}
_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
_NUMCODECS = "numcodecs."
#: The attribute in which xarray stores the names of dimensions, for which format 2 has no field.
_DIMENSIONS = "_ARRAY_DIMENSIONS"
#: The value for missing data. xarray writes floats as base64 in format 3, as numbers in format 2.
_MISSING = "_FillValue"


class NoEquivalentError(ValueError):
    """A document has no equivalent in the other format; the message says why."""


@dataclass(frozen=True, slots=True)
class Format2Array:
    """An array as described in format 2, with its chunks numbered in C order."""

    document: Mapping[str, Any]
    attributes: Mapping[str, Any]
    is_translated: bool  # from format 3
    counts: tuple[int, ...]  # of chunks along each axis
    begin: str  # prefix of a chunk's numbers in its key
    separator: str  # separator of these numbers

    def number(self, name: str) -> int | None:
        """Return the number of the chunk whose key below the array is this; None for a key that is not in the grid."""
        if not self.counts:
            return 0 if name == (self.begin.rstrip(self.separator) or "0") else None
        if not name.startswith(self.begin):
            return None
        place = name[len(self.begin) :].split(self.separator)
        number = 0
        if len(place) != len(self.counts):
            return None
        for digits, count in zip(place, self.counts, strict=True):
            if not (digits.isascii() and digits.isdecimal()) or str(int(digits)) != digits or int(digits) >= count:
                return None
            number = number * count + int(digits)
        return number

    @property
    def chunks(self) -> int:
        return prod(self.counts)

    def document_with(self, stored: int) -> Mapping[str, Any]:
        """Return the document for a number of stored chunks.

        xarray takes the fill value of format 2, not that of format 3, for missing data. So it is left out if all chunks
        are stored.
        """
        return {**self.document, "fill_value": None} if self.is_translated and stored == self.chunks else self.document


def array_of_format_2(document: Mapping[str, Any], attributes: Mapping[str, Any]) -> Format2Array:
    """Return an array of format 2 with `.` between the numbers of its chunks."""
    separator = document.get("dimension_separator", ".")
    shape, chunks = document["shape"], document["chunks"]
    # zarr 2 wrote 0 for arrays without elements.
    document = {**document, "chunks": [max(size, 1) for size in chunks], "dimension_separator": "."}
    return Format2Array(document, attributes, False, _counts(shape, document["chunks"]), "", separator)


def as_format_2(document: Mapping[str, Any]) -> Format2Array:
    """Return an array of format 3 as format 2 describes it. Raises `NoEquivalentError`."""
    from zarr.dtype import parse_dtype

    if document.get("storage_transformers"):
        raise NoEquivalentError("it has storage transformers")
    grid = document["chunk_grid"]
    if grid["name"] != "regular":
        raise NoEquivalentError(f"its chunks lie in a grid of kind {grid['name']!r}")
    shape, chunks = document["shape"], grid["configuration"]["chunk_shape"]
    begin, separator = _chunk_keys(document["chunk_key_encoding"])
    order, before, endian, serializer, compressors = _codecs(document["codecs"], len(shape))

    dtype = parse_dtype(document["data_type"], zarr_format=3)
    if endian == "big":
        native = dtype.to_native_dtype()
        if native.names is not None:
            raise NoEquivalentError("it has big-endian records")
        dtype = parse_dtype(native.newbyteorder(">"), zarr_format=3)
    described = dtype.to_json(zarr_format=2)
    object_codec = described["object_codec_id"]
    if object_codec != serializer:
        raise NoEquivalentError(f"its data type is {document['data_type']!r}, encoded as {serializer!r}")
    fill_value = dtype.from_json_scalar(document["fill_value"], zarr_format=3)
    filters = [*before, *([{"id": object_codec}] if object_codec else []), *compressors[:-1]]
    told = {
        "zarr_format": 2,
        "shape": list(shape),
        "chunks": list(chunks),
        "dtype": described["name"],
        "fill_value": dtype.to_json_scalar(fill_value, zarr_format=2),
        "order": order,
        "filters": filters or None,
        "compressor": compressors[-1] if compressors else None,
        "dimension_separator": ".",
    }
    attributes = dict(document.get("attributes", {}))
    missing = attributes.get(_MISSING)
    if isinstance(missing, str) and dtype.to_native_dtype().kind == "f":
        attributes[_MISSING] = _float(missing)
    names = document.get("dimension_names") or ()
    if names and all(names):
        attributes.setdefault(_DIMENSIONS, list(names))
    return Format2Array(told, attributes, True, _counts(shape, chunks), begin, separator)


def _float(text: str) -> float | str:
    """Return the number that xarray encoded in `text`; the text itself if xarray did not write it."""
    try:
        number: float = struct.unpack("<d", base64.b64decode(text, validate=True))[0]
    except (ValueError, struct.error):
        return text
    return number


def _counts(shape: Sequence[int], chunks: Sequence[int]) -> tuple[int, ...]:
    return tuple(-(-extent // size) for extent, size in zip(shape, chunks, strict=True))


def _chunk_keys(encoding: Mapping[str, Any] | str) -> tuple[str, str]:
    """Return the prefix and the separator of the numbers in a chunk's key."""
    name, configuration = _named(encoding)
    if name == "default":
        separator = configuration.get("separator", "/")
        return "c" + separator, separator
    if name == "v2":
        return "", configuration.get("separator", ".")
    raise NoEquivalentError(f"its chunks are named by {name!r}")


def _codecs(
    codecs: Sequence[Mapping[str, Any] | str], rank: int
) -> tuple[str, list[dict[str, Any]], str | None, str | None, list[dict[str, Any]]]:
    """Return the order, what comes before the serializer, its byte order or name, and what comes after it."""
    order, endian, object_codec = "C", None, None
    is_serialized = is_transposed = False
    filters: list[dict[str, Any]] = []
    compressors: list[dict[str, Any]] = []
    for codec in codecs:
        name, configuration = _named(codec)
        if name == "transpose" and not filters and not is_transposed:
            order, is_transposed = _order(configuration["order"], rank), True
        elif name == "bytes":
            endian, is_serialized = configuration.get("endian"), True
        elif name in ("vlen-utf8", "vlen-bytes"):
            object_codec, is_serialized = name, True
        elif name in _COMPRESSORS or (is_serialized and name.startswith(_NUMCODECS)):
            compressors.append(_compressor(name, configuration))
        elif name.startswith(_NUMCODECS):
            filters.append({"id": name.removeprefix(_NUMCODECS), **configuration})
        else:
            raise NoEquivalentError(f"it is encoded by {name!r}")
    if not is_serialized:
        raise NoEquivalentError(f"it is encoded by {_named(codecs[-1])[0]!r}")
    if filters and (is_transposed or endian == "big"):
        raise NoEquivalentError(f"it is encoded by {filters[0]['id']!r} in another order of axes or bytes")
    return order, filters, endian, object_codec, compressors


def _order(axes: Any, rank: int) -> str:
    if list(axes) == list(range(rank)):
        return "C"
    if list(axes) == list(range(rank))[::-1]:
        return "F"
    raise NoEquivalentError(f"its axes are transposed to {axes}")


def _compressor(name: str, configuration: Mapping[str, Any]) -> dict[str, Any]:
    told = {"id": name.removeprefix(_NUMCODECS), **configuration}
    if name == "blosc":
        del told["typesize"]  # each chunk stores it
        told["shuffle"] = _SHUFFLES[configuration["shuffle"]]
    if name == "crc32c":
        told["location"] = "end"
    return told


def _named(told: Mapping[str, Any] | str) -> tuple[str, Mapping[str, Any]]:
    """Return name and configuration of a codec or grid; a document may give only the name."""
    if isinstance(told, str):
        return told, {}
    return told["name"], told.get("configuration") or {}

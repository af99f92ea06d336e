"""Converts hierarchies of Zarr format 2 to format 3 when they come below groups of format 3; chunk keys stay."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from txstore.format.consolidated import decoded
from txstore.format.documents import written_by_zarr
from txstore.format.keys import document_key, node_of_document
from txstore.interchange.format2 import NoEquivalentError

#: Compressors of format 2 that format 3 knows by the same name, and their configuration.
_SAME = {"gzip": ("level",), "zstd": ("level", "checksum")}
_SHUFFLES = {0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}
#: Filters that encode Python objects as bytes.
_SERIALIZERS = ("vlen-utf8", "vlen-bytes", "vlen-array", "json2", "msgpack2", "pickle", "categorize")
#: Bytes: format 3 writes out a fill value that format 2 leaves out, and any document may declare long elements.
_LONGEST_ELEMENT = 1 << 20
#: Characters of a data type, as JSON: zarr takes a millisecond for each field of a record.
_LONGEST_TYPE = 1 << 17
_DIMENSIONS = "_ARRAY_DIMENSIONS"
_MISSING = "_FillValue"


def documents_in_format_3(documents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the equivalent documents of format 3, by key. Raises `NoEquivalentError`."""
    made = {}
    for key, content in documents.items():
        path, name = node_of_document(key), key.rpartition("/")[2]
        if name not in (".zarray", ".zgroup"):
            continue
        attributes = decoded(documents.get(document_key(path, ".zattrs"), b"{}"))
        try:
            if name == ".zarray":
                document = array_in_format_3(decoded(content), attributes)
            else:
                document = {"attributes": attributes, "zarr_format": 3, "node_type": "group"}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise NoEquivalentError(f"{path!r} can't be described in Zarr format 3: {error}") from error
        made[document_key(path, "zarr.json")] = json.dumps(document, indent=2).encode()
    return made


def array_in_format_3(document: Mapping[str, Any], attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the document of an array. Raises `NoEquivalentError`, and zarr's errors for an invalid one."""
    from txstore.zarr_private import ArrayV2Metadata

    if len(json.dumps(document["dtype"])) > _LONGEST_TYPE:
        raise NoEquivalentError(f"its data type takes more than {_LONGEST_TYPE:,} characters")
    attributes = dict(attributes)
    # zarr 2 wrote 0 for arrays without elements.
    document = {**document, "chunks": [max(size, 1) for size in document["chunks"]]}
    understood = ArrayV2Metadata.from_dict({**document, "attributes": {}})
    dtype, rank = understood.dtype, len(understood.shape)
    if (size := dtype.to_native_dtype().itemsize) > _LONGEST_ELEMENT:
        raise NoEquivalentError(f"its elements have {size:,} bytes each, and its fill value would have as many")
    fill_value: Any = understood.fill_value
    names = attributes.get(_DIMENSIONS)
    if isinstance(names, list) and len(names) == rank:
        # xarray takes the fill value of format 2, not that of format 3, for missing data.
        del attributes[_DIMENSIONS]
        missing = document.get("fill_value")
        missing = attributes.get(_MISSING) if missing is None else missing
        kind = dtype.to_native_dtype().kind
        if kind in "mM":  # for which xarray knows no attribute: it takes NaT for missing data without one
            if fill_value is not None and not np.isnat(fill_value):
                raise NoEquivalentError(f"its fill value is a time, {fill_value}")
        elif missing is not None:
            # xarray opens no data set of format 3 in which a text has the former.
            attributes["missing_value" if kind in "OTU" else _MISSING] = missing_value(missing, kind)
    else:
        names = None
    if fill_value is None:
        fill_value = dtype.default_scalar()
    told = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": document["shape"],
        "data_type": dtype.to_json(zarr_format=3),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": document["chunks"]}},
        "chunk_key_encoding": {
            "name": "v2", "configuration": {"separator": document.get("dimension_separator") or "."},
        },
        "fill_value": dtype.to_json_scalar(fill_value, zarr_format=3),
        "codecs": _codecs(document, dtype, rank),
        "attributes": attributes,
        "storage_transformers": [],
        **({} if names is None else {"dimension_names": names}),
    }  # fmt: skip
    return written_by_zarr("zarr.json", told)


def missing_value(value: Any, kind: str) -> Any:
    """Return the value for missing data in xarray's encoding for format 3."""
    if kind == "c" and isinstance(value, list):
        return [missing_value(part, "f") for part in value]
    if kind != "f" or not isinstance(value, int | float | str):
        return value
    try:
        return base64.b64encode(struct.pack("<d", float(value))).decode()
    except ValueError:  # it has this encoding already
        return value


def _codecs(document: Mapping[str, Any], dtype: Any, rank: int) -> list[dict[str, Any]]:
    from zarr.abc.codec import ArrayArrayCodec, BytesBytesCodec
    from zarr.registry import get_codec_class

    filters = list(document.get("filters") or ())
    compressor = document.get("compressor")
    is_transposed = document["order"] == "F" and rank > 1
    big_endian = getattr(dtype, "endianness", None) == "big"
    native = dtype.to_native_dtype()
    if native.names is not None and native != native.newbyteorder("<"):
        raise NoEquivalentError("it has big-endian records")
    before: list[dict[str, Any]] = []
    serializer: dict[str, Any] | None = None
    after: list[dict[str, Any]] = []
    if is_transposed:
        before.append({"name": "transpose", "configuration": {"order": list(range(rank))[::-1]}})
    for each in filters:
        if each["id"] in _SERIALIZERS:
            if serializer is not None or after or each["id"] not in ("vlen-utf8", "vlen-bytes"):
                raise NoEquivalentError(f"it is encoded by {each['id']!r}")
            serializer = {"name": each["id"]}
            continue
        name = f"numcodecs.{each['id']}"
        kind = get_codec_class(name)
        configuration = {key: value for key, value in each.items() if key != "id"}
        if issubclass(kind, BytesBytesCodec):
            after.append({"name": name, "configuration": configuration})
        elif issubclass(kind, ArrayArrayCodec) and serializer is None and not after:
            if is_transposed or big_endian:
                raise NoEquivalentError(f"it is encoded by {each['id']!r} in another order of axes or bytes")
            before.append({"name": name, "configuration": configuration})
        else:
            raise NoEquivalentError(f"it is encoded by {each['id']!r} after {filters[0]['id']!r}")
    if serializer is None:
        endian = getattr(dtype, "endianness", None)
        if endian is None and any(each["name"] != "transpose" for each in before):
            endian = "little"  # a filter may turn single bytes into larger items
        serializer = {"name": "bytes", **({"configuration": {"endian": endian}} if endian else {})}
    if compressor is not None:
        after.append(_compressor(compressor, dtype))
    return [*before, serializer, *after]


def _compressor(told: Mapping[str, Any], dtype: Any) -> dict[str, Any]:
    kind = told["id"]
    configuration = {key: value for key, value in told.items() if key != "id"}
    if kind == "blosc":
        size = dtype.to_native_dtype().itemsize or 1
        shuffle = _SHUFFLES.get(configuration.get("shuffle", 1), "bitshuffle" if size == 1 else "shuffle")
        return {"name": kind, "configuration": {**configuration, "typesize": size, "shuffle": shuffle}}
    if kind in _SAME:
        defaults = {"level": 0 if kind == "zstd" else 1, "checksum": False}
        return {"name": kind, "configuration": {key: configuration.get(key, defaults[key]) for key in _SAME[kind]}}
    return {"name": f"numcodecs.{kind}", "configuration": configuration}

"""Writes references as Parquet: a directory that fsspec's `LazyReferenceMapper` reads file by file as needed.

It knows only format 2, arrays below a group, and chunks by their numbers in the grid: `.zmetadata` holds all documents,
and `<array>/refs.<n>.parq` the chunks from `n` times `RECORD` on. A file without any chunk is left out.

`entries` finds the reference of each key, also for references in JSON.
"""

from __future__ import annotations

import base64
import json
import math
import os
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, NamedTuple

from txstore.errors import CorruptionError, ExportError
from txstore.format.consolidated import decoded, documents_of
from txstore.format.keys import after_prefix, directory_prefix, document_key, is_document, node_of_document, stored_key
from txstore.format.packfile import REF_FOREIGN, PackName
from txstore.history.snapshot import Snapshot
from txstore.interchange.format2 import Format2Array, NoEquivalentError, array_of_format_2, as_format_2

#: Values shorter than this, in bytes, are stored in the references: in base64 they take hardly more room than the name
#: of a pack, an offset and a length, and reading one takes no request.
INLINE_BELOW = 64

_PAGE = 4096
_LARGEST = (1 << 63) - 1


class Reference(NamedTuple):
    """The place of a value."""

    pack: str  # relative to the repository
    offset: int
    length: int


#: The value, or its place.
Entry = bytes | Reference


def entries(snapshot: Snapshot, path: str = "") -> Iterator[tuple[str, Entry]]:
    """Yield the live keys below a path in byte order, each with its reference.

    Documents are included as values, at any length. Raises `CorruptionError`, and `ExportError` for a value outside the
    repository.
    """
    prefix = directory_prefix(path)
    stop = after_prefix(prefix)
    start, end = prefix.encode(), None if stop is None else stop.encode()
    paths: dict[PackName, str] = {}
    while page := snapshot.runs.scan(start, end, _PAGE):
        for listed in page:
            key = stored_key(listed.key, snapshot.runs.file(listed.run).path)
            if listed.kind == REF_FOREIGN:
                reason = (
                    f"the value of {key!r} lies in another file, and references can't tell whether that has changed: "
                    "export copies it, or give the manifest that it was imported by"
                )
                raise ExportError(snapshot.url, reason)
            if listed.length < INLINE_BELOW or is_document(key):
                pack = snapshot.runs.open_pack(listed.run, listed.pack)
                yield key, bytes(pack.view(listed.offset, listed.length, listed.checksum, key))
                continue
            name = snapshot.runs.pack_name(listed.run, listed.pack)
            if listed.offset + listed.length > _LARGEST:
                raise CorruptionError(name.path, offset=listed.offset, key=key, reason="no file is so long")
            pack_path = paths.get(name) or paths.setdefault(name, name.path)
            yield key, Reference(pack_path, listed.offset, listed.length)
        start = page[-1].key + b"\0"


#: Chunks in one file: a reader reads all of them at once.
RECORD = 10_000
ZMETADATA = ".zmetadata"

#: A value must not begin with this: fsspec takes the rest for base64.
_BASE64 = b"base64:"


def write_parquet(snapshot: Snapshot, url: str, path: str, destination: str) -> tuple[int, int]:
    """Write the references into a new directory; return the number of keys, and of those with values.

    Keys that are not a chunk in an array's grid are left out: no Zarr reader asks for them.
    Raises `ExportError` if a document has no equivalent in format 2, and `ModuleNotFoundError`.
    """
    for package in ("fastparquet", "pandas"):
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"{package} is missing, to write Parquet: pip install 'txstore[references]'")
    documents, arrays = _as_format_2(documents_of(snapshot), destination)
    keys = inline = len(documents) + len(arrays)
    os.makedirs(path)
    for node, described in arrays.items():
        stored = 0
        records: dict[int, _ChunkRows] = {}  # chunks come in the order of keys, not of numbers
        for key, entry in entries(snapshot, node):
            number = None if is_document(key) else described.number(key[len(node) + 1 :])
            if number is None:
                continue
            place, row = divmod(number, RECORD)
            record = records.setdefault(place, _ChunkRows())
            record.add(row, entry)
            stored += 1
            inline += isinstance(entry, bytes)
            if len(record.rows) == min(RECORD, described.chunks - place * RECORD):
                records.pop(place).write(_name(path, node, place), url)
        for place, record in records.items():
            record.write(_name(path, node, place), url)
        keys += stored
        documents[document_key(node, ".zarray")] = described.document_with(stored)
    with open(os.path.join(path, ZMETADATA), "w", encoding="ascii") as file:
        json.dump({"metadata": documents, "record_size": RECORD, "zarr_consolidated_format": 1}, file)
    return keys, inline


def _name(path: str, node: str, place: int) -> str:
    return os.path.join(path, *node.split("/"), f"refs.{place}.parq")


@dataclass(slots=True)
class _ChunkRows:
    """The rows for the chunks of one file."""

    rows: array[int] = field(default_factory=lambda: array("i"))
    entries: list[Entry] = field(default_factory=list)

    def add(self, row: int, entry: Entry) -> None:
        self.rows.append(row)
        self.entries.append(entry)

    def write(self, name: str, url: str) -> None:
        import fastparquet
        import numpy as np
        import pandas as pd

        paths, raw = np.full(RECORD, None, object), np.full(RECORD, None, object)
        offsets, sizes = np.zeros(RECORD, np.int64), np.zeros(RECORD, np.int64)
        for row, entry in zip(self.rows, self.entries, strict=True):
            if isinstance(entry, bytes):
                raw[row] = _BASE64 + base64.b64encode(entry) if entry.startswith(_BASE64) else entry
            else:
                paths[row], offsets[row], sizes[row] = f"{url}/{entry.pack}", entry.offset, entry.length
        # Objects, not categories or strings: fsspec recognises a missing chunk only by None, which these would lose.
        columns = {"path": pd.Series(paths, dtype=object), "raw": pd.Series(raw, dtype=object)}
        frame = pd.DataFrame({"path": columns["path"], "offset": offsets, "size": sizes, "raw": columns["raw"]})
        os.makedirs(os.path.dirname(name), exist_ok=True)
        fastparquet.write(
            name, frame, compression="ZSTD", write_index=False, stats=False, has_nulls=["path", "raw"],
            object_encoding={"path": "utf8", "raw": "bytes"},
        )  # fmt: skip


def _as_format_2(found: Mapping[str, bytes], destination: str) -> tuple[dict[str, Any], dict[str, Format2Array]]:
    """Return the documents of groups, attributes, and the arrays by their paths. Raises `ExportError`."""
    nodes: dict[str, dict[str, Any]] = {}
    for key, content in found.items():
        nodes.setdefault(node_of_document(key), {})[key.rpartition("/")[2]] = decoded(content)
    documents: dict[str, Any] = {}
    arrays: dict[str, Format2Array] = {}
    for path, own in sorted(nodes.items()):
        try:
            described = _node(own)
        except NoEquivalentError as error:
            raise _refused(destination, f"{path!r} has no equivalent there: {error}") from None
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            raise _refused(destination, f"the metadata of {path!r} can't be understood ({error!r})") from error
        if isinstance(described, Format2Array):
            _check_array(path, described, destination)
            arrays[path] = described
            documents[document_key(path, ".zattrs")] = described.attributes
        else:
            documents[document_key(path, ".zgroup")] = {"zarr_format": 2}
            documents[document_key(path, ".zattrs")] = described
    return documents, arrays


def _node(own: Mapping[str, Any]) -> Format2Array | Mapping[str, Any]:
    """Return an array, or the attributes of a group."""
    if "zarr.json" in own:
        document = own["zarr.json"]
        return as_format_2(document) if document["node_type"] == "array" else document.get("attributes", {})
    attributes = own.get(".zattrs") or {}
    return array_of_format_2(own[".zarray"], attributes) if ".zarray" in own else attributes


def _check_array(path: str, described: Format2Array, destination: str) -> None:
    """Raise `ExportError` for an array that these references can't hold."""
    if not path:
        raise _refused(destination, "they have no place for an array at the root, only for arrays in groups")
    if "\0" in path:
        raise _refused(destination, f"the path {path!r} can't be that of a directory")
    shape, chunks = described.document["shape"], described.document["chunks"]
    try:
        # fsspec divides in floating point: its numbers of chunks must be the same.
        counted = tuple(math.ceil(extent / size) for extent, size in zip(shape, chunks, strict=True))
    except OverflowError:
        counted = None
    if described.counts != counted:
        raise _refused(destination, f"the shape of {path!r} is beyond what fsspec can count, {shape}")


def _refused(destination: str, reason: str) -> ExportError:
    return ExportError(destination, f"Parquet references are of Zarr format 2: {reason}. JSON has no such limits")

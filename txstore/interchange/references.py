"""`Repository.references`: where the packs hold the values of a tagged commit, for readers with only zarr and fsspec.

A pack never changes, and a vacuum keeps the packs of tagged commits, so the references are valid while the tag exists.
They are kerchunk's, which fsspec's `ReferenceFileSystem` reads: JSON, or Parquet: a directory that its
`LazyReferenceMapper` reads file by file as needed.

Parquet knows only format 2, arrays below a group, and chunks by their numbers in the grid: `.zmetadata` holds all
documents, and `<array>/refs.<n>.parq` the chunks from `n` times `RECORD` on. A file without any chunk is left out.
"""

from __future__ import annotations

import base64
import contextlib
import heapq
import json
import math
import os
import re
import stat
import tempfile
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from txstore.commit import Commit
from txstore.errors import CommitNotFoundError, CorruptionError, ExportError
from txstore.format.consolidated import consolidate, decoded, documents_of, is_consolidated, plain_document
from txstore.format.keys import after_prefix, directory_prefix, document_key, is_document, node_of_document, stored_key
from txstore.format.packfile import REF_FOREIGN, PackName
from txstore.history.snapshot import Snapshot
from txstore.interchange.concealing import concealing
from txstore.interchange.destinations import (
    Destination,
    LocalDestination,
    bits_of_copies,
    check_outside,
    open_destination,
)
from txstore.interchange.format2 import Format2Array, NoEquivalentError, array_of_format_2, as_format_2
from txstore.storage.objects.urls import has_parameters, public

if TYPE_CHECKING:
    from txstore.store import OpenedRepository


#: The only template in the JSON: the repository's URL. Every reference has it, so it is short.
_TEMPLATE = "u"
_BASE64 = b"base64:"


@dataclass(frozen=True, slots=True)
class References:
    """The result: number of keys, and number of those with values."""

    url: str
    commit: Commit
    keys: int
    inline: int


@concealing
def references(
    repo: OpenedRepository,
    destination: str | os.PathLike[str],
    *,
    tag: str,
    create_tag: bool = False,
    templates: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> References:
    """See `Repository.references`."""
    above, name = _split(destination)
    is_json = name.endswith(".json")
    at_most = bits_of_copies(repo.engine.storage)
    target = open_destination(above, storage_options, durable=True, at_most=at_most, refused=ExportError)
    check_outside(target, repo.url)
    url = f"{target.url}/{name}"
    _check_free(target, name, is_json=is_json)
    if create_tag and tag not in repo.tags:
        head = repo.head()
        if head is not None:
            repo.tags[tag] = head
    snapshot, commit = _tagged(repo, tag)
    with _complete(target, name, at_most) as path:
        if is_json:
            keys, inline = _write_json(snapshot, _url(repo), path, templates=templates)
        else:
            keys, inline = write_parquet(snapshot, _url(repo), path, url)
    return References(url, commit, keys, inline)


def _split(destination: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the directory or its URL, and the name in it. Raises `ValueError` unless the suffix names a format."""
    address = os.path.expanduser(os.fspath(destination))
    scheme, separator, _ = address.partition("://")
    behind = re.search("[?;]" if has_parameters(scheme) else "[?]", address) if separator else None
    address, query = (address, "") if behind is None else (address[: behind.start()], address[behind.start() :])
    address = address.rstrip("/")
    above, _, name = address.rpartition("/")
    if not name.endswith((".json", ".parquet", ".parq")) or above.endswith(":/"):
        raise ValueError(f"{public(address)}: its name has to end in .json or .parquet, which selects the format")
    return (above or ("/" if address.startswith("/") else ".")) + query, name


def _tagged(repo: OpenedRepository, tag: str) -> tuple[Snapshot, Commit]:
    try:
        snapshot = repo.mapping(tag=tag)
    except CommitNotFoundError:
        advice = (
            f"there is no such tag, and only what is tagged stays: repo.tags[{tag!r}] = repo.head().version tags the "
            "newest commit, and so does create_tag=True (--create-tag)"
        )
        raise CommitNotFoundError(f"tag {tag!r}", advice=advice) from None
    if snapshot.commit is None:
        raise CommitNotFoundError(repo.url, advice="there is no commit yet, so there is nothing to refer to")
    return snapshot, snapshot.commit


def _url(repo: OpenedRepository) -> str:
    """Return the repository's URL for fsspec, without credentials."""
    return public(repo.url) if "://" in repo.url else f"file://{os.path.abspath(repo.url)}"


# --- JSON


def _write_json(snapshot: Snapshot, url: str, path: str, *, templates: bool) -> tuple[int, int]:
    """Write kerchunk's version 1, entry by entry."""
    told, base = "", url
    if templates:
        # Braces mark templates, so a URL with braces can't be one.
        is_template = "{{" not in url
        told = f'"templates": {json.dumps({_TEMPLATE: url} if is_template else {})}, '
        base = f"{{{{{_TEMPLATE}}}}}" if is_template else url
    keys = inline = 0
    with open(path, "w", encoding="ascii") as file:
        file.write(f'{{"version": 1, {told}"refs": {{')
        for key, entry in _entries_and_root(snapshot):
            value: str | list[str | int]
            if isinstance(entry, bytes):
                value = _as_text(key, entry)
                inline += 1
            else:
                value = [f"{base}/{entry.pack}", entry.offset, entry.length]
            file.write(f"{',' if keys else ''}\n{json.dumps(key)}: {json.dumps(value)}")
            keys += 1
        file.write("\n}}\n")
    return keys, inline


def _entries_and_root(snapshot: Snapshot) -> Iterator[tuple[str, Entry]]:
    """Yield the entries, with consolidated metadata at the root: not every zarr can list groups in references.

    Consolidated metadata of the repository is left out, since no writer keeps it up to date.
    """
    root: dict[str, Entry] = {**consolidate(documents_of(snapshot))}
    others = (
        (key, plain_document(key, entry) if isinstance(entry, bytes) else entry)
        for key, entry in entries(snapshot)
        if key not in root and not is_consolidated(key)
    )
    return heapq.merge(sorted(root.items()), others, key=lambda item: item[0].encode())


def _as_text(key: str, value: bytes) -> str:
    if (is_document(key) or is_consolidated(key)) and value.isascii() and not value.startswith(_BASE64):
        return value.decode()
    return (_BASE64 + base64.b64encode(value)).decode()


# --- writing all or nothing


def _check_free(target: Destination, name: str, *, is_json: bool) -> None:
    """Raise `ExportError` for a place where references can't be written, or could not be read."""
    url = f"{target.url}/{name}"
    is_local = isinstance(target, LocalDestination)
    is_directory = os.path.isdir(url) if is_local else next(iter(target.list(name)), None) is not None
    if is_json and is_directory:
        raise ExportError(url, "this is a directory; choose another name")
    if is_json:
        return
    if is_directory or target.read(name) is not None:
        raise ExportError(url, "it exists already; delete it, or choose another name")
    if ".json" in url or set("{}") & set(url):
        raise ExportError(url, "fsspec reads no Parquet below a path with .json, { or } in it; choose another")


@contextlib.contextmanager
def _complete(target: Destination, name: str, at_most: int) -> Iterator[str]:
    """Yield a temporary path for the file or directory, and move it into place when it is complete.

    Local files get no more than the permission bits `at_most`.

    On a server the files of a directory are written one by one, last the file that readers open first.
    """
    above = target.url if isinstance(target, LocalDestination) else None
    if above is not None:
        os.makedirs(above, at_most, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".txstore-references-", dir=above) as directory:
        path = os.path.join(directory, "new")
        yield path
        if above is not None:
            for top, directories, names in os.walk(directory):
                for each in (os.path.join(top, each) for each in (*directories, *names)):
                    os.chmod(each, stat.S_IMODE(os.stat(each).st_mode) & at_most)
            for file in _files(path):
                _sync(file)
            os.replace(path, os.path.join(above, name))  # replaces a link there, and does not follow it
            return
        for file in _files(path):
            with open(file, "rb") as content:
                target.write(name + file[len(path) :], content.read())


def _files(path: str) -> list[str]:
    """Return the path, or the files below it, last those at the top, which readers open first."""
    if os.path.isfile(path):
        return [path]
    return [os.path.join(top, name) for top, _, names in os.walk(path, topdown=False) for name in names]


def _sync(path: str) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


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

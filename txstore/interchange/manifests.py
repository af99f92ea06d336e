"""`Repository.import_references`: imports chunks of other files by reference, without a copy, in one transaction.

A manifest says which bytes of which files hold the keys of a Zarr hierarchy: kerchunk's, as JSON or Parquet.
VirtualiZarr writes both. A manifest is not trusted: this module runs no template in it, and opens no file that it
names.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from txstore.codecs import bounded_codecs
from txstore.commit import MAIN, Commit
from txstore.errors import SourceError
from txstore.format.consolidated import is_consolidated, plain_document
from txstore.format.encoding import Reader
from txstore.format.keys import document_key, is_document, node_of_document
from txstore.interchange.concealing import concealed, concealing
from txstore.interchange.import_targets import (
    PROPERTY,
    check_documents,
    check_free,
    check_same_import,
    checked_path,
    documents_at,
)
from txstore.interchange.places import ForeignFile, Place, stamp
from txstore.progress import Progress
from txstore.storage.foreign_files import Sources
from txstore.storage.foreign_values import FileVersion, canonical
from txstore.storage.objects.urls import check_slashes
from txstore.storage.request_threads import in_parallel

if TYPE_CHECKING:
    from txstore.store import OpenedRepository


_TEMPLATE = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_PARQUET = b'"record_size"'
#: A table with the references of the chunks from `number` times the record size on; its columns.
_RECORDS = re.compile(r"(?P<node>.+)/refs\.(?P<number>0|[1-9][0-9]*)\.parq")
_COLUMNS = ("path", "offset", "size", "raw")
#: How many rows a table has at most: in a few kilobytes it may have any number.
_MOST_ROWS = 1 << 20
#: How many bytes a table has at most, before it was compressed.
_MOST_BYTES = 1 << 30
#: What a row takes in memory beside its texts, in bytes: all tables of a manifest together fit in memory.
_ROW = 128
#: Parquet's numbers for a column of texts, and for those of other types whose values are short.
_TEXT, _SHORT = 6, (0, 1, 2, 4, 5)
#: Parquet's numbers for encodings that unpack to no more than a page has: plain, and by a dictionary.
_ENCODINGS = (0, 2, 3, 8)
#: In the header of a page, which field describes each kind of page, and which field of that names the encoding.
_PAGES = ((5, 2), (7, 2), (8, 4))
#: How many characters a URL has at most: templates, and tables in Parquet files, make long ones of few bytes.
_LONGEST_URL = 4096


class FileRange(NamedTuple):
    """A range of a file; without a length, up to its end."""

    url: str
    offset: int = 0
    length: int | None = None


class Manifest:
    """The entries of one manifest: for each key a value in the manifest, or a reference.

    Raises `SourceError` for an invalid entry.
    """

    def __init__(self, url: str, directory: str, entries: Mapping[str, Any], templates: Mapping[str, Any]) -> None:
        self.url = url
        self._directory = directory  # base of relative URLs; empty: this process's directory
        self._entries = entries
        self._templates = templates
        self._absolute = cache(self._absolute_url)  # most entries name the file of the one before
        self._left = bounded_codecs.MOST_IN_MEMORY  # for the characters of all URLs

    def items(self) -> Iterator[tuple[str, bytes | FileRange]]:
        for key in self._entries:
            yield key, self._decoded(key, self._entries[key])

    def _decoded(self, key: str, entry: Any) -> bytes | FileRange:
        match entry:
            case bytes() | str():
                value = entry.encode() if isinstance(entry, str) else entry
                if not value.startswith(b"base64:"):
                    return value
                try:
                    return base64.b64decode(value.removeprefix(b"base64:"), validate=True)
                except binascii.Error as error:
                    raise SourceError(self.url, f"the value of {key!r} is no base64: {error}") from None
            case dict():
                return json.dumps(entry).encode()
            case [str(url)] | [str(url), None, None]:
                return FileRange(self._absolute(url))
            case [str(url), offset, length] if _is_count(offset) and _is_count(length):
                return FileRange(self._absolute(url), offset, length)
        raise SourceError(self.url, f"what it says of {key!r} is neither a value nor [url, offset, length]")

    def _absolute_url(self, url: str) -> str:
        def filled(match: re.Match[str]) -> str:
            value = self._templates.get(match[1])
            return value if isinstance(value, str) else match[0]

        if len(url) + sum(len(filled(each)) for each in _TEMPLATE.finditer(url)) > _LONGEST_URL:
            raise SourceError(self.url, f"a URL in it has more than {_LONGEST_URL:,} characters, with its templates")
        url = _TEMPLATE.sub(filled, url)
        self._left -= len(url)
        if self._left < 0:
            raise SourceError(self.url, "its URLs, with their templates, are longer than memory: split the manifest")
        if "{{" in url:
            reason = "a URL in it has a template that is more than a name in braces: write it out"
            raise SourceError(self.url, reason)
        try:
            check_slashes(url)  # before it is joined to this directory
        except ValueError as error:
            raise SourceError(self.url, f"it refers to {error}") from None
        if "://" in url or url.startswith("/"):
            return url
        if "://" not in self._directory:
            return os.path.join(self._directory, url)
        scheme, _, path = self._directory.partition("://")
        host, _, path = path.partition("/")
        path = posixpath.normpath(posixpath.join("/", path, url))  # `..` can't lead above the host
        return f"{scheme}://{host}{path}"


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def is_manifest(source: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> bool:
    """Tell whether a source looks like a manifest: a JSON object, or a directory of Parquet files."""
    return concealed(lambda: _is_manifest(Place(source, options)), [source], options or {})


def _is_manifest(place: Place) -> bool:
    if place.fs.isdir(place.root):
        return place.has(".zmetadata") and _PARQUET in place.read(".zmetadata")
    if not place.fs.exists(place.root):
        return False
    with place.fs.open(place.root, "rb") as file:
        return bool(file.read(64).lstrip().startswith(b"{"))


def open_manifest(
    source: str | os.PathLike[str] | Mapping[str, Any], options: Mapping[str, Any] | None = None
) -> Manifest:
    """Return the manifest at a URL, or in a dict. Raises `SourceError` if it is not a manifest."""
    if isinstance(source, Mapping):
        return _of_members("a manifest", "", source)
    place = Place(source, options)
    directory, _, _ = (place.root if place.is_local else place.url).rpartition("/")
    if place.fs.isdir(place.root):
        return Manifest(place.url, directory, _parquet(place), {})
    try:
        members = json.loads(place.read(""))
    except FileNotFoundError:
        raise SourceError(place.url, "there is nothing here; look at the path") from None
    except (ValueError, RecursionError) as error:
        raise SourceError(place.url, f"this is no JSON, and so no manifest: {error}") from None
    if not isinstance(members, dict):
        raise SourceError(place.url, "this is no manifest: the JSON in it is not an object")
    return _of_members(place.url, directory, members)


def _of_members(url: str, directory: str, members: Mapping[str, Any]) -> Manifest:
    if "version" not in members:  # version 0: only the references
        return Manifest(url, directory, members, {})
    if members["version"] not in (0, 1):
        raise SourceError(url, f"manifests of version {members['version']!r} are not known, only 0 and 1")
    if members.get("gen"):
        raise SourceError(url, "it has references that are to be generated (gen): let kerchunk write them out")
    entries, templates = members.get("refs"), members.get("templates") or {}
    if not isinstance(entries, Mapping) or not isinstance(templates, Mapping):
        raise SourceError(url, "this is no manifest: it has no refs")
    return Manifest(url, directory, entries, templates)


def _parquet(place: Place) -> dict[str, Any]:
    """Return the entries of a directory of Parquet files in the form of a JSON manifest.

    fsspec's `LazyReferenceMapper` isn't used: it takes a chunk for missing if it can't read the file that refers to it,
    and asks for each chunk of a grid of any size.
    """
    if not place.has(".zmetadata") or _PARQUET not in (told := place.read(".zmetadata")):
        raise SourceError(place.url, "this directory is no manifest: it has no .zmetadata with a record_size")
    try:
        members = json.loads(told)
        documents, size = members["metadata"], members["record_size"]
        grids = {
            node_of_document(key): [
                -(-length // side) for length, side in zip(document["shape"], document["chunks"], strict=True)
            ]
            for key, document in documents.items()
            if key.endswith("/.zarray")
        }
        if not _is_count(size) or not size or not all(_is_count(n) for grid in grids.values() for n in grid):
            raise ValueError("its numbers are no lengths")
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise SourceError(place.url, f"its .zmetadata can't be understood ({error!r})") from None
    entries: dict[str, Any] = dict(documents)
    left = bounded_codecs.MOST_IN_MEMORY
    for name in place.files():
        found = _RECORDS.fullmatch(name)
        if found is not None and found["node"] in grids:
            columns = _columns(place, name)
            left -= sum(_ROW + sum(len(each) for each in row if isinstance(each, bytes | str)) for row in columns)
            if left < 0:
                reason = f"its tables up to {name!r} have more than {bounded_codecs.MOST_IN_MEMORY:,} bytes"
                raise SourceError(place.url, f"{reason}: split the manifest")
            for row, entry in _entries_of(columns):
                key = _chunk(grids[found["node"]], int(found["number"]) * size + row)
                if row < size and key is not None:
                    entries[f"{found['node']}/{key}"] = entry
    return entries


def _columns(place: Place, name: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table, as `_COLUMNS` has its columns. Raises `SourceError`."""
    try:
        content = place.read(name)
        _check_parquet(content)
        columns = _by_pyarrow(content)
    except ImportError as error:
        reason = f"pyarrow reads Parquet files, and is missing: pip install pyarrow ({error})"
        raise ModuleNotFoundError(f"{place.url}: {reason}") from None
    except Exception as error:  # the libraries raise many kinds for a damaged file
        raise SourceError(place.url, f"{name!r} can't be read ({error!r}): write the manifest again") from error
    count = max(map(len, columns.values()), default=0)
    return list(zip(*(columns.get(each, [None] * count) for each in _COLUMNS), strict=True))


def _entries_of(rows: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
    """Yield the number and the entry of each row that is no empty one."""
    for row, (path, offset, length, raw) in enumerate(rows):
        if isinstance(raw, bytes | str):
            yield row, raw
        elif isinstance(path, str):
            whole = offset is None or (offset == 0 and length == 0)
            yield row, [path] if whole else [path, int(offset), int(length)]


def _by_pyarrow(content: bytes) -> dict[str, list[Any]]:
    """Return the columns of a file. Any number of rows may have one text, of which there is one.

    fastparquet isn't used: flipped bytes in a file crash it.
    """
    from pyarrow.parquet import ParquetFile

    opened = ParquetFile(io.BytesIO(content))
    columns = [each for each in _COLUMNS if each in opened.schema_arrow.names]
    texts = [each for each in columns if each in ("path", "raw")]
    table = ParquetFile(io.BytesIO(content), read_dictionary=texts).read(columns=columns)
    found: dict[str, list[Any]] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        found[name] = []
        for part in column.chunks:
            if name in texts:
                values = part.dictionary.to_pylist()
                found[name] += [None if at is None else values[at] for at in part.indices.to_pylist()]
            else:
                found[name] += part.to_pylist()
    return found


def _check_parquet(content: bytes) -> None:
    """Raise `ValueError`, or another error, for a table that takes more memory than it may.

    The libraries believe each page how long it is, whatever the end of the file says of all pages.
    """
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    if begin < 0 or content[-4:] != b"PAR1":
        raise ValueError("it is no Parquet file, or was cut off")
    footer = _thrift(Reader(content, begin))
    rows = max(footer[3], sum(group[3] for group in footer[4]))
    if rows > _MOST_ROWS:
        raise ValueError(f"it has {rows:,} rows: write at most {_MOST_ROWS:,} to a file (record_size)")
    repeated = {element[4] for element in footer[2] if element.get(3) == 2 or element.get(5)}
    told = [column[3] for group in footer[4] for column in group[1]]
    if sum(_unpacked(content, each, repeated) for each in told if each[3][0].decode() in _COLUMNS) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES:,} bytes: write fewer rows to a file (record_size)")


def _unpacked(content: bytes, column: Mapping[int, Any], repeated: Set[bytes]) -> int:
    """Return how many bytes the pages of a column unpack to. Raises for values that may be longer than those."""
    name = column[3][0]
    if len(column[3]) > 1 or name in repeated or column[1] not in (_TEXT, *_SHORT):
        raise ValueError(f"{name!r} is no column of plain numbers or texts")
    if column[1] == _TEXT and name in (b"offset", b"size"):
        raise ValueError(f"{name!r} is no column of numbers")
    begin, dictionary, total = column[9], column.get(11) or 0, 0
    reader = Reader(content, dictionary if 0 < dictionary < begin else begin)
    end = reader.position + column[7]
    while reader.position < end:
        page = _thrift(reader)
        encodings = [page[kind][field] for kind, field in _PAGES if kind in page]
        if page[2] < 0 or not set(encodings) <= set(_ENCODINGS):
            raise ValueError(f"{name!r} has a page that is neither plain nor by a dictionary")
        reader.take(page[3])
        total += page[2]
    return total


def _thrift(reader: Reader) -> dict[int, Any]:
    """Return the fields of a struct by their numbers, as Thrift's compact protocol has it."""
    found: dict[int, Any] = {}
    number = 0
    while head := reader.take(1)[0]:
        number = number + (head >> 4) if head >> 4 else _thrift_value(reader, 4)
        found[number] = _thrift_value(reader, head & 15)
    return found


def _thrift_value(reader: Reader, kind: int, *, in_list: bool = False) -> Any:
    match kind:
        case 1 | 2:
            return reader.take(1) if in_list else kind == 1
        case 3:
            return reader.take(1)
        case 4 | 5 | 6:
            number = reader.varint()
            return number >> 1 ^ -(number & 1)
        case 7:
            return reader.take(8)
        case 8:
            return reader.take(reader.varint())
        case 9:
            head = reader.take(1)[0]
            count = reader.varint() if head >> 4 == 15 else head >> 4
            return [_thrift_value(reader, head & 15, in_list=True) for _ in range(count)]
        case 12:
            return _thrift(reader)
    raise ValueError(f"a value of kind {kind} is in its description")


def _chunk(grid: Sequence[int], number: int) -> str | None:
    """Return the key of a chunk by its number in C order, None if the grid has fewer."""
    if number >= math.prod(grid):
        return None
    index = []
    for count in reversed(grid):
        number, place = divmod(number, count)
        index.append(str(place))
    return ".".join(reversed(index)) or "0"


_ROOTS = ("zarr.json", ".zgroup", ".zarray")


@concealing
def import_references(
    repo: OpenedRepository,
    manifest: str | os.PathLike[str] | Mapping[str, Any],
    path: str = "",
    *,
    branch: str = MAIN,
    message: str | None = None,
    name: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Commit:
    """See `Repository.import_references`."""
    path = checked_path(path)
    opened = open_manifest(manifest, storage_options)
    entries = _entries(opened)
    files = _look(repo.engine.sources, opened, entries)
    lengths = {
        key: repo.engine.sources.range_of(files[entry.url], entry.offset, entry.length).length
        for key, entry in entries.items()
        if isinstance(entry, FileRange)
    }
    check_documents(opened.url, lengths)
    told = {PROPERTY: _description(opened, path, files, lengths)}
    done, total = 0, sum(lengths.values())
    message = message or f"references of {opened.url}"
    with repo.transaction(message, name=name, branch=branch, properties=told) as store:
        check_same_import(repo, name, told)
        check_free(repo, store, path)
        documents: dict[str, bytes] = {}
        for key, entry in entries.items():
            if not is_document(key):
                continue
            if isinstance(entry, bytes):
                documents[key] = entry
            else:
                found = repo.engine.sources.range_of(files[entry.url], entry.offset, entry.length)
                documents[key] = plain_document(key, bytes(repo.engine.sources.read(found)))
        for target, content in documents_at(store, path, documents, opened.url).items():
            store[target] = content
        for key, entry in entries.items():
            target = document_key(path, key)
            if isinstance(entry, bytes):
                if key not in documents:
                    store[target] = entry
                continue
            if key not in documents:
                file = files[entry.url]
                store.set_reference(target, file.url, entry.offset, entry.length, size=file.size, version=file.version)
            done += lengths[key]
            if progress is not None:
                progress(done, total)
        made = store.commit(allow_lost=name is not None)
        assert made is not None  # it has a message
        return made


def _entries(manifest: Manifest) -> dict[str, bytes | FileRange]:
    """Return the entry of each key, without consolidated metadata, which repeats every shape."""
    found: dict[str, bytes | FileRange] = {}
    for key, entry in manifest.items():
        if not is_consolidated(key):
            found[key] = plain_document(key, entry) if isinstance(entry, bytes) else entry
    if not any(root in found for root in _ROOTS):
        raise SourceError(manifest.url, f"this is no manifest of a Zarr hierarchy: it has none of {', '.join(_ROOTS)}")
    return found


def _look(sources: Sources, manifest: Manifest, entries: Mapping[str, bytes | FileRange]) -> dict[str, FileVersion]:
    """Return the present version of each file, by its URL in the manifest, with one look per file."""
    urls = list(dict.fromkeys(entry.url for entry in entries.values() if isinstance(entry, FileRange)))
    names = {url: canonical(url) for url in urls}

    def look(name: str) -> FileVersion:
        try:
            return sources.look(name)
        except (FileNotFoundError, NotADirectoryError):
            raise SourceError(name, f"{manifest.url} refers to it, and there is no such file") from None

    distinct = list(dict.fromkeys(names.values()))
    found = dict(zip(distinct, in_parallel(look, distinct), strict=True))
    return {url: found[name] for url, name in names.items()}


def _description(
    manifest: Manifest, path: str, files: Mapping[str, FileVersion], lengths: Mapping[str, int]
) -> dict[str, Any]:
    distinct = sorted(set(files.values()))
    return {
        "format": "references",
        "source": manifest.url,
        "files": len(distinct),
        "references": len(lengths),
        "bytes": sum(lengths.values()),
        "stamp": stamp([ForeignFile(*file) for file in distinct]),
        "path": path,
    }

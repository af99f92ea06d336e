"""Files outside the repository, at any fsspec URL or in a store: lists them, detects their kind, and their changes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias
from urllib.parse import unquote

from fsspec.archive import AbstractArchiveFileSystem
from fsspec.core import split_protocol
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.zip import ZipFileSystem
from fsspec.utils import infer_compression
from zarr.abc.store import Store
from zarr.buffer import default_buffer_prototype
from zarr.storage import LocalStore, ZipStore

from txstore._native import local
from txstore.codecs import bounded_codecs
from txstore.errors import SourceError
from txstore.storage.foreign_values import version_of
from txstore.storage.objects.urls import LOCAL, archives_of, check_slashes, missing_package, public
from txstore.storage.request_threads import in_parallel
from txstore.storage.tree import real_path
from txstore.zarr_private import zarr_sync

#: What an import reads: a path, a URL, or a store of zarr.
Source: TypeAlias = "str | os.PathLike[str] | Store"

ZARR, NETCDF, HDF5 = "zarr", "netcdf", "hdf5"
FORMATS = (ZARR, NETCDF, HDF5)

#: One of these makes a directory a Zarr hierarchy.
ROOT_DOCUMENTS = ("zarr.json", ".zgroup", ".zarray")
_HDF5 = b"\x89HDF\r\n\x1a\n"
_NETCDF_3 = (b"CDF\x01", b"CDF\x02", b"CDF\x05")
_NETCDF_NAMES = (".nc", ".nc4", ".cdf", ".netcdf")
#: fsspec's caching protocols.
_CACHES = {"blockcache", "cached", "filecache", "simplecache"}
_WEB = {"http", "https"}
#: For how many sizes an import asks an open store at a time.
_AT_A_TIME = 64
#: How a zip file packs what is unpacked as far as it is asked for: not at all, and by deflate. None: of other files.
_BOUNDED = (None, 0, 8)
#: How deep in an HDF5 file its signature may be, after a block of the user's.
_USER_BLOCKS = (0, 512, 1024, 2048)


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """A file, with its version: this tells whether the file is still the same."""

    path: str  # in its file system
    size: int
    version: str  # an etag, or the time of the last change; empty if the file system knows none

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> ForeignFile:
        return cls(info["name"], int(info.get("size") or 0), version_of(info))


class _FilesBelow(LocalFileSystem):  # type: ignore[misc]
    """The files of this machine, of which it reads only regular ones below a root.

    Others may write there, and exchange a file for a link after it was checked.
    """

    cachable = False  # each has a root of its own

    def __init__(self, root: str) -> None:
        super().__init__()
        self._given = root
        self._root = real_path(root)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        with self._opened(path) as number, open(number, "rb", closefd=False) as file:
            start, end, _step = slice(start, end).indices(os.fstat(number).st_size)
            file.seek(start)
            return file.read(max(0, end - start))

    def _opened(self, path: str) -> local.Descriptor:
        inner = _relative(path, self._given)
        try:
            return local.open_below(self._root, inner, os.O_RDONLY)
        except FileNotFoundError:
            raise
        except OSError:  # a link may be on the way
            real = os.path.realpath(path)
            if not os.path.join(real, "").startswith(os.path.join(self._root, "")):
                raise SourceError(self._given, _leads_out(inner)) from None
        try:
            return local.open_below(self._root, _relative(real, self._root), os.O_RDONLY)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise SourceError(self._given, f"{inner!r} was exchanged while it was read") from error


def _relative(path: str, root: str) -> str:
    found = os.path.relpath(path, root)
    return "" if found == "." else found


def _leads_out(name: str) -> str:
    return f"a link leads from {name!r} to somewhere else: copy it to here, or leave it out with exclude"


class Place:
    """A directory or file at a URL."""

    _listed: Mapping[str, int] = MappingProxyType({})  # of the files below here, when they were last listed

    def __init__(self, url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> None:
        from fsspec.core import url_to_fs

        address = os.fspath(url)
        check_slashes(address)
        _check_layers(address)
        *caches, last = address.split("::")
        if {each.partition("://")[0] for each in caches} <= _CACHES and split_protocol(last)[0] in (None, *LOCAL):
            address = last  # their file system would not say that a file of this machine is a link
        if "://" not in address and "::" not in address:
            address = os.path.abspath(os.path.expanduser(address))
        try:
            self.fs, path = url_to_fs(address, **_with_client(address, options or {}))
        except ImportError as error:
            raise missing_package(address, error) from None
        self.url = public(address) if "://" in address or "::" in address else address
        self.root = path.rstrip("/") or path
        self._guard()

    @classmethod
    def _of(cls, fs: Any, root: str, url: str) -> Place:
        found = cls.__new__(cls)
        found.fs, found.root, found.url = fs, root, url
        found._guard()
        return found

    def _guard(self) -> None:
        if self.is_local:
            self.fs = _FilesBelow(self.root)
        elif "cat_file" not in vars(self.fs) and not (
            self.fs.async_impl and getattr(self.fs, "fs", self.fs).async_impl
        ):
            turns: Any = contextlib.nullcontext() if isinstance(self.fs, ZipFileSystem) else threading.Lock()
            self.fs.cat_file = partial(_cat_in_turn, self.fs, turns, self.fs.cat_file)

    def __repr__(self) -> str:
        return f"<Place {self.url}>"

    def refused(self, path: str, reason: str) -> SourceError:
        """Return the error for an array or group of a file that can't be imported."""
        return SourceError(self.url, f"{path!r} can't be imported: {reason}. To leave it out: exclude=[{path!r}]")

    @property
    def is_local(self) -> bool:
        return self._has_protocol({"file"})

    def _has_protocol(self, names: Set[str]) -> bool:
        protocol = self.fs.protocol
        return not names.isdisjoint((protocol,) if isinstance(protocol, str) else protocol)

    @property
    def _is_web(self) -> bool:
        return self._has_protocol(_WEB)

    @property
    def _is_archive(self) -> bool:
        return _is_archive(self.fs)

    @property
    def _above(self) -> str:
        """The common prefix of the paths of all files below here; empty in an archive."""
        return self.root.rstrip("/") + "/" if self.root else ""

    def path(self, key: str) -> str:
        return f"{self._above}{key}" if key else self.root

    def file(self) -> ForeignFile:
        """Return the file at this place. Raises `FileNotFoundError`, and `SourceError` for what is no file."""
        self.fs.invalidate_cache()
        info = self._info(self.root)
        if info["type"] != "file":
            raise SourceError(self.url, "this is no file")
        self._check_unpacked("", info)
        found = ForeignFile.of(info)
        if self.is_local:  # no program can set this time: a file that was away in the meantime has another one
            found = replace(found, version=f"{found.version} {os.stat(self.root).st_ctime_ns}")
        return found

    def files(self) -> dict[str, ForeignFile]:
        """Return all files below here by relative name, sorted.

        Raises `SourceError` if any directory can't be listed: its files would be missing.
        """
        self.fs.invalidate_cache()
        begin = len(self._above)
        try:
            found = {path[begin:]: info for path, info in _found_below(self.fs, self.root)}
        except OSError as error:
            raise SourceError(self.url, f"not every directory could be listed: {error}") from error
        if self._is_web:
            found = self._of_web(found)
        for name, info in found.items():
            self._check_unpacked(name, info)
        files = {name: ForeignFile.of({**found[name], "name": self.path(name)}) for name in sorted(found) if name}
        self._listed = {name: file.size for name, file in files.items()}
        return files

    def _of_web(self, links: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """Return what a server says of the files that its pages lead to: a page says neither size nor version."""
        names = [name for name in links if name and not set("?#") & set(name)]  # a page may lead to itself, sorted
        for name in names:
            if unquote(name) != name:
                raise SourceError(self.url, f"{name!r} has escapes in its name: copy the files to this machine first")
        found = dict(zip(names, in_parallel(self._info, map(self.path, names)), strict=True))
        for name, info in found.items():
            if info.get("size") is None:
                raise SourceError(self.path(name), "its server does not tell its size")
        return found

    def _info(self, path: str) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = self.fs.info(path)
        except FileNotFoundError as error:
            if isinstance(error.__cause__, SourceError):  # of the web, fsspec says so whatever has failed
                raise error.__cause__ from None
            raise
        return found

    def _check_unpacked(self, name: str, info: Mapping[str, Any]) -> None:
        """Raise `SourceError` for a file of an archive that is unpacked to more than fits in memory, or may be."""
        if info.get("compress_type") not in _BOUNDED:
            raise SourceError(self.url, f"{name!r} is packed neither by deflate nor not at all: unpack it yourself")
        size, most = int(info.get("size") or 0), bounded_codecs.MOST_IN_MEMORY
        if self._is_archive and size > most and info.get("compress_size") != size:
            told = f"{name!r} is unpacked to {size:,} bytes, more than {most:,}: unpack the archive yourself"
            raise SourceError(self.url, told)

    def check_inside(self, names: Iterable[str]) -> None:
        """Raise `SourceError` if a local name leads by a link to a file outside this place, or is that of no file.

        To open a pipe may wait for ever.
        """
        root = os.path.join(os.path.realpath(self.root), "")
        is_inside: dict[str, bool] = {}  # by directory
        for name in names if self.is_local else ():
            path = self.path(name)
            directory = os.path.dirname(path)
            if directory not in is_inside:
                is_inside[directory] = os.path.join(os.path.realpath(directory), "").startswith(root)
            kind = os.lstat(path).st_mode
            if not is_inside[directory] or (stat.S_ISLNK(kind) and not os.path.realpath(path).startswith(root)):
                raise SourceError(self.url, _leads_out(name))
            if not stat.S_ISREG(os.stat(path).st_mode if stat.S_ISLNK(kind) else kind):
                raise SourceError(self.url, f"{name!r} is no file: leave it out with exclude")

    def read(self, key: str) -> bytes:
        if self._is_archive:
            self._check_unpacked(key, self.fs.info(self.path(key)))
        if self._is_web:
            from txstore.interchange.web_sources import no_more_than  # late: it needs aiohttp

            with no_more_than(self._listed.get(key)):
                return bytes(self.fs.cat_file(self.path(key)))
        return bytes(self.fs.cat_file(self.path(key)))

    def store(self) -> Any:
        """Return what zarr opens."""
        if self._is_web:
            from txstore.interchange.web_sources import PagesAsStore  # late: it needs aiohttp

            return PagesAsStore(self.fs, self.root, self._listed)
        return self.fs.get_mapper(self.root)

    def has(self, key: str) -> bool:
        return bool(self.fs.exists(self.path(key)))

    def format(self) -> str:
        """Return the format: plain Zarr, NetCDF or HDF5. Raises `SourceError` for anything else."""
        self.fs.invalidate_cache()
        if self.has("format.json") and self.has("commits"):
            raise SourceError(self.url, "this is a TxStore repository already: txstore backup copies it")
        if any(self.has(name) for name in ROOT_DOCUMENTS):
            return ZARR
        if not self.fs.exists(self.root):
            raise SourceError(self.url, "there is nothing here; look at the path")
        if self.has("snapshots") and self.has("manifests"):
            raise SourceError(self.url, "this is Icechunk's: give import_from a session's store (from-icechunk.md)")
        if self.fs.isdir(self.root):
            raise SourceError(self.url, "this directory is no Zarr hierarchy: it has no zarr.json, .zgroup or .zarray")
        return self._format_of_file()

    def _head(self) -> bytes:
        with self.fs.open(self.root, "rb") as file:
            return bytes(file.read(_USER_BLOCKS[-1] + len(_HDF5)))

    def is_netcdf_3(self) -> bool:
        """Tell whether this is a NetCDF file of the old kind, which can't lead to another file."""
        return self._head().startswith(_NETCDF_3)

    def _format_of_file(self) -> str:
        self.file()
        head = self._head()
        if head.startswith(_NETCDF_3):
            return NETCDF
        if any(head[at : at + len(_HDF5)] == _HDF5 for at in _USER_BLOCKS):
            is_netcdf = self.root.endswith(_NETCDF_NAMES) or b"_NCProperties" in head
            return NETCDF if is_netcdf else HDF5
        if head.startswith(b"PK"):
            raise SourceError(self.url, f"this is a zip file: if it is zipped Zarr, give zip::{self.url}")
        if head.lstrip().startswith(b"{"):
            raise SourceError(self.url, "if this is a manifest of references, of kerchunk say, take import_references")
        raise SourceError(self.url, "this is neither Zarr nor NetCDF nor HDF5")


def _cat_in_turn(
    fs: Any, turns: Any, cat_file: Callable[..., bytes], path: str, start: Any = None, end: Any = None, **_: Any
) -> bytes:
    """Read a file of a file system whose files have one position, or connection. Two threads got each other's bytes.

    A file of an archive is unpacked as far as it is told to be long.
    """
    with turns:
        return cat_file(path, start, fs.info(path)["size"] if end is None and _is_archive(fs) else end)


def _is_archive(fs: Any) -> bool:
    return isinstance(fs, AbstractArchiveFileSystem)


def _check_layers(address: str) -> None:
    """Raise `SourceError` for a chained URL of which a layer is believed before what it says can be checked."""
    archives = archives_of(address)
    if "reference" in archives:
        reason = "a manifest may name any file: give the manifest itself to import_references, and sources="
        raise SourceError(public(address), reason)
    is_packed_twice = len(archives) > 1 or (archives == ["tar"] and any(map(infer_compression, address.split("::"))))
    if is_packed_twice or "libarchive" in archives:
        reason = "a zip archive of files or a tar archive that is not compressed can be read: unpack others yourself"
        raise SourceError(public(address), reason)


def _with_client(address: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options for fsspec in which each file system of the web has our client, unless the caller gives one."""
    given = dict(options)
    for scheme in _WEB & {each.partition("://")[0] for each in address.split("::")}:
        from txstore.interchange.web_sources import client  # late: it needs aiohttp

        given[scheme] = {"get_client": client, **given.get(scheme, {})}
    return given


class OpenStore(Place):
    """A store of zarr that the caller has opened: a session's of Icechunk, or a snapshot. It tells no versions."""

    is_local = False

    def __init__(self, store: Store) -> None:
        self._store = store
        self.url = type(store).__name__
        self.root = ""

    def files(self) -> dict[str, ForeignFile]:
        return {key: ForeignFile(key, size, "") for key, size in sorted(zarr_sync(self._sizes()))}

    async def _sizes(self) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        if not self._store._is_open:  # some of zarr's lack what they need until then
            await self._store._open()
        keys = [key async for key in self._store.list()]
        for start in range(0, len(keys), _AT_A_TIME):
            some = keys[start : start + _AT_A_TIME]
            found += zip(some, await asyncio.gather(*map(self._store.getsize, some)), strict=True)
        return found

    def read(self, key: str) -> bytes:
        found = zarr_sync(self._store.get(key, default_buffer_prototype()))
        if found is None:
            raise SourceError(self.url, f"{key!r} has gone while it was read: let its writers end first")
        content: bytes = found.to_bytes()
        return content

    def store(self) -> Store:
        return self._store

    def format(self) -> str:
        return ZARR


def places(sources: Iterable[Source], options: Mapping[str, Any] | None) -> list[Place]:
    """Return the places of the sources; a pattern is replaced by its matches, `part-9` before `part-10`.

    Raises `SourceError` for a pattern without a match.
    """
    found: list[Place] = []
    for given in sources:
        source = given
        if isinstance(given, ZipStore) and isinstance(given.path, Path):
            source = f"zip::{given.path}"  # of which no file takes more memory than it may
        elif isinstance(given, ZipStore) and given.read_only:
            packed = ZipFileSystem(contextlib.nullcontext(given._fileobj))  # which the caller closes
            found.append(Place._of(packed, "", type(given).__name__))
            continue
        if isinstance(source, Store) and not isinstance(source, LocalStore):
            found.append(OpenStore(source))
            continue
        place = Place(source.root if isinstance(source, LocalStore) else source, options)
        if not any(sign in place.root for sign in "*?[") or place.fs.exists(place.root):
            found.append(place)
            continue
        matches = sorted(place.fs.glob(place.root), key=_natural)
        if not matches:
            raise SourceError(place.url, "nothing matches this pattern")
        for match in matches:
            if place.is_local:
                _check_links(match, os.path.dirname(place.root.partition("*")[0].partition("?")[0].partition("[")[0]))
            url = match if place.is_local else public(place.fs.unstrip_protocol(match))
            found.append(Place._of(place.fs, match, url))
    return found


def _check_links(path: str, directory: str) -> None:
    """Raise `SourceError` if a link of somebody else leads to a match of a pattern below a directory.

    The caller has not named the match, and other users may write there. A link to files of its owner does no harm.
    """
    while len(path) > len(directory):
        owner = os.lstat(path).st_uid
        if os.path.islink(path) and owner not in (0, os.geteuid(), os.stat(path).st_uid):
            raise SourceError(path, "this is another user's link to a file of somebody else: name that file itself")
        path = os.path.dirname(path)


def _natural(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path)]


def _found_below(fs: Any, root: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the files below a path, each with its listing. Raises `OSError` if a directory can't be listed.

    fsspec's own `walk`, on which most of its `find` methods rely, takes such a directory for empty. An object store has
    a `find` of its own, which raises, and needs one request per thousand files instead of one per directory. An archive
    is gone through once: it would be for each of its directories.
    """
    from fsspec.asyn import AsyncFileSystem

    if _is_archive(fs):
        fs.info("")
        for path, info in fs.dir_cache.items():
            if info["type"] != "directory" and (not root or f"{path}/".startswith(f"{root}/")):
                yield path, info
        return
    if isinstance(fs, AsyncFileSystem) and type(fs)._find is not AsyncFileSystem._find:
        yield from fs.find(root, detail=True).items()
        return
    directories = [root]
    while directories:
        above = directories.pop()
        for info in fs.ls(above, detail=True):
            path = info["name"].rstrip("/")
            if info["type"] != "directory":
                yield path, info
            elif path != above.rstrip("/"):  # some list the directory, too
                directories.append(path)


def stamp(files: Sequence[ForeignFile]) -> str:
    """Return a digest of the names, lengths and versions of files."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        digest.update(f"{file.path}\0{file.size}\0{file.version}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()

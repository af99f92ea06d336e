"""Object stores through fsspec: which of its classes can create exclusively, and how.

fsspec knows how to connect. What is asked then, and how, is settled for each class that is known; any other one can be
read, and written by a single writer.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import functools
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import fsspec.core

from txstore import forking, object_urls
from txstore.azure_objects import AzureEngine
from txstore.gcs_objects import GcsEngine
from txstore.object_engines import READ_ONLY, SINGLE_WRITER, Engine, Object, Objects, above, as_bytes
from txstore.object_urls import Target
from txstore.s3_objects import S3Engine
from txstore.sftp_objects import SftpEngine

if TYPE_CHECKING:
    from typing_extensions import Buffer

# How each class creates exclusively. A class that has taken the place of the known one under its protocol is another.
CREATION = {
    "s3fs.core.S3FileSystem": "conditional",  # If-None-Match: *
    "gcsfs.core.GCSFileSystem": "conditional",  # ifGenerationMatch=0
    "adlfs.spec.AzureBlobFileSystem": "conditional",  # If-None-Match: *
    "fsspec.implementations.memory.MemoryFileSystem": "lock",  # of this process, which is all that sees it
    "fsspec.implementations.sftp.SFTPFileSystem": "rename",
    "fsspec.implementations.smb.SMBFileSystem": "rename",
}


def creation_of(target: Target) -> str:
    """Return how a target's class creates exclusively. Raises ImportError where its package is missing."""
    cls = object_urls.filesystem_class(target)
    if "::" not in target.address:
        for each in cls.__mro__:
            if (name := f"{each.__module__}.{each.__qualname__}") in CREATION:
                return CREATION[name]
    return SINGLE_WRITER if target.single_writer else READ_ONLY


def build(target: Target) -> Engine:
    """Connect to a target."""
    if creation_of(target) in (READ_ONLY, SINGLE_WRITER):
        options = {name: value for name, value in target.options.items() if name not in object_urls.INSTANCE_OPTIONS}
        filesystem, root = fsspec.core.url_to_fs(target.address, **options)
        return PlainEngine(_unwrapped(filesystem), root)
    if target.family == "sftp":
        return SftpEngine(functools.partial(_instance, target), _path(target))
    filesystem = _instance(target)
    if target.family == "memory":
        return MemoryEngine(filesystem, _path(target))
    if target.family == "smb":
        return SmbEngine(filesystem, _path(target))
    if target.family == "azure":
        container, *rest = object_urls.azure_parts(target.address)
        return AzureEngine(filesystem, container, "".join(f"{part}/" for part in rest))
    bucket, prefix = object_urls.bucket_and_prefix(target.address)
    return S3Engine(filesystem, bucket, prefix) if target.family == "s3" else GcsEngine(filesystem, bucket, prefix)


def build_plain(target: Target) -> PlainEngine:
    """Connect to a target as to any other, whatever more its class could do."""
    engine = MemoryEngine if target.family == "memory" else PlainEngine
    return engine(_instance(target), _path(target))


def _instance(target: Target) -> Any:
    cls = object_urls.filesystem_class(target)
    options = {**cls._get_kwargs_from_urls(target.address), **target.options}
    if target.family == "s3":
        config = {"retries": {"total_max_attempts": 1}, "max_pool_connections": 32, **options.get("config_kwargs", {})}
        options["config_kwargs"] = config
    if target.family in ("s3", "azure", "gcs"):
        options |= {"asynchronous": False, "use_listings_cache": False}
    if target.family == "sftp":
        options = {"timeout": 10, "banner_timeout": 15, "auth_timeout": 15, **options}  # seconds
    return cls(**options, skip_instance_cache=True)


def _path(target: Target) -> str:
    return str(object_urls.filesystem_class(target)._strip_protocol(target.address)).rstrip("/")


def _unwrapped(filesystem: Any) -> Any:
    """Return the file system that a wrapper has inside, as far as its paths are the same."""
    while True:
        inside = getattr(filesystem, "sync_fs", None)  # AsyncFileSystemWrapper
        if inside is None and type(filesystem).__module__ == "fsspec.implementations.cached":
            inside = filesystem.fs
        if inside is None:
            return filesystem
        filesystem = inside


class PlainEngine:
    """Any file system, as fsspec has it: nothing exclusive, and nothing in one step."""

    def __init__(self, filesystem: Any, root: str) -> None:
        self._fs = filesystem
        self._root = root.rstrip("/")
        self._lock = forking.new_lock()

    def _file(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root or "/"

    # --- reading

    def get(self, path: str) -> bytes:
        content: bytes = self._fs.cat_file(self._file(path))
        return content

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        try:
            content: bytes = self._fs.cat_file(self._file(path), start=offset, end=offset + length)
        except OSError:
            if offset >= self._size(path):
                return b""
            raise
        return self._part(path, content, offset, length)

    def _part(self, path: str, content: bytes, offset: int, length: int) -> bytes:
        """Return a range from what a server has sent for it: a simple web server sends the whole object."""
        if len(content) <= length:
            return content
        if len(content) != self._size(path):
            raise OSError("the server sends something else than the range that it was asked for: it can't be read from")
        return content[offset : offset + length]

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        files = [self._file(path)] * len(ranges)
        starts = [offset for offset, _ in ranges]
        ends = [offset + length for offset, length in ranges]
        found: list[bytes] = self._fs.cat_ranges(files, starts, ends, on_error="raise")
        return [self._part(path, content, *wanted) for content, wanted in zip(found, ranges, strict=True)]

    def get_tail(self, path: str, length: int) -> tuple[bytes, int]:
        size = self._size(path)
        length = min(length, size)
        return (self.get_range(path, size - length, length) if length else b""), size

    def info(self, path: str) -> dict[str, Any]:
        """Return what the file system says of a file now: its size, and whatever it calls its version."""
        self._fs.invalidate_cache()
        found: dict[str, Any] = self._fs.info(self._file(path))
        return found

    def _size(self, path: str) -> int:
        return int(self.info(path)["size"] or 0)

    def list(self, directory: str) -> list[Object]:
        self._fs.invalidate_cache()
        file = self._file(directory)
        try:
            entries = self._fs.ls(file, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = []
        for entry in entries:
            name = entry["name"].rstrip("/")
            if name.strip("/") == file.strip("/"):  # the directory lists itself, or it is an object
                continue
            if entry["type"] == "directory":
                found.append(Object(name.rpartition("/")[2], 0, None))
            else:
                found.append(Object(name.rpartition("/")[2], int(entry["size"] or 0), _modified(entry)))
        return found

    def list_after(self, directory: str, name: str, limit: int) -> Objects | None:
        return None

    # --- writing

    def put(self, path: str, content: Buffer) -> None:
        with contextlib.suppress(NotImplementedError):
            self._fs.makedirs(self._file(path).rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(self._file(path), as_bytes(content))

    def create(self, path: str, content: Buffer) -> None:
        with self._lock:
            self._fs.invalidate_cache()
            if self._fs.exists(self._file(path)):
                raise FileExistsError(path)
            self.put(path, content)

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._file(path))

    def now(self) -> float:
        return time.time()  # of the one that writes, if anybody does


class SmbEngine(PlainEngine):
    """Files of an SMB server: written beside, and renamed, which the server refuses if the target exists."""

    def put(self, path: str, content: Buffer) -> None:
        import smbclient

        self._written(path, content, smbclient.replace)

    def create(self, path: str, content: Buffer) -> None:
        import smbclient

        self._written(path, content, smbclient.rename)

    def _written(self, path: str, content: Buffer, move: Any) -> None:
        from fsspec.implementations.smb import _as_unc_path

        directory = self._file(path).rpartition("/")[0]
        self._fs.makedirs(directory, exist_ok=True)
        partial = f"{directory}/.{uuid.uuid4().hex}.partial"
        self._fs.pipe_file(partial, as_bytes(content))
        host, port = self._fs.host, self._fs._port
        try:
            move(_as_unc_path(host, partial), _as_unc_path(host, self._file(path)), port=port)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._fs.rm_file(partial)
            if error.errno == errno.EEXIST:
                raise FileExistsError(path) from None
            raise

    def list(self, directory: str) -> list[Object]:
        return [each for each in super().list(directory) if not each.name.endswith(".partial")]

    def now(self) -> float:
        """SMB has no clock: what time a file has that is made now."""
        partial = f"{self._file('')}/.{uuid.uuid4().hex}.partial"
        self._fs.pipe_file(partial, b"-")
        try:
            return _modified(self._fs.info(partial)) or time.time()
        finally:
            self._fs.rm_file(partial)


_memory_lock = (
    forking.new_lock()
)  # one for all: fsspec's memory is one for the process, and its files have one position


class MemoryEngine(PlainEngine):
    """fsspec's memory of this process."""

    def get(self, path: str) -> bytes:
        with _memory_lock:
            return self._content(path)

    def _content(self, path: str) -> bytes:
        try:
            return bytes(self._fs.store[self._file(path)].getbuffer())
        except KeyError:
            raise FileNotFoundError(path) from None

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        return self.get_ranges(path, [(offset, length)])[0]

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        with _memory_lock:
            try:
                content = self._fs.store[self._file(path)].getbuffer()
            except KeyError:
                raise FileNotFoundError(path) from None
            with content:
                return [bytes(content[offset : offset + length]) for offset, length in ranges]

    def get_tail(self, path: str, length: int) -> tuple[bytes, int]:
        content = self.get(path)
        return content[-length:], len(content)

    def list(self, directory: str) -> list[Object]:
        with _memory_lock:
            return super().list(directory)

    def list_after(self, directory: str, name: str, limit: int) -> Objects | None:
        return above(self.list(directory), name, limit)

    def put(self, path: str, content: Buffer) -> None:
        with _memory_lock:
            self._put(path, content)

    def _put(self, path: str, content: Buffer) -> None:
        try:
            self._fs.pipe_file(self._file(path), bytes(content))
        except FileExistsError:  # what it says of a part of the path that is a file
            raise NotADirectoryError(path) from None

    def create(self, path: str, content: Buffer) -> None:
        with _memory_lock:
            if self._file(path) in self._fs.store:
                raise FileExistsError(path)
            self._put(path, content)

    def delete(self, paths: Sequence[str]) -> None:
        with _memory_lock:
            for path in paths:
                self._fs.store.pop(self._file(path), None)


def _modified(entry: dict[str, Any]) -> float | None:
    for name in ("mtime", "last_modified", "LastModified", "modified", "updated", "created", "last_write_time"):
        value = entry.get(name)
        if isinstance(value, datetime.datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None

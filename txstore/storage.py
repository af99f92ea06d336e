"""The only module that does I/O on a repository. Paths are relative to its root, with `/` between segments.

`Storage` is the small protocol that everything above is written against; tests inject faults by wrapping it.
`LocalStorage` is the implementation for a directory of this machine. Errors of the system come out as `OSError`
with the file's name; nothing above needs to know more than the subclasses of it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import filelock
from fsspec.core import split_protocol

from txstore._native import local

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from typing_extensions import Buffer

Mapped = Any  # an object with the buffer protocol: what a whole file looks like in memory


class StagedFile(Protocol):
    """A file that this process writes and nobody else sees yet. Reading and writing by offset; safe in threads."""

    def write(self, offset: int, parts: Sequence[Buffer]) -> None: ...
    def read(self, offset: int, length: int) -> bytes: ...
    def allocate(self, offset: int, length: int) -> None: ...
    def start_writeback(self, offset: int, length: int) -> None: ...
    def truncate(self, length: int) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class Storage(Protocol):
    """What a repository needs of the medium that it lies on."""

    url: str

    def read(self, path: str) -> bytes:
        """Return a whole small file."""

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        """Return the last bytes of a file (fewer if it is shorter) and its size."""

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Return a range of a file; shorter only where the file ends."""

    def map(self, path: str) -> Mapped:
        """Return the whole file as a read-only buffer that stays valid after the file is gone."""

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> list[str]:
        """Return the names in a directory; none if it does not exist."""

    def make_directory(self, path: str, *, durable: bool) -> None:
        """Create a directory, and those above it, unless it exists. The empty path is the root."""

    def create(self, path: str) -> StagedFile:
        """Create a file; FileExistsError if it exists."""

    def sync_file(self, path: str) -> None:
        """Make the content of a finished file durable."""

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""

    def rename_noreplace(self, source: str, target: str) -> None:
        """Move a file in one step; FileExistsError if the target exists."""

    def write_once(self, path: str, content: bytes, *, durable: bool) -> None:
        """Create a small file with this content, in one step; FileExistsError if it exists."""

    def write_in_place(self, path: str, content: bytes) -> None:
        """Write the beginning of a file that need not survive anything."""

    def delete(self, path: str) -> None:
        """Delete a file; nothing happens if it does not exist."""

    def lock(self, path: str) -> contextlib.AbstractContextManager[None]:
        """Take turns with other processes and threads. Serves fairness, never correctness."""


def open_storage(url: str | os.PathLike[str], options: dict[str, Any] | None = None) -> Storage:
    """Return the storage for a path or URL. So far only directories of this machine are supported.

    Raises `ValueError` for another protocol or for options that a local directory does not have.
    """
    protocol, path = split_protocol(os.fspath(url))
    if protocol not in (None, "file", "local"):
        raise ValueError(f"{url}: only paths and file:// URLs are supported by this version of txstore")
    if options:
        raise ValueError(f"storage_options {sorted(options)} mean nothing for the local path {path!r}: leave them out")
    return LocalStorage(os.path.abspath(os.path.expanduser(path)))


class LocalStorage:
    """A directory on a local file system."""

    def __init__(self, root: str) -> None:
        self.url = root
        self._root = root + os.sep

    def _file(self, path: str) -> str:
        return self._root + path

    # --- reading

    def read(self, path: str) -> bytes:
        with open(self._file(path), "rb") as file:
            return file.read()

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        with self._opened(path) as descriptor:
            size = os.fstat(descriptor).st_size
            length = min(length, size)
            return _read_fully(descriptor, size - length, length), size

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        with self._opened(path) as descriptor:
            return _read_fully(descriptor, offset, length)

    def map(self, path: str) -> Mapped:
        return local.map_file(self._file(path))

    def exists(self, path: str) -> bool:
        try:
            os.stat(self._file(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list(self, path: str) -> list[str]:
        try:
            return os.listdir(self._file(path))
        except FileNotFoundError:
            return []

    @contextmanager
    def _opened(self, path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
        descriptor = os.open(self._file(path), flags | os.O_CLOEXEC, 0o666)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    # --- writing

    def make_directory(self, path: str, *, durable: bool) -> None:
        self._make_directory(os.path.normpath(self._file(path)), durable)

    def _make_directory(self, directory: str, durable: bool) -> None:
        try:
            os.mkdir(directory)
        except FileExistsError:
            return
        except FileNotFoundError:
            self._make_directory(os.path.dirname(directory), durable)
            self._make_directory(directory, durable)
            return
        if durable:
            _sync_directory(os.path.dirname(directory))

    def create(self, path: str) -> StagedFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return LocalStagedFile(os.open(self._file(path), flags, 0o666))

    def sync_file(self, path: str) -> None:
        with self._opened(path) as descriptor:
            _sync(descriptor)

    def sync_directory(self, path: str) -> None:
        _sync_directory(self._file(path))

    def rename_noreplace(self, source: str, target: str) -> None:
        local.rename_noreplace(self._file(source), self._file(target))

    def write_once(self, path: str, content: bytes, *, durable: bool) -> None:
        temporary = f".staging/{os.urandom(8).hex()}.new"
        file = self.create(temporary)
        try:
            file.write(0, [content])
            if durable:
                file.sync()
            self.rename_noreplace(temporary, path)
        except BaseException:
            self.delete(temporary)
            raise
        finally:
            file.close()
        if durable:
            self.sync_directory(os.path.dirname(path))

    def write_in_place(self, path: str, content: bytes) -> None:
        with self._opened(path, os.O_WRONLY | os.O_CREAT) as descriptor:
            _write_fully(descriptor, 0, [content])

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file(path))

    @contextmanager
    def lock(self, path: str) -> Iterator[None]:
        if sys.platform != "linux":
            with filelock.FileLock(self._file(path)):
                yield
            return
        # The lock belongs to the open file description: two threads that open the file exclude each other too.
        with self._opened(path, os.O_RDWR | os.O_CREAT) as descriptor:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, _LOCK_ALL)
            try:
                yield
            finally:
                # Closing is not enough: a child that was forked meanwhile has the description open, too.
                fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _UNLOCK_ALL)


class LocalStagedFile:
    """An open file below `.staging/`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._closing = threading.Lock()

    def write(self, offset: int, parts: Sequence[Buffer]) -> None:
        _write_fully(self._descriptor, offset, parts)

    def read(self, offset: int, length: int) -> bytes:
        return _read_fully(self._descriptor, offset, length)

    def allocate(self, offset: int, length: int) -> None:
        local.allocate(self._descriptor, offset, length)

    def start_writeback(self, offset: int, length: int) -> None:
        local.start_writeback(self._descriptor, offset, length)

    def truncate(self, length: int) -> None:
        os.ftruncate(self._descriptor, length)

    def sync(self) -> None:
        _sync(self._descriptor)

    def close(self) -> None:
        with self._closing:
            descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


if sys.platform == "linux":
    _LOCK_ALL = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)  # struct flock
    _UNLOCK_ALL = struct.pack("hhqqi4x", fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)


def _sync(descriptor: int) -> None:
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # fsync there leaves the data in the drive's cache
    elif sys.platform == "win32":
        os.fsync(descriptor)
    else:
        os.fdatasync(descriptor)


def _sync_directory(directory: str) -> None:
    if sys.platform == "win32":  # NTFS has no such call and needs none
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_fully(descriptor: int, offset: int, length: int) -> bytes:
    data = os.pread(descriptor, length, offset)
    while len(data) < length:
        more = os.pread(descriptor, length - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def _write_fully(descriptor: int, offset: int, parts: Sequence[Buffer]) -> None:
    total = sum(memoryview(part).nbytes for part in parts)
    written = os.pwritev(descriptor, parts, offset)
    if written == total:
        return
    rest = memoryview(b"".join(parts))[written:]
    while rest:
        written = os.pwrite(descriptor, rest, offset + total - len(rest))
        if not written:
            raise OSError(errno.EIO, "nothing could be written")
        rest = rest[written:]

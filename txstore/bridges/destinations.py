"""Where plain copies go: a directory of this machine, or the objects below a URL. Each file is replaced in one step."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fsspec.core import split_protocol

from txstore.errors import PublishError
from txstore.objects import ObjectStore, open_objects

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Below the root: what is written here is renamed to where it belongs, and is nobody's if its writer died.
TEMPORARY = ".txstore-publishing"

#: So often is a directory made again that another thread has deleted because it was empty.
_ATTEMPTS = 100


class Destination(Protocol):
    """A tree of files, by key. Safe in threads. Errors are those of `ObjectStore`."""

    url: str
    writers: int
    """How many threads are worth while."""

    def read(self, key: str) -> bytes | None:
        """Return a file, None if there is none."""

    def write(self, key: str, content: Buffer) -> None:
        """Create or replace a file in one step: a reader sees the old one or the new one."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete files; one that is not there is no error."""

    def list(self, path: str = "") -> Iterator[str]:
        """Yield the keys below a path."""

    def sync(self) -> None:
        """Make what was written and deleted durable."""

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Keep other publishers out while the block runs, where that is possible. Raises `PublishError`."""


def open_destination(
    url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None, *, durable: bool
) -> Destination:
    protocol, path = split_protocol(os.fspath(url))
    if protocol in (None, "file", "local"):
        if storage_options:
            names = ", ".join(sorted(storage_options))
            raise ValueError(f"{names}: means nothing for the local path {path!r}; leave it out")
        return LocalDestination(path, durable=durable)
    return ObjectDestination(open_objects(os.fspath(url), storage_options, single_writer=True))


class LocalDestination:
    """A directory."""

    writers = 4

    def __init__(self, path: str | os.PathLike[str], *, durable: bool) -> None:
        self.url = os.path.realpath(os.path.expanduser(path))
        self._durable = durable
        self._touched: set[str] = set()  # directories that have new names, or lost some

    def read(self, key: str) -> bytes | None:
        try:
            with open(self._path(key), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def write(self, key: str, content: Buffer) -> None:
        path = self._path(key)
        temporary = os.path.join(self.url, TEMPORARY, os.urandom(8).hex())
        os.makedirs(os.path.dirname(temporary), exist_ok=True)
        try:
            with open(temporary, "xb", buffering=0) as file:
                view = memoryview(content)
                written = 0
                while written < view.nbytes:
                    written += file.write(view[written:])
                if self._durable:
                    os.fsync(file.fileno())
            self._move(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        self._touched.add(os.path.dirname(path))

    def _move(self, temporary: str, path: str) -> None:
        """Put a file in its place, though another thread may be deleting directories that have become empty."""
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(FileNotFoundError):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                os.replace(temporary, path)
                return
        os.replace(temporary, path)

    def delete(self, keys: Sequence[str]) -> None:
        parents = set()
        for key in keys:
            # A directory: another thread has just put what comes instead in the place of the file.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                os.unlink(self._path(key))
            parents.add(os.path.dirname(self._path(key)))
        for parent in sorted(parents, key=len, reverse=True):
            self._prune(parent)

    def _prune(self, directory: str) -> None:
        """Delete a directory that is empty now, and those above it."""
        while directory != self.url:
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                pass
            except OSError:
                break
            self._touched.discard(directory)
            directory = os.path.dirname(directory)
        self._touched.add(directory)

    def list(self, path: str = "") -> Iterator[str]:
        top = self._path(path) if path else self.url
        for directory, directories, files in os.walk(top):
            if directory == self.url and TEMPORARY in directories:
                directories.remove(TEMPORARY)
            for name in files:
                yield os.path.relpath(os.path.join(directory, name), self.url).replace(os.sep, "/")

    def sync(self) -> None:
        touched, self._touched = self._touched, set()
        if not self._durable:
            return
        directories = set()
        for each in touched:
            above = each
            while len(above) >= len(self.url) and above not in directories:
                directories.add(above)
                above = os.path.dirname(above)
        for directory in sorted(directories, key=len, reverse=True):
            with contextlib.suppress(FileNotFoundError):
                _sync_directory(directory)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        import fcntl

        os.makedirs(self.url, exist_ok=True)
        descriptor = os.open(self.url, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                reason = "another process is publishing to it: wait for it, or choose another place"
                raise PublishError(self.url, reason) from None
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL):
                    raise
            self._drop_temporary()
            yield
            self._drop_temporary()
        finally:
            os.close(descriptor)

    def _drop_temporary(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(os.path.join(self.url, TEMPORARY))

    def _path(self, key: str) -> str:
        segments = key.split("/")
        if any(segment in ("", ".", "..") for segment in segments) or "\0" in key:
            raise PublishError(self.url, f"key {key!r} can't be the name of a file")
        return os.path.join(self.url, *segments)


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ObjectDestination:
    """The objects below a URL. What the server has confirmed is durable."""

    writers = 8

    def __init__(self, objects: ObjectStore) -> None:
        self.url = objects.url
        self._objects = objects

    def read(self, key: str) -> bytes | None:
        try:
            return self._objects.get(key)
        except (FileNotFoundError, IsADirectoryError):
            return None

    def write(self, key: str, content: Buffer) -> None:
        self._objects.put(key, [content])

    def delete(self, keys: Sequence[str]) -> None:
        self._objects.delete(keys)

    def list(self, path: str = "") -> Iterator[str]:
        directories = [path]
        while directories:
            directory = directories.pop()
            for found in self._objects.list(directory):
                key = f"{directory}/{found.name}" if directory else found.name
                # An empty object and a directory look alike, and to delete a key that is none is no error.
                if found.size == 0 and found.modified is None:
                    directories.append(key)
                else:
                    yield key

    def sync(self) -> None:
        pass

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        yield  # there are no locks: whoever finds another's state gives up

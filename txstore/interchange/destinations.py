"""Destinations of plain copies: a local directory, or the objects below a URL. Each file is replaced in one step.

Files at the destination may belong to another user: no link below the root is followed, and only regular files are
read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import unquote

from fsspec.core import split_protocol

from txstore.errors import CheckoutError, ExportError, PublishError
from txstore.format.keys import ancestors
from txstore.storage.local import sync_directory
from txstore.storage.objects.backend import READ_ONLY, SINGLE_WRITER
from txstore.storage.objects.interface import ObjectStore, open_objects
from txstore.storage.objects.urls import check_slashes

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from txstore.storage.interface import Storage

K = TypeVar("K")
T = TypeVar("T")

#: Below the root: files are written here, then renamed into place. A writer that died leaves its files here.
TEMPORARY = ".txstore-publishing"

#: Requests at a time; and the most values, and bytes in all, that are held for them.
_THREADS, _AT_A_TIME, _BYTES_AT_A_TIME = 8, 64, 64 << 20

#: Attempts to create a directory that another thread deletes because it is empty.
_ATTEMPTS = 100

Refused: TypeAlias = type[PublishError] | type[ExportError] | type[CheckoutError]


def open_destination(
    url: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None,
    *,
    durable: bool,
    at_most: int,
    refused: Refused = PublishError,
) -> Destination:
    """Open the destination of copies. Local files get no more than the permission bits `at_most`."""
    check_slashes(os.fspath(url))
    protocol, path = split_protocol(os.fspath(url))
    if protocol in (None, "file", "local"):
        if storage_options:
            names = ", ".join(sorted(storage_options))
            raise ValueError(f"{names}: means nothing for the local path {path!r}; leave it out")
        return LocalDestination(path, durable=durable, at_most=at_most, refused=refused)
    objects = open_objects(os.fspath(url), storage_options)
    if objects.creation == READ_ONLY:  # no exclusive creation is needed here
        objects = open_objects(os.fspath(url), storage_options, single_writer=True)
    return ObjectDestination(objects, refused=refused)


def bits_of_copies(storage: Storage) -> int:
    """Return the permission bits that copies out of a repository may have: no more than its root has."""
    try:
        return storage.permissions("") & 0o777 | 0o700
    except FileNotFoundError:  # the repository is not created yet
        return 0o700


def check_outside(target: Destination, repository: str) -> None:
    """Raise `refused` for a place inside the repository with this URL or path."""
    outer = repository if "://" in repository else os.path.realpath(repository)
    if f"{target.url}/".startswith(f"{outer.rstrip('/')}/"):
        raise target.refused(target.url, f"it lies in the repository {repository}: choose a place outside")


def check_tree(target: Destination, keys: Collection[str]) -> None:
    """Raise `refused` for keys that can't be file names below a destination."""
    for key in keys:
        target.check_key(key)
        parts = key.split("/")
        if any("/".join(parts[:n]) in keys for n in range(1, len(parts))):
            raise target.refused(target.url, f"above the key {key!r} is another: a file can't be a directory, too")


def found_marker(target: Destination, name: str) -> bytes | None:
    """Return the content of a marker, None if the place is empty. Raises `refused` if it has other files."""
    content = target.read_marker(name)
    if content is None and (other := next(iter(target.list()), None)) is not None:
        raise target.refused(target.url, f"it holds something else ({other!r}): choose an empty or a new place")
    return content


def put(target: Destination, key: str, content: Buffer, *, compare: bool, verify: bool) -> bool:
    """Write a file; with `compare`, only if it differs. Return whether it was written.

    With `verify`, it is read back. Raises `refused` if it reads back differently.
    """
    if compare and target.read(key) == content:
        return False
    target.write(key, content)
    if verify and target.read(key) != content:
        raise target.refused(target.url, f"{key!r} reads back differently from what was written: try another place")
    return True


def is_place(told: object, place: Mapping[str, Any]) -> bool:
    """Tell whether a marker was written here, by the place that it records."""
    return isinstance(told, Mapping) and any(told.get(name) == value for name, value in place.items())


def in_parallel(function: Callable[[K], T], keys: Iterable[K], size: Callable[[K], int]) -> Iterator[tuple[K, T]]:
    """Yield each key with the result of a function for it, in order, a few at a time."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="txstore-copy") as pool:
        for batch in _batches(keys, size):
            yield from zip(batch, pool.map(function, batch), strict=True)


def _batches(keys: Iterable[K], size: Callable[[K], int]) -> Iterator[list[K]]:
    batch: list[K] = []
    held = 0
    for key in keys:
        if batch and (len(batch) == _AT_A_TIME or held + size(key) > _BYTES_AT_A_TIME):
            yield batch
            batch, held = [], 0
        batch.append(key)
        held += size(key)
    if batch:
        yield batch


# --- a directory

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
#: Without waiting, if the file is not a regular one.
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class LocalDestination:
    """A local directory: a tree of files, by key. Safe in threads. Raises `refused` if a name is not a file.

    A *marker* is a file in which a writer records its work. It counts only if this user wrote it at this place.
    """

    writers = 4  # the useful number of threads

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durable: bool,
        at_most: int = 0o777,
        refused: Refused = PublishError,
        has_temporary: bool = True,
    ) -> None:
        """`has_temporary`: the directory `TEMPORARY` is for what is being written. Else it is one like others."""
        self.at_most = at_most
        self._temporary = TEMPORARY if has_temporary else None
        self.url = os.path.realpath(os.path.expanduser(path))
        self.refused = refused
        self._durable = durable
        self._touched: set[str] = set()  # directories with created or deleted names, to be synced

    # --- descriptors, from the root on, so that a rename or link meanwhile leads nowhere else

    def check_key(self, key: str) -> None:
        """Raise unless a key can be the name of a file below the root."""
        if not {"", ".", ".."}.isdisjoint(key.split("/")) or "\0" in key:
            raise self.refused(self.url, f"key {key!r} can't be the name of a file")
        if key.partition("/")[0] == self._temporary:
            raise self.refused(self.url, f"key {key!r} can't be written here: files are put together in {TEMPORARY}/")

    @contextlib.contextmanager
    def directory(self, path: str, *, create: bool = False) -> Iterator[int]:
        """Open a directory by its path from the root. Raises `refused` if the path has a link."""
        descriptor = os.open(self.url, _DIRECTORY)
        try:
            for segment in path.split("/") if path else ():
                below = self._open_below(descriptor, segment, path, create)
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    def _open_below(self, descriptor: int, name: str, path: str, create: bool) -> int:
        try:
            if create:
                with contextlib.suppress(FileNotFoundError):  # most exist
                    return os.open(name, _DIRECTORY, dir_fd=descriptor)
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, self.at_most, dir_fd=descriptor)
            return os.open(name, _DIRECTORY, dir_fd=descriptor)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                if stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
                    raise self._is_link(path) from None
                raise NotADirectoryError(error.errno, error.strerror, os.path.join(self.url, path)) from None
            raise

    def _is_link(self, path: str) -> PublishError | ExportError | CheckoutError:
        return self.refused(self.url, f"{path!r} is a link, or below one, which is not followed here: delete it")

    @contextlib.contextmanager
    def _above(self, key: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
        """Open the directory of a file; yield its descriptor, and the file's name in it."""
        self.check_key(key)
        directory, _, name = key.rpartition("/")
        with self.directory(directory, create=create) as descriptor:
            yield descriptor, name

    # --- reading

    def read(self, key: str) -> bytes | None:
        """Return the content of a file, None if it does not exist."""
        found = self.read_status(key)
        return None if found is None else found[0]

    def read_status(self, key: str) -> tuple[bytes, os.stat_result] | None:
        """Return a file and its status; None if it is missing or not a regular file, so not ours."""
        try:
            with self._above(key) as (directory, name):
                return self.read_in(directory, name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read_in(self, directory: int, name: str) -> tuple[bytes, os.stat_result] | None:
        """As `read_status`, of a name in a directory that is open."""
        try:
            descriptor = os.open(name, _FILE, dir_fd=directory)
        except (FileNotFoundError, IsADirectoryError):
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket, or a pipe
                return None
            raise
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return None
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(), status
        finally:
            os.close(descriptor)

    def list(self, path: str = "") -> Iterator[str]:
        """Yield the keys below a path."""
        yield from (key for key, _ in self.statuses(path))

    def statuses(self, path: str = "") -> Iterator[tuple[str, os.stat_result]]:
        """Yield the key and the status of each file below a path; of a link, that of the link itself."""
        if path:
            self.check_key(path)
        directories = [path]
        while directories:
            directory = directories.pop()
            try:
                with self.directory(directory) as descriptor, os.scandir(descriptor) as entries:
                    found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
            except (FileNotFoundError, NotADirectoryError):
                continue
            for name, status in found:
                key = f"{directory}/{name}" if directory else name
                if not stat.S_ISDIR(status.st_mode):
                    yield key, status
                elif key != self._temporary:
                    directories.append(key)

    # --- writing

    def write(self, key: str, content: Buffer) -> None:
        """Create or replace a file in one step: a reader sees the old one or the new one."""
        self._write(key, content)

    def _write(self, key: str, content: Buffer, *, is_marker: bool = False) -> None:
        self.check_key(key)
        temporary = os.urandom(8).hex()
        with self._made(TEMPORARY) as directory:
            try:
                self._fill(directory, temporary, content, is_marker)
                self._move(directory, temporary, key)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=directory)
                raise
        self._touched.add(key.rpartition("/")[0])

    def replace_in(self, directory: int, name: str, content: Buffer) -> None:
        """Create or replace a file in a directory that is open, in one step."""
        temporary = f"{name[:64]}.{os.urandom(16).hex()}.partial"
        try:
            self._fill(directory, temporary, content, is_marker=False)
            os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)
            raise

    @contextlib.contextmanager
    def _made(self, path: str) -> Iterator[int]:
        os.makedirs(self.url, self.at_most, exist_ok=True)
        with self.directory(path, create=True) as descriptor:
            yield descriptor

    def _fill(self, directory: int, name: str, content: Buffer, is_marker: bool) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o666 & self.at_most, dir_fd=directory)
        with open(descriptor, "wb", buffering=0) as file:
            view = memoryview(content)
            written = 0
            while written < view.nbytes:
                written += file.write(view[written:])
            if is_marker:
                os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode) & ~_OTHERS_WRITE)
            if self._durable:
                os.fsync(descriptor)

    def _move(self, directory: int, temporary: str, key: str) -> None:
        """Put a file in its place, though another thread may be deleting directories that have become empty."""
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(FileNotFoundError), self._above(key, create=True) as (above, name):
                os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=above)
                return
        with self._above(key) as (above, name):
            os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=above)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete files; a missing one is not an error."""
        parents = set()
        for key in keys:
            # A directory: another thread has just put what comes instead in the place of the file.
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError),
                self._above(key) as (directory, name),
            ):
                os.unlink(name, dir_fd=directory)
            parents.add(key.rpartition("/")[0])
        for parent in sorted(parents, key=len, reverse=True):
            self._prune(parent)

    def _prune(self, directory: str) -> None:
        """Delete a directory that is empty now, and those above it."""
        while directory:
            try:
                with self._above(directory) as (above, name):
                    os.rmdir(name, dir_fd=above)
            except FileNotFoundError:
                pass
            except OSError:
                break
            self._touched.discard(directory)
            directory = directory.rpartition("/")[0]
        self._touched.add(directory)

    def sync(self) -> None:
        """Make all writes and deletes durable."""
        touched, self._touched = self._touched, set()
        if not self._durable:
            return
        directories = touched.union(*map(ancestors, touched))
        for directory in sorted(directories, key=len, reverse=True):
            with contextlib.suppress(FileNotFoundError), self.directory(directory) as descriptor:
                os.fsync(descriptor)
        if touched:
            sync_directory(os.path.dirname(self.url))

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other publishers out while the block runs. Raises `refused`."""
        import fcntl

        if os.path.exists(self.url) and not os.path.isdir(self.url):
            raise self.refused(self.url, "this is a file: choose an empty or a new place")
        os.makedirs(self.url, self.at_most, exist_ok=True)
        descriptor = os.open(self.url, _DIRECTORY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                reason = "another process is writing to it: wait for it, or choose another place"
                raise self.refused(self.url, reason) from None
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL):
                    raise
            self._drop_temporary(descriptor)
            try:
                yield
            finally:
                self._drop_temporary(descriptor)
        finally:
            os.close(descriptor)

    def _drop_temporary(self, descriptor: int) -> None:
        if self._temporary is None:
            return
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(os.stat(TEMPORARY, dir_fd=descriptor, follow_symlinks=False).st_mode):
                shutil.rmtree(TEMPORARY, dir_fd=descriptor)
            else:
                os.unlink(TEMPORARY, dir_fd=descriptor)

    # --- markers

    def place(self) -> dict[str, Any]:
        """Return facts that identify this place, for a marker. A missing member matches any place."""
        return {"path": self.url, "inode": os.stat(self.url).st_ino}

    def write_marker(self, key: str, content: bytes) -> None:
        """Write a file that `read_marker` will take for ours."""
        self._write(key, content, is_marker=True)

    def read_marker(self, key: str) -> bytes | None:
        """Return a marker, None if there is none. Raises `refused` if another user may have written it."""
        try:
            with self.directory("") as root:
                os.stat(key, dir_fd=root, follow_symlinks=False)
        except FileNotFoundError:
            return None
        found = self.read_status(key)
        if found is None or self._owner(found[1]) != self._own_owner():
            reason = f"{key!r} in it is no file that only you could have written: choose a new place"
            raise self.refused(self.url, reason)
        return found[0]

    def _own_owner(self) -> tuple[int, int]:
        """Return whose a marker is that is written now: some file systems call all files one user's."""
        name = os.urandom(8).hex()
        with self._made(TEMPORARY) as directory:
            self._fill(directory, name, b"", True)
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            os.unlink(name, dir_fd=directory)
        return self._owner(status)

    def _owner(self, status: os.stat_result) -> tuple[int, int]:
        return status.st_uid, status.st_mode & _OTHERS_WRITE


_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


# --- objects

#: How stores create that have names, and no directories.
_ANY_NAME = ("conditional", "lock")


class ObjectDestination:
    """The objects below a URL, as `LocalDestination`. Raises errors of `ObjectStore`, too.

    What the server has confirmed is durable.
    """

    writers = 8

    def __init__(self, objects: ObjectStore, *, refused: Refused = PublishError) -> None:
        self.url = objects.url
        self.refused = refused
        self._objects = objects
        self._no_links: set[str] = set()  # directories

    def check_key(self, key: str) -> None:
        for segment in key.split("/"):
            # Where names are those of files, servers may take a backslash for a slash, and %2e for a dot.
            plain = segment if self._objects.creation in _ANY_NAME else unquote(segment).replace("\\", "/")
            if plain in ("", ".", "..") or "\0" in plain or "/" in plain:
                raise self.refused(self.url, f"key {key!r} can't be the name of a file")

    def _checked(self, key: str, *, is_written: bool = False) -> str:
        """Return a key that leads to no other place by a link."""
        self.check_key(key)
        segments = key.split("/")
        for length in range(1, len(segments)):
            directory = "/".join(segments[:length])
            if directory not in self._no_links:
                self._check_no_link(directory)
                self._no_links.add(directory)
        if is_written and self._objects.creation == SINGLE_WRITER:  # others write beside, and rename
            self._check_no_link(key)
        return key

    def _check_no_link(self, path: str) -> None:
        if self._objects.is_link(path):
            raise self.refused(self.url, f"{path!r} is a link, which is not followed here: delete it")

    def read(self, key: str) -> bytes | None:
        try:
            return self._objects.get(self._checked(key))
        except (FileNotFoundError, IsADirectoryError):
            return None

    def write(self, key: str, content: Buffer) -> None:
        self._objects.put(self._checked(key, is_written=True), [content])

    def delete(self, keys: Sequence[str]) -> None:
        self._objects.delete([self._checked(key) for key in keys])

    def list(self, path: str = "") -> Iterator[str]:
        directories = [self._checked(path) if path else ""]
        while directories:
            directory = directories.pop()
            for found in self._objects.list(directory):
                key = f"{directory}/{found.name}" if directory else found.name
                # An empty object and a directory look alike, and to delete a key that is none is no error.
                if found.size == 0 and found.modified is None and not self._objects.is_link(key):
                    directories.append(key)
                else:
                    yield key

    def sync(self) -> None:
        pass

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        yield  # there are no locks: a publisher that finds another's state aborts

    def place(self) -> dict[str, Any]:
        return {"url": self.url}

    def write_marker(self, key: str, content: bytes) -> None:
        self.write(key, content)

    def read_marker(self, key: str) -> bytes | None:
        self._check_no_link(key)
        return self.read(key)


Destination = LocalDestination | ObjectDestination

"""Objects as files of an SMB server, through smbprotocol, which fsspec's own class uses, too.

fsspec's class is not used: it opens a file so that no other client can open it meanwhile, sends one request for each
listed name, and shares its connections among all threads of a process and its forked children.

smbprotocol grants a fixed number of requests to a connection, and closes no connection. So a process has few
connections to each server, and one thread uses each. These threads are ours: smbprotocol's exceptions are parts of
reference cycles, and would keep the caller's frame alive for a while, with its snapshots for example.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from txstore import processes
from txstore.storage.objects.backend import ABANDONED_SECONDS, PARTIAL, Object, Objects, joined
from txstore.storage.objects.errors import chain

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

#: What fsspec's class and smbclient both have.
OPTIONS = ("username", "password", "encrypt")
#: Of one process to one server.
CONNECTIONS = 4
_SHARED = "rwd"  # others may read a file, write it, and put another in its place, while it is open


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Raise Python's own errors: smbprotocol's have the number, but not the class that goes with it, or no number."""
    try:
        yield
    except (OSError, ValueError) as error:
        plain = _plain(error)
        if plain is None:
            raise
        try:
            raise plain from None
        finally:
            del plain  # or it would be part of a cycle


def _plain(error: OSError | ValueError) -> OSError | None:
    if isinstance(error, ValueError):
        return ConnectionError(str(error)) if str(error).startswith("Failed to connect") else None
    if any(type(each).__name__ == "BadNetworkName" for each in chain(error)):  # it says that there is no such file
        return OSError(errno.EIO, "'STATUS_BAD_NETWORK_NAME'")
    if type(error).__module__.startswith("smbprotocol") and error.errno:
        return OSError(error.errno, error.strerror)
    return None


#: The threads of this process, by what their connections are made with.
_threads: dict[tuple[Any, ...], ThreadPoolExecutor] = {}
_starting = processes.new_lock()
_mine = threading.local()  # the connection of a thread


def _threads_for(host: str, how: Mapping[str, Any]) -> ThreadPoolExecutor:
    with _starting:
        known = os.getpid(), host, *sorted(how.items())
        if known not in _threads:
            _threads[known] = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="txstore smb", initializer=_begin)
        return _threads[known]


def _begin() -> None:
    _mine.cache = {}


class SmbBackend:
    """Files below a directory of a share. They are written below `.partial/`, and renamed, which does not replace."""

    await_range = None
    versions_begun = 0
    versions = None

    def __init__(self, options: Mapping[str, Any], root: str) -> None:
        import smbclient
        import smbclient.path

        self._smb = smbclient
        self._root: str = "\\\\" + options["host"] + "\\" + root.strip("/").replace("/", "\\")
        self._how = {name: options[name] for name in OPTIONS if name in options}
        self._how |= {"port": int(options.get("port") or 445), "connection_timeout": int(options.get("timeout") or 60)}
        self._threads = _threads_for(options["host"], self._how)
        self._swept = False

    def _file(self, path: str) -> str:
        return self._root + "\\" + path.replace("/", "\\") if path else self._root

    def _run(self, function: Callable[..., T], *args: Any) -> T:
        """Return what a function makes of its arguments, and of the arguments that all requests have."""
        return self._threads.submit(self._run_here, function, *args).result()

    def _run_here(self, function: Callable[..., T], *args: Any) -> T:
        with _plain_errors():
            return function({**self._how, "connection_cache": _mine.cache}, *args)

    # --- reading

    @contextlib.contextmanager
    def _opened(self, how: Mapping[str, Any], path: str) -> Iterator[tuple[Any, int]]:
        """Open a file for reading; yield it and its size."""
        with self._smb.open_file(self._file(path), mode="rb", buffering=0, share_access=_SHARED, **how) as file:
            yield file, file.fd.end_of_file

    def get(self, path: str) -> bytes:
        return self._run(self._get, path)

    def _get(self, how: Mapping[str, Any], path: str) -> bytes:
        with self._opened(how, path) as (file, size):
            return _read(file, size)

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        return self.get_ranges(path, [(offset, length)])[0]

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._run(self._get_ranges, path, ranges)

    def _get_ranges(self, how: Mapping[str, Any], path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        found = []
        with self._opened(how, path) as (file, size):
            for offset, length in ranges:
                file.seek(offset)
                found.append(_read(file, min(length, max(size - offset, 0))))
        return found

    def get_tail(self, path: str, length: int) -> tuple[bytes, int]:
        return self._run(self._get_tail, path, length)

    def _get_tail(self, how: Mapping[str, Any], path: str, length: int) -> tuple[bytes, int]:
        with self._opened(how, path) as (file, size):
            file.seek(max(size - length, 0))
            return _read(file, min(length, size)), size

    def list(self, directory: str) -> list[Object]:
        return self._run(self._list, directory)

    def _list(self, how: Mapping[str, Any], directory: str) -> Objects:
        try:
            with _plain_errors():
                entries = list(self._smb.scandir(self._file(directory), **how))
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = []
        for entry in entries:
            if entry.is_dir():
                if directory or entry.name != PARTIAL:
                    found.append(Object(entry.name, 0, None))
            else:
                about = entry.smb_info
                found.append(Object(entry.name, about.end_of_file, about.last_write_time.timestamp()))
        return found

    def list_after(self, directory: str, name: str, limit: int) -> Objects | None:
        return None

    def is_link(self, path: str) -> bool:
        return self._run(self._is_link, path)

    def _is_link(self, how: Mapping[str, Any], path: str) -> bool:
        return bool(self._smb.path.islink(self._file(path), **how))

    # --- writing

    def put(self, path: str, parts: Sequence[Buffer]) -> None:
        self._run(self._write, path, joined(parts), self._smb.replace)

    def create(self, path: str, parts: Sequence[Buffer]) -> None:
        self._run(self._write, path, joined(parts), self._smb.rename)

    def _write(self, how: Mapping[str, Any], path: str, content: Buffer, move: Callable[..., None]) -> None:
        with self._written(how, content) as partial:
            try:
                with _plain_errors():
                    move(partial, self._file(path), **how)
            except FileNotFoundError:
                directory = self._file(posixpath.dirname(path))
                self._smb.makedirs(directory, exist_ok=True, **how)
                if not self._smb.path.isdir(directory, **how):
                    raise NotADirectoryError(directory) from None
                move(partial, self._file(path), **how)

    @contextlib.contextmanager
    def _written(self, how: Mapping[str, Any], content: Buffer) -> Iterator[str]:
        """Yield the name of a partial file with this content, which goes away if it is not moved."""
        partial = self._file(f"{PARTIAL}/{uuid.uuid4().hex}")
        try:
            try:
                with _plain_errors():
                    file = self._smb.open_file(partial, mode="xb", buffering=0, **how)
            except FileNotFoundError:
                self._smb.makedirs(self._file(PARTIAL), exist_ok=True, **how)
                file = self._smb.open_file(partial, mode="xb", buffering=0, **how)
            with file:
                left = memoryview(content).cast("B")
                while left:
                    left = left[file.write(left) :]
                file.flush()  # to the server's disk
            if not self._swept:
                self._sweep(how, float(self._smb.stat(partial, **how).st_mtime))
            yield partial
        except BaseException:
            with contextlib.suppress(OSError, ValueError):
                self._smb.remove(partial, **how)
            raise

    def _sweep(self, how: Mapping[str, Any], now: float) -> None:
        """Delete the partial files of killed writers."""
        self._swept = True
        for entry in self._smb.scandir(self._file(PARTIAL), **how):
            if entry.smb_info.last_write_time.timestamp() < now - ABANDONED_SECONDS:
                with contextlib.suppress(OSError):
                    self._smb.remove(self._file(f"{PARTIAL}/{entry.name}"), **how)

    def delete(self, paths: Sequence[str]) -> None:
        self._run(self._delete, paths)

    def _delete(self, how: Mapping[str, Any], paths: Sequence[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError), _plain_errors():
                self._smb.remove(self._file(path), **how)

    def now(self) -> float:
        """Return the time of a new file: SMB has no clock."""
        return self._run(self._now)

    def _now(self, how: Mapping[str, Any]) -> float:
        with self._written(how, b"-") as partial:
            time = float(self._smb.stat(partial, **how).st_mtime)
            self._smb.remove(partial, **how)
            return time


def _read(file: Any, length: int) -> bytes:
    """Read `length` bytes from where a file stands; a server gives some at a time."""
    parts = []
    while length > 0:
        part = file.read(length)
        if not part:
            break
        parts.append(part)
        length -= len(part)
    return b"".join(parts)

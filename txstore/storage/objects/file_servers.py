"""Files of a file server as objects: of an SSH server by SFTP, of a Windows or Samba server by SMB.

A writer creates a file below `.partial/`, syncs it, and renames it: under its final name, readers would see it grow.

| | replaces by | creates exclusively by | syncs by | at once |
|---|---|---|---|---|
| SFTP | `posix-rename` | the plain rename, a link in OpenSSH | `fsync@openssh.com`, if the server can | 8 channels |
| SMB | a rename that replaces | a rename that does not | flush | 4 connections |

All of these are atomic, but for one: on a file system without links, such as FAT, the plain rename of OpenSSH first
looks whether the target exists.

fsspec opens the connection of SFTP. Its own methods are not used: none of its classes has both renames, or a sync. Its
class for SFTP has one channel, which serves one thread at a time. Its class for SMB opens a file so that no other
client can open it meanwhile, sends one request for each listed name, and shares its connections among all threads of a
process and its forked children.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import stat
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from txstore import processes
from txstore.storage.objects.backend import ABANDONED_SECONDS, PARTIAL, Object, Objects, as_bytes, joined
from txstore.storage.objects.errors import chain

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

#: Of SFTP: channels of a connection, as many as OpenSSH allows less two; bytes that one request reads at most.
CHANNELS, PIECE = 8, 32768
ANSWER_SECONDS = 60.0
CMD_EXTENDED = 200  # of the protocol

#: Of SMB: connections of one process to one server; what fsspec's class and smbclient both have.
CONNECTIONS = 4
OPTIONS = ("username", "password", "encrypt")
_SHARED = "rwd"  # others may read a file, write it, and put another in its place, while it is open


class FileServer(ABC):
    """Files below a directory of a server. A `link` is what one thread at a time sends its requests through."""

    await_range = None
    versions_begun = 0
    versions = None

    def __init__(self, root: str, separator: str) -> None:
        self._root = root
        self._separator = separator
        self._swept = False

    def _file(self, path: str) -> str:
        return f"{self._root}/{path}".rstrip("/").replace("/", self._separator) or "/"

    # --- what differs

    @abstractmethod
    def _run(self, function: Callable[..., T], *args: Any) -> T:
        """Return what a function makes of a link and of its other arguments."""

    @abstractmethod
    def _read(
        self, link: Any, file: str, choose: Callable[[int], Sequence[tuple[int, int]]]
    ) -> tuple[list[bytes], int]:
        """Return the ranges of a file that are chosen by its size, and the size. They lie within the file."""

    @abstractmethod
    def _entries(self, link: Any, directory: str) -> list[Object]:
        """List a directory. Raises `FileNotFoundError`, and `NotADirectoryError`."""

    @abstractmethod
    def _is_link(self, link: Any, file: str) -> bool: ...

    @abstractmethod
    def _write_new(self, link: Any, file: str, content: Buffer) -> float:
        """Write and sync a file that does not exist; return its time."""

    @abstractmethod
    def _rename(self, link: Any, file: str, target: str, *, replaces: bool) -> None:
        """Raises `FileExistsError` if it does not replace, and the target exists."""

    @abstractmethod
    def _make_directories(self, link: Any, directory: str) -> None: ...

    @abstractmethod
    def _remove(self, link: Any, file: str) -> None: ...

    # --- reading

    def get(self, path: str) -> bytes:
        return self._run(self._read, self._file(path), lambda size: [(0, size)])[0][0]

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        return self.get_ranges(path, [(offset, length)])[0]

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        def choose(size: int) -> list[tuple[int, int]]:
            return [(offset, max(0, min(length, size - offset))) for offset, length in ranges]

        return self._run(self._read, self._file(path), choose)[0]

    def get_tail(self, path: str, length: int) -> tuple[bytes, int]:
        (tail,), size = self._run(
            self._read, self._file(path), lambda size: [(max(size - length, 0), min(length, size))]
        )
        return tail, size

    def list(self, directory: str) -> list[Object]:
        try:
            found = self._run(self._entries, self._file(directory))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [each for each in found if directory or each.name != PARTIAL]

    def list_after(self, directory: str, name: str, limit: int) -> Objects | None:
        return None

    def is_link(self, path: str) -> bool:
        return self._run(self._is_link, self._file(path))

    # --- writing

    def put(self, path: str, parts: Sequence[Buffer]) -> None:
        self._run(self._write, self._file(path), joined(parts), True)

    def create(self, path: str, parts: Sequence[Buffer]) -> None:
        self._run(self._write, self._file(path), joined(parts), False)

    def _write(self, link: Any, target: str, content: Buffer, replaces: bool) -> None:
        with self._written(link, content) as (partial, _):
            try:
                self._rename(link, partial, target, replaces=replaces)
            except FileNotFoundError:
                self._make_directories(link, target.rpartition(self._separator)[0])
                self._rename(link, partial, target, replaces=replaces)

    @contextlib.contextmanager
    def _written(self, link: Any, content: Buffer) -> Iterator[tuple[str, float]]:
        """Yield name and time of a partial file with this content, which goes away if it is not moved."""
        partial = self._file(f"{PARTIAL}/{uuid.uuid4().hex}")
        try:
            try:
                time = self._write_new(link, partial, content)
            except FileNotFoundError:
                self._make_directories(link, self._file(PARTIAL))
                time = self._write_new(link, partial, content)
            if not self._swept:
                self._sweep(link, time)
            yield partial, time
        except Exception:
            with contextlib.suppress(OSError, EOFError, ValueError):
                self._remove(link, partial)
            raise

    def _sweep(self, link: Any, now: float) -> None:
        """Delete the partial files of killed writers."""
        self._swept = True
        for entry in self._entries(link, self._file(PARTIAL)):
            if entry.modified is not None and entry.modified < now - ABANDONED_SECONDS:
                with contextlib.suppress(OSError):
                    self._remove(link, self._file(f"{PARTIAL}/{entry.name}"))

    def delete(self, paths: Sequence[str]) -> None:
        self._run(self._delete, paths)

    def _delete(self, link: Any, paths: Sequence[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self._remove(link, self._file(path))

    def now(self) -> float:
        """Return the time of a new file: the protocols have no clock."""
        return self._run(self._now)

    def _now(self, link: Any) -> float:
        with self._written(link, b"-") as (partial, time):
            self._remove(link, partial)
            return time


class SftpServer(FileServer):
    """A link is a channel of paramiko."""

    def __init__(self, connect: Callable[[], Any], root: str) -> None:
        super().__init__(root.rstrip("/"), "/")
        self._connect = connect
        self._lock = threading.Lock()
        self._fs: Any = None
        self._idle: queue.LifoQueue[Any] = queue.LifoQueue()
        self._slots = threading.BoundedSemaphore(CHANNELS)
        self._syncs = True  # until the server says that it can't
        processes.watch(self)

    def after_fork_in_child(self) -> None:
        # What the child would say when it is finalized, it would say to the parent's server.
        if self._fs is not None and (transport := self._fs.client.get_transport()) is not None:
            transport.active = False
            transport.sock.close()

    def _run(self, function: Callable[..., T], *args: Any) -> T:
        with self._slots:
            channel = self._take()
            try:
                found = function(channel, *args)
            except OSError as error:
                # After a time-out an answer may still come, with no thread to take it.
                if isinstance(error, ConnectionError | TimeoutError) or channel.sock.closed:
                    _drop(channel)
                else:
                    self._idle.put(channel)
                raise
            except BaseException:
                _drop(channel)
                raise
            self._idle.put(channel)
            return found

    def _take(self) -> Any:
        while True:
            try:
                channel = self._idle.get_nowait()
            except queue.Empty:
                channel = self._connected().client.open_sftp()
                channel.get_channel().settimeout(ANSWER_SECONDS)
                return channel
            if not channel.sock.closed:
                return channel

    def _connected(self) -> Any:
        with self._lock:
            transport = self._fs.client.get_transport() if self._fs is not None else None
            if transport is None or not transport.is_active():
                self._fs = self._connect()
                self._fs.client.get_transport().set_keepalive(30)
            return self._fs

    def _read(
        self, link: Any, file: str, choose: Callable[[int], Sequence[tuple[int, int]]]
    ) -> tuple[list[bytes], int]:
        with link.open(file, "rb") as opened:
            size = opened.stat().st_size
            ranges = choose(size)
            if len(ranges) == 1 and ranges[0][1] <= PIECE:
                opened.seek(ranges[0][0])
                return [opened.read(ranges[0][1])], size
            # All at once, in pieces of its own size: paramiko joins larger ones in quadratic time.
            cut = [
                [(at, min(PIECE, offset + length - at)) for at in range(offset, offset + length, PIECE)]
                for offset, length in ranges
            ]
            found = opened.readv([piece for pieces in cut for piece in pieces])
            return [b"".join(next(found) for _ in pieces) for pieces in cut], size

    def _entries(self, link: Any, directory: str) -> list[Object]:
        try:
            entries = link.listdir_attr(directory)
        except FileNotFoundError:
            raise
        except OSError:
            if stat.S_ISDIR(_mode(link, directory) or 0):
                raise
            raise NotADirectoryError(errno.ENOTDIR, "it is a file", directory) from None
        return [
            Object(entry.filename, 0, None)
            if stat.S_ISDIR(entry.st_mode)
            else Object(entry.filename, entry.st_size, float(entry.st_mtime))
            for entry in entries
        ]

    def _is_link(self, link: Any, file: str) -> bool:
        try:
            return stat.S_ISLNK(link.lstat(file).st_mode)
        except FileNotFoundError:
            return False

    def _write_new(self, link: Any, file: str, content: Buffer) -> float:
        with link.open(file, "wbx") as opened:
            opened.set_pipelined(True)
            opened.write(as_bytes(content))
            if self._syncs:  # paramiko has no method for it
                try:
                    link._request(CMD_EXTENDED, b"fsync@openssh.com", opened.handle)
                except OSError as error:
                    if error.errno is not None:
                        raise
                    self._syncs = False
            return float(opened.stat().st_mtime)

    def _rename(self, link: Any, file: str, target: str, *, replaces: bool) -> None:
        if replaces:
            link.posix_rename(file, target)
            return
        try:
            link.rename(file, target)
        except (FileNotFoundError, PermissionError, ConnectionError):
            raise
        except OSError:
            # The protocol has no number for "exists": what is there says why it was refused.
            if _mode(link, target) is not None:
                raise FileExistsError(errno.EEXIST, "it exists already", target) from None
            raise

    def _make_directories(self, link: Any, directory: str) -> None:
        above = directory.rpartition("/")[0]
        if above and _mode(link, above) is None:
            self._make_directories(link, above)
        try:
            link.mkdir(directory)
        except OSError:
            mode = _mode(link, directory)
            if mode is None:
                raise
            if not stat.S_ISDIR(mode):  # else somebody else has made it
                raise NotADirectoryError(errno.ENOTDIR, "a file stands where a directory is needed") from None

    def _remove(self, link: Any, file: str) -> None:
        link.remove(file)


def _mode(channel: Any, file: str) -> int | None:
    """Return the type and permission bits of a file; None if it does not exist."""
    try:
        mode: int = channel.stat(file).st_mode
    except FileNotFoundError:
        return None
    return mode


def _drop(channel: Any) -> None:
    with contextlib.suppress(OSError, EOFError):
        channel.close()


# --- SMB


class SmbServer(FileServer):
    """A link is what all requests of a thread have as arguments.

    smbprotocol grants a fixed number of requests to a connection, and closes no connection. So a process has few
    connections to each server, and one thread uses each. These threads are ours: smbprotocol's exceptions are parts of
    reference cycles, and would keep the caller's frame alive for a while, with its snapshots for example.
    """

    def __init__(self, options: Mapping[str, Any], root: str) -> None:
        import smbclient.path

        super().__init__(f"//{options['host']}/{root.strip('/')}", "\\")
        self._smb = smbclient
        self._how = {name: options[name] for name in OPTIONS if name in options}
        self._how |= {"port": int(options.get("port") or 445), "connection_timeout": int(options.get("timeout") or 60)}
        self._threads = _threads_for(options["host"], self._how)

    def _run(self, function: Callable[..., T], *args: Any) -> T:
        return self._threads.submit(self._run_here, function, *args).result()

    def _run_here(self, function: Callable[..., T], *args: Any) -> T:
        with _plain_errors():
            return function({**self._how, "connection_cache": _mine.cache}, *args)

    def _read(
        self, link: Any, file: str, choose: Callable[[int], Sequence[tuple[int, int]]]
    ) -> tuple[list[bytes], int]:
        found = []
        with self._smb.open_file(file, mode="rb", buffering=0, share_access=_SHARED, **link) as opened:
            size = opened.fd.end_of_file
            for offset, length in choose(size):
                opened.seek(offset)
                parts, left = [], length
                while left > 0 and (part := opened.read(left)):  # a server gives some at a time
                    parts.append(part)
                    left -= len(part)
                found.append(b"".join(parts))
        return found, size

    def _entries(self, link: Any, directory: str) -> list[Object]:
        with _plain_errors():
            return [
                Object(entry.name, 0, None)
                if entry.is_dir()
                else Object(entry.name, entry.smb_info.end_of_file, entry.smb_info.last_write_time.timestamp())
                for entry in self._smb.scandir(directory, **link)
            ]

    def _is_link(self, link: Any, file: str) -> bool:
        return bool(self._smb.path.islink(file, **link))

    def _write_new(self, link: Any, file: str, content: Buffer) -> float:
        with _plain_errors():
            with self._smb.open_file(file, mode="xb", buffering=0, **link) as opened:
                left = memoryview(content).cast("B")
                while left:
                    left = left[opened.write(left) :]
                opened.flush()  # to the server's disk
            return float(self._smb.stat(file, **link).st_mtime)

    def _rename(self, link: Any, file: str, target: str, *, replaces: bool) -> None:
        with _plain_errors():
            (self._smb.replace if replaces else self._smb.rename)(file, target, **link)

    def _make_directories(self, link: Any, directory: str) -> None:
        self._smb.makedirs(directory, exist_ok=True, **link)
        if not self._smb.path.isdir(directory, **link):
            raise NotADirectoryError(directory)

    def _remove(self, link: Any, file: str) -> None:
        with _plain_errors():
            self._smb.remove(file, **link)


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

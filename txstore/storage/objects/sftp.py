"""Files of an SSH server as objects: through fsspec's SFTP file system, which connects, and paramiko's client.

A writer creates a file below `.partial/` and renames it: under its final name, readers would see it grow. The plain
rename of SFTP fails if the target exists; `posix-rename` replaces it. OpenSSH does the first one by link and unlink,
which is exclusive. On file systems without links, such as FAT, it checks and then renames, which is not exclusive.

One connection has several channels, as many as OpenSSH allows less two; a channel serves one thread at a time.
"""

from __future__ import annotations

import contextlib
import errno
import queue
import stat
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from txstore import processes
from txstore.storage.objects.backend import ABANDONED_SECONDS, PARTIAL, Object, Objects, as_bytes, joined

if TYPE_CHECKING:
    from typing_extensions import Buffer

CHANNELS = 8
PIECE = 32768  # bytes: what one request of SFTP reads at most
ANSWER_SECONDS = 60.0
CMD_EXTENDED = 200  # of the protocol


def _pieces(offset: int, length: int) -> list[tuple[int, int]]:
    end = offset + length
    return [(start, min(PIECE, end - start)) for start in range(offset, end, PIECE)]


class SftpBackend:
    await_range = None
    versions_begun = 0
    versions = None

    def __init__(self, connect: Callable[[], Any], root: str) -> None:
        self._connect = connect
        self._root = root.rstrip("/")
        self._lock = threading.Lock()
        self._fs: Any = None
        self._idle: queue.LifoQueue[Any] = queue.LifoQueue()
        self._slots = threading.BoundedSemaphore(CHANNELS)
        self._swept = False
        self._syncs = True  # until the server says that it can't
        processes.watch(self)

    def after_fork_in_child(self) -> None:
        # What the child would say when it is finalized, it would say to the parent's server.
        if self._fs is not None and (transport := self._fs.client.get_transport()) is not None:
            transport.active = False
            transport.sock.close()

    # --- channels

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        with self._slots:
            channel = self._take()
            try:
                yield channel
            except OSError as error:
                # After a time-out an answer may still come, with no thread to take it.
                if isinstance(error, ConnectionError | TimeoutError) or channel.sock.closed:
                    self._drop(channel)
                else:
                    self._idle.put(channel)
                raise
            except BaseException:
                self._drop(channel)
                raise
            self._idle.put(channel)

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

    def _drop(self, channel: Any) -> None:
        with contextlib.suppress(OSError, EOFError):
            channel.close()

    def _file(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root or "/"

    # --- reading

    def get(self, path: str) -> bytes:
        with self._channel() as channel, channel.open(self._file(path), "rb") as file:
            return self._read(file, [(0, file.stat().st_size)])[0]

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        return self.get_ranges(path, [(offset, length)])[0]

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        with self._channel() as channel, channel.open(self._file(path), "rb") as file:
            size = file.stat().st_size
            return self._read(file, [(offset, max(0, min(length, size - offset))) for offset, length in ranges])

    def get_tail(self, path: str, length: int) -> tuple[bytes, int]:
        with self._channel() as channel, channel.open(self._file(path), "rb") as file:
            size: int = file.stat().st_size
            length = min(length, size)
            return self._read(file, [(size - length, length)])[0], size

    def _read(self, file: Any, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges that lie within the file, all at once."""
        if len(ranges) == 1 and ranges[0][1] <= PIECE:
            file.seek(ranges[0][0])
            return [file.read(ranges[0][1])]
        cut = [_pieces(offset, length) for offset, length in ranges]
        # Asked for in pieces of its own size: paramiko joins larger ones in quadratic time.
        found = file.readv([piece for pieces in cut for piece in pieces])
        return [b"".join(next(found) for _ in pieces) for pieces in cut]

    def list(self, directory: str) -> list[Object]:
        with self._channel() as channel:
            try:
                entries = channel.listdir_attr(self._file(directory))
            except FileNotFoundError:
                return []
            except OSError:
                if not self._is_directory(channel, self._file(directory)):
                    return []
                raise
        found = []
        for entry in entries:
            if stat.S_ISDIR(entry.st_mode):
                if directory or entry.filename != PARTIAL:
                    found.append(Object(entry.filename, 0, None))
            else:
                found.append(Object(entry.filename, entry.st_size, float(entry.st_mtime)))
        return found

    def _is_directory(self, channel: Any, file: str) -> bool:
        try:
            return stat.S_ISDIR(channel.stat(file).st_mode)
        except FileNotFoundError:
            return False

    def list_after(self, directory: str, name: str, limit: int) -> Objects | None:
        return None

    def is_link(self, path: str) -> bool:
        with self._channel() as channel:
            try:
                return stat.S_ISLNK(channel.lstat(self._file(path)).st_mode)
            except FileNotFoundError:
                return False

    # --- writing

    def put(self, path: str, parts: Sequence[Buffer]) -> None:
        with self._channel() as channel, self._written(channel, joined(parts)) as partial:
            self._move(channel.posix_rename, channel, partial, path)

    def create(self, path: str, parts: Sequence[Buffer]) -> None:
        with self._channel() as channel, self._written(channel, joined(parts)) as partial:
            try:
                self._move(channel.rename, channel, partial, path)
            except (FileNotFoundError, PermissionError, ConnectionError):
                raise
            except OSError:
                # The protocol has no number for "exists": what is there says why it was refused.
                if self._exists(channel, self._file(path)):
                    raise FileExistsError(errno.EEXIST, "it exists already", path) from None
                raise

    @contextmanager
    def _written(self, channel: Any, content: Buffer) -> Iterator[str]:
        """Yield the name of a partial file with this content, which goes away if it is not moved."""
        partial = f"{self._file(PARTIAL)}/{uuid.uuid4().hex}"
        try:
            file = channel.open(partial, "wbx")
        except FileNotFoundError:
            self._make_directories(channel, self._file(PARTIAL))
            file = channel.open(partial, "wbx")
        try:
            with file:
                file.set_pipelined(True)
                file.write(as_bytes(content))
                self._sync(channel, file)
                if not self._swept:
                    self._sweep(channel, file.stat().st_mtime)
            yield partial
        except OSError:
            with contextlib.suppress(OSError, EOFError):
                channel.remove(partial)
            raise

    def _sync(self, channel: Any, file: Any) -> None:
        """Make the content durable, if the server can. paramiko has no method for it."""
        if self._syncs:
            try:
                channel._request(CMD_EXTENDED, b"fsync@openssh.com", file.handle)
            except OSError as error:
                if error.errno is not None:
                    raise
                self._syncs = False

    def _move(self, rename: Callable[[str, str], None], channel: Any, partial: str, path: str) -> None:
        target = self._file(path)
        try:
            rename(partial, target)
        except FileNotFoundError:
            self._make_directories(channel, target.rpartition("/")[0])
            rename(partial, target)

    def _make_directories(self, channel: Any, directory: str) -> None:
        above = directory.rpartition("/")[0]
        if above and not self._exists(channel, above):
            self._make_directories(channel, above)
        try:
            channel.mkdir(directory)
        except OSError:
            if not self._is_directory(channel, directory):  # somebody else has made it
                if self._exists(channel, directory):
                    raise NotADirectoryError(errno.ENOTDIR, "a file stands where a directory is needed") from None
                raise

    def _exists(self, channel: Any, file: str) -> bool:
        try:
            channel.stat(file)
        except FileNotFoundError:
            return False
        return True

    def _sweep(self, channel: Any, now: float) -> None:
        """Delete the partial files of killed writers."""
        self._swept = True
        for entry in channel.listdir_attr(self._file(PARTIAL)):
            if entry.st_mtime < now - ABANDONED_SECONDS:
                with contextlib.suppress(OSError):
                    channel.remove(f"{self._file(PARTIAL)}/{entry.filename}")

    def delete(self, paths: Sequence[str]) -> None:
        with self._channel() as channel:
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    channel.remove(self._file(path))

    def now(self) -> float:
        """Return the time of a new file: SFTP has no clock."""
        with self._channel() as channel, self._written(channel, b"-") as partial:
            time = float(channel.stat(partial).st_mtime)
            channel.remove(partial)
            return time

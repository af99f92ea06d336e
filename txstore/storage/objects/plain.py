"""Objects as files of any fsspec file system, and of fsspec's own memory."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from txstore import processes
from txstore.storage.objects.backend import Object, Objects, above, as_bytes, joined

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _InTurns:
    """A file system that may have one connection, such as FTP's: two threads would get each other's bytes."""

    def __init__(self, filesystem: Any) -> None:
        self._fs, self._lock = filesystem, processes.new_lock()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._fs, name)

        def alone(*arguments: Any, **named: Any) -> Any:
            with self._lock:
                return found(*arguments, **named)

        return alone if callable(found) else found


class PlainBackend:
    """Any file system of fsspec: it creates nothing exclusively, and writes nothing in one step."""

    await_range = None
    versions_begun = 0
    versions = None

    def __init__(self, filesystem: Any, root: str) -> None:
        self._fs = filesystem if filesystem.async_impl else _InTurns(filesystem)
        self._root = root.rstrip("/")

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

    def is_link(self, path: str) -> bool:
        try:
            found = self.info(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return found.get("type") == "link" or bool(found.get("islink"))

    # --- writing

    def put(self, path: str, parts: Sequence[Buffer]) -> None:
        with contextlib.suppress(NotImplementedError):
            self._fs.makedirs(self._file(path).rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(self._file(path), as_bytes(joined(parts)))

    def create(self, path: str, parts: Sequence[Buffer]) -> None:
        raise NotImplementedError  # there is no way that is known: `client` looks, and puts

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._file(path))

    def now(self) -> float:
        return time.time()  # of the one that writes, if anybody does


#: One for all: fsspec's memory is one for the process, and its files have one position.
_memory_lock = processes.new_lock()


class MemoryBackend(PlainBackend):
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

    def is_link(self, path: str) -> bool:
        return False

    def put(self, path: str, parts: Sequence[Buffer]) -> None:
        with _memory_lock:
            self._put(path, parts)

    def _put(self, path: str, parts: Sequence[Buffer]) -> None:
        try:
            self._fs.pipe_file(self._file(path), bytes(joined(parts)))
        except FileExistsError:  # what it says of a part of the path that is a file
            raise NotADirectoryError(path) from None

    def create(self, path: str, parts: Sequence[Buffer]) -> None:
        with _memory_lock:
            if self._file(path) in self._fs.store:
                raise FileExistsError(path)
            self._put(path, parts)

    def delete(self, paths: Sequence[str]) -> None:
        with _memory_lock:
            for path in paths:
                self._fs.store.pop(self._file(path), None)


def _modified(entry: dict[str, Any]) -> float | None:
    """Return when an entry of a listing was written, in seconds since 1970; None if it does not say."""
    for name in ("mtime", "last_modified", "LastModified", "modified", "updated", "created", "last_write_time"):
        value = entry.get(name)
        if isinstance(value, datetime.datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None

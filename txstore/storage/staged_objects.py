"""The objects that a process collects in memory before it creates them: see `remote`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from txstore import processes

if TYPE_CHECKING:
    from typing_extensions import Buffer


class StagedObject:
    """The content of an object before it is created. Safe in threads; a forked child has its own copy."""

    def __init__(self) -> None:
        self._content = bytearray()

    @property
    def content(self) -> bytearray:
        return self._content

    def write(self, offset: int, parts: Sequence[Buffer]) -> None:
        content = self._content
        if offset > len(content):
            content.extend(bytes(offset - len(content)))
        for part in parts:
            view = memoryview(part).cast("B") if memoryview(part).nbytes else b""
            content[offset : offset + len(view)] = view
            offset += len(view)

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self._content[offset : offset + length])

    def allocate(self, offset: int, length: int) -> None:
        """Nothing is gained by it here."""

    def start_writeback(self, offset: int, length: int) -> None:
        """It goes to the server as a whole."""

    def truncate(self, length: int) -> None:
        del self._content[length:]

    def sync(self) -> None:
        """The content is durable once the object exists."""

    def close(self) -> None:
        """It stays until it was moved or deleted."""


class StagedObjects:
    """The staged objects of one storage, by their paths. Safe in threads."""

    def __init__(self) -> None:
        self._staged: dict[str, StagedObject] = {}
        self._lock = processes.new_lock()

    def new(self, path: str) -> StagedObject:
        """Begin an object. Raises `FileExistsError` if this process has one with this path."""
        with self._lock:
            if path in self._staged:
                raise FileExistsError(f"{path} is being written")
            staged = self._staged[path] = StagedObject()
        return staged

    def get(self, path: str) -> StagedObject | None:
        return self._staged.get(path)

    def read(self, path: str) -> bytes:
        """Return what is staged under a path; nothing if there is no such object."""
        staged = self._staged.get(path)
        return b"" if staged is None else bytes(staged.content)

    def forget(self, path: str) -> bool:
        """Drop what is staged under a path; return whether there was anything."""
        with self._lock:
            return self._staged.pop(path, None) is not None

"""Buffers what is written once, piece by piece, and then read: in memory while it is small, then in a file.

The file lies below `.staging/`. If its process is killed, the next process that looks for abandoned files deletes it.
The file has no name any more when it is read, and takes disk space until the last reader drops the content.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from txstore.format import names
from txstore.storage.interface import Mapped, StagedFile, Storage

#: What is longer goes to a file, in bytes.
IN_MEMORY = 1 << 20


def spooled(storage: Storage | None, make: Callable[[Callable[[bytes], object]], object]) -> Mapped:
    """Return what `make` writes by calling what it is given. Without a storage, all of it stays in memory."""
    spool = _Spool(storage)
    try:
        make(spool.write)
        return spool.content()
    finally:
        spool.close()


class _Spool:
    def __init__(self, storage: Storage | None) -> None:
        # Where files are not mapped, one would be read into memory again.
        self._storage = storage if storage is not None and storage.ranges is None else None
        self._path = ""
        self._file: StagedFile | None = None
        self._length = 0
        self._memory: bytes | bytearray = b""  # all that was written, if there is no file

    def write(self, piece: bytes) -> None:
        if self._file is None and self._storage is not None and self._length + len(piece) > IN_MEMORY:
            self._begin_file(self._storage)
        if self._file is not None:
            try:
                self._file.write(self._length, [piece])
            except OSError:  # a disk that is full must not keep anybody from committing what fits
                self._memory = bytearray(self._file.read(0, self._length))
                self._give_up()
        if self._file is None:
            if not self._memory:
                self._memory = piece  # as a rule, there is no other
            else:
                if isinstance(self._memory, bytes):
                    self._memory = bytearray(self._memory)
                self._memory += piece
        self._length += len(piece)

    def _begin_file(self, storage: Storage) -> None:
        self._path = f"{names.STAGING}/{os.urandom(8).hex()}{names.NEW}"
        try:
            self._file = storage.create(self._path)
            self._file.write(0, [self._memory])
        except OSError:
            self._give_up()
        else:
            self._memory = b""

    def _give_up(self) -> None:
        self.close()
        self._storage = None

    def content(self) -> Mapped:
        if self._file is None or self._storage is None:
            return self._memory
        return self._storage.map(self._path)

    def close(self) -> None:
        """Delete the file, if there is one. What was mapped of it stays."""
        file, self._file = self._file, None
        if file is not None and self._storage is not None:
            file.close()
            with contextlib.suppress(OSError):  # the next process that looks for abandoned files deletes it
                self._storage.delete(self._path)

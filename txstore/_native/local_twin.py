"""The Python twin of `_local.c`: the same functions where the extension was not built.

Slower, and less in three places, none of which changes what is stored or read: `allocate` and `start_writeback` do
nothing, and before Python 3.13 a mapped file keeps a descriptor for as long as it is mapped.
"""

from __future__ import annotations

import errno
import mmap
import operator
import os
import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import google_crc32c
import numpy as np

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

IMPLEMENTATION: Literal["c", "python"] = "python"

# An empty file can't be mapped.
MappedFile: TypeAlias = mmap.mmap | bytes

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def crc32c(buffer: ReadableBuffer, value: int = 0, /) -> int:
    """Return the CRC-32C of a contiguous buffer, continued from `value`.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    >>> crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
    True
    """
    # google_crc32c takes bytes, and arrays: no other buffer. An array over one copies nothing.
    data: Any = buffer if isinstance(buffer, bytes) else np.frombuffer(buffer, np.uint8)
    extended: int = google_crc32c.extend(_checksum(value), data)
    return extended


def map_file(path: str, /) -> MappedFile:
    """Map a whole file read-only. The mapping goes when the last view of it does."""
    fd = os.open(path, _FLAGS)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            number = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
            raise OSError(number, os.strerror(number), path)
        if status.st_size == 0:
            return b""
        try:
            if sys.platform != "win32" and sys.version_info >= (3, 13):
                return mmap.mmap(fd, status.st_size, access=mmap.ACCESS_READ, trackfd=False)
            return mmap.mmap(fd, status.st_size, access=mmap.ACCESS_READ)
        except OSError as error:
            error.filename = path
            raise
    finally:
        os.close(fd)


def view(buffer: ReadableBuffer, offset: int, length: int, checksum: int, /) -> memoryview:
    """Return the slice of a buffer as a read-only memoryview, once its bounds and CRC-32C are checked.

    Raises ValueError, "out of bounds: ..." or "checksum mismatch: ...".

    >>> bytes(view(b"..123456789..", 2, 9, 0xE3069283))
    b'123456789'
    """
    stored = _checksum(checksum)
    whole = memoryview(buffer).cast("B")
    size = len(whole)
    if offset < 0 or length < 0 or offset + length > size:
        raise ValueError(f"out of bounds: offset {offset}, length {length} in a buffer of {size} bytes")
    part = whole[offset : offset + length].toreadonly()
    computed = crc32c(part)
    if computed != stored:
        raise ValueError(f"checksum mismatch: stored 0x{stored:08x}, computed 0x{computed:08x}")
    return part


def rename_noreplace(source: str, target: str, /) -> None:
    """Rename a file; FileExistsError if the target exists. Atomic."""
    if sys.platform == "win32":
        os.rename(source, target)
        return
    os.link(source, target)
    # The target is taken, which is what counts. A source left behind is what a crash right here leaves, too.
    with suppress(OSError):
        os.unlink(source)


def allocate(_fd: int, offset: int, length: int, /) -> bool:
    """Return False: without the extension there is no allocating without writing zeros."""
    _check_range(offset, length)
    return False


def start_writeback(_fd: int, offset: int, length: int, /) -> None:
    """Do nothing: a hint, and Python has no way to give it."""
    _check_range(offset, length)


def _checksum(value: int) -> int:
    value = operator.index(value)
    if not 0 <= value <= 0xFFFFFFFF:
        raise OverflowError(f"a CRC-32C has 32 bits, not {value}")
    return value


def _check_range(offset: int, length: int) -> None:
    if offset < 0 or length <= 0:
        raise ValueError("offset must be at least 0 and length at least 1")

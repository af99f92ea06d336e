"""The Python fallback of `_local.c`: the same functions if the extension was not built.

It is slower, and does less in four places. `allocate` and `start_writeback` do nothing, `open_watch` is refused, and
before Python 3.13 a mapped file keeps a descriptor while it is mapped. None of this changes the bytes stored or read.
"""

from __future__ import annotations

import errno
import mmap
import operator
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

import google_crc32c
import numpy as np

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

IMPLEMENTATION: Literal["c", "python"] = "python"

# An empty file can't be mapped.
MappedFile: TypeAlias = mmap.mmap | bytes


_PATH: int = getattr(os, "O_PATH", 0)  # macOS has none
_ALWAYS = os.O_CLOEXEC | os.O_NOFOLLOW
_ANY_KIND = os.O_DIRECTORY | _PATH
_OF_FILES = os.O_NONBLOCK | os.O_NOCTTY
_PASSED_THROUGH = _PATH | os.O_DIRECTORY | _ALWAYS


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


class Descriptor:
    """An open file, which is closed at the end of a `with` block, or when no object refers to it any more.

    One function takes the number away and closes it, without a call in between, because Python handles Ctrl-C at the
    beginning of a function and after a call. A lost number keeps its file open, and the file's locks held, for ever.
    """

    _fd = -1  # also if `__init__` was interrupted

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """Return the number; -1 once it is closed."""
        return self._fd

    def close(self) -> None:
        """Close it, unless it is closed."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def detach(self) -> int:
        """Return the number, which the caller closes from now on."""
        fd, self._fd = self._fd, -1
        return fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def open_below(root: str, path: str, flags: int, mode: int = 0o666, /) -> Descriptor:
    """Open a path below a directory without following a link, segment by segment; see `open_below.h`."""
    whole = root + "/" + path if path != "" else root
    segments = path.split("/") if path else []
    if ".." in segments:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), whole)
    is_any_kind = bool(flags & _ANY_KIND)
    flags |= _ALWAYS | (0 if is_any_kind else _OF_FILES)
    try:
        fd = os.open(root, _PASSED_THROUGH if segments else flags, mode)
        for place, segment in enumerate(segments, start=1):
            above = fd
            try:
                fd = os.open(segment, flags if place == len(segments) else _PASSED_THROUGH, mode, dir_fd=above)
            finally:
                os.close(above)
    except OSError as error:
        error.filename = whole
        raise
    opened = Descriptor(fd)
    if not is_any_kind:
        kind = os.fstat(fd).st_mode
        if not stat.S_ISREG(kind):
            number = errno.EISDIR if stat.S_ISDIR(kind) else errno.EINVAL
            raise OSError(number, os.strerror(number), whole)
    return opened


def list_directory(root: str, path: str, /) -> list[str]:
    """Return the names in a directory below a root, as `open_below` opens it."""
    with open_below(root, path, os.O_RDONLY | os.O_DIRECTORY) as fd:
        return os.listdir(fd)


def map_file(root: str, path: str, /) -> MappedFile:
    """Map a whole file read-only. It is unmapped when its last view is collected."""
    with open_below(root, path, os.O_RDONLY) as fd:
        size = os.fstat(fd).st_size
        if size == 0:
            return b""
        try:
            if sys.version_info >= (3, 13):
                return mmap.mmap(fd, size, access=mmap.ACCESS_READ, trackfd=False)
            return mmap.mmap(fd, size, access=mmap.ACCESS_READ)
        except OSError as error:
            error.filename = f"{root}/{path}"
            raise


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


def rename_noreplace(root: str, source: str, target: str, /) -> None:
    """Rename a file below a root; FileExistsError if the target exists. Atomic."""
    try:
        with _above(root, source) as (source_fd, old), _above(root, target) as (target_fd, new):
            os.link(old, new, src_dir_fd=source_fd, dst_dir_fd=target_fd, follow_symlinks=False)
            # The target exists, so the rename has happened. A source left behind is harmless: a crash here leaves one
            # too.
            with suppress(OSError):
                os.unlink(old, dir_fd=source_fd)
    except OSError as error:
        error.filename, error.filename2 = root + "/" + source, root + "/" + target
        raise


@contextmanager
def _above(root: str, path: str) -> Iterator[tuple[int, str]]:
    """Open the parent directory of a path, for calls that take a directory and a name."""
    directory, _, name = path.rpartition("/")
    with open_below(root, directory, _PASSED_THROUGH) as fd:
        yield fd, name


def allocate(_fd: int, offset: int, length: int, /) -> bool:
    """Return False: Python alone can't allocate space without writing zeros."""
    _check_range(offset, length)
    return False


def start_writeback(_fd: int, offset: int, length: int, /) -> None:
    """Do nothing: this is only advice to the system, and Python has no call for it."""
    _check_range(offset, length)


def _checksum(value: int) -> int:
    value = operator.index(value)
    if not 0 <= value <= 0xFFFFFFFF:
        raise OverflowError(f"a CRC-32C has 32 bits, not {value}")
    return value


def _check_range(offset: int, length: int) -> None:
    if offset < 0 or length <= 0:
        raise ValueError("offset must be at least 0 and length at least 1")


def open_watch(path: str, /) -> NoReturn:
    """Raises OSError: Python itself has no call that watches a directory, so a follower has to poll."""
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), path)


def drain_watch(_descriptor: int, /) -> NoReturn:
    """Raises OSError: `open_watch` never returns a descriptor to drain."""
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

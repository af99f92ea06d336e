"""A disk cache of pack pieces: limited in bytes, shared by the processes of one user, and safe to lose.

Each piece is one file, `<xx>/<pack>/<offset>-<length>` in hexadecimal, with a header and a checksum. A process writes
it under another name and renames it, but never syncs it: after a power loss it may hold anything. A reader treats a
damaged file as missing and deletes it. A file that another process deletes before the read is missing, too. The cache
never touches files with other names: they may belong to another program.

Readers get the cached bytes as if the server had sent them. So no other user may own, write or read the directory, and
the cache does not follow links in it (`tree`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import struct
import time
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from txstore import processes
from txstore.format.encoding import MalformedError, checked, crc32c, with_checksum
from txstore.storage.tree import Tree, real_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Buffer

_PIECE = struct.Struct("<8sI16sQQI12x")  # magic, version, pack, offset, length, checksum of the content
_HEAD_SIZE = 64
assert _PIECE.size + 4 == _HEAD_SIZE
_MAGIC, _VERSION = b"TXSTPART", 1
_NEW = ".new"

#: What eviction leaves of the limit, and what a process writes before it looks again how much there is: four processes
#: that know nothing of one another stay below the limit.
_KEPT_SHARE, _WRITTEN_SHARE = 3 / 4, 1 / 32
#: No piece is larger than this share of the limit.
_PIECE_SHARE = 1 / 16
#: Seconds between two touches of one file: eviction needs the time of last use no more precisely.
_TOUCH_EVERY = 60
#: Seconds after which the cache deletes a file that a process was writing when it died.
_ABANDONED_AFTER = 3600
#: A listing stays valid while the directory keeps its time of change, if that time was at least this long before the
#: listing: file systems can't tell apart two changes that are closer together.
_LISTED_AFTER_NS = 100_000_000
_LISTINGS_MOST = 1024
_BLOCK = 4096  # what the last bytes of a file cost


class _Piece(NamedTuple):
    offset: int
    length: int


class _Listing(NamedTuple):
    """The pieces of one pack, ascending; none lies within another, so their ends ascend, too."""

    changed: int  # when the directory was, in nanoseconds; 0: look again in any case
    pieces: tuple[_Piece, ...]


class CacheDirectory:
    """Safe in threads, and used by several processes at once. `limit` is in bytes of disk space.

    Creates the directory, for this user alone, unless it exists. Raises `OSError` if it can't be used; whatever happens
    to it later is no error, but a cache that holds less.
    """

    def __init__(self, path: str, limit: int) -> None:
        if limit <= 0:
            raise ValueError(f"cache_size={limit}: it is in bytes, above 0; for no cache on disk leave cache_dir out")
        self.path = os.path.abspath(os.path.expanduser(path))
        self.limit = limit
        self._tree = Tree(self.path)
        self._listings: dict[bytes, _Listing] = {}
        self._written = limit  # since it was known how much there is
        self._lock = processes.new_lock()
        self._evicting = processes.new_lock()
        self._check_usable()

    def _check_usable(self) -> None:
        try:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            self._tree = Tree(real_path(self.path))
            status = self._tree.status("")
            probe = self._create(_new_name())
        except OSError as error:
            reason = (
                f"cache_dir can't be used ({error.strerror}): name a directory that this process may write, or none"
            )
            raise type(error)(error.errno, reason, self.path) from error
        self._tree.delete(probe)
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            reason = (
                "cache_dir is another user's, or others may write it, and so decide what is read: name a directory of "
                "your own, with chmod 700"
            )
            raise PermissionError(errno.EPERM, reason, self.path)

    def _create(self, path: str, *parts: Buffer) -> str:
        """Create a file for this user alone; return its path. What is written in part is deleted again."""
        descriptor = self._tree.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor.detach(), "wb") as file:
                for part in parts:
                    file.write(part)
        except BaseException:
            with contextlib.suppress(OSError):
                self._tree.delete(path)
            raise
        return path

    def find(self, pack_id: bytes, position: int) -> tuple[int, bytes] | None:
        """Return the piece that holds the byte at a position of a pack, and the offset where it begins."""
        piece = _at(self._listing(pack_id).pieces, position, position + 1)
        if piece is None:
            return None
        path = _file(pack_id, piece)
        try:
            with open(self._tree.open(path).detach(), "rb") as file:
                data = file.read()
                if abs(time.time() - os.fstat(file.fileno()).st_mtime) > _TOUCH_EVERY:
                    os.utime(file.fileno())
        except OSError:
            self._forget_listing(pack_id)
            return None
        content = _decode(data, pack_id, piece)
        if content is None:
            self._forget_listing(pack_id)
            with contextlib.suppress(OSError):
                self._tree.delete(path)
            return None
        return piece.offset, content

    def keep(self, pack_id: bytes, offset: int, content: Buffer) -> None:
        """Store a piece, unless all of it is there or it is too large to be worth the others."""
        piece = _Piece(offset, memoryview(content).nbytes)
        size = _cost(_HEAD_SIZE + piece.length)
        if not piece.length or size > max(self.limit * _PIECE_SHARE, _BLOCK):
            return
        listing = self._listing(pack_id)
        if _at(listing.pieces, piece.offset, piece.offset + piece.length) is not None:
            return
        self._make_room(size)
        if self._write(_file(pack_id, piece), _encode(pack_id, piece, content)):
            # What another process has written meanwhile is not in it: a miss, until the next change.
            with contextlib.suppress(OSError), self._lock:
                changed = self._tree.status(_directory(pack_id)).st_mtime_ns
                self._listings[pack_id] = _Listing(changed, _with(listing.pieces, piece))

    def forget(self, pack_id: bytes) -> None:
        """Delete all pieces of a pack."""
        self._forget_listing(pack_id)
        for piece in self._listing(pack_id).pieces:
            with contextlib.suppress(OSError):
                self._tree.delete(_file(pack_id, piece))
        self._forget_listing(pack_id)

    def forget_all(self) -> None:
        for _, _, path in self._files():
            with contextlib.suppress(OSError):
                self._tree.delete(path)
        with self._lock:
            self._listings.clear()

    def _write(self, path: str, parts: tuple[bytes, Buffer]) -> bool:
        """Write a file; return False if that failed. A full disk or a deleted directory is not an error."""
        try:
            new = self._create(_new_name(), *parts)
        except OSError:
            return False
        try:
            try:
                self._tree.replace(new, path)
            except FileNotFoundError:
                for end in (path.index("/"), path.rindex("/")):
                    with contextlib.suppress(FileExistsError):
                        self._tree.make_directory(path[:end], 0o700)
                self._tree.replace(new, path)
        except OSError:
            with contextlib.suppress(OSError):
                self._tree.delete(new)
            return False
        return True

    # --- what there is of a pack

    def _listing(self, pack_id: bytes) -> _Listing:
        directory = _directory(pack_id)
        try:
            changed = self._tree.status(directory).st_mtime_ns
            known = self._listings.get(pack_id)
            if known is not None and known.changed == changed:
                return known
            is_sure = abs(time.time_ns() - changed) > _LISTED_AFTER_NS
            pieces = [piece for piece in map(_parse, self._tree.names(directory)) if piece is not None]
        except OSError:
            return _Listing(0, ())
        listing = _Listing(changed if is_sure else 0, _outermost(pieces))
        with self._lock:
            if len(self._listings) >= _LISTINGS_MOST:
                self._listings.clear()
            self._listings[pack_id] = listing
        return listing

    def _forget_listing(self, pack_id: bytes) -> None:
        with self._lock:
            self._listings.pop(pack_id, None)

    # --- eviction

    def _make_room(self, size: int) -> None:
        with self._lock:
            self._written += size
            is_due = self._written > self.limit * _WRITTEN_SHARE
        # While another thread evicts, this one goes on: it has counted what it writes for the next time.
        if is_due and self._evicting.acquire(blocking=False):
            try:
                with self._lock:
                    self._written = size
                self._evict(size)
            finally:
                self._evicting.release()

    def _evict(self, room: int) -> None:
        """Delete the least recently used pieces until there is room. Other processes may be evicting, too."""
        found = sorted(self._files())
        total = sum(size for _, size, _ in found)
        for _, size, path in found:
            if total + room <= self.limit * _KEPT_SHARE:
                break
            with contextlib.suppress(OSError):
                self._tree.delete(path)
                total -= size
            with contextlib.suppress(OSError):  # as a rule there are others in it
                self._tree.delete_directory(path.rpartition("/")[0])

    def _files(self) -> Iterator[tuple[float, int, str]]:
        """Yield time of use, size and path of each piece."""
        for top in self._names(""):
            if top.endswith(_NEW):
                self._delete_abandoned(top)
            elif len(top) == 2:
                for pack in self._names(top):
                    for name in self._names(f"{top}/{pack}"):
                        if _parse(name) is not None:
                            path = f"{top}/{pack}/{name}"
                            with contextlib.suppress(OSError):
                                status = self._tree.status(path)
                                yield status.st_mtime, _cost(status.st_size), path

    def _names(self, directory: str) -> list[str]:
        try:
            return self._tree.names(directory)
        except OSError:
            return []

    def _delete_abandoned(self, name: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            is_ours = len(bytes.fromhex(name.removesuffix(_NEW))) == 8
            if is_ours and time.time() - self._tree.status(name).st_mtime > _ABANDONED_AFTER:
                self._tree.delete(name)


# Paths are those below the directory.


def _directory(pack_id: bytes) -> str:
    name = pack_id.hex()
    return f"{name[:2]}/{name}"


def _file(pack_id: bytes, piece: _Piece) -> str:
    return f"{_directory(pack_id)}/{piece.offset:x}-{piece.length:x}"


def _new_name() -> str:
    return secrets.token_hex(8) + _NEW


def _cost(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _parse(name: str) -> _Piece | None:
    """Return which piece has this file name; None for any other name."""
    offset, _, length = name.partition("-")
    try:
        piece = _Piece(int(offset, 16), int(length, 16))
    except ValueError:
        return None
    return piece if f"{piece.offset:x}-{piece.length:x}" == name else None


def _at(pieces: Sequence[_Piece], begin: int, end: int) -> _Piece | None:
    """Return the piece that holds a range."""
    i = bisect_right(pieces, begin, key=lambda piece: piece.offset) - 1
    return pieces[i] if i >= 0 and end <= pieces[i].offset + pieces[i].length else None


def _with(pieces: Sequence[_Piece], piece: _Piece) -> tuple[_Piece, ...]:
    """Return pieces with one more, which lies within none, and without the pieces that lie within it."""
    begin = end = bisect_left(pieces, piece)
    while end < len(pieces) and pieces[end].offset + pieces[end].length <= piece.offset + piece.length:
        end += 1
    return (*pieces[:begin], piece, *pieces[end:])


def _outermost(pieces: list[_Piece]) -> tuple[_Piece, ...]:
    """Sort pieces; leave out any that lies within another."""
    found: list[_Piece] = []
    for piece in sorted(pieces, key=lambda piece: (piece.offset, -piece.length)):
        if not found or piece.offset + piece.length > found[-1].offset + found[-1].length:
            found.append(piece)
    return tuple(found)


def _encode(pack_id: bytes, piece: _Piece, content: Buffer) -> tuple[bytes, Buffer]:
    fixed = _PIECE.pack(_MAGIC, _VERSION, pack_id, piece.offset, piece.length, crc32c(content))
    return with_checksum(fixed), content


def _decode(data: bytes, pack_id: bytes, piece: _Piece) -> bytes | None:
    """Return the content of a piece's file; None if the file is not what its name says."""
    try:
        fixed = checked("piece", data[:_HEAD_SIZE], _HEAD_SIZE, _MAGIC)
    except MalformedError:
        return None
    _, version, found, offset, length, checksum = _PIECE.unpack(fixed)
    content = data[_HEAD_SIZE:]
    if (version, found, offset, length, len(content)) != (_VERSION, pack_id, *piece, piece.length):
        return None
    return content if crc32c(content) == checksum else None

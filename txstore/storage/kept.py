"""What a process keeps of files that it reads: pieces of packs, and files that are read ahead.

Pieces of remote packs are kept by pack and offset, in memory and, if the caller names one, in a local directory. Packs
are immutable, so a piece never goes stale. The id of a pack is random, so one cache can hold pieces of all
repositories. An erasure empties a cache before it reads on (`PackCache.heed`). Who empties a directory first writes a
random number in the place of a piece: a process that has then stored a piece looks at it, and deletes the piece.

The directory is limited in bytes, shared by the processes of one user, and safe to lose. Each piece is one file,
`<xx>/<pack>/<offset>-<length>` in hexadecimal, which ends in a checksum of pack, offset and content. A process writes
it under another name and renames it, but never syncs it: after a power loss it may hold anything. A reader treats a
damaged file as missing and deletes it. A file that another process deletes before the read is missing, too. The cache
never touches files with other names: they may belong to another program. Readers get the cached bytes as if the server
had sent them. So no other user may own, write or read the directory, and the cache does not follow links in it
(`tree`).
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import secrets
import stat
import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np

from txstore import observing, processes
from txstore.format import names
from txstore.format.encoding import CHECKSUM, crc32c
from txstore.storage.request_threads import executor
from txstore.storage.tree import Tree, real_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from typing_extensions import Buffer

    ReadRange = Callable[[str, int, int], bytes]

#: Bytes in memory, for all repositories of a process together: a process that opens hundreds of them, or one in
#: hundreds of tasks, must not need hundreds of times as much.
MEMORY = 64 << 20
#: Bytes on disk.
CACHE_SIZE = 1 << 30
#: No piece is larger than this share of the limit: in memory, on disk.
_MEMORY_SHARE, _DISK_SHARE = 1 / 4, 1 / 16
#: From this length on, numpy asks for large pages.
_LARGE = 4 << 20

#: What eviction leaves of the limit on disk, and what a process writes before it looks again how much there is: four
#: processes that know nothing of one another stay below the limit.
_KEPT_SHARE, _WRITTEN_SHARE = 3 / 4, 1 / 32
#: Seconds between two touches of one file: eviction needs the time of last use no more precisely.
_TOUCH_EVERY = 60
#: Seconds after which the cache deletes a file that a process was writing when it died.
_ABANDONED_AFTER = 3600
#: A listing stays valid while the directory keeps its time of change, if that time was at least this long before the
#: listing: file systems can't tell apart two changes that are closer together.
_LISTED_AFTER_NS = 100_000_000
_LISTINGS_MOST = 1024
_BLOCK = 4096  # what the last bytes of a file cost

#: The id in the place of a pack's under which lies a number: another one each time that a directory is emptied.
_EMPTIED = bytes(16)

#: Files are fetched ahead in pieces of this length.
PIECE = 4 << 20
#: Pieces, and bytes, that are under way or wait to be read. As many bytes of read pieces are kept, for they may be read
#: again: a run lies in the file of a commit.
PIECES, BYTES = 32, 64 << 20

# --- the pieces of one pack: (begin, end), ascending. None lies within another, so ends ascend, too.

_Piece = tuple[int, int]


def _at(pieces: Sequence[_Piece], begin: int, end: int) -> _Piece | None:
    """Return the piece that holds a range."""
    i = bisect_right(pieces, (begin, math.inf)) - 1
    return pieces[i] if i >= 0 and end <= pieces[i][1] else None


def _put(pieces: list[_Piece], piece: _Piece) -> list[_Piece]:
    """Add a piece that lies within none; remove and return those that lie within it."""
    first = last = bisect_left(pieces, (piece[0], 0))
    while last < len(pieces) and pieces[last][1] <= piece[1]:
        last += 1
    within, pieces[first:last] = pieces[first:last], [piece]
    return within


class PieceMemory:
    """Pieces in memory, up to `limit` bytes; the least recently used is evicted first. Safe in threads."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.forgotten = 0  # how often something was forgotten
        self._lock = processes.new_lock()
        self._empty()
        processes.watch(self)

    def _empty(self) -> None:
        self._contents: OrderedDict[tuple[bytes, int], memoryview] = OrderedDict()  # by pack and offset
        self._pieces: dict[bytes, list[_Piece]] = {}
        self.size = 0

    def find(self, pack_id: bytes, position: int) -> tuple[int, memoryview] | None:
        """Return the piece that holds the byte at a position of a pack, and the offset where it begins."""
        with self._lock:
            piece = _at(self._pieces.get(pack_id, ()), position, position + 1)
            if piece is None:
                return None
            self._contents.move_to_end((pack_id, piece[0]))
            return piece[0], self._contents[pack_id, piece[0]]

    def keep(self, pack_id: bytes, offset: int, content: Buffer) -> None:
        """Keep a piece, unless all of it is there or it is too large to be worth the others."""
        view = memoryview(content).toreadonly()
        end = offset + len(view)
        if not view or len(view) > self.limit * _MEMORY_SHARE:
            return
        with self._lock:
            pieces = self._pieces.setdefault(pack_id, [])
            if (within := _at(pieces, offset, end)) is not None:
                self._contents.move_to_end((pack_id, within[0]))
                return
            for begin, _ in _put(pieces, (offset, end)):
                self.size -= len(self._contents.pop((pack_id, begin)))
            self._contents[pack_id, offset] = view
            self.size += len(view)
            while self.size > self.limit:
                (oldest, begin), gone = self._contents.popitem(last=False)
                self.size -= len(gone)
                pieces = self._pieces[oldest]
                del pieces[bisect_left(pieces, (begin, 0))]
                if not pieces:
                    del self._pieces[oldest]

    def forget(self, pack_id: bytes) -> None:
        with self._lock:
            self.forgotten += 1
            for begin, _ in self._pieces.pop(pack_id, ()):
                self.size -= len(self._contents.pop((pack_id, begin)))

    def forget_all(self) -> None:
        with self._lock:
            self.forgotten += 1
            self._empty()

    def after_fork_in_child(self) -> None:
        self._empty()  # another thread may have been changing it


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
        #: By pack: when its directory had changed, in nanoseconds (0: look again in any case), and its pieces.
        self._listings: dict[bytes, tuple[int, list[_Piece]]] = {}
        self._written = limit  # since it was known how much there is
        self._lock = processes.new_lock()
        self._evicting = processes.new_lock()
        try:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            self._tree = Tree(real_path(self.path))
            status = self._tree.status("")
            self._tree.delete(self._create())
        except OSError as error:
            reason = (
                f"cache_dir can't be used ({error.strerror}): name a directory that this process may write, or none"
            )
            raise type(error)(error.errno, reason, self.path) from error
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            reason = (
                "cache_dir is another user's, or others may write it, and so decide what is read: name a directory of "
                "your own, with chmod 700"
            )
            raise PermissionError(errno.EPERM, reason, self.path)

    def _create(self, *parts: Buffer) -> str:
        """Create a file for this user alone; return its path. What is written in part is deleted again."""
        path = f"{secrets.token_hex(8)}{names.NEW}"
        descriptor = self._tree.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor.detach(), "wb") as file:
                for part in parts:
                    file.write(part)
        except BaseException:
            self._delete(path)
            raise
        return path

    def _delete(self, path: str) -> None:
        with contextlib.suppress(OSError):
            self._tree.delete(path)

    def find(self, pack_id: bytes, position: int) -> tuple[int, memoryview] | None:
        """Return the piece that holds the byte at a position of a pack, and the offset where it begins."""
        piece = _at(self._listing(pack_id), position, position + 1)
        if piece is None:
            return None
        path = _file(pack_id, piece)
        try:
            with open(self._tree.open(path).detach(), "rb") as file:
                data = memoryview(file.read())
                if abs(time.time() - os.fstat(file.fileno()).st_mtime) > _TOUCH_EVERY:
                    os.utime(file.fileno())
        except OSError:
            self._forget_listing(pack_id)
            return None
        content = data[: piece[1] - piece[0]]
        if data[len(content) :] != _checksum(pack_id, piece[0], content):
            self._forget_listing(pack_id)
            self._delete(path)
            return None
        return piece[0], content

    def keep(self, pack_id: bytes, offset: int, content: Buffer) -> None:
        """Store a piece, unless all of it is there or it is too large to be worth the others."""
        piece = offset, offset + memoryview(content).nbytes
        size = _cost(piece[1] - offset + CHECKSUM.size)
        if piece[1] == offset or size > max(self.limit * _DISK_SHARE, _BLOCK):
            return
        if _at(self._listing(pack_id), *piece) is not None:
            return
        self._make_room(size)
        with contextlib.suppress(OSError):  # a full disk or a deleted directory is not an error
            new, path = self._create(content, _checksum(pack_id, offset, content)), _file(pack_id, piece)
            try:
                self._rename(new, path, pack_id, piece)
            except OSError:
                self._delete(new)
                raise

    def _rename(self, new: str, path: str, pack_id: bytes, piece: _Piece) -> None:
        with self._lock:
            try:
                self._tree.replace(new, path)
            except FileNotFoundError:
                for end in (path.index("/"), path.rindex("/")):
                    with contextlib.suppress(FileExistsError):
                        self._tree.make_directory(path[:end], 0o700)
                self._tree.replace(new, path)
            # What another process has written meanwhile is not in it: a miss, until the next change.
            if (known := self._listings.get(pack_id)) is not None and _at(known[1], *piece) is None:
                pieces = known[1].copy()
                _put(pieces, piece)
                self._listings[pack_id] = self._tree.status(_directory(pack_id)).st_mtime_ns, pieces

    def forget(self, pack_id: bytes) -> None:
        """Delete all pieces of a pack."""
        for name in self._names(directory := _directory(pack_id)):  # a listing leaves out what a longer piece has
            if _parse(name) is not None:
                self._delete(f"{directory}/{name}")
        self._forget_listing(pack_id)

    def forget_all(self) -> None:
        self.forget(_EMPTIED)
        self.keep(_EMPTIED, 0, os.urandom(16))
        for _, _, path in self._files():
            if not path.startswith(_directory(_EMPTIED)):
                self._delete(path)
        with self._lock:
            self._listings.clear()

    def emptied(self) -> bytes | None:
        """Return another value each time that a process has emptied the directory."""
        found = self.find(_EMPTIED, 0)
        return None if found is None else bytes(found[1])

    def _listing(self, pack_id: bytes) -> list[_Piece]:
        """Return the pieces of a pack. The list is not changed any more."""
        directory = _directory(pack_id)
        try:
            changed = self._tree.status(directory).st_mtime_ns
            known = self._listings.get(pack_id)
            if known is not None and known[0] == changed:
                return known[1]
            with self._lock:  # between a listing and its keeping no thread renames a file
                changed = self._tree.status(directory).st_mtime_ns
                is_sure = abs(time.time_ns() - changed) > _LISTED_AFTER_NS
                pieces: list[_Piece] = []
                for piece in filter(None, map(_parse, self._tree.names(directory))):
                    if _at(pieces, *piece) is None:
                        _put(pieces, piece)
                if len(self._listings) >= _LISTINGS_MOST:
                    self._listings.clear()
                self._listings[pack_id] = changed if is_sure else 0, pieces
        except OSError:
            return []
        return pieces

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
        """Yield time of use, size and path of each piece; delete the files of writers that have died."""
        for top in self._names(""):
            with contextlib.suppress(OSError, ValueError):
                is_ours = top.endswith(names.NEW) and len(bytes.fromhex(top.removesuffix(names.NEW))) == 8
                if is_ours and time.time() - self._tree.status(top).st_mtime > _ABANDONED_AFTER:
                    self._tree.delete(top)
            for pack in self._names(top) if len(top) == 2 else ():
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


# Paths are those below the directory.


def _directory(pack_id: bytes) -> str:
    name = pack_id.hex()
    return f"{name[:2]}/{name}"


def _file(pack_id: bytes, piece: _Piece) -> str:
    return f"{_directory(pack_id)}/{piece[0]:x}-{piece[1] - piece[0]:x}"


def _parse(name: str) -> _Piece | None:
    """Return which piece has this file name; None for any other name."""
    offset, _, length = name.partition("-")
    try:
        begin, end = int(offset, 16), int(offset, 16) + int(length, 16)
    except ValueError:
        return None
    return (begin, end) if f"{begin:x}-{end - begin:x}" == name else None


def _cost(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _checksum(pack_id: bytes, offset: int, content: Buffer) -> bytes:
    return CHECKSUM.pack(crc32c(content, crc32c(b"%b%x" % (pack_id, offset))))


_shared = PieceMemory(MEMORY)


class PackCache:
    """Pieces in memory, which all caches of the process share, and in a directory. Safe in threads."""

    def __init__(self, directory: CacheDirectory | None = None, memory: PieceMemory = _shared) -> None:
        self._directory = directory
        self._memory = memory
        self._emptied = self._look()

    @property
    def state(self) -> int:
        """Another number each time that something was forgotten."""
        return self._memory.forgotten

    def keep(
        self, pack_id: bytes, offset: int, content: Buffer, *, in_memory: bool = True, since: int | None = None
    ) -> None:
        """Keep what was read of a pack at an offset. The buffer must not change any more.

        `since`: the `state` before it was asked for. What was forgotten since may have been replaced meanwhile.
        """
        if since is not None and since != self.state:
            return
        if in_memory:
            self._memory.keep(pack_id, offset, content)
        if self._directory is not None:
            self._directory.keep(pack_id, offset, content)
            if (emptied := self._look()) != self._emptied:  # by another process
                self._memory.forget_all()  # first: it tells other threads that their pieces may be from before, too
                self._emptied = emptied
                self._directory.forget(pack_id)
        if since is not None and since != self.state:
            self.forget(pack_id)

    @property
    def is_in_memory(self) -> bool:
        """Whether nothing of it lies on a disk."""
        return self._directory is None

    def find(self, pack_id: bytes, offset: int, length: int) -> memoryview | None:
        """Return a range of a pack if all of it is kept."""
        parts = self.find_start(pack_id, offset, length)
        observing.count("cache.lookups", 1, cache="packs", hit=sum(map(len, parts)) == length)
        return joined(parts) if sum(map(len, parts)) == length else None

    def at_hand(self, pack_id: bytes, offset: int, length: int) -> memoryview | None:
        """Return a range of a pack if it is in one piece in memory, so that the caller need not wait."""
        found = self._memory.find(pack_id, offset)
        if found is None:
            return None
        begin, piece = found
        part = piece[offset - begin : offset - begin + length]
        return joined([part]) if len(part) == length else None

    def find_start(self, pack_id: bytes, offset: int, length: int) -> list[memoryview]:
        """Return the cached beginning of a range, in consecutive parts."""
        parts: list[memoryview] = []
        position, end = offset, offset + length
        while position < end and (found := self._find(pack_id, position)) is not None:
            begin, piece = found
            parts.append(piece[position - begin : end - begin])
            position += len(parts[-1])
        return parts

    def _find(self, pack_id: bytes, position: int) -> tuple[int, memoryview] | None:
        found = self._memory.find(pack_id, position)
        if found is None and self._directory is not None:
            found = self._directory.find(pack_id, position)
            if found is not None:
                self._memory.keep(pack_id, *found)
        return found

    def forget(self, pack_id: bytes) -> None:
        """Drop all cached pieces of a pack: a reader has found one damaged."""
        self._memory.forget(pack_id)
        if self._directory is not None:
            self._directory.forget(pack_id)

    def heed(self, erasures: bytes) -> None:
        """Forget what was read before some erasures, unless this was done. `erasures` stands for them: 16 bytes."""
        for part in self._parts():
            if part.find(erasures, 0) is None:
                part.forget_all()
                part.keep(erasures, 0, b"\0")  # as if it were a piece of a pack
        self._emptied = self._look()

    def forget_all(self) -> None:
        for part in self._parts():
            part.forget_all()
        self._emptied = self._look()

    def _look(self) -> bytes | None:
        return None if self._directory is None else self._directory.emptied()

    def _parts(self) -> Iterator[PieceMemory | CacheDirectory]:
        if self._directory is not None:
            yield self._directory
        yield self._memory  # the last one: what is in memory comes from the directory


def open_cache(cache_dir: str | os.PathLike[str] | None = None, cache_size: int = CACHE_SIZE) -> PackCache:
    """Return a cache; without `cache_dir` it is in memory alone. `cache_size` is in bytes of disk space.

    Raises `OSError` if the directory can't be used, and `ValueError` if nothing would fit.
    """
    return PackCache(None if cache_dir is None else CacheDirectory(os.fspath(cache_dir), cache_size))


def joined(parts: list[memoryview]) -> memoryview:
    """Return parts as one read-only buffer, which does not keep much more than itself in memory."""
    if len(parts) == 1:
        [part] = parts
        if 2 * len(part) >= memoryview(part.obj).nbytes:
            return part
    length = sum(map(len, parts))
    if length < _LARGE:
        return memoryview(b"".join(parts))
    whole, position = memoryview(np.empty(length, np.uint8)), 0  # in large pages: others cost more than the copy
    for part in parts:
        whole[position : position + len(part)] = part
        position += len(part)
    return whole.toreadonly()


class FileReader:
    """Reads ranges of files, one file after the other. For one thread.

    If a read costs a round trip, it fetches announced ranges in advance. If it does not, that gains nothing.
    """

    def __init__(self, read_range: ReadRange, *, ahead: bool) -> None:
        self._read_range = read_range
        self._is_ahead = ahead
        self._sizes: dict[str, int] = {}
        # Each piece is a file, and the number of the piece in it.
        self._expected: deque[tuple[str, int]] = deque()
        self._pieces: OrderedDict[tuple[str, int], Future[bytes]] = OrderedDict()  # what was used last comes last
        self._ahead: dict[tuple[str, int], None] = {}  # pieces that were not read yet, in their order
        self._bytes = 0  # of all pieces

    def expect(self, path: str, size: int, parts: Iterable[tuple[int, int]] | None = None) -> None:
        """Announce a file of `size` bytes, of which all is read next, or parts: (offset, length) each."""
        if self._is_ahead:
            self._sizes[path] = size
            for offset, length in [(0, size)] if parts is None else parts:
                self._expected += [(path, n) for n in range(offset // PIECE, -(-min(offset + length, size) // PIECE))]

    def keep(self, path: str, content: bytes) -> None:
        """Take all of a file that was read for something else, if there is room: it need not be fetched again."""
        has_room = self._bytes + len(content) <= 2 * BYTES and len(content) <= PIECE
        if self._is_ahead and has_room and (path, 0) not in self._pieces:
            self._sizes[path] = len(content)
            there: Future[bytes] = Future()
            there.set_result(content)
            self._pieces[path, 0] = there
            self._bytes += len(content)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Return a range of a file, shorter only where that ends. Raises `OSError`."""
        end = min(offset + length, self._sizes.get(path, 0))
        if offset >= end:  # it was not announced, or somebody looks for more than it should have
            return self._read_range(path, offset, length)
        parts = []
        for n in range(offset // PIECE, -(-end // PIECE)):
            piece = self._piece((path, n))
            parts.append(piece[max(offset - n * PIECE, 0) : end - n * PIECE])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _piece(self, wanted: tuple[str, int]) -> bytes:
        if wanted in self._ahead:
            for skipped in list(self._ahead):
                del self._ahead[skipped]
                if skipped == wanted:
                    break
        if wanted not in self._pieces:
            self._submit(wanted)
        self._pieces.move_to_end(wanted)
        self._read_ahead()
        try:
            return self._pieces[wanted].result()
        except BaseException:
            self._drop(wanted)
            raise

    def _read_ahead(self) -> None:
        while self._expected and len(self._ahead) < PIECES and sum(map(self._length, self._ahead)) < BYTES:
            piece = self._expected.popleft()
            if piece not in self._pieces:
                self._ahead[piece] = None
                self._submit(piece)
        for piece in list(self._pieces) if self._bytes > 2 * BYTES else ():
            if self._bytes <= 2 * BYTES:
                break
            if piece not in self._ahead and self._pieces[piece].done():
                self._drop(piece)

    def _submit(self, piece: tuple[str, int]) -> None:
        path, n = piece
        read = observing.carried(self._read_range)
        self._pieces[piece] = executor("read files", PIECES).submit(read, path, n * PIECE, self._length(piece))
        self._bytes += self._length(piece)

    def _drop(self, piece: tuple[str, int]) -> None:
        self._ahead.pop(piece, None)
        if self._pieces.pop(piece, None) is not None:
            self._bytes -= self._length(piece)

    def _length(self, piece: tuple[str, int]) -> int:
        return min(PIECE, self._sizes[piece[0]] - piece[1] * PIECE)

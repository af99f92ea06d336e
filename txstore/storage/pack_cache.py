"""Caches pieces of remote packs, in memory and on disk. Packs are immutable, so a piece never goes stale.

Pieces are kept by pack and offset, in memory and, if the caller names one, in a local directory. The id of a pack is
random, so one cache can hold pieces of all repositories.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from txstore import observing, processes
from txstore.storage.cache_directory import CacheDirectory

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Bytes in memory, for all repositories of a process together: a process that opens hundreds of them, or one in
#: hundreds of tasks, must not need hundreds of times as much.
MEMORY = 64 << 20
#: Bytes on disk.
CACHE_SIZE = 1 << 30
#: No piece in memory is larger than this share of the limit.
_PIECE_SHARE = 1 / 4
#: From this length on, numpy asks for large pages.
_LARGE = 4 << 20


class PieceMemory:
    """Pieces in memory, up to `limit` bytes; the least recently used is evicted first. Safe in threads."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = processes.new_lock()
        self._empty()
        processes.watch(self)

    def _empty(self) -> None:
        self._pieces: OrderedDict[tuple[bytes, int], memoryview] = OrderedDict()
        # Offsets by pack, ascending. No piece lies within another, so ends ascend, too.
        self._offsets: dict[bytes, list[int]] = {}
        self.size = 0

    def find(self, pack_id: bytes, position: int) -> tuple[int, memoryview] | None:
        """Return the piece that holds the byte at a position of a pack, and the offset where it begins."""
        with self._lock:
            offset = self._piece_at(pack_id, position, position + 1)
            if offset is None:
                return None
            self._pieces.move_to_end((pack_id, offset))
            return offset, self._pieces[pack_id, offset]

    def keep(self, pack_id: bytes, offset: int, content: Buffer) -> None:
        """Keep a piece, unless all of it is there or it is too large to be worth the others."""
        piece = memoryview(content).toreadonly()
        end = offset + len(piece)
        if not piece or len(piece) > self.limit * _PIECE_SHARE:
            return
        with self._lock:
            within = self._piece_at(pack_id, offset, end)
            if within is not None:
                self._pieces.move_to_end((pack_id, within))
                return
            offsets = self._offsets.setdefault(pack_id, [])
            first = last = bisect_left(offsets, offset)
            while last < len(offsets) and offsets[last] + len(self._pieces[pack_id, offsets[last]]) <= end:
                self.size -= len(self._pieces.pop((pack_id, offsets[last])))
                last += 1
            offsets[first:last] = [offset]
            self._pieces[pack_id, offset] = piece
            self.size += len(piece)
            while self.size > self.limit:
                self._drop(*next(iter(self._pieces)))

    def forget(self, pack_id: bytes) -> None:
        with self._lock:
            for offset in list(self._offsets.get(pack_id, ())):
                self._drop(pack_id, offset)

    def forget_all(self) -> None:
        with self._lock:
            self._empty()

    def _piece_at(self, pack_id: bytes, begin: int, end: int) -> int | None:
        offsets = self._offsets.get(pack_id, ())
        i = bisect_right(offsets, begin) - 1
        return offsets[i] if i >= 0 and end <= offsets[i] + len(self._pieces[pack_id, offsets[i]]) else None

    def _drop(self, pack_id: bytes, offset: int) -> None:
        offsets = self._offsets[pack_id]
        del offsets[bisect_left(offsets, offset)]
        if not offsets:
            del self._offsets[pack_id]
        self.size -= len(self._pieces.pop((pack_id, offset)))

    def after_fork_in_child(self) -> None:
        self._empty()  # another thread may have been changing it


_shared = PieceMemory(MEMORY)


class PackCache:
    """Pieces in memory, which all caches of the process share, and in a directory. Safe in threads."""

    def __init__(self, directory: CacheDirectory | None = None, memory: PieceMemory = _shared) -> None:
        self._directory = directory
        self._memory = memory

    def keep(self, pack_id: bytes, offset: int, content: Buffer, *, in_memory: bool = True) -> None:
        """Keep what was read of a pack at an offset. The buffer must not change any more."""
        if in_memory:
            self._memory.keep(pack_id, offset, content)
        if self._directory is not None:
            self._directory.keep(pack_id, offset, content)

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
        if found is not None or self._directory is None:
            return found
        stored = self._directory.find(pack_id, position)
        if stored is None:
            return None
        offset, content = stored
        self._memory.keep(pack_id, offset, content)
        return offset, memoryview(content)

    def forget(self, pack_id: bytes) -> None:
        """Drop all cached pieces of a pack: a reader has found one damaged."""
        self._memory.forget(pack_id)
        if self._directory is not None:
            self._directory.forget(pack_id)

    def heed(self, erasures: bytes) -> None:
        """Forget what was read before some erasures, unless this was done. `erasures` stands for them: 16 bytes."""
        parts: list[PieceMemory | CacheDirectory] = [] if self._directory is None else [self._directory]
        for part in (*parts, self._memory):  # what is in memory comes from the directory
            if part.find(erasures, 0) is None:
                part.forget_all()
                part.keep(erasures, 0, b"\0")  # as if it were a piece of a pack


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

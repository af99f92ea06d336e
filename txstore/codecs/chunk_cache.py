"""Keeps decoded chunks of snapshots in memory. A snapshot never changes, so no entry becomes wrong.

An erasure waits for the snapshots of other processes, and clears the cache of its own.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any

import numpy as np

from txstore import observing, processes
from txstore.format.display import readable_size

AnyArray = np.ndarray[Any, Any]
#: The number of a snapshot, the key of a chunk or shard, and the place of the inner chunk in a shard.
Key = tuple[int, str, tuple[int, ...]]

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
#: Bytes that an entry takes beside its elements.
_ENTRY = 400


def parse_size(size: int | str) -> int:
    """Return a size in bytes, given as a number or as text such as "256 MiB". Raises `ValueError`."""
    if isinstance(size, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", size)
        unit = None if found is None else _UNITS.get(found[2].upper())
        if found is None or unit is None:
            raise ValueError(f'{size!r} is no size: give a number of bytes, or text such as "256 MiB"')
        return int(float(found[1]) * unit)
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise ValueError(f'{size!r} is no size: give a number of bytes, 0 or more, or text such as "256 MiB"')
    return size


class ChunkCache:
    """Decoded chunks in memory, up to `capacity` bytes. The chunk that was used least recently is dropped first.

    All stores and threads of one `Repository` share it. `hits` and `misses` count the chunks that reads asked for.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.hits = self.misses = 0
        self._size = 0
        self._chunks: OrderedDict[Key, AnyArray] = OrderedDict()
        self._lock = processes.new_lock()

    @property
    def size(self) -> int:
        """The bytes that the chunks take."""
        return self._size

    def __len__(self) -> int:
        return len(self._chunks)

    def __bool__(self) -> bool:
        return self.capacity > 0

    @property
    def most_at_once(self) -> int:
        """How many bytes a read may take to use the cache: one that takes more would replace much of it."""
        return self.capacity // 4

    def get(self, key: Key) -> AnyArray | None:
        """Return a chunk, read-only."""
        with self._lock:
            found = self._chunks.get(key)
            if found is None:
                self.misses += 1
            else:
                self.hits += 1
                self._chunks.move_to_end(key)
        if observing.observer is not None:
            observing.observer.count("cache.lookups", 1, cache="chunks", hit=found is not None)
        return found

    def put(self, key: Key, chunk: AnyArray) -> None:
        """Add a chunk, which stays as it is from now on."""
        chunk.flags.writeable = False
        with self._lock:
            if key in self._chunks:
                return
            self._chunks[key] = chunk
            self._size += chunk.nbytes + _ENTRY
            while self._size > self.capacity:
                _, dropped = self._chunks.popitem(last=False)
                self._size -= dropped.nbytes + _ENTRY

    def clear(self) -> None:
        """Drop all chunks. The counts stay."""
        with self._lock:
            self._chunks.clear()
            self._size = 0

    def __repr__(self) -> str:
        sizes = f"{readable_size(self._size)} of {readable_size(self.capacity)}"
        return f"<ChunkCache {len(self):,} chunks, {sizes}, {self.hits:,} hits, {self.misses:,} misses>"

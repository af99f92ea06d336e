"""Lays out the frames of many short values at once, where `chunks.Batch` encodes those of chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from txstore._native import chunks
from txstore.format.encoding import crc32c
from txstore.format.packfile import ALIGNMENT, FRAME_SIZE, lay_frame

if TYPE_CHECKING:
    from typing_extensions import Buffer

_WAITS, _ORDINARY = 0, 3
#: What was seen of a key that the caller has to stage by itself.
_SEEN_ODD = 255


class FrameBatch:
    """Values of one kind of frame. Its methods are those of `chunks.Batch` that `PackWriter.append_batch` calls."""

    def __init__(self, kind: int, values: Sequence[bytes]) -> None:
        self._kind = kind
        self._values = values
        self._placed = [(_WAITS, 0, 0, 0, 0)] * len(values)
        self._next = 0

    @property
    def bound(self) -> int:
        return max(map(len, self._values), default=0) + FRAME_SIZE + ALIGNMENT + 8

    def encode(
        self,
        keys: tuple[bytes, ...],
        seen: Buffer,
        arena: memoryview,
        position: int,
        sequence: int,
        threads: int,
        packs: list[Buffer],
        table: Buffer,
        /,
    ) -> tuple[int, int]:
        was_seen, kind, values, placed = memoryview(seen), self._kind, self._values, self._placed
        begin, last, row = sequence, position + len(arena), self._next
        parts: list[bytes] = []
        start = position
        for row in range(self._next, len(values)):
            if was_seen[row] == _SEEN_ODD:
                placed[row] = (_ORDINARY, 0, 0, 0, 0)
                continue
            value = values[row]
            length, checksum = len(value), crc32c(value)
            head, offset, end = lay_frame(start, kind, was_seen[row], sequence, keys[row], length, checksum)
            if end > last:
                break
            parts += head, bytes(offset - start - len(head)), value, bytes(end - offset - length)
            placed[row] = (chunks.PLACED, offset, length, checksum, sequence)
            sequence += 1
            start = end
        else:
            row = len(values)
        self._next = row
        frames = b"".join(parts)
        arena[: len(frames)] = frames
        return len(frames), sequence - begin

    def placed(self) -> bytes:
        return np.array(self._placed, np.int64).reshape(-1, 5).tobytes()

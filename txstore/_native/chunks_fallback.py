"""The Python fallback of _chunks.c, which explains the design: many chunks of one array at once, no compressors."""

from __future__ import annotations

import struct
from math import prod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import google_crc32c
import numpy as np

if TYPE_CHECKING:
    from typing_extensions import Buffer

IMPLEMENTATION: Literal["c", "python"] = "python"
READ, MISSING, _ODD = 0, 1, 2
_WAITS, PLACED, EMPTY, _ORDINARY, IN_BASE = 0, 1, 2, 3, 4
_ELIDE_EQUAL, _ELIDE_NAN = 1, 2
_SEEN_ODD = 255
_MAX_AXES = 16
_LARGEST_CHUNK = (1 << 31) - 1

_FRAME = struct.Struct("<4sBBHQQI")
_U32 = struct.Struct("<I")
_ENTRY = struct.Struct("<QQ")
_NOTHING = (1 << 64) - 1
_FRAME_SIZE, _ALIGNED_FROM, _ALIGNMENT = 32, 1024, 64

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


def load(_zstd: str | None, _blosc: str | None, /) -> tuple[str, ...]:
    """Find no compressors: Python code can't call their libraries."""
    return ()


class _Row(NamedTuple):
    chunk: tuple[slice, ...]  # an integer is a slice of one
    out: Array  # the row's part of the array, with the axes of the chunk


class _UnreadableError(Exception):
    """A stored value is invalid."""


class Batch:
    """The rows of one operation; see _chunks.c."""

    def __init__(
        self,
        rows: list[tuple[Any, ...]],
        array: Any,
        chunk: tuple[Shape, Shape],
        inner: tuple[Shape, Shape, bool, bool] | None,
        itemsize: int,
        codecs: tuple[tuple[str | int, ...], ...],
        fill: bytes,
        empties: int,
        writable: bool,
        /,
    ) -> None:
        if not isinstance(rows, list) or not all(isinstance(row, tuple) and len(row) == 5 for row in rows):
            raise TypeError("a row has five members")
        if itemsize < 1 or len(fill) != itemsize:
            raise ValueError("the fill value is one element")
        if any(codec[0] != "crc32c" for codec in codecs):
            raise ValueError(f"no codec {codecs[0][0]} is loaded")
        view = memoryview(array)
        if view.itemsize != itemsize:
            raise ValueError("the array has elements of another size")
        self._array = np.asarray(view).view(np.dtype((np.void, itemsize)))
        if writable and not self._array.flags.writeable:
            raise BufferError("the array is read-only")
        self._item = np.dtype((np.void, itemsize))
        self._shape, self._axes = _layout(chunk[0], chunk[1], itemsize)
        self._inner = None if inner is None else _layout(inner[0], inner[1], itemsize)
        if inner is not None and any(whole % part for whole, part in zip(chunk[0], inner[0], strict=True)):
            raise ValueError("inner chunks do not fill a shard")
        self._index_at_start, self._index_is_checked = (False, False) if inner is None else inner[2:]
        self._checksums = len(codecs)
        self._fill = np.frombuffer(fill, self._item)[0]
        self._empties = empties
        self._rows = [self._parse(row[2], row[3]) for row in rows]
        self._placed = [[_WAITS, 0, 0, 0, 0] for _ in rows]

    def _parse(self, chunk: Any, out: Any) -> _Row | None:
        """Return the selections of a row, None if they are odd."""
        if not isinstance(chunk, tuple) or not isinstance(out, tuple) or len(chunk) != len(self._shape):
            return None
        picked, counts = [], []
        for item, extent in zip(chunk, self._shape, strict=True):
            if isinstance(item, slice):
                start, stop, step = item.indices(extent)
                if step < 1 or start >= stop:
                    return None
                picked.append(slice(start, stop, step))
                counts.append(len(range(start, stop, step)))
            elif isinstance(item, int) and 0 <= item < extent:
                picked.append(slice(item, item + 1))
            else:
                return None
        sizes = tuple(len(range(*each.indices(extent))) for each, extent in zip(picked, self._shape, strict=True))
        if not self._array.ndim:
            one = prod(sizes) == 1  # one element can be read into; a broadcast view can't
            return _Row(tuple(picked), self._array.reshape(sizes) if one else np.broadcast_to(self._array, sizes))
        if len(out) != self._array.ndim or not all(isinstance(item, slice) for item in out):
            return None
        part = self._array[out]
        if part.shape != tuple(counts) or any(item.step is not None and item.step < 1 for item in out):
            return None
        return _Row(tuple(picked), _with_axes(part, chunk))

    # --- reading

    def read(self, packs: list[Buffer], table: Buffer, threads: int, /) -> bytes:
        refs = self._refs(table)
        buffers = [memoryview(pack).cast("B") for pack in packs]
        return bytes([self._read_row(row, buffers, *ref) for row, ref in zip(self._rows, refs, strict=True)])

    def _refs(self, table: Buffer) -> list[list[int]]:
        refs = np.frombuffer(table, np.int64)
        if refs.size != 4 * len(self._rows):
            raise ValueError("the table has four numbers for each row")
        numbers: list[list[int]] = refs.reshape(-1, 4).tolist()
        return numbers

    def _read_row(
        self, row: _Row | None, packs: list[memoryview], pack: int, offset: int, length: int, checksum: int
    ) -> int:
        if row is None or not -1 <= pack < len(packs):
            return _ODD
        if pack == -1:
            row.out[...] = self._fill
            return MISSING
        if offset < 0 or length < 0 or offset + length > len(packs[pack]):
            return _ODD
        data = packs[pack][offset : offset + length]
        try:
            found = (
                self._decode(data, self._shape, self._axes) if self._inner is None else self._decode_shard(data, row)
            )
        except _UnreadableError:
            return _ODD
        row.out[...] = found[row.chunk]
        # Last, as in C: what is mapped may become zeros while it is read.
        whole = self._inner is None or not self._index_is_checked or row.out.shape == self._shape
        return READ if not whole or _crc32c(data) == checksum else _ODD

    def _decode(self, data: memoryview, shape: Shape, axes: Shape) -> Array:
        for _ in range(self._checksums):
            data = _without_checksum(data)
        if len(data) != prod(shape) * self._item.itemsize:
            raise _UnreadableError
        lying = np.frombuffer(data, self._item).reshape([shape[axis] for axis in axes])
        return lying.transpose(np.argsort(axes))

    def _decode_shard(self, data: memoryview, row: _Row) -> Array:
        """Return a shard in which only the selected inner chunks are decoded."""
        assert self._inner is not None
        (shape, axes), counts = self._inner, self._counts()
        size = prod(counts) * _ENTRY.size
        whole = size + (4 if self._index_is_checked else 0)
        if len(data) < whole:
            raise _UnreadableError
        index = data[:whole] if self._index_at_start else data[len(data) - whole :]
        if self._index_is_checked:
            index = _without_checksum(index)
        shard = np.empty(self._shape, self._item)
        for number, place in enumerate(np.ndindex(*counts)):
            if not all(
                range(*each.indices(extent))[-1] >= at * part and each.start < (at + 1) * part
                for each, extent, at, part in zip(row.chunk, self._shape, place, shape, strict=True)
            ):
                continue
            where = _box(place, shape)
            offset, length = _ENTRY.unpack_from(index, number * _ENTRY.size)
            if offset == length == _NOTHING:
                shard[where] = self._fill
            elif offset + length > len(data):
                raise _UnreadableError
            else:
                shard[where] = self._decode(data[offset : offset + length], shape, axes)
        return shard

    def _counts(self) -> Shape:
        assert self._inner is not None
        return tuple(whole // part for whole, part in zip(self._shape, self._inner[0], strict=True))

    # --- writing

    @property
    def bound(self) -> int:
        """The largest length of a frame in bytes, without its key."""
        size = prod(self._shape) * self._item.itemsize
        if self._inner is not None:
            size += prod(self._counts()) * (_ENTRY.size + 4 * self._checksums) + 4
        return size + 4 * self._checksums + _FRAME_SIZE + _ALIGNMENT + 8

    def encode(
        self,
        keys: tuple[bytes, ...],
        seen: Buffer,
        arena: Any,
        position: int,
        sequence: int,
        threads: int,
        packs: list[Buffer] = [],  # noqa: B006 - which is only read
        table: Buffer = b"",
        /,
    ) -> tuple[int, int]:
        was_seen, room = memoryview(seen).cast("B"), memoryview(arena).cast("B")
        if len(keys) != len(self._rows) or len(was_seen) != len(self._rows) or position < 0 or position % 8:
            raise ValueError("a key and what was seen of it for each row; frames begin at multiples of 8")
        base = self._base(packs, table)
        used = count = 0
        for i, (row, key) in enumerate(zip(self._rows, keys, strict=True)):
            placed = self._placed[i]
            if placed[0] != _WAITS:
                continue
            if row is None or was_seen[i] == _SEEN_ODD:
                placed[0] = _ORDINARY
                continue
            value = self._value(row)
            if value is None:
                placed[0] = EMPTY
                continue
            if (there := base[i]) is not None and there == memoryview(value):
                placed[0] = IN_BASE
                continue
            start = position + used
            offset = start + _FRAME_SIZE + len(key)
            if len(value) >= _ALIGNED_FROM:
                offset = -(-offset // _ALIGNMENT) * _ALIGNMENT
            end = -(-(offset + len(value)) // 8) * 8
            if end - position > len(room):
                break
            checksum = _crc32c(value)
            fixed = _FRAME.pack(b"TXFR", 1, was_seen[i], len(key), sequence + count, len(value), checksum)
            frame = fixed + _U32.pack(google_crc32c.extend(_crc32c(fixed), key)) + key
            frame += bytes(offset - start - len(frame)) + value + bytes(end - offset - len(value))
            room[used : used + len(frame)] = frame
            self._placed[i] = [PLACED, offset, len(value), checksum, sequence + count]
            used = end - position
            count += 1
        return used, count

    def _base(self, packs: list[Buffer], table: Buffer) -> list[memoryview | None]:
        """Return the value of the base for each row, where one was located."""
        if not memoryview(table).nbytes:
            return [None] * len(self._rows)
        buffers = [memoryview(pack).cast("B") for pack in packs]
        return [
            buffers[pack][offset : offset + length] if 0 <= pack < len(buffers) else None
            for pack, offset, length, _ in self._refs(table)
        ]

    def placed(self) -> bytes:
        return np.array(self._placed, np.int64).reshape(-1, 5).tobytes()

    def _value(self, row: _Row) -> bytes | None:
        chunk = np.full(self._shape, self._fill, self._item)
        chunk[row.chunk] = row.out
        if self._inner is None:
            return self._encode(chunk, self._axes)
        shape, axes = self._inner
        counts = self._counts()
        index_size = prod(counts) * _ENTRY.size + (4 if self._index_is_checked else 0)
        used = index_size if self._index_at_start else 0
        parts, index = [], b""
        for place in np.ndindex(*counts):
            value = self._encode(chunk[_box(place, shape)], axes)
            if value is None:
                index += _ENTRY.pack(_NOTHING, _NOTHING)
            else:
                index += _ENTRY.pack(used, len(value))
                parts.append(value)
                used += len(value)
        if not parts:
            return None
        if self._index_is_checked:
            index += _U32.pack(_crc32c(index))
        return b"".join([index, *parts] if self._index_at_start else [*parts, index])

    def _encode(self, chunk: Array, axes: Shape) -> bytes | None:
        if self._empties and self._is_empty(chunk):
            return None
        value = chunk.transpose(axes).tobytes()
        for _ in range(self._checksums):
            value += _U32.pack(_crc32c(value))
        return value

    def _is_empty(self, chunk: Array) -> bool:
        if self._empties == _ELIDE_NAN:
            return bool(np.isnan(np.ascontiguousarray(chunk).view(f"<f{self._item.itemsize}")).all())
        return chunk.tobytes() == bytes(self._fill) * chunk.size


def _layout(shape: Shape, strides: Shape, itemsize: int) -> tuple[Shape, Shape]:
    """Return a shape, and the order of the axes in the bytes of a chunk, the slowest first."""
    if len(shape) > _MAX_AXES:
        raise ValueError(f"a shape is a tuple of at most {_MAX_AXES} integers")
    size, last = itemsize, 0
    for extent, stride in zip(shape, strides, strict=False):
        size *= extent
        last += (extent - 1) * stride
    fits = last + itemsize == size <= max(itemsize, _LARGEST_CHUNK)
    if len(shape) != len(strides) or any(extent < 1 for extent in shape) or not fits:
        raise ValueError("the strides of a chunk do not fit its shape")
    axes = sorted(range(len(shape)), key=lambda axis: (-strides[axis], shape[axis] == 1, axis))
    return shape, tuple(axes)


def _with_axes(part: Array, chunk: tuple[Any, ...]) -> Array:
    """Return a part with an axis of one for each integer of a chunk selection: a view."""
    return part[tuple([slice(None) if isinstance(item, slice) else None for item in chunk])]


def _box(place: Shape, shape: Shape) -> tuple[slice, ...]:
    return tuple([slice(at * part, (at + 1) * part) for at, part in zip(place, shape, strict=True)])


def _crc32c(data: Any) -> int:
    checksum: int = google_crc32c.value(bytes(data))
    return checksum


def _without_checksum(data: memoryview) -> memoryview:
    if len(data) < 4 or _crc32c(data[:-4]) != _U32.unpack(data[-4:])[0]:
        raise _UnreadableError
    return data[:-4]

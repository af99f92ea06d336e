"""Writes the frames of a pack below the hidden prefix: first into buffers, then into a file.

A `BufferedFile` is where the frames of a `PackWriter` go. In an object store they go into `object_writer`'s packs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from txstore import processes
from txstore._native import chunks
from txstore.errors import CorruptionError, is_full
from txstore.format import names, packfile
from txstore.format.encoding import crc32c
from txstore.format.packfile import ALIGNMENT, FRAME_SIZE, Seen, frame_parts, lay_frame
from txstore.storage.interface import StagedFile, Storage

if TYPE_CHECKING:
    import threading
    from typing import Self

    from typing_extensions import Buffer

    from txstore.segments.runs import Located

#: From this length on a pack is preallocated (several times faster than growing it write by write) in steps.
PREALLOCATE_FROM = 1 << 20
_STEP_SMALLEST, _STEP_LARGEST = 4 << 20, 64 << 20
#: The kernel is asked to start writing behind us in steps, so that the sync of a large commit finds little to do.
_WRITEBACK_STEP = 8 << 20

#: Frames are collected up to this length, so that small values cost a copy each and no system call. A transaction of
#: this process alone is lost with it anyway; what others have to find (I8) is flushed before `append` returns.
_BUFFER_SMALLEST, _BUFFER_LARGEST = 16 << 10, 1 << 20
#: A value from this length on is written piece by piece from where it lies; each piece stays in the processor's cache.
_WRITTEN_DIRECTLY, _PIECE = 128 << 10, 256 << 10

#: How much of a batch of chunks is encoded before it is written: little, so that it is still in the processor's cache.
_ARENA = 4 << 20

_ZEROS = bytes(packfile.ALIGNMENT)


class Staged(NamedTuple):
    """Where a staged value lies in the pack of its writer, and which frame it is there."""

    offset: int
    length: int
    checksum: int
    sequence: int


class Writer(Protocol):
    """Appends framed values to what one participant of a transaction stages; see `PackWriter`. Safe in threads."""

    id: bytes
    path: str

    @property
    def size(self) -> int:
        """Where the frames end in the file that becomes the commit's, if this is participant 0."""

    def ends(self) -> dict[int, int]:
        """Return where the frames end, by the number of the pack in the transaction."""

    @property
    def sequence(self) -> int:
        """How many frames there are in that file."""

    def append(self, kind: int, key: bytes, value: Buffer, *, seen: Seen, region: bytes = b"") -> Staged: ...
    def append_batch(
        self, batch: Frames, keys: tuple[bytes, ...], seen: Buffer, threads: int, base: Located | None
    ) -> bool:
        """Append many frames at once, if this can, but for values that the base has; return whether it has."""

    def publish(self) -> None: ...
    def flush(self) -> None:
        """Return when others can find every frame that was appended by now, if they are to find any."""

    def create(self) -> None: ...
    def read(self, staged: Staged) -> bytes: ...
    def document(self, offset: int) -> bytes | None:
        """Return a document that was staged here, if the commit should lay it beside the others in its own file."""

    @property
    def aside(self) -> int:
        """The number of the pack that has what was staged in the file of participant 0; 0: the file itself."""

    def set_aside(self) -> bool:
        """Make the file small that is to be sent again; return whether its values are in a pack of their own now."""

    def write_at(self, offset: int, content: Buffer) -> None: ...
    def finish(self, length: int) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> bool: ...
    def drop(self) -> None: ...
    def release(self) -> None: ...
    def close_between_reads(self) -> None: ...


def bytes_of(value: Buffer) -> memoryview:
    """Return any contiguous buffer as bytes."""
    view = memoryview(value)
    return view.cast("B") if view.nbytes else memoryview(b"")  # one of shape (5, 0) has no bytes, and length 5


def own_bytes_of(value: Buffer) -> memoryview:
    """Return the bytes of any contiguous buffer as they are now: another thread of the caller may change the buffer."""
    view = bytes_of(value)
    return view if type(view.obj) is bytes else memoryview(bytes(view))


class BufferedFile:
    """A staged file behind buffers. It is created when there is something to write to it.

    REQUIRES: the caller holds the lock of the writer, but for `write_retired`, `copy_value`, `write_around`, `sync` and
    `close`.
    """

    def __init__(self, storage: Storage, path: str, lock: threading.Lock, head: bytes) -> None:
        self._storage = storage
        self._path = path
        self._lock = lock
        self._file: StagedFile | None = None
        self._was_interrupted = False  # while the file was made
        self._buffer = memoryview(bytearray(_BUFFER_SMALLEST))
        self._start = 0  # where in the pack the buffer begins; all before it is in the file
        self.end = len(head)  # behind the frames, or behind what an attempt to commit wrote after them
        self._retired: dict[int, memoryview] = {}  # buffers that are full and being written, by where they begin
        self._spare: list[memoryview] = []  # buffers that were written
        self._allocated = 0
        self._length = 0  # of the file, but for what is preallocated
        self._writeback = 0
        self._buffer[: len(head)] = head

    # --- buffers

    def drop_sections(self, start: int) -> None:
        """Forget what an attempt to commit wrote after the frames, which end at `start`."""
        self._start = min(self._start, start)  # above it, the buffer was flushed and is empty
        self.end = start

    def append(self, start: int, head: bytes, offset: int, view: memoryview, end: int) -> int | None:
        """Copy a frame to the buffer. Return what is to be given to `write_retired`, if anything."""
        full = None
        if end - self._start > len(self._buffer):
            full = self.retire(start, end - start)
        buffer, begin = self._buffer, self._start
        head_end, value, value_end = start - begin + len(head), offset - begin, offset - begin + len(view)
        buffer[start - begin : head_end] = head
        if head_end != value:
            buffer[head_end:value] = _ZEROS[: value - head_end]
        if value != value_end:
            buffer[value:value_end] = view
        if value_end != end - begin:
            buffer[value_end : end - begin] = _ZEROS[: end - begin - value_end]
        self.end = end
        return full

    def retire(self, start: int, room: int) -> int | None:
        """Begin a new buffer at `start`, of `room` or more; return where the old one begins, if anything is in it.

        The caller calls `write_retired` when it holds the lock no more.
        """
        begin, end = self._start, self.end
        self._created()
        self._allocate(max(start, end))
        self._length = max(self._length, start, end)
        self._start = self.end = start
        full = None
        if end > begin:  # one that is empty is not noted: the next may begin where it does
            full = begin
            self._retired[begin] = self._buffer[: end - begin]
        if full is not None or room > len(self._buffer):
            size = min(max(4 * len(self._buffer), room), _BUFFER_LARGEST)
            self._buffer = self._spare.pop() if self._spare else memoryview(bytearray(size))
        return full

    def write_retired(self, begin: int) -> None:
        content = self._retired[begin]
        self._created().write(begin, [content])
        self._start_writeback(begin)
        with self._lock:
            del self._retired[begin]
            buffer = memoryview(content.obj)
            if len(buffer) == _BUFFER_LARGEST:
                self._spare.append(buffer)

    def copy_value(self, offset: int, view: memoryview) -> int:
        """Write a long value, for which `retire` has made room; return the checksum of the bytes that were written."""
        checksum, piece = 0, memoryview(bytearray(min(_PIECE, len(view))))
        for at in range(0, len(view), _PIECE):
            part = piece[: len(view) - at]
            part[:] = view[at : at + _PIECE]
            checksum = crc32c(part, checksum)
            self._created().write(offset + at, [part])
        return checksum

    def write_around(self, start: int, before: Sequence[Buffer], behind: bytes, end: int) -> None:
        """Write the rest of a long frame: what lies before its value and behind it."""
        self._created().write(start, before)
        self._created().write(end - len(behind), [behind])
        self._start_writeback(end)

    def write_through(self, start: int, parts: Sequence[Buffer], end: int) -> None:
        """Write whole frames to the file. The buffer is empty."""
        self._allocate(end)
        self._write(start, parts, end)
        self._start = self.end = end
        self._start_writeback(end)

    def put_block(self, start: int, block: memoryview, *, at_once: bool) -> None:
        """Write whole frames, in the buffer if there is room, unless they have to be in the file `at_once`."""
        end = start + len(block)
        self.drop_sections(start)
        if not at_once and end - self._start <= len(self._buffer):
            begin = start - self._start
            self._buffer[begin : begin + len(block)] = block
            self.end = end
            return
        self.flush()
        self.write_through(start, [block], end)

    def flush(self) -> None:
        """Write the buffer to the file."""
        start, end = self._start, self.end
        if end > start:
            self._allocate(end)
            self._write(start, [self._buffer[: end - start]], end)
            self._start = end

    def flush_all(self) -> None:
        """Write the buffer, and the buffers that other threads are about to write."""
        for begin, content in list(self._retired.items()):
            self._created().write(begin, [content])  # the thread that is about to may be too late
        self.flush()

    def read(self, offset: int, length: int) -> bytes:
        for begin, content in ((self._start, self._buffer), *self._retired.items()):
            position = offset - begin
            if position >= 0 and position + length <= len(content):
                return bytes(content[position : position + length])
        return self._created().read(offset, length)

    def write_at(self, offset: int, content: Buffer) -> None:
        """Write what follows the frames: sections, header, footer. A later frame overwrites it."""
        length = memoryview(content).nbytes
        begin, end = offset - self._start, offset + length
        if begin >= 0 and end - self._start <= len(self._buffer):
            gap = self.end - self._start
            if gap < begin:
                self._buffer[gap:begin] = bytes(begin - gap)
            self._buffer[begin : begin + length] = content
            self.end = end
        else:
            self.flush()
            zeros = _ZEROS[: max(offset - self._start, 0)]  # an earlier attempt may have written there
            self._write(offset - len(zeros), [zeros, content], end)
            self._start = self.end = max(self._start, end)

    # --- the file

    def finish(self, length: int) -> None:
        """Write what is buffered and end the file here. It may be longer: preallocated, or by an earlier attempt."""
        self.flush()
        if max(self._allocated, self._length) > length:
            self._created().truncate(length)
            self._allocated, self._length = min(self._allocated, length), length

    def _write(self, start: int, parts: Sequence[Buffer], end: int) -> None:
        """Write to the file, up to `end`.

        The length is noted first: `finish` cuts off, too, what a write left that failed, or that Ctrl-C came after.
        """
        self._length = max(self._length, end)
        self._created().write(start, parts)

    def _created(self) -> StagedFile:
        if self._file is None:
            if self._was_interrupted:  # perhaps when the file had just been made
                self._storage.delete(self._path)
            try:
                self._was_interrupted = True
                self._file = self._storage.create(self._path)
            except Exception:
                self._was_interrupted = False
                raise
        return self._file

    def _allocate(self, end: int) -> None:
        if end > self._allocated and end > PREALLOCATE_FROM:
            begin, stop = self._allocated, end + min(max(end, _STEP_SMALLEST), _STEP_LARGEST)
            self._allocated = stop  # before it is: so `finish` cuts it off even if Ctrl-C comes now
            try:
                self._created().allocate(begin, stop - begin)
            except OSError as error:
                if not is_full(error):
                    raise  # else there may be room for what is written, if not for more

    def _start_writeback(self, end: int) -> None:
        begin = self._writeback
        if end - begin >= _WRITEBACK_STEP:
            self._writeback = end
            self._created().start_writeback(begin, end - begin)

    def sync(self) -> None:
        """Make what was written durable. Raises `OSError`."""
        self._created().sync()

    def close(self) -> bool:
        """Close the file; return whether one was created. It may have been renamed meanwhile."""
        if self._file is None:
            return False
        self._file.close()
        return True


class PackWriter:
    """Appends framed values to one pack that no other transaction sees. Threads may append at the same time.

    The file is created when there is something to write to it: with the first full buffer, at `publish` or at `sync`.
    After `publish` every frame is in the file before `append` returns, for other processes to find it there.
    """

    def __init__(
        self, storage: Storage, path: str, pack_id: bytes, repository_id: bytes, *, participant: int = 0
    ) -> None:
        self.id = pack_id
        self.path = path
        self.number = participant
        self._storage = storage
        self._lock = processes.new_lock()
        self._file = BufferedFile(storage, path, self._lock, packfile.encode_head(pack_id, repository_id, participant))
        self._is_published = False
        self._sequence = 0
        self._end = packfile.HEAD_SIZE  # of the frames

    @classmethod
    def of_participant(cls, storage: Storage, transaction: bytes, participant: int, repository_id: bytes) -> Self:
        """Return the pack that a participant of a transaction stages into; that of 0 becomes the commit file."""
        path, pack_id = (
            names.staging_path(transaction, participant),
            packfile.participants_pack(transaction, participant),
        )
        return cls(storage, path, pack_id, repository_id, participant=participant)

    aside = 0

    def document(self, offset: int) -> bytes | None:
        return None  # to read one takes no request

    def set_aside(self) -> bool:
        return False  # a rename takes as long whatever the length

    @property
    def size(self) -> int:
        """Where the frames end."""
        return self._end

    @property
    def sequence(self) -> int:
        return self._sequence

    def ends(self) -> dict[int, int]:
        return {self.number: self._end}

    def append(self, kind: int, key: bytes, value: Buffer, *, seen: Seen, region: bytes = b"") -> Staged:
        """Append one frame.

        `value` is any contiguous buffer of bytes; it is not needed afterwards. If another thread changes it meanwhile,
        its frame has what was copied, and the checksum of that. `region` is that of a partial frame, encoded. Raises
        `OSError`.
        """
        view, file = bytes_of(value), self._file
        length, checksum = len(view), None
        if length < _WRITTEN_DIRECTLY or self._is_published:
            view = own_bytes_of(value)
            checksum = crc32c(view)
        with self._lock:
            if checksum is None and self._is_published:  # since then
                view = own_bytes_of(value)
                checksum = crc32c(view)
            start, sequence = self._end, self._sequence
            head, offset, end = lay_frame(start, kind, seen, sequence, key, length, checksum or 0, region)
            if file.end != start:
                file.drop_sections(start)
            if self._is_published:
                # Under the lock: no frame follows one that is not complete.
                file.write_through(start, frame_parts(start, head, offset, view, end), end)
                self._sequence += 1
                self._end = end
                return Staged(offset, length, checksum or 0, sequence)
            self._sequence += 1
            self._end = end
            full = file.retire(end, 0) if checksum is None else file.append(start, head, offset, view, end)
        if full is not None:
            # Not under the lock: a thread that waits for it would wait for the disk, and then for the interpreter's
            # lock.
            file.write_retired(full)
        if checksum is None:
            checksum = file.copy_value(offset, view)
            head, _, _ = lay_frame(start, kind, seen, sequence, key, length, checksum, region)
            *before, _, behind = frame_parts(start, head, offset, view, end)
            file.write_around(start, before, bytes(behind), end)
        return Staged(offset, length, checksum, sequence)

    def append_batch(
        self, batch: Frames, keys: tuple[bytes, ...], seen: Buffer, threads: int, base: Located | None
    ) -> bool:
        """Append many frames, as a batch encodes them. Raises `OSError`."""
        packs, table = ([], b"") if base is None else (base.buffers, base.table)
        most = batch.bound + max(map(len, keys), default=0)
        arena = memoryview(bytearray(max(most, min(_ARENA, len(keys) * most))))
        while True:
            with self._lock:
                start = self._end
                used, count = batch.encode(keys, seen, arena, start, self._sequence, threads, packs, table)
                if not count:
                    return True
                self._file.put_block(start, arena[:used], at_once=self._is_published)
                self._sequence += count
                self._end = start + used

    def publish(self) -> None:
        """Let the other processes of the transaction find every frame, from now on as soon as it is appended.

        Of writes that are going on in other threads, the frames come to be when these are done. Raises `OSError`.
        """
        with self._lock:
            if not self._is_published:
                self._file.flush_all()
                self._is_published = True

    def flush(self) -> None:
        """Of what is published, each frame was in the file before `append` returned."""

    def create(self) -> None:
        """Create the file now, with what was appended. Raises `FileExistsError` if there is one of this name."""
        with self._lock:
            self._file.flush()

    def read(self, staged: Staged) -> bytes:
        """Return a value that was appended here. Raises `CorruptionError` if it is no longer what was written."""
        with self._lock:
            value = self._file.read(staged.offset, staged.length)
        if len(value) != staged.length or crc32c(value) != staged.checksum:
            raise CorruptionError(self.path, offset=staged.offset, reason="a staged value has changed on the disk")
        return value

    def write_at(self, offset: int, content: Buffer) -> None:
        """Write what follows the frames: sections, header, footer. A later frame overwrites it."""
        with self._lock:
            self._file.write_at(offset, content)

    def finish(self, length: int) -> None:
        """Write what is buffered and end the file here.

        What another thread has appended since the caller has looked at `size` is kept.
        """
        with self._lock:
            self._file.finish(max(length, self._end))

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> bool:
        """Close the file; return whether one was created. It may have been renamed meanwhile."""
        return self._file.close()

    def drop(self) -> None:
        """Close the file and delete it. Raises `OSError`."""
        if self.close():
            self._storage.delete(self.path)

    def release(self) -> None:
        """Close the file and delete the name that it has below `.staging/`: what was committed has another."""
        self.drop()

    def close_between_reads(self) -> None:
        """Close the file while no other thread reads it: the number of its descriptor may be used anew at once."""
        with self._lock:
            self.close()


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


Frames = chunks.Batch | FrameBatch  # to append, which are encoded a few at a time

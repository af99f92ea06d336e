"""Writing a pack under the hidden prefix, and reading values out of finished packs."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from txstore import processes
from txstore._native import chunks, local
from txstore.errors import CorruptionError, is_full
from txstore.format import encoding, names, packfile
from txstore.format.encoding import crc32c
from txstore.format.packfile import PackName, Predecessor, Seen, encode_frame, frame_layout
from txstore.storage.interface import GONE, Mapped, StagedFile, Storage

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import Buffer

#: From this length on a pack is preallocated (several times faster than growing it write by write) in steps.
PREALLOCATE_FROM = 1 << 20
_STEP_SMALLEST, _STEP_LARGEST = 4 << 20, 64 << 20
#: The kernel is asked to start writing behind us in steps, so that the sync of a large commit finds little to do.
_WRITEBACK_STEP = 8 << 20

#: Maps without users that a process keeps at once, of all its repositories. The kernel allows it
#: 65,530 by default, for all that it maps.
MAX_MAPS = 16_384

#: Frames are collected up to this length, so that small values cost a copy each and no system call. A transaction of
#: this process alone is lost with it anyway; what others have to find (I8) is flushed before `append` returns.
_BUFFER_SMALLEST, _BUFFER_LARGEST = 16 << 10, 1 << 20
#: A value from this length on is written from where it lies.
_WRITTEN_DIRECTLY = 128 << 10

#: How much of a batch of chunks is encoded before it is written: little, so that it is still in the processor's cache.
_ARENA = 4 << 20

_ZEROS = bytes(packfile.ALIGNMENT)
_SWEPT_FROM = 64

Key = TypeVar("Key")
Opened = TypeVar("Opened")


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
    def append_chunks(self, batch: chunks.Batch, keys: tuple[bytes, ...], seen: Buffer, threads: int) -> bool:
        """Append many frames at once, if this can; return whether it has."""

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
        self._file: StagedFile | None = None
        self._was_interrupted = False  # while the file was made
        self._is_published = False
        self._lock = processes.new_lock()
        self._sequence = 0
        self._end = packfile.HEAD_SIZE  # of the frames
        self._buffer = memoryview(bytearray(_BUFFER_SMALLEST))
        self._buffer_start = 0  # where in the pack the buffer begins; all before it is in the file
        self._buffer_end = packfile.HEAD_SIZE
        self._retired: dict[int, memoryview] = {}  # buffers that are full and being written, by where they begin
        self._spare: list[memoryview] = []  # buffers that were written
        self._allocated = 0
        self._length = 0  # of the file, but for what is preallocated
        self._writeback = 0
        self._buffer[: packfile.HEAD_SIZE] = packfile.encode_head(pack_id, repository_id, participant)

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

        `value` is any contiguous buffer of bytes; it is not needed afterwards. `region` is that of a partial frame,
        encoded. Raises `OSError`.
        """
        view = memoryview(value)
        length = view.nbytes
        if length:
            view = view.cast("B")
        checksum = crc32c(view)
        with self._lock:
            start, sequence = self._end, self._sequence
            offset, end = frame_layout(start, len(key), length, isinstance(seen, Predecessor), region)
            frame = encode_frame(kind, seen, sequence, key, length, checksum, region)
            if self._is_published:
                self._write_through(start, frame, offset, view, end)
                return Staged(offset, length, checksum, sequence)
            self._sequence += 1
            self._end = end
            self._drop_sections(start)
            directly = length >= _WRITTEN_DIRECTLY
            full = None
            if directly:
                full = self._retire_buffer(end, 0)
            else:
                if end - self._buffer_start > len(self._buffer):
                    full = self._retire_buffer(start, end - start)
                self._fill_buffer(start, frame, offset, view, end)
        if full is not None:
            # Not under the lock: a thread that waits for it would wait for the disk, and then for the interpreter's
            # lock.
            self._write_retired(full)
        if directly:
            padding = _ZEROS[: offset - start - len(frame)], _ZEROS[: end - offset - length]
            self._created().write(start, [frame, padding[0], view, padding[1]])
            self._start_writeback(end)
        return Staged(offset, length, checksum, sequence)

    def append_chunks(self, batch: chunks.Batch, keys: tuple[bytes, ...], seen: Buffer, threads: int) -> bool:
        """Append the frames of many chunks, as a batch encodes them; see `chunks.Batch`. Raises `OSError`."""
        most = batch.bound + max(map(len, keys), default=0)
        arena = memoryview(bytearray(max(most, min(_ARENA, len(keys) * most))))
        while True:
            with self._lock:
                start = self._end
                used, count = batch.encode(keys, seen, arena, start, self._sequence, threads)
                if not count:
                    return True
                self._put_block(start, arena[:used])
                self._sequence += count
                self._end = start + used

    def _put_block(self, start: int, block: memoryview) -> None:
        """Write whole frames, in the buffer if there is room; the caller holds the lock."""
        end = start + len(block)
        self._drop_sections(start)
        if not self._is_published and end - self._buffer_start <= len(self._buffer):
            begin = start - self._buffer_start
            self._buffer[begin : begin + len(block)] = block
            self._buffer_end = end
            return
        self._flush()
        self._allocate(end)
        self._write(start, [block], end)
        self._buffer_start = self._buffer_end = end
        self._start_writeback(end)

    def _write_through(self, start: int, frame: bytes, offset: int, view: memoryview, end: int) -> None:
        """Write one frame to the file; the caller holds the lock, so that no frame follows one that is not complete."""
        self._drop_sections(start)
        self._allocate(end)
        padding = _ZEROS[: offset - start - len(frame)], _ZEROS[: end - offset - len(view)]
        self._write(start, [frame, padding[0], view, padding[1]], end)
        self._sequence += 1
        self._end = self._buffer_start = self._buffer_end = end
        self._start_writeback(end)

    def publish(self) -> None:
        """Let the other processes of the transaction find every frame, from now on as soon as it is appended.

        Of writes that are going on in other threads, the frames come to be when these are done. Raises `OSError`.
        """
        with self._lock:
            if not self._is_published:
                for begin, content in list(self._retired.items()):
                    self._created().write(begin, [content])  # the thread that is about to may be too late
                self._flush()
                self._is_published = True

    def flush(self) -> None:
        """Of what is published, each frame was in the file before `append` returned."""

    def _drop_sections(self, start: int) -> None:
        """Forget what an attempt to commit wrote after the frames, which end at `start`; the caller holds the lock."""
        self._buffer_start = min(self._buffer_start, start)  # above it, the buffer was flushed and is empty
        self._buffer_end = start

    def _fill_buffer(self, start: int, frame: bytes, offset: int, view: memoryview, end: int) -> None:
        """Copy one frame, for which there is room; the caller holds the lock."""
        buffer, begin = self._buffer, self._buffer_start
        frame_end, value, value_end = start - begin + len(frame), offset - begin, offset - begin + len(view)
        buffer[start - begin : frame_end] = frame
        if frame_end != value:
            buffer[frame_end:value] = _ZEROS[: value - frame_end]
        if value != value_end:
            buffer[value:value_end] = view
        if value_end != end - begin:
            buffer[value_end : end - begin] = _ZEROS[: end - begin - value_end]
        self._buffer_end = end

    def _retire_buffer(self, start: int, room: int) -> int | None:
        """Begin a new buffer at `start`, of `room` or more; return where the old one begins, if anything is in it.

        The caller holds the lock, and calls `_write_retired` when it does no more.
        """
        begin, end = self._buffer_start, self._buffer_end
        self._created()
        self._allocate(max(start, end))
        self._length = max(self._length, start, end)
        self._buffer_start = self._buffer_end = start
        full = None
        if end > begin:  # one that is empty is not noted: the next may begin where it does
            full = begin
            self._retired[begin] = self._buffer[: end - begin]
        if full is not None or room > len(self._buffer):
            size = min(max(4 * len(self._buffer), room), _BUFFER_LARGEST)
            self._buffer = self._spare.pop() if self._spare else memoryview(bytearray(size))
        return full

    def _write_retired(self, begin: int) -> None:
        content = self._retired[begin]
        self._created().write(begin, [content])
        self._start_writeback(begin)
        with self._lock:
            del self._retired[begin]
            buffer = memoryview(content.obj)
            if len(buffer) == _BUFFER_LARGEST:
                self._spare.append(buffer)

    def _flush(self) -> None:
        """Write the buffer to the file; the caller holds the lock, and no thread appends."""
        start, end = self._buffer_start, self._buffer_end
        if end > start:
            self._allocate(end)
            self._write(start, [self._buffer[: end - start]], end)
            self._buffer_start = end

    def _write(self, start: int, parts: Sequence[Buffer], end: int) -> None:
        """Write to the file, up to `end`; the caller holds the lock.

        The length is noted first: `finish` cuts off, too, what a write left that failed, or that Ctrl-C came after.
        """
        self._length = max(self._length, end)
        self._created().write(start, parts)

    def _created(self) -> StagedFile:
        if self._file is None:
            if self._was_interrupted:  # perhaps when the file had just been made
                self._storage.delete(self.path)
            try:
                self._was_interrupted = True
                self._file = self._storage.create(self.path)
            except Exception:
                self._was_interrupted = False
                raise
        return self._file

    def create(self) -> None:
        """Create the file now, with what was appended. Raises `FileExistsError` if there is one of this name."""
        with self._lock:
            self._flush()

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

    def read(self, staged: Staged) -> bytes:
        """Return a value that was appended here. Raises `CorruptionError` if it is no longer what was written."""
        with self._lock:
            value = self._buffered(staged)
            if value is None:
                value = self._created().read(staged.offset, staged.length)
        if len(value) != staged.length or crc32c(value) != staged.checksum:
            raise CorruptionError(self.path, offset=staged.offset, reason="a staged value has changed on the disk")
        return value

    def _buffered(self, staged: Staged) -> bytes | None:
        """Return a value that is not in the file yet; the caller holds the lock."""
        for begin, content in ((self._buffer_start, self._buffer), *self._retired.items()):
            position = staged.offset - begin
            if position >= 0 and position + staged.length <= len(content):
                return bytes(content[position : position + staged.length])
        return None

    def write_at(self, offset: int, content: Buffer) -> None:
        """Write what follows the frames: sections, header, footer. A later frame overwrites it."""
        length = memoryview(content).nbytes
        with self._lock:
            begin, end = offset - self._buffer_start, offset + length
            if begin >= 0 and end - self._buffer_start <= len(self._buffer):
                gap = self._buffer_end - self._buffer_start
                if gap < begin:
                    self._buffer[gap:begin] = bytes(begin - gap)
                self._buffer[begin : begin + length] = content
                self._buffer_end = end
            else:
                self._flush()
                zeros = _ZEROS[: max(offset - self._buffer_start, 0)]  # an earlier attempt may have written there
                self._write(offset - len(zeros), [zeros, content], end)
                self._buffer_start = self._buffer_end = max(self._buffer_start, end)

    def finish(self, length: int) -> None:
        """Write what is buffered and end the file here. It may be longer: preallocated, or by an earlier attempt.

        What another thread has appended since the caller has looked at `size` is kept.
        """
        with self._lock:
            self._flush()
            length = max(length, self._end)
            if max(self._allocated, self._length) > length:
                self._created().truncate(length)
                self._allocated, self._length = min(self._allocated, length), length

    def sync(self) -> None:
        """Make what was written durable. Raises `OSError`."""
        self._created().sync()

    def close(self) -> bool:
        """Close the file; return whether one was created. It may have been renamed meanwhile."""
        if self._file is None:
            return False
        self._file.close()
        return True

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


class MissingPackError(CorruptionError):
    """There is no such file. Internal: what that means depends on who wanted it."""


#: Called when a file is missing, before `MissingPackError` is raised: it may raise what it knows better.
Missing = Callable[[], object]


class Pack(Protocol):
    """A finished pack, wherever it lies. Reading raises `CorruptionError`, also where the pack ends too early."""

    path: str

    @property
    def may_be_replaced(self) -> bool:
        """Whether another file may have the same path by now, so that each value's checksum has to be compared."""

    @property
    def size(self) -> int:
        """The length in bytes. A request, of a pack that lies elsewhere."""

    def view(self, offset: int, length: int, checksum: int, key: str | None = None) -> memoryview:
        """Return a whole value, after comparing its checksum."""

    def part(self, offset: int, length: int, part: slice, key: str | None = None) -> memoryview:
        """Return a part of a value without comparing the checksum, which covers the whole."""

    def section(self, offset: int, length: int) -> Mapped:
        """Return the buffer of a run."""


class OpenPack:
    """A finished pack: its values as views of the mapped file."""

    may_be_replaced = False

    def __init__(self, path: str, mapped: Mapped, pack_id: bytes) -> None:
        self.path = path
        self._mapped = mapped
        check_head(path, bytes(memoryview(mapped)[: packfile.HEAD_SIZE]), pack_id)

    @property
    def mapped(self) -> Mapped:
        """The file: a buffer, which stays mapped as long as anybody has it."""
        return self._mapped

    @property
    def size(self) -> int:
        return len(memoryview(self._mapped))

    def view(self, offset: int, length: int, checksum: int, key: str | None = None) -> memoryview:
        try:
            return local.view(self._mapped, offset, length, checksum)
        except ValueError as error:
            raise CorruptionError(self.path, offset=offset, key=key, reason=str(error)) from error

    def part(self, offset: int, length: int, part: slice, key: str | None = None) -> memoryview:
        value = memoryview(self._mapped)[offset : offset + length]
        if len(value) != length:
            raise CorruptionError(self.path, offset=offset, key=key, reason="the value reaches beyond the file")
        return value[part]

    def section(self, offset: int, length: int) -> Mapped:
        return memoryview(self._mapped)[offset : offset + length]


def check_head(path: str, head: bytes, pack_id: bytes) -> None:
    """Raise `CorruptionError` unless these are the first bytes of a pack of this id."""
    if packfile.is_head_of(head, pack_id):
        return
    try:
        found, _, _ = packfile.decode_head(head)
    except encoding.MalformedError as error:
        raise CorruptionError(path, offset=0, reason=error.reason) from error
    raise CorruptionError(path, offset=0, reason=f"this is pack {found.hex()}, expected {pack_id.hex()}")


class PackSource(Protocol):
    """What finished packs are opened by."""

    is_ranged: bool
    """Whether packs are read by ranges, each a request, and not mapped."""

    def get(self, name: PackName, missing: Missing | None = None) -> Pack:
        """Return a pack. Raises `CorruptionError`, here or when the pack is read."""


class Kept(dict[Key, Opened]):
    """What is kept open to be used again: it is let go with this, or, the oldest first, when a process has too much."""

    __slots__ = ("__weakref__",)

    def keep(self, key: Key, opened: Opened) -> None:
        self[key] = opened
        _order.append((weakref.ref(self), key))
        if len(_order) > MAX_MAPS:
            _thin_out()


#: What is in all `Kept` of the process, the oldest first. No lock: each step is one that other threads see whole, and
#: a finalizer, which may come here at any point, waits for no thread.
_order: deque[tuple[weakref.ref[Kept[Any, Any]], Any]] = deque()


def _thin_out() -> None:
    """Forget what is gone; where that is little, let go of the oldest."""
    with suppress(IndexError):  # another thread does it, too
        for _ in range(len(_order)):
            kept, key = _order.popleft()
            if key in (kept() or ()):
                _order.append((kept, key))
        while len(_order) > MAX_MAPS * 3 // 4:
            kept, key = _order.popleft()
            if (holder := kept()) is not None:
                holder.pop(key, None)


@processes.in_child
def _forget_what_was_inherited() -> None:
    """A forked child opens again what it reads, since it pins it then: what its parent has pinned ends with that."""
    for kept, _ in _order:
        if (holder := kept()) is not None:
            holder.clear()
    _order.clear()


class Packs:
    """The packs of one repository that are mapped, each as long as anybody has it. No descriptor is held.

    A reader of a pack keeps it open: a run keeps the file that it lies in, a snapshot the packs that its runs have led
    to (see `Kept`), a view what it shows. Nothing else does: a file that a vacuum has deleted takes space as long as it
    is mapped.
    """

    is_ranged = False

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._open: dict[bytes, weakref.ref[OpenPack]] = {}
        self._swept_at = _SWEPT_FROM  # number of entries at which dead ones are swept

    def get(self, name: PackName, missing: Missing | None = None) -> OpenPack:
        found = self._open.get(name.id)
        pack = None if found is None else found()
        return self._map(name, missing) if pack is None else pack

    def _map(self, name: PackName, missing: Missing | None) -> OpenPack:
        path = name.path
        try:
            mapped = self._storage.map(path)
        except GONE as error:
            if missing is not None:
                missing()
            # Never a missing key (I4): zarr would turn it into fill values.
            raise MissingPackError(path, reason="the file is missing") from error
        pack = OpenPack(path, mapped, name.id)
        self._open[name.id] = weakref.ref(pack)
        if len(self._open) > self._swept_at:
            self._open = {key: found for key, found in list(self._open.items()) if found() is not None}
            self._swept_at = max(_SWEPT_FROM, 2 * len(self._open))
        return pack

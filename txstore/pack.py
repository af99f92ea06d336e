"""Writing a pack under the hidden prefix, and reading values out of finished packs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txstore import format
from txstore._native import local
from txstore.errors import CorruptionError
from txstore.format import PackName
from txstore.storage import Mapped, StagedFile, Storage

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: From this length on a pack is preallocated (several times faster than growing it write by write) in steps.
PREALLOCATE_FROM = 1 << 20
_STEP_SMALLEST, _STEP_LARGEST = 4 << 20, 64 << 20
#: The kernel is asked to start writing behind us in steps, so that the sync of a large commit finds little to do.
_WRITEBACK_STEP = 8 << 20

#: Maps held at once. The kernel allows a process 65,530 by default.
MAX_MAPS = 16_384

_PADDING = bytes(format.ALIGNMENT)


@dataclass(frozen=True, slots=True)
class Staged:
    """Where a staged value lies in its transaction's own pack."""

    offset: int
    length: int
    checksum: int


class PackWriter:
    """Appends framed values to one pack that nobody else sees. Threads may append at the same time."""

    def __init__(self, storage: Storage, path: str, pack_id: bytes, repository_id: bytes) -> None:
        self.id = pack_id
        self.path = path
        self._file: StagedFile = storage.create(path)
        self._lock = threading.Lock()
        self._sequence = 0
        self._allocated = 0
        self._highest = 0  # end of what was written after the frames
        self._writeback = 0
        self._end = format.HEAD_SIZE
        self._file.write(0, [format.encode_head(pack_id, repository_id)])

    @property
    def size(self) -> int:
        return self._end

    def append(self, kind: int, key: bytes, value: Buffer, *, seen: bool) -> Staged:
        """Append one frame. When this returns, a killed process has not lost it (I8).

        `value` is any contiguous buffer of bytes; it is not needed afterwards. Raises `OSError`.
        """
        length = memoryview(value).nbytes
        checksum = local.crc32c(value)
        with self._lock:
            start = self._end
            offset, end = format.frame_layout(start, len(key), length)
            sequence = self._sequence
            if end > self._allocated and end > PREALLOCATE_FROM:
                step = min(max(end, _STEP_SMALLEST), _STEP_LARGEST)
                self._file.allocate(self._allocated, end + step - self._allocated)
                self._allocated = end + step
            self._sequence += 1
            self._end = end
        frame = format.encode_frame(kind, seen, sequence, key, length, checksum)
        self._file.write(start, [frame, _PADDING[: offset - start - len(frame)], value])
        if start - self._writeback >= _WRITEBACK_STEP:
            begin, self._writeback = self._writeback, start
            self._file.start_writeback(begin, start - begin)
        return Staged(offset, length, checksum)

    def read(self, staged: Staged) -> bytes:
        """Return a value that was appended here. Raises `CorruptionError` if it is no longer what was written."""
        value = self._file.read(staged.offset, staged.length)
        if len(value) != staged.length or local.crc32c(value) != staged.checksum:
            raise CorruptionError(self.path, offset=staged.offset, reason="a staged value has changed on the disk")
        return value

    def write_at(self, offset: int, content: bytes) -> None:
        """Write what follows the frames: sections, header, footer. A later frame overwrites it."""
        self._file.write(offset, [content])
        self._highest = max(self._highest, offset + len(content))

    def truncate(self, length: int) -> None:
        """End the file here. It may be longer: preallocated, or by an earlier attempt to commit."""
        if max(self._allocated, self._highest) > length:
            self._file.truncate(length)
            self._allocated, self._highest = min(self._allocated, length), length

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()


class OpenPack:
    """A finished pack: its values as views of the mapped file."""

    def __init__(self, path: str, mapped: Mapped, pack_id: bytes) -> None:
        self.path = path
        self.mapped = mapped
        try:
            found, _, _ = format.decode_head(bytes(memoryview(mapped)[: format.HEAD_SIZE]))
        except format.MalformedError as error:
            raise CorruptionError(path, offset=0, reason=error.reason) from error
        if found != pack_id:
            raise CorruptionError(path, offset=0, reason=f"this is pack {found.hex()}, expected {pack_id.hex()}")

    def view(self, offset: int, length: int, checksum: int, key: str | None = None) -> memoryview:
        """Return a whole value, after comparing its checksum."""
        try:
            return local.view(self.mapped, offset, length, checksum)
        except ValueError as error:
            raise CorruptionError(self.path, offset=offset, key=key, reason=str(error)) from error


class Packs:
    """The packs of one repository that are mapped: at most `MAX_MAPS`, the least recently used go first.

    Views that were handed out keep their map alive; no descriptor is held.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._open: OrderedDict[bytes, OpenPack] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: PackName) -> OpenPack:
        pack = self._open.get(name.id)
        return self._map(name) if pack is None else pack

    def _map(self, name: PackName) -> OpenPack:
        try:
            mapped = self._storage.map(name.path)
        except FileNotFoundError as error:
            # Never a missing key (I4): zarr would turn it into fill values.
            raise CorruptionError(name.path, reason="the file is missing") from error
        pack = OpenPack(name.path, mapped, name.id)
        with self._lock:
            self._open[name.id] = pack
            if len(self._open) > MAX_MAPS:
                self._open.popitem(last=False)
        return pack

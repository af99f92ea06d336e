"""Checks the parts of one file: the frames of a pack, its sections, a run. It notes each fault and continues.

Files are read in windows, not mapped: if a disk fails during a read, that is an error and not a signal.
"""

from __future__ import annotations

import mmap
import tempfile
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from txstore._native import index
from txstore.commit import Stored
from txstore.format import commitfile, encoding, packfile
from txstore.format.carried import decode_carried
from txstore.format.commitfile import RunName
from txstore.format.encoding import crc32c
from txstore.format.packfile import Frame, PackName
from txstore.maintenance.report import Fault
from txstore.segments.runs import open_listed
from txstore.storage.foreign_values import ForeignRange

_WINDOW = 1 << 20
#: The longest beginning of a frame: header, key, predecessor, and the padding before the value.
_FRAME_HEAD_MOST = packfile.FRAME_HEAD_MOST + (1 << 16) + packfile.ALIGNMENT


#: Reads a part of a file: of a storage, or of what was fetched from one.
ReadRange = Callable[[str, int, int], bytes]


class Window:
    """One file, read from left to right. Raises `OSError`."""

    def __init__(self, read_range: ReadRange, path: str) -> None:
        self.path = path
        self._read_range = read_range
        self._begin = 0
        self._data = memoryview(b"")

    def at(self, offset: int, length: int) -> memoryview:
        """Return a part of the file; shorter only where the file ends."""
        start = offset - self._begin
        if start < 0 or start + length > len(self._data):
            self._data = memoryview(self._read_range(self.path, offset, max(length, _WINDOW)))
            self._begin, start = offset, 0
        return self._data[start : start + length]

    def _some(self, offset: int, most: int) -> memoryview:
        start = offset - self._begin
        if not 0 <= start < len(self._data):
            return self.at(offset, min(most, _WINDOW))
        return self._data[start : start + most]

    def checksum(self, offset: int, length: int) -> int | None:
        """Return the checksum of a part; None if the file ends before it does."""
        checksum = 0
        while length:
            part = self._some(offset, length)
            if not part:
                return None
            checksum = crc32c(part, checksum)
            offset, length = offset + len(part), length - len(part)
        return checksum

    def is_zero(self, start: int, end: int) -> bool:
        while start < end:
            part = self._some(start, end - start)
            if not part or any(part):
                return False
            start += len(part)
        return True

    def frame(self, position: int, end: int) -> Frame | None:
        """Return the frame that begins at `position` and ends by `end`; None if there is none."""
        room = self.at(position, min(end - position, _FRAME_HEAD_MOST))
        try:
            frame = packfile.decode_frame(room, position, begin=position, size=end)
        except encoding.MalformedError:
            return None
        return frame if frame.end <= end else None


def walk_frames(window: Window, end: int) -> Iterator[tuple[int, Frame | None]]:
    """Yield the offset and the frame of each frame of a pack up to `end`; None in place of a damaged frame."""
    position, sequence = packfile.HEAD_SIZE, 0
    while position < end:
        frame = window.frame(position, end)
        if frame is not None and frame.sequence == sequence:
            yield position, frame
            position, sequence = frame.end, sequence + 1
            continue
        yield position, None
        found = _next_frame(window, position, end, sequence)
        if found is None:
            return
        position, sequence = found


def _next_frame(window: Window, damaged: int, end: int, sequence: int) -> tuple[int, int] | None:
    """Return the offset and the number of the first frame after a damaged one."""
    fixed = bytes(window.at(damaged, packfile.FRAME.size))
    if (
        len(fixed) == packfile.FRAME.size
    ):  # its lengths may still be right: then bytes inside a value are not mistaken for a frame
        _, kind, seen, key_length, _, length, _ = packfile.FRAME.unpack(fixed)
        rest = window.at(damaged + packfile.FRAME_SIZE, _FRAME_HEAD_MOST)
        before = packfile.rest_length(kind, seen, key_length, rest)
        _, guess = packfile.frame_layout(damaged, before, length)
        frame = window.frame(guess, end) if guess < end else None
        if frame is not None and frame.sequence == sequence + 1:
            return guess, frame.sequence
    position = damaged + 8
    while position < end:
        part = bytes(window.at(position, min(_WINDOW, end - position)))
        if not part:  # the file ends here
            return None
        at = part.find(b"TXFR")
        while at >= 0:
            frame = window.frame(position + at, end) if not (position + at) % 8 else None
            if frame is not None and frame.sequence > sequence:
                return position + at, frame.sequence
            at = part.find(b"TXFR", at + 1)
        position += max(len(part) - 3, 1) // 8 * 8 or 8
    return None


class _Slice(NamedTuple):
    """The frames of one pack among `Values`. `is_whole`: all of them were found."""

    start: int
    frames: int
    is_whole: bool


#: Offsets, lengths, checksums and kinds of the frames of one pack, and whether all of them were found.
_Views = tuple[memoryview, memoryview, memoryview, memoryview, bool]


class Values:
    """Where the frames of many packs hold their values, to check refs against. In a scratch file, 21 bytes a frame."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 it lives as long as this
        self._map: memoryview | None = None
        self._end = 0
        self._packs: dict[bytes, _Slice] = {}
        self._views: dict[bytes, _Views] = {}

    def close(self) -> None:
        self._map = None
        self._views = {}
        self._file.close()

    def add(
        self,
        pack_id: bytes,
        offsets: array[int],
        lengths: array[int],
        sums: array[int],
        kinds: array[int],
        *,
        whole: bool,
    ) -> None:
        """Add the frames of a pack, in their order; `kinds` are those of the refs that may lead to them."""
        self._packs[pack_id] = _Slice(self._end, len(offsets), whole)
        content = offsets.tobytes() + lengths.tobytes() + sums.tobytes() + kinds.tobytes()
        self._file.write(content + bytes(-len(content) % 8))
        self._end += -(-len(content) // 8) * 8

    def has(self, pack_id: bytes, kind: int, offset: int, length: int, checksum: int) -> bool | None:
        """Tell whether a frame holds the value of a ref of this kind; None if not all frames of the pack are known."""
        found = self._views.get(pack_id) or self._view(pack_id)
        if found is None:
            return None
        offsets, lengths, checksums, kinds, is_whole = found
        i = bisect_left(offsets, offset)
        while i < len(offsets) and offsets[i] == offset:  # empty values may share an offset
            if (lengths[i], checksums[i], kinds[i]) == (length, checksum, kind):
                return True
            i += 1
        return False if is_whole else None

    def _view(self, pack_id: bytes) -> _Views | None:
        found = self._packs.get(pack_id)
        if found is None:
            return None
        if self._map is None:
            self._file.write(bytes(8))  # an empty file can't be mapped
            self._file.flush()
            self._map = memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
        lengths_at = found.start + 8 * found.frames
        sums_at = lengths_at + 8 * found.frames
        kinds_at = sums_at + 4 * found.frames
        self._views[pack_id] = views = (
            self._map[found.start : lengths_at].cast("Q"),
            self._map[lengths_at:sums_at].cast("Q"),
            self._map[sums_at:kinds_at].cast("I"),
            self._map[kinds_at : kinds_at + found.frames],
            found.is_whole,
        )
        return views


@dataclass(slots=True)
class Checked:
    """The counts of one pack."""

    values: int = 0
    end: int = packfile.HEAD_SIZE  # of the frames
    is_whole: bool = True  # every frame was found
    runs: set[tuple[int, int]] = field(default_factory=set)  # offset and length of the runs that frames hold
    faults: list[Fault] = field(default_factory=list)


def check_frames(
    read_range: ReadRange, name: PackName, repository_id: bytes, end: int, values: Values | None = None, path: str = ""
) -> Checked:
    """Check head and frames of a pack, which end at `end`. Raises `OSError`.

    `path` is given if the pack is not at its own path.
    """
    window, checked = Window(read_range, path or name.path), Checked()
    offsets, lengths, sums, kinds = array("Q"), array("Q"), array("I"), array("B")

    def note(offset: int, part: str, reason: str, key: bytes | None = None) -> None:
        shown = None if key is None else key.decode(errors="backslashreplace")
        checked.faults.append(Fault(name.path, reason, offset, shown, part))

    reason = fault_of_head(bytes(window.at(0, packfile.HEAD_SIZE)), name, repository_id)
    if reason:
        note(0, "head", reason)
    for position, frame in walk_frames(window, end):
        if frame is None:
            note(position, "frame", "no whole frame is where one should begin")
            checked.is_whole = False
            continue
        checked.values += 1
        checked.end = frame.end
        offsets.append(frame.offset)
        lengths.append(frame.length)
        sums.append(frame.checksum)
        kinds.append(_ref_of(frame))
        if not window.is_zero(frame.head_end, frame.offset):
            note(frame.head_end, "padding", "the padding of a frame is not zero")
        if frame.is_erased:
            if not window.is_zero(frame.offset, frame.offset + frame.length):
                note(frame.offset, "erasure", "the value was erased, and something is there", frame.key)
        elif frame.kind == packfile.FRAME_RUN:
            checked.runs.add((frame.offset, frame.length))
        elif frame.kind in (packfile.FRAME_VALUE, packfile.FRAME_PARTIAL) or frame.length:
            computed = window.checksum(frame.offset, frame.length)
            if computed != frame.checksum:
                what = "reaches beyond the file" if computed is None else "has a wrong checksum"
                note(frame.offset, "value", f"the value {what}", frame.key or None)
            elif frame.kind == packfile.FRAME_FOREIGN and (reason := _fault_of_record(window, frame)):
                note(frame.offset, "value", reason, frame.key)
        if not window.is_zero(frame.offset + frame.length, frame.end):
            note(frame.offset + frame.length, "padding", "the padding of a frame is not zero")
    if values is not None:
        values.add(name.id, offsets, lengths, sums, kinds, whole=checked.is_whole)
    return checked


def _ref_of(frame: Frame) -> int:
    """Return the kind of refs that may lead to a frame's content; `REF_TOMBSTONE` if no ref may."""
    if frame.is_erased:
        return packfile.REF_ERASED
    if frame.kind == packfile.FRAME_MERGED and frame.length:
        return packfile.REF_PACK
    return packfile.REF_OF_FRAME.get(frame.kind, packfile.REF_TOMBSTONE)


def _fault_of_record(window: Window, frame: Frame) -> str | None:
    try:
        ForeignRange.decode(bytes(window.at(frame.offset, frame.length)))
    except encoding.MalformedError as error:
        return error.reason
    return None


def fault_of_head(head: bytes, name: PackName, repository_id: bytes) -> str | None:
    """Return what is wrong with the head of a pack; None: nothing."""
    try:
        found = packfile.decode_head(head)
    except encoding.MalformedError as error:
        return error.reason
    return None if found[:2] == (name.id, repository_id) else "the pack's head names another pack or repository"


def frames_end(stored: Stored) -> int:
    """Return where the frames of a commit file end, including the padding after them."""
    return min((section.offset for section in stored.header.sections), default=stored.footer.header_offset)


def gaps_between_sections(stored: Stored) -> Iterator[tuple[int, int]]:
    """Yield where each gap before a section, or before the header, begins and ends."""
    position = frames_end(stored)
    parts = sorted((section.offset, section.length) for section in stored.header.sections)
    for offset, length in [*parts, (stored.footer.header_offset, 0)]:
        yield position, offset
        position = offset + length


def check_sections(read_range: ReadRange, stored: Stored, path: str = "") -> list[Fault]:
    """Check that sections and header follow each other without gaps. Raises `OSError`."""
    window, faults = Window(read_range, path or stored.path), []
    header = stored.header
    runs = {(run.offset, run.length) for run in header.runs if run.pack is None}
    for start, stop in gaps_between_sections(stored):
        if stop < start:
            faults.append(Fault(stored.path, "sections overlap", stop))
        elif not window.is_zero(start, stop):
            faults.append(Fault(stored.path, "there is something between the sections", start, part="padding"))
    for section in header.sections:
        if section.kind == commitfile.SECTION_RUN and (section.offset, section.length) not in runs:
            faults.append(Fault(stored.path, "the header does not list this run", section.offset))
        if section.kind == commitfile.SECTION_CARRIED:
            try:
                deque(decode_carried(bytes(window.at(section.offset, section.length))), maxlen=0)
            except encoding.MalformedError as error:
                faults.append(Fault(stored.path, error.reason, section.offset, part="carried"))
    return faults


def open_run(read_range: ReadRange, name: RunName, path: str) -> tuple[index.Run, list[PackName]]:
    """Read a whole run and check every block. Raises `ValueError`, which says what is wrong, or `OSError`."""
    run = open_listed(read_range(path, name.offset, name.length), name)
    run.verify()
    return run, [PackName.decode(pack) for pack in run.packs]


def entries_of(run: index.Run) -> Iterator[Sequence[tuple[bytes, int, int, int, int, int, int]]]:
    """Yield the entries of a run in pages: key, kind, seq, pack, offset, length, checksum."""
    start = b""
    while entries := run.scan(start, None, 4096):
        yield entries
        start = entries[-1][0] + b"\0"

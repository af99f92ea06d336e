"""Encodes and decodes packs: heads, frames, and directories of frames. No I/O. Layout: docs/understand/format.md."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from txstore.format import names
from txstore.format.encoding import (
    CHECKSUM,
    MAX_COUNT,
    VERSION,
    MalformedError,
    NewerFormatError,
    Reader,
    check_version,
    checked,
    crc32c,
    encode_varint,
    remembered,
    with_checksum,
)
from txstore.format.regions import MAX_LENGTH as MAX_REGION
from txstore.format.regions import WHOLE, Region

ALIGNMENT = 64  # of values from ALIGNED_FROM bytes up
ALIGNED_FROM = 1024

CHECKSUM_CRC32C = 1
PACK_COMMIT_FILE, PACK_DATA = 1, 2
FRAME_VALUE, FRAME_TOMBSTONE, FRAME_PREFIX, FRAME_PARTICIPANT, FRAME_SEAL = 1, 2, 3, 4, 5
FRAME_FOREIGN = 10  # a value, too: the record of a range of bytes in a file outside (`foreign_values`)
FRAME_PARTIAL = 11  # a value, too: of a chunk of which its writer has written a region
FRAME_MERGED = 12  # a value, too: the commit's own, made of what was written in part. Without bytes: a deletion
# of a compaction output. The run checks itself: the checksum of the value is 0, and stays so when it is erased
FRAME_RUN = 13
FRAME_ERASED = 0x80  # added to the kind of a frame whose value is no more
FRAME_READ, FRAME_NAMES_BELOW, FRAME_KEYS_BELOW, FRAME_ANY_BELOW = FRAMES_READ = 6, 7, 8, 9
SEEN_NOTHING, SEEN_BASE, SEEN_FRAME = 0, 1, 2
REF_TOMBSTONE, REF_PACK, REF_FOREIGN = 0, 1, 3
REF_ERASED = 5  # in the place of a ref to a value that is no more: the key is neither there nor deleted
#: What an index look-up returns for a key that only a prefix tombstone covers; never stored as a ref.
FOUND_PREFIX = 4

#: What leads to a value, or to the record of one that lies outside: the kind of the ref, by that of the frame.
REF_OF_FRAME = {FRAME_VALUE: REF_PACK, FRAME_FOREIGN: REF_FOREIGN, FRAME_PARTIAL: REF_PACK}
FRAMES_OF_KEYS = (FRAME_TOMBSTONE, *REF_OF_FRAME)  # that participants stage
FRAMES_WITH_KEY = (*FRAMES_OF_KEYS, FRAME_MERGED, FRAME_READ)  # the others have a prefix, or nothing
#: The frame of a copy of what a ref leads to.
FRAME_OF_REF = {REF_PACK: FRAME_VALUE, REF_FOREIGN: FRAME_FOREIGN}

HEAD = struct.Struct("<8sII16s16sQ4x")
_HEAD_BEGIN = struct.pack("<8sI", b"TXSTPACK", VERSION)
_ID_AT = len(_HEAD_BEGIN) + 4
FRAME = struct.Struct("<4sBBHQQI")
PREDECESSOR = struct.Struct("<IQ")
REGION = struct.Struct("<H")  # the length of the region that follows
DIRECTORY = struct.Struct("<8sQII")
HEAD_SIZE = 64
DIRECTORY_SIZE = DIRECTORY.size + 4
FRAME_SIZE = 32
assert HEAD.size == 60
assert FRAME.size == 28
#: Of a frame, what comes before its padding and its value, if its key has a length that is allowed.
FRAME_HEAD_MOST = FRAME_SIZE + 4096 + PREDECESSOR.size + REGION.size + MAX_REGION
_ZEROS = bytes(ALIGNMENT)


def encode_head(pack_id: bytes, repository_id: bytes, number: int = 0, first: int = 0) -> bytes:
    return with_checksum(HEAD.pack(b"TXSTPACK", VERSION, number, pack_id, repository_id, first))


def decode_head(data: bytes) -> tuple[bytes, bytes, int]:
    """Return pack id, repository id and the number of the pack in its transaction."""
    fixed = checked("pack head", data, HEAD_SIZE, b"TXSTPACK")
    _, version, number, pack_id, repository_id, _ = HEAD.unpack(fixed)
    check_version("a pack", version)
    return pack_id, repository_id, number


def is_head_of(data: bytes, pack_id: bytes) -> bool:
    """Tell whether this is the head of a pack of this id; if not, `decode_head` says what is wrong with it."""
    return (
        len(data) == HEAD_SIZE
        and data.startswith(_HEAD_BEGIN)
        and data.startswith(pack_id, _ID_AT)
        and crc32c(data[: HEAD.size]) == CHECKSUM.unpack_from(data, HEAD.size)[0]
    )


def first_frame(head: bytes) -> int:
    """Return how many frames the participant had written to packs before this one, whose head was decoded."""
    first: int = HEAD.unpack(head[: HEAD.size])[-1]
    return first


class Predecessor(NamedTuple):
    """Another frame of the same transaction, on the same key or on a prefix above it."""

    participant: int
    sequence: int


#: What the writer of a frame had seen of the key before: one of `SEEN_NOTHING`, `SEEN_BASE`, or a frame.
Seen = int | Predecessor


def frame_layout(
    start: int, key_length: int, value_length: int, has_predecessor: bool = False, region: bytes = b""
) -> tuple[int, int]:
    """Return where the value of a frame begins that starts at `start`, and where the next frame starts."""
    value = start + FRAME_SIZE + key_length + (PREDECESSOR.size if has_predecessor else 0)
    if region:
        value += REGION.size + len(region)
    if value_length >= ALIGNED_FROM:
        value = -(-value // ALIGNMENT) * ALIGNMENT
    return value, -(-(value + value_length) // 8) * 8


def encode_frame(
    kind: int, seen: Seen, sequence: int, key: bytes, length: int, checksum: int, region: bytes = b""
) -> bytes:
    """Return frame header, key, predecessor and, of a partial frame, region; the caller pads and appends the value."""
    if isinstance(seen, Predecessor):
        fixed = FRAME.pack(b"TXFR", kind, SEEN_FRAME, len(key), sequence, length, checksum)
        rest = key + PREDECESSOR.pack(*seen)
    else:
        fixed = FRAME.pack(b"TXFR", kind, seen, len(key), sequence, length, checksum)
        rest = key
    if region:
        rest += REGION.pack(len(region)) + region
    return b"".join((fixed, CHECKSUM.pack(crc32c(rest, crc32c(fixed))), rest))


def lay_frame(
    start: int, kind: int, seen: Seen, sequence: int, key: bytes, length: int, checksum: int, region: bytes = b""
) -> tuple[bytes, int, int]:
    """Lay out a frame that starts at `start` of a pack, with a value of this length and checksum.

    Return its head, as `encode_frame` does, where its value begins, and where the next frame starts.
    """
    offset, end = frame_layout(start, len(key), length, isinstance(seen, Predecessor), region)
    return encode_frame(kind, seen, sequence, key, length, checksum, region), offset, end


def frame_parts(start: int, head: bytes, offset: int, value: memoryview | bytes, end: int) -> list[memoryview | bytes]:
    """Return all bytes of a frame that was laid out: head, padding, value, padding."""
    return [head, _ZEROS[: offset - start - len(head)], value, _ZEROS[: end - offset - len(value)]]


def compaction_output_layout(length: int) -> tuple[int, int]:
    """Return where the run of a compaction output begins, and where its frame ends, which is the only one."""
    return frame_layout(HEAD_SIZE, 0, length)


def encode_compaction_output(pack_id: bytes, repository_id: bytes, length: int) -> bytes:
    """Return the bytes before the run of a compaction output."""
    frame, offset, _ = lay_frame(HEAD_SIZE, FRAME_RUN, SEEN_NOTHING, 0, b"", length, 0)
    return encode_head(pack_id, repository_id) + frame + bytes(offset - HEAD_SIZE - len(frame))


def rest_length(kind: int, seen: int, key_length: int, rest: memoryview | bytes) -> int:
    """Return how much of `rest`, which follows the header of a frame, is its key, predecessor and region."""
    length = key_length + (PREDECESSOR.size if seen == SEEN_FRAME else 0)
    if kind & ~FRAME_ERASED == FRAME_PARTIAL:
        length += REGION.size + int.from_bytes(rest[length : length + REGION.size], "little")
    return length


def erased(frame: bytes) -> bytes:
    """Return the beginning of a frame, up to its padding, after its value was erased: its lengths stay."""
    magic, kind, *between, _ = FRAME.unpack_from(frame)
    fixed, rest = FRAME.pack(magic, kind | FRAME_ERASED, *between, 0), frame[FRAME_SIZE:]
    return b"".join((fixed, CHECKSUM.pack(crc32c(rest, crc32c(fixed))), rest))


@dataclass(frozen=True, slots=True)
class Frame:
    kind: int
    seen: Seen
    sequence: int
    key: bytes
    head_end: int  # where header, key, predecessor and region end
    offset: int  # of the value, in the pack
    length: int
    checksum: int
    end: int  # where the next frame starts
    region: Region = WHOLE  # of a partial frame: what was written

    @property
    def is_erased(self) -> bool:
        return self.kind & FRAME_ERASED != 0

    @property
    def original_kind(self) -> int:
        """What it was, if it was erased."""
        return self.kind & ~FRAME_ERASED


def decode_frame(data: memoryview, start: int, *, begin: int = 0, size: int | None = None) -> Frame:
    """Decode the frame that starts at `start` of a pack. The value's own checksum is not compared.

    `data` is the pack, or a part of it that begins at `begin` and holds the frame up to its value; `size` is then the
    pack's length.
    """
    head = start - begin
    fixed = bytes(data[head : head + FRAME.size])
    if len(fixed) != FRAME.size or fixed[:4] != b"TXFR":
        raise MalformedError("no frame is here", start)
    _, kind, seen, key_length, sequence, length, checksum = FRAME.unpack(fixed)
    stored = bytes(data[head + FRAME.size : head + FRAME_SIZE])
    there = data[head + FRAME_SIZE :]
    length_of_rest = rest_length(kind, seen, key_length, there)
    rest = bytes(there[:length_of_rest])
    if len(stored) != 4 or len(rest) != length_of_rest or crc32c(rest, crc32c(fixed)) != CHECKSUM.unpack(stored)[0]:
        raise MalformedError("the frame has a wrong checksum", start)
    if seen > SEEN_FRAME:
        raise NewerFormatError(f"a frame that had seen {seen}")
    if sequence > MAX_COUNT:
        raise MalformedError("the frame's number is beyond all that there are", start)
    named = key_length + (PREDECESSOR.size if seen == SEEN_FRAME else 0)
    encoded = rest[named + REGION.size :]
    region = Region.decode(encoded)
    if kind & ~FRAME_ERASED == FRAME_PARTIAL and not encoded:
        raise MalformedError("a partial frame says nothing of what was written", start)
    offset, end = frame_layout(start, key_length, length, has_predecessor=seen == SEEN_FRAME, region=encoded)
    if offset + length > (len(data) if size is None else size):
        raise MalformedError("the frame's value reaches beyond the file", start)
    what = Predecessor(*PREDECESSOR.unpack(rest[key_length:named])) if seen == SEEN_FRAME else seen
    head_end = start + FRAME_SIZE + length_of_rest
    return Frame(kind, what, sequence, rest[:key_length], head_end, offset, length, checksum, end, region)


def participants_pack(transaction: bytes, number: int) -> bytes:
    """Return the id of a pack of a transaction; that of number 0 is the transaction's own."""
    last = int.from_bytes(transaction[12:], "little") ^ number
    return transaction[:12] + last.to_bytes(4, "little")


def packs_begin(pack_id: bytes) -> bytes:
    """Return the common prefix of the ids of all packs of a transaction."""
    return pack_id[:12]


def number_of(transaction: bytes, pack_id: bytes) -> int:
    """Return the number of a pack in its transaction."""
    return int.from_bytes(transaction[12:], "little") ^ int.from_bytes(pack_id[12:], "little")


# A participant whose storage can't let a file grow has several packs, counted from 1; any other has one, the 0th. The
# upper bits of an offset say in which of them it is.
_OFFSET_BITS, _PARTICIPANT_BITS = 40, 16
MAX_PARTICIPANT = (1 << _PARTICIPANT_BITS) - 1


def pack_number(participant: int, nth: int) -> int:
    """Return the number in its transaction of a participant's nth pack. Raises `OSError` if it has too many."""
    if nth >> (32 - _PARTICIPANT_BITS) or participant >> _PARTICIPANT_BITS:
        raise OSError(
            f"participant {participant} of this transaction has {nth} packs, more than can be numbered: commit"
        )
    return nth << _PARTICIPANT_BITS | participant


def participant_of(number: int) -> int:
    """Return the participant whose pack has this number in its transaction."""
    return number & ((1 << _PARTICIPANT_BITS) - 1)


def writer_of(pack_id: bytes) -> tuple[bytes, int]:
    """Return what the ids of all packs of one participant of a transaction have in common."""
    return packs_begin(pack_id), participant_of(int.from_bytes(pack_id[12:], "little"))


def nth_of(number: int) -> int:
    """Return the index, among its participant's packs, of the pack with this number in its transaction."""
    return number >> _PARTICIPANT_BITS


def join_offset(nth: int, offset: int) -> int:
    return nth << _OFFSET_BITS | offset


def split_offset(offset: int) -> tuple[int, int]:
    """Return in which of its participant's packs an offset is, and the offset in that."""
    return offset >> _OFFSET_BITS, offset & ((1 << _OFFSET_BITS) - 1)


def encode_directory(heads: Sequence[bytes], end: int) -> bytes:
    """Return what lists the frames of a pack that is read from afar: their headers, keys and predecessors."""
    content = b"".join(heads)
    return content + with_checksum(DIRECTORY.pack(b"TXSTDIRY", end, len(content), 0))


def decode_directory(data: bytes, size: int) -> tuple[int, int]:
    """Return where the frames of a pack end, and the length of what lists them, which ends where `data` begins.

    `size` is the pack's length: both lie inside.
    """
    fixed = checked("directory", data, DIRECTORY_SIZE, b"TXSTDIRY")
    _, end, length, _ = DIRECTORY.unpack(fixed)
    if end + length + DIRECTORY_SIZE > size:
        raise MalformedError("the directory, or the frames that it lists, reach beyond the pack")
    return end, length


def frames_listed(content: bytes, end: int) -> Iterator[Frame]:
    """Yield the frames that a directory lists, each where it lies in the pack."""
    view, at, start = memoryview(content), 0, HEAD_SIZE
    while at < len(content):
        frame = decode_frame(view[at:], start, begin=start, size=end)
        at += frame.head_end - start
        start = frame.end
        yield frame
    if start != end:
        raise MalformedError(f"the frames that are listed end at {start} instead of {end}")


class PackName(NamedTuple):
    """Where a pack lies: in a version, or, without a branch, in `packs/`. The id is checked against the pack's head."""

    id: bytes
    branch: str | None = None
    version: int = 0

    @property
    def path(self) -> str:
        return names.data_pack_path(self.id) if self.branch is None else names.commit_path(self.branch, self.version)

    def encode(self) -> bytes:
        if self.branch is None:
            return bytes([PACK_DATA]) + self.id
        return bytes([PACK_COMMIT_FILE]) + self.id + encode_varint(self.version) + self.branch.encode()

    @classmethod
    @remembered
    def decode(cls, data: bytes) -> PackName:
        reader = Reader(data)
        kind = reader.take(1)[0]
        if kind not in (PACK_COMMIT_FILE, PACK_DATA):
            raise NewerFormatError(f"a pack of kind {kind}")
        pack_id = reader.take(16)
        if kind == PACK_DATA:
            if not reader.at_end:
                raise MalformedError("the entry of a data pack is too long")
            return cls(pack_id)
        version = reader.varint()
        return cls(pack_id, reader.branch(), version)

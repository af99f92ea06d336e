"""Bytes <-> frozen dataclasses, and every file name. No I/O. The layout is docs/format.md, whose words are used."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from txstore._native import local
from txstore.errors import KeyFormatError
from txstore.keys import check_name

VERSION = 1
ALIGNMENT = 64  # of values from ALIGNED_FROM bytes up
ALIGNED_FROM = 1024
NO_ID = bytes(16)
_ID = re.compile("[0-9a-f]{32}")

CHECKSUM_CRC32C = 1
HEADER_COMMIT = 1
SECTION_RUN = 1
PACK_COMMIT_FILE = 1
FRAME_VALUE, FRAME_TOMBSTONE, FRAME_PREFIX = 1, 2, 3
REF_TOMBSTONE, REF_PACK = 0, 1
#: What an index look-up returns for a key that only a prefix tombstone covers; never stored as a ref.
FOUND_PREFIX = 3

REQUIRED_FEATURES_KNOWN = 0
FEATURE_NOT_SYNCED = 1 << 0  # optional

HEAD = struct.Struct("<8sII16s16s12x")
FRAME = struct.Struct("<4sBBHQQI")
HEADER = struct.Struct("<4sHHQQ16s16s16s16sQQQQ")
FIELD = struct.Struct("<HI")
FOOTER = struct.Struct("<8sIIQQ16sI8x")
HINT = struct.Struct("<8sQ16sQQII4x")
CHECKSUM = struct.Struct("<I")
TAG = struct.Struct("<8sQ16s")
HEAD_SIZE = FOOTER_SIZE = HINT_SIZE = 64
FRAME_SIZE = 32
assert HEAD.size == FOOTER.size == HINT.size == 60
assert FRAME.size == 28
assert HEADER.size == 120

_BRANCH, _AUTHOR, _MESSAGE, _PROPERTIES, _STATISTICS, _SECTIONS, _RUNS = range(1, 8)

crc32c = local.crc32c


class MalformedError(ValueError):
    """Bytes that don't follow the format. `offset` is where, in the decoded buffer."""

    def __init__(self, reason: str, offset: int = 0) -> None:
        self.reason = reason
        self.offset = offset
        super().__init__(reason)


class NewerFormatError(MalformedError):
    """Bytes of a format version or with a required feature that this code does not know."""


# --- names ------------------------------------------------------------------------------------------------------------

GUARD = "zarr.json"
FORMAT = "format.json"
STAGING = ".staging"
COMMIT_LOCK = "locks/commit"
DIRECTORIES = (STAGING, "commits", "commits/main", "heads", "tags", "locks")


def commits_directory(branch: str) -> str:
    return f"commits/{branch}"


def commit_path(branch: str, slot: int) -> str:
    return f"commits/{branch}/{slot:010d}"


def parse_slot(name: str) -> int | None:
    """Return the slot of a commit file's name, None for any other name."""
    if len(name) < 10 or not (name.isascii() and name.isdigit()):
        return None
    slot = int(name)
    return slot if f"{slot:010d}" == name else None


def orphan_path(branch: str, slot: int, commit_id: bytes) -> str:
    return f"{commit_path(branch, slot)}.orphan-{commit_id.hex()}"


def staging_path(transaction: bytes, participant: int) -> str:
    return f"{STAGING}/{transaction.hex()}.{participant}"


def hint_path(branch: str) -> str:
    return f"heads/{branch}"


def tag_path(name: str) -> str:
    return f"tags/{name}"


# --- varints and checked slices ---------------------------------------------------------------------------------------


def encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class _Reader:
    """Reads hostile bytes from left to right; every length is checked before it is used."""

    def __init__(self, data: bytes, start: int = 0) -> None:
        self._data = data
        self.position = start

    @property
    def at_end(self) -> bool:
        return self.position == len(self._data)

    def varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> 64 or (byte == 0 and shift):
                    break
                return value
        raise MalformedError("a varint is too long", self.position)

    def take(self, length: int) -> bytes:
        end = self.position + length
        if length < 0 or end > len(self._data):
            raise MalformedError(
                f"{length} bytes are needed where {len(self._data) - self.position} are left", self.position
            )
        part = self._data[self.position : end]
        self.position = end
        return part

    def text(self, length: int) -> str:
        start = self.position
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise MalformedError("text that is not UTF-8", start) from error

    def branch(self) -> str:
        """Return the rest as the name of a branch. It becomes a part of a path."""
        start = self.position
        try:
            return check_name("branch", self.text(len(self._data) - start))
        except KeyFormatError as error:
            raise MalformedError(str(error), start) from error


def _with_checksum(data: bytes) -> bytes:
    return data + CHECKSUM.pack(crc32c(data))


def _checked(what: str, data: bytes, size: int, magic: bytes) -> bytes:
    """Return the bytes before the checksum of a fixed-size record, after comparing size, magic and checksum."""
    if len(data) != size:
        raise MalformedError(f"the {what} has {len(data)} bytes instead of {size}")
    if data[: len(magic)] != magic:
        raise MalformedError(f"no {what} is here: wrong magic {bytes(data[: len(magic)])!r}")
    if crc32c(data[:-4]) != CHECKSUM.unpack(data[-4:])[0]:
        raise MalformedError(f"the {what} has a wrong checksum")
    return data[:-4]


def _check_version(what: str, version: int) -> None:
    if version != VERSION:
        raise NewerFormatError(f"{what} of format version {version}")


# --- packs ------------------------------------------------------------------------------------------------------------


def encode_head(pack_id: bytes, repository_id: bytes, participant: int = 0) -> bytes:
    return _with_checksum(HEAD.pack(b"TXSTPACK", VERSION, participant, pack_id, repository_id))


def decode_head(data: bytes) -> tuple[bytes, bytes, int]:
    """Return pack id, repository id and participant."""
    fixed = _checked("pack head", data, HEAD_SIZE, b"TXSTPACK")
    _, version, participant, pack_id, repository_id = HEAD.unpack(fixed)
    _check_version("a pack", version)
    return pack_id, repository_id, participant


def frame_layout(start: int, key_length: int, value_length: int) -> tuple[int, int]:
    """Return where the value of a frame begins that starts at `start`, and where the next frame starts."""
    value = start + FRAME_SIZE + key_length
    if value_length >= ALIGNED_FROM:
        value = -(-value // ALIGNMENT) * ALIGNMENT
    return value, -(-(value + value_length) // 8) * 8


def encode_frame(kind: int, seen: bool, sequence: int, key: bytes, length: int, checksum: int) -> bytes:
    """Return frame header and key; the caller pads and appends the value."""
    fixed = FRAME.pack(b"TXFR", kind, seen, len(key), sequence, length, checksum)
    return b"".join((fixed, CHECKSUM.pack(crc32c(key, crc32c(fixed))), key))


@dataclass(frozen=True, slots=True)
class Frame:
    kind: int
    seen: bool
    sequence: int
    key: bytes
    offset: int  # of the value, in the pack
    length: int
    checksum: int
    end: int  # where the next frame starts


def decode_frame(data: memoryview, start: int) -> Frame:
    """Decode the frame that starts at `start` of a whole pack. The value's own checksum is not compared."""
    fixed = bytes(data[start : start + FRAME.size])
    if len(fixed) != FRAME.size or fixed[:4] != b"TXFR":
        raise MalformedError("no frame is here", start)
    _, kind, seen, key_length, sequence, length, checksum = FRAME.unpack(fixed)
    stored = bytes(data[start + FRAME.size : start + FRAME_SIZE])
    key = bytes(data[start + FRAME_SIZE : start + FRAME_SIZE + key_length])
    if len(stored) != 4 or len(key) != key_length or crc32c(key, crc32c(fixed)) != CHECKSUM.unpack(stored)[0]:
        raise MalformedError("the frame has a wrong checksum", start)
    offset, end = frame_layout(start, key_length, length)
    if offset + length > len(data):
        raise MalformedError("the frame's value reaches beyond the file", start)
    return Frame(kind, bool(seen), sequence, key, offset, length, checksum, end)


@dataclass(frozen=True, slots=True)
class PackName:
    """Where a pack lies. The id is checked against the pack's head when it is opened."""

    id: bytes
    branch: str
    slot: int

    @property
    def path(self) -> str:
        return commit_path(self.branch, self.slot)

    def encode(self) -> bytes:
        return bytes([PACK_COMMIT_FILE]) + self.id + encode_varint(self.slot) + self.branch.encode()

    @classmethod
    def decode(cls, data: bytes) -> PackName:
        reader = _Reader(data)
        kind = reader.take(1)[0]
        if kind != PACK_COMMIT_FILE:
            raise NewerFormatError(f"a pack of kind {kind}")
        pack_id = reader.take(16)
        slot = reader.varint()
        return cls(pack_id, reader.branch(), slot)


@dataclass(frozen=True, slots=True)
class Section:
    kind: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class RunName:
    """One item of a commit's list of runs. `pack` is None where the run lies in the commit's own file."""

    pack: PackName | None
    seq: int  # of the commit in whose file the run lies: what 0 stands for in an own run
    offset: int
    length: int
    entries: int
    max_seq: int

    def inside(self, pack: PackName) -> RunName:
        """Return the same run as seen from another file."""
        return self if self.pack is not None else replace(self, pack=pack)


@dataclass(frozen=True, slots=True)
class Statistics:
    """What one commit wrote. Lengths are in bytes."""

    keys_set: int = 0
    keys_deleted: int = 0
    prefixes_deleted: int = 0
    bytes_set: int = 0
    arrays: int = 0

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a commit: everything that a reader needs to find its keys."""

    repository_id: bytes
    id: bytes
    parent_id: bytes
    parent_hash: bytes
    slot: int
    seq: int
    time: int  # microseconds since 1970 UTC
    branch: str
    author: str = ""
    message: str = ""
    properties: Mapping[str, Any] = field(default_factory=dict)
    statistics: Statistics = field(default_factory=Statistics)
    sections: tuple[Section, ...] = ()
    runs: tuple[RunName, ...] = ()
    floor: int = 0
    required: int = 0
    optional: int = 0

    @property
    def name(self) -> PackName:
        return PackName(self.id, self.branch, self.slot)

    @property
    def synced(self) -> bool:
        return not self.optional & FEATURE_NOT_SYNCED

    def encode(self) -> bytes:
        fixed = HEADER.pack(
            b"TXHD", HEADER_COMMIT, CHECKSUM_CRC32C, self.required, self.optional,
            self.repository_id, self.id, self.parent_id, self.parent_hash,
            self.slot, self.seq, self.floor, self.time,
        )  # fmt: skip
        statistics = b"".join(encode_varint(n) for n in self.statistics.as_dict().values())
        sections = b"".join(encode_varint(n) for s in self.sections for n in (s.kind, s.offset, s.length))
        properties = json.dumps(dict(self.properties), sort_keys=True).encode() if self.properties else b""
        typed = (
            (_BRANCH, self.branch.encode()),
            (_AUTHOR, self.author.encode()),
            (_MESSAGE, self.message.encode()),
            (_PROPERTIES, properties),
            (_STATISTICS, statistics),
            (_SECTIONS, sections),
            (_RUNS, b"".join(map(_encode_run, self.runs))),
        )
        return fixed + b"".join(FIELD.pack(tag, len(content)) + content for tag, content in typed if content)

    @classmethod
    def decode(cls, data: bytes) -> Header:
        reader = _Reader(data)
        (magic, kind, checksum_kind, required, optional, repository_id, commit_id, parent_id, parent_hash,
         slot, seq, floor, time) = HEADER.unpack(reader.take(HEADER.size))  # fmt: skip
        if magic != b"TXHD":
            raise MalformedError("no header is here: wrong magic")
        if required & ~REQUIRED_FEATURES_KNOWN:
            raise NewerFormatError(f"required features {required & ~REQUIRED_FEATURES_KNOWN:#x}")
        if kind != HEADER_COMMIT or checksum_kind != CHECKSUM_CRC32C:
            raise NewerFormatError(f"a header of kind {kind} with checksums of kind {checksum_kind}")
        typed: dict[int, bytes] = {}
        while not reader.at_end:
            tag, length = FIELD.unpack(reader.take(FIELD.size))
            typed[tag] = reader.take(length)
        numbers = list(_varints(typed.get(_STATISTICS, b"")))[:5]
        sections = list(_varints(typed.get(_SECTIONS, b"")))
        if len(sections) % 3:
            raise MalformedError("the list of sections is cut short")
        return cls(
            repository_id=repository_id, id=commit_id, parent_id=parent_id, parent_hash=parent_hash,
            slot=slot, seq=seq, time=time, floor=floor, required=required, optional=optional,
            branch=_text(typed, _BRANCH), author=_text(typed, _AUTHOR), message=_text(typed, _MESSAGE),
            properties=_json_object(typed.get(_PROPERTIES, b"{}")),
            statistics=Statistics(*numbers),
            sections=tuple(Section(*sections[i : i + 3]) for i in range(0, len(sections), 3)),
            runs=tuple(_decode_runs(typed.get(_RUNS, b""))),
        )  # fmt: skip


def header_hash(encoded: bytes) -> bytes:
    """Return the hash by which a child names its parent's header."""
    return blake2b(encoded, digest_size=16).digest()


def _text(typed: Mapping[int, bytes], tag: int) -> str:
    content = typed.get(tag, b"")
    return _Reader(content).text(len(content))


def _varints(data: bytes) -> Iterator[int]:
    reader = _Reader(data)
    while not reader.at_end:
        yield reader.varint()


def _json_object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MalformedError("the JSON in it can't be parsed") from error
    if not isinstance(value, dict):
        raise MalformedError("the JSON in it is not an object")
    return value


def _encode_run(run: RunName) -> bytes:
    pack = b"" if run.pack is None else run.pack.encode()
    numbers = (run.seq, run.offset, run.length, run.entries, run.max_seq)
    return encode_varint(len(pack)) + pack + b"".join(map(encode_varint, numbers))


def _decode_runs(data: bytes) -> Iterator[RunName]:
    reader = _Reader(data)
    while not reader.at_end:
        length = reader.varint()
        pack = PackName.decode(reader.take(length)) if length else None
        yield RunName(pack, *(reader.varint() for _ in range(5)))


@dataclass(frozen=True, slots=True)
class Footer:
    header_length: int
    header_offset: int
    file_length: int
    pack_id: bytes
    header_checksum: int

    def encode(self) -> bytes:
        return _with_checksum(
            FOOTER.pack(
                b"TXSTFOOT", VERSION, self.header_length, self.header_offset,
                self.file_length, self.pack_id, self.header_checksum,
            )
        )  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> Footer:
        fixed = _checked("footer", data, FOOTER_SIZE, b"TXSTFOOT")
        _, version, header_length, header_offset, file_length, pack_id, checksum = FOOTER.unpack(fixed)
        _check_version("a commit", version)
        if header_offset + header_length + FOOTER_SIZE != file_length:
            raise MalformedError("header and footer do not end the file")
        return cls(header_length, header_offset, file_length, pack_id, checksum)


# --- small files ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hint:
    """Where the search for the head begins. `durable`: this commit and all before it are known to be."""

    slot: int
    commit_id: bytes
    file_length: int
    header_offset: int
    header_length: int
    durable: bool

    def encode(self) -> bytes:
        return _with_checksum(
            HINT.pack(
                b"TXSTHEAD", self.slot, self.commit_id, self.file_length,
                self.header_offset, self.header_length, self.durable,
            )
        )  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> Hint:
        _, slot, commit_id, size, offset, length, durable = HINT.unpack(_checked("hint", data, HINT_SIZE, b"TXSTHEAD"))
        return cls(slot, commit_id, size, offset, length, durable == 1)


@dataclass(frozen=True, slots=True)
class Tag:
    branch: str
    slot: int
    commit_id: bytes

    def encode(self) -> bytes:
        return _with_checksum(TAG.pack(b"TXSTTAG1", self.slot, self.commit_id) + self.branch.encode())

    @classmethod
    def decode(cls, data: bytes) -> Tag:
        fixed = _checked("tag", data, max(len(data), TAG.size + 4), b"TXSTTAG1")
        _, slot, commit_id = TAG.unpack(fixed[: TAG.size])
        return cls(_Reader(fixed, TAG.size).branch(), slot, commit_id)


@dataclass(frozen=True, slots=True)
class RepositoryFormat:
    """The content of `format.json`."""

    repository_id: bytes
    slots: str = "rename"
    required: int = 0
    optional: int = 0

    def encode(self) -> bytes:
        members = {
            "txstore": VERSION,
            "repository": self.repository_id.hex(),
            "slots": self.slots,
            "required": self.required,
            "optional": self.optional,
        }
        return json.dumps({**members, "checksum": _json_checksum(members)}, indent=2).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> RepositoryFormat:
        members = _json_object(data)
        version = members.get("txstore")
        if isinstance(version, int) and version > VERSION:
            raise NewerFormatError(f"format version {version}")
        checksum = members.pop("checksum", None)
        if checksum != _json_checksum(members):
            raise MalformedError("the document has a wrong checksum")
        repository, slots = members.get("repository"), members.get("slots")
        required, optional = members.get("required"), members.get("optional")
        if version != VERSION or not isinstance(required, int) or not isinstance(optional, int):
            raise MalformedError("a number in the document is missing or not one")
        if not isinstance(repository, str) or not _ID.fullmatch(repository):
            raise MalformedError("the document names no repository")
        if slots != "rename":
            raise NewerFormatError(f"slots taken by {slots!r}")
        if required & ~REQUIRED_FEATURES_KNOWN:
            raise NewerFormatError(f"required features {required:#x}")
        return cls(bytes.fromhex(repository), slots, required, optional)


def _json_checksum(members: Mapping[str, Any]) -> str:
    canonical = json.dumps(members, sort_keys=True, separators=(",", ":")).encode()
    return f"{crc32c(canonical):08x}"


#: The guard is a valid group but for one member that nobody understands, so that zarr's own error shows its name.
GUARD_SENTENCE = "this is a TxStore repository: open it with txstore.TxStore(path), not by its bare path"


def encode_guard() -> bytes:
    document = {"zarr_format": 3, "node_type": "group", "attributes": {}, GUARD_SENTENCE: {"must_understand": True}}
    return json.dumps(document, indent=2).encode() + b"\n"

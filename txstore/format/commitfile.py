"""Encodes and decodes headers and footers of commits, and their lists. No I/O. Layout: docs/understand/format.md."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from txstore._native import index as native
from txstore.errors import KeyFormatError
from txstore.format.cursors import check_cursor_name
from txstore.format.encoding import (
    MAX_COUNT,
    MAX_TIME,
    VERSION,
    MalformedError,
    NewerFormatError,
    Reader,
    check_numbers,
    check_version,
    checked,
    decode_varints,
    encode_varint,
    json_object,
    remembered,
    with_checksum,
)
from txstore.format.keys import check_name
from txstore.format.packfile import CHECKSUM_CRC32C, HEAD_SIZE, PackName

#: JSON objects by name. Where it says what a transaction changes, None drops a name.
Written = Mapping[str, Any]

_NONE: Final[Written] = MappingProxyType({})


class Declarations(NamedTuple):
    """All that one commit hands on, or all that a transaction changes of it."""

    constraints: Written = _NONE
    views: Written = _NONE
    cursors: Written = _NONE

    def __bool__(self) -> bool:
        return any(self[:])


NOTHING_DECLARED = Declarations()


HEADER_COMMIT = 1
SECTION_RUN, SECTION_CARRIED, SECTION_GROUP_COMMIT = 1, 2, 3

FEATURE_FOREIGN = 1 << 0  # required of readers: a run may hold refs of kind `REF_FOREIGN`
#: Required of committers: they have to check the constraints of the parent, keep its views, and hand on its cursors.
FEATURE_CONSTRAINTS, FEATURE_VIEWS, FEATURE_CURSORS = DECLARED_FEATURES = 1 << 32, 1 << 33, 1 << 34
REQUIRED_FEATURES_KNOWN = FEATURE_FOREIGN | FEATURE_CONSTRAINTS | FEATURE_VIEWS | FEATURE_CURSORS
#: The bits of features that a reader has to know. The bits above are only for processes that commit.
OF_READERS = (1 << 32) - 1
FEATURE_NOT_SYNCED = 1 << 0  # optional
HEADER = struct.Struct("<4sHHQQ16s16s16s16sQQQQ")
FIELD = struct.Struct("<HI")
FOOTER = struct.Struct("<8sIIQQ16sI8x")
FOOTER_SIZE = 64
assert FOOTER.size == 60
assert HEADER.size == 120

#: docs/understand/format.md, "Bounds": a header in bytes, its runs and sections. `commit_header.h` has the last two.
MAX_HEADER = 64 << 20
MAX_RUNS = MAX_SECTIONS = 1024
MAX_GROUP_COMMIT = 128

_BRANCH, _AUTHOR, _MESSAGE, _PROPERTIES, _STATISTICS, _SECTIONS, _RUNS, _PACKS, _PENDING, _CONSTRAINTS = range(1, 11)
_FORK, _MERGED, _REACH, _GROUP_COMMIT, _VIEWS, _CURSORS = 11, 12, 13, 14, 15, 16
_DECLARED = _CONSTRAINTS, _VIEWS, _CURSORS


@dataclass(frozen=True, slots=True)
class DataPack:
    """A pack that a commit adds beside its own file. Bytes behind `end` came too late, and are not part of it."""

    name: PackName
    end: int  # of the frames that count


class CommitName(NamedTuple):
    """The name of a commit, wherever it lies: no other commit has this hash."""

    branch: str  # its id
    version: int
    id: bytes
    hash: bytes  # of its header

    def encode(self) -> bytes:
        return self.id + self.hash + encode_varint(self.version) + self.branch.encode()

    @classmethod
    def decode(cls, data: bytes) -> CommitName:
        reader = Reader(data)
        commit_id, header_hash, version = reader.take(16), reader.take(16), reader.varint()
        check_numbers(("version", version, MAX_COUNT))
        return cls(reader.branch(), version, commit_id, header_hash)


class GroupCommit(NamedTuple):
    """Of which of several commits, decided together by the first one, a header is: from 0, and how many there are."""

    place: int
    length: int

    def encode(self) -> bytes:
        return encode_varint(self.place) + encode_varint(self.length)

    @classmethod
    def decode(cls, data: bytes) -> GroupCommit:
        reader = Reader(data)
        place, length = reader.varint(), reader.varint()
        check_numbers(
            ("length of the group commit", length, MAX_GROUP_COMMIT), ("place in the group commit", place, length - 1)
        )
        return cls(place, length)


class Section(NamedTuple):
    kind: int
    offset: int
    length: int


class RunName(NamedTuple):
    """One item of a commit's list of runs. `pack` is None where the run lies in the commit's own file."""

    pack: PackName | None
    seq: int  # of the commit in whose file the run lies: what 0 stands for in an own run
    offset: int
    length: int
    entries: int
    max_seq: int

    def inside(self, pack: PackName) -> RunName:
        """Return the same run as seen from another file."""
        return self if self.pack is not None else self._replace(pack=pack)


@dataclass(frozen=True, slots=True)
class Statistics:
    """What one commit wrote. Lengths are in bytes."""

    keys_set: int = 0
    keys_deleted: int = 0
    prefixes_deleted: int = 0
    bytes_set: int = 0
    arrays: int = 0

    def as_dict(self) -> dict[str, int]:
        return dict(zip(self.__slots__, self.as_tuple(), strict=True))

    def as_tuple(self) -> tuple[int, ...]:
        return self.keys_set, self.keys_deleted, self.prefixes_deleted, self.bytes_set, self.arrays


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a commit: everything that a reader needs to find its keys."""

    repository_id: bytes
    id: bytes
    parent_id: bytes
    parent_hash: bytes
    version: int
    seq: int
    time: int  # microseconds since 1970 UTC
    branch: str
    author: str = ""
    message: str = ""
    properties: Mapping[str, Any] = field(default_factory=dict)
    statistics: Statistics = field(default_factory=Statistics)
    sections: tuple[Section, ...] = ()
    runs: tuple[RunName, ...] = ()
    packs: tuple[DataPack, ...] = ()
    pending: int = 0  # commits right below it whose names were not known to be durable when it was made
    oldest_kept: int = 0
    required: int = 0
    optional: int = 0
    declared: Declarations = NOTHING_DECLARED  # constraints, views and cursors
    fork: str | None = None  # the id of the parent's branch, where it is another: the first commit of a branch
    merged: CommitName | None = None  # the other parent of a merge
    #: Of each branch that it has come from, or has merged, up to which version. Only where history may be cut, or
    #: joins.
    reach: Mapping[str, int] = field(default_factory=dict)
    group_commit: GroupCommit | None = None  # of commits that were decided together

    @property
    def name(self) -> PackName:
        return PackName(self.id, self.branch, self.version)

    @property
    def compaction_outputs(self) -> frozenset[PackName]:
        """The data packs that its runs lie in: each holds one run, and no values."""
        return frozenset([run.pack for run in self.runs if run.pack is not None and run.pack.branch is None])

    @property
    def decided_in(self) -> int:
        """The version whose file has decided this commit: its own, but in a group commit."""
        return self.version if self.group_commit is None else self.version - self.group_commit.place

    @property
    def synced(self) -> bool:
        return not self.optional & FEATURE_NOT_SYNCED

    def check_bounds(self) -> None:
        """Raise `MalformedError` for a header that could be encoded but not decoded again."""
        _check_places(self.version, self.seq, self.oldest_kept, self.time, self.pending)
        check_numbers(
            ("number of runs", len(self.runs), MAX_RUNS), ("number of sections", len(self.sections), MAX_SECTIONS)
        )

    def check_placed(self, end: int) -> None:
        """Raise `MalformedError` unless the sections lie before the header, which begins at `end`."""
        for _, offset, length in self.sections:
            if offset < HEAD_SIZE or offset + length > end:
                raise MalformedError("a section lies outside of the file")

    def encode(self) -> bytes:
        fixed = HEADER.pack(
            b"TXHD", HEADER_COMMIT, CHECKSUM_CRC32C, self.required, self.optional,
            self.repository_id, self.id, self.parent_id, self.parent_hash,
            self.version, self.seq, self.oldest_kept, self.time,
        )  # fmt: skip
        properties = _encode_json(self.properties)
        last = _encode_fields(
            (_CONSTRAINTS, _encode_json(self.declared.constraints)),
            (_FORK, b"" if self.fork is None else self.fork.encode()),
            (_MERGED, b"" if self.merged is None else self.merged.encode()),
            (_REACH, b"".join(map(_encode_reached, self.reach.items()))),
            (_GROUP_COMMIT, b"" if self.group_commit is None else self.group_commit.encode()),
            (_VIEWS, _encode_json(self.declared.views)),
            (_CURSORS, _encode_json(self.declared.cursors)),
        )
        packs = b"".join(map(_encode_data_pack, self.packs))
        if native.IMPLEMENTATION == "c":
            return fixed + native.encode_header(
                self.branch, self.author, self.message, properties,
                self.statistics.as_tuple(), self.sections, self.runs, packs, self.pending,
            ) + last  # fmt: skip
        typed = _encode_fields(
            (_BRANCH, self.branch.encode()),
            (_AUTHOR, self.author.encode()),
            (_MESSAGE, self.message.encode()),
            (_PROPERTIES, properties),
            (_STATISTICS, b"".join(map(encode_varint, self.statistics.as_tuple()))),
            (_SECTIONS, b"".join(encode_varint(n) for section in self.sections for n in section)),
            (_RUNS, b"".join(map(_encode_run, self.runs))),
            (_PACKS, packs),
            (_PENDING, encode_varint(self.pending) if self.pending else b""),
        )
        return fixed + typed + last

    @classmethod
    def decode(cls, data: bytes) -> Header:
        plain = None
        if native.IMPLEMENTATION == "c":
            plain = native.decode_header(data, PackName, RunName, Section)
        if plain is None:
            return cls._decode_any(data)
        (repository_id, commit_id, parent_id, parent_hash, version, seq, time, branch, author, message, properties,
         statistics, sections, runs, pending, oldest_kept, required, optional, group_commit, constraints, views,
         cursors) = plain  # fmt: skip
        declared = constraints, views, cursors
        _check_places(version, seq, oldest_kept, time, pending)
        return cls(
            repository_id, commit_id, parent_id, parent_hash, version, seq, time, branch, author, message,
            {} if properties is None else json_object(properties),
            Statistics(*statistics), sections, runs, (), pending, oldest_kept, required, optional,
            NOTHING_DECLARED if declared == (None,) * 3 else _decode_declared(declared),
            group_commit=GroupCommit.decode(group_commit) if group_commit is not None else None,
        )  # fmt: skip

    @classmethod
    def _decode_any(cls, data: bytes) -> Header:
        """Decode what is left to Python: all, without the extension; with it what is rare, and what is malformed."""
        reader = Reader(data)
        (magic, kind, checksum_kind, required, optional, repository_id, commit_id, parent_id, parent_hash,
         version, seq, oldest_kept, time) = HEADER.unpack(reader.take(HEADER.size))  # fmt: skip
        if magic != b"TXHD":
            raise MalformedError("no header is here: wrong magic")
        check_features(required & OF_READERS)
        if kind != HEADER_COMMIT or checksum_kind != CHECKSUM_CRC32C:
            raise NewerFormatError(f"a header of kind {kind} with checksums of kind {checksum_kind}")
        typed: dict[int, bytes] = {}
        last = -1
        while not reader.at_end:
            tag, length = FIELD.unpack(reader.take(FIELD.size))
            if tag <= last:
                raise MalformedError("its fields are out of order", reader.position)
            typed[tag], last = reader.take(length), tag
        numbers = _first_varints(typed.get(_STATISTICS, b""), 5)
        sections = list(islice(decode_varints(typed.get(_SECTIONS, b"")), 3 * MAX_SECTIONS + 1))
        if len(sections) > 3 * MAX_SECTIONS:
            raise MalformedError(f"it lists more than {MAX_SECTIONS} sections")
        if len(sections) % 3:
            raise MalformedError("the list of sections is cut short")
        pending = Reader(typed.get(_PENDING, b"\0")).varint()
        _check_places(version, seq, oldest_kept, time, pending)
        return cls(
            repository_id=repository_id, id=commit_id, parent_id=parent_id, parent_hash=parent_hash,
            version=version, seq=seq, time=time, oldest_kept=oldest_kept, required=required, optional=optional,
            branch=_text(typed, _BRANCH), author=_text(typed, _AUTHOR), message=_text(typed, _MESSAGE),
            properties=json_object(typed.get(_PROPERTIES, b"{}")),
            statistics=Statistics(*numbers),
            sections=tuple(Section(*sections[i : i + 3]) for i in range(0, len(sections), 3)),
            runs=tuple(_decode_runs(typed.get(_RUNS, b""))),
            packs=tuple(_decode_data_packs(typed.get(_PACKS, b""))),
            pending=pending,
            declared=_decode_declared(
                typed.get(tag) if required & bit else None
                for tag, bit in zip(_DECLARED, DECLARED_FEATURES, strict=True)
            ),
            fork=Reader(typed[_FORK]).branch() if _FORK in typed else None,
            merged=CommitName.decode(typed[_MERGED]) if _MERGED in typed else None,
            reach=dict(_decode_reach(typed.get(_REACH, b""))),
            group_commit=GroupCommit.decode(typed[_GROUP_COMMIT]) if _GROUP_COMMIT in typed else None,
        )  # fmt: skip


def _decode_declared(fields: Iterable[bytes | None]) -> Declarations:
    found = Declarations(*[{} if each is None else json_object(each) for each in fields])
    try:
        for name in (*found.constraints, *found.views):
            check_name("name", name)
        for name in found.cursors:
            check_cursor_name(name)
    except KeyFormatError as error:  # programs show these names, and shells complete them
        raise MalformedError("a constraint, a view or a feed has a name that none can have") from error
    return found


def check_features(required: int) -> None:
    """Raise `NewerFormatError` if a required feature is unknown. The message names the lowest one."""
    unknown = required & ~REQUIRED_FEATURES_KNOWN
    if unknown:
        raise NewerFormatError(f"required feature {(unknown & -unknown).bit_length() - 1}")


def _check_places(version: int, seq: int, oldest_kept: int, time: int, pending: int) -> None:
    """Check the numbers of a header that others are counted from."""
    check_numbers(
        ("version", version, seq - 1), ("seq", seq, MAX_COUNT), ("oldest kept version", oldest_kept, version),
        ("time", time, MAX_TIME), ("pending", pending, version),
    )  # fmt: skip


def _first_varints(data: bytes, count: int) -> list[int]:
    """Return the first of some numbers, once all of them were decoded."""
    numbers: list[int] = []
    for number in decode_varints(data):
        if len(numbers) < count:
            numbers.append(number)
    return numbers


def header_hash(encoded: bytes) -> bytes:
    """Return the hash by which a commit names its parent's header."""
    return blake2b(encoded, digest_size=16).digest()


def _encode_fields(*typed: tuple[int, bytes]) -> bytes:
    return b"".join(FIELD.pack(tag, len(content)) + content for tag, content in typed if content)


def _encode_json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(dict(content), sort_keys=True).encode() if content else b""


def _text(typed: Mapping[int, bytes], tag: int) -> str:
    content = typed.get(tag, b"")
    return Reader(content).text(len(content))


def _encode_run(run: RunName) -> bytes:
    pack = b"" if run.pack is None else run.pack.encode()
    return encode_varint(len(pack)) + pack + b"".join(map(encode_varint, run[1:]))


def _decode_runs(data: bytes) -> Iterator[RunName]:
    """Yield the runs. None is listed twice: a reader opens each, and every look-up goes through all of them."""
    reader = Reader(data)
    places: set[tuple[PackName | None, int]] = set()
    while not reader.at_end:
        length = reader.varint()
        pack = PackName.decode(reader.take(length)) if length else None
        run = RunName(pack, *(reader.varint() for _ in range(5)))
        if len(places) == MAX_RUNS:
            raise MalformedError(f"it lists more than {MAX_RUNS} runs", reader.position)
        if (run.pack, run.offset) in places:
            raise MalformedError("it lists a run twice", reader.position)
        places.add((run.pack, run.offset))
        yield run


def _encode_reached(reached: tuple[str, int]) -> bytes:
    branch, version = reached
    return encode_varint(len(branch)) + branch.encode() + encode_varint(version)


def _decode_reach(data: bytes) -> Iterator[tuple[str, int]]:
    reader = Reader(data)
    while not reader.at_end:
        branch, version = Reader(reader.take(reader.varint())).branch(), reader.varint()
        check_numbers(("version", version, MAX_COUNT))
        yield branch, version


def _encode_data_pack(pack: DataPack) -> bytes:
    name = pack.name.encode()
    return encode_varint(len(name)) + name + encode_varint(pack.end)


def _decode_data_packs(data: bytes) -> Iterator[DataPack]:
    """Yield the packs. None is listed twice: each is checked, and copied."""
    reader = Reader(data)
    known: set[bytes] = set()
    while not reader.at_end:
        name = PackName.decode(reader.take(reader.varint()))
        if name.id in known:
            raise MalformedError("it lists a data pack twice", reader.position)
        known.add(name.id)
        yield DataPack(name, reader.varint())


@dataclass(frozen=True, slots=True)
class Footer:
    header_length: int
    header_offset: int
    file_length: int
    pack_id: bytes
    header_checksum: int

    def encode(self) -> bytes:
        return with_checksum(
            FOOTER.pack(
                b"TXSTFOOT", VERSION, self.header_length, self.header_offset,
                self.file_length, self.pack_id, self.header_checksum,
            )
        )  # fmt: skip

    @classmethod
    @remembered
    def decode(cls, data: bytes) -> Footer:
        fixed = checked("footer", data, FOOTER_SIZE, b"TXSTFOOT")
        _, version, header_length, header_offset, file_length, pack_id, checksum = FOOTER.unpack(fixed)
        check_version("a commit", version)
        if header_offset + header_length + FOOTER_SIZE != file_length:
            raise MalformedError("header and footer do not end the file")
        check_numbers(("length of the header", header_length, MAX_HEADER))
        return cls(header_length, header_offset, file_length, pack_id, checksum)

"""The decoders: each with valid inputs, what makes a mutated one pass its checksum, and what it must answer.

A decoder returns a value, or raises one of `allowed`; anything else that it does is a finding. So is any difference
between the C and the Python fallback, and a value decoded from bytes whose checksum was not made to fit that is not
the value of the bytes before they were mutated.
"""

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.fuzz.mutations import mutated, mutated_json
from txstore._native import index, index_fallback
from txstore.constraints import (
    Complete,
    Constraint,
    EqualLength,
    Fixed,
    Frozen,
    OnlyGrows,
    RequiredAttributes,
    Sorted,
    Unique,
)
from txstore.errors import CorruptionError, UnsupportedFormatError
from txstore.format import encoding, names, packfile
from txstore.format.carried import carry, decode_carried
from txstore.format.commitfile import (
    DECLARED_FEATURES,
    CommitName,
    DataPack,
    Declarations,
    Footer,
    Header,
    RunName,
    Section,
    Statistics,
)
from txstore.format.encoding import CHECKSUM, MalformedError, crc32c
from txstore.format.packfile import PackName, Predecessor
from txstore.format.records import HeadCache, RepositoryFormat, Tag, TransactionRecord
from txstore.format.regions import Region
from txstore.history import declarations
from txstore.storage.foreign_values import FileVersion, ForeignRange

ID, OTHER_ID = bytes(range(16)), bytes(range(16, 32))
ALLOWED: tuple[type[Exception], ...] = (MalformedError,)


@dataclass(frozen=True)
class Target:
    """One decoder. `fallback` decodes the same in Python; it is asked about a sample, for it is slow."""

    name: str
    seeds: tuple[bytes, ...]
    decode: Callable[[bytes], Any]
    reseal: Callable[[bytes], bytes] | None = None
    fallback: Callable[[bytes], Any] | None = None
    allowed: tuple[type[Exception], ...] = ALLOWED
    is_sealed: bool = True  # a checksum covers all of it
    is_sound: Callable[[Any], bool] = lambda value: True  # what is decoded is what the rest of the code relies on
    mutate: Callable[[bytes, Sequence[bytes], Random], bytes] = mutated


def _reseal_tail(data: bytes) -> bytes:
    return encoding.with_checksum(data[:-4]) if len(data) >= 4 else data


def _reseal_json(data: bytes) -> bytes:
    try:
        members = json.loads(data)
    except (ValueError, RecursionError):
        return data
    if not isinstance(members, dict):
        return data
    members.pop("checksum", None)
    canonical = json.dumps(members, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({**members, "checksum": f"{crc32c(canonical):08x}"}).encode()


# --- headers
_RUNS = (
    RunName(None, 8, 4096, 512, 7, 8),
    RunName(PackName(OTHER_ID, "main", 6), 0, 64, 1 << 20, 1 << 20, 7),
    RunName(PackName(OTHER_ID), 3, 64, 99, 2, 3),
)
_HEADERS = (
    Header(ID, OTHER_ID, bytes(16), bytes(16), 0, 1, 1_700_000_000_000_000, "main"),
    Header(
        ID, OTHER_ID, ID, ID, 7, 8, 1_700_000_000_000_000, "main", "ana@lab", "tiles", {"a": [1, "é", None]},
        Statistics(3, 2, 1, 4096, 2), (Section(1, 64, 512), Section(1, 1024, 99)), _RUNS, (), 3, 2, 1, 1,
    ),
    Header(ID, OTHER_ID, ID, ID, 1 << 40, 1 << 41, 5, "b", runs=_RUNS[:1], packs=(DataPack(PackName(ID), 4096),)),
    Header(
        ID, OTHER_ID, ID, ID, 2, 3, 5, "b", required=sum(DECLARED_FEATURES),
        declared=Declarations({"a": {"kind": "b"}}, {"c": {}}, {"d": {}}),
    ),
    Header(ID, OTHER_ID, ID, ID, 4, 5, 5, "b", merged=CommitName("c", 3, ID, ID), reach={"b": 3, "c": 3, "main": 1}),
)  # fmt: skip


_CONSTRAINTS = tuple(
    json.dumps({"kind": each.kind, **each.as_dict()}).encode()
    for each in (
        EqualLength(["x", "g/y"]),
        Fixed("x", ["dtype", "chunks"], {"dtype": "int32", "chunks": {"name": "regular"}}),
        RequiredAttributes("", ["units"]),
        RequiredAttributes("x", {"units": ["m", None]}),
        OnlyGrows("x"),
        Complete("g/y"),
        Unique("time"),
        Sorted("time", descending=True),
        Frozen("published", "g/z"),
    )
)


def _constraint(data: bytes) -> Constraint:
    return declarations.decode_constraints("data.tx", {"name": encoding.json_object(data)})["name"]


def _is_sound_constraint(constraint: Constraint) -> bool:
    return (
        declarations.decode_constraints("data.tx", {"name": declarations.encode_constraint(constraint)})["name"]
        == constraint
    )


def _header_in_python(data: bytes) -> Header:
    return Header._decode_any(data)


# --- frames
def _frame(kind: int, seen: packfile.Seen, key: bytes, value: bytes, region: bytes = b"") -> bytes:
    frame = packfile.encode_frame(kind, seen, 5, key, len(value), crc32c(value), region)
    follows = isinstance(seen, Predecessor)
    offset, end = packfile.frame_layout(0, len(key), len(value), has_predecessor=follows, region=region)
    return (frame.ljust(offset, b"\0") + value).ljust(end, b"\0")


_REGION = Region.of_box(((0, 5), (3, 900))) | Region.of_box(((5, 9), (70000, 70001)))


def _reseal_frame(data: bytes) -> bytes:
    if len(data) < packfile.FRAME_SIZE:
        return data
    fixed = data[: packfile.FRAME.size]
    _, kind, seen, key_length, *_ = packfile.FRAME.unpack(fixed)
    rest = data[packfile.FRAME_SIZE :]
    rest = rest[: packfile.rest_length(kind, seen, key_length, rest)]
    return fixed + CHECKSUM.pack(crc32c(rest, crc32c(fixed))) + data[packfile.FRAME_SIZE :]


# --- runs
_RUN_ALLOWED = (ValueError,)
_PACK = PackName(OTHER_ID, "main", 6).encode()


def _run(count: int, prefixes: tuple[bytes, ...] = (), step: int = 1) -> bytes:
    entries = [
        (
            f"group/array{n % 3}/c/{n:05}".encode(),
            packfile.REF_TOMBSTONE if n % 7 == 3 else packfile.REF_FOREIGN if n % 5 == 2 else packfile.REF_PACK,
            n * 64, n, n * 77, n % 2,
        )
        for n in range(0, count * step, step)
    ]  # fmt: skip
    return index_fallback.build(sorted(entries), prefixes, [_PACK])


def _reseal_run(data: bytes) -> bytes:
    """Make the checksums of the index, and of every block that the index places inside the section, fit."""
    trailer = index_fallback.TRAILER
    if len(data) < trailer.size:
        return data
    sealed = bytearray(data)
    _, _, _, blocks, _, _, _, _, index_at, _, _, _ = trailer.unpack(sealed[-trailer.size :])
    end = len(sealed) - trailer.size
    for at in range(index_at, min(index_at + blocks * index_fallback.RECORD.size, end), index_fallback.RECORD.size):
        if at + index_fallback.RECORD.size > end:
            break
        offset, length, *_ = index_fallback.RECORD.unpack_from(sealed, at)
        if offset + length <= index_at:
            struct.pack_into("<I", sealed, at + 12, crc32c(bytes(sealed[offset : offset + length])))
    if index_at <= end:
        struct.pack_into("<I", sealed, len(sealed) - 4, crc32c(bytes(sealed[index_at:-4])))
    return bytes(sealed)


_KEYS = (b"", b"group/array1/c/00004", b"group/array2", b"\xff" * 9, b"group/zarr.json")
_OTHER = _run(40, (b"group/array1/",), 3)


def _exercise(module: Any, data: bytes) -> Any:
    run = module.Run(data, 9)
    said: list[Any] = [run.entries, run.blocks, run.max_seq, run.prefixes, run.packs]
    above = module.Run(_OTHER, 11)
    for call in (
        run.verify,
        lambda: run.scan(b"", None, 500),
        lambda: run.scan(b"group/array1/", b"group/array2", 5, 3),
        lambda: module.scan((above, run), b"", None, 200),
        lambda: [module.lookup((above, run), key) for key in _KEYS],
        lambda: module.merge((above, run), ((b"a", _PACK), (b"b", *run.packs)), 4),
    ):
        try:
            said.append(call())
        except ValueError:
            said.append(ValueError)
    return said


def _exercise_c(data: bytes) -> Any:
    return _exercise(index, data)


def _exercise_fallback(data: bytes) -> Any:
    return _exercise(index_fallback, data)


# --- names
def _names(data: bytes) -> Any:
    name = data.decode(errors="surrogateescape")
    return [
        parse(name)
        for parse in (names.parse_version, names.parse_staging, names.parse_record, names.parse_named)
    ]  # fmt: skip


def _is_sound_record(record: TransactionRecord) -> bool:
    try:
        return TransactionRecord.decode(record.encode()) == record and "/" not in f"{record.branch}{record.name}"
    except (MalformedError, TypeError, ValueError):
        return False


def _is_sound_range(found: ForeignRange) -> bool:
    return ForeignRange.decode(found.encode()) == found and found.offset + found.length <= found.file.size


def _is_sound_name(name: PackName) -> bool:
    return ".." not in name.path and name.path.count("/") == 2


_CARRIED = b""
for _header in _HEADERS[:3]:
    _encoded = _header.encode()
    _CARRIED = carry(
        _encoded, Footer(len(_encoded), 64, 128 + len(_encoded), ID, encoding.crc32c(_encoded)).encode(), _CARRIED
    )

TARGETS = (
    Target(
        "header", tuple(header.encode() for header in _HEADERS), Header.decode, is_sealed=False,
        fallback=_header_in_python if index.IMPLEMENTATION == "c" else None,
    ),
    Target("footer", (Footer(200, 4096, 4360, ID, 77).encode(),), Footer.decode, _reseal_tail),
    Target("carried", (_CARRIED,), lambda data: list(decode_carried(data)), _reseal_tail),
    Target("head", (packfile.encode_head(ID, OTHER_ID, 3),), packfile.decode_head, _reseal_tail),
    Target("head_cache", (HeadCache(7, ID, 4360, 4096, 200, True, 5).encode(),), HeadCache.decode, _reseal_tail),
    Target("tag", (Tag("main", 7, ID).encode(),), Tag.decode, _reseal_tail),
    Target("format", (RepositoryFormat(ID).encode(),), RepositoryFormat.decode, _reseal_json, mutate=mutated_json),
    Target(
        "record",
        (
            TransactionRecord(ID, "main", (7, OTHER_ID.hex()), "run-17", "m", {"a": 1}, "none", "ana", 5).encode(),
            TransactionRecord(ID, "main", None).encode(),
        ),
        TransactionRecord.decode, _reseal_json, mutate=mutated_json, is_sound=_is_sound_record,
    ),
    Target(
        "region", (_REGION.encode(), Region.of_box(((0, 1 << 40),) * 5).encode()), Region.decode, is_sealed=False,
        is_sound=lambda region: Region.decode(region.encode()) == region,
    ),
    Target(
        "pack-name", (PackName(ID, "main", 300).encode(), PackName(ID).encode()), PackName.decode, is_sealed=False,
        is_sound=_is_sound_name,
    ),
    Target(
        "foreign",
        (
            ForeignRange(FileVersion("s3://bucket/raw/é.nc", 1 << 40, '"etag"'), 1 << 33, 4096).encode(),
            ForeignRange(FileVersion("file:///a", 0, ""), 0, 0).encode(),
        ),
        ForeignRange.decode, is_sealed=False, is_sound=_is_sound_range,
    ),
    Target(
        "constraint", _CONSTRAINTS, _constraint, is_sealed=False, mutate=mutated_json, is_sound=_is_sound_constraint,
        allowed=(*ALLOWED, CorruptionError, UnsupportedFormatError),
    ),
    Target(
        "frame",
        (
            _frame(packfile.FRAME_VALUE, packfile.SEEN_BASE, b"a/c/0", bytes(100)),
            _frame(packfile.FRAME_VALUE, Predecessor(2, 9), b"a/c/1", bytes(2000)),
            _frame(packfile.FRAME_FOREIGN, packfile.SEEN_NOTHING, b"a/c/2", bytes(90)),
            _frame(packfile.FRAME_PREFIX, packfile.SEEN_NOTHING, b"a/", b""),
            _frame(packfile.FRAME_PARTIAL, packfile.SEEN_BASE, b"a/c/3", bytes(90), _REGION.encode()),
            _frame(packfile.FRAME_PARTIAL, Predecessor(2, 9), b"a/c/4", bytes(2000), _REGION.encode()),
            _frame(packfile.FRAME_MERGED, packfile.SEEN_NOTHING, b"a/c/4", bytes(2000)),
        ),
        lambda data: packfile.decode_frame(memoryview(data), 0), _reseal_frame, is_sealed=False,
    ),
    Target(
        "run", (_run(5), _run(300), _run(60, (b"group/", b"x/y/")), _run(0, (b"",))), _exercise_c, _reseal_run,
        fallback=_exercise_fallback if index is not index_fallback else None, allowed=_RUN_ALLOWED, is_sealed=False,
    ),
    Target("names", (b"0000000017", ID.hex().encode() + b".3", ID.hex().encode() + b".open", b"named-run-17"), _names,
           is_sealed=False),
)  # fmt: skip

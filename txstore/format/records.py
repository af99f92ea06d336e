"""The small files beside the commits: head cache, tag, `format.json` and the guard.

docs/understand/format.md, "Files".
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from txstore.errors import KeyFormatError
from txstore.format import names
from txstore.format.commitfile import OF_READERS, CommitName, RunName, check_features
from txstore.format.encoding import (
    MAX_COUNT,
    MAX_TIME,
    VERSION,
    MalformedError,
    NewerFormatError,
    Reader,
    check_numbers,
    checked,
    crc32c,
    encode_varint,
    json_object,
    remembered,
    with_checksum,
)
from txstore.format.keys import check_name, decode_key
from txstore.format.packfile import PackName

#: Of the files in which these lie, in bytes: docs/understand/format.md, "Bounds".
MAX_SIZE = 4 << 20

HEAD_CACHE = struct.Struct("<8sQ16sQQIII")
HEAD_CACHE_SIZE = 64
assert HEAD_CACHE.size == 60
TAG = struct.Struct("<8sQ16s")
BRANCH = struct.Struct("<8s16s16s16sB")

#: What a transaction may be checked for: what it writes, or also what it reads.
Isolation: TypeAlias = Literal["snapshot", "serializable"]
SNAPSHOT: Final = "snapshot"
SERIALIZABLE: Final = "serializable"
ISOLATIONS = SNAPSHOT, SERIALIZABLE

_ID = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class HeadCache:
    """The version at which the search for the head begins.

    `durable`: this commit and all before it are known to be. `boot`: of the machine that has seen them, 0 if not known.
    `place`: where that is true, see `Storage.place`.
    """

    version: int
    commit_id: bytes
    file_length: int
    header_offset: int
    header_length: int
    durable: bool
    boot: int = 0
    place: int = 0  # even

    def is_durable_at(self, place: int) -> bool:
        """Tell whether it was written at a place, and says that its commit is durable. 0: at no place."""
        return self.durable and self.place == place != 0

    def encode(self) -> bytes:
        return with_checksum(
            HEAD_CACHE.pack(
                b"TXSTHEAD", self.version, self.commit_id, self.file_length,
                self.header_offset, self.header_length, self.place | self.durable, self.boot,
            )
        )  # fmt: skip

    @classmethod
    @remembered
    def decode(cls, data: bytes) -> HeadCache:
        fixed = checked("head_cache", data, HEAD_CACHE_SIZE, b"TXSTHEAD")
        _, version, commit_id, size, offset, length, place, boot = HEAD_CACHE.unpack(fixed)
        return cls(version, commit_id, size, offset, length, place & 1 == 1, boot, place & ~1)


@dataclass(frozen=True, slots=True)
class Tag:
    branch: str
    version: int
    commit_id: bytes

    def encode(self) -> bytes:
        return with_checksum(TAG.pack(b"TXSTTAG1", self.version, self.commit_id) + self.branch.encode())

    @classmethod
    @remembered
    def decode(cls, data: bytes) -> Tag:
        fixed = checked("tag", data, max(len(data), TAG.size + 4), b"TXSTTAG1")
        _, version, commit_id = TAG.unpack(fixed[: TAG.size])
        return cls(Reader(fixed, TAG.size).branch(), version, commit_id)


@dataclass(frozen=True, slots=True)
class Branch:
    """The record of a branch other than the first: its name, its id, and where it begins.

    `lineage` says in which branch the commits before its own lie, the nearest first: in each up to this version. So
    that is known whatever becomes of the other branches.
    """

    name: str
    id: str
    commit_id: bytes  # of the fork point, in the branch and version that the lineage begins with
    hash: bytes  # of its header
    lineage: tuple[tuple[str, int], ...]

    @property
    def fork(self) -> CommitName:
        branch, version = self.lineage[0]
        return CommitName(branch, version, self.commit_id, self.hash)

    def encode(self) -> bytes:
        name = self.name.encode()
        fixed = BRANCH.pack(b"TXSTBRN1", bytes.fromhex(self.id), self.commit_id, self.hash, len(name))
        lineage = ((version, branch.encode()) for branch, version in self.lineage)
        behind = (encode_varint(version) + encode_varint(len(branch)) + branch for version, branch in lineage)
        return with_checksum(b"".join([fixed, name, *behind]))

    @classmethod
    @remembered
    def decode(cls, data: bytes) -> Branch:
        fixed = checked("branch", data, max(len(data), BRANCH.size + 4), b"TXSTBRN1")
        _, branch_id, commit_id, header_hash, length = BRANCH.unpack(fixed[: BRANCH.size])
        reader = Reader(fixed, BRANCH.size)
        try:
            name = names.check_branch_name(reader.text(length))
        except KeyFormatError as error:
            raise MalformedError(str(error)) from error
        lineage: list[tuple[str, int]] = []
        while not reader.at_end:
            version, branch = reader.varint(), reader.text(reader.varint())
            # Each begins above where the one that it has forked from is left: so no reader goes round in a circle.
            check_numbers(("version", version, lineage[-1][1] - 1 if lineage else MAX_COUNT))
            if not names.is_branch_id(branch):
                raise MalformedError(f"{branch!r} is the id of no branch")
            lineage.append((branch, version))
        if not lineage:
            raise MalformedError("the record of a branch does not say where it begins")
        return cls(name, branch_id.hex(), commit_id, header_hash, tuple(lineage))


#: How a version is taken at most once: on a local disk; by a promise that no other process writes; in all other known
#: ways.
VERSIONS_BY_RENAME, VERSIONS_BY_PROMISE = "rename", "single writer"
VERSIONS_KNOWN = frozenset({VERSIONS_BY_RENAME, VERSIONS_BY_PROMISE, "conditional", "lock"})


@dataclass(frozen=True, slots=True)
class RepositoryFormat:
    """The content of `format.json`."""

    repository_id: bytes
    versions: str = VERSIONS_BY_RENAME
    required: int = 0
    optional: int = 0

    def encode(self) -> bytes:
        members = {
            "txstore": VERSION,
            "repository": self.repository_id.hex(),
            "versions": self.versions,
            "required": self.required,
            "optional": self.optional,
        }
        return json.dumps({**members, "checksum": _json_checksum(members)}, indent=2).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> RepositoryFormat:
        members = json_object(data)
        version = members.get("txstore")
        if type(version) is int and version > VERSION:
            raise NewerFormatError(f"format version {version}")
        checksum = members.pop("checksum", None)
        if checksum != _json_checksum(members):
            raise MalformedError("the document has a wrong checksum")
        repository, versions = members.get("repository"), members.get("versions")
        required: Any = members.get("required")
        optional: Any = members.get("optional")
        numbers = version, required, optional
        if version != VERSION or not all(type(each) is int and 0 <= each < 1 << 64 for each in numbers):
            raise MalformedError("a number in the document is missing, or none that it can be")
        if not isinstance(repository, str) or not _ID.fullmatch(repository):
            raise MalformedError("the document names no repository")
        if not isinstance(versions, str) or versions not in VERSIONS_KNOWN:
            raise NewerFormatError(f"versions taken by {versions!r}")
        check_features(required & OF_READERS)
        return cls(bytes.fromhex(repository), versions, required, optional)


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """The record that a process needs to stage into another process's transaction."""

    id: bytes
    branch: str
    base: tuple[int, str] | None  # version and commit id; None: there was no commit yet
    name: str | None = None
    message: str | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)
    durability: str = "fsync"
    owner: str = ""  # who began it: user@host, and the process id
    time: int = 0  # when it began, microseconds since 1970 UTC
    isolation: str = SNAPSHOT

    def encode(self) -> bytes:
        members = {
            "transaction": self.id.hex(),
            "branch": self.branch,
            "base": None if self.base is None else list(self.base),
            "name": self.name,
            "message": self.message,
            "properties": dict(self.properties),
            "durability": self.durability,
            "owner": self.owner,
            "time": self.time,
            "isolation": self.isolation,
        }
        # Not indented: what is nested would take many times its length.
        return json.dumps({**members, "checksum": _json_checksum(members)}).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> TransactionRecord:
        members = json_object(data)
        checksum = members.pop("checksum", None)
        if checksum != _json_checksum(members):
            raise MalformedError("the record of the transaction has a wrong checksum")
        for name, is_fit in _FIT_FOR_A_RECORD.items():
            if name not in members or not is_fit(members[name]):
                raise MalformedError(f"the record of the transaction has no {name} that makes sense")
        base = members["base"]
        return cls(
            bytes.fromhex(members["transaction"]),
            members["branch"],
            None if base is None else (base[0], base[1]),
            members["name"],
            members["message"],
            members["properties"],
            members["durability"],
            members["owner"],
            members["time"],
            members["isolation"],
        )


@dataclass(frozen=True, slots=True)
class ReplacementTable:
    """Where an erasure of rows says which values replace others: a run, in the last of the packs with these values."""

    packs: tuple[bytes, ...]  # by their ids; they are in place before the run is
    offset: int = 0
    length: int = 0  # of the run; 0: it is not written yet
    entries: int = 0

    @property
    def run(self) -> RunName | None:
        """The run; None as long as it is not written. Nothing was replaced until then."""
        if not self.length:
            return None
        return RunName(PackName(self.packs[-1]), 1, self.offset, self.length, self.entries, 1)

    def as_dict(self) -> dict[str, Any]:
        return {
            "packs": [pack.hex() for pack in self.packs], "offset": self.offset, "length": self.length,
            "entries": self.entries,
        }  # fmt: skip

    @classmethod
    def of(cls, members: Mapping[str, Any]) -> ReplacementTable:
        packs = tuple(map(bytes.fromhex, members["packs"]))
        return cls(packs, members["offset"], members["length"], members["entries"])


@dataclass(frozen=True, slots=True)
class ErasureRecord:
    """The record of an erasure: what was erased, the user who did it, and when.

    Of one that erased rows: the dimensions that the rows are along, never their labels, and what replaces the values.
    """

    id: str
    paths: tuple[str, ...]
    by: str
    time: int  # when it began, microseconds since 1970 UTC
    until: Mapping[str, int]  # of each branch, by its id, the last version that it is about; -1: of none
    finished: int | None = None
    values: int = 0
    length: int = 0  # of the values, in bytes
    dimensions: tuple[str, ...] = ()
    table: ReplacementTable | None = None

    @property
    def path(self) -> str:
        """The path of its file."""
        return names.erasure_path(self.id, of_rows=self.table is not None)

    @property
    def may_have_replaced(self) -> bool:
        """Whether files may have been replaced, so that the record says all that is needed to finish the erasure."""
        if self.table is not None:
            return self.table.run is not None
        return self.finished is not None or self.values > 0

    def encode(self) -> bytes:
        members: dict[str, Any] = {
            "erasure": self.id, "paths": list(self.paths), "by": self.by, "time": self.time,
            "until": dict(self.until), "finished": self.finished,
            "values": self.values, "bytes": self.length,
        }  # fmt: skip
        if self.table is not None:
            members |= {"dimensions": list(self.dimensions), "table": self.table.as_dict()}
        return json.dumps({**members, "checksum": _json_checksum(members)}, indent=2).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> ErasureRecord:
        members = json_object(data)
        checksum = members.pop("checksum", None)
        if checksum != _json_checksum(members):
            raise MalformedError("the record of what was erased has a wrong checksum")
        for name, is_fit in _FIT_FOR_AN_ERASURE.items():
            if name not in members or not is_fit(members[name]):
                raise MalformedError(f"the record of what was erased has no {name} that makes sense")
        of_rows = {name: members[name] for name in _FIT_FOR_ROWS if name in members}
        if of_rows and not all(name in of_rows and is_fit(of_rows[name]) for name, is_fit in _FIT_FOR_ROWS.items()):
            raise MalformedError("the record of what was erased has no rows that make sense")
        return cls(
            members["erasure"], tuple(members["paths"]), members["by"], members["time"], members["until"],
            members["finished"], members["values"], members["bytes"], tuple(of_rows.get("dimensions", ())),
            ReplacementTable.of(of_rows["table"]) if of_rows else None,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """The record of an operation that is not in the log of commits: what, on what, by whom, when, and its result."""

    id: str
    operation: str
    arguments: Mapping[str, Any]
    by: str
    time: int  # when it began, microseconds since 1970 UTC
    finished: int | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None  # why it failed

    def encode(self) -> bytes:
        members = {
            "id": self.id, "operation": self.operation, "arguments": dict(self.arguments), "by": self.by,
            "time": self.time, "finished": self.finished, "result": dict(self.result), "error": self.error,
        }  # fmt: skip
        return json.dumps({**members, "checksum": _json_checksum(members)}, indent=2).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> OperationRecord:
        members = json_object(data)
        checksum = members.pop("checksum", None)
        if checksum != _json_checksum(members):
            raise MalformedError("the record of an operation has a wrong checksum")
        for name, is_fit in _FIT_FOR_AN_OPERATION.items():
            if name not in members or not is_fit(members[name]):
                raise MalformedError(f"the record of an operation has no {name} that makes sense")
        return cls(**{name: members[name] for name in _FIT_FOR_AN_OPERATION})


_MAGICS = frozenset({b"TXSTPACK", b"TXSTHEAD", b"TXSTTAG1", b"TXSTBRN1"})


def beginning_of(path: str) -> int:
    """Return how many of a file's bytes `is_data` needs: two kinds are JSON, which has its checksum anywhere."""
    return MAX_SIZE if path == names.FORMAT or path.startswith(f"{names.ERASED}/") else 8


def is_data(path: str, beginning: bytes) -> bool:
    """Tell whether a file begins as the data of a repository do that have this path."""
    if beginning_of(path) == 8:
        return beginning[:8] in _MAGICS
    try:
        members = json_object(beginning)
        return bool(members.pop("checksum", None) == _json_checksum(members))
    except MalformedError:
        return False


def _is_id(value: object) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _is_time(value: Any) -> bool:
    return _is_number(value) and value <= MAX_TIME


def _is_version(value: Any) -> bool:
    return value == -1 or _is_number(value)  # -1: a branch without commits


def _is_name(value: object) -> bool:
    """Tell whether a name may become a part of a path."""
    try:
        return isinstance(value, str) and check_name("name", value) == value
    except KeyFormatError:
        return False


_FIT_FOR_A_RECORD: Mapping[str, Callable[[Any], bool]] = {
    "transaction": _is_id,
    "branch": _is_name,
    "base": lambda base: (
        base is None or (isinstance(base, list) and len(base) == 2 and _is_number(base[0]) and _is_id(base[1]))
    ),
    "name": lambda name: name is None or _is_name(name),
    "message": lambda message: message is None or isinstance(message, str),
    "properties": lambda properties: isinstance(properties, dict),
    "durability": lambda durability: durability in ("fsync", "none"),
    "owner": lambda owner: isinstance(owner, str),
    "time": _is_time,
    "isolation": lambda isolation: isolation in ISOLATIONS,
}


def _is_path(value: object) -> bool:
    return isinstance(value, str) and decode_key(value.encode(errors="replace")) == value


_FIT_FOR_AN_ERASURE: Mapping[str, Callable[[Any], bool]] = {
    "erasure": _is_id,
    "paths": lambda paths: isinstance(paths, list) and len(paths) > 0 and all(map(_is_path, paths)),
    "by": lambda by: isinstance(by, str),
    "time": _is_time,
    "until": lambda until: (
        isinstance(until, dict) and all(map(names.is_branch_id, until)) and all(map(_is_version, until.values()))
    ),
    "finished": lambda time: time is None or _is_time(time),
    "values": _is_number,
    "bytes": _is_number,
}


def _is_table(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("packs"), list)
        and all(map(_is_id, value["packs"]))
        and all(_is_number(value.get(name)) for name in ("offset", "length", "entries"))
        and (not value["length"] or bool(value["packs"]))
    )


#: What the record of an erasure of rows has besides: all of it, or nothing.
_FIT_FOR_ROWS: Mapping[str, Callable[[Any], bool]] = {
    "dimensions": lambda dimensions: (
        isinstance(dimensions, list) and len(dimensions) > 0 and all(isinstance(each, str) for each in dimensions)
    ),
    "table": _is_table,
}


_FIT_FOR_AN_OPERATION: Mapping[str, Callable[[Any], bool]] = {
    "id": lambda operation: isinstance(operation, str) and names.is_operation(operation),
    "operation": lambda operation: isinstance(operation, str),
    "arguments": lambda arguments: isinstance(arguments, dict),
    "by": lambda by: isinstance(by, str),
    "time": _is_time,
    "finished": lambda time: time is None or _is_time(time),
    "result": lambda result: isinstance(result, dict),
    "error": lambda error: error is None or isinstance(error, str),
}


def _json_checksum(members: Mapping[str, Any]) -> str:
    canonical = json.dumps(members, sort_keys=True, separators=(",", ":")).encode()
    return f"{crc32c(canonical):08x}"


#: The guard is a valid group but for one member that no client understands, so that zarr's own error shows its name.
GUARD_SENTENCE = "this is a TxStore repository: open it with txstore.TxStore(path), not by its bare path"


def encode_guard() -> bytes:
    document = {"zarr_format": 3, "node_type": "group", "attributes": {}, GUARD_SENTENCE: {"must_understand": True}}
    return json.dumps(document, indent=2).encode() + b"\n"

"""Builds and parses every file name of a repository. docs/understand/format.md, "Files"."""

from __future__ import annotations

import os
import re

from txstore.errors import KeyFormatError
from txstore.format.keys import check_name

GUARD = "zarr.json"
#: The prefix of a URL that a store prints, and of a URL that fsspec chains.
PRINTED, CHAINED = "txstore://", "txstore::"
FORMAT = "format.json"
STAGING = ".staging"
COMMIT_LOCK = "locks/commit"
STAGING_LOCK = "locks/staging"
ERASE_LOCK = "locks/erase"
LOCKS = "locks"
PINS = "locks/pins"
PACKS = "packs"
TAGS = "tags"
BRANCHES = "branches"
#: Records of what was erased; the directory is made with the first one.
ERASED = "erased"
#: Records of what was done beside commits; the directory is made with the first one.
OPERATIONS = "operations"
#: The id of the first branch, which is also its name. Those of others are 32 hexadecimal digits.
MAIN = "main"
DIRECTORIES = (STAGING, "commits", "commits/main", "oldest_kept", "oldest_kept/main", "heads", PACKS, TAGS, LOCKS)

QUARANTINE = "quarantine"
OLDEST_KEPT = "oldest_kept"
#: The files and directories at the top of a repository.
TOP = frozenset(
    {
        GUARD,
        FORMAT,
        QUARANTINE,
        OLDEST_KEPT,
        BRANCHES,
        ERASED,
        OPERATIONS,
        *(name.partition("/")[0] for name in DIRECTORIES),
    }
)

NEW = ".new"
#: Behind the path of a repository that `protect` has moved beside it.
BESIDE = ".d"
#: The suffix of a lease's name (`leases`): the lease lies beside the object that it protects.
LEASE = ".held"
_OPEN, _SEALED, _NAMED = "open", "sealed", "named-"
_ROWS = ".rows"
_STOP = "stop-"

_ID = re.compile(r"[0-9a-f]{32}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")
_NEW_FILE = re.compile(r"[0-9a-f]{16}\.new")
_OPERATION = re.compile(r"[0-9]{18}-[0-9a-f]{16}")
_ORPHAN = re.compile(r"[0-9a-f]{32}(-[0-9a-f]{8})?")
_FOLDER = re.compile(r"[0-9a-f]{2}")
_LOCK_FILE = re.compile(r"chunks|(member|stripe)-[0-9]{2,4}")

# Windows opens devices instead, whatever follows a dot.
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))})

# What file managers, file systems and editors leave in any directory.
_LITTER = frozenset({".DS_Store", ".directory", ".localized", "Thumbs.db", "desktop.ini"})
_LITTER_BEGINS = ("._", ".nfs", ".fuse_hidden", ".smbdelete", ".~lock.", ".#", "#")
_LITTER_ENDS = ("~", ".swp", ".swo")


def is_branch_id(branch: str) -> bool:
    """Tell whether what the commits of a branch are found by can be this."""
    return branch == MAIN or _ID.fullmatch(branch) is not None


def check_branch_name(name: str) -> str:
    """Return the name of a branch, or raise `KeyFormatError`. It becomes a file name anywhere."""
    check_name("branch", name)
    if name.endswith(".") or name.lower().partition(".")[0] in _DEVICES:
        raise KeyFormatError(f"branch {name!r}: some file systems can't take this name: choose another")
    if _ID.fullmatch(name.lower()):
        raise KeyFormatError(f"branch {name!r}: this looks like the id of a commit: choose another name")
    return name


def branch_path(name: str) -> str:
    """The record of a branch. Names that differ in case alone have one path: no two of them can be created."""
    return f"{BRANCHES}/{name.lower()}"


def is_branch_file(file: str) -> bool:
    """Tell whether a file of `branches/` is the record of one."""
    try:
        return check_branch_name(file) == file.lower() != MAIN
    except KeyFormatError:
        return False


def commits_directory(branch: str) -> str:
    return f"commits/{branch}"


def version_name(version: int) -> str:
    return f"{version:010d}"


def commit_path(branch: str, version: int) -> str:
    return f"commits/{branch}/{version_name(version)}"


def is_commit_path(path: str) -> bool:
    return path.startswith("commits/")


def parse_commit_path(path: str) -> tuple[str, int] | None:
    """Return branch and version of the path of a commit file; None for any other path."""
    top, _, rest = path.partition("/")
    branch, _, name = rest.partition("/")
    version = parse_version(name)
    return (branch, version) if top == "commits" and version is not None and is_branch_id(branch) else None


def parse_version(name: str) -> int | None:
    """Return the version of a commit file's name, None for any other name."""
    if not 10 <= len(name) <= 19 or not (name.isascii() and name.isdigit()):
        return None
    version = int(name)
    return version if version_name(version) == name else None


def orphan_path(branch: str, version: int, commit_id: bytes) -> str:
    return f"{commit_path(branch, version)}.orphan-{commit_id.hex()}"


def proposal_path(branch: str, version: int, commit_id: bytes) -> str:
    """The file of a committer's proposal to the leader of a group commit. It sorts right after the version."""
    return f"{commit_path(branch, version)}.proposal-{commit_id.hex()}"


def lead_path(branch: str, version: int) -> str:
    """The file by which a leader announces that it will commit a version for a group."""
    return f"{commit_path(branch, version)}.lead"


def parse_proposal(file: str) -> tuple[int, bytes] | None:
    """Return version and commit id of the file name of a proposal, None for any other name."""
    name, mark, commit_id = file.partition(".proposal-")
    version = parse_version(name)
    return None if not mark or version is None or not _ID.fullmatch(commit_id) else (version, bytes.fromhex(commit_id))


def parse_lead(file: str) -> int | None:
    """Return the version of the file name of `lead_path`, None for any other name."""
    return parse_version(file.removesuffix(".lead")) if file.endswith(".lead") else None


def stop_path(branch: str, version: int, commit_id: bytes) -> str:
    """What says that a commit may have taken another's version, or lost its own.

    Each process that lists versions sees it.
    """
    return f"{commits_directory(branch)}/{_STOP}{version_name(version)}-{commit_id.hex()}"


def parse_stop(file: str) -> tuple[int, bytes] | None:
    """Return version and commit id of the file name of `stop_path`, None for any other name."""
    return _parse_behind(_STOP, file)


def _parse_behind(begin: str, file: str) -> tuple[int, bytes] | None:
    """Return version and commit id of a name that lies behind all versions, None for any other name."""
    name, _, commit_id = file.removeprefix(begin).partition("-")
    version = parse_version(name) if file.startswith(begin) else None
    return None if version is None or not _ID.fullmatch(commit_id) else (version, bytes.fromhex(commit_id))


#: What parses the names that lie beside commits on an object store: no part of the data.
_BESIDE_COMMITS = (parse_proposal, parse_lead, parse_stop)


def staging_path(transaction: bytes, participant: int) -> str:
    return f"{STAGING}/{transaction.hex()}.{participant}"


def parse_staging(name: str) -> tuple[bytes, int] | None:
    """Return transaction and participant of a staged pack's file name, None for any other name."""
    transaction, _, participant = name.partition(".")
    if not _ID.fullmatch(transaction) or not _NUMBER.fullmatch(participant) or int(participant) >= 1 << 32:
        return None
    return bytes.fromhex(transaction), int(participant)


def open_path(transaction: bytes) -> str:
    """The record of a transaction that several processes may stage into."""
    return f"{STAGING}/{transaction.hex()}.{_OPEN}"


def sealed_path(transaction: bytes) -> str:
    """The same record while the transaction ends: no process may stage any more."""
    return f"{STAGING}/{transaction.hex()}.{_SEALED}"


def parse_record(name: str) -> bytes | None:
    """Return the transaction whose record, open or sealed, has this file name; None for any other name."""
    transaction, _, state = name.partition(".")
    if not _ID.fullmatch(transaction) or state not in (_OPEN, _SEALED):
        return None
    return bytes.fromhex(transaction)


def parse_leased_record(name: str) -> bytes | None:
    """Return the transaction of whose record this is what a lease is on; None for any other name."""
    return bytes.fromhex(name) if _ID.fullmatch(name) else None


def lease_path(lock: str) -> str:
    """What a lease is on that stands for a lock file where there are no locks. No transaction has such an id."""
    return f"{STAGING}/{lock.encode().hex():0<32.32}"


def named_path(name: str) -> str:
    """The file that says which transaction has this name."""
    return f"{STAGING}/{_NAMED}{name}"


def parse_named(file: str) -> str | None:
    """Return the transaction's name that this file is of, None for any other file."""
    name = file.removeprefix(_NAMED)
    return name if name != file and is_name(name) else None


def is_new(file: str) -> bool:
    """Tell whether a file of `.staging/` is a small one that is being written."""
    return _NEW_FILE.fullmatch(file) is not None


def is_name(name: str) -> bool:
    """Tell whether a tag, a branch or a transaction can be called so."""
    try:
        check_name("tag", name)
    except KeyFormatError:
        return False
    return True


def is_orphan(file: str) -> bool:
    """Tell whether a file of `commits/<branch>/` is a commit that was moved aside."""
    version, mark, rest = file.partition(".orphan-")
    return bool(mark) and parse_version(version) is not None and _ORPHAN.fullmatch(rest) is not None


def data_pack_path(pack_id: bytes) -> str:
    return f"{data_pack_directory(pack_id)}/{pack_id.hex()}"


def data_pack_directory(pack_id: bytes) -> str:
    return f"{PACKS}/{pack_id.hex()[:2]}"


def parse_data_pack(directory: str, name: str) -> bytes | None:
    """Return the id of the data pack that has this name in this directory of `packs/`; None for any other file."""
    return bytes.fromhex(name) if _ID.fullmatch(name) and name[:2] == directory else None


def head_cache_path(branch: str) -> str:
    return f"heads/{branch}"


def oldest_kept_directory(branch: str) -> str:
    return f"oldest_kept/{branch}"


def oldest_kept_path(branch: str, version: int) -> str:
    """The file that records that a vacuum has removed the versions below."""
    return f"{oldest_kept_directory(branch)}/{version_name(version)}"


def tag_path(name: str) -> str:
    return f"{TAGS}/{name}"


def erasure_path(erasure: str, *, of_rows: bool = False) -> str:
    """The record of an erasure. A version that does not know erasures of rows passes over theirs."""
    return f"{ERASED}/{erasure}{_ROWS if of_rows else ''}"


def operation_path(operation: str) -> str:
    return f"{OPERATIONS}/{operation}"


def is_operation(operation: str) -> bool:
    """Tell whether this is the id of a recorded operation. Ids sort by the time when the operations began."""
    return _OPERATION.fullmatch(operation) is not None


def is_repository(directory: str | os.PathLike[str]) -> bool:
    """Tell by the names in it whether a local directory is the root of a repository."""
    path = os.path.expanduser(directory)
    return all(os.path.lexists(os.path.join(path, name)) for name in (FORMAT, commits_directory(MAIN)))


def belongs(path: str) -> bool:
    """Tell whether a file or directory of a repository can have this path. Nothing else is ever deleted."""
    top, _, rest = path.partition("/")
    if not rest:
        return top in TOP
    if top == QUARANTINE:
        return True
    if top == PACKS:
        folder, _, name = rest.partition("/")
        return parse_data_pack(folder, name) is not None if name else _FOLDER.fullmatch(folder) is not None
    if top == TAGS:
        return is_name(rest)
    if top == BRANCHES:
        return is_branch_file(rest)
    if top == ERASED:
        return _ID.fullmatch(rest.removesuffix(_ROWS)) is not None
    if top == OPERATIONS:
        return is_operation(rest)
    if top == STAGING:
        return _is_staged(rest)
    if top == LOCKS:
        return path in (COMMIT_LOCK, STAGING_LOCK, ERASE_LOCK, PINS) or _LOCK_FILE.fullmatch(rest) is not None
    branch, _, name = rest.partition("/")
    if not is_branch_id(branch) or top not in ("commits", OLDEST_KEPT, "heads"):
        return False
    if top == "commits" and (is_orphan(name) or any(parse(name) is not None for parse in _BESIDE_COMMITS)):
        return True
    return not name or (top != "heads" and parse_version(name) is not None)


def is_data(path: str) -> bool:
    """Tell whether a reader needs the file of this path: other files are of processes that write."""
    top, _, rest = path.partition("/")
    if top in ("commits", OLDEST_KEPT):
        branch, _, name = rest.partition("/")
        return is_branch_id(branch) and parse_version(name) is not None
    if top == PACKS:
        folder, _, name = rest.partition("/")
        return parse_data_pack(folder, name) is not None
    return path == FORMAT or (top in ("heads", TAGS, BRANCHES, ERASED) and bool(rest) and belongs(path))


def is_data_directory(path: str) -> bool:
    """Tell whether a reader needs to list the names in this directory."""
    top, _, branch = path.partition("/")
    return path in ("commits", TAGS, BRANCHES, ERASED) or (top in ("commits", OLDEST_KEPT) and is_branch_id(branch))


def _is_staged(file: str) -> bool:
    if is_new(file) or any(parse(file) is not None for parse in (parse_named, parse_record)):
        return True
    held = file.removesuffix(LEASE)
    return parse_staging(held) is not None or (held != file and _ID.fullmatch(held) is not None)


def is_litter(name: str) -> bool:
    """Tell whether other programs leave files of this name anywhere: they don't show that a directory is in use."""
    return name in _LITTER or name.startswith(_LITTER_BEGINS) or name.endswith(_LITTER_ENDS)

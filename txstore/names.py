"""Every file name of a repository is made and parsed here. docs/format.md, "Files"."""

from __future__ import annotations

GUARD = "zarr.json"
FORMAT = "format.json"
STAGING = ".staging"
COMMIT_LOCK = "locks/commit"
STAGING_LOCK = "locks/staging"
LOCKS = "locks"
PINS = "locks/pins"
PACKS = "packs"
TAGS = "tags"
DIRECTORIES = (STAGING, "commits", "commits/main", "floor", "floor/main", "heads", PACKS, TAGS, LOCKS)

QUARANTINE = "quarantine"
FLOOR = "floor"
#: All that lies at the top of a repository.
TOP = frozenset({GUARD, FORMAT, QUARANTINE, FLOOR, *(name.partition("/")[0] for name in DIRECTORIES)})

NEW = ".new"
#: What the name of a lease ends with (`leases`): it is beside what is held.
LEASE = ".held"
_OPEN, _SEALED, _NAMED = "open", "sealed", "named-"


def commits_directory(branch: str) -> str:
    return f"commits/{branch}"


def slot_name(slot: int) -> str:
    return f"{slot:010d}"


def commit_path(branch: str, slot: int) -> str:
    return f"commits/{branch}/{slot_name(slot)}"


def is_commit_path(path: str) -> bool:
    return path.startswith("commits/")


def parse_slot(name: str) -> int | None:
    """Return the slot of a commit file's name, None for any other name."""
    if not 10 <= len(name) <= 19 or not (name.isascii() and name.isdigit()):
        return None
    slot = int(name)
    return slot if slot_name(slot) == name else None


def orphan_path(branch: str, slot: int, commit_id: bytes) -> str:
    return f"{commit_path(branch, slot)}.orphan-{commit_id.hex()}"


def staging_path(transaction: bytes, participant: int) -> str:
    return f"{STAGING}/{transaction.hex()}.{participant}"


def parse_staging(name: str) -> tuple[bytes, int] | None:
    """Return transaction and participant of a staged pack's file name, None for any other name."""
    transaction, _, participant = name.partition(".")
    if len(transaction) != 32 or len(participant) > 10 or not (participant.isascii() and participant.isdigit()):
        return None
    try:
        staged = bytes.fromhex(transaction), int(participant)
    except ValueError:
        return None
    return staged if staged[1] < 1 << 32 and f".{staged[1]}" == name[32:] else None


def open_path(transaction: bytes) -> str:
    """The record of a transaction that several processes may stage into."""
    return f"{STAGING}/{transaction.hex()}.{_OPEN}"


def sealed_path(transaction: bytes) -> str:
    """The same record while the transaction ends: nobody may stage any more."""
    return f"{STAGING}/{transaction.hex()}.{_SEALED}"


def parse_record(name: str) -> bytes | None:
    """Return the transaction whose record, open or sealed, has this file name; None for any other name."""
    transaction, _, state = name.partition(".")
    if len(transaction) != 32 or state not in (_OPEN, _SEALED):
        return None
    try:
        return bytes.fromhex(transaction)
    except ValueError:
        return None


def named_path(name: str) -> str:
    """Which transaction has a name."""
    return f"{STAGING}/{_NAMED}{name}"


def parse_named(file: str) -> str | None:
    return file.removeprefix(_NAMED) if file.startswith(_NAMED) else None


def data_pack_path(pack_id: bytes) -> str:
    return f"{data_pack_directory(pack_id)}/{pack_id.hex()}"


def data_pack_directory(pack_id: bytes) -> str:
    return f"{PACKS}/{pack_id.hex()[:2]}"


def parse_data_pack(directory: str, name: str) -> bytes | None:
    """Return the id of the data pack that has this name in this directory of `packs/`; None for any other file."""
    if len(name) != 32 or len(directory) != 2 or not name.startswith(directory):
        return None
    try:
        return bytes.fromhex(name) if name == name.lower() else None
    except ValueError:
        return None


def hint_path(branch: str) -> str:
    return f"heads/{branch}"


def floor_directory(branch: str) -> str:
    return f"floor/{branch}"


def floor_path(branch: str, slot: int) -> str:
    """What says that a vacuum has removed the slots below."""
    return f"{floor_directory(branch)}/{slot_name(slot)}"


def tag_path(name: str) -> str:
    return f"{TAGS}/{name}"

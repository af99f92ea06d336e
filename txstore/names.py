"""Every file name of a repository is made and parsed here. docs/format.md, "Files"."""

from __future__ import annotations

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

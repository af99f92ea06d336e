"""Names the values of the erasures of rows: by the place where a value lies, since each version of a key has its own.

A table of replacements is a run. It has a key for each value that lay below the erased paths: of one that was replaced,
with a ref to the new value; of one that stays, with a tombstone. Layout: docs/understand/format.md, "Erased rows".
"""

from __future__ import annotations

from typing import Final

from txstore.format.encoding import MalformedError
from txstore.format.packfile import PackName

REPLACED: Final = b"r/"
KEPT: Final = b"k/"
_OFFSET = 16  # hexadecimal digits


def replaced_key(pack: PackName, offset: int) -> bytes:
    """Return the key of the value at an offset of a pack, if another replaces it."""
    return REPLACED + _place(pack, offset)


def kept_key(pack: PackName, offset: int) -> bytes:
    """Return the key of the value at an offset of a pack, if it stays."""
    return KEPT + _place(pack, offset)


def _place(pack: PackName, offset: int) -> bytes:
    return f"{pack.encode().hex()}/{offset:0{_OFFSET}x}".encode()


def place_of(key: bytes) -> tuple[PackName, int]:
    """Return the pack and the offset that a key of a table names. Raises `MalformedError`."""
    parts = key.decode(errors="replace").split("/")
    try:
        _, pack, offset = parts
        return PackName.decode(bytes.fromhex(pack)), int(offset, 16)
    except ValueError as error:  # `MalformedError` is one
        raise MalformedError(f"{key!r} names no place of a value") from error


def after_pack(key: bytes) -> bytes:
    """Return where the keys of the next pack begin, behind those of the pack that a key names."""
    return key[: -_OFFSET - 1] + b"0"  # "0" follows "/"

"""Primitives of the format: varints, checksums, a reader of hostile bytes. Malformed bytes raise `MalformedError`."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, TypeVar

from txstore._native import local
from txstore.errors import KeyFormatError
from txstore.format.keys import check_name

R = TypeVar("R")

VERSION = 1
NO_ID = bytes(16)

# What numbers and documents may say: docs/understand/format.md, "Bounds".
#: Of versions and seqs: counting on from one never leads to a number that a field, or a byte lock, has no room for.
MAX_COUNT = (1 << 62) - 1
#: Microseconds since 1970 UTC: the end of the year 9999, behind which Python has no dates.
MAX_TIME = 253_402_300_799_999_999
#: Of a JSON object, in bytes, and how deep its lists and objects lie in one another.
MAX_JSON, MAX_JSON_DEPTH = 2 << 20, 100
#: Results that `remembered` keeps of each class.
_REMEMBERED = 256
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
CHECKSUM = struct.Struct("<I")

crc32c = local.crc32c


class MalformedError(ValueError):
    """Bytes that don't follow the format. `offset` is where, in the decoded buffer."""

    def __init__(self, reason: str, offset: int = 0) -> None:
        self.reason = reason
        self.offset = offset
        super().__init__(reason)


class NewerFormatError(MalformedError):
    """Bytes of a format version or with a required feature that this code does not know."""


def encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class Reader:
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


def remembered(decode: Callable[[type[R], bytes], R]) -> Callable[..., R]:
    """Let a class method that decodes a small immutable record remember the last results, by the decoded bytes.

    A merge reads the same few records many times.
    """
    return lru_cache(_REMEMBERED)(decode)


def with_checksum(data: bytes) -> bytes:
    return data + CHECKSUM.pack(crc32c(data))


def checked(what: str, data: bytes, size: int, magic: bytes) -> bytes:
    """Return the bytes before the checksum of a fixed-size record, after comparing size, magic and checksum."""
    if len(data) != size:
        raise MalformedError(f"the {what} has {len(data)} bytes instead of {size}")
    if data[: len(magic)] != magic:
        raise MalformedError(f"no {what} is here: wrong magic {bytes(data[: len(magic)])!r}")
    fixed = data[:-4]
    if crc32c(fixed) != CHECKSUM.unpack_from(data, size - 4)[0]:
        raise MalformedError(f"the {what} has a wrong checksum")
    return fixed


def check_version(what: str, version: int) -> None:
    if version != VERSION:
        raise NewerFormatError(f"{what} of format version {version}")


def decode_varints(data: bytes) -> Iterator[int]:
    reader = Reader(data)
    while not reader.at_end:
        yield reader.varint()


def check_numbers(*bounded: tuple[str, int, int]) -> None:
    """Raise `MalformedError` for a number above its limit: each is given with its name and its limit."""
    for name, number, most in bounded:
        if number > most:
            raise MalformedError(f"its {name} is {number}, and at most {most} is possible")


def json_object(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_JSON:
        raise MalformedError(f"the JSON in it has {len(data)} bytes, and at most {MAX_JSON} are possible")
    value = json_value(data)
    if not isinstance(value, dict):
        raise MalformedError("the JSON in it is not an object")
    return value


def json_value(data: bytes | memoryview) -> Any:
    """Return what JSON says that others have written. Raises `MalformedError`, and no other error.

    Nothing in it is nested so deeply, and no text in it is such, that what goes through it later could fail.
    """
    content = bytes(data)
    try:
        value = json.loads(content.decode())
        if _SURROGATE.search(content):  # of half a pair, which is no text
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise MalformedError("the JSON in it can't be parsed") from error
    # Most documents have fewer lists and objects in all, which takes no walk.
    if content.count(b"[") + content.count(b"{") > MAX_JSON_DEPTH and _depth(value) > MAX_JSON_DEPTH:
        raise MalformedError(f"the JSON in it is nested more than {MAX_JSON_DEPTH} deep")
    return value


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        level = [each for outer in level for each in (outer.values() if isinstance(outer, dict) else outer)]
    return depth

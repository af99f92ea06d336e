"""Primitives of the format: varints, checksums, and reading hostile bytes. What is wrong raises `MalformedError`."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

from txstore._native import local
from txstore.errors import KeyFormatError
from txstore.keys import check_name

VERSION = 1
NO_ID = bytes(16)
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


def with_checksum(data: bytes) -> bytes:
    return data + CHECKSUM.pack(crc32c(data))


def checked(what: str, data: bytes, size: int, magic: bytes) -> bytes:
    """Return the bytes before the checksum of a fixed-size record, after comparing size, magic and checksum."""
    if len(data) != size:
        raise MalformedError(f"the {what} has {len(data)} bytes instead of {size}")
    if data[: len(magic)] != magic:
        raise MalformedError(f"no {what} is here: wrong magic {bytes(data[: len(magic)])!r}")
    if crc32c(data[:-4]) != CHECKSUM.unpack(data[-4:])[0]:
        raise MalformedError(f"the {what} has a wrong checksum")
    return data[:-4]


def check_version(what: str, version: int) -> None:
    if version != VERSION:
        raise NewerFormatError(f"{what} of format version {version}")


def decode_varints(data: bytes) -> Iterator[int]:
    reader = Reader(data)
    while not reader.at_end:
        yield reader.varint()


def json_object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MalformedError("the JSON in it can't be parsed") from error
    if not isinstance(value, dict):
        raise MalformedError("the JSON in it is not an object")
    return value

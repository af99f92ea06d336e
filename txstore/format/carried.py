"""The headers of earlier commits that a commit file carries, so that a remote log takes few requests to read. No I/O.

docs/understand/format.md is the layout. Each header is checked by the hash that the one after it names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from txstore.format import commitfile
from txstore.format.commitfile import Footer, Header
from txstore.format.encoding import CHECKSUM, MalformedError, Reader, crc32c

#: A commit carries the headers of those before it, down to the next version below that is a multiple of this.
GROUP = 16
#: Bytes that are carried at most: of commits with long messages, fewer headers are carried.
MOST = 16 << 10

_MAGIC = b"TXCH"
_LENGTH = struct.Struct("<I")


def carry(header: bytes, footer: bytes, carried: bytes) -> bytes:
    """Return what a commit carries whose parent has this header and footer, and carries `carried` itself."""
    parts, length = [], 0
    try:
        older = list(_entries(carried)) if carried else []
    except MalformedError:
        older = []
    for each in [(header, footer), *older]:
        entry = _LENGTH.pack(len(each[0])) + each[0] + each[1]
        length += len(entry)
        if length > MOST:
            break
        parts.append(entry)
    content = b"".join((_MAGIC, *parts))
    return content + CHECKSUM.pack(crc32c(content)) if parts else b""


def decode_carried(section: bytes) -> Iterator[tuple[Header, Footer, bytes]]:
    """Yield the headers that a section holds, newest first, with their footers and hashes. Raises `MalformedError`."""
    for encoded, footer in _entries(section):
        found = Footer.decode(footer)
        if found.header_checksum != crc32c(encoded):
            raise MalformedError("a header that is carried has a wrong checksum")
        yield Header.decode(encoded), found, commitfile.header_hash(encoded)


def _entries(section: bytes) -> Iterator[tuple[bytes, bytes]]:
    content, stored = section[: -CHECKSUM.size], section[-CHECKSUM.size :]
    if content[: len(_MAGIC)] != _MAGIC or CHECKSUM.pack(crc32c(content)) != stored:
        raise MalformedError("the headers that are carried have a wrong checksum")
    reader = Reader(content, len(_MAGIC))
    while not reader.at_end:
        (length,) = _LENGTH.unpack(reader.take(_LENGTH.size))
        yield reader.take(length), reader.take(commitfile.FOOTER_SIZE)

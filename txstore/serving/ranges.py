"""Parses the headers that select bytes: `Range`, `If-Range` and `If-None-Match`. No I/O."""

from __future__ import annotations

import re

#: At most 18 digits: no offset has more, and Python refuses to parse thousands of digits. What is repeated is never
#: tried again with less of it (`*+`): a long header would take seconds.
_RANGE = re.compile(rb"bytes=[ \t]*+([0-9]{0,18})[0-9]*+[ \t]*+-[ \t]*+([0-9]{0,18})([0-9]*+)[ \t]*+")


class UnsatisfiableError(ValueError):
    """The range contains no byte of the value."""


def wanted(header: bytes | None, length: int) -> range | None:
    """Return the bytes that a `Range` header asks for; None: all, also if it is invalid or has several ranges.

    Raises `UnsatisfiableError`.
    """
    match = None if header is None else _RANGE.fullmatch(header)
    if match is None or (not match[1] and not match[2]):
        return None
    first, last, beyond = match.groups()
    if not first:
        count = length if beyond else min(int(last), length)
        if not count:
            raise UnsatisfiableError
        return range(length - count, length)
    start = int(first)
    stop = length if beyond or not last else min(int(last) + 1, length)
    if last and not beyond and int(last) < start:
        return None  # an invalid header counts as none
    if start >= length:
        raise UnsatisfiableError
    return range(start, stop)


def matches(header: bytes | None, tag: bytes) -> bool:
    """Tell whether an `If-None-Match` header names the current tag."""
    if header is None:
        return False
    return header.strip() == b"*" or any(each.strip().removeprefix(b"W/") == tag for each in header.split(b","))

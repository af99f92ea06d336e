"""Reads small files by the names in a list while other processes give some of them other names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def read_listed(names: Callable[[], Sequence[str]], read: Callable[[str], T | None]) -> dict[str, T]:
    """Return what `read` returns for each of the `names`, without None: deleted.

    One that is gone may have got another name, which was there before the old one went: so the names are listed again,
    until a list shows no change. Else a vacuum could take what has the name for unneeded.
    """
    listed = names()
    while True:
        found = {name: content for name in listed if (content := read(name)) is not None}
        if len(found) == len(listed) or set(again := names()) == set(listed):
            return found
        listed = again

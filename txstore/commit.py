"""Describes one commit: as users see it, and as its file stores it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from txstore.format import encoding, names
from txstore.format.commitfile import CommitName, Footer, Header
from txstore.format.display import html_head, html_text
from txstore.format.records import HeadCache

MAIN = names.MAIN
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_END, _SHOWN = "\n", 40  # `repr` shows this many characters of a message's first line


@dataclass(frozen=True, slots=True, repr=False)
class Commit:
    """One commit of the history.

    Attributes
    ----------
    id, parent : str
        32 hexadecimal digits; the parent of the first commit is None.
    branch : str
        The name of the branch on which the commit was made.
    version, seq : int
        The commit's version in its branch, and its number in its history, where the first commit is 1.
    time : datetime
        An aware datetime in UTC, later than the parent's.
    statistics : dict
        `keys_set`, `keys_deleted`, `prefixes_deleted`, `bytes_set` (of the values), `arrays` (changed).
    merged : str or None
        For a merge, the id of its second parent.
    """

    id: str
    branch: str
    version: int
    seq: int
    parent: str | None
    time: datetime
    author: str
    message: str
    properties: Mapping[str, Any]
    statistics: Mapping[str, int]
    merged: str | None = None

    def __str__(self) -> str:
        return f"{self.branch}@{self.version}"

    def __repr__(self) -> str:
        return f"<Commit {self} {self.id[:12]} {self._when()} {self.message.partition(_END)[0][:_SHOWN]!r}>"

    def _repr_html_(self) -> str:
        message = html_text(self.message.partition(_END)[0])
        return f"{html_head('Commit', str(self))} <code>{self.id[:12]}</code> {self._when()} {message}"

    def _when(self) -> str:
        """Return the time in the caller's time zone, with its name."""
        return self.time.astimezone().strftime("%Y-%m-%d %H:%M %Z")


@dataclass(frozen=True, slots=True)
class Stored:
    """A commit as read from its file: its header, its footer, and the hash that a child stores."""

    header: Header
    footer: Footer
    hash: bytes
    branch_name: Callable[[str], str] = field(default=str, compare=False, repr=False)  # a branch's id to its name

    @property
    def path(self) -> str:
        return names.commit_path(self.header.branch, self.header.version)

    @property
    def name(self) -> CommitName:
        """The name by which another commit, or a branch, refers to this commit."""
        return CommitName(self.header.branch, self.header.version, self.header.id, self.hash)

    @property
    def next(self) -> tuple[int, int, int]:
        """The version and seq of a child, and the lowest value of its oldest kept version."""
        return self.header.version + 1, self.header.seq + 1, self.header.oldest_kept

    @property
    def commit(self) -> Commit:
        h = self.header
        return Commit(
            id=h.id.hex(), branch=self.branch_name(h.branch), version=h.version, seq=h.seq,
            parent=None if h.parent_id == encoding.NO_ID else h.parent_id.hex(),
            time=EPOCH + timedelta(microseconds=h.time),
            author=h.author, message=h.message, statistics=h.statistics.as_dict(),
            properties=copy.deepcopy(h.properties),  # the header is cached, and a user may change the returned dict
            merged=None if h.merged is None else h.merged.id.hex(),
        )  # fmt: skip

    def follows(self, below: Stored | None) -> bool:
        """Tell whether `below` is the parent that the header names. None stands for no parent.

        The id is not enough: after a loss of power, a process may commit a named transaction again under the same id.
        """
        parent = (encoding.NO_ID, encoding.NO_ID) if below is None else (below.header.id, below.hash)
        return (self.header.parent_id, self.header.parent_hash) == parent

    def has_parent_of(self, other: Stored) -> bool:
        mine, theirs = self.header, other.header
        return (mine.parent_id, mine.parent_hash) == (theirs.parent_id, theirs.parent_hash)

    def head_cache(self, *, durable: bool, boot: int, place: int) -> HeadCache:
        f = self.footer
        return HeadCache(
            self.header.version, f.pack_id, f.file_length, f.header_offset, f.header_length, durable, boot, place
        )

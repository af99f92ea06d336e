"""One commit: as people see it, and as it was read from its file."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from txstore.format import encoding, names
from txstore.format.commitfile import CommitName, Footer, Header
from txstore.format.records import HeadCache
from txstore.format.shown import html_head, html_text

MAIN = names.MAIN
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_END, _SHOWN = "\n", 40  # of a message that is shown: its first line


@dataclass(frozen=True, slots=True, repr=False)
class Commit:
    """One commit of the history.

    Attributes
    ----------
    id, parent : str
        32 hexadecimal digits; the parent of the first commit is None.
    branch : str
        The name of the branch that it was made on.
    version, seq : int
        Its place in the branch, and its number among its ancestors.
    time : datetime
        Aware, in UTC, later than the parent's.
    statistics : dict
        `keys_set`, `keys_deleted`, `prefixes_deleted`, `bytes_set` (of the values), `arrays` (touched).
    merged : str or None
        The id of the other commit that a merge has as its parent.
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
    """A commit as it was read: its header, and what a child says of it."""

    header: Header
    footer: Footer
    hash: bytes
    branch_name: Callable[[str], str] = field(default=str, compare=False, repr=False)  # by id: as people see it

    @property
    def path(self) -> str:
        return names.commit_path(self.header.branch, self.header.version)

    @property
    def name(self) -> CommitName:
        """What another commit, or a branch, says of this one."""
        return CommitName(self.header.branch, self.header.version, self.header.id, self.hash)

    @property
    def next(self) -> tuple[int, int, int]:
        """Version, seq and, at least, oldest kept version of a child."""
        return self.header.version + 1, self.header.seq + 1, self.header.oldest_kept

    @property
    def commit(self) -> Commit:
        h = self.header
        return Commit(
            id=h.id.hex(), branch=self.branch_name(h.branch), version=h.version, seq=h.seq,
            parent=None if h.parent_id == encoding.NO_ID else h.parent_id.hex(),
            time=EPOCH + timedelta(microseconds=h.time),
            author=h.author, message=h.message, statistics=h.statistics.as_dict(),
            properties=copy.deepcopy(h.properties),  # the header is remembered, and users may change what they get
            merged=None if h.merged is None else h.merged.id.hex(),
        )  # fmt: skip

    def follows(self, below: Stored | None) -> bool:
        """Tell whether `below`, or nothing, is the parent that the header names.

        The id is not enough: after a power loss, a transaction with a name is committed again, under the same one.
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

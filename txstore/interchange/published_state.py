"""Reads and writes the hidden file of a plain copy: its commit, and how far an unfinished update has come.

The publisher trusts it only at the place where it was written, and only if it fits: the repository's history has the
commits, and the documents at the root of the copy are the ones that were written. A key in a copy is as in the commit
of the first mark that covers it. Marks of attempts cover the chunks up to a key, in the order of keys; the mark of the
finished copy covers all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from txstore.errors import CommitNotFoundError, SnapshotExpiredError
from txstore.format.encoding import crc32c

if TYPE_CHECKING:
    from typing import Self

    from txstore.commit import Commit
    from txstore.store import OpenedRepository

#: The file. zarr does not take it for a node; listing the root without consolidated metadata warns of it.
STATE = ".txstore-published.json"

_VERSION = 1


@dataclass(frozen=True)
class Mark:
    """A commit, and the documents at the root of its copy: key -> CRC-32C."""

    commit: str
    version: int
    seq: int
    witnesses: dict[str, int]
    upto: str | None = None  # for an attempt: the last written chunk; None: perhaps none

    def is_of(self, commit: Commit) -> bool:
        return (self.version, self.commit) == (commit.version, commit.id)


@dataclass(frozen=True)
class State:
    """The state of a copy: its marks, the newest attempt first."""

    repository: str
    branch: str
    place: Mapping[str, Any]  # where it was written
    writer: str = ""
    finished: Mark | None = None
    attempts: tuple[Mark, ...] = ()

    @classmethod
    def decode(cls, content: bytes) -> State | None:
        """Return the state in a hidden file; None if no publisher can have written it."""
        try:
            told = json.loads(content)
            if told["version"] != _VERSION:
                return None
            marks = [_mark(each) for each in told["attempts"]]
            finished = None if told["finished"] is None else _mark(told["finished"])
            names = _text(told["repository"]), _text(told["branch"]), dict(told["place"]), _text(told["writer"])
            return cls(*names, finished, tuple(marks))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None

    def encode(self) -> bytes:
        about = "a plain copy of a TxStore repository: what this file says lets the next `txstore publish` go on"
        return json.dumps({"about": about, "version": _VERSION, **asdict(self)}, indent=2).encode()

    def begin(self, mark: Mark, writer: str) -> Self:
        """Return the state before the first file of a commit is written."""
        covering = [each for each in self.attempts if each.upto is not None]
        return replace(self, writer=writer, attempts=(mark, *covering))

    def advance(self, upto: str) -> Self:
        """Return the state after all chunks up to a key are written."""
        first, *older = self.attempts
        beyond = [each for each in older if each.upto is not None and each.upto > upto]
        return replace(self, attempts=(replace(first, upto=upto), *beyond))

    def finish(self) -> Self:
        return replace(self, finished=replace(self.attempts[0], upto=None), attempts=())

    def forget(self) -> Self:
        """Return a state without any marks."""
        return replace(self, finished=None, attempts=())

    def seq_of(self, chunk: str) -> int:
        """Return the highest seq to which a chunk of the copy is known to be up to date; -1: unknown."""
        for mark in self.attempts:
            if mark.upto is not None and chunk <= mark.upto:
                return mark.seq
        return self.finished_seq

    @property
    def finished_seq(self) -> int:
        return -1 if self.finished is None else self.finished.seq

    def fits(self, repo: OpenedRepository, head: Commit, witnesses: Mapping[str, int | None]) -> bool:
        """Tell whether this state is possible, given the documents at the root of the copy (None: missing)."""
        marks = [*self.attempts, *([] if self.finished is None else [self.finished])]
        # The oldest are ancestors of the newest: that was looked at when it was begun.
        if marks and not _is_in_history(repo, head, marks[0]):
            return False
        if self.finished is None:
            return True
        names = {name for mark in marks for name in mark.witnesses}
        return all(any(mark.witnesses.get(name) == witnesses.get(name) for mark in marks) for name in names)


def witnesses_of(documents: Mapping[str, bytes]) -> dict[str, int]:
    return {key: crc32c(content) for key, content in documents.items()}


def _is_in_history(repo: OpenedRepository, head: Commit, mark: Mark) -> bool:
    if mark.version > head.version:
        return False
    try:
        return mark.is_of(repo.commit(mark.version, branch=head.branch))
    except (SnapshotExpiredError, CommitNotFoundError):
        return False


def _mark(told: Any) -> Mark:
    witnesses = {_text(key): int(value) for key, value in told["witnesses"].items()}
    upto = told["upto"]
    return Mark(
        _text(told["commit"]), int(told["version"]), int(told["seq"]), witnesses, None if upto is None else _text(upto)
    )


def _text(told: Any) -> str:
    if not isinstance(told, str):
        raise TypeError("expected a string")
    return told

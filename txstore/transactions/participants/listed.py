"""Lists open transactions and their staged changes for users. It joins no transaction, and writes nothing.

It sees a staged change when the change is in the process's file. A transaction of a single process buffers up to 1 MiB,
so a small one is not visible at all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from txstore.commit import EPOCH
from txstore.errors import CorruptionError
from txstore.format import names
from txstore.format.keys import is_document, node_of_document
from txstore.format.packfile import FRAMES_OF_KEYS, REF_OF_FRAME
from txstore.format.records import TransactionRecord
from txstore.history.commits import Commits
from txstore.history.staged_packs import recorded
from txstore.transactions.participants.tails import Tail, tail_of

#: The end of a chunk's key.
_CHUNK = re.compile(r"(?:^|/)(?:c(?:[/.]\d+)*|\d+(?:[/.]\d+)*)$")


@dataclass
class Stager:
    """A process, and a summary of its staged changes."""

    number: int
    host: str | None = None
    pid: int | None = None
    alive: bool = True
    sealed: bool = False
    keys: int = 0
    bytes: int = 0
    nodes: Counter[str] = field(default_factory=Counter)  # keys by the array or group that they belong to


@dataclass(frozen=True)
class OpenTransaction:
    id: str
    name: str | None
    branch: str | None  # None: the transaction has no record, so its branch is unknown
    base: str | None  # the id of a commit
    owner: str | None
    time: datetime | None
    message: str | None
    stagers: list[Stager]


class Watch:
    """Reads staged changes as they grow: each frame once, even over many calls. Not safe in threads."""

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._tails: dict[tuple[bytes, int], tuple[Tail, Stager]] = {}

    def transactions(self) -> Iterator[OpenTransaction]:
        """Yield the open transactions. Raises `PermissionError` if the user may not read staged files."""
        staged = sorted(filter(None, map(names.parse_staging, self._commits.storage.list(names.STAGING))))
        records = {record.id: record for record in recorded(self._commits.storage)}
        self._tails = {place: self._tails[place] for place in staged if place in self._tails}
        for transaction in {**records, **dict.fromkeys(each for each, _ in staged)}:
            numbers = [number for each, number in staged if each == transaction]
            stagers = [self._stager(transaction, number) for number in numbers]
            yield self._told(transaction, records.get(transaction), stagers)

    def _stager(self, transaction: bytes, number: int) -> Stager:
        tail, stager = self._tails.get((transaction, number)) or (self._tail(transaction, number), Stager(number))
        self._tails[transaction, number] = tail, stager
        try:
            for frame in tail.new_frames():
                if frame.kind not in FRAMES_OF_KEYS:
                    continue
                stager.keys += 1
                stager.bytes += frame.length if frame.kind in REF_OF_FRAME else 0
                stager.nodes[_node_of(frame.key.decode(errors="replace"))] += 1
        except (OSError, CorruptionError):  # it has just ended, or is damaged, which this listing need not report
            self._tails.pop((transaction, number))
        stager.alive, stager.sealed = tail.is_alive(), tail.is_sealed
        stager.host, stager.pid = tail.about.get("host"), tail.about.get("pid")
        return stager

    def _tail(self, transaction: bytes, number: int) -> Tail:
        return tail_of(self._commits, transaction, number)

    def _told(self, transaction: bytes, record: TransactionRecord | None, stagers: list[Stager]) -> OpenTransaction:
        if record is None:
            return OpenTransaction(transaction.hex(), None, None, None, None, None, None, stagers)
        return OpenTransaction(
            id=transaction.hex(),
            name=record.name,
            branch=self._commits.branches.name_of(record.branch),
            base=None if record.base is None else record.base[1],
            owner=record.owner,
            time=EPOCH + timedelta(microseconds=record.time),
            message=record.message,
            stagers=stagers,
        )


def _node_of(key: str) -> str:
    return node_of_document(key) if is_document(key) else _CHUNK.sub("", key)

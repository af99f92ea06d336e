"""Begins, finds and lists named transactions. Processes that share only the disk can join one. It outlives them all.

The file `.staging/named-<name>` has the id of the transaction with a name. Processes create it under a lock. An object
store has no lock: there one process creates it exclusively. `history/staged_packs.py` says which one deletes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from txstore.errors import CorruptionError, TransactionStateError
from txstore.format import names
from txstore.format.packfile import REF_OF_FRAME
from txstore.format.records import TransactionRecord
from txstore.history.commits import Commits
from txstore.steps import step
from txstore.transactions.participants.shared import SharedTransaction
from txstore.transactions.participants.tails import Tail

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Participant:
    """A process that has joined a transaction."""

    host: str
    pid: int
    alive: bool
    sealed: bool  # it has finished its work
    bytes: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@dataclass(frozen=True, slots=True)
class NamedTransaction:
    """A named transaction that no process has committed or rolled back."""

    name: str
    id: str
    branch: str
    owner: str  # the user and process that began it
    time: datetime
    message: str
    properties: Mapping[str, Any]
    participants: tuple[Participant, ...]


@step("begin with a name")
def find_or_begin(commits: Commits, name: str, new_record: Callable[[], TransactionRecord]) -> SharedTransaction:
    """Return the transaction with a name. If there is none, begin one with a new record.

    `new_record` is called when the name is free. So its base includes the commit of the last transaction with this
    name. Raises `TransactionStateError` while another process ends the transaction.
    """
    with commits.storage.lock(names.STAGING_LOCK):
        while True:
            found = _find(commits, name)
            if found is not None:
                return found
            with contextlib.suppress(FileExistsError):  # without a lock, another process just began one with this name
                return _begin(commits, new_record(), name)


def _begin(commits: Commits, record: TransactionRecord, name: str) -> SharedTransaction:
    durable = record.durability == "fsync"
    if durable:
        # I1: a durable record refers to its base, so the base has to be durable, too.
        commits.store.make_durable(None if record.base is None else commits.files.at(record.branch, record.base[0]))
    shared = SharedTransaction.publish(commits, record)
    try:
        commits.storage.write_once(names.named_path(name), record.id.hex().encode(), durable=durable)
    except BaseException:
        commits.storage.delete(names.open_path(record.id))  # without a name, no process would find the record
        raise
    return shared


def find(commits: Commits, name: str) -> SharedTransaction:
    """Return the transaction with a name, even while another process ends it.

    Raises `TransactionStateError` if there is none.
    """
    try:
        shared = SharedTransaction.find(commits, _read(commits, name))
        if not _was_committed(shared):
            return shared
    except FileNotFoundError:
        pass
    except TransactionStateError as error:
        raise _none(name) from error
    raise _none(name)


def _none(name: str) -> TransactionStateError:
    return TransactionStateError(
        f"there is no transaction with the name {name!r}: it was committed or rolled back, or never begun; see "
        "repo.transactions(), or `txstore tx list`",
        state="ended",
    )


def _read(commits: Commits, name: str) -> bytes:
    """Return the id of the last transaction with a name, which may have ended. Raises `FileNotFoundError`."""
    path = names.named_path(name)
    content = commits.storage.read(path)
    try:
        transaction = bytes.fromhex(content.decode())
    except ValueError as error:
        raise CorruptionError(path, reason="it names no transaction") from error
    if len(transaction) != 16:
        raise CorruptionError(path, reason="it names no transaction")
    return transaction


def _find(commits: Commits, name: str) -> SharedTransaction | None:
    """Return the transaction with a name, or None. The caller holds the lock."""
    try:
        transaction = _read(commits, name)
    except FileNotFoundError:
        return None
    try:
        shared = SharedTransaction.find(commits, transaction)
        if not shared.is_sealed() or shared.recover():
            return shared
    except TransactionStateError as error:
        if error.state != "ended":
            raise
    # The process that ended it has died, or waits for the lock to free the name.
    commits.staged.name_rule.free(name, transaction)
    return None


def _was_committed(shared: SharedTransaction) -> bool:
    """Tell whether a process committed a transaction, but died before it deleted the transaction's files."""
    return shared.is_sealed() and not shared.is_ending() and shared.find_commit() is not None


def transactions(commits: Commits) -> Iterator[NamedTransaction]:
    """Yield the named transactions that have not ended, sorted by name."""
    found = map(names.parse_named, commits.storage.list(names.STAGING))
    for name in sorted(name for name in found if name is not None):
        try:
            shared = SharedTransaction.find(commits, _read(commits, name))
        except (FileNotFoundError, TransactionStateError):
            continue
        try:
            described = _describe(commits, name, shared)
        except FileNotFoundError:  # a pack is gone since the listing
            if shared.is_there():
                raise
            continue
        if shared.is_there() and not _was_committed(shared):  # else the transaction ended meanwhile
            yield described


def _describe(commits: Commits, name: str, shared: SharedTransaction) -> NamedTransaction:
    record = shared.record
    return NamedTransaction(
        name=name,
        id=record.id.hex(),
        branch=commits.branches.name_of(record.branch),
        owner=record.owner,
        time=_EPOCH + timedelta(microseconds=record.time),
        message=record.message or "",
        properties=dict(record.properties),
        participants=tuple(_participant(shared.tail(number)) for number in shared.participants() if number),
    )


def _participant(tail: Tail) -> Participant:
    alive = tail.is_alive()
    staged = sum(frame.length for frame in tail.new_frames() if frame.kind in REF_OF_FRAME)
    return Participant(
        host=tail.about.get("host", "?"),
        pid=tail.about.get("pid", 0),
        alive=alive,
        sealed=tail.is_sealed,
        bytes=staged,
    )

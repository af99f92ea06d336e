"""Transactions with a name, which processes join that share nothing but the disk, and which outlive them all.

The file `.staging/named-<name>` says which transaction has a name. It is made and deleted under a lock. On an object
store, where there is none, one process creates it, and it is deleted by the one that holds the transaction's lease.
"""

from __future__ import annotations

import contextlib
import time
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
from txstore.storage.remote import RemoteStorage
from txstore.transactions.participants.shared import SharedTransaction
from txstore.transactions.participants.tails import Tail

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PAUSE = 0.05  # seconds


@dataclass(frozen=True, slots=True)
class Participant:
    """A process that has staged into a transaction, or may be about to."""

    host: str
    pid: int
    alive: bool
    sealed: bool  # it has done all that it meant to do
    bytes: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@dataclass(frozen=True, slots=True)
class NamedTransaction:
    """A transaction with a name that was neither committed nor rolled back."""

    name: str
    id: str
    branch: str
    owner: str  # who began it
    time: datetime
    message: str
    properties: Mapping[str, Any]
    participants: tuple[Participant, ...]


@step("begin with a name")
def find_or_begin(commits: Commits, name: str, new_record: Callable[[], TransactionRecord]) -> SharedTransaction:
    """Return the transaction that has a name; if there is none, begin that of a new record.

    The record is made when the name is free: so its base has what the last transaction of this name has committed.
    Raises `TransactionStateError` while another process ends it.
    """
    with commits.storage.lock(names.STAGING_LOCK):
        while True:
            found = _find(commits, name)
            if found is not None:
                return found
            with contextlib.suppress(FileExistsError):  # another has just given the name to its own, where no lock is
                return _begin(commits, new_record(), name)


def _begin(commits: Commits, record: TransactionRecord, name: str) -> SharedTransaction:
    durable = record.durability == "fsync"
    if durable:
        # I1: a record that is durable refers to its base. Both may have been made without.
        commits.durability.make(None if record.base is None else commits.files.at(record.branch, record.base[0]))
    shared = SharedTransaction.publish(commits, record)
    try:
        commits.storage.write_once(names.named_path(name), record.id.hex().encode(), durable=durable)
    except BaseException:
        commits.storage.delete(names.open_path(record.id))  # no process would find it
        raise
    return shared


def find(commits: Commits, name: str) -> SharedTransaction:
    """Return the transaction with a name, also while it is being ended.

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
    """Return the id of the transaction that has a name, or had it last. Raises `FileNotFoundError`."""
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
    """Return the transaction with a name, None if there is none; the caller holds the lock."""
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
    _free(commits, name, transaction)  # the process that ended it has died, or waits for the lock to do so
    return None


def _free(commits: Commits, name: str, ended: bytes) -> None:
    """Delete the name of a transaction that has ended; the caller holds the lock.

    On an object store the lock excludes no process. Two processes may find the name of one that has ended, and when the
    second deletes it, the first may have given it to the next. So who deletes it holds the one that has ended, and
    reads the name once more.
    """
    storage, path = commits.storage, names.named_path(name)
    if not isinstance(storage, RemoteStorage):
        storage.delete(path)
        return
    try:
        held = storage.leases.take(f"{names.STAGING}/{ended.hex()}")
    except BlockingIOError:
        time.sleep(_PAUSE)  # another process is about to delete it
        return
    try:
        with contextlib.suppress(FileNotFoundError):
            if _read(commits, name) == ended:
                held.check_term()
                storage.delete(path)
    finally:
        held.close()


def _was_committed(shared: SharedTransaction) -> bool:
    """Tell whether a process has committed a transaction and died before it had deleted its files."""
    return shared.is_sealed() and not shared.is_ending() and shared.find_commit() is not None


def transactions(commits: Commits) -> Iterator[NamedTransaction]:
    """Yield the transactions with a name that have not ended, in the order of their names."""
    found = map(names.parse_named, commits.storage.list(names.STAGING))
    for name in sorted(name for name in found if name is not None):
        try:
            shared = SharedTransaction.find(commits, _read(commits, name))
        except (FileNotFoundError, TransactionStateError):
            continue
        try:
            described = _describe(commits, name, shared)
        except FileNotFoundError:  # a pack was listed, and is gone
            if shared.is_there():
                raise
            continue
        if shared.is_there() and not _was_committed(shared):  # else it has ended while it was described
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

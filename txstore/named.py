"""Transactions with a name, which processes join that share nothing but the disk, and which outlive them all.

The file `.staging/named-<name>` says which transaction has a name. It is made and deleted under a lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from txstore import names
from txstore.commits import Commits
from txstore.errors import CorruptionError, TransactionStateError
from txstore.participants import SharedTransaction, Tail
from txstore.records import TransactionRecord

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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
    participants: tuple[Participant, ...]


def find_or_begin(commits: Commits, record: TransactionRecord) -> SharedTransaction:
    """Return the transaction that has the name of `record`; if there is none, begin that of `record`.

    Raises `TransactionStateError` while another process ends it.
    """
    if record.name is None:
        raise ValueError("a transaction without a name is not found by one")
    with commits.storage.lock(names.STAGING_LOCK):
        found = _find(commits, record.name)
        if found is not None:
            return found
        shared = SharedTransaction.publish(commits, record)
        commits.storage.write_once(names.named_path(record.name), record.id.hex().encode(), durable=False)
        return shared


def _find(commits: Commits, name: str) -> SharedTransaction | None:
    """Return the transaction with a name; the caller holds the lock."""
    storage = commits.storage
    path = names.named_path(name)
    try:
        transaction = bytes.fromhex(storage.read(path).decode())
        shared = SharedTransaction.find(commits, transaction)
    except FileNotFoundError:
        return None
    except TransactionStateError:  # whoever ended it died, or is still about to delete this
        storage.delete(path)
        return None
    except ValueError as error:
        raise CorruptionError(path, reason="it names no transaction") from error
    if storage.exists(names.sealed_path(shared.id)):
        _finish(commits, shared)
        return None if not storage.exists(names.open_path(shared.id)) else shared
    return shared


def _finish(commits: Commits, shared: SharedTransaction) -> None:
    """Go on where a process was interrupted that was ending a transaction: it was committed, or it was not."""
    if shared.is_ending():
        raise TransactionStateError(
            f"another process is committing {shared.record.name!r} or rolling it back: try again when it is done",
            state="committing",
        )
    if shared.was_committed():
        shared.end()
    else:
        shared.unseal()


def transactions(commits: Commits) -> Iterator[NamedTransaction]:
    """Yield the transactions with a name that have not ended, in the order of their names."""
    found = map(names.parse_named, commits.storage.list(names.STAGING))
    for name in sorted(name for name in found if name is not None):
        try:
            transaction = bytes.fromhex(commits.storage.read(names.named_path(name)).decode())
            shared = SharedTransaction.find(commits, transaction)
        except (FileNotFoundError, TransactionStateError):
            continue
        yield _describe(name, shared)


def _describe(name: str, shared: SharedTransaction) -> NamedTransaction:
    record = shared.record
    return NamedTransaction(
        name=name,
        id=record.id.hex(),
        branch=record.branch,
        owner=record.owner,
        time=_EPOCH + timedelta(microseconds=record.time),
        message=record.message or "",
        participants=tuple(_participant(shared.tail(number)) for number in shared.participants() if number),
    )


def _participant(tail: Tail) -> Participant:
    alive = tail.is_alive()
    staged = sum(frame.length for frame in tail.new_frames())
    return Participant(
        host=str(tail.about.get("host", "?")),
        pid=int(tail.about.get("pid", 0)),
        alive=alive,
        sealed=tail.is_sealed,
        bytes=staged,
    )

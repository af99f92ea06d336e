"""Reads the records of open transactions. A named transaction outlives its processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from txstore.format import encoding, names
from txstore.format.records import TransactionRecord
from txstore.storage.interface import Storage


def recorded(storage: Storage) -> Iterator[TransactionRecord]:
    """Yield the records of the open transactions of a repository."""
    files = storage.list(names.STAGING)
    transactions = set(map(names.parse_record, files)) - {None}
    # A record that was renamed while they were listed may be missing from the list; what was staged is there.
    transactions |= {staged[0] for staged in map(names.parse_staging, files) if staged is not None}
    for transaction in filter(None, transactions):
        record = _record(storage, transaction)
        if record is not None:
            yield record


def _record(storage: Storage, transaction: bytes) -> TransactionRecord | None:
    """Return the record of a transaction. None if it has none, has just ended, or its owner died while writing it."""
    # The first again: between two looks, it may have been unsealed.
    for path in (names.open_path(transaction), names.sealed_path(transaction), names.open_path(transaction)):
        with contextlib.suppress(FileNotFoundError, encoding.MalformedError):
            return TransactionRecord.decode(storage.read(path))
    return None

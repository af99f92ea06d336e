"""Decides which process deletes the name of an ended transaction, so that no process deletes the name of a new one.

On a disk, processes create and delete names under the staging lock. An object store has no lock that excludes other
processes: there the holder of the transaction's lease deletes the name.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Protocol

from txstore.errors import CommitTimeoutError
from txstore.format import names
from txstore.storage.interface import Storage
from txstore.storage.remote import RemoteStorage

_PAUSE = 0.05  # seconds


class NameRule(Protocol):
    """How the names of transactions are deleted in one kind of storage."""

    def free(self, name: str, ended: bytes) -> None:
        """Delete the name of an ended transaction. The caller holds the staging lock."""

    def delete_before_record(self, name: str, transaction: bytes) -> None:
        """Delete the name of a transaction that this process is ending, before it deletes the record."""

    def delete_after_record(self, name: str, transaction: bytes) -> None:
        """Delete the name of a transaction that this process has ended, after it has deleted the record."""

    def can_be_found(self, name: str, transaction: bytes) -> bool:
        """Tell whether a transaction that still has a record can be found by its name."""


class LockedNames:
    """The rule for a disk: the staging lock excludes all other processes."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def free(self, name: str, ended: bytes) -> None:
        self._storage.delete(names.named_path(name))

    def delete_before_record(self, name: str, transaction: bytes) -> None:
        """Delete nothing: a transaction that has a record keeps its name."""

    def delete_after_record(self, name: str, transaction: bytes) -> None:
        # If this times out, the next process that finds the ended name frees it.
        with contextlib.suppress(CommitTimeoutError), self._storage.lock(names.STAGING_LOCK):
            _delete(self._storage, name, transaction)

    def can_be_found(self, name: str, transaction: bytes) -> bool:
        return True


class LeasedNames:
    """The rule for an object store, where only the lease of a transaction excludes other processes."""

    def __init__(self, storage: RemoteStorage) -> None:
        self._storage = storage

    def free(self, name: str, ended: bytes) -> None:
        # Two processes may find the same ended name. Before the second deletes it, the first may already have begun a
        # new transaction with this name. So a process takes the lease of the ended transaction, reads the name once
        # more, and only then deletes it.
        try:
            held = self._storage.leases.take(f"{names.STAGING}/{ended.hex()}")
        except BlockingIOError:
            time.sleep(_PAUSE)  # another process is about to delete it
            return
        try:
            _delete(self._storage, name, ended, held.check_term)
        finally:
            held.close()

    def delete_before_record(self, name: str, transaction: bytes) -> None:
        # While this process holds the record, no other process reuses the name.
        _delete(self._storage, name, transaction)

    def delete_after_record(self, name: str, transaction: bytes) -> None:
        """Delete nothing: the name went before the record."""

    def can_be_found(self, name: str, transaction: bytes) -> bool:
        return _is_of(self._storage, name, transaction)


def _is_of(storage: Storage, name: str, transaction: bytes) -> bool:
    try:
        return storage.read(names.named_path(name)) == transaction.hex().encode()
    except FileNotFoundError:
        return False


def _delete(storage: Storage, name: str, transaction: bytes, check: Callable[[], object] = lambda: None) -> None:
    """Delete a name if the transaction still has it. Raises what `check` raises, before it deletes anything."""
    if _is_of(storage, name, transaction):
        check()
        storage.delete(names.named_path(name))

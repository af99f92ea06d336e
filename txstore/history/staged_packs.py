"""Places the packs of a transaction before its commit, and deletes those that dead processes have left.

And decides which process deletes the name of an ended transaction, so that no process deletes the name of a new one. On
a disk, processes create and delete names under the staging lock. An object store has no lock that excludes other
processes: there the holder of the transaction's lease deletes the name. A named transaction outlives its processes:
its record says that it is open.
"""

from __future__ import annotations

import contextlib
import posixpath
import time
from collections.abc import Callable, Collection, Iterator
from typing import Protocol

from txstore.errors import CommitTimeoutError
from txstore.format import encoding, names, packfile
from txstore.format.keys import is_document
from txstore.format.records import TransactionRecord
from txstore.history.identity import Identity
from txstore.segments.object_writer import ObjectWriter
from txstore.segments.pack_writer import PackWriter, Writer
from txstore.storage.interface import Storage, paths_in
from txstore.storage.remote import RemoteStorage

_PAUSE = 0.05  # seconds


class NameRule:
    """How the names of transactions are deleted: on a disk, where the staging lock excludes all other processes."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def free(self, name: str, ended: bytes) -> None:
        """Delete the name of an ended transaction. The caller holds the staging lock."""
        self._storage.delete(names.named_path(name))

    def delete_before_record(self, name: str, transaction: bytes) -> None:
        """Delete the name of a transaction that this process is ending, before it deletes the record.

        On a disk, delete nothing: a transaction that has a record keeps its name.
        """

    def delete_after_record(self, name: str, transaction: bytes) -> None:
        """Delete the name of a transaction that this process has ended, after it has deleted the record."""
        # If this times out, the next process that finds the ended name frees it.
        with contextlib.suppress(CommitTimeoutError), self._storage.lock(names.STAGING_LOCK):
            _delete(self._storage, name, transaction)

    def can_be_found(self, name: str, transaction: bytes) -> bool:
        """Tell whether a transaction that still has a record can be found by its name."""
        return True


class LeasedNames(NameRule):
    """The rule for an object store, where only the lease of a transaction excludes other processes."""

    def __init__(self, storage: RemoteStorage) -> None:
        super().__init__(storage)
        self._leases = storage.leases

    def free(self, name: str, ended: bytes) -> None:
        # Two processes may find the same ended name. Before the second deletes it, the first may already have begun a
        # new transaction with this name. So a process takes the lease of the ended transaction, reads the name once
        # more, and only then deletes it.
        try:
            held = self._leases.take(f"{names.STAGING}/{ended.hex()}")
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


#: Seconds after which a process that opened a repository on an object store looks for uploads of dead processes, and
#: after which it looks again. A process that uploads much looks at once.
FIRST_LOOK, NEXT_LOOK = 30.0, 600.0


class StagingPlace(Protocol):
    """The packs of the open transactions of one repository."""

    name_rule: NameRule
    uploads: bool
    """Whether packs are uploaded. To stage may take as long as a request then, no process finds a pack before its
    upload, and no kernel tells that the process of a pack has ended.
    """

    def new(self, transaction: bytes, number: int) -> Writer:
        """Return a new pack of a transaction. The pack with number 0 becomes the commit file."""

    def path(self, transaction: bytes, number: int) -> str:
        """Return the path of a pack before the commit."""

    def beside(self, transaction: bytes) -> Collection[str]:
        """Return the names of all packs that participants stored besides their own files, with one request."""

    def delete(self, transaction: bytes, numbers: Collection[int] | None = None) -> None:
        """Delete the packs besides the participants' own files: those with these numbers, or all."""

    def group(self, key: str) -> int:
        """Return the group of a value: when packs are rewritten, values of one group lie together."""

    def tidies_first(self) -> bool:
        """Tell whether this process should look for packs of dead processes before it stages. True once at most."""

    def due_for_look(self, *, is_large: bool) -> RemoteStorage | None:
        """Return the storage if it is time to look for uploads of dead processes, else None.

        `is_large`: the caller uploads so much that one more request does not matter.
        """


class PacksInStaging:
    """The place on a disk: all packs lie below `.staging/`."""

    uploads = False

    def __init__(self, storage: Storage, identity: Identity) -> None:
        self.name_rule = NameRule(storage)
        self._storage = storage
        self._identity = identity
        self._is_tidy = False

    def new(self, transaction: bytes, number: int) -> Writer:
        return PackWriter.of_participant(self._storage, transaction, number, self._identity.id)

    def path(self, transaction: bytes, number: int) -> str:
        return names.staging_path(transaction, number)

    def beside(self, transaction: bytes) -> Collection[str]:
        return ()

    def delete(self, transaction: bytes, numbers: Collection[int] | None = None) -> None:
        """Do nothing: there are no other packs."""

    def group(self, key: str) -> int:
        return 0

    def tidies_first(self) -> bool:
        is_tidy, self._is_tidy = self._is_tidy, True
        return not is_tidy

    def due_for_look(self, *, is_large: bool) -> RemoteStorage | None:
        return None  # `tidies_first` says when


class PacksInPlace:
    """The place on an object store: packs have their final path, because objects can't be moved."""

    uploads = True

    def __init__(self, storage: RemoteStorage, identity: Identity) -> None:
        self.name_rule: NameRule = LeasedNames(storage)
        self._storage = storage
        self._identity = identity
        self._opened_at = time.monotonic()
        self._looked_at: float | None = None  # for uploads of dead processes

    def new(self, transaction: bytes, number: int) -> Writer:
        return ObjectWriter(self._storage, transaction, number, self._identity.id)

    def path(self, transaction: bytes, number: int) -> str:
        if not number:
            return names.staging_path(transaction, number)
        return names.data_pack_path(packfile.participants_pack(transaction, number))

    def beside(self, transaction: bytes) -> Collection[str]:
        return set(self._storage.list(names.data_pack_directory(transaction)))

    def delete(self, transaction: bytes, numbers: Collection[int] | None = None) -> None:
        if numbers is None:
            paths = paths_in(self._storage, names.data_pack_directory(transaction))
            found = [bytes.fromhex(posixpath.basename(path)) for path in paths]
            packs = [pack for pack in found if packfile.packs_begin(pack) == packfile.packs_begin(transaction)]
        else:
            packs = [packfile.participants_pack(transaction, number) for number in numbers]
        self._storage.objects.delete([names.data_pack_path(pack) for pack in packs])

    def group(self, key: str) -> int:
        # Opening a group reads many documents and few other values.
        return int(is_document(key))

    def tidies_first(self) -> bool:
        return False  # that takes a request: `due_for_look` says when

    def due_for_look(self, *, is_large: bool) -> RemoteStorage | None:
        now = time.monotonic()
        if self._looked_at is None:
            is_due = is_large or now - self._opened_at >= FIRST_LOOK
        else:
            is_due = now - self._looked_at >= NEXT_LOOK
        if not is_due:
            return None
        self._looked_at = now
        return self._storage


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

"""Deletes files that dead processes left below `.staging/`.

A writer holds its staged file as long as it lives (see `storage`), and the owner of a shared transaction holds its
record. Only the owner can finish a transaction without a name. A named transaction outlives its processes, and stays.

On an object store, large transactions upload packs to `packs/`, where commits refer to them. A vacuum reads all kept
commits, and deletes packs that none refers to. But if no process has begun to commit a transaction, no commit can refer
to its packs: any process may delete them without the lock.
"""

from __future__ import annotations

import contextlib
import logging
import posixpath
import threading
from collections.abc import Sequence

from txstore.format import names, packfile
from txstore.format.encoding import MalformedError
from txstore.format.records import TransactionRecord
from txstore.history.commits import Commits
from txstore.steps import step
from txstore.storage import leases
from txstore.storage.interface import Storage, paths_in
from txstore.storage.objects.interface import Object
from txstore.storage.remote import RemoteStorage

_log = logging.getLogger(__name__)


@step("reclaim")
def reclaim_staging(commits: Commits, *, dry_run: bool = False) -> list[str]:
    """Delete the staged files of dead processes; return their paths. Any number of processes may do so at once.

    `dry_run` deletes nothing, and returns what would be deleted.
    """
    storage = commits.storage
    dead: list[str] = []
    reclaimed: list[str] = []
    files = [posixpath.basename(path) for path in paths_in(commits.storage, names.STAGING)]
    staged = {file: found[0] for file in files if (found := names.parse_staging(file)) is not None}
    shared = {transaction for transaction in map(names.parse_record, files) if transaction is not None}
    kept = {transaction for transaction in shared if _is_alive(commits, transaction, if_gone=True)}
    # The list may miss a record that was renamed during the listing, so look for these records once more.
    kept |= {transaction for transaction in set(staged.values()) - shared if _is_alive(commits, transaction)}
    doomed = {file for file, transaction in staged.items() if transaction not in kept}
    leased = {file.partition(".")[0] for file in files if names.parse_record(file) is not None} | set(files)
    doomed |= {file for file in files if file.endswith(names.LEASE) and file.removesuffix(names.LEASE) not in leased}
    with contextlib.suppress(OSError):  # this only frees space; a later writer tries again
        if not dry_run and any(not file.endswith(".0") for file in doomed):
            # A process that ended a named transaction may have died after it deleted the record, before the sync. After
            # a loss of power, no process may find the transaction with only some of its packs.
            storage.sync_directory(names.STAGING)
        for file in files:
            if names.is_new(file) or file in doomed:
                dead.append(f"{names.STAGING}/{file}")
        for transaction in shared - kept:
            dead += [names.open_path(transaction), names.sealed_path(transaction)]
        for path in dead:
            if _is_abandoned(storage, path) if dry_run else storage.reclaim(path):
                reclaimed.append(path)
    if reclaimed and not dry_run:
        _log.info("%s: staged files of dead processes deleted: %d", storage.url, len(reclaimed))
    return reclaimed


def _is_abandoned(storage: Storage, path: str) -> bool:
    try:
        return storage.is_abandoned(path)
    except FileNotFoundError:
        return False


def _is_alive(commits: Commits, transaction: bytes, *, if_gone: bool = False) -> bool:
    """Tell from its record whether a shared transaction may still be committed. Return `if_gone` without a record."""
    storage = commits.storage
    for path in (names.open_path(transaction), names.sealed_path(transaction), names.open_path(transaction)):
        with contextlib.suppress(FileNotFoundError):
            if not storage.is_abandoned(path):
                return True
            try:
                name = TransactionRecord.decode(storage.read(path)).name
                return name is not None and commits.staged.name_rule.can_be_found(name, transaction)
            except MalformedError:
                return False  # the owner died before it wrote the record
    return if_gone


# --- uploads


def look_by_the_way(commits: Commits, *, is_large: bool) -> None:
    """Sometimes delete uploads of dead processes, in the background: no caller waits for it.

    `is_large`: the caller uploads so much that one more request does not matter.
    """
    storage = commits.staged.due_for_look(is_large=is_large)
    if storage is None:
        return

    def look() -> None:
        with contextlib.suppress(OSError, RuntimeError):  # this only frees space; a later writer tries again
            reclaim_uploads(storage)

    with contextlib.suppress(RuntimeError):  # the interpreter ends, or the system allows no more threads
        threading.Thread(target=look, name="txstore reclaim", daemon=True).start()


def reclaim_uploads(storage: RemoteStorage) -> list[str]:
    """Delete uploads of dead processes that no commit can refer to; return the paths. Raises `OSError`.

    All files of the transaction are older, by the server's clock, than the time for which a process continues without
    renewing its lease. And the file that a process writes before it commits is missing.
    """
    objects = storage.objects
    deleted: list[str] = []
    staged: dict[bytes, list[Object]] = {}
    for each in objects.list(names.STAGING):
        transaction = _transaction_of(each.name)
        if transaction is not None:
            staged.setdefault(transaction, []).append(each)
    if not staged:
        return deleted
    now = objects.now()
    for transaction, files in staged.items():
        if not _are_old(files, now) or not _is_never_committed(storage, transaction, files):
            continue
        directory = names.data_pack_directory(transaction)
        found = [each for each in objects.list(directory) if _is_pack_of(transaction, directory, each.name)]
        if found and _are_old(found, now):
            paths = [f"{directory}/{each.name}" for each in found]
            # Delete the packs first: after an interruption, the files in `.staging/` lead to the remaining packs.
            for group in (paths, [f"{names.STAGING}/{each.name}" for each in files]):
                for first in range(0, len(group), storage.capabilities.deleted_together):
                    objects.delete(group[first : first + storage.capabilities.deleted_together])
            deleted += paths
            _log.info("%s: uploads of a dead process deleted: %d", storage.url, len(paths))
    return deleted


def _transaction_of(file: str) -> bytes | None:
    """Return the transaction of a file in `.staging/`: a staged pack, a record, or a lease on one of them."""
    leased = file.removesuffix(names.LEASE)
    staged = names.parse_staging(leased)
    return staged[0] if staged is not None else names.parse_record(file) or names.parse_leased_record(leased)


def _is_pack_of(transaction: bytes, directory: str, name: str) -> bool:
    pack_id = names.parse_data_pack(posixpath.basename(directory), name)
    return pack_id is not None and packfile.packs_begin(pack_id) == packfile.packs_begin(transaction)


def _are_old(found: Sequence[Object], now: float) -> bool:
    return all(each.modified is not None and now - each.modified > leases.KEPT for each in found)


def _is_never_committed(storage: RemoteStorage, transaction: bytes, files: Sequence[Object]) -> bool:
    """Tell whether no process has begun to commit a transaction, and none can begin, because it has no name."""
    path, record = names.staging_path(transaction, 0), names.open_path(transaction)
    sizes = {f"{names.STAGING}/{each.name}": each.size for each in files}
    if names.sealed_path(transaction) in sizes:
        return False
    if record not in sizes:  # a single process: its lease says when it begins to commit
        is_plain = leases.is_plain(sizes.get(path + names.LEASE, 0))
        return sizes.keys() == {path, path + names.LEASE} and is_plain and not storage.leases.holds(path)
    if storage.leases.holds(f"{names.STAGING}/{transaction.hex()}"):
        return False
    try:  # a process seals the record before it commits
        return TransactionRecord.decode(storage.read(record)).name is None
    except (FileNotFoundError, MalformedError):
        return False

"""Deleting what dead processes left below `.staging/`: only its owner can finish a transaction without a name.

A staged file is held by its writer for as long as that lives (see `storage`), and the record of a shared transaction by
its owner. What has a name outlives them all, and stays.

On an object store, large transactions are uploaded to `packs/`, where commits refer to them. A vacuum looks through all
that is kept, and deletes what nothing refers to. Nothing can refer to what was never about to be committed: any process
deletes that without the lock.
"""

from __future__ import annotations

import contextlib
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
    kept = {transaction for transaction in shared if _is_alive(storage, transaction, if_gone=True)}
    # A record that was renamed while they were listed may be missing from the list: it is looked for once more.
    kept |= {transaction for transaction in set(staged.values()) - shared if _is_alive(storage, transaction)}
    doomed = {file for file, transaction in staged.items() if transaction not in kept}
    leased = {file.partition(".")[0] for file in files if names.parse_record(file) is not None} | set(files)
    doomed |= {file for file in files if file.endswith(names.LEASE) and file.removesuffix(names.LEASE) not in leased}
    with contextlib.suppress(OSError):  # this serves tidiness; a later writer tries again
        if not dry_run and any(not file.endswith(".0") for file in doomed):
            # One who died ending a transaction with a name had deleted its record, and perhaps not synced that: after a
            # power loss the transaction must not be found with half of its packs.
            storage.sync_directory(names.STAGING)
        for file in files:
            if names.is_new(file) or names.parse_staged_run(file) is not None or file in doomed:
                dead.append(f"{names.STAGING}/{file}")
        for transaction in shared - kept:
            dead += [names.open_path(transaction), names.sealed_path(transaction)]
        for path in dead:
            if _is_abandoned(storage, path) if dry_run else storage.reclaim(path):
                reclaimed.append(path)
    return reclaimed


def _is_abandoned(storage: Storage, path: str) -> bool:
    try:
        return storage.is_abandoned(path)
    except FileNotFoundError:
        return False


def _has_name(storage: Storage, transaction: bytes, name: str) -> bool:
    """Tell whether a transaction can be found by its name: without a lock, that goes before the record does."""
    try:
        return storage.read(names.named_path(name)) == transaction.hex().encode()
    except FileNotFoundError:
        return False


def _is_alive(storage: Storage, transaction: bytes, *, if_gone: bool = False) -> bool:
    """Tell from its record whether a shared transaction may still be committed; `if_gone` if there is none."""
    for path in (names.open_path(transaction), names.sealed_path(transaction), names.open_path(transaction)):
        with contextlib.suppress(FileNotFoundError):
            if not storage.is_abandoned(path):
                return True
            try:
                name = TransactionRecord.decode(storage.read(path)).name
                return name is not None and (not storage.is_remote or _has_name(storage, transaction, name))
            except MalformedError:
                return False  # its owner died before it was written
    return if_gone


# --- what was uploaded


def look_by_the_way(commits: Commits, *, is_large: bool) -> None:
    """Delete what dead processes have uploaded, in the background, now and then: no caller waits for it.

    `is_large`: the caller uploads so much itself that one more request is nothing.
    """
    storage = commits.staged.due_for_look(is_large=is_large)
    if storage is None:
        return

    def look() -> None:
        with contextlib.suppress(OSError, RuntimeError):  # this serves tidiness; a later writer tries again
            reclaim_uploads(storage)

    with contextlib.suppress(RuntimeError):  # the interpreter is ending, or there can be no more threads
        threading.Thread(target=look, name="txstore reclaim", daemon=True).start()


def reclaim_uploads(storage: RemoteStorage) -> list[str]:
    """Delete what dead processes have uploaded that no commit can refer to; return the paths. Raises `OSError`.

    All that tells of a transaction was written longer ago than any of its processes goes on for without renewing its
    lease, by the server's clock; what tells of the commit, which comes first, is not there.
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
            # These first: what is left of them when this is interrupted is found by what is below `.staging/`.
            for group in (paths, [f"{names.STAGING}/{each.name}" for each in files]):
                for first in range(0, len(group), storage.capabilities.deleted_together):
                    objects.delete(group[first : first + storage.capabilities.deleted_together])
            deleted += paths
    return deleted


def _transaction_of(file: str) -> bytes | None:
    """Return the transaction that a file of `.staging/` is of: a staged pack, a record, or a lease on one of them."""
    leased = file.removesuffix(names.LEASE)
    staged = names.parse_staging(leased)
    return staged[0] if staged is not None else names.parse_record(file) or names.parse_leased_record(leased)


def _is_pack_of(transaction: bytes, directory: str, name: str) -> bool:
    pack_id = names.parse_data_pack(posixpath.basename(directory), name)
    return pack_id is not None and packfile.packs_begin(pack_id) == packfile.packs_begin(transaction)


def _are_old(found: Sequence[Object], now: float) -> bool:
    return all(each.modified is not None and now - each.modified > leases.KEPT for each in found)


def _is_never_committed(storage: RemoteStorage, transaction: bytes, files: Sequence[Object]) -> bool:
    """Tell whether no process has begun to commit a transaction, or can do so: it has no name, under which to go on."""
    path, record = names.staging_path(transaction, 0), names.open_path(transaction)
    sizes = {f"{names.STAGING}/{each.name}": each.size for each in files}
    if names.sealed_path(transaction) in sizes:
        return False
    if record not in sizes:  # one process alone: its lease says when it begins to commit
        is_plain = leases.is_plain(sizes.get(path + names.LEASE, 0))
        return sizes.keys() == {path, path + names.LEASE} and is_plain and not storage.leases.holds(path)
    if storage.leases.holds(f"{names.STAGING}/{transaction.hex()}"):
        return False
    try:  # it is sealed before it is committed
        return TransactionRecord.decode(storage.read(record)).name is None
    except (FileNotFoundError, MalformedError):
        return False

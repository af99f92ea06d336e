"""Deleting what dead processes left below `.staging/`: a transaction without a name is finished by its owner or nobody.

A staged file is held by its writer for as long as that lives (see `storage`), and the record of a shared transaction by
its owner. What has a name outlives them all, and stays.
"""

from __future__ import annotations

import contextlib
import posixpath

from txstore.format import names
from txstore.format.encoding import MalformedError
from txstore.format.records import TransactionRecord
from txstore.history.commits import Commits
from txstore.storage.interface import Storage


def reclaim_staging(commits: Commits, *, dry_run: bool = False) -> list[str]:
    """Delete the staged files of dead processes; return their paths. Any number of processes may do so at once.

    `dry_run` deletes nothing, and returns what would be deleted.
    """
    storage = commits.storage
    dead: list[str] = []
    reclaimed: list[str] = []
    files = [posixpath.basename(path) for path in commits.paths_in(names.STAGING)]
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
            if names.is_new(file) or file in doomed:
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

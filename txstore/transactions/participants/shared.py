"""Manages the files of a transaction that several processes share: its record, and a pack for each of them.

The record `.staging/<transaction>.open` exists as long as processes may stage into the transaction. A process that ends
the transaction renames the record, and deletes it at the end. Each participant has its own pack. It holds this file
(see `storage`), so that the others can tell whether it lives. When it has finished its work, it appends a seal as last
frame.

The process that ends a named transaction locks its record before it renames it. If no process holds a sealed record's
lock, its owner has died. Then either the history has the commit, or nothing was done.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import random
import time
from collections.abc import Collection
from typing import Any

from txstore.commit import Commit, Stored
from txstore.errors import CorruptionError, RepositoryNotFoundError, TransactionStateError
from txstore.format import names, packfile
from txstore.format.encoding import MalformedError, crc32c
from txstore.format.records import TransactionRecord
from txstore.history.commits import Commits
from txstore.segments.pack_writer import Staged, Writer
from txstore.steps import step
from txstore.storage.interface import Held
from txstore.storage.leases import Lease
from txstore.transactions.participants.chains import Link
from txstore.transactions.participants.tails import Tail, tail_of


class SharedTransaction:
    """One transaction that several processes may stage into, according to its files."""

    def __init__(self, commits: Commits, record: TransactionRecord, held: Held | None = None) -> None:
        self.record = record
        self.id = record.id
        self._commits = commits
        self.storage = commits.storage
        self._name_rule = commits.staged.name_rule
        self._held = held
        self._may_trust_owner_until = 0.0  # by the clock of this process

    # --- the record

    @classmethod
    @step("publish record")
    def publish(cls, commits: Commits, record: TransactionRecord) -> SharedTransaction:
        """Write the record, so that others can join. Without a name, the record is valid only while its owner lives."""
        if record.name is not None:
            commits.storage.write_once(
                names.open_path(record.id), record.encode(), durable=record.durability == "fsync"
            )
            return cls(commits, record)
        return cls(commits, record, commits.storage.create_held(names.open_path(record.id), record.encode()))

    @classmethod
    def find(cls, commits: Commits, transaction: bytes, repository_id: bytes | None = None) -> SharedTransaction:
        """Return a published transaction. Raises `TransactionStateError` if it has ended.

        `repository_id` is the expected id of the repository: a process without the shared disk may see another one.
        """
        url = commits.storage.url
        if repository_id is not None:
            if not commits.identity.exists():
                reason = "the repository of this store is not there: does this process see the same disk?"
                raise RepositoryNotFoundError(url, reason=reason)
            if commits.identity.id != repository_id:
                reason = "this is another repository than the store was made for: does this process see the same disk?"
                raise RepositoryNotFoundError(url, reason=reason)
        for path in (names.open_path(transaction), names.sealed_path(transaction), names.open_path(transaction)):
            with contextlib.suppress(FileNotFoundError):
                content = commits.storage.read(path)
                try:
                    return cls(commits, TransactionRecord.decode(content))
                except MalformedError as error:
                    raise CorruptionError(path, reason=error.reason) from error
        raise _ended()

    @property
    def is_named(self) -> bool:
        return self.record.name is not None

    def check_open(self) -> None:
        """Raise `TransactionStateError` unless the commit will include everything that was staged before this call."""
        path = names.open_path(self.id)
        try:
            exists_is_enough = self.is_named or self._held is not None or time.monotonic() < self._may_trust_owner_until
            if self.storage.exists(path) if exists_is_enough else self.storage.is_held(path):
                if not exists_is_enough:
                    # This check takes time, so trust it for a while. If the owner dies, all staged changes are lost
                    # anyway.
                    trusted = self.storage.capabilities.holders_trusted
                    self._may_trust_owner_until = time.monotonic() + trusted
                return
        except FileNotFoundError:
            pass
        else:
            if not self.is_named and self.storage.exists(path):
                raise TransactionStateError(
                    "the process that began this transaction has died, and the transaction with it", state="ended"
                )
        if self.storage.exists(names.sealed_path(self.id)):
            raise TransactionStateError(
                "this transaction is being committed or rolled back: nothing can be staged any more", state="committing"
            )
        raise _ended()

    @step("seal record")
    def seal(self) -> None:
        """Stop all staging, and become the process that ends the transaction.

        Raises `TransactionStateError` if it has ended, or another process is ending it.
        """
        if self.is_named and self._held is None:
            self._held = self._hold_record()
        committed = None
        try:
            is_new = self._rename_record(names.open_path(self.id), names.sealed_path(self.id))
            if self.is_named and not is_new:  # this process, or a dead one, sealed it before
                committed = self._take_over()
            if self.is_named and committed is None and self.record.durability == "fsync":
                # Otherwise, after a loss of power, the transaction could be open though its commit exists.
                self.storage.sync_directory(names.STAGING)
        except BaseException:
            if self.is_named:
                self.close()  # do not unseal it: it is unknown whether it was committed
            raise
        if committed is not None:
            raise _ended(committed)

    def _rename_record(self, old: str, new: str) -> bool:
        """Rename the record; return False if it already has the new name.

        If a rename is a link and an unlink, a process that died between the two leaves both names.
        """
        try:
            self.storage.rename_noreplace(old, new)
        except FileNotFoundError:
            return False
        except FileExistsError:
            self.storage.delete(old)
            return False
        return True

    def _hold_record(self) -> Held:
        """Hold the record of a named transaction: only its holder may rename it.

        Raises `TransactionStateError` if it has ended, or another process is ending it.
        """
        for path in self._record_paths():
            with contextlib.suppress(FileNotFoundError):
                try:
                    held = self.storage.hold(path)
                except BlockingIOError:
                    raise TransactionStateError(
                        f"another process is committing {self.record.name!r} or rolling it back: try again when it is "
                        "done",
                        state="committing",
                    ) from None
                is_there = False
                try:
                    is_there = self.is_there()  # else another process deleted it meanwhile
                finally:
                    if not is_there:
                        held.close()
                if is_there:
                    return held
        raise _ended()

    def recover(self) -> bool:
        """Recover a named transaction whose ending process died; return True if the transaction is open again.

        Raises `TransactionStateError` if it has ended, or a living process is ending it.
        """
        self._held = self._hold_record()
        try:
            is_sealed = self.is_sealed()
        except BaseException:
            self.close()
            raise
        if is_sealed and self._take_over() is not None:
            return False
        self.unseal()
        return True

    def _take_over(self) -> Commit | None:
        """Finish a transaction that a dead process left sealed: return its commit, or undo its attempt to commit."""
        try:
            committed = self.find_commit()
            if committed is None:
                for participant in self.participants():
                    self.storage.delete(names.data_pack_path(packfile.participants_pack(self.id, participant)))
                return None
            if committed.header.synced:
                self._commits.store.make_durable(committed)  # I1: before the packs that it was made from are deleted
        except BaseException:
            self.close()  # it stays sealed, and the next process recovers it
            raise
        self.end()
        return committed.commit

    def find_commit(self) -> Stored | None:
        """Return the commit that this transaction made, or None."""
        least = -1 if self.record.base is None else self.record.base[0]
        for stored in self._commits.chain.ancestors(self._commits.head(self.record.branch)):
            if stored.header.version <= least:
                return None
            if stored.header.id == self.id:
                return stored
        return None

    def is_there(self) -> bool:
        """Tell whether the transaction has a record: then it has not ended."""
        return any(map(self.storage.exists, self._record_paths()))

    def is_sealed(self) -> bool:
        return self.storage.exists(names.sealed_path(self.id))

    def is_ending(self) -> bool:
        """Tell whether a living process is ending this named transaction."""
        try:
            return self.storage.is_held(names.sealed_path(self.id))
        except FileNotFoundError:
            return False

    def _record_paths(self) -> tuple[str, ...]:
        # The first path again: between the two checks, a process may have unsealed it.
        return names.open_path(self.id), names.sealed_path(self.id), names.open_path(self.id)

    def unseal(self) -> None:
        """Let others stage again, because no commit was made. If another process sealed the record, do nothing."""
        if self._held is None:
            return
        try:
            self._rename_record(names.sealed_path(self.id), names.open_path(self.id))
        finally:
            if self.is_named:
                self.close()

    @step("end record")
    def end(self) -> None:
        """Delete the files of a sealed transaction, except the pack of participant 0. `free_name` deletes the name."""
        try:
            if self.record.name is not None:
                self._name_rule.delete_before_record(self.record.name, self.id)
            # Delete the record before the packs: no process may find a rolled back transaction with half of its packs.
            for path in (names.open_path(self.id), names.sealed_path(self.id)):
                self.storage.delete(path)
            if self.is_named and self.record.durability == "fsync":
                self.storage.sync_directory(names.STAGING)
            for participant in self.participants():
                if participant:
                    self.storage.delete(names.staging_path(self.id, participant))
        finally:
            self.close()

    def free_name(self) -> None:
        """Delete the name of an ended transaction, unless another transaction already has it."""
        if self.record.name is not None:
            self._name_rule.delete_after_record(self.record.name, self.id)

    def check_held(self) -> None:
        """Raise `OSError` if the lease on the record may have expired, so that another process may be ending it."""
        if self.is_named and isinstance(self._held, Lease):
            self._held.check_term()

    def close(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.close()

    # --- participants

    def participants(self) -> list[int]:
        """Return the numbers of the participants that have a pack."""
        found = map(names.parse_staging, self.storage.list(names.STAGING))
        return sorted(item[1] for item in found if item is not None and item[0] == self.id)

    def packs(self) -> Collection[str]:
        """Return the names of all packs that participants stored besides their own files, with one request."""
        return self._commits.staged.beside(self.id)

    def tail(self, participant: int) -> Tail:
        return tail_of(self._commits, self.id, participant)

    def join(self) -> tuple[int, Writer]:
        """Become a participant: return the number, and the pack, which others see. Raises `TransactionStateError`."""
        number, tries = max(self.participants(), default=0), 0
        while True:
            number += random.randrange(1, 2 + tries)  # random: if many join at once, they must not all try one number
            tries += 1
            if number > packfile.MAX_PARTICIPANT:
                reason = (
                    f"there is, or was, a participant {number - 1} of this transaction, and can be no more: commit it"
                )
                raise TransactionStateError(reason, state="open")
            writer = self._commits.staged.new(self.id, number)
            append_about(writer)
            try:
                writer.publish()
                self.check_open()
            except FileExistsError:
                continue  # another process has just taken the number
            except BaseException:
                with contextlib.suppress(OSError):  # with its file, this process would look attached while it lives
                    writer.drop()
                raise
            return number, writer

    def living(self, participants: Collection[int]) -> set[int]:
        """Return the participants that live. The answer is certain, even if that takes a while."""
        paths = {names.staging_path(self.id, number): number for number in participants}
        return {paths[path] for path in self.storage.are_held(paths)} if paths else set()

    def delete_packs(self, numbers: Collection[int] | None = None) -> None:
        """Delete stored packs that no commit refers to: the packs with these numbers, or all packs.

        If a participant's pack is the file that it stages into, `end` deletes it.
        """
        self._commits.staged.delete(self.id, numbers)

    def commit_pack(self) -> Writer:
        """Return an empty pack of participant 0, to become the commit file."""
        self.storage.delete(names.staging_path(self.id, 0))  # a process that died while committing may have left it
        return self._commits.staged.new(self.id, 0)

    def read(self, link: Link) -> bytes:
        """Return a value that another participant staged. Raises `TransactionStateError` if the value is gone."""
        nth, offset = packfile.split_offset(link.offset)
        path = self._commits.staged.path(self.id, packfile.pack_number(link.participant, nth))
        try:
            value = self.storage.read_range(path, offset, link.length)
        except FileNotFoundError:
            raise _ended() from None
        if len(value) != link.length or crc32c(value) != link.checksum:
            raise CorruptionError(path, offset=offset, reason="a staged value has changed on the disk")
        return value


def append_about(writer: Writer, **more: Any) -> Staged:
    """Append a frame to this process's pack that names its host and process id."""
    about = {"host": platform.node(), "pid": os.getpid(), "time": time.time_ns() // 1000, **more}
    return writer.append(packfile.FRAME_PARTICIPANT, b"", json.dumps(about).encode(), seen=packfile.SEEN_NOTHING)


def _ended(committed: Commit | None = None) -> TransactionStateError:
    if committed is not None:
        return TransactionStateError(
            f"this transaction has ended: a process that died since has committed it, as {committed} ({committed.id})",
            state="ended",
        )
    return TransactionStateError(
        "this transaction has ended: it was committed or rolled back, or the process that began it has died",
        state="ended",
    )

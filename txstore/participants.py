"""The files by which several processes stage into one transaction: its record, and what each of them has staged.

The record `.staging/<transaction>.open` is there as long as the transaction may be staged into; it is renamed to end
that, and deleted when the transaction has ended. Each participant has a pack of its own. It holds the file (see
`storage`), so that the others can tell whether it lives; its last frame is a seal when it has done all that it meant to
do.

Whoever ends a transaction with a name holds its record, from before it is renamed. Where nobody holds a sealed record,
whoever did has died: it was committed, which the history tells, or it is as if nothing had been tried.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Iterator
from typing import Any

from txstore import encoding, format, names
from txstore.chains import Link
from txstore.commits import Commit, Commits, Stored
from txstore.encoding import MalformedError, crc32c
from txstore.errors import CorruptionError, RepositoryNotFoundError, TransactionStateError
from txstore.format import Frame
from txstore.pack import PackWriter
from txstore.records import TransactionRecord
from txstore.storage import StagedFile

_WINDOW = 64 << 10  # what is read at a time of another's frames
_FRAME_HEAD_MOST = format.FRAME_SIZE + 4096 + format.PREDECESSOR.size
_ANY_SIZE = 1 << 63


class Tail:
    """What one participant has staged so far, read from its pack as it grows. Not safe in threads."""

    def __init__(self, commits: Commits, transaction: bytes, participant: int) -> None:
        self.participant = participant
        self.pack_id = format.participants_pack(transaction, participant)
        self.path = names.staging_path(transaction, participant)
        self.about: dict[str, Any] = {}  # what it says of itself
        self.is_sealed = False
        self.unfinished: Frame | None = None  # what it is writing, or died writing
        self.end = format.HEAD_SIZE  # of the frames that were read
        self._commits = commits
        self._sequence = 0
        self._head_is_checked = False

    def __str__(self) -> str:
        return f"process {self.about.get('pid', '?')} on {self.about.get('host', '?')}"

    def is_alive(self) -> bool:
        try:
            return self._commits.storage.is_held(self.path)
        except FileNotFoundError:
            return False

    def new_frames(self) -> Iterator[Frame]:
        """Yield the frames that were added since the last call. Raises `CorruptionError` or `OSError`."""
        storage = self._commits.storage
        if not self._head_is_checked and not self._check_head():
            return
        window, begin = memoryview(b""), self.end
        waiting: Frame | None = None  # it is complete if another follows it
        position, sequence = self.end, self._sequence
        while True:
            if position - begin + _FRAME_HEAD_MOST > len(window):
                try:
                    window, begin = memoryview(storage.read_range(self.path, position, _WINDOW)), position
                except FileNotFoundError:  # the transaction has ended
                    return
            try:
                frame = format.decode_frame(window, position, begin=begin, size=_ANY_SIZE)
            except MalformedError:
                break
            if frame.sequence != sequence:
                break
            if waiting is not None:
                yield self._take(waiting)
            waiting = frame
            position, sequence = frame.end, sequence + 1
        self.unfinished = None
        if waiting is not None and self._is_complete(waiting):
            yield self._take(waiting)
        elif waiting is not None:
            self.is_sealed = False
            self.unfinished = waiting if waiting.kind == format.FRAME_VALUE else None

    def _check_head(self) -> bool:
        try:
            head = self._commits.storage.read_range(self.path, 0, format.HEAD_SIZE)
        except FileNotFoundError:
            return False
        if len(head) < format.HEAD_SIZE or not any(head):
            return False  # it is being created, or a power loss has taken what was never synced
        try:
            found = format.decode_head(head)
        except encoding.MalformedError as error:
            raise CorruptionError(self.path, offset=0, reason=error.reason) from error
        if found != (self.pack_id, self._commits.identity.id, self.participant):
            raise CorruptionError(self.path, offset=0, reason="the pack's head names another transaction")
        self._head_is_checked = True
        return True

    def _is_complete(self, frame: Frame) -> bool:
        """Tell whether the value of the last frame is there: its writer may be writing it, or have died doing so."""
        value = self._read(frame)
        return len(value) == frame.length and crc32c(value) == frame.checksum

    def _read(self, frame: Frame) -> bytes:
        try:
            return self._commits.storage.read_range(self.path, frame.offset, frame.length)
        except FileNotFoundError:  # the transaction has ended
            return b""

    def _take(self, frame: Frame) -> Frame:
        self.end, self._sequence = frame.end, frame.sequence + 1
        self.is_sealed = frame.kind == format.FRAME_SEAL
        if frame.kind == format.FRAME_PARTICIPANT:
            with contextlib.suppress(MalformedError):
                self.about = encoding.json_object(self._read(frame))
        return frame


class SharedTransaction:
    """One transaction that several processes may stage into, as its files tell."""

    def __init__(self, commits: Commits, record: TransactionRecord, held: StagedFile | None = None) -> None:
        self.record = record
        self.id = record.id
        self._commits = commits
        self._storage = commits.storage
        self._held = held

    # --- the record

    @classmethod
    def publish(cls, commits: Commits, record: TransactionRecord) -> SharedTransaction:
        """Write the record, so that others can join. That of a transaction without a name lives with its owner."""
        if record.name is not None:
            commits.storage.write_once(
                names.open_path(record.id), record.encode(), durable=record.durability == "fsync"
            )
            return cls(commits, record)
        held = commits.storage.create(names.open_path(record.id))
        try:
            held.write(0, [record.encode()])
        except BaseException:
            held.close()
            commits.storage.delete(names.open_path(record.id))
            raise
        return cls(commits, record, held)

    @classmethod
    def find(cls, commits: Commits, transaction: bytes, repository_id: bytes | None = None) -> SharedTransaction:
        """Return a transaction that was published. Raises `TransactionStateError` if it has ended.

        `repository_id` is what the repository should be: a process without the shared disk may see another, or none.
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
        """Raise `TransactionStateError` unless what was staged by now will be counted at the commit."""
        path = names.open_path(self.id)
        try:
            if self._storage.exists(path) if self.is_named or self._held is not None else self._storage.is_held(path):
                return
        except FileNotFoundError:
            pass
        else:
            if not self.is_named and self._storage.exists(path):
                raise TransactionStateError(
                    "the process that began this transaction has died, and the transaction with it", state="ended"
                )
        if self._storage.exists(names.sealed_path(self.id)):
            raise TransactionStateError(
                "this transaction is being committed or rolled back: nothing can be staged any more", state="committing"
            )
        raise _ended()

    def seal(self) -> None:
        """Let nobody stage any more, and be the one who ends the transaction.

        Raises `TransactionStateError` if it has ended, or another process is ending it.
        """
        if self.is_named and self._held is None:
            self._held = self._hold_record()
        committed = None
        try:
            is_new = self._rename_record(names.open_path(self.id), names.sealed_path(self.id))
            if self.is_named and not is_new:  # it is sealed: by this process, or by one that died
                committed = self._take_over()
            if self.is_named and committed is None and self.record.durability == "fsync":
                # Or, after a power loss, a transaction could be open whose commit is there.
                self._storage.sync_directory(names.STAGING)
        except BaseException:
            if self.is_named:
                self.close()  # before it is known whether it was committed, nobody may unseal it
            raise
        if committed is not None:
            raise _ended(committed)

    def _rename_record(self, old: str, new: str) -> bool:
        """Give the record its other name; return False if it has that already.

        Where a rename is a link and an unlink, one who died between the two has left both.
        """
        try:
            self._storage.rename_noreplace(old, new)
        except FileNotFoundError:
            return False
        except FileExistsError:
            self._storage.delete(old)
            return False
        return True

    def _hold_record(self) -> StagedFile:
        """Hold the record of a transaction with a name: only who does so renames it.

        Raises `TransactionStateError` if it has ended, or another process is ending it.
        """
        for path in self._record_paths():
            with contextlib.suppress(FileNotFoundError):
                try:
                    held = self._storage.hold(path)
                except BlockingIOError:
                    raise TransactionStateError(
                        f"another process is committing {self.record.name!r} or rolling it back: try again when it is "
                        "done",
                        state="committing",
                    ) from None
                is_there = False
                try:
                    is_there = self.is_there()  # else its last name went while it was opened
                finally:
                    if not is_there:
                        held.close()
                if is_there:
                    return held
        raise _ended()

    def recover(self) -> bool:
        """Go on where a process died that was ending a transaction with a name; return whether it is open again.

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
        """Finish what a dead process has left sealed: return its commit; if it made none, be where it began."""
        try:
            committed = self.find_commit()
            if committed is None:
                for participant in self.participants():
                    self._storage.delete(names.data_pack_path(format.participants_pack(self.id, participant)))
                return None
            if committed.header.synced:
                self._commits.make_durable(committed)  # I1: before the packs are deleted that it was made of
        except BaseException:
            self.close()  # it stays sealed, for the next one to settle
            raise
        self.end()
        return committed.commit

    def find_commit(self) -> Stored | None:
        """Return the commit that the transaction has become."""
        least = -1 if self.record.base is None else self.record.base[0]
        for stored in self._commits.ancestors(self._commits.head(self.record.branch)):
            if stored.header.slot <= least:
                return None
            if stored.header.id == self.id:
                return stored
        return None

    def is_there(self) -> bool:
        """Tell whether the transaction has a record: it has not ended."""
        return any(map(self._storage.exists, self._record_paths()))

    def is_sealed(self) -> bool:
        return self._storage.exists(names.sealed_path(self.id))

    def is_ending(self) -> bool:
        """Tell whether a living process ends a transaction with a name."""
        try:
            return self._storage.is_held(names.sealed_path(self.id))
        except FileNotFoundError:
            return False

    def _record_paths(self) -> tuple[str, ...]:
        # The first again: between two looks, it may have been unsealed.
        return names.open_path(self.id), names.sealed_path(self.id), names.open_path(self.id)

    def unseal(self) -> None:
        """Let others go on staging: the commit was not made. Nothing happens if it was another who sealed."""
        if self._held is None:
            return
        try:
            self._rename_record(names.sealed_path(self.id), names.open_path(self.id))
        finally:
            if self.is_named:
                self.close()

    def end(self) -> None:
        """Delete the files of a transaction that is sealed, but for the pack of participant 0, and its name."""
        try:
            # The record goes first: a transaction that is rolled back must never be found with half of its packs.
            for path in (names.open_path(self.id), names.sealed_path(self.id)):
                self._storage.delete(path)
            if self.is_named and self.record.durability == "fsync":
                self._storage.sync_directory(names.STAGING)
            for participant in self.participants():
                if participant:
                    self._storage.delete(names.staging_path(self.id, participant))
        finally:
            self.close()

    def free_name(self) -> None:
        """Delete the name of a transaction that has ended, unless another has it already."""
        if self.record.name is None:
            return
        path = names.named_path(self.record.name)
        with self._storage.lock(names.STAGING_LOCK), contextlib.suppress(FileNotFoundError):
            if self._storage.read(path) == self.id.hex().encode():
                self._storage.delete(path)

    def close(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.close()

    # --- participants

    def participants(self) -> list[int]:
        """Return the numbers of those who have a pack."""
        found = map(names.parse_staging, self._storage.list(names.STAGING))
        return sorted(item[1] for item in found if item is not None and item[0] == self.id)

    def tail(self, participant: int) -> Tail:
        return Tail(self._commits, self.id, participant)

    def join(self) -> tuple[int, PackWriter]:
        """Become a participant: return its number, and its pack, which others see. Raises `TransactionStateError`."""
        number = max(self.participants(), default=0)
        while True:
            number = max(number, 0) + 1
            writer = self._pack(number)
            append_about(writer)
            try:
                writer.publish()
                self.check_open()
            except FileExistsError:
                continue  # another has just taken the number
            except BaseException:
                if writer.close():  # or this process would look attached for as long as it lives
                    with contextlib.suppress(OSError):
                        self._storage.delete(writer.path)
                raise
            return number, writer

    def commit_pack(self) -> PackWriter:
        """Return an empty pack of participant 0, to become the commit file."""
        self._storage.delete(names.staging_path(self.id, 0))  # of one who died while committing
        return self._pack(0)

    def _pack(self, number: int) -> PackWriter:
        return PackWriter.of_participant(self._storage, self.id, number, self._commits.identity.id)

    def read(self, link: Link) -> bytes:
        """Return a value that another participant has staged. Raises `TransactionStateError` if it is gone."""
        path = names.staging_path(self.id, link.participant)
        try:
            value = self._storage.read_range(path, link.offset, link.length)
        except FileNotFoundError:
            raise _ended() from None
        if len(value) != link.length or crc32c(value) != link.checksum:
            raise CorruptionError(path, offset=link.offset, reason="a staged value has changed on the disk")
        return value


def append_about(writer: PackWriter, **more: Any) -> None:
    """Say in one's own pack who one is."""
    about = {"host": platform.node(), "pid": os.getpid(), "time": time.time_ns() // 1000, **more}
    writer.append(format.FRAME_PARTICIPANT, b"", json.dumps(about).encode(), seen=format.SEEN_NOTHING)


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

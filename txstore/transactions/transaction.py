"""Stages the writes of one transaction over a base snapshot, and ends it by a commit or a rollback."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypedDict, TypeVar

from txstore import processes
from txstore._native import chunks
from txstore.errors import (
    NodeNotFoundError,
    TransactionStateError,
    TxStoreError,
    keeps_nothing,
)
from txstore.format import packfile
from txstore.format.consolidated import mark_for, may_be_consolidated
from txstore.format.constraints import Constraint
from txstore.format.documents import kind_of_node
from txstore.format.keys import directory_prefix, encode_key, is_document
from txstore.format.mapping import Hierarchy
from txstore.format.records import SERIALIZABLE
from txstore.format.regions import Region
from txstore.history import declarations
from txstore.history.changes import KeyChange
from txstore.history.commits import Commits
from txstore.history.declarations import Constraints
from txstore.history.snapshot import Snapshot, Snapshots
from txstore.segments.runs import Located
from txstore.storage.foreign import FileVersion, canonical
from txstore.transactions import dropping
from txstore.transactions.begin import check_description
from txstore.transactions.ending import Ending
from txstore.transactions.held_locks import TransactionLocks
from txstore.transactions.lifecycle import Lifecycle
from txstore.transactions.locking import Locking
from txstore.transactions.reads import NotingView
from txstore.transactions.staging import Staging

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import Buffer

T = TypeVar("T")


def _contiguous(value: Buffer) -> memoryview:
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(f"a value is bytes, or a buffer of them, not {type(value).__name__}") from None
    if not view.c_contiguous:
        raise ValueError("a value is a contiguous buffer: copy it first")
    return view


class Changes(TypedDict):
    """What is staged."""

    set: list[str]
    deleted: list[str]
    deleted_below: list[str]  # paths below which everything is deleted
    participants: dict[str, list[str]]  # the keys that each process has staged
    reflinked: list[str]  # destinations of moves, copies and restores
    constraints: list[str]  # that were declared or dropped


class Transaction(Hierarchy, MutableMapping[str, bytes]):
    """Staged writes over a base snapshot, as a `MutableMapping[str, bytes]`.

    Before `commit` returns, other readers see none of the writes; afterwards they see all of them. This mapping reads
    its own writes. Staged values lie in files below `.staging/`, never in memory. Any number of threads may use it.

    As a context manager it commits on a clean exit and rolls back on an exception.

    States: "open"; "failed" after a failed write; "committed"; "rolled back"; "of unknown outcome".
    """

    def __init__(
        self,
        commits: Commits,
        snapshots: Snapshots,
        staging: Staging,
        locks: TransactionLocks | None = None,
    ) -> None:
        self._snapshots = snapshots
        self._staging = staging
        self.members = staging.members
        self.part = staging.part
        self.staged = staging.view  # the staged writes over the base, for reads that are not noted
        self.is_serializable = staging.record.isolation == SERIALIZABLE
        # Reads of the user go through this view, which notes them in a serializable transaction.
        self._view = NotingView(staging.view, staging.view.note_read) if self.is_serializable else staging.view
        staging.storage.dispatch.expect_cleanup()  # of the finalizer
        self._attached = object()  # the name of this object in `Part.attached`
        self._finalizer = weakref.finalize(self, dropping.drop, staging, self._attached)
        self.lifecycle = Lifecycle(staging)
        self.locking = Locking(commits, snapshots, staging, self.lifecycle, locks)
        self.ending = Ending(commits, snapshots, staging, self.lifecycle, self.locking, self._finalizer.detach)
        self._sources: dict[bytes | None, Snapshot] = {}  # sources of copies, by commit id
        self._looked_at: dict[str, FileVersion] = {}  # referenced files, each as first seen
        self._entered_in = 0  # the process that entered the `with` block
        staging.part.attached.add(self._attached)
        processes.watch_before(self)

    def before_fork(self) -> None:
        if self.state == "open" and not self.members.is_named:
            with suppress(OSError, TxStoreError):  # if the child writes, it gets an error that says so
                self.share()

    @property
    def state(self) -> str:
        """The state in this process: see `Lifecycle`."""
        return self.lifecycle.state

    @property
    def unchanged(self) -> bool:
        """Whether the commit changed no value. It may exist all the same, for its message."""
        return self.ending.unchanged

    @property
    def base(self) -> Snapshot:
        """The snapshot that the transaction started from."""
        return self.staged.base

    @property
    def id(self) -> str:
        """The id of the transaction, and of the commit that it becomes: 32 hexadecimal digits."""
        return self._staging.record.id.hex()

    @property
    def shared_id(self) -> bytes:
        return self._staging.record.id

    @property
    def isolation(self) -> str:
        """ "snapshot" or "serializable"."""
        return self._staging.record.isolation

    @property
    def staged_count(self) -> int:
        """Number of staged keys, prefixes and constraints, as long as they are not committed."""
        return 0 if self.state == "committed" else self._staging.count

    @property
    def version(self) -> Hashable:
        """A value that changes whenever the staged writes change. None if nothing is staged."""
        return self.staged.version if self.staged_count else None

    @property
    def constraints(self) -> Constraints:
        """The conditions that every commit keeps, by name: see `Repository.constraints`.

        The commit of this transaction declares the constraints that are set here, and drops those that are deleted.
        """
        return Constraints(self._declared, self.declare)

    def _declared(self) -> Mapping[str, Constraint]:
        committed = self.staged.committed
        if committed is not None:
            return committed.constraints
        written = declarations.changed(self._staging.constraints, self.base.written_constraints)
        return declarations.decode(self._staging.storage.url, written)

    def declare(self, name: str, constraint: Constraint | None) -> None:
        """Declare a constraint, or drop the one with this name."""
        if self.members.is_named or self.members.is_participant:
            raise TransactionStateError(
                "constraints are declared in a transaction without a name, by the process that began it: "
                "repo.constraints[...] = ... makes one",
                state="foreign",
            )
        written = None if constraint is None else declarations.encode(constraint.settled(self.staged))
        changes = {**self._staging.constraints, name: written}
        # Raises an error now, not at the commit, if they are too large.
        declarations.changed(changes, self.base.written_constraints)
        with self.lifecycle.lock:
            self.lifecycle.check_open()
            self._staging.constraints[name] = written

    def __repr__(self) -> str:
        staged = f", {self.staged_count} staged, NOT COMMITTED" if self.staged_count else ""
        return f"<Transaction {self._staging.storage.url} {self.base.commit or '(empty)'}{staged}>"

    # --- reading

    def get_view(self, key: str) -> memoryview | None:
        return self._view.get_view(key)

    def get_part(self, key: str, part: slice) -> memoryview | None:
        """Return a part of a value."""
        return self._view.get_part(key, part)

    def locate(self, keys: Sequence[str]) -> Located | None:
        """Return where many values of the base lie, as `Snapshot.locate` does. None in a serializable transaction."""
        return None if self.is_serializable else self.staged.locate(keys)

    def size_of(self, key: str) -> int | None:
        return self._view.size_of(key)

    def keys_between(self, start: str, stop: str | None, *, batch: int = 256) -> Iterator[str]:
        return self._view.keys_between(start, stop, batch=batch)

    def has_keys_below(self, path: str) -> bool:
        return self._view.has_keys_below(path)

    def list_dir(self, path: str) -> Iterator[str]:
        return self._view.list_dir(path)

    def fetch(self, keys: Sequence[str]) -> None:
        """Fetch values of the base, as `Snapshot.fetch` does. This does not count as reading them."""
        self.base.fetch(keys)

    def rely_on_base(self, key: str) -> None:
        """Count a key as read: an array object holds its value from an earlier transaction."""
        self.staged.note_read(packfile.FRAME_READ, key)

    # --- writing

    def set(self, key: str, value: Buffer) -> None:
        """Stage a value. The caller may change its buffer afterwards. For consolidated metadata, stage only a mark.

        Raises `KeyFormatError` for an impossible key. Any `OSError` fails the transaction until `rollback`.
        """
        encoded, content = encode_key(key), _contiguous(value)
        if may_be_consolidated(key):
            content = memoryview(mark_for(key, bytes(content)))
        self._stage(packfile.FRAME_VALUE, key, encoded, content)

    def set_reference(
        self,
        key: str,
        url: str | os.PathLike[str],
        offset: int = 0,
        length: int | None = None,
        *,
        size: int | None = None,
        version: str | None = None,
    ) -> None:
        """Stage a reference to a value in a file outside: `length` bytes at `offset`, by default up to the file's end.

        The file must lie below one of the repository's `sources`. The reference records the file's `size` in bytes and
        its `version` (the etag of its file system, or the time of its last change). Without both, the present ones are
        looked up. A read raises `SourceError` if either has changed.

        Raises `SourceError` if the file may not be read here, or does not hold the range, `FileNotFoundError`,
        `OSError`, `ValueError` for a metadata document, and what `set` raises.
        """
        encoded = encode_key(key)
        if is_document(key):
            raise ValueError(f"{key!r} is a metadata document: store its bytes, not a reference to them")
        sources = self.base.sources
        name = canonical(url)
        if size is not None and version is not None:
            file = FileVersion(name, size, version)
        else:
            file = self._looked_at.get(name) or self._looked_at.setdefault(name, sources.look(name))
        record = sources.range_of(file, offset, length).encode()
        self._stage(packfile.FRAME_FOREIGN, key, encoded, record)

    def delete(self, key: str) -> None:
        """Stage the deletion of a key, whether it exists or not."""
        self._stage(packfile.FRAME_TOMBSTONE, key, encode_key(key), b"")

    @keeps_nothing
    def modify(
        self, key: str, change: Callable[[memoryview | None], Buffer | None], region: Region | None = None
    ) -> None:
        """Change a part of a value. No other thread of this process writes the key meanwhile.

        `change` gets the value, or None if there is none. It returns the new value, or None to delete the key, which
        counts as writing the whole value. It must not use the transaction. If it raises an error, nothing is staged and
        the caller gets the error.

        `region` is the written part of a chunk, in the chunk's own coordinates. With a region, the commit merges the
        chunk with the parts that other transactions have written, and the value that `change` gets does not count as
        read (I5).
        """
        encoded = encode_key(key)
        with self._staging.turns.changing(key):
            known = None if region is None else self.staged.known(key)
            value = change(self.get_view(key) if known is None else known.value)
            if value is None:
                self._stage_in_turn(packfile.FRAME_TOMBSTONE, key, encoded, b"")
            elif known is None or region is None:
                self._stage_in_turn(packfile.FRAME_VALUE, key, encoded, _contiguous(value))
            elif region.boxes != ():  # else nothing is written
                part = _contiguous(value)
                self.lifecycle.write(lambda: self._staging.stage_part(key, encoded, part, known, region))

    def delete_dir(self, path: str) -> None:
        """Stage the deletion of everything below a path, as one entry for any number of keys."""
        prefix = directory_prefix(path)
        self._stage(packfile.FRAME_PREFIX, prefix, prefix.encode(), b"")

    def move(self, source: str, destination: str) -> None:
        """Move an array or group with everything below it. The commit writes refs; no value is read or copied.

        For other transactions, a move is a deletion and a creation: one that writes below either path conflicts.

        Raises `NodeNotFoundError` if the source, or the group of the destination, does not exist; `ValueError` for the
        root, and for a destination that exists or lies inside the source; `TransactionStateError` in a transaction of
        several processes.
        """
        start, to = self._places(source, destination)
        self._check_node(self, source)
        self._reflink(start, to, None, drops=start)

    def copy(self, source: str, destination: str, at: Snapshot | None = None) -> None:
        """Copy an array or group by reference, from here or from a snapshot. Raises the errors of `move`."""
        start, to = self._places(source, destination, may_be_inside=at is not None)
        if at is not None:
            at.check_not_erased(source)
        self._check_node(self if at is None else at, source)
        if at is None and self.is_serializable:
            for key in self.keys_below(source):
                self.staged.note_read(packfile.FRAME_READ, key)
        self._reflink(start, to, at)

    def restore(self, path: str, at: Snapshot) -> None:
        """Restore everything below a path from a snapshot, by reference. If it did not exist there, delete it.

        The path may be the root. Raises `NodeNotFoundError` if the path exists neither here nor in the snapshot, and
        the errors of `move`.
        """
        prefix = directory_prefix(path)
        at.check_not_erased(path)
        is_here, was_there = self.has_keys_below(path), at.has_keys_below(path)
        if not is_here and not was_there:
            raise NodeNotFoundError(path)
        self._reflink(
            prefix, prefix, at if was_there else None, drops=prefix if is_here else None, only_drops=not was_there
        )

    def take(self, keys: Mapping[str, str], source: Snapshot) -> None:
        """Set keys by reference: each key gets the value that the named key has in a snapshot."""
        if not keys:
            return
        for key in keys:
            encode_key(key)
        self._check_may_reflink()
        own = self._own(source)
        with self._staging.turns.at_all(keys):
            self.lifecycle.write(lambda: self._staging.take(keys, own))

    def move_all(self, moves: Mapping[str, str]) -> None:
        """Move several nodes of the base at once, with everything below them.

        The groups of the destinations may be created later. If one path lies inside another, the inner node goes to its
        own destination.
        """
        for source in moves:
            self.delete_dir(source)
        for source, destination in sorted(moves.items(), key=lambda move: move[1]):
            start, to = directory_prefix(source), directory_prefix(destination)
            self._reflink(start, to, self.base)
            for inner in moves:
                if inner.startswith(start):
                    self.delete_dir(to + inner[len(start) :])

    def _places(self, source: str, destination: str, *, may_be_inside: bool = False) -> tuple[str, str]:
        start, to = directory_prefix(source), directory_prefix(destination)
        if not start or not to:
            raise ValueError(
                "the root is neither moved nor copied, and nothing takes its place: name an array or group"
            )
        if to.startswith(start) and not may_be_inside:
            raise ValueError(f"{destination!r} is {source!r}, or inside of it: choose another destination")
        if self.has_keys_below(to) or to[:-1] in self:
            raise ValueError(f"there is something at {destination!r}: delete it first, or choose another destination")
        above = to[:-1].rpartition("/")[0]
        kind = kind_of_node(self, above)
        if kind != "group" and (above or kind == "array"):
            raise NodeNotFoundError(above, "group", kind)
        return start, to

    @staticmethod
    def _check_node(view: Hierarchy, path: str) -> None:
        if kind_of_node(view, path.strip("/")) == "absent":
            raise NodeNotFoundError(path)

    def _reflink(
        self, start: str, to: str, at: Snapshot | None, *, drops: str | None = None, only_drops: bool = False
    ) -> None:
        """Stage the keys below one prefix as those below another; then delete everything below `drops`."""
        self._check_may_reflink()
        at = None if at is None else self._own(at)
        with self._staging.turns.at_all():
            self.lifecycle.write(lambda: self._staging.reflink(start, to, at, drops=drops, only_drops=only_drops))

    def _own(self, source: Snapshot) -> Snapshot:
        """Return the transaction's own snapshot of a commit, to copy from."""
        name = None if source.stored is None else source.stored.header.id
        found = self._sources.get(name)
        if found is None:  # another thread may open it at the same time
            found = self._sources.setdefault(name, self.base if source is self.base else self._snapshots.own(source))
        return found

    def _check_may_reflink(self) -> None:
        if self.members.is_named or self.members.is_participant:
            raise TransactionStateError(
                "move, copy and restore need a transaction without a name, by the process that began it: make one of "
                "its own, with repo.transaction()",
                state="foreign",
            )

    def _stage(self, kind: int, key: str, encoded: bytes, value: Buffer) -> None:
        turns = self._staging.turns
        if turns.is_slow:
            with turns.changing(key):
                self._stage_in_turn(kind, key, encoded, value)
            return
        with turns.at(key):
            turns.wait(key)
            self._stage_in_turn(kind, key, encoded, value)

    def set_chunks(self, keys: Sequence[str], batch: chunks.Batch, threads: int) -> list[int]:
        """Stage many values that a batch encodes. Return the rows that the caller has to set one by one.

        Raises the errors of `set`.
        """
        encoded = tuple([encode_key(key) for key in keys])
        with self._staging.turns.at_all(keys):
            return self.lifecycle.write(lambda: self._staging.stage_chunks(keys, encoded, batch, threads))

    def _stage_in_turn(self, kind: int, key: str, encoded: bytes, value: Buffer) -> None:
        self.lifecycle.write(lambda: self._staging.stage(kind, key, encoded, value))

    # --- the mapping face

    def __setitem__(self, key: str, value: Buffer) -> None:
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self.delete(key)

    def clear(self) -> None:
        self.delete_dir("")

    def rmdir(self, path: str = "") -> None:
        """Delete everything below a path, and the key itself (zarr 2)."""
        self.delete_dir(path)
        if path and path in self:
            self.delete(path)

    def setitems(self, values: Mapping[str, Buffer]) -> None:
        """Stage several values (zarr 2)."""
        for key, value in values.items():
            self.set(key, value)

    def __enter__(self) -> Self:
        self.enter()
        self._entered_in = os.getpid()
        return self

    def enter(self) -> None:
        """Keep other threads from ending a named transaction before this thread ends or leaves it.

        Raises `TransactionStateError` if it has ended, or if another thread is ending it.
        """
        if self.members.is_named and self.state == "open":
            self.part.enter(self._attached)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._entered_in != os.getpid():
            return  # the block was entered before a fork: the parent ends it
        if self.members.is_participant:
            if kind is None:
                self.seal()
            return
        try:
            if kind is None and self.lifecycle.may_end:
                self.commit()
        finally:
            self.rollback()

    def changes(self) -> Changes:
        """Return the staged keys, and the process that staged each."""
        found: Changes = {
            "set": [], "deleted": [], "deleted_below": [], "participants": {}, "reflinked": [], "constraints": [],
        }  # fmt: skip
        if self.state == "committed":
            return found
        self.members.follow_others()
        for key, link in self._staging.staged.items():
            found["deleted" if link.kind == packfile.FRAME_TOMBSTONE else "set"].append(key)
            found["participants"].setdefault(self.members.label(link.participant), []).append(key)
        found["deleted_below"] = [prefix.rstrip("/") for prefix in self._staging.staged.prefixes]
        found["reflinked"] = sorted(reflink.to.rstrip("/") for reflink in self.staged.reflinks)
        found["constraints"] = sorted(self._staging.constraints)
        return found

    def key_changes(self) -> Iterator[KeyChange]:
        """Yield the staged keys that differ from the base, in the order of their bytes."""
        return iter(()) if self.state == "committed" else self.staged.key_changes()

    # --- several processes

    def share(self) -> bytes | None:
        """Let other processes stage into this transaction. Return its id, or None if there is nothing to share yet."""
        with self.lifecycle.lock:
            if not self.lifecycle.may_end:
                return None
            # Under the lock: the commit must find every process that joins.
            self._staging.share()
            if not self.members.is_shared:
                return None
            self.locking.share()
            return self._staging.record.id

    def end_operation(self, operation: object, has_failed: bool) -> None:
        """Note that an operation has ended. Unless it failed, its writes count, even if this process dies afterwards.

        An `OSError` fails the transaction.
        """
        try:
            self.part.end_operation(operation, has_failed=has_failed)
        except OSError as error:
            self.lifecycle.fail(error)
            raise

    def seal(self) -> None:
        """Declare the part of this process complete, in a transaction that another process will commit (I8)."""
        if self.state == "open":
            self.part.seal()

    def leave(self) -> None:
        """Leave a named transaction, which goes on without this process."""
        if self.lifecycle.leave() not in ("open", "failed"):
            return
        self.lifecycle.finish_writes()
        try:
            self.part.leave(self._attached)
            self._finalizer.detach()  # last: an interrupt may come before
        finally:
            self.locking.release()

    def leave_block(self, *, complete: bool) -> None:
        """End the part that a participant staged in a `with` block: seal it, or give it up.

        Raises `OSError`, and `TransactionStateError` if it should be complete but a write in it has failed.
        """
        if not complete:
            self.lifecycle.fail(TransactionStateError("a `with` block was left by an exception", state="failed"))
        has_failed = self.lifecycle.leave() == "failed"
        self.lifecycle.finish_writes()
        try:
            if has_failed:
                self.part.give_up()  # again: writes were in flight
                self.part.close()
            else:
                self.part.seal()
            self.part.attached.discard(self._attached)  # another block may go on there
            self._finalizer.detach()
        finally:
            self.locking.release()
        if has_failed and complete:
            cause = self.lifecycle.cause
            raise TransactionStateError(
                f"a write of this block failed ({cause!r}): all its writes are aborted. Do the work again",
                state="failed",
            ) from cause

    # --- the end

    def rollback(self) -> None:
        """Drop all staged writes. From now on, writes of other threads and processes raise `TransactionStateError`.

        Raises `TransactionStateError` if another process has begun the transaction and will end it, or while other
        processes or threads still use a named one.
        """
        with self.part.ending():
            self.ending.roll_back()

    def commit(self, message: str | None = None, *, allow_lost: bool = False) -> Snapshot | None:
        """Publish all staged writes in one step. With `durability="fsync"`, they survive a power loss afterwards.

        Returns a snapshot of the new commit. If the writes change nothing, there is a commit only if the transaction
        has a message or properties; otherwise this returns None. Either way `unchanged` is then True.

        Raises
        ------
        ConflictError
            Another commit changed data that this transaction relies on, or several of its processes wrote the same
            keys without knowing of each other. The writes are still staged.
        ConstraintError
            The writes would break a constraint. They are still staged.
        CommitTimeoutError
            Other processes were committing for longer than the repository's `commit_timeout`. The writes are still
            staged.
        ParticipantLostError
            A process that staged into the transaction died before it was done. `allow_lost` commits its writes anyway.
        CommitUnknownError
            It is unknown whether the commit was made.
        TransactionStateError
            Writes are in flight, an earlier write failed, the transaction has ended, or another process has to commit
            it.
        OSError
            The medium failed. Nothing was published.
        """
        check_description(message, None)
        with self.part.ending():
            return self.ending.commit(message, allow_lost=allow_lost)

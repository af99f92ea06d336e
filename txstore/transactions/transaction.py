"""Transaction: a base snapshot plus staged writes, ending in commit or rollback."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypedDict, TypeVar

from txstore import processes
from txstore._native import chunks
from txstore.errors import (
    CommitUnknownError,
    ConflictError,
    CorruptionError,
    LocksUnavailableError,
    LockTimeoutError,
    NodeNotFoundError,
    TransactionStateError,
    TxStoreError,
    is_full,
    keeps_nothing,
    raise_if_full,
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
from txstore.history.publisher import LostPlaceError, SyncFailedError
from txstore.history.snapshot import Snapshot, Snapshots
from txstore.history.spare import Spare
from txstore.locks.kernel_locks import poll
from txstore.segments.runs import Located
from txstore.storage.foreign import FileVersion, canonical
from txstore.transactions import dropping
from txstore.transactions.begin import check_description
from txstore.transactions.closing import close_parts
from txstore.transactions.committer import Committer
from txstore.transactions.held_locks import TransactionLocks, Turn, deadline_of, lock_settled, remaining
from txstore.transactions.reads import NotingView
from txstore.transactions.regions import Lock
from txstore.transactions.staging import Staging
from txstore.transactions.view import Peek

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import Buffer

T = TypeVar("T")

#: Seconds after which one who waits for a lock looks again for siblings that may have left it to him.
_LOOK_AGAIN = 0.25
#: Seconds that the end of a transaction waits for writes of other threads.
TIMEOUT = 60.0

_HOW_TO_LEAVE = (
    ". A thread leaves by leaving its `with` block. A store that has staged in none has done its part when you say so "
    "(`with store: pass`), or when it and its arrays are gone (`del`)"
)


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
    deleted_below: list[str]  # paths that were cleared as a whole
    participants: dict[str, list[str]]  # which process has staged which of the keys
    reflinked: list[str]  # paths that something was moved, copied or restored to
    constraints: list[str]  # that were declared or dropped


class Transaction(Hierarchy, MutableMapping[str, bytes]):
    """Staged writes over a base snapshot, as a `MutableMapping[str, bytes]`.

    Nothing is seen by others before `commit` returns; then everything is. Reading sees what was staged. Staged values
    are in files below `.staging/`, never in memory. Any number of threads may read and write.

    As a context manager it commits on a clean exit and rolls back on an exception.

    The states: "open", then "failed" by a failed write, "committed", "rolled back", or "of unknown outcome".
    """

    def __init__(
        self,
        commits: Commits,
        snapshots: Snapshots,
        staging: Staging,
        locks: TransactionLocks | None = None,
    ) -> None:
        self.state = "open"
        self._commits = commits
        self._snapshots = snapshots
        self._staging = staging
        self.members = staging.members
        self.part = staging.part
        self.staged = staging.view  # what is staged over the base: reading it is not noted
        self.is_serializable = staging.record.isolation == SERIALIZABLE
        # What is read passes through here; `Committer` looks at `staging` itself.
        self._view = NotingView(staging.view, staging.view.note_read) if self.is_serializable else staging.view
        self._locks = locks
        staging.storage.dispatch.expect_cleanup()  # of the finalizer
        self._attached = object()  # what this counts as there
        self._finalizer = weakref.finalize(self, dropping.drop, staging, self._attached)
        self._lock = processes.new_lock()  # of state, and of what becomes of it when a write begins
        self._in_flight: set[object] = set()  # writes
        self.writes = 0  # that have begun
        self.unchanged = False  # whether its commit has changed nothing, be it that one was made for its message
        self.needs_change = False  # its message is no reason for a commit: an earlier one of the same block has it
        self._is_committing = False  # a thread is
        self._cause: BaseException | None = None
        self._sources: dict[bytes | None, Snapshot] = {}  # that something was copied from, by the ids of their commits
        self._settled: Collection[str] = ()
        self._looked_at: dict[str, FileVersion] = {}  # files that references are to, each as it was the first time
        self._entered_in = 0  # the process that a `with` block was entered in
        self._announced: int | None = None  # under which owner word siblings know that locks are parked
        staging.part.attached.add(self._attached)
        processes.watch(self)
        processes.watch_before(self)

    def before_fork(self) -> None:
        if self.state == "open" and not self.is_named:
            with suppress(OSError, TxStoreError):  # the child is told if it writes
                self.share()

    def after_fork_in_child(self) -> None:
        self._in_flight = set()  # the threads that write are the parent's
        if self._locks is not None:
            self._locks = self._locks.of_child()  # and so is what it has locked
        self._announced = None

    @property
    def base(self) -> Snapshot:
        """The snapshot that the transaction began at."""
        return self.staged.base

    @property
    def id(self) -> str:
        """32 hexadecimal digits; the id of the commit that the transaction becomes."""
        return self._staging.id.hex()

    @property
    def shared_id(self) -> bytes:
        return self._staging.id

    @property
    def is_named(self) -> bool:
        return self._staging.record.name is not None

    @property
    def isolation(self) -> str:
        """ "snapshot" or "serializable"."""
        return self._staging.record.isolation

    @property
    def is_participant(self) -> bool:
        """Whether this process stages into a transaction that another has begun, and will end."""
        self.members.follow_others()  # after a fork, it becomes one here
        return not self.members.is_owner and not self.is_named

    @property
    def staged_count(self) -> int:
        """How many keys and prefixes are set or deleted here, and constraints declared, and not committed."""
        return 0 if self.state == "committed" else self._staging.count

    @property
    def version(self) -> Hashable:
        """What tells what is staged from what was staged before; None if nothing is."""
        return self.staged.version if self.staged_count else None

    @property
    def constraints(self) -> Constraints:
        """What has to be so at every commit, by name: see `Repository.constraints`.

        What is set or deleted is declared, or dropped, by the commit that this transaction becomes.
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
        if self.is_named or self.is_participant:
            raise TransactionStateError(
                "constraints are declared in a transaction without a name, by the process that began it: "
                "repo.constraints[...] = ... makes one",
                state="foreign",
            )
        written = None if constraint is None else declarations.encode(constraint.settled(self.staged))
        changes = {**self._staging.constraints, name: written}
        declarations.changed(changes, self.base.written_constraints)  # says now if it is too much
        with self._lock:
            self._check_open()
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
        """Return where the base has many values, as `Snapshot.locate` does; None to a serializable transaction."""
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
        """Have the values of keys that the base has at hand, as `Snapshot.fetch` does. Counts as no read."""
        self.base.fetch(keys)

    def rely_on_base(self, key: str) -> None:
        """Count a key as read: an array object holds what it was in an earlier transaction."""
        self.staged.note_read(packfile.FRAME_READ, key)

    # --- writing

    def set(self, key: str, value: Buffer) -> None:
        """Stage a value. It is copied before this returns. Of consolidated metadata, a mark is staged.

        Raises `KeyFormatError` for an impossible key; any `OSError` fails the transaction until `rollback`.
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
        """Stage a value that stays where it is: `length` bytes at `offset` of a file, by default all from there on.

        The file has to lie below one of the repository's `sources`. What it is now is noted, or what is known of it:
        its `size` in bytes, and its `version`: what its file system calls an etag, or the time of its last change.
        When the value is read, both must be the same still.

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

        `change` gets the value, None if there is none, and returns the new one, None to delete it, which counts as
        writing the whole. It must not use the transaction. What it raises goes to the caller, and nothing is staged.

        `region` is what is written of a chunk, in the chunk's own coordinates. Then the commit merges the chunk with
        what others have written of it elsewhere, and what `change` gets does not count as read (I5).
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
                self._write(lambda: self._staging.stage_part(key, encoded, part, known, region))

    def delete_dir(self, path: str) -> None:
        """Stage the deletion of everything below a path: one entry, however many keys there are."""
        prefix = directory_prefix(path)
        self._stage(packfile.FRAME_PREFIX, prefix, prefix.encode(), b"")

    def move(self, source: str, destination: str) -> None:
        """Move an array or group, with all below it: refs are written at the commit, no value is read or copied.

        To others it is a deletion and a creation: a transaction that writes below either path meanwhile is in conflict.

        Raises `NodeNotFoundError` if there is nothing, or no group to move it to; `ValueError` for the root, for a
        destination that exists or lies inside; `TransactionStateError` in a transaction of several processes.
        """
        start, to = self._places(source, destination)
        self._check_node(self, source)
        self._reflink(start, to, None, drops=start)

    def copy(self, source: str, destination: str, at: Snapshot | None = None) -> None:
        """Copy an array or group, as it is here or in a snapshot, as `move` moves it. Raises what `move` does."""
        start, to = self._places(source, destination, may_be_inside=at is not None)
        if at is not None:
            at.check_not_erased(source)
        self._check_node(self if at is None else at, source)
        if at is None and self.is_serializable:
            for key in self.keys_below(source):
                self.staged.note_read(packfile.FRAME_READ, key)
        self._reflink(start, to, at)

    def restore(self, path: str, at: Snapshot) -> None:
        """Make all below a path as it was in a snapshot, or delete it, if it was not there, as `move` moves it.

        Raises `NodeNotFoundError` if there is nothing then and now, and what `move` does. The root is restored, too.
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
        """Let each key be what another, or the same, is in a snapshot: refs are written, as `move` writes them."""
        if not keys:
            return
        for key in keys:
            encode_key(key)
        self._check_may_reflink()
        own = self._own(source)
        with self._staging.turns.at_all(keys):
            self._write(lambda: self._staging.take(keys, own))

    def move_all(self, moves: Mapping[str, str]) -> None:
        """Move nodes, with all below them, all at once, as they are in what the transaction is based on.

        Groups above them may be made later. Of two paths that are one inside the other, the inner one is moved from
        there to where it is to be.
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
        """Stage what is below one prefix below another, `drops` deleted after it was looked at."""
        self._check_may_reflink()
        at = None if at is None else self._own(at)
        with self._staging.turns.at_all():
            self._write(lambda: self._staging.reflink(start, to, at, drops=drops, only_drops=only_drops))

    def _own(self, source: Snapshot) -> Snapshot:
        """Return the transaction's own snapshot of a commit that something is copied from."""
        name = None if source.stored is None else source.stored.header.id
        found = self._sources.get(name)
        if found is None:  # another thread may be about to open it, too
            found = self._sources.setdefault(name, self.base if source is self.base else self._snapshots.own(source))
        return found

    def _check_may_reflink(self) -> None:
        if self.is_named or self.is_participant:
            raise TransactionStateError(
                "move, copy and restore need a transaction without a name, by the process that began it: make one of "
                "its own, with repo.transaction()",
                state="foreign",
            )

    def _stage(self, kind: int, key: str, encoded: bytes, value: Buffer) -> None:
        turns = self._staging.turns
        if self._staging.storage.is_remote:  # it may take as long as an upload, for which no other key has to wait
            with turns.changing(key):
                self._stage_in_turn(kind, key, encoded, value)
            return
        with turns.at(key):
            turns.wait(key)
            self._stage_in_turn(kind, key, encoded, value)

    def set_chunks(self, keys: Sequence[str], batch: chunks.Batch, threads: int) -> list[int]:
        """Stage many values, as a batch encodes them; return which rows have to be set one by one.

        Raises what `set` does.
        """
        encoded = tuple([encode_key(key) for key in keys])
        with self._staging.turns.at_all(keys):
            return self._write(lambda: self._staging.stage_chunks(keys, encoded, batch, threads))

    def _stage_in_turn(self, kind: int, key: str, encoded: bytes, value: Buffer) -> None:
        self._write(lambda: self._staging.stage(kind, key, encoded, value))

    def _write(self, stage: Callable[[], T]) -> T:
        write = object()
        try:  # before it counts: an interrupt may come between any two calls
            with self._lock:
                if self.state != "open":
                    self._check_open()
                self._in_flight.add(write)
                self.writes += 1
            try:
                return stage()
            except BaseException as error:
                self.fail(error)
                raise_if_full(error)
                raise
        finally:
            self._in_flight.discard(write)

    def fail(self, error: BaseException) -> None:
        """Refuse everything but `rollback` from now on: what is half done must not be committed (I6)."""
        with self._lock:
            if self.state == "open":
                self.state, self._cause = "failed", error
                self._staging.let_go()
            self.part.has_failed = True
            if not (isinstance(error, TransactionStateError) and error.state in ("committing", "ended")):
                self.part.give_up()  # else it came too late, and what was staged before is the commit's to judge

    def _check_open(self) -> None:
        if self.state == "failed" and self.part.has_given_up:
            raise TransactionStateError(
                f"an earlier write failed here ({self._cause!r}), and what this process had staged since it began that "
                "work is given up: do it again, all of it, in a new `with store:` block",
                state=self.state,
            ) from self._cause
        if self.state == "failed":
            raise TransactionStateError(
                f"an earlier write of this transaction failed ({self._cause!r}): call rollback(), then write again",
                state=self.state,
            ) from self._cause
        if self.state != "open":
            raise TransactionStateError(
                f"this transaction is {self.state}: begin a new one with repo.transaction()", state=self.state
            )

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
        """Keep other threads from ending a transaction with a name before this one ends or leaves it.

        Raises `TransactionStateError` if it has ended, or is being ended.
        """
        if self.is_named and self.state == "open":
            self.part.enter(self._attached)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._entered_in != os.getpid():
            return  # the block was entered before a fork: it is the parent's to end
        if self.is_participant:
            if kind is None:
                self.seal()
            return
        try:
            if kind is None and self.state in ("open", "failed"):
                self.commit()
        finally:
            self.rollback()

    def changes(self) -> Changes:
        """Return what is staged, and by whom."""
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

    @property
    def settled(self) -> Collection[str]:
        """The keys of which the commit has put together what is staged and what others had committed."""
        return self._settled

    def key_changes(self) -> Iterator[KeyChange]:
        """Yield the keys that are staged and differ from the base, in the order of their bytes."""
        return iter(()) if self.state == "committed" else self.staged.key_changes()

    # --- several processes

    def share(self) -> bytes | None:
        """Let other processes stage into this transaction; return its id, None if there is nothing to share yet."""
        with self._lock:
            if self.state not in ("open", "failed"):
                return None
            # Under the lock: who joins now must be found by the commit.
            self._staging.share()
            if not self.members.is_shared:
                return None
            if self._locks is not None and self._announced is None and self.members.is_owner:
                with suppress(LocksUnavailableError):
                    self._locks.share()  # siblings may take turns with what is locked; others still wait
                    self._announce_locked(self._locks)
            return self._staging.id

    def end_operation(self, operation: object, has_failed: bool) -> None:
        """Note that an operation has ended: unless it has failed, what it has staged counts, even if its process dies
        then.

        Raises `OSError`, which fails the transaction.
        """
        try:
            self.part.end_operation(operation, has_failed=has_failed)
        except OSError as error:
            self.fail(error)
            raise

    def seal(self) -> None:
        """Say that this process has done its part of a transaction that another process will commit (I8)."""
        if self.state == "open":
            self.part.seal()

    def leave(self) -> None:
        """Leave a transaction with a name, which goes on without this process."""
        with self._lock:
            if self.state not in ("open", "failed"):
                return
            self.state = "left"
        self._finish_writes()
        try:
            self.part.leave(self._attached)
            self._finalizer.detach()  # not before: an interrupt may have come
        finally:
            self._release_locks()

    def leave_block(self, *, complete: bool) -> None:
        """End the part of a `with` block of a participant: seal it, or give it up.

        Raises `TransactionStateError` if it was to be complete, and a write has failed in it, and `OSError`.
        """
        error = TransactionStateError("a `with` block was left by an exception", state="failed")
        if not complete:
            self.fail(error)
        with self._lock:
            failed, self.state = self.state == "failed", "left"
        self._finish_writes()
        try:
            if failed:
                self.part.give_up()  # also what was in flight
                self.part.close()
            else:
                self.part.seal()
            self.part.attached.discard(self._attached)  # another block may go on there
            self._finalizer.detach()
        finally:
            self._release_locks()
        if failed and complete:
            raise TransactionStateError(
                f"a write of this block failed ({self._cause!r}): all that it has staged is given up; do it again",
                state="failed",
            ) from self._cause

    # --- locks

    def lock(self, turns: list[Turn], lock: Lock, timeout: float | None) -> Sequence[str]:
        """Lock what `lock` covers, for this thread, until `unlock` or the end of the transaction; return dirty keys.

        What is taken is added to `turns` first: whatever is raised, `unlock` gives it up. `timeout` is in seconds, None
        for ever, 0 to try. Raises `ConflictError` if one of the keys was changed by another commit since the base, and
        what `keys_to_lock` and `TransactionLocks.acquire` raise.
        """
        with self._lock:
            self._check_open()
        if self._locks is None:
            raise LookupError("this transaction was made without locks")
        locks, dirty = self._locks, list[str]()

        def take(keys: Collection[str], timeout: float | None) -> None:
            turns.append(Turn(locks, keys, may_pass=timeout is not None and timeout <= 0))
            dirty.extend(self._take(locks, turns[-1], timeout))

        lock_settled(self._versioned, lock, take, lambda: self.unlock(turns), deadline_of(timeout))
        if changed := self._changed_by_commits(key for turn in turns for key in turn.slots):
            reason = "another commit changed these keys since this transaction began"
            raise ConflictError(changed, reason=reason, base=self.base.commit)
        return dirty

    def _versioned(self) -> tuple[Peek, Hashable]:
        """Return what selections are resolved on, with what siblings have staged by now."""
        self.members.follow_others()
        return Peek(self.staged), self.staged.version

    def _take(self, locks: TransactionLocks, turn: Turn, timeout: float | None) -> Sequence[str]:
        """Lock keys. What siblings have left may be taken; they may join, and leave locks, while this waits."""
        deadline = deadline_of(timeout)
        locks.take_turn(turn, timeout)
        while True:
            self.members.follow_others()
            left = remaining(deadline)
            last = not self.members.is_shared or (left is not None and left <= _LOOK_AGAIN)
            try:
                dirty = locks.acquire_turn(turn, left if last else _LOOK_AGAIN, self.members.siblings.parked_locks())
            except LockTimeoutError:
                if last:
                    raise
            else:
                self._announce(locks)
                return dirty

    def _announce(self, locks: TransactionLocks) -> None:
        """Let siblings know under which owner word this process leaves locks to them."""
        with self._lock:
            if self.state in ("open", "failed"):
                self._announce_locked(locks)

    def _announce_locked(self, locks: TransactionLocks) -> None:
        parked = locks.parked
        if self.members.is_shared and parked is not None and parked != self._announced:
            operation = object()  # of its own: what comes after a seal undoes it
            try:
                self.part.seals.begin_operation(operation)
                self.part.announce(parked)
            finally:
                self.part.end_operation(operation, has_failed=False)
            self._announced = parked

    def overtaken(self) -> list[str]:
        """Return the keys staged here that other commits have changed since the base: most of them are conflicts."""
        self.members.follow_others()
        return self._changed_by_commits(key for key, _ in self._staging.staged.items())

    def _changed_by_commits(self, keys: Iterable[str]) -> list[str]:
        if not self._commits.identity.exists():
            return []
        head = self._snapshots.newest(self._staging.record.branch)
        if head.seq <= self.base.seq:
            return []
        recent = head.runs.newer(self.base.seq)
        found = ((key, recent.lookup(key.encode())) for key in keys)
        return [key for key, entry in found if entry is not None and entry.seq > self.base.seq]

    def unlock(self, turns: list[Turn]) -> None:
        """Let siblings of this transaction, and other threads, have the locks; others get them only at its end."""
        while turns:
            if turns[-1].locks is self._locks:  # else they are of the process that this one was forked from
                turns[-1].locks.end_turn(turns[-1], self.members.siblings.locks_of(0))
            turns.pop()

    def _release_locks(self) -> None:
        if self._locks is not None:
            self._locks.close()

    # --- the end

    def rollback(self) -> None:
        """Drop what is staged. Late writes of other threads, and processes, raise `TransactionStateError` from now on.

        Raises `TransactionStateError` if the transaction is another process's to end, or, if it has a name, while other
        processes are attached to it, or others of this process at work.
        """
        with self.part.ending():
            self._rollback()

    def _rollback(self) -> None:
        spare = Spare(self._commits, self._staging.record.branch)
        try:
            self._roll_back(spare)
        finally:
            spare.restore()

    def _roll_back(self, spare: Spare) -> None:
        if self.state == "committing" and not self._is_committing:  # an interrupt came while a commit was given up
            self.state = "of unknown outcome" if self._staging.is_unsettled else "failed"
        if self.state in ("open", "failed"):
            self._check_may_end("rolled back")
            if self.is_named:
                try:
                    self._close_to_all("rolled back")
                except OSError as error:
                    if not is_full(error):
                        raise
                    # To end it takes two small files on an object store, and then much is deleted.
                    spare.delete_head_cache()
                    spare.delete_guard()
                    self._close_to_all("rolled back")
        with self._lock:
            if self.state in ("open", "failed"):
                self.state = "rolled back"
        if self.state == "rolled back":
            self._finish_writes()
            self._staging.discard()
            self._finalizer.detach()
        if not self._is_committing:
            # Also after a commit that an interrupt has kept from doing so: an error that somebody keeps may keep this.
            self._release_locks()

    def _finish_writes(self) -> None:
        """Wait for writes of other threads that are in flight. No more begin."""
        if self._in_flight and not poll(lambda: not self._in_flight, time.monotonic() + TIMEOUT):
            raise TransactionStateError(
                f"{len(self._in_flight)} writes of other threads are in flight after {TIMEOUT:.0f} s: wait for these "
                "threads, then try again",
                state=self.state,
            )

    def _check_may_end(self, how: str) -> None:
        if self.is_participant:
            raise TransactionStateError(
                f"this transaction is {how} by the process that began it: here, just return", state="foreign"
            )
        self._check_alone(how)

    def _check_alone(self, how: str) -> None:
        if not self.is_named:
            return
        here = self.part.others_at_work()
        others = here or self.part.others_alive()
        if others:
            raise TransactionStateError(
                f"{self._staging.record.name!r} can be {how} when all have left: {', '.join(others)} may still stage "
                f"into it{_HOW_TO_LEAVE if here else ''}",
                state="open",
            )

    def _close_to_all(self, how: str) -> None:
        """Stop all staging. Raises `TransactionStateError` if another process has ended it, or joined meanwhile."""
        self.members.close_to_all()
        try:
            self._check_alone(how)
        except BaseException:
            self.members.reopen()
            raise

    def commit(self, message: str | None = None, *, allow_lost: bool = False) -> Snapshot | None:
        """Publish everything staged, in one step; with `durability="fsync"` it survives power loss from then on.

        Returns a snapshot of the new commit. A transaction that has a message or properties makes one even if it
        changes nothing. Another one that changes nothing makes none: this returns None. Either way `unchanged` is True
        then.

        Raises
        ------
        ConflictError
            Somebody else committed what this transaction relies on, or several of its processes wrote the same keys
            without knowing of each other; what is staged is still there.
        ConstraintError
            What is staged would break a constraint; it is still there.
        CommitTimeoutError
            Others were committing for longer than the repository's `commit_timeout`; it is still there.
        ParticipantLostError
            A process that staged into it died before it was done; `allow_lost` takes what it has staged.
        CommitUnknownError
            It can't be told whether the commit was made.
        TransactionStateError
            Writes are in flight, an earlier write failed, the transaction has ended, or it is another process's to
            commit.
        OSError
            The medium failed; nothing was published.
        """
        check_description(message, None)
        with self.part.ending():
            return self._commit(message, allow_lost=allow_lost)

    @keeps_nothing
    def _commit(self, message: str | None, *, allow_lost: bool) -> Snapshot | None:
        if self.state == "open":
            self._check_may_end("committed")
        result, record = None, self._staging.record
        told = record.message if message is None else message
        is_wanted = not self.needs_change and bool(told or record.properties)
        committer, stored, is_begun = None, None, False
        try:
            with self._lock:
                self._check_open()
                if self._in_flight:
                    raise TransactionStateError(
                        f"{len(self._in_flight)} writes are in flight: wait for the threads that write, then commit",
                        state="open",
                    )
                self.state, self._is_committing, is_begun = "committing", True, True
            close_parts(self.part, self.staged, allow_lost=allow_lost)
            self._check_alone("committed")  # again: now no process can join any more
            # A merge is a commit, be it of no change.
            if self.staged_count or is_wanted or self._staging.other_parent is not None:
                arguments = self._commits, self._snapshots, self._staging, self._locks, told or "", is_wanted
                committer = Committer(*arguments)
                self._staging.is_unsettled = True
                try:
                    stored = committer.run()
                except LostPlaceError:
                    committer = Committer(*arguments, in_line=False)
                    stored = committer.run()
                if stored is not None:
                    result = self._snapshots.made(stored, committer.head)
                    self._settled = frozenset(committer.merges.settled or ())
        except SyncFailedError as error:
            self._go_on(committer)
            self.fail(error.cause)  # I9: never retried as if the data were still there
            raise_if_full(error.cause)
            raise error.cause from None
        except BaseException as error:
            if not is_begun:
                raise
            if committer is None or not committer.proposed:
                self._go_on(committer)
                raise_if_full(error)
                raise
            # I2: also after an interrupt, what may stand in a version is never written again. I3: nothing is deleted.
            self.state = "of unknown outcome"
            if isinstance(error, OSError | CorruptionError):
                raise CommitUnknownError(self.id, reason=f"it can't be read back ({error})") from error
            raise
        finally:
            if is_begun:
                self._is_committing = False
        self.state = "committed"
        self.unchanged = committer is None or committer.changes_nothing
        try:
            self._staging.settle(self.base if result is None else result)
        finally:
            self._finalizer.detach()
            self._release_locks()
        if stored is not None and result is not None:
            self._commits.compaction_outputs.begin(stored, result.runs_named)
        return result

    def _go_on(self, committer: Committer | None) -> None:
        """Be as if no commit had been tried."""
        try:
            if committer is not None:
                committer.withdraw_packs()
            with suppress(OSError):
                self.members.reopen()
        finally:
            self._staging.is_unsettled = False
            self.state = "open"

"""Transaction: a base snapshot plus staged writes, ending in commit or rollback."""

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
        self._snapshots = snapshots
        self._staging = staging
        self.members = staging.members
        self.part = staging.part
        self.staged = staging.view  # what is staged over the base: reading it is not noted
        self.is_serializable = staging.record.isolation == SERIALIZABLE
        # What is read passes through here; `Committer` looks at `staging` itself.
        self._view = NotingView(staging.view, staging.view.note_read) if self.is_serializable else staging.view
        staging.storage.dispatch.expect_cleanup()  # of the finalizer
        self._attached = object()  # what this counts as there
        self._finalizer = weakref.finalize(self, dropping.drop, staging, self._attached)
        self.lifecycle = Lifecycle(staging)
        self.locking = Locking(commits, snapshots, staging, self.lifecycle, locks)
        self.ending = Ending(commits, snapshots, staging, self.lifecycle, self.locking, self._finalizer.detach)
        self._sources: dict[bytes | None, Snapshot] = {}  # that something was copied from, by the ids of their commits
        self._looked_at: dict[str, FileVersion] = {}  # files that references are to, each as it was the first time
        self._entered_in = 0  # the process that a `with` block was entered in
        staging.part.attached.add(self._attached)
        processes.watch_before(self)

    def before_fork(self) -> None:
        if self.state == "open" and not self.members.is_named:
            with suppress(OSError, TxStoreError):  # the child is told if it writes
                self.share()

    @property
    def state(self) -> str:
        """The state in this process: see `Lifecycle`."""
        return self.lifecycle.state

    @property
    def unchanged(self) -> bool:
        """Whether the commit has changed nothing, be it that one was made for its message."""
        return self.ending.unchanged

    @property
    def base(self) -> Snapshot:
        """The snapshot that the transaction began at."""
        return self.staged.base

    @property
    def id(self) -> str:
        """32 hexadecimal digits; the id of the commit that the transaction becomes."""
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
        if self.members.is_named or self.members.is_participant:
            raise TransactionStateError(
                "constraints are declared in a transaction without a name, by the process that began it: "
                "repo.constraints[...] = ... makes one",
                state="foreign",
            )
        written = None if constraint is None else declarations.encode(constraint.settled(self.staged))
        changes = {**self._staging.constraints, name: written}
        declarations.changed(changes, self.base.written_constraints)  # says now if it is too much
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
                self.lifecycle.write(lambda: self._staging.stage_part(key, encoded, part, known, region))

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
            self.lifecycle.write(lambda: self._staging.take(keys, own))

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
            self.lifecycle.write(lambda: self._staging.reflink(start, to, at, drops=drops, only_drops=only_drops))

    def _own(self, source: Snapshot) -> Snapshot:
        """Return the transaction's own snapshot of a commit that something is copied from."""
        name = None if source.stored is None else source.stored.header.id
        found = self._sources.get(name)
        if found is None:  # another thread may be about to open it, too
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
        """Keep other threads from ending a transaction with a name before this one ends or leaves it.

        Raises `TransactionStateError` if it has ended, or is being ended.
        """
        if self.members.is_named and self.state == "open":
            self.part.enter(self._attached)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._entered_in != os.getpid():
            return  # the block was entered before a fork: it is the parent's to end
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

    def key_changes(self) -> Iterator[KeyChange]:
        """Yield the keys that are staged and differ from the base, in the order of their bytes."""
        return iter(()) if self.state == "committed" else self.staged.key_changes()

    # --- several processes

    def share(self) -> bytes | None:
        """Let other processes stage into this transaction; return its id, None if there is nothing to share yet."""
        with self.lifecycle.lock:
            if not self.lifecycle.may_end:
                return None
            # Under the lock: who joins now must be found by the commit.
            self._staging.share()
            if not self.members.is_shared:
                return None
            self.locking.share()
            return self._staging.record.id

    def end_operation(self, operation: object, has_failed: bool) -> None:
        """Note that an operation has ended: unless it has failed, what it has staged counts, even if its process dies
        then.

        Raises `OSError`, which fails the transaction.
        """
        try:
            self.part.end_operation(operation, has_failed=has_failed)
        except OSError as error:
            self.lifecycle.fail(error)
            raise

    def seal(self) -> None:
        """Say that this process has done its part of a transaction that another process will commit (I8)."""
        if self.state == "open":
            self.part.seal()

    def leave(self) -> None:
        """Leave a transaction with a name, which goes on without this process."""
        if self.lifecycle.leave() not in ("open", "failed"):
            return
        self.lifecycle.finish_writes()
        try:
            self.part.leave(self._attached)
            self._finalizer.detach()  # not before: an interrupt may have come
        finally:
            self.locking.release()

    def leave_block(self, *, complete: bool) -> None:
        """End the part of a `with` block of a participant: seal it, or give it up.

        Raises `TransactionStateError` if it was to be complete, and a write has failed in it, and `OSError`.
        """
        if not complete:
            self.lifecycle.fail(TransactionStateError("a `with` block was left by an exception", state="failed"))
        has_failed = self.lifecycle.leave() == "failed"
        self.lifecycle.finish_writes()
        try:
            if has_failed:
                self.part.give_up()  # also what was in flight
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
                f"a write of this block failed ({cause!r}): all that it has staged is given up; do it again",
                state="failed",
            ) from cause

    # --- the end

    def rollback(self) -> None:
        """Drop what is staged. Late writes of other threads, and processes, raise `TransactionStateError` from now on.

        Raises `TransactionStateError` if the transaction is another process's to end, or, if it has a name, while other
        processes are attached to it, or others of this process at work.
        """
        with self.part.ending():
            self.ending.roll_back()

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
            return self.ending.commit(message, allow_lost=allow_lost)

"""Stages the writes of one transaction over a base snapshot, and ends it by a commit or a rollback."""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from txstore._native import chunks
from txstore.commit import Commit
from txstore.deriving import declared
from txstore.deriving.declared import Backfill
from txstore.deriving.definitions import ViewDefinition
from txstore.errors import (
    NodeNotFoundError,
    TransactionStateError,
    keeps_nothing,
)
from txstore.format import encoding, packfile, row_moves
from txstore.format.chunk_moves import ChunkMoves
from txstore.format.commitfile import Declarations
from txstore.format.consolidated import mark_for, may_be_consolidated
from txstore.format.constraints import Constraint
from txstore.format.cursors import check_cursor
from txstore.format.documents import kind_of_node
from txstore.format.keys import (
    DOCUMENT_NAMES,
    after_prefix,
    ancestors,
    directory_prefix,
    document_key,
    encode_key,
    is_document,
)
from txstore.format.mapping import Hierarchy
from txstore.format.records import SERIALIZABLE, SNAPSHOT, TransactionRecord
from txstore.format.regions import Region
from txstore.history import declarations
from txstore.history.changes import KeyChange
from txstore.history.commits import Commits
from txstore.history.declarations import Constraints, Cursors
from txstore.history.snapshot import Snapshot, Snapshots
from txstore.segments.pack_writer import FrameBatch, Frames
from txstore.segments.runs import Located
from txstore.storage.commit_lock import this_user
from txstore.storage.foreign_values import FileVersion, canonical
from txstore.transactions import commit as ending
from txstore.transactions.held_locks import TransactionLocks
from txstore.transactions.lifecycle import Lifecycle
from txstore.transactions.reads import NotingView
from txstore.transactions.staging import Staging

if TYPE_CHECKING:
    from typing import Self

    import numpy.typing as npt
    from typing_extensions import Buffer


Kind = Literal["constraints", "views", "cursors"]


class StagedDeclarations:
    """Reads and changes the declarations of a transaction."""

    def __init__(self, staging: Staging, lifecycle: Lifecycle) -> None:
        self.staging = staging
        self.url = staging.storage.url
        self._lifecycle = lifecycle

    def now(self) -> Declarations:
        """Return what the transaction would hand on, or what it has handed on."""
        committed = self.staging.view.committed
        return self._with(Declarations()) if committed is None else committed.declared

    def check_may_declare(self, told: str) -> None:
        """Raise `TransactionStateError` in a transaction of several processes: only the one that began it knows."""
        if self.staging.members.is_named or self.staging.members.is_participant:
            raise TransactionStateError(told, state="foreign")

    def after(self, kind: Kind, name: str, written: Mapping[str, Any] | None) -> Declarations:
        """Return what the transaction would hand on if a name were set, or dropped: None.

        Raises `ValueError` if it is too long.
        """
        return self._with(Declarations(**{kind: {name: written}}))

    def set(self, kind: Kind, name: str, written: Mapping[str, Any] | None) -> None:
        """Set a name, or drop it: None. Raises `ValueError` now, not at the commit, if it is too long."""
        self.after(kind, name, written)
        with self._lifecycle.guard:
            self._lifecycle.check_open()
            getattr(self.staging.declared, kind)[name] = written

    def _with(self, more: Declarations) -> Declarations:
        base = self.staging.view.base.declared
        return declarations.changed(more, declarations.changed(self.staging.declared, base))


def constraints_of(staged: StagedDeclarations) -> Constraints:
    """Return the constraints of a transaction, to read and to change."""

    def read() -> Mapping[str, Constraint]:
        return declarations.decode_constraints(staged.url, staged.now().constraints)

    def declare(name: str, constraint: Constraint | None) -> None:
        staged.check_may_declare(
            "constraints are declared in a transaction without a name, by the process that began it: "
            "repo.constraints[...] = ... makes one"
        )
        settled = None if constraint is None else constraint.settled(staged.staging.view)
        staged.set("constraints", name, None if settled is None else declarations.encode_constraint(settled))

    return Constraints(read, declare)


def cursors_of(staged: StagedDeclarations) -> Cursors:
    """Return the cursors of a transaction, to read and to move."""

    def read() -> Mapping[str, Any]:
        return copy.deepcopy(dict(staged.now().cursors))

    def declare(name: str, cursor: Mapping[str, Any] | None) -> None:
        staged.check_may_declare(
            "feeds are moved in a transaction without a name, by the process that began it: "
            "begin one with repo.transaction()"
        )
        written = None if cursor is None else json.loads(json.dumps(dict(cursor)))
        if written is not None:
            check_cursor(name, written)
        staged.set("cursors", name, written)

    return Cursors(read, declare)


class StagedViews:
    """Reads and declares the views of a transaction. `Repository.views` documents them."""

    def __init__(self, staged: StagedDeclarations) -> None:
        self._staged = staged

    def read(self) -> Mapping[str, ViewDefinition]:
        return declared.decode(self._staged.url, self._staged.now().views)

    def declare(self, name: str, view: ViewDefinition | None) -> None:
        """Declare a view, or drop it if it is None. Raises `ValueError` if it does not go with the others."""
        self._staged.check_may_declare(
            "views are declared in a transaction without a name, by the process that began it: "
            "repo.views[...] = ... makes one"
        )
        written = None if view is None else declared.encode(view)
        declared.ordered(declared.decode(self._staged.url, self._staged.after("views", name, written).views))
        self._staged.set("views", name, written)

    def bring_to(self, name: str, done: Commit | Backfill) -> None:
        """Say that the outputs of a view are, after this transaction, what it makes of its sources at a commit.

        Or how much of that they are.
        """
        self._staged.set("views", name, declared.encode(self.read()[name], done))


#: Bytes of message and properties together, as JSON, at most: docs/understand/format.md, "Bounds".
MAX_DESCRIPTION = 1 << 20
_DURABILITIES = ("fsync", "none")


def check_description(message: str | None, properties: Mapping[str, Any] | None) -> None:
    """Raise `TypeError` or `ValueError` if a commit can't store these: before the work is done, not after."""
    if message is not None:
        if not isinstance(message, str):
            raise TypeError(f"a commit's message is a string, not {type(message).__name__}")
        try:
            message.encode()
        except UnicodeEncodeError:
            raise ValueError(f"the message {message!r} has a lone surrogate: it can't be stored as UTF-8") from None
    length = len(json.dumps(message)) if message else 0
    if properties:
        try:
            written = json.dumps(dict(properties), sort_keys=True).encode()
            encoding.json_object(written)  # every reader of the commit decodes it like this
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"a commit's properties are a JSON object: {error}") from error
        length += len(written)
    if length > MAX_DESCRIPTION:
        raise ValueError(
            f"message and properties of a commit have {length} bytes together, and at most {MAX_DESCRIPTION} are "
            "possible: every process that opens it reads them. Put larger data into attributes, or an array"
        )


def check_durability(durability: str) -> None:
    """Raise `ValueError` for an unknown durability."""
    if durability not in _DURABILITIES:
        raise ValueError(f"durability is one of {_DURABILITIES}, not {durability!r}")


def check_joinable(record: TransactionRecord, isolation: str) -> None:
    """Raise `TransactionStateError` if a transaction has less isolation than the joining process asks for."""
    if isolation == SERIALIZABLE != record.isolation:
        raise TransactionStateError(
            f"{record.name!r} was begun with isolation={record.isolation!r}, and what was read in it is not known: "
            "join it without isolation=, or commit it and begin another",
            state="open",
        )


def new_record(
    base: Snapshot,
    branch: str,
    durability: str,
    message: str | None,
    properties: Mapping[str, Any] | None,
    name: str | None = None,
    isolation: str = SNAPSHOT,
) -> TransactionRecord:
    """Return the record of a transaction that this process begins, from checked arguments."""
    return TransactionRecord(
        id=os.urandom(16),
        branch=branch,
        base=None if base.stored is None else (base.stored.header.version, base.stored.header.id.hex()),
        name=name,
        message=message,
        properties=dict(properties or {}),
        durability=durability,
        owner=f"{this_user()} {os.getpid()}",
        time=time.time_ns() // 1000,
        isolation=isolation,
    )


#: Number of references that are staged at once: few enough that other writes need not wait long.
_REFERENCES = 1 << 14


def _of_document(key: str) -> ValueError:
    return ValueError(f"{key!r} is a metadata document: store its bytes, not a reference to them")


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
    reflinked: list[str]  # destinations of moves, copies and restores; where chunks have moved
    constraints: list[str]  # that were declared or dropped


class Transaction(Hierarchy, MutableMapping[str, bytes]):
    """Staged writes over a base snapshot, as a `MutableMapping[str, bytes]`.

    Before `commit` returns, other readers see none of the writes; afterwards they see all of them. This mapping reads
    its own writes. Staged values lie in files below `.staging/`, never in memory. Any number of threads may use it.

    As a context manager it commits on a clean exit and rolls back on an exception. `nodes` moves, copies and restores
    arrays and groups by reference; `lifecycle` lets other processes join, and ends this process's part.

    States: "open"; "failed" after a failed write; "committed"; "rolled back"; "of unknown outcome".
    """

    def __init__(
        self,
        commits: Commits,
        snapshots: Snapshots,
        staging: Staging,
        locks: TransactionLocks | None = None,
    ) -> None:
        self.staging = staging
        self.members = staging.members
        self.part = staging.part
        self.staged = staging.view  # the staged writes over the base, for reads that are not noted
        self.is_serializable = staging.record.isolation == SERIALIZABLE
        # Reads of the user go through this view, which notes them in a serializable transaction.
        self._view = NotingView(staging.view, staging.view.note_read) if self.is_serializable else staging.view
        self.lifecycle = Lifecycle(self, commits, snapshots, staging, locks)
        self.nodes = NodeCopies(snapshots, staging, self.lifecycle, self._view)
        self._looked_at: dict[str, FileVersion] = {}  # referenced files, each as first seen
        self._entered_in = 0  # the process that entered the `with` block

    @property
    def state(self) -> str:
        """The state in this process: see `Lifecycle`."""
        return self.lifecycle.state

    @property
    def base(self) -> Snapshot:
        """The snapshot that the transaction started from."""
        return self.staged.base

    @property
    def id(self) -> str:
        """The id of the transaction, and of the commit that it becomes: 32 hexadecimal digits."""
        return self.staging.record.id.hex()

    @property
    def shared_id(self) -> bytes:
        return self.staging.record.id

    @property
    def branch(self) -> str:
        """The id of the branch to commit to."""
        return self.staging.record.branch

    @property
    def isolation(self) -> str:
        """ "snapshot" or "serializable"."""
        return self.staging.record.isolation

    @property
    def unchanged(self) -> bool:
        """Whether the commit changed no value. It may exist all the same, for its message."""
        return self.lifecycle.unchanged

    @property
    def staged_count(self) -> int:
        """Number of staged keys, prefixes and constraints, as long as they are not committed."""
        return 0 if self.state == "committed" else self.staging.count

    @property
    def version(self) -> Hashable:
        """A value that changes whenever the staged writes change. None if nothing is staged."""
        return self.staged.version if self.staged_count else None

    @property
    def constraints(self) -> Constraints:
        """The conditions that every commit keeps, by name: see `Repository.constraints`.

        The commit of this transaction declares the constraints that are set here, and drops those that are deleted.
        """
        return constraints_of(StagedDeclarations(self.staging, self.lifecycle))

    @property
    def views(self) -> StagedViews:
        """The views, to read and to declare. `TxStore.views` makes their outputs, too."""
        return StagedViews(StagedDeclarations(self.staging, self.lifecycle))

    @property
    def cursors(self) -> Cursors:
        """How far each feed has come, by name: see `TxStore.cursors`."""
        return cursors_of(StagedDeclarations(self.staging, self.lifecycle))

    def __repr__(self) -> str:
        staged = f", {self.staged_count} staged, NOT COMMITTED" if self.staged_count else ""
        return f"<Transaction {self.staging.storage.url} {self.base.commit or '(empty)'}{staged}>"

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
        """Count a key as read: the commit conflicts if another commit has changed it since the base."""
        encode_key(key)
        self.staged.note_read(packfile.FRAME_READ, key)

    # --- writing

    def set(self, key: str, value: Buffer, *, is_merged: bool = False) -> None:
        """Stage a value. The caller may change its buffer afterwards. For consolidated metadata, stage only a mark.

        What a document says of moved rows stays as it is (`format.row_moves`), unless `is_merged`.

        Raises `KeyFormatError` for an impossible key. Any `OSError` fails the transaction until `rollback`.
        """
        encoded, content = encode_key(key), _contiguous(value)
        if may_be_consolidated(key):
            content = memoryview(mark_for(key, bytes(content)))
        if is_document(key) and not is_merged:
            content = self._with_moves(key, content)
        self.lifecycle.stage(packfile.FRAME_VALUE, key, encoded, content)

    def _with_moves(self, key: str, content: memoryview) -> memoryview:
        if self.state != "open":
            return content  # which is not staged
        return memoryview(row_moves.kept(key, self.staged.as_known(key), content, self.id))

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
            raise _of_document(key)
        sources = self.base.sources
        name = canonical(url)
        if size is not None and version is not None:
            file = FileVersion(name, size, version)
        else:
            file = self._looked_at.get(name) or self._looked_at.setdefault(name, sources.look(name))
        record = sources.range_of(file, offset, length).encode()
        self.lifecycle.stage(packfile.FRAME_FOREIGN, key, encoded, record)

    def set_references(
        self, keys: Sequence[str], urls: Sequence[str], offsets: npt.ArrayLike, lengths: npt.ArrayLike
    ) -> None:
        """Stage many references, to the present versions of their files. Numpy arrays will do for all but the keys.

        Raises the errors of `set_reference`. After `SourceError`, `OSError` or `ValueError` of its arguments, nothing
        is staged.
        """
        document = next(filter(is_document, keys), None)
        if document is not None:
            raise _of_document(document)
        ranges = self.base.sources.ranges_of(urls, offsets, lengths, self._looked_at)
        if len(keys) != len(ranges.which):
            raise ValueError(f"{len(keys)} keys for {len(ranges.which)} references")
        for start in range(0, len(keys), _REFERENCES):
            part = slice(start, start + _REFERENCES)
            names, records = keys[part], ranges.records(part)
            encoded = tuple([encode_key(key) for key in names])
            for row in self._stage_batch(
                packfile.FRAME_FOREIGN, names, encoded, FrameBatch(packfile.FRAME_FOREIGN, records), 1
            ):
                self.lifecycle.stage(packfile.FRAME_FOREIGN, names[row], encoded[row], records[row])

    def delete(self, key: str) -> None:
        """Stage the deletion of a key, whether it exists or not."""
        self.lifecycle.stage(packfile.FRAME_TOMBSTONE, key, encode_key(key), b"")

    @keeps_nothing
    def modify(
        self, key: str, change: Callable[[memoryview | None], Buffer | None], region: Region | None = None
    ) -> None:
        """Change a part of a value. No other thread of this process writes the key meanwhile.

        `change` gets the value, or None if there is none. It returns the new value, or None to delete the key, which
        counts as writing the whole value: but not of a chunk with a region, if other processes can see the transaction.
        It must not use the transaction. If it raises an error, nothing is staged and
        the caller gets the error.

        `region` is the written part of a chunk, in the chunk's own coordinates. With a region, the commit merges the
        chunk with the parts that other transactions have written, and the value that `change` gets does not count as
        read (I5).
        """
        encoded = encode_key(key)
        with self.staging.turns.changing(key):
            known = None if region is None else self.staged.known(key)
            value = change(self.get_view(key) if known is None else known.value)
            if value is not None and is_document(key):
                value = self._with_moves(key, _contiguous(value))
            if value is None and region is not None and not self.staged.is_alone:
                value = self.staged.all_fill(key, region)
            if value is None:
                self.lifecycle.stage_in_turn(packfile.FRAME_TOMBSTONE, key, encoded, b"")
            elif known is None or region is None:
                self.lifecycle.stage_in_turn(packfile.FRAME_VALUE, key, encoded, _contiguous(value))
            elif region.boxes != ():  # else nothing is written
                part = _contiguous(value)
                self.lifecycle.write(lambda: self.staging.stage_part(key, encoded, part, known, region))

    def delete_dir(self, path: str) -> None:
        """Stage the deletion of everything below a path, as one entry for any number of keys."""
        prefix = directory_prefix(path)
        self.lifecycle.stage(packfile.FRAME_PREFIX, prefix, prefix.encode(), b"")

    def set_chunks(self, keys: Sequence[str], batch: chunks.Batch, threads: int) -> list[int]:
        """Stage many values that a batch encodes. Return the rows that the caller has to set one by one.

        Raises the errors of `set`.
        """
        encoded = tuple([encode_key(key) for key in keys])
        return self._stage_batch(packfile.FRAME_VALUE, keys, encoded, batch, threads)

    def _stage_batch(
        self, kind: int, keys: Sequence[str], encoded: tuple[bytes, ...], batch: Frames, threads: int
    ) -> list[int]:
        with self.staging.turns.at_all(keys):
            return self.lifecycle.write(lambda: self.staging.stage_batch(kind, keys, encoded, batch, threads))

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
        self.lifecycle.enter()
        self._entered_in = os.getpid()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._entered_in != os.getpid():
            return  # the block was entered before a fork: the parent ends it
        if self.members.is_participant:
            if kind is None:
                self.lifecycle.seal()
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
        for key, link in self.staging.staged.items():
            found["deleted" if link.kind == packfile.FRAME_TOMBSTONE else "set"].append(key)
            found["participants"].setdefault(self.members.label(link.participant), []).append(key)
        found["deleted_below"] = [prefix.rstrip("/") for prefix in self.staging.staged.prefixes]
        found["reflinked"] = sorted(reflink.to.rstrip("/") for reflink in self.staged.reflinks)
        found["constraints"] = sorted(self.staging.declared.constraints)
        return found

    def key_changes(self) -> Iterator[KeyChange]:
        """Yield the staged keys that differ from the base, in the order of their bytes."""
        return iter(()) if self.state == "committed" else self.staged.key_changes()

    # --- the end

    def rollback(self) -> None:
        """Drop all staged writes. From now on, writes of other threads and processes raise `TransactionStateError`.

        Raises `TransactionStateError` if another process has begun the transaction and will end it, or while other
        processes or threads still use a named one.
        """
        with self.part.ending():
            ending.roll_back(self.lifecycle)

    def check(self) -> None:
        """Raise what `commit` would raise on the present head, `ConflictError` among others; publish nothing."""
        with self.part.ending():
            ending.check(self.lifecycle)

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
            return ending.commit(self.lifecycle, message, allow_lost=allow_lost)


class NodeCopies:
    """The copies by reference of one transaction. Only the process that began it can make them.

    `view` is what the user sees of the transaction; in a serializable one, it notes what is read. Safe in threads.
    """

    def __init__(self, snapshots: Snapshots, staging: Staging, lifecycle: Lifecycle, view: Hierarchy) -> None:
        self._snapshots = snapshots
        self._staging = staging
        self._lifecycle = lifecycle
        self._view = view
        self._is_serializable = staging.record.isolation == SERIALIZABLE
        self._sources: dict[bytes | None, Snapshot] = {}  # sources of copies, by commit id

    def move(self, source: str, destination: str) -> None:
        """Move an array or group with everything below it. The commit writes refs; no value is read or copied.

        For other transactions, a move is a deletion and a creation: one that writes below either path conflicts.

        Raises `NodeNotFoundError` if the source, or the group of the destination, does not exist; `ValueError` for the
        root, and for a destination that exists or lies inside the source; `TransactionStateError` in a transaction of
        several processes.
        """
        start, to = self._places(source, destination)
        self._check_node(self._view, source)
        self._reflink(start, to, None, drops=start)

    def copy(self, source: str, destination: str, at: Snapshot | None = None) -> None:
        """Copy an array or group by reference, from here or from a snapshot. Raises the errors of `move`."""
        start, to = self._places(source, destination, may_be_inside=at is not None)
        self._snapshots.heed_erasures()
        if at is not None:
            at = self._snapshots.of(at.stored)  # anew: what it had read may have been replaced since
        if at is not None or self._snapshots.is_ranged:  # else an erasure waits for whoever is based on what it erases
            (at or self._staging.view.base).check_not_erased(source)
        self._check_node(self._view if at is None else at, source)
        if at is None and self._is_serializable:
            for key in self._view.keys_below(source):
                self._staging.view.note_read(packfile.FRAME_READ, key)
        self._reflink(start, to, at)

    def restore(self, path: str, at: Snapshot) -> None:
        """Restore everything below a path from a snapshot, by reference. If it did not exist there, delete it.

        The path may be the root. The groups that were above it are restored, too, without what else is below them,
        where they are gone. Raises `NodeNotFoundError` if the path exists neither here nor in the snapshot, and
        the errors of `move`.
        """
        prefix = directory_prefix(path)
        self._snapshots.heed_erasures()
        at = self._snapshots.of(at.stored)  # as in `copy`
        at.check_not_erased(path)
        is_here, was_there = self._view.has_keys_below(path), at.has_keys_below(path)
        if not is_here and not was_there:
            raise NodeNotFoundError(path)
        self._reflink(
            prefix, prefix, at if was_there else None, drops=prefix if is_here else None, only_drops=not was_there
        )
        if was_there:
            self._restore_groups_above(path.strip("/"), at)

    def _restore_groups_above(self, path: str, at: Snapshot) -> None:
        """Restore the documents of the groups that a node had above it, where there is none any more."""
        gone = [
            group
            for group in ancestors(path)
            if kind_of_node(self._view, group) == "absent" and kind_of_node(at, group) == "group"
        ]
        keys = [document_key(group, name) for group in gone for name in DOCUMENT_NAMES]
        self.take({key: key for key in keys if key in at}, at)

    def take(self, keys: Mapping[str, str], source: Snapshot) -> None:
        """Set keys by reference: each key gets the value that the named key has in a snapshot."""
        if not keys:
            return
        for key in keys:
            encode_key(key)
        self._check_may_reflink()
        own = self._own(source)
        with self._staging.turns.at_all(keys):
            self._lifecycle.write(lambda: self._staging.take(keys, own))

    def move_chunks(self, moves: Mapping[str, ChunkMoves]) -> None:
        """Move the chunks below paths by reference, from where the base has them.

        Other transactions see a deletion of what was below the paths: a concurrent write there conflicts. Raises
        `TransactionStateError`, and changes nothing, if there are staged changes below them, and in a transaction of
        several processes.
        """
        self._check_may_reflink()
        prefixes = {directory_prefix(path): each for path, each in moves.items()}
        with self._staging.turns.at_all():
            for prefix in prefixes:
                self._check_unchanged(prefix)
            for prefix, each in prefixes.items():
                self._lifecycle.write(partial(self._staging.move_chunks, prefix, each))

    def _check_unchanged(self, prefix: str) -> None:
        staged = self._staging.staged
        is_staged = next(staged.between(prefix, after_prefix(prefix)), None) is not None
        is_deleted = staged.is_below_deleted(prefix) or any(each.startswith(prefix) for each in staged.prefixes)
        if is_staged or is_deleted or self._staging.view.reflinks.any_below(prefix):
            raise TransactionStateError(
                f"this transaction has changed {prefix.rstrip('/')!r} already, and can't move its values by reference "
                "any more: commit first, or move them before other changes",
                state="open",
            )

    def move_all(self, moves: Mapping[str, str]) -> None:
        """Move several nodes of the base at once, with everything below them.

        The groups of the destinations may be created later. If one path lies inside another, the inner node goes to its
        own destination.
        """
        for source in moves:
            self._delete_dir(source)
        for source, destination in sorted(moves.items(), key=lambda move: move[1]):
            start, to = directory_prefix(source), directory_prefix(destination)
            self._reflink(start, to, self._staging.view.base)
            for inner in moves:
                if inner.startswith(start):
                    self._delete_dir(to + inner[len(start) :])

    def _delete_dir(self, path: str) -> None:
        prefix = directory_prefix(path)
        self._lifecycle.stage(packfile.FRAME_PREFIX, prefix, prefix.encode(), b"")

    def _places(self, source: str, destination: str, *, may_be_inside: bool = False) -> tuple[str, str]:
        start, to = directory_prefix(source), directory_prefix(destination)
        if not start or not to:
            raise ValueError(
                "the root is neither moved nor copied, and nothing takes its place: name an array or group"
            )
        if to.startswith(start) and not may_be_inside:
            raise ValueError(f"{destination!r} is {source!r}, or inside of it: choose another destination")
        if self._view.has_keys_below(to) or to[:-1] in self._view:
            raise ValueError(f"there is something at {destination!r}: delete it first, or choose another destination")
        above = to[:-1].rpartition("/")[0]
        kind = kind_of_node(self._view, above)
        if kind != "group" and (above or kind == "array"):
            raise NodeNotFoundError(above, "group", kind)
        self._snapshots.check_not_being_erased(to[:-1])  # the erasure would come upon the values of the source there
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
            self._lifecycle.write(lambda: self._staging.reflink(start, to, at, drops=drops, only_drops=only_drops))

    def _own(self, source: Snapshot) -> Snapshot:
        """Return the transaction's own snapshot of a commit, to copy from."""
        name = None if source.stored is None else source.stored.header.id
        found = self._sources.get(name)
        if found is None:  # another thread may open it at the same time
            base = self._staging.view.base
            found = self._sources.setdefault(name, base if source is base else self._snapshots.own(source))
        return found

    def _check_may_reflink(self) -> None:
        if self._staging.members.is_named or self._staging.members.is_participant:
            raise TransactionStateError(
                "move, copy and restore need a transaction without a name, by the process that began it: make one of "
                "its own, with repo.transaction()",
                state="foreign",
            )

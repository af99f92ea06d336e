"""Opens a repository for sessions and the facade, which share its storage, its history and its mapped packs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any

from txstore import processes
from txstore.codecs.chunk_cache import ChunkCache
from txstore.commit import MAIN, Stored
from txstore.errors import (
    CommitNotFoundError,
    LocksUnavailableError,
    RepositoryNotFoundError,
    SnapshotExpiredError,
    TransactionStateError,
    keeps_nothing,
)
from txstore.format.keys import check_name
from txstore.format.records import SNAPSHOT, TransactionRecord
from txstore.history.find import At, find_commit, find_tagged
from txstore.history.opening import Access, open_commits, open_storage
from txstore.history.snapshot import Snapshot, Snapshots
from txstore.locks.chunk_locks import ChunkLocks, Owner
from txstore.maintenance.vacuum import FoldingTransaction, check_retention
from txstore.segments.runs import Located
from txstore.storage.foreign_files import Sources
from txstore.transactions.conflicts import Settle
from txstore.transactions.held_locks import TransactionLocks
from txstore.transactions.participants.named import find, find_or_begin
from txstore.transactions.participants.shared import SharedTransaction
from txstore.transactions.reads import check_isolation
from txstore.transactions.regions import Lock
from txstore.transactions.staging import Staging
from txstore.transactions.transaction import (
    Transaction,
    check_description,
    check_durability,
    check_joinable,
    new_record,
)


class Engine:
    """The parts of a repository that one process has open. Creating an engine reads and writes nothing."""

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        durability: str = "fsync",
        access: Access | None = None,
        retention: int | timedelta | None = None,
    ) -> None:
        check_durability(durability)
        self.retention = retention
        self._folding = check_retention(retention)
        self.access = access or Access()
        self.storage = open_storage(url, self.access)
        self.storage.lock_timeout = self.access.commit_timeout
        self._given = self.storage.given
        self.durability = durability
        self.commits = open_commits(self.storage)
        self.sources = Sources(self.access.sources)
        self.snapshots = Snapshots(self.commits, self.sources)
        self.chunk_cache = ChunkCache(self.access.chunk_cache)

    @property
    def url(self) -> str:
        return self.storage.url

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._given, self.durability, self.access, self.retention)

    def exists(self, *, creating: bool = False) -> bool:
        """Tell whether there is a repository. Raises if something else is at its path.

        `creating`: the caller wants to create a repository. Only then does the error say which path to choose.
        """
        return self.commits.identity.exists(creating=creating)

    def with_durability(self, durability: str) -> Engine:
        """Return the same opened repository, which commits with another durability."""
        check_durability(durability)
        if durability == self.durability:
            return self
        other = Engine.__new__(Engine)
        other.__dict__.update(self.__dict__)
        other.durability = durability
        return other

    def branch(self, name: str) -> str:
        """Return the id of a branch by its name. Lower layers use only ids. Raises `CommitNotFoundError`."""
        if name != MAIN and not self.exists():
            raise CommitNotFoundError(f"branch {name!r}", advice="there is no repository yet")
        return self.commits.branches.id_of(name)

    def newest(self, branch: str = MAIN) -> Snapshot:
        """Return the head as a base for writes: an empty snapshot if there is no repository yet."""
        return self.snapshots.newest(branch) if self.exists() else self.snapshots.of(None)

    @cached_property
    def locks(self) -> ChunkLocks:
        """The chunk-key locks. Raises `LocksUnavailableError` if the storage does not support locks."""
        return ChunkLocks(self.storage.lock_directory(), self.url)

    @keeps_nothing
    def begin(
        self,
        base: Snapshot | None = None,
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Mapping[str, Any] | None = None,
        lock: Lock | None = None,
        lock_timeout: float | None = None,
        isolation: str = SNAPSHOT,
        other_parent: Stored | None = None,
        settle_conflicts: Settle | None = None,
    ) -> Transaction:
        """Begin a transaction at `base`, or at the head. With `lock`, at the head at the time when it holds the locks.

        `other_parent` is the second parent of a merge commit. `settle_conflicts` resolves conflicts.
        """
        check_description(message, properties)
        check_isolation(isolation)
        locks = TransactionLocks(self)
        if lock is not None:
            locks, base = TransactionLocks.at_newest(self, lambda: self.newest(branch), lock, lock_timeout)
        elif base is None:
            base = self.newest(branch)
        record = new_record(base, branch, self.durability, message, properties, isolation=isolation)
        own = self.snapshots.own(base)
        staging = Staging(self.commits, own, record, other_parent=other_parent, settle_conflicts=settle_conflicts)
        return self._transaction(staging, locks)

    def owner(self) -> Owner:
        """Return a new owner of locks, for one transaction."""
        if not self.exists():
            raise LocksUnavailableError(self.url, "nothing has been written yet, so there is nothing to lock")
        return self.locks.owner()

    def _transaction(self, staging: Staging, locks: TransactionLocks | None = None) -> Transaction:
        if self._folding is None:
            return Transaction(self.commits, self.snapshots, staging, locks)
        durable = self.durability == "fsync"
        return FoldingTransaction(self.commits, self.snapshots, staging, locks, wanted=self._folding, durable=durable)

    # --- transactions of several processes

    def join(self, transaction: bytes, repository_id: bytes, *, block: bool = False) -> Transaction:
        """Stage into a transaction that another process began. Raises `TransactionStateError` if it has ended.

        A process is one participant of a transaction, however often it joins. Each `with` block that is open at the
        same time is one more participant, so that the block's changes can be aborted alone.
        """
        with _joining:
            _forget_ended()
            there = _joined.setdefault((transaction, block), [])
            there[:] = [each for each in there if _goes_on(each)]
            staging = next((each for each in there if not (block and each.part.attached)), None)
            if staging is not None:
                staging.members.join_others()
            if staging is None or (block and staging.members.siblings.has_seen_given_up):
                shared = SharedTransaction.find(self.commits, transaction, repository_id)
                staging = self._staging_of(shared, counts_by_operation=not block)
                there.insert(0, staging)  # before participants that have seen aborted changes
                staging.members.join_others()
            return self._transaction(staging, TransactionLocks(self))

    def named(
        self,
        name: str,
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Mapping[str, Any] | None = None,
        isolation: str = SNAPSHOT,
    ) -> Transaction:
        """Join the transaction with this name, or begin it. It may have more isolation than the caller asks for."""
        check_name("transaction", name)
        check_description(message, properties)
        check_isolation(isolation)

        bases: list[Snapshot] = []  # keeps the base pinned until the new transaction has pinned it

        def record() -> TransactionRecord:
            bases.append(self.newest(branch))
            return new_record(bases[-1], branch, self.durability, message, properties, name, isolation)

        self.commits.identity.create(durable=self.durability == "fsync")
        while True:
            try:
                shared = find_or_begin(self.commits, name, record)
                check_joinable(shared.record, isolation)
                return self._join_by_name(shared)
            except TransactionStateError as error:
                if error.state != "ended":  # else it ended after it was found: the name is free again
                    raise

    def existing(self, name: str) -> Transaction:
        """Return the transaction with this name without joining it: to read its staged changes, or to end it.

        Raises `TransactionStateError` if there is none.
        """
        check_name("transaction", name)
        if not self.exists():
            raise RepositoryNotFoundError(self.url)
        staging = self._staging_of(find(self.commits, name))
        staging.members.join_others()
        return self._transaction(staging)

    def _join_by_name(self, shared: SharedTransaction) -> Transaction:
        staging = self._staging_of(shared)
        staging.members.join_others()
        staging.part.begin()
        return self._transaction(staging, TransactionLocks(self))

    def _staging_of(self, shared: SharedTransaction, *, counts_by_operation: bool = False) -> Staging:
        record = shared.record
        if record.base is None:
            base = self.snapshots.of(None)
        else:
            base = Position(self, branch=record.branch, exact=record.base).snapshot()
        own = self.snapshots.own(base)
        return Staging(self.commits, own, record, shared=shared, counts_by_operation=counts_by_operation)


#: Transactions of other processes that this process has joined, while they are open: joining again continues. The key
#: is the transaction, and whether it is for `with` blocks. The next block can use one that no block is attached to.
_joined: dict[tuple[bytes, bool], list[Staging]] = {}
_joining = processes.new_lock()


def _goes_on(staging: Staging) -> bool:
    return staging.members.is_used_here and not staging.members.is_over and not staging.part.has_given_up


def _forget_ended() -> None:
    for key, stagings in list(_joined.items()):
        if not any(staging.part.attached or staging.members.is_open() for staging in stagings):
            del _joined[key]


def _reopen(url: str, durability: str, access: Access, retention: int | timedelta | None) -> Engine:
    return Engine(url, durability=durability, access=access, retention=retention)


#: The `Position.exact` of a handle that found no commit.
EMPTY = (-1, "")


class Position:
    """The commit that a handle reads. The first use finds it; it never changes after that (I4).

    Without `at` or `tag` it is the head. `exact` is the version and commit id of a position in another process. If the
    repository does not exist, a position with `creates` is an empty snapshot; without, it raises an error.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        branch: str = MAIN,
        at: At | None = None,
        tag: str | None = None,
        exact: tuple[int, str] | None = None,
        creates: bool = False,
    ) -> None:
        if at is not None and tag is not None:
            raise ValueError("give at= or tag=, not both")
        self._engine = engine
        self._branch = branch
        self._at = at
        self._tag = tag
        self._exact = exact
        self._creates = creates
        self._snapshot: Snapshot | None = None
        self._lock = processes.new_lock()

    @classmethod
    def of(cls, engine: Engine, snapshot: Snapshot, branch: str, *, creates: bool = False) -> Position:
        position = cls(engine, branch=branch, creates=creates)
        position._snapshot = snapshot
        return position

    def held_by(self, snapshot: Snapshot) -> Position:
        """Return this position with another snapshot of the same commit, which holds the pin instead."""
        return Position.of(self._engine, snapshot, self.branch, creates=self._creates)

    def settle(self) -> None:
        """Find the commit now, not at the first use. Raises the errors of `snapshot`.

        If the repository does not exist yet, this finds nothing: another process may then make the first commit.
        """
        if self._snapshot is None and self._exact is None:
            exists = self._engine.exists(creating=self._creates)
            if exists or not self._creates:
                self.snapshot()

    def snapshot(self) -> Snapshot:
        """Return the snapshot at this position.

        Raises `RepositoryNotFoundError`, `CommitNotFoundError`, `SnapshotExpiredError` or `CorruptionError`.
        """
        found = self._snapshot
        if found is None:
            with self._lock:
                found = self._snapshot = self._snapshot or self._find()
        return found

    @property
    def found(self) -> Snapshot | None:
        """The snapshot at this position. None if it has not been looked for yet."""
        return self._snapshot

    def at_hand(self, key: str) -> memoryview | None:
        """Return a value as `Snapshot.at_hand` does, if the position has found its commit."""
        found = self._snapshot
        return None if found is None else found.at_hand(key)

    async def await_located(self, keys: Sequence[str]) -> Located | None:
        """Locate values as `Snapshot.await_located` does, if the position has found its commit."""
        found = self._snapshot
        return None if found is None else await found.await_located(keys)

    def let_go(self) -> None:
        """Release the pin. The next use finds the commit again, unless a vacuum has expired it."""
        if self._snapshot is not None:
            self._exact, self._snapshot = self.exact, None
            self._creates = self._creates or self._exact == EMPTY

    @property
    def branch(self) -> str:
        """The id of the branch to commit to: with a tag, the branch of its commit."""
        return self._branch if self._tag is None or self.stored is None else self.stored.header.branch

    @property
    def stored(self) -> Stored | None:
        """The commit. None if there is no commit, or the position has not looked for it yet."""
        return None if self._snapshot is None else self._snapshot.stored

    @property
    def exact(self) -> tuple[int, str] | None:
        """Version and commit id, or `EMPTY`, so that another process can start at this position. None: not read yet."""
        if self._snapshot is None:
            return self._exact
        return EMPTY if self.stored is None else (self.stored.header.version, self.stored.header.id.hex())

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._engine, self.branch, self.exact, self._creates)

    def _find(self) -> Snapshot:
        engine, commits = self._engine, self._engine.commits
        if not engine.exists():
            if self._creates and self._exact in (None, EMPTY):
                return engine.snapshots.of(None)
            raise RepositoryNotFoundError(engine.url)
        if self._exact == EMPTY:
            return engine.snapshots.of(None)
        if self._exact is not None:
            version, commit_id = self._exact
            stored = commits.files.at(self._branch, version)
            if stored is None or stored.header.id.hex() != commit_id:
                raise SnapshotExpiredError(f"{commits.branches.label(self._branch, version)} ({commit_id})")
            return engine.snapshots.of(stored)
        if self._tag is not None:
            return engine.snapshots.of(find_tagged(commits, self._tag))
        if self._at is not None:
            return engine.snapshots.of(find_commit(commits, self._at, self._branch))
        return engine.snapshots.newest(self._branch)


def _restore(
    engine: Engine,
    branch: str,
    exact: tuple[int, str] | None,
    creates: bool,
) -> Position:
    return Position(engine, branch=branch, exact=exact, creates=creates)

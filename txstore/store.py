"""TxStore: zarr's `Store` over a transaction or a snapshot. Only the face is here; `sessions/` has the life cycle."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.core.buffer.core import default_buffer_prototype

from txstore import processes
from txstore._native import chunks
from txstore.commit import MAIN, Commit
from txstore.comparing.diff import Diff, OpenArray
from txstore.comparing.nodes import compare
from txstore.engine import Engine, Position
from txstore.errors import CommitUnknownError, TxStoreError
from txstore.format.consolidated import consolidated_at, is_consolidated, is_marked, may_be_consolidated
from txstore.format.keys import DOCUMENT_NAMES, directory_prefix, documents_of_members
from txstore.format.records import SNAPSHOT
from txstore.format.regions import Region
from txstore.format.shown import html_lines
from txstore.format.tree import tree_lines
from txstore.history.declarations import Constraints
from txstore.history.find import At, find_commit
from txstore.history.opening import Access
from txstore.pipeline.chunk_store import ChunkStore
from txstore.pipeline.registration import register
from txstore.segments.runs import Located
from txstore.sessions.held_documents import Reliance
from txstore.sessions.lock_blocks import LockBlock
from txstore.sessions.operations import is_on_loop
from txstore.sessions.session import Joining, Session
from txstore.storage.request_threads import in_thread
from txstore.storage.sources import Given, allowed

if TYPE_CHECKING:
    from typing import Self

    from txstore.format.constraints import Constraint
    from txstore.history.snapshot import Snapshot
    from txstore.transactions.conflicts import Settle
    from txstore.transactions.transaction import Changes, Transaction

T = TypeVar("T")

#: Keys that a listing brings from a thread at a time.
_PAGE = 1000
#: Members of a group whose documents are fetched when it is listed: more would drive one another out of the cache.
_MEMBERS = 10_000

#: Sessions that a pickle can rejoin, by token.
_sessions: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()

_entering = processes.new_lock()  # of two threads that enter blocks of one store, the second is inside of the first

_LEFT = "this store's `with` block has ended; the transaction goes on: join it again with repo.transaction(name=...)"
_COMMITTED = "this store's `with` block has ended and was committed: begin a new one with repo.transaction()"
_ROLLED_BACK = "this store's `with` block has ended and was rolled back: begin a new one with repo.transaction()"
_UNKNOWN = "this store's `with` block has ended, and whether its commit was made is unknown: see repo.resolve(id)"


class HasEngine(Protocol):
    """A `Repository`, which lies above this module."""

    engine: Engine


class TxStore(Store, ChunkStore):
    """A zarr store whose writes become visible together, at `commit`, or not at all.

    Parameters ---------- url_or_repository : str, PathLike or Repository Where the repository is. It is created by the
    first write, never by reading. read_only : bool Read one commit, for as long as you like. Implied by `at` and `tag`.
    Where there is no repository, this raises `RepositoryNotFoundError`. create : bool False: the same is raised for a
    store to write to. So a misspelled path makes no second repository. branch : str The name of the branch that is
    read, or committed to. at : int, str, Commit, datetime or numpy.datetime64, optional A version (-1 is the newest
    commit), a commit or its id (or its first digits), a tag, or a date: the newest commit that is not later. A date has
    a zone, or is a `numpy.datetime64`, in UTC. tag : str, optional The name of a tag. durability : {"fsync", "none"}
    Whether `commit` returns only when the commit will survive power loss. "none" is for scratch data. (The stores of
    `Repository.transaction` have the repository's.) storage_options : dict, optional Of the fsspec file system that the
    URL is of. More can be said to a `Repository`. sources : dict or list of str, optional Below which URLs values may
    lie outside of the repository, as in `Repository`.

    A writable store is a session of successive transactions: `commit()` publishes what is staged and goes on from
    there, `rollback()` drops it and moves to the newest commit. As a context manager it commits on a clean exit, rolls
    back on an exception, and can't be used afterwards.

    Examples
    --------
    >>> import zarr, txstore, tempfile
    >>> path = tempfile.mkdtemp() + "/data.tx"
    >>> with txstore.TxStore(path) as store:
    ...     z = zarr.create_array(store, name="position", shape=(4,), chunks=(2,), dtype="i4")
    ...     z[:] = [1, 2, 3, 4]
    >>> store = txstore.TxStore(path, read_only=True)
    >>> zarr.open_array(store, path="position", mode="r")[:]
    array([1, 2, 3, 4], dtype=int32)
    """

    supports_writes: bool = True
    supports_deletes: bool = True
    supports_listing: bool = True

    def __init__(
        self,
        url_or_repository: str | os.PathLike[str] | HasEngine,
        *,
        read_only: bool = False,
        create: bool = True,
        branch: str = MAIN,
        at: At | None = None,
        tag: str | None = None,
        durability: str = "fsync",
        storage_options: dict[str, Any] | None = None,
        sources: Given | None = None,
    ) -> None:
        if isinstance(url_or_repository, str | os.PathLike):
            access = Access(dict(storage_options or {}), sources=allowed(sources))
            engine = Engine(url_or_repository, durability=durability, access=access)
        else:
            if storage_options or sources:
                raise ValueError("storage_options and sources belong to the Repository: give them to it")
            engine = url_or_repository.engine.with_durability(durability)
        read_only = read_only or at is not None or tag is not None
        branch = engine.branch(branch)
        position = Position(engine, branch=branch, at=at, tag=tag, creates=create and not read_only)
        position.settle()
        self._set_up(engine, position, None if read_only else Session(engine, position, branch=branch), read_only)

    def _set_up(self, engine: Engine, position: Position, session: Session | None, read_only: bool) -> None:
        super().__init__(read_only=read_only)
        self._engine = engine
        self._session = session
        self._outside: Session | None = None  # what is the session again after a `with` block of a participant
        if session is None:
            self._reads_at = position
        else:  # its place moves: to hold where it began would keep a vacuum from ever passing that
            _sessions[session.token] = session

    @classmethod
    def _of(cls, engine: Engine, position: Position, session: Session | None, *, read_only: bool) -> Self:
        store = cls.__new__(cls)
        store._set_up(engine, position, session, read_only)
        return store

    @classmethod
    def begin(
        cls,
        engine: Engine,
        *,
        branch: str,
        message: str | None,
        properties: Mapping[str, Any] | None,
        first: Transaction | None = None,
        isolation: str = SNAPSHOT,
        settle_conflicts: Settle | None = None,
    ) -> Self:
        """Return a writable store at the head: what `Repository.transaction` returns.

        `branch` is the id of one, `first` the store's transaction.
        """
        if first is None:
            position = Position(engine, branch=branch, creates=True)
            position.settle()
        else:
            position = Position.of(engine, first.base, branch)
        session = Session(
            engine,
            position,
            branch=branch,
            message=message,
            properties=properties,
            first=first,
            isolation=isolation,
            settle_conflicts=settle_conflicts,
        )
        session.may_fork = True
        return cls._of(engine, position, session, read_only=False)

    @classmethod
    def at(cls, engine: Engine, snapshot: Snapshot) -> Self:
        """Return a read-only store at a snapshot."""
        branch = MAIN if snapshot.stored is None else snapshot.stored.header.branch
        return cls._of(engine, Position.of(engine, snapshot, branch), None, read_only=True)

    # --- what it is a view of

    @property
    def url(self) -> str:
        """Where the repository is."""
        return self._engine.url

    @property
    def mapping(self) -> Transaction | Snapshot:
        """The same keys and values as a `MutableMapping` (of a reader: a `Mapping`), until the next commit."""
        return self._position.snapshot() if self._session is None else self._session.transaction

    @property
    def _position(self) -> Position:
        """Where it stands: a writer's place moves with its session."""
        return self._reads_at if self._session is None else self._session.position

    @property
    def _view(self) -> Session | Snapshot:
        return self._session or self._position.snapshot()

    @property
    def base(self) -> Commit | None:
        """The commit that is read, and that what is staged is based on. None if there is none yet."""
        stored = self._position.snapshot().stored
        return None if stored is None else stored.commit

    @property
    def staged_count(self) -> int:
        """How many keys and prefixes are set or deleted here and not committed."""
        return 0 if self._session is None else self._session.staged_count

    def changes(self) -> Changes:
        """Return what is staged: `set` and `deleted` keys, and `deleted_below`: the paths cleared as a whole.

        `participants` says which process has staged which of the keys. `diff` says what that is of arrays and groups.
        """
        return self._writer().transaction.changes()

    def diff(self) -> Diff:
        """Return what is staged against the commit that it is based on, in the words of `Repository.diff`."""
        transaction = self._writer().transaction
        base = transaction.base

        def opened(view: Snapshot | None) -> OpenArray:
            def open_array(path: str) -> Any:
                import zarr

                store = self if view is None else TxStore.at(self._engine, view)
                return zarr.open_array(store, path=path, mode="r")

            return open_array

        nodes = compare(transaction.key_changes(), base, transaction)
        return Diff(base.commit, None, nodes, opened(base), opened(None), is_staged=True)

    # --- without copying values

    def move(self, source: str, destination: str) -> None:
        """Move an array or group, with all that is below it, in this transaction. No value is read or copied.

        To others it is a deletion and a creation: who writes below either path meanwhile is in conflict. Objects that
        were opened where it was raise `StaleArrayError`.

        Raises
        ------
        NodeNotFoundError
            There is nothing at the source, or no group above the destination.
        ValueError
            The destination exists, or lies inside of the source; or one of them is the root.
        TransactionStateError
            The transaction has a name, or several processes stage into it.

        Examples
        --------
        >>> import numpy as np, tempfile, txstore, zarr
        >>> repo = txstore.Repository(tempfile.mkdtemp() + "/data.tx")
        >>> with repo.transaction() as store:
        ...     z = zarr.create_array(store, name="raw", data=np.arange(4), chunks=(2,))
        >>> with repo.transaction() as store:
        ...     store.move("raw", "t2m")
        ...     store.copy("t2m", "backup")
        >>> sorted(zarr.open_group(repo.snapshot(), mode="r").array_keys())
        ['backup', 't2m']
        """
        self._writer().move(source, destination)

    def copy(self, source: str, destination: str, *, at: At | None = None) -> None:
        """Copy an array or group as `move` moves it: as it is in this transaction, or as it was at a commit.

        `at` is as in `Repository.snapshot`. Raises what `move` does, and `CommitNotFoundError`.
        """
        self._writer().copy(source, destination, None if at is None else self._snapshot_at(at))

    def restore(self, path: str, at: At) -> None:
        """Make an array or group what it was at a commit, with all that is below it, or delete it, if it was not there.

        No value is read or copied. The root, `""`, is all of the repository. Raises `NodeNotFoundError` if there is
        nothing then and now, `CommitNotFoundError`, and `TransactionStateError` as `move` does.
        """
        self._writer().restore(path, self._snapshot_at(at))

    def _snapshot_at(self, at: At) -> Snapshot:
        engine = self._engine
        return engine.snapshots.of(find_commit(engine.commits, at, self._writer().branch))

    @property
    def constraints(self) -> Constraints:
        """What has to be so at every commit, by name. In a writable store: see `Repository.constraints`.

        What is set or deleted there is declared, or dropped, by the commit of this transaction.
        """
        return Constraints(lambda: self.mapping.constraints, self._declare)

    def _declare(self, name: str, constraint: Constraint | None) -> None:
        self._writer().transaction.declare(name, constraint)

    def _writer(self) -> Session:
        self._check_writable()
        if self._session is None:
            raise ValueError("store was opened in read-only mode and does not support writing")
        return self._session

    # --- transactions

    def commit(self, message: str | None = None, *, allow_lost: bool = False) -> Commit | None:
        """Publish what is staged, by this process and the others in the transaction, and go on from there.

        Returns the new commit. One that is given a message or properties, here or when the transaction began, is made
        even if it changes nothing. Without either, a commit that would change nothing is not made, and this returns
        None. `unchanged` says of both that nothing was changed.

        Errors as of `Transaction.commit`. After `ConflictError` what is staged is still there: `rollback()` drops it.
        `allow_lost` takes also what processes have staged that died before they were done.
        """
        return self._writer().commit(message, allow_lost=allow_lost)

    @property
    def unchanged(self) -> bool:
        """Whether the last commit of this store has changed nothing: all that was staged was there already."""
        return self._session is not None and self._session.unchanged

    def lock(self, path: str, selection: Any = ..., timeout: float | None = 60.0) -> LockBlock:
        """Lock the chunks that a selection of an array covers, against all who take locks, while a `with` block runs.

        `selection` is what an array would be indexed with, or `txstore.APPEND`; `...` is all chunks. `timeout` is in
        seconds, None for ever, 0 to try. The block gets the keys whose last holder died holding them.

        Other threads wait, too; the one that runs the block may lock again what it has locked. Leaving the block lets
        only the threads and processes have the locks that stage into the same transaction; everybody else waits for
        its end. What these have written under the lock is seen in the block. Entering it raises `LockTimeoutError`,
        and `ConflictError` if another commit has changed one of the chunks since this transaction began.
        """
        session = self._writer()
        return LockBlock(lambda: session.transaction, session.gate, {path: selection}, timeout)

    def rollback(self) -> None:
        """Drop what is staged and move to the newest commit."""
        self._writer().rollback()

    def latest(self) -> TxStore:
        """Return a new store at the newest commit, which sees nothing of what is staged here."""
        if self._session is None:
            position = Position(self._engine, branch=self._position.branch)
            position.settle()
            return self._of(self._engine, position, None, read_only=True)
        session = self._session
        return self.begin(
            self._engine,
            branch=session.branch,
            message=session.message,
            properties=session.properties,
            isolation=session.isolation,
            settle_conflicts=session.settle_conflicts,
        )

    def __enter__(self) -> Self:
        if self._session is not None and not self.read_only:
            with _entering:
                block = self._session.for_block()
                if block is not self._session:
                    self._outside, self._session = self._session, block
                self._session.enter()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        session = self._session
        if session is None or self.read_only:
            self.close()
            return
        if not session.depth:
            return  # the block was entered before a fork: it is the parent's to end
        session.depth -= 1
        if session.depth:
            if kind is not None:
                session.fail("a `with` block inside of another was left by an exception: what it did may be half done")
            return
        if session.is_block:
            self._session, self._outside = self._outside, None
            session.leave_block(complete=kind is None)
            return
        if session.is_participant:
            session.leave(complete=kind is None)
            return
        is_named = session.is_named
        try:
            if session.ended is not None:
                return  # a transaction with a name was committed or rolled back in the block
            if is_named:
                session.leave(complete=True)
            elif kind is None:
                session.commit(at_end=True)
        except BaseException as error:
            session.end(_LEFT if is_named else _UNKNOWN if isinstance(error, CommitUnknownError) else _ROLLED_BACK)
            raise
        else:
            session.end(_LEFT if is_named else _ROLLED_BACK if kind else _COMMITTED)
        finally:
            self.close()

    def with_read_only(self, read_only: bool = False) -> Self:
        """Return an unopened store on the same data: of a writer, with what is staged."""
        if self._session is not None:
            return self._of(self._engine, self._position, self._session, read_only=read_only)
        if read_only:
            return self._of(self._engine, self._position, None, read_only=True)
        branch = self._position.branch
        if self._position.stored is None:
            return self.begin(self._engine, branch=branch, message=None, properties=None)
        session = Session(self._engine, self._position, branch=branch)
        return self._of(self._engine, self._position, session, read_only=False)

    # --- identity

    def _identity(self) -> tuple[Any, ...]:
        if self._session is not None and self._session.staged_count:
            return self.url, self.read_only, self._session.token
        return self.url, self.read_only, self._position.exact

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TxStore) and self._identity() == other._identity()

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        session = self._session
        if session is None:
            return _reopen_reader, (self._engine, self._position)
        joining = session.share()
        told = (session.token, session.ended, session.branch, session.message, session.properties, session.isolation)
        # The version is for dask, which makes the token of an array from the pickle of its store.
        version = session.version
        return _reopen_writer, (
            self._engine,
            session.position,
            told,
            joining,
            session.held.reliance,
            self.read_only,
            version,
        )

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        """Return what tells this store's content from that of another: dask would else pickle the store for it."""
        session, exact = self._session, self._position.exact
        return (
            ("txstore", self.url, exact)
            if session is None
            else ("txstore", self.url, exact, session.token, session.version)
        )

    def __str__(self) -> str:
        return f"txstore://{self.url}"

    def __repr__(self) -> str:
        return f"<TxStore {self.url} {self._state()}>"

    def _repr_html_(self) -> str:
        head = f"<b>TxStore</b> <code>{escape(self.url)}</code> {escape(self._state())}"
        try:
            return head + html_lines(tree_lines(self.mapping))
        except (TxStoreError, OSError) as error:  # a cell of a notebook shows what is wrong, and goes on
            return head + html_lines([str(error)])

    def _state(self) -> str:
        stored = self._position.stored
        where = "(no commit)" if stored is None else str(stored.commit)
        mode = ", read-only" if self.read_only else ""
        staged = f", {self.staged_count} staged, NOT COMMITTED" if self.staged_count else ""
        return where + mode + staged

    # --- dict syntax

    def __getitem__(self, key: str) -> bytes:
        if not isinstance(key, str):
            raise TypeError(f"a key is a string, not {type(key).__name__}")
        view = self._served(key) if may_be_consolidated(key) else self._view.get_view(key)
        if view is None:
            raise KeyError(key)
        return bytes(view)

    def __setitem__(self, key: str, value: Any) -> None:
        self._writer().set(key, value)

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._writer().delete(key)

    def __contains__(self, key: object) -> bool:
        return key in self.mapping

    def __iter__(self) -> Iterator[str]:
        return iter(self.mapping)

    def __len__(self) -> int:
        return len(self.mapping)

    def __bool__(self) -> bool:
        return True

    # --- zarr's synchronous face: what the fused codec pipeline calls, from threads

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return a value, or a part of it, as a view of the mapped file; None if there is no such key."""
        self._is_open = True
        if may_be_consolidated(key):
            view = self._served(key)
            view = view if view is None or byte_range is None else view[_part(byte_range)]
        elif byte_range is None:
            view = self._view.get_view(key)
        else:
            view = self._view.get_part(key, _part(byte_range))
        if view is None:
            return None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(view)

    def _served(self, key: str) -> memoryview | None:
        """Return a value, or, to a reader, the consolidated metadata that is made where a client has made it once.

        A writer gets none: through a group object that holds the shapes of its arrays, the second append to one is
        laid over the first.
        """
        view = self._view.get_view(key)
        if view is None or not is_marked(key, bytes(view)):
            return view
        if not self.read_only:
            return None if is_consolidated(key) else view
        # Through the session, which remembers which documents array objects hold.
        return memoryview(consolidated_at(_Documents(self._view.get_view, self._list_dir), key))

    def set_sync(self, key: str, value: Buffer) -> None:
        """Stage a value. It is copied before this returns."""
        self._is_open = True
        self._check_writable()
        if not isinstance(value, Buffer):
            raise TypeError(f"TxStore.set() takes a zarr Buffer, not {type(value).__name__}; use store[key] = bytes")
        self._writer().set(key, _contiguous(value))

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
        """Stage a value that stays where it is, in a file outside. See `Transaction.set_reference`."""
        self._writer().set_reference(key, url, offset, length, size=size, version=version)

    def delete_sync(self, key: str) -> None:
        """Stage the deletion of a key. It need not exist."""
        self._is_open = True
        self._writer().delete(key)

    # --- what our codec pipeline calls

    @property
    def is_fetched(self) -> bool:
        return self._engine.storage.ranges is not None

    def locate(self, keys: Sequence[str]) -> Located | None:
        self._is_open = True
        return self._view.locate(keys)

    async def await_located(self, keys: Sequence[str]) -> Located | None:
        if self._session is not None:
            return None
        self._is_open = True
        return await self._position.await_located(keys)

    def set_chunks(self, keys: Sequence[str], batch: chunks.Batch, threads: int) -> list[int]:
        self._is_open = True
        return self._writer().set_chunks(keys, batch, threads)

    def modify(self, key: str, change: Callable[[memoryview | None], memoryview | None], region: Region) -> None:
        self._is_open = True
        self._writer().modify(key, change, region)

    def give_up(self, reason: str) -> None:
        if self._session is not None:
            self._session.fail(reason)

    # --- zarr's asynchronous face. On a disk, staging is a write to the page cache: no reason to leave the event loop.
    # What makes requests, or reads files outside of the repository, does so in a thread.

    @property
    def _supports_sync_io(self) -> bool:
        """Asked by zarr's fused pipeline before each batch: no, if the operation has to wait, which no thread must."""
        session = self._session
        # Where a write may be refused, each chunk is a task, of which it is known to which operation it belongs.
        return session is None or (session.gate.may_enter() and session.holds_newest)

    async def let_in(self) -> None:
        session = self._session
        if session is not None and not session.gate.may_enter():
            await session.gate.enter()

    async def _do(self, function: Callable[..., T], *arguments: Any) -> T:
        await self.let_in()
        return await self._engine.storage.dispatch.awaited(function, *arguments)

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        session = self._session
        if session is not None and not session.gate.may_enter():  # `let_in`, on the hot paths
            await session.gate.enter()
        if self._engine.storage.ranges is None:
            if not self._view.is_foreign(key):
                return self.get_sync(key, prototype=prototype, byte_range=byte_range)
        elif (
            session is None
            and byte_range is None
            and (view := self._position.at_hand(key)) is not None
            and not (may_be_consolidated(key) and is_marked(key, bytes(view)))
        ):
            self._is_open = True
            return (prototype or default_buffer_prototype()).buffer.from_bytes(view)
        return await in_thread(partial(self.get_sync, key, prototype=prototype, byte_range=byte_range))

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        gets = [self.get(key, prototype=prototype, byte_range=part) for key, part in key_ranges]
        return list(await asyncio.gather(*gets))

    async def exists(self, key: str) -> bool:
        return await self._do(self._exists, key)

    def _exists(self, key: str) -> bool:
        return key in self if self._session is None else self._session.exists(key)

    async def set(self, key: str, value: Buffer) -> None:
        session = self._session
        if session is not None and not session.gate.may_enter():  # `let_in`, on the hot paths
            await session.gate.enter()
        await self._engine.storage.dispatch.awaited(self.set_sync, key, value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        self._check_writable()
        if not await self._do(self._writer().exists, key):
            await self.set(key, value)

    async def delete(self, key: str) -> None:
        await self._do(self.delete_sync, key)

    async def delete_dir(self, prefix: str) -> None:
        await self._do(self._writer().delete_dir, prefix)

    async def is_empty(self, prefix: str) -> bool:
        return not await self._do(lambda: self.mapping.has_keys_below(prefix))

    async def list(self) -> AsyncIterator[str]:
        async for key in self._listed(lambda: iter(self.mapping)):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        # A path, as in LocalStore, not any string: zarr's own `nchunks_initialized` passes one, and would find the
        # chunks of `positions` in `position`.
        async for key in self._listed(lambda: self.mapping.keys_below(prefix)):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        async for name in self._listed(lambda: self._list_dir(prefix)):
            yield name

    def _list_dir(self, prefix: str) -> Iterator[str]:
        mapping = self.mapping
        names: list[str] = []
        for name in mapping.list_dir(prefix):
            if len(names) < _MEMBERS or name in DOCUMENT_NAMES:
                names.append(name)
            yield name
        # Who lists a group reads the documents of its members next, each by itself: they are fetched together.
        path = directory_prefix(prefix)
        mapping.fetch([path + document for document in documents_of_members(names)])

    async def _listed(self, listing: Callable[[], Iterator[str]]) -> AsyncIterator[str]:
        await self.let_in()
        awaited = self._engine.storage.dispatch.awaited
        names = await awaited(listing)
        while page := await awaited(lambda: tuple(islice(names, _PAGE))):
            for name in page:
                yield name

    async def getsize(self, key: str) -> int:
        size = await self._do(lambda: self.mapping.size_of(key))
        if size is None:
            raise FileNotFoundError(key)
        return size

    async def getsize_prefix(self, prefix: str) -> int:
        return await self._do(self._size_below, prefix)

    def _size_below(self, prefix: str) -> int:
        mapping = self.mapping
        return sum(mapping.size_of(key) or 0 for key in mapping.keys_below(prefix))

    @property
    def supports_consolidated_metadata(self) -> bool:
        """Whether the caller should go on with consolidated metadata: only zarr itself, on its loop.

        There it is what a user has asked for. xarray asks, in the user's thread, whether to make it at every write and
        to look for it at every opening, and would warn where there is none. Our look-ups need no second copy.
        """
        return is_on_loop()


class _Documents(NamedTuple):
    """What consolidated metadata is made of."""

    get_view: Callable[[str], memoryview | None]
    list_dir: Callable[[str], Iterator[str]]


def _part(byte_range: ByteRequest) -> slice:
    match byte_range:
        case RangeByteRequest(start, end):
            return slice(start, end)
        case OffsetByteRequest(offset):
            return slice(offset, None)
        case SuffixByteRequest(suffix):
            return slice(-suffix, None) if suffix else slice(0, 0)
        case _:
            raise ValueError(f"Unexpected byte_range, got {byte_range}.")


def _contiguous(value: Buffer) -> memoryview:
    array = value.as_numpy_array()
    return memoryview(array if array.flags.c_contiguous else array.copy())


register()


def _reopen_reader(engine: Engine, position: Position) -> TxStore:
    return TxStore._of(engine, position, None, read_only=True)


def _reopen_writer(
    engine: Engine,
    position: Position,
    told: tuple[str, str | None, str, str | None, Mapping[str, Any] | None, str],
    joining: Joining | None,
    reliance: Reliance,
    read_only: bool,
    _version: Hashable,
) -> TxStore:
    """Nothing is raised here, only at the first use: an error while unpickling hangs a pool of workers."""
    token, ended, branch, message, properties, isolation = told
    here = _sessions.get(token)
    if here is not None and not here.stages_into(joining):
        here = None
    session = here
    if session is None or not session.knows(joining, reliance):
        session = Session(
            engine,
            position,
            branch=branch,
            message=message,
            properties=properties,
            joining=joining,
            beside=here,
            token=token,
            isolation=isolation,
        )
        session.rely_on(reliance)
        if ended is not None:
            session.end(ended)
    return TxStore._of(session.engine, session.position, session, read_only=read_only)

"""Implements zarr's `Store` over a session or a snapshot, with what TxStore's codec pipeline calls beside it.

Each call of zarr on a writer is one on the open transaction of its session, and passes the session's gate. What array
objects may rely on is checked here (I6, `stale_arrays`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from itertools import islice
from threading import get_ident
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.buffer import default_buffer_prototype

from txstore._native import chunks
from txstore.codecs.chunk_cache import ChunkCache
from txstore.engine import Engine, Position
from txstore.format.chunk_moves import ChunkMoves
from txstore.format.consolidated import consolidated_at, is_consolidated, is_marked, may_be_consolidated
from txstore.format.keys import DOCUMENT_NAMES, directory_prefix, documents_of_members, is_document
from txstore.format.regions import Region
from txstore.history.snapshot import Snapshot
from txstore.pipeline.chunk_store import ChunkStore
from txstore.pipeline.registration import register
from txstore.segments.runs import Located
from txstore.sessions import zarr_operations
from txstore.sessions.session import Session
from txstore.sessions.zarr_operations import Finish, is_on_loop, of_context
from txstore.storage.request_threads import in_thread
from txstore.transactions.transaction import Transaction
from txstore.zarr_private import FINDS_CODEC_THREADS

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Buffer as AnyBuffer


P = ParamSpec("P")
T = TypeVar("T")


def _call(method: Callable[Concatenate[SessionCalls, P], T]) -> Callable[Concatenate[SessionCalls, P], T]:
    """Let a method pass the session's gate. No such method calls another one."""
    return _through_the_gate(method, stages=False)


def _write(method: Callable[Concatenate[SessionCalls, P], T]) -> Callable[Concatenate[SessionCalls, P], T]:
    """Let a method that stages pass the session's gate."""
    return _through_the_gate(method, stages=True)


def _through_the_gate(
    method: Callable[Concatenate[SessionCalls, P], T], *, stages: bool
) -> Callable[Concatenate[SessionCalls, P], T]:
    @wraps(method)
    def through_the_gate(self: SessionCalls, /, *arguments: P.args, **named: P.kwargs) -> T:
        gate, me = self.session.gate, get_ident()
        try:
            gate.calls.add(me)
            if gate.is_closed:
                gate.wait_to_call()
            operation = of_context.get()
            if operation is not None and operation.has_failed:
                raise zarr_operations.late()
            if stages and operation is not None:
                operation.has_written = True
            elif stages and gate.may_be_unnoted:
                gate.note_write()
            if stages and self.session.may_count_by_operation:
                return self._in_operation(lambda: method(self, *arguments, **named))
            return method(self, *arguments, **named)
        finally:
            gate.calls.discard(me)
            if gate.is_closed:
                gate.tell()

    return through_the_gate


class SessionCalls:
    """The calls of zarr on one session. Safe in threads: each operation belongs to one transaction (`gate`)."""

    __slots__ = ("session",)

    def __init__(self, session: Session) -> None:
        self.session = session

    @property
    def _transaction(self) -> Transaction:
        current = self.session.current
        transaction = current.present  # on the hot paths
        return current.get() if transaction is None else transaction

    def _in_operation(self, call: Callable[[], T]) -> T:
        """Make a call as a part of its operation, or as an operation of its own if it belongs to none.

        At the end of each, what this process has staged is whole, if it stages into the transaction of another (I8).
        """
        transaction = self._transaction
        if not transaction.part.counts_by_operation:
            return call()
        end = transaction.lifecycle.end_operation
        operation = of_context.get()
        # A thread of the codec pipeline does not know its operation: it is one of those inside.
        of = [operation] if operation is not None else self.session.gate.inside()
        for each in of:
            if transaction.part.seals.begin_operation(each):
                finish = Finish(partial(end, each), self.session.engine.storage.dispatch)
                if not each.finish_with(finish):
                    end(each, True)  # the operation has ended already: this call came late
        if of:
            return call()
        own, has_failed = object(), True
        try:
            transaction.part.seals.begin_operation(own)
            result = call()
            has_failed = False
        finally:
            end(own, has_failed)
        return result

    # --- reading. Each method takes the transaction first: the check, and the read or write after it, must use the same
    # transaction, even while another thread commits.

    @_call
    def get_view(self, key: str) -> memoryview | None:
        """Return a value. Record a document as handed out. Raises `StaleArrayError`."""
        transaction = self._transaction
        if is_document(key):
            return self.session.held.read(key, transaction)
        if self.session.held.is_serializable:
            self.session.held.count_as_read(key, transaction)
        view = transaction.get_view(key)
        self.session.held.check_readable(key, transaction)  # only now: a read may learn of frames of other participants
        return view

    @_call
    def get_part(self, key: str, part: slice) -> memoryview | None:
        if is_document(key):
            view = self.session.held.read(key, self._transaction)
            return None if view is None else view[part]
        transaction = self._transaction
        if self.session.held.is_serializable:
            self.session.held.count_as_read(key, transaction)
        view = transaction.get_part(key, part)
        self.session.held.check_readable(key, transaction)
        return view

    @_call
    def locate(self, keys: Sequence[str]) -> Located | None:
        """Return where many chunks of the base lie, as `Snapshot.locate` does. Raises `StaleArrayError`."""
        transaction = self._transaction
        located = transaction.locate(keys)
        if not self.session.held.is_current(transaction):
            for key in keys:
                self.session.held.check_readable(key, transaction)
        return located

    @_call
    def is_foreign(self, key: str) -> bool:
        return self._transaction.staged.is_foreign(key)

    @_call
    def exists(self, key: str) -> bool:
        exists = key in self._transaction
        if not exists and is_document(key):
            self.session.held.note_absent(key, self._transaction)
        return exists

    # --- writing

    @_write
    def set(self, key: str, value: AnyBuffer) -> None:
        """Stage a value for zarr. Raises `StaleArrayError`."""
        transaction = self._transaction
        self._check_writable(key, transaction)
        transaction.set(key, value)
        if is_document(key):
            self.session.held.note_written(key, transaction)

    @_write
    def set_chunks(self, keys: Sequence[str], batch: chunks.Batch, threads: int) -> list[int]:
        """Stage many chunks. Return the rows that the caller has to set one by one. Raises `StaleArrayError`."""
        transaction = self._transaction
        for key in keys:
            self._check_writable(key, transaction)
        return transaction.set_chunks(keys, batch, threads)

    @_write
    def modify(self, key: str, change: Callable[[memoryview | None], AnyBuffer | None], region: Region) -> None:
        """Write a part of a chunk. Raises `StaleArrayError`."""
        transaction = self._transaction
        self._check_writable(key, transaction)
        transaction.modify(key, change, region)

    @_write
    def set_reference(
        self,
        key: str,
        url: str | os.PathLike[str],
        offset: int,
        length: int | None,
        *,
        size: int | None,
        version: str | None,
    ) -> None:
        """Stage a reference to a value in a file outside."""
        transaction = self._transaction
        self._check_writable(key, transaction)
        transaction.set_reference(key, url, offset, length, size=size, version=version)

    @_write
    def set_references(
        self, keys: Sequence[str], urls: Sequence[str], offsets: npt.ArrayLike, lengths: npt.ArrayLike
    ) -> None:
        """Stage many references."""
        transaction = self._transaction
        for key in keys:
            self._check_writable(key, transaction)
        transaction.set_references(keys, urls, offsets, lengths)

    @_write
    def delete(self, key: str) -> None:
        transaction = self._transaction
        self._check_writable(key, transaction)
        transaction.delete(key)
        if key in self.session.held.handed_out:
            self.session.held.hold(key, transaction)

    @_write
    def delete_dir(self, path: str) -> None:
        transaction = self._transaction
        transaction.delete_dir(path)
        self.session.held.replace_below(path, transaction)

    @_write
    def move(self, source: str, destination: str) -> None:
        """Move a node. Objects that were opened at its old path are stale afterwards."""
        transaction = self._transaction
        transaction.nodes.move(source, destination)
        self.session.held.move_below(source, destination)

    @_write
    def copy(self, source: str, destination: str, at: Snapshot | None) -> None:
        self._transaction.nodes.copy(source, destination, at)

    @_write
    def rely_on(self, keys: Iterable[str]) -> None:
        """Count keys as read, at any isolation."""
        transaction = self._transaction
        for key in keys:
            transaction.rely_on_base(key)

    @_write
    def move_chunks(self, moves: Mapping[str, ChunkMoves]) -> None:
        """Move the chunks below some paths by reference."""
        transaction = self._transaction
        transaction.nodes.move_chunks(moves)
        for path in moves:
            self.session.held.replace_below(path, transaction)

    @_write
    def restore(self, path: str, at: Snapshot) -> None:
        """Restore everything below a path. Objects whose documents change by that are stale afterwards."""
        transaction = self._transaction
        before = self.session.held.contents_below(path, transaction)
        transaction.nodes.restore(path, at)
        self.session.held.restore_below(before, transaction)

    def _check_writable(self, key: str, transaction: Transaction) -> None:
        held = self.session.held
        document = held.stale_for_write(key, transaction)
        if document is None:
            return
        error = held.error_of(document)
        # The operation may be half done: a resize deletes chunks first. If it has not begun, no rollback is needed: the
        # caller opens the array again and goes on.
        if held.is_of_older_transaction(document) or self.session.gate.has_begun_to_write():
            transaction.lifecycle.fail(error)
        elif (operation := of_context.get()) is not None:
            operation.refuse()
        raise error


#: Number of keys that a listing takes from its thread at a time.
_PAGE = 1000
#: Listing a group prefetches the documents of this many members: more would evict each other from the cache.
_MEMBERS = 10_000


class ZarrInterface(Store, ChunkStore):
    """What zarr calls: a writer's calls are part of its session's transaction, a reader reads a snapshot."""

    supports_writes: bool = True
    supports_deletes: bool = True
    supports_listing: bool = True

    def __init__(self, engine: Engine, position: Position, session: Session | None, read_only: bool) -> None:
        super().__init__(read_only=read_only)
        self._engine = engine
        self._use(session)
        if session is None:  # a writer moves on: a pin on its first position would keep later commits from expiring
            self._reads_at = position

    def _use(self, session: Session | None) -> None:
        self._session = session
        self._calls = None if session is None else SessionCalls(session)

    @property
    def mapping(self) -> Transaction | Snapshot:
        """The same keys and values as a `MutableMapping` until the next commit. For a reader, a `Mapping`."""
        return self._position.snapshot() if self._session is None else self._session.transaction

    @property
    def _position(self) -> Position:
        """The position of the store. A writer's position moves with its session."""
        return self._reads_at if self._session is None else self._session.current.position

    @property
    def _view(self) -> SessionCalls | Snapshot:
        return self._calls or self._position.snapshot()

    def _writer(self) -> SessionCalls:
        if self.read_only or self._calls is None:
            raise ValueError("store was opened in read-only mode and does not support writing")
        return self._calls

    # --- zarr's synchronous API: the fused codec pipeline calls it from threads

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return a value, or a part of it, as a view of the mapped file. None if the key does not exist."""
        self._is_open = True
        if not key:
            return None
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
        """Return a value. If a client once wrote consolidated metadata, a reader gets current consolidated metadata.

        A writer gets no consolidated metadata: a group object would then cache the shapes of its arrays, and a second
        append would overwrite the first.
        """
        view = self._view.get_view(key)
        if view is None or not is_marked(key, bytes(view)):
            return view
        if not self.read_only:
            return None if is_consolidated(key) else view
        # Read through the session, which records the documents that array objects hold.
        return memoryview(consolidated_at(_Documents(self._view.get_view, self._list_dir), key))

    def set_sync(self, key: str, value: Buffer) -> None:
        """Stage a value. This copies the value before it returns."""
        self._is_open = True
        writer = self._writer()
        if not isinstance(value, Buffer):
            raise TypeError(f"TxStore.set() takes a zarr Buffer, not {type(value).__name__}; use store[key] = bytes")
        writer.set(key, _contiguous(value))

    def delete_sync(self, key: str) -> None:
        """Stage the deletion of a key. The key need not exist."""
        self._is_open = True
        writer = self._writer()
        if key:
            writer.delete(key)

    def delete_dir_sync(self, prefix: str) -> None:
        """Stage the deletion of everything below a path."""
        self._is_open = True
        self._writer().delete_dir(prefix)

    # --- the API for TxStore's codec pipeline

    @property
    def is_fetched(self) -> bool:
        return self._engine.snapshots.is_ranged

    @property
    def decoded_chunks(self) -> tuple[ChunkCache, int] | None:
        cache = self._engine.chunk_cache
        if self._session is not None or not cache:  # what a transaction has staged may change
            return None
        found = self._position.found  # else the first read finds it, in a thread
        return None if found is None else (cache, found.number)

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

    # --- zarr's asynchronous API. On a local disk, staging writes to the page cache, so it stays on the event loop.
    # Methods that send requests, or read files outside the repository, do so in a thread.

    @property
    def _supports_sync_io(self) -> bool:
        """Whether zarr's fused pipeline may call from threads. False if the operation has to wait: no thread may block.

        The pipeline asks before each batch.
        """
        session = self._session
        # If TxStore may refuse a write, each chunk has to be a task: a task knows the operation that it belongs to.
        return session is None or (FINDS_CODEC_THREADS and session.gate.may_enter() and session.holds_newest)

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
        if not self._engine.snapshots.is_ranged:
            if not key or not self._view.is_foreign(key):
                return self.get_sync(key, prototype=prototype, byte_range=byte_range)
        elif (
            session is None
            and byte_range is None
            and key
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
        if not key:
            return False
        return key in self.mapping if self._calls is None else self._calls.exists(key)

    async def set(self, key: str, value: Buffer) -> None:
        session = self._session
        if session is not None and not session.gate.may_enter():  # `let_in`, on the hot paths
            await session.gate.enter()
        await self._engine.storage.dispatch.awaited(self.set_sync, key, value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        if not await self._do(self._writer().exists, key):
            await self.set(key, value)

    async def delete(self, key: str) -> None:
        await self._do(self.delete_sync, key)

    async def delete_dir(self, prefix: str) -> None:
        await self._do(self.delete_dir_sync, prefix)

    async def is_empty(self, prefix: str) -> bool:
        return not await self._do(lambda: self.mapping.has_keys_below(prefix))

    async def list(self) -> AsyncIterator[str]:
        async for key in self._listed(lambda: iter(self.mapping)):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        # The prefix is a path, as in LocalStore, not any string. zarr's own `nchunks_initialized` passes a path, and a
        # string prefix would count the chunks of `positions` for `position`.
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
        # A caller that lists a group reads its members' documents next, one by one. This fetches them together.
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
        size = await self._do(lambda: self.mapping.size_of(key) if key else None)
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
        """Whether the caller should use consolidated metadata. True only for zarr itself, in an operation.

        There a user has asked for it. xarray asks in the user's thread. If this were True, xarray would consolidate at
        every write, and warn at every opening that finds none. TxStore's look-ups are fast without a second copy.
        """
        return is_on_loop()


class _Documents(NamedTuple):
    """The source of consolidated metadata."""

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

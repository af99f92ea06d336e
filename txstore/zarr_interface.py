"""Implements zarr's `Store` over a session or a snapshot, with what TxStore's codec pipeline calls beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.buffer import default_buffer_prototype

from txstore._native import chunks
from txstore.codecs.chunk_cache import ChunkCache
from txstore.engine import Engine, Position
from txstore.format.consolidated import consolidated_at, is_consolidated, is_marked, may_be_consolidated
from txstore.format.keys import DOCUMENT_NAMES, directory_prefix, documents_of_members
from txstore.format.regions import Region
from txstore.pipeline.chunk_store import ChunkStore
from txstore.pipeline.registration import register
from txstore.segments.runs import Located
from txstore.sessions.calls import SessionCalls
from txstore.sessions.session import Session
from txstore.sessions.zarr_operations import is_on_loop
from txstore.storage.request_threads import in_thread
from txstore.zarr_private import FINDS_CODEC_THREADS

if TYPE_CHECKING:
    from txstore.history.snapshot import Snapshot
    from txstore.transactions.transaction import Transaction

T = TypeVar("T")

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

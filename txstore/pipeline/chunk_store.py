"""ChunkStore: the methods that the pipeline calls on a store, besides zarr's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from txstore._native import chunks
from txstore.codecs.chunk_cache import ChunkCache
from txstore.format.regions import Region
from txstore.segments.runs import Located


class ChunkStore(ABC):
    """A store that reads and stages many chunks at once, and parts of chunks as such."""

    @abstractmethod
    async def let_in(self) -> None:
        """Begin the current operation: it waits for a running commit, and later commits wait for it."""

    @property
    @abstractmethod
    def is_fetched(self) -> bool:
        """Whether `locate` makes requests, and brings the values with it."""

    @property
    @abstractmethod
    def decoded_chunks(self) -> tuple[ChunkCache, int] | None:
        """The cache of decoded chunks, and the number of the snapshot that is read. None if there is none to use."""

    @abstractmethod
    def locate(self, keys: Sequence[str]) -> Located | None:
        """Return where many values lie; None if each has to be asked for by itself."""

    @abstractmethod
    async def await_located(self, keys: Sequence[str]) -> Located | None:
        """Return what `locate` does, and fetch few small values without a thread. None if that takes one."""

    @abstractmethod
    def set_chunks(self, keys: Sequence[str], batch: chunks.Batch, threads: int) -> list[int]:
        """Stage many values, as a batch encodes them; return which rows have to be set one by one."""

    @abstractmethod
    def modify(self, key: str, change: Callable[[memoryview | None], memoryview | None], region: Region) -> None:
        """Write a part of a chunk; see `Transaction.modify`."""

    @abstractmethod
    def give_up(self, reason: str) -> None:
        """Mark the transaction as failed, so that only a rollback is possible: an operation failed after staging."""

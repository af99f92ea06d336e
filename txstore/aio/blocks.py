"""Implements `async with` over the `with` block of a store, and tells what became of a commit that was cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from txstore.aio.calls import call, result_of, start
from txstore.commit import Commit
from txstore.errors import TransactionStateError
from txstore.store import TxStore


class TransactionBlock:
    """A transaction: a store, its `async with` block, and the outcome of its last commit."""

    def __init__(self, store: TxStore) -> None:
        #: The store to give to zarr and xarray. Its own methods are synchronous.
        self.store = store
        self._commit: Future[Commit | None] | None = None  # the last one

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.store!r}>"

    @property
    def is_committing(self) -> bool:
        """Whether a commit runs in its thread: one that a task waits for, or one whose task was cancelled."""
        return self._commit is not None and not self._commit.done()

    async def outcome(self) -> Commit | None:
        """Wait for the end of the last commit, and return or raise what it did. For a commit that was cancelled.

        The last commit is the last call of `commit`, or that of the end of an `async with` block. Returns the commit,
        or None if it made none. Raises `TransactionStateError` if no commit has begun: nothing was published.
        """
        if self._commit is None:
            raise TransactionStateError("no commit of this transaction has begun: nothing was published", state="open")
        return await result_of(self._commit)

    async def _committed(self, commit: Callable[[], Commit | None]) -> Commit | None:
        self._commit = start(commit)
        return await result_of(self._commit)

    async def __aenter__(self) -> Self:
        await result_of(start(self.store.__enter__), undo=_roll_back)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self._committed(self._end)
        elif self.is_committing:
            start(lambda: self.store.__exit__(kind))  # when that commit has ended: its task does not wait for it
        else:
            await call(self.store.__exit__, kind)

    def _end(self) -> Commit | None:
        before = self.store.base
        self.store.__exit__(None)
        after = self.store.base
        return None if after == before else after


def _roll_back(store: TxStore) -> None:
    """Roll back a store that nobody holds: its task was cancelled. The `with` block has been entered."""
    store.__exit__(asyncio.CancelledError)


B = TypeVar("B", bound=TransactionBlock)


class Beginning(Generic[B]):
    """A transaction that begins when you `await` this, or enter it: `async with repo.transaction() as tx`."""

    def __init__(self, kind: Callable[[TxStore], B], begin: Callable[[], TxStore]) -> None:
        self._kind = kind
        self._begin = begin
        self._entered: list[B] = []

    def __await__(self) -> Generator[Any, None, B]:
        return self._begun(self._begin, _drop).__await__()

    async def _begun(self, begin: Callable[[], TxStore], undo: Callable[[TxStore], None]) -> B:
        return self._kind(await result_of(start(begin), undo=undo))

    async def __aenter__(self) -> B:
        self._entered.append(await self._begun(lambda: self._begin().__enter__(), _roll_back))
        return self._entered[-1]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._entered.pop().__aexit__(kind, error, trace)


def _drop(store: TxStore) -> None:
    _roll_back(store.__enter__())

"""The asynchronous face of repositories and transactions: the methods of the synchronous classes, each in a thread.

What is more than a call in a thread is written here. The other methods are made when this module is imported. For
type checkers, `aio_stub.py` writes `__init__.pyi` from this file and the synchronous classes.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from concurrent.futures import Future
from functools import partial
from types import FunctionType, TracebackType
from typing import Any, Generic, Self, TypeVar

from txstore.aio.calls import Listing, call, call_back, result_of, start
from txstore.commit import MAIN, Commit
from txstore.deriving.definitions import ViewDefinition
from txstore.errors import TransactionStateError
from txstore.format.constraints import Constraint
from txstore.history.find import At
from txstore.history.follow import follow
from txstore.history.operations import LoggedOperation
from txstore.repository import Repository
from txstore.store import TxStore
from txstore.views.following import DeclaredView

V = TypeVar("V")  # what a mapping gives
S = TypeVar("S")  # what it takes
T = TypeVar("T")


async def open(*arguments: Any, **named: Any) -> AsyncRepository:
    """Open a repository. The parameters are those of `Repository`."""
    return AsyncRepository(await call(Repository, *arguments, **named))


class AsyncMapping(Generic[V, S]):
    """A mapping by name: `await mapping[name]`, `await mapping.set(name, value)`, `async for name in mapping`.

    Errors are those of the synchronous mapping; `await mapping[name]` raises `KeyError`.
    """

    def __init__(self, open_it: Callable[[], Any]) -> None:
        self._open = open_it

    async def __getitem__(self, name: str) -> V:
        found: V = await call(lambda: self._open()[name])
        return found

    async def get(self, name: str) -> V | None:
        """Return the value of a name, None if there is none."""
        return await call(lambda: self._open().get(name))

    async def set(self, name: str, value: S) -> None:
        """Do as `mapping[name] = value` does."""
        await call(lambda: self._open().__setitem__(name, value))

    async def delete(self, name: str) -> None:
        """Do as `del mapping[name]` does."""
        await call(lambda: self._open().__delitem__(name))

    def __aiter__(self) -> AsyncIterator[str]:
        return aiter(self.keys())

    def keys(self) -> Listing[str]:
        """Return the names: await them, or iterate over them."""
        return Listing(lambda: iter(self._open()))

    def items(self) -> Listing[tuple[str, V]]:
        """Return names and values: await them, or iterate over them."""
        return Listing(lambda: self._open().items())


class AsyncBranches(AsyncMapping[Commit, At | None]):
    """The branches of a repository, as `Repository.branches`."""

    async def rename(self, name: str, new: str) -> None:
        """Rename a branch, durably. Its readers and writers continue.

        Raises `KeyError` if there is no such branch, `ValueError` for the first branch or if the new name is used.
        """
        await call(lambda: self._open().rename(name, new))


class AsyncTransaction:
    """A transaction for tasks of an event loop: what `TxStore` offers beyond zarr, each in a thread.

    `store` is the ordinary `TxStore`: give it to zarr, `zarr.api.asynchronous` and xarray. `async with` commits on a
    clean exit and rolls back on an exception. If the task is cancelled while it commits, the commit goes on to its end:
    `is_committing` tells whether it still runs, and `await outcome()` returns or raises what came of it.
    """

    store: TxStore

    def __init__(self, store: TxStore) -> None:
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

    @property
    def constraints(self) -> AsyncMapping[Constraint, Constraint]:
        return AsyncMapping(lambda: self.store.constraints)

    @property
    def views(self) -> AsyncMapping[ViewDefinition, ViewDefinition]:
        return AsyncMapping(lambda: self.store.views)

    async def commit(self, *arguments: Any, **named: Any) -> Commit | None:
        """If this is cancelled, the commit goes on to its end: see `outcome`."""
        return await self._committed(partial(self.store.commit, *arguments, **named))

    async def latest(self) -> AsyncTransaction:
        return AsyncTransaction(await call(self.store.latest))


def _roll_back(store: TxStore) -> None:
    """Roll back a store that nobody holds: its task was cancelled. The `with` block has been entered."""
    store.__exit__(asyncio.CancelledError)


class Beginning:
    """A transaction that begins when you `await` this, or enter it: `async with repo.transaction() as tx`."""

    def __init__(self, begin: Callable[[], TxStore]) -> None:
        self._begin = begin
        self._entered: list[AsyncTransaction] = []

    def __await__(self) -> Generator[Any, None, AsyncTransaction]:
        return self._begun(self._begin, _drop).__await__()

    async def _begun(self, begin: Callable[[], TxStore], undo: Callable[[TxStore], None]) -> AsyncTransaction:
        return AsyncTransaction(await result_of(start(begin), undo=undo))

    async def __aenter__(self) -> AsyncTransaction:
        self._entered.append(await self._begun(lambda: self._begin().__enter__(), _roll_back))
        return self._entered[-1]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._entered.pop().__aexit__(kind, error, trace)


def _drop(store: TxStore) -> None:
    _roll_back(store.__enter__())


class AsyncRepository:
    """A repository for tasks of an event loop: each method of `Repository`, in a thread of its own.

    `await aio.open(url)` makes one, or `AsyncRepository(repo)` of a `Repository`, which is then `repository`. Any
    number of tasks may share it. Errors are those of `Repository`. If a task is cancelled, it stops waiting at once;
    what it has called goes on to its end in its thread. Functions that you pass, such as `progress`, are called in that
    thread, except asynchronous ones, which get a store: these run as a task of your loop.
    """

    repository: Repository

    def __init__(self, repository: Repository) -> None:
        self.repository = repository

    def __repr__(self) -> str:
        return f"<AsyncRepository {self.repository.url}>"

    def transaction(self, *arguments: Any, **named: Any) -> Beginning:
        """Begin a transaction when you `await` this or enter it, as an `AsyncTransaction` with this store."""
        return Beginning(partial(self.repository.transaction, *arguments, **named))

    async def run(self, fn: Callable[[TxStore], Awaitable[T]], **named: Any) -> T:
        """`fn` is an asynchronous function. If this is cancelled, so is `fn`, and it is not tried again."""
        return await call_back(lambda called: self.repository.run(called, **named), fn)

    def log(self, *arguments: Any, **named: Any) -> Listing[Commit | LoggedOperation]:
        """Await this for a list, or read it page by page with `async for`."""
        return Listing(partial(self.repository.log, *arguments, **named))

    async def bisect(self, good: At, bad: At, test: Callable[[TxStore], Awaitable[bool]], **named: Any) -> Commit:
        """`test` is an asynchronous function."""
        return await call_back(lambda called: self.repository.bisect(good, bad, called, **named), test)

    async def follow(
        self, branch: str = MAIN, *, since: At | None = None, timeout: float | None = None
    ) -> AsyncGenerator[Commit, None]:
        """Iterate with `async for`. A thread waits meanwhile; it ends within a second when the iteration does."""
        engine, given_up = self.repository.engine, threading.Event()
        commits = await call(
            lambda: follow(engine.commits, engine.branch(branch), since, timeout, is_given_up=given_up.is_set)
        )
        reading = None
        try:
            while True:
                reading = start(lambda: next(commits, None))
                found = await result_of(reading)
                if found is None:
                    return
                yield found
        finally:
            given_up.set()
            if reading is None or reading.done():
                commits.close()
            else:
                reading.add_done_callback(lambda _: commits.close())

    @property
    def branches(self) -> AsyncBranches:
        return AsyncBranches(lambda: self.repository.branches)

    @property
    def tags(self) -> AsyncMapping[Commit, At | None]:
        return AsyncMapping(lambda: self.repository.tags)

    @property
    def constraints(self) -> AsyncMapping[Constraint, Constraint]:
        return AsyncMapping(lambda: self.repository.constraints)

    @property
    def views(self) -> AsyncMapping[DeclaredView, ViewDefinition]:
        return AsyncMapping(lambda: self.repository.views)


#: Properties that read nothing, and stay properties. The others become methods.
AT_HAND = {"url", "branch", "chunk_cache", "staged_count", "unchanged"}
#: `lock` belongs to the thread that enters it; a feed moves `cursors`; the others make or compare stores.
LEFT_OUT = {"at_base", "cursors", "is_in_transaction_of", "lock", "with_read_only"}


def _fill(face: type, synchronous: type, attribute: str) -> None:
    """Give a face all public methods of the class of an attribute: as the face has them, or as calls in a thread."""
    for name, theirs in vars(synchronous).items():
        if isinstance(theirs, FunctionType | property) and not name.startswith("_") and name not in LEFT_OUT:
            ours = vars(face).get(name) or _called(attribute, name, theirs)
            setattr(face, name, _described(ours, theirs, f"{face.__name__}.{name}"))


def _called(attribute: str, name: str, theirs: FunctionType | property) -> Any:
    def read(self: Any) -> Any:
        return getattr(getattr(self, attribute), name)

    async def read_in_thread(self: Any) -> Any:
        return await call(read, self)

    async def call_in_thread(self: Any, *arguments: Any, **named: Any) -> Any:
        return await call(read(self), *arguments, **named)

    if name in AT_HAND:
        return property(read)
    return read_in_thread if isinstance(theirs, property) else call_in_thread


def _described(ours: Any, theirs: Any, name: str) -> Any:
    """Give ours the parameters and the docstring of theirs. Annotations stay where they say more than `Any`.

    Our docstring comes behind the first paragraph of theirs, or in its place if that says what a class is.
    """
    if isinstance(ours, property):
        return property(_described(ours.fget, theirs, name))
    there: Any = theirs.fget if isinstance(theirs, property) else theirs
    signature = inspect.signature(there)
    types = {each.name: each.annotation for each in signature.parameters.values() if each.name != "self"}
    types["return"] = signature.return_annotation
    types |= {each: said for each, said in ours.__annotations__.items() if said != "Any"}
    parameters = [each.replace(annotation=types.get(each.name, each.empty)) for each in signature.parameters.values()]
    ours.__signature__ = signature.replace(parameters=parameters, return_annotation=types["return"])
    ours.__annotations__ = types
    told = re.sub(r"\n*Examples\n-{8}\n.*", "", inspect.getdoc(there) or "", flags=re.DOTALL)  # they await nothing
    first, _, rest = told.partition("\n\n")
    paragraphs = [inspect.getdoc(ours), rest] if isinstance(there, type) else [first, inspect.getdoc(ours), rest]
    ours.__doc__ = "\n\n".join(filter(None, paragraphs))
    ours.__name__, ours.__qualname__ = name.rpartition(".")[2], name
    return ours


_fill(AsyncTransaction, TxStore, "store")
_fill(AsyncRepository, Repository, "repository")
_described(open, Repository, "open")

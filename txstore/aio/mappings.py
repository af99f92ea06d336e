"""The asynchronous face of the mappings of a repository: of branches, tags, constraints and views."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, MutableMapping
from typing import Any, Generic, TypeVar

from txstore.aio.calls import Listing, call

V = TypeVar("V")  # what the mapping gives
S = TypeVar("S")  # what it takes
M = TypeVar("M", bound=MutableMapping[str, Any])


class AsyncMapping(Generic[M, V, S]):
    """A mapping by name: `await mapping[name]`, `await mapping.set(name, value)`, `async for name in mapping`.

    Errors are those of the synchronous mapping; `await mapping[name]` raises `KeyError`.
    """

    def __init__(self, open_it: Callable[[], M]) -> None:
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

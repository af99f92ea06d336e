"""Declares what lower wings need of stores and repositories, which are in higher wings and call them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from txstore.commit import Commit
from txstore.format.chunk_moves import ChunkMoves
from txstore.format.mapping import Hierarchy
from txstore.history.find import At
from txstore.history.snapshot import Snapshot

if TYPE_CHECKING:
    from typing import Self

    from zarr.abc.store import Store

T = TypeVar("T")


class AnyStore(Protocol):
    """A store of a transaction, or one that reads a commit; `txstore.TxStore` documents each method."""

    @property
    def base(self) -> Commit | None: ...

    @property
    def read_only(self) -> bool: ...

    @property
    def mapping(self) -> Hierarchy: ...

    @property
    def views(self) -> Any: ...

    def __setitem__(self, key: str, value: Any) -> None: ...

    def __delitem__(self, key: str) -> None: ...

    def at_base(self) -> Self: ...

    def commit(self, message: str | None = None) -> Commit | None: ...

    def rollback(self) -> None: ...

    def is_in_transaction_of(self, other: object) -> bool: ...

    def move_chunks(self, moves: Mapping[str, ChunkMoves]) -> None: ...

    def rely_on(self, keys: Iterable[str]) -> None: ...


class AnyRepository(Protocol):
    """A repository; `txstore.Repository` documents each method."""

    @property
    def exists(self) -> bool: ...

    def head(self, branch: str = ...) -> Commit | None: ...

    def mapping(self, at: At | None = None, *, branch: str = ..., tag: str | None = None) -> Snapshot: ...

    def snapshot(self, at: At | None = None, *, branch: str = ..., tag: str | None = None) -> Any: ...

    def transaction(self, message: str | None = None, *, branch: str = ...) -> AbstractContextManager[AnyStore]: ...

    def run(self, fn: Callable[[Any], T], *, timeout: float = ..., **transaction_arguments: Any) -> T: ...


def zarr_store(store: AnyStore) -> Store:
    """Return the same store, as the type that zarr's functions take."""
    return cast("Store", store)


def check_store(store: AnyStore) -> None:
    """Raise `TypeError` for what is no store: a transaction of `begin`, for example, is a mapping."""
    if not (hasattr(store, "at_base") and hasattr(store, "read_only")):
        raise TypeError(
            f"this is a {type(store).__name__}, and a store is wanted, as `with repo.transaction() as store` has, or "
            "`repo.run` gives its function"
        )

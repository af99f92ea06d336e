"""Declares what this wing needs of stores and repositories: nothing but their public methods.

`txstore.TxStore` and `txstore.Repository` are in higher wings, and call this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from txstore.commit import Commit
from txstore.format.chunk_moves import ChunkMoves

if TYPE_CHECKING:
    from typing import Self

    from zarr.abc.store import Store

T = TypeVar("T")


class LabelStore(Protocol):
    """A store of a transaction, or one that reads a commit; `txstore.TxStore` documents each method."""

    @property
    def base(self) -> Commit | None: ...

    @property
    def read_only(self) -> bool: ...

    @property
    def views(self) -> Mapping[str, Any]: ...

    def __setitem__(self, key: str, value: Any) -> None: ...

    def at_base(self) -> Self: ...

    def is_in_transaction_of(self, other: object) -> bool: ...

    def move_chunks(self, moves: Mapping[str, ChunkMoves]) -> None: ...

    def rely_on(self, keys: Iterable[str]) -> None: ...


class LabelRepository(Protocol):
    """A repository; `txstore.Repository` documents each method."""

    @property
    def exists(self) -> bool: ...

    def head(self, branch: str = ...) -> Commit | None: ...

    def snapshot(self, at: Any = None, *, branch: str = ..., tag: str | None = None) -> Any: ...

    def run(self, fn: Callable[[Any], T], *, timeout: float = ..., **transaction_arguments: Any) -> T: ...


def zarr_store(store: LabelStore) -> Store:
    """Return the same store, as the type that zarr's functions take."""
    return cast("Store", store)


def check_store(store: LabelStore) -> None:
    """Raise `TypeError` for what is no store: a transaction of `begin`, for example, is a mapping."""
    if not (hasattr(store, "at_base") and hasattr(store, "read_only")):
        raise TypeError(
            f"this is a {type(store).__name__}, and a store is wanted, as `with repo.transaction() as store` has, or "
            "`repo.run` gives its function"
        )

"""Declares what this wing needs of stores and repositories, which are in higher wings and call it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from txstore.commit import Commit
from txstore.deriving.declared import Backfill
from txstore.deriving.definitions import ViewDefinition
from txstore.format.mapping import Hierarchy
from txstore.history.find import At
from txstore.history.snapshot import Snapshot

if TYPE_CHECKING:
    from typing import Self


class StoreViews(Protocol):
    """The views of a transaction: `faces.Views`."""

    def __getitem__(self, name: str) -> ViewDefinition: ...

    @property
    def bring_to(self) -> Callable[[str, Commit | Backfill], None]: ...


class ViewStore(Protocol):
    """A store of a transaction; `txstore.TxStore` documents each method."""

    @property
    def mapping(self) -> Hierarchy: ...

    @property
    def views(self) -> StoreViews: ...

    def __setitem__(self, key: str, value: Any) -> None: ...

    def __delitem__(self, key: str) -> None: ...

    def at_base(self) -> Self: ...

    def commit(self, message: str | None = None) -> Commit | None: ...

    def rollback(self) -> None: ...


class ViewRepository(Protocol):
    """A repository; `txstore.Repository` documents each method."""

    def mapping(self, at: At | None = None, *, branch: str = ...) -> Snapshot: ...

    def transaction(self, message: str | None = None, *, branch: str = ...) -> AbstractContextManager[ViewStore]: ...

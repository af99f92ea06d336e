"""Declares what this wing needs of stores and repositories, which are in higher wings and call it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from txstore.commit import Commit
from txstore.format.mapping import Hierarchy
from txstore.history.find import At
from txstore.history.snapshot import Snapshot
from txstore.views.faces import Views

if TYPE_CHECKING:
    from typing import Self


class ViewStore(Protocol):
    """A store of a transaction; `txstore.TxStore` documents each method."""

    @property
    def mapping(self) -> Hierarchy: ...

    @property
    def views(self) -> Views: ...

    def __setitem__(self, key: str, value: Any) -> None: ...

    def __delitem__(self, key: str) -> None: ...

    def at_base(self) -> Self: ...

    def commit(self, message: str | None = None) -> Commit | None: ...

    def rollback(self) -> None: ...


class ViewRepository(Protocol):
    """A repository; `txstore.Repository` documents each method."""

    def mapping(self, at: At | None = None, *, branch: str = ...) -> Snapshot: ...

    def transaction(self, message: str | None = None, *, branch: str = ...) -> AbstractContextManager[ViewStore]: ...

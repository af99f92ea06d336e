"""Declares what import and export need of `txstore.Repository`, which is in a higher wing and calls them."""

from __future__ import annotations

from collections.abc import Generator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol

from txstore.commit import Commit
from txstore.engine import Engine
from txstore.history.find import At
from txstore.history.snapshot import Snapshot
from txstore.transactions.participants.named import NamedTransaction

if TYPE_CHECKING:
    from txstore.store import TxStore


class Facade(Protocol):
    """One opened repository; `txstore.Repository` documents each method."""

    engine: Engine

    @property
    def url(self) -> str: ...

    @property
    def id(self) -> str: ...

    @property
    def tags(self) -> MutableMapping[str, Commit]: ...

    def transaction(
        self,
        message: str | None = None,
        *,
        name: str | None = None,
        branch: str = ...,
        properties: Mapping[str, Any] | None = None,
    ) -> TxStore: ...

    def transactions(self) -> list[NamedTransaction]: ...

    def mapping(self, at: At | None = None, *, branch: str = ..., tag: str | None = None) -> Snapshot: ...

    def head(self, branch: str = ...) -> Commit | None: ...

    def commit(self, at: At, *, branch: str = ...) -> Commit: ...

    def resolve(self, commit_id: str) -> Commit | None: ...

    def follow(
        self, branch: str = ..., *, since: At | None = None, timeout: float | None = None
    ) -> Generator[Commit, None, None]: ...

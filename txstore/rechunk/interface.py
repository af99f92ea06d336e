"""Declares what this wing needs of `txstore.Repository`, which is in a higher wing and calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from txstore.commit import Commit
from txstore.engine import Engine
from txstore.history.find import At

if TYPE_CHECKING:
    from txstore.history.branches import Branches
    from txstore.history.log import Log
    from txstore.store import TxStore

T = TypeVar("T")


class RechunkRepository(Protocol):
    """A repository; `txstore.Repository` documents each method."""

    engine: Engine

    @property
    def branches(self) -> Branches: ...

    def head(self, branch: str = ...) -> Commit | None: ...

    def snapshot(self, at: At | None = None, *, branch: str = ..., tag: str | None = None) -> TxStore: ...

    def log(self, branch: str = ...) -> Log: ...

    def transaction(
        self, message: str | None = None, *, branch: str = ..., properties: Mapping[str, Any] | None = None
    ) -> TxStore: ...

    def run(self, fn: Callable[[TxStore], T], *, timeout: float = ..., **transaction_arguments: Any) -> T: ...

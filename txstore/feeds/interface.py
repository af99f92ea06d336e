"""Declares what this wing needs of `txstore.Repository`, which is in a higher wing and calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from txstore.engine import Engine

if TYPE_CHECKING:
    from txstore.store import TxStore

T = TypeVar("T")


class FeedRepository(Protocol):
    """A repository; `txstore.Repository` documents each method."""

    engine: Engine

    @property
    def url(self) -> str: ...

    @property
    def id(self) -> str: ...

    def transaction(
        self, message: str | None = None, *, branch: str = ..., properties: Mapping[str, Any] | None = None
    ) -> TxStore: ...

    def run(self, fn: Callable[[TxStore], T], *, timeout: float = ..., **transaction_arguments: Any) -> T: ...

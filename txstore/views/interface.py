"""Declares what this wing needs of stores and repositories, which are in higher wings and call it."""

from __future__ import annotations

from typing import Any, Protocol

from txstore.format.mapping import Hierarchy


class ViewStore(Protocol):
    """A store of a transaction; `txstore.TxStore` documents each method."""

    @property
    def mapping(self) -> Hierarchy: ...

    def __setitem__(self, key: str, value: Any) -> None: ...

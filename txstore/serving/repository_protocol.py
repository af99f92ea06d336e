"""Declares what serving needs of `txstore.Repository`, which is in a higher wing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from txstore.comparing.diff import Diff
from txstore.engine import Engine
from txstore.history.find import At

if TYPE_CHECKING:
    from txstore.comparing.blame import Blame


class Served(Protocol):
    """One opened repository; `txstore.Repository` documents the methods."""

    engine: Engine

    @property
    def url(self) -> str: ...

    @property
    def id(self) -> str: ...

    def blame(self, path: str, at: At | None = None, *, branch: str = ...) -> Blame: ...

    def diff(self, a: At, b: At | None = None) -> Diff: ...

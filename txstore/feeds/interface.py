"""Declares what this wing needs of `txstore.Repository`, which is in a higher wing and calls it."""

from __future__ import annotations

from typing import Protocol

from txstore.engine import Engine


class FeedRepository(Protocol):
    """A repository; `txstore.Repository` documents each member."""

    engine: Engine

    @property
    def url(self) -> str: ...

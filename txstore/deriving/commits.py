"""Declares what views need of a commit that is being made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from txstore.format.documents import Described

#: What is stored under a key; None, nothing.
Value = bytes | memoryview | None


class DerivableCommit(Protocol):
    """The state of the head after a commit on top of it. `format.constraints.Outcome` documents most of it."""

    def before(self, path: str) -> Described | None: ...

    def document(self, key: str) -> Value:
        """Return a document, as it will be."""

    def value(self, key: str) -> Value:
        """Return what will be stored under a key."""

    def value_before(self, key: str) -> Value:
        """Return what is stored under a key at the head."""

    def __contains__(self, key: str) -> bool: ...

    def rewrites(self, path: str) -> bool: ...

    def remakes(self, path: str) -> bool: ...

    def restructures(self, path: str) -> bool: ...

    def clears_below(self, path: str) -> bool: ...

    def changed_below(self, path: str) -> Iterator[str]: ...

    def fetch(self, keys: Sequence[str]) -> None: ...

    def put(self, key: str, value: bytes | None) -> None:
        """Set a key besides what the commit changes, or delete it. From now on the commit has changed it."""

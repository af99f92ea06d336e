"""The cursor of one feed in the commits of a branch: reads it at the head, and moves it in commits of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from txstore.errors import ConflictError, CorruptionError, FeedNotFoundError
from txstore.format.cursors import Cursor, Shares, mark_of

if TYPE_CHECKING:
    from txstore.engine import Engine
    from txstore.history.declarations import Cursors

T = TypeVar("T")

#: Commits that only move a cursor conflict with nothing but other moves of it: these come in between, at most.
_TRIES = 100


class KeptCursor:
    """Where a feed keeps its cursor: a name, and a branch, which is the one that its job commits to."""

    def __init__(self, engine: Engine, name: str, branch: str) -> None:
        """`branch` is the branch's name."""
        self.engine = engine
        self.name = name
        self.branch = branch

    def written(self) -> Mapping[str, Any]:
        """Return all cursors of the branch's newest commit."""
        return self.engine.newest(self.engine.branch(self.branch)).declared.cursors

    def read(self) -> Cursor:
        """Return the cursor as it is now. Raises `FeedNotFoundError`."""
        return self.decode(self.written())

    def decode(self, written: Mapping[str, Any]) -> Cursor:
        """Return this feed's cursor among others. Raises `FeedNotFoundError`, `CorruptionError`."""
        if self.name not in written:
            raise FeedNotFoundError(self.name, self.branch)
        try:
            return Cursor.from_dict(written[self.name])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"cursor {self.name!r} of a commit is invalid: {error!r}"
            raise CorruptionError(self.engine.url, reason=reason) from error

    def put(self, cursors: Cursors, cursor: Cursor | None) -> None:
        """Let a transaction move the cursor, or drop it. What workers have done of a shared change is forgotten."""
        written = dict(cursors)
        shares = None
        if self.name in written:
            with suppress(*([CorruptionError] if cursor is None else [])):  # what can't be understood can be deleted
                shares = self.decode(written).shares
        # Fields that a later version has added stay.
        own = ("shares", "handed_out")
        rest = {field: each for field, each in written.get(self.name, {}).items() if field not in own}
        cursors.declare(self.name, None if cursor is None else {**rest, **cursor.as_dict()})
        if shares is not None and (cursor is None or cursor.shares != shares):
            for number in range(shares.into + 1):
                # Those without a mark, too: a worker that commits one at the same time conflicts.
                cursors.declare(mark_of(self.name, number), None)

    def commit(self, message: str, change: Callable[[Cursors], T]) -> T:
        """Make a commit that only moves the cursor. `change` runs again if another process has moved it first."""
        branch, tries = self.engine.branch(self.branch), 0
        while True:
            try:
                with self.engine.begin(branch=branch, message=message) as transaction:
                    transaction.lifecycle.needs_change = True
                    return change(transaction.cursors)
            except ConflictError:
                tries += 1
                if tries == _TRIES:
                    raise

    def undone(self, written: Mapping[str, Any], shares: Shares, count: int) -> list[int]:
        """Return the numbers below `count` of those shares that no worker has marked as done."""
        marks = (written.get(mark_of(self.name, number)) for number in range(count))
        return [number for number, mark in enumerate(marks) if mark is None or mark.get("shares") != shares.token]


def new_token() -> str:
    return os.urandom(16).hex()

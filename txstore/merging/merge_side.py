"""Describes one side of a merge: its present state, and what it changed since the base."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from txstore.format.keys import after_prefix, directory_prefix
from txstore.format.mapping import Hierarchy
from txstore.history.changes import Differing, KeyChange

#: `after` is None if the side deleted the key.
Change = KeyChange | Differing[Any]


class Side:
    """One side of a merge.

    Attributes
    ----------
    moves : mapping of str to str
        Nodes that it moved, with everything below them: from the path at the base to the present one.
    is_same : callable
        Tells whether a key of the base and a present key have the same value.
    moved : collection of str
        Present paths of nodes that count as changed because this side moved them.
    """

    def __init__(
        self,
        view: Hierarchy,
        changes: Mapping[str, Change],
        moves: Mapping[str, str] | None = None,
        is_same: Callable[[str, str], bool] = lambda *_: False,
        moved: Collection[str] = (),
    ) -> None:
        self.view = view
        self.changes = changes
        self.keys = sorted(changes)
        self.moves = moves or {}
        self.is_same = is_same
        self.moved = moved

    def changes_below(self, path: str) -> Sequence[str]:
        """Return the changed keys at and below a node."""
        prefix = directory_prefix(path)
        stop = after_prefix(prefix)
        start = bisect_left(self.keys, prefix)
        return self.keys[start : len(self.keys) if stop is None else bisect_left(self.keys, stop, start)]

    def has_changed(self, path: str) -> bool:
        prefix = directory_prefix(path)
        return bool(self.changes_below(path)) or any((each + "/").startswith(prefix) for each in self.moved)

    def has(self, key: str) -> bool:
        """Tell whether a key exists."""
        change = self.changes.get(key)
        return key in self.view if change is None else change.after is not None

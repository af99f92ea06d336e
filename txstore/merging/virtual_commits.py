"""Shows a commit as changed by merges, in memory, and how it differs from another such state.

The base of a merge whose sides have several best common ancestors is one (`merge_commits`).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Hashable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple, TypeAlias

from txstore.engine import Engine
from txstore.format.mapping import Hierarchy
from txstore.history.changes import Differing, common_ancestor, differing, is_equal
from txstore.history.snapshot import Snapshot
from txstore.merging.merge_side import Side
from txstore.merging.moved_nodes import Renaming, recognised
from txstore.merging.three_way import MergePlan
from txstore.segments.runs import Found, Runs


class Referred(NamedTuple):
    """A value of a commit."""

    snapshot: Snapshot
    key: str


#: A value: a commit's, or a merged one.
Value: TypeAlias = "Referred | bytes"


class Virtual(Hierarchy):
    """A commit as changed by merges, in memory."""

    def __init__(self, snapshot: Snapshot, changed: Mapping[str, Value | None] | None = None) -> None:
        self.snapshot = snapshot
        self.changed = changed or {}  # None: the key does not exist

    def value(self, key: str) -> Value | None:
        if key in self.changed:
            return self.changed[key]
        return None if self.snapshot.lookup(key) is None else Referred(self.snapshot, key)

    def get_view(self, key: str) -> memoryview | None:
        found = self.changed[key] if key in self.changed else Referred(self.snapshot, key)
        if isinstance(found, Referred):
            return found.snapshot.get_view(found.key)
        return None if found is None else memoryview(found)

    def size_of(self, key: str) -> int | None:
        found = self.changed[key] if key in self.changed else Referred(self.snapshot, key)
        if isinstance(found, Referred):
            return found.snapshot.size_of(found.key)
        return None if found is None else len(found)

    @cached_property
    def _sorted(self) -> list[str]:
        return sorted(self.changed)

    def keys_between(self, start: str, stop: str | None, *, batch: int = 256) -> Iterator[str]:
        end = len(self._sorted) if stop is None else bisect_left(self._sorted, stop)
        mine = (key for key in self._sorted[bisect_left(self._sorted, start) : end] if self.changed[key] is not None)
        rest = (key for key in self.snapshot.keys_between(start, stop, batch=batch) if key not in self.changed)
        return heapq.merge(mine, rest)

    def merged(self, plan: MergePlan, theirs: Snapshot) -> Virtual:
        """Return this with a plan applied."""
        changed = dict(self.changed)
        if plan.moved:
            renaming = Renaming(plan.moved)
            keys = {key for source in plan.moved for key in self.keys_below(source)}
            changed.update(dict.fromkeys(keys))
            changed.update((renaming.of(key), self.value(key)) for key in keys)
        there = Virtual(self.snapshot, changed)
        for path in plan.deleted_below:
            changed.update(dict.fromkeys([*there.keys_below(path)]))
        changed.update(dict.fromkeys(plan.deleted))
        changed.update(plan.values)
        changed.update((key, Referred(theirs, source)) for key, source in plan.taken.items())
        return Virtual(self.snapshot, changed)


def side_of(engine: Engine, base: Snapshot | Virtual, view: Snapshot | Virtual) -> Side:
    """Return one side of a merge: its changes since the base, and the nodes that it moved."""
    if isinstance(base, Virtual) or isinstance(view, Virtual):
        return _of_merges(engine, virtual(base), virtual(view))
    changes = {change.key: change for change in _differing(engine, base, view)}
    gone = {key: _place(base.runs, was) for key, was, is_now in changes.values() if was is not None and is_now is None}
    made = {
        key: _place(view.runs, is_now)
        for key, was, is_now in (changes.values() if gone else ())
        if was is None and is_now is not None
    }

    def is_same(was: str, is_now: str) -> bool:
        found, now = changes[was].before, changes[is_now].after
        return found is not None and now is not None and is_equal(base.runs, found, view.runs, now, is_now, was)

    return Side(view, changes, recognised(base, view, gone, made), is_same)


def _differing(engine: Engine, base: Snapshot, view: Snapshot) -> Iterator[Differing[Found]]:
    ancestor = None
    if base.stored is not None and view.stored is not None:
        ancestor = common_ancestor(engine.commits, base.stored, view.stored)
    return differing(base, view, base=engine.snapshots.of(ancestor))


def _place(runs: Runs, found: Found) -> Hashable:
    """Return the place of a value, in a form that is the same in every snapshot."""
    return runs.pack_name(found.run, found.pack).id, found.offset, found.kind


# --- the same for states that were never committed


def virtual(view: Snapshot | Virtual) -> Virtual:
    return view if isinstance(view, Virtual) else Virtual(view)


def _of_merges(engine: Engine, base: Virtual, view: Virtual) -> Side:
    changes: dict[str, Differing[Value]] = {}
    below = (key for key, _, _ in _differing(engine, base.snapshot, view.snapshot))
    for key in sorted({*below, *base.changed, *view.changed}):
        before, after = base.value(key), view.value(key)
        if not _is_same(before, after):
            changes[key] = Differing(key, before, after)
    gone = {key: _place_of(was) for key, was, is_now in changes.values() if was is not None and is_now is None}
    made = {key: _place_of(is_now) for key, was, is_now in changes.values() if was is None and is_now is not None}
    moves = recognised(base, view, gone, made)
    return Side(view, changes, moves, lambda was, is_now: _is_same(changes[was].before, changes[is_now].after))


def _found(value: Referred) -> Found:
    found = value.snapshot.lookup(value.key)
    assert found is not None  # `Virtual.value` has checked
    return found


def _place_of(value: Value) -> Hashable:
    return _place(value.snapshot.runs, _found(value)) if isinstance(value, Referred) else object()


def _is_same(one: Value | None, other: Value | None) -> bool:
    if one is None or other is None:
        return one is other
    if isinstance(one, Referred) and isinstance(other, Referred):
        return is_equal(one.snapshot.runs, _found(one), other.snapshot.runs, _found(other), key=other.key, name=one.key)
    return _content(one) == _content(other)


def _content(value: Value) -> bytes:
    return value.snapshot[value.key] if isinstance(value, Referred) else value

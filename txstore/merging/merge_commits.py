"""Runs a merge as a commit: the result of a three-way merge is staged at the head and published like any other.

If two branches merged each other's earlier commits, or those of a third branch, they can share several best common
ancestors, none an ancestor of another. Any single one as the base would make changes of the others look new: reverted
changes would come back, and elements that only one branch wrote would be in conflict. So the base is the merge of all
of them, by the same rules, never committed, and the base of that merge is found in the same way. Git calls this the
recursive strategy.
"""

from __future__ import annotations

import heapq
import random
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias, cast

from txstore.commit import Stored
from txstore.deriving.declared import outputs_of
from txstore.engine import Engine
from txstore.errors import (
    CommitNotFoundError,
    ConflictError,
    MergeConflictError,
    NoCommonAncestorError,
    SnapshotExpiredError,
)
from txstore.format.documents import describe
from txstore.format.keys import is_document, node_of_document
from txstore.format.mapping import Hierarchy
from txstore.history.ancestry import Ancestry, Reach, common_ancestors
from txstore.history.changes import Differing, KeyChange, common_ancestor, differing, is_equal, parent_of
from txstore.history.snapshot import Snapshot
from txstore.merging.document_fields import structure_of
from txstore.merging.doubts import Doubting, Doubts
from txstore.merging.merge_conflicts import Answer, Answers
from txstore.merging.merge_side import Side
from txstore.merging.moved_nodes import Renamed, Renaming, recognised
from txstore.merging.three_way import MergePlan, three_way
from txstore.progress import Progress
from txstore.segments.runs import Found, Runs
from txstore.transactions.conflicts import Settle, Settled
from txstore.transactions.transaction import Transaction


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


#: Number of cached bases, each with its merged values: near commits share them.
_KEPT = 64
_NO_REACH = Reach({}, frozenset())


@dataclass(frozen=True)
class Base:
    """A commit, or the merge of several."""

    view: Snapshot | Virtual
    reach: Reach = _NO_REACH
    doubts: Doubts = field(default_factory=Doubts)
    is_cut: bool = False  # a vacuum expired commits with which less would be in doubt


#: Finds a base: yields common ancestors, and is sent their base.
_Search: TypeAlias = "Generator[Sequence[Stored], Base, Base]"


#: Opens a commit, or with None the empty repository.
Open: TypeAlias = Callable[[Stored | None], Snapshot]


def base_of(engine: Engine, best: Sequence[Stored], open_commit: Open) -> Base:
    """Return the base of a merge, by the best common ancestors of its sides, oldest first."""
    if len(best) <= 1:
        return Base(open_commit(best[0] if best else None))
    return _Bases(engine, open_commit).of(best)


class _Bases:
    def __init__(self, engine: Engine, open_commit: Open) -> None:
        self._engine = engine
        self._open = open_commit
        self._ancestry = Ancestry(engine.commits)
        self._known: dict[tuple[bytes, ...], Base] = {}

    def of(self, best: Sequence[Stored]) -> Base:
        """Go back in history as far as needed. That may be deeper than Python can nest calls, so this uses a stack."""
        searches = [self._search(best)]
        found: Base | None = None
        while True:
            try:
                wanted = next(searches[-1]) if found is None else searches[-1].send(found)
            except StopIteration as stop:
                found = cast(Base, stop.value)
                searches.pop()
                if not searches:
                    return found
            else:
                searches.append(self._search(wanted))
                found = None

    def _search(self, best: Sequence[Stored]) -> _Search:
        names = tuple(stored.hash for stored in best)
        if names not in self._known:
            found = self._point(best[0]) if best else Base(self._open(None))
            for stored in best[1:]:
                found = yield from self._with(found, self._point(stored))
            if len(self._known) == _KEPT:
                del self._known[next(iter(self._known))]
            self._known[names] = found
        return self._known[names]

    def _point(self, stored: Stored) -> Base:
        return Base(self._open(stored), self._ancestry.reach(stored))

    def _with(self, one: Base, other: Base) -> _Search:
        """Return the merge of two bases."""
        reach = one.reach | other.reach
        if not one.doubts and not side_of(self._engine, one.view, other.view).changes:
            return Base(one.view, reach, is_cut=one.is_cut)
        best = self._ancestry.common(one.reach, other.reach)
        if best is None:
            # It is unknown which of the two made which change: every difference is in doubt.
            base = Base(one.view, doubts=Doubts(nodes={"": True}), is_cut=True)
        else:
            base = yield best
        return self._merged(base, one, other, reach)

    def _merged(self, base: Base, one: Base, other: Base, reach: Reach) -> Base:
        assert isinstance(other.view, Snapshot)  # a commit is merged into the bases merged before
        answers = Doubting()
        ours, theirs = (side_of(self._engine, base.view, each.view) for each in (one, other))
        plan = three_way(base.view, ours, theirs, answers, base.doubts)
        place = Renaming(plan.moved)
        doubts = Doubts()
        doubts.add(one.doubts)
        doubts.add(Doubts(nodes=dict.fromkeys(answers.moved, False)))
        doubts = doubts.moved(place.of)
        made = virtual(one.view).merged(plan, other.view)
        for path in {node_of_document(key) for key in (*plan.taken, *plan.values) if is_document(key)}:
            was, is_now = (structure_of(describe(view.get_view, path)) for view in (Renamed(one.view, place), made))
            if was != is_now and doubts.is_below(path):  # its rows have moved, say: it is unknown where that is now
                doubts.add(Doubts(nodes={path: True}))
        doubts.add(answers.noted)
        return Base(made, reach, doubts, base.is_cut or one.is_cut)


#: Longest pause, in seconds, before a merge is tried again on a head that moved; and the number of tries.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0
_RETRIES = 100

#: Value of `append=`: join the rows that both sides appended.
CONCATENATE: Final = "concatenate"


class Incoming(NamedTuple):
    """The change to apply to the head: from a base to `theirs`. None, or no base, is the empty repository.

    With several bases, it is the change from their merge.
    """

    bases: Sequence[Stored]
    theirs: Stored | None
    merged: Stored | None  # the other parent of the commit
    message: str


#: Returns the change for a head, to which it can be applied; None if the head has it already.
Source: TypeAlias = Callable[[Engine, Stored], Incoming | None]


def of_branch(branch: str, name: str, engine: Engine, head: Stored) -> Incoming | None:
    """A `Source`: all changes that a branch has and the target lacks: a merge."""
    commits = engine.commits
    commits.branches.check_living(branch)
    theirs = commits.head(branch)
    if theirs is None:
        raise CommitNotFoundError(f"branch {name!r}", advice="it has no commits yet")
    try:
        best = common_ancestors(commits, head, theirs)
    except SnapshotExpiredError as error:
        raise NoCommonAncestorError(head.commit, theirs.commit) from error
    if not best:
        raise NoCommonAncestorError(head.commit, theirs.commit)
    if best[0].name == theirs.name:
        return None
    return Incoming(best, theirs, theirs, f"merge of {theirs.commit}")


def of_commit(commit: Stored, reverts: bool, engine: Engine, _head: Stored) -> Incoming:
    """A `Source`: the changes of one commit, again; or with `reverts` the opposite."""
    parent = parent_of(engine.commits, commit)
    before, after = engine.snapshots.of(parent), engine.snapshots.of(commit)
    after.check_not_erased("", since=before.seq)  # `ErasedError` if values that the commit wrote or deleted were erased
    for prefix in after.runs_since(before.seq).new_prefixes(before.seq):
        before.check_not_erased(prefix)
    said = f": {commit.header.message}" if commit.header.message else ""
    if reverts:
        return Incoming([commit], parent, None, f"revert of {commit.commit}{said}")
    return Incoming([] if parent is None else [parent], commit, None, f"pick of {commit.commit}{said}")


class OpenedSnapshots:
    """The commits that one plan reads, opened only for it: its conflicts keep them open."""

    def __init__(self, engine: Engine) -> None:
        self._snapshots = engine.snapshots
        self._opened: dict[bytes | None, Snapshot] = {}  # by the hash of the commit

    def of(self, stored: Stored | None) -> Snapshot:
        return self.own(self._snapshots.of(stored))

    def own(self, snapshot: Snapshot) -> Snapshot:
        name = None if snapshot.stored is None else snapshot.stored.hash
        if name not in self._opened:
            self._opened[name] = self._snapshots.own(snapshot)
        return self._opened[name]

    def let_go(self) -> None:
        for snapshot in self._opened.values():
            snapshot.let_go()


def plan(
    engine: Engine,
    views: OpenedSnapshots,
    change: Incoming,
    ours: Snapshot,
    answers: Answers,
    *,
    append: str | None,
    progress: Progress | None = None,
) -> MergePlan:
    """Return the plan that adds the changes of theirs to ours.

    Raises `CorruptionError`, and `ValueError` or `TypeError` for a wrong result of an answer.
    """
    base, theirs = base_of(engine, change.bases, views.of), views.of(change.theirs)
    sides = (side_of(engine, base.view, views.own(ours)), side_of(engine, base.view, theirs))
    answers = answers.keeping(outputs_of(ours.url, ours.declared.views))
    found = three_way(base.view, *sides, answers, base.doubts, concatenates=append == CONCATENATE, progress=progress)
    found.is_cut = base.is_cut
    return found


def check_append(append: str | None) -> None:
    if append not in (None, CONCATENATE):
        raise ValueError(f"append={append!r}: give 'concatenate', or None, which reports a conflict")


def apply(found: MergePlan, theirs: Snapshot, transaction: Transaction) -> None:
    """Stage a plan in a transaction based on ours."""
    transaction.nodes.move_all(found.moved)
    for path in found.deleted_below:
        transaction.delete_dir(path)
    for key in found.deleted:
        transaction.pop(key, None)
    for key, value in found.values.items():
        transaction.set(key, value, is_merged=True)
    transaction.nodes.take(found.taken, theirs)


def preview(
    engine: Engine,
    source: Source,
    branch: str,
    resolve: Mapping[str, Answer] | None = None,
    *,
    append: str | None = None,
    progress: Progress | None = None,
) -> MergePlan:
    """Return the plan for the head of a branch."""
    check_append(append)
    answers = Answers(resolve)  # even if there is nothing to merge, so that a mistake in them shows at once
    head = engine.newest(branch)
    change = None if head.stored is None else source(engine, head.stored)
    if change is None:
        return MergePlan()
    return plan(engine, OpenedSnapshots(engine), change, head, answers, append=append, progress=progress)


def commit(
    engine: Engine,
    source: Source,
    branch: str,
    resolve: Mapping[str, Answer] | None = None,
    *,
    append: str | None = None,
    message: str | None = None,
    properties: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Snapshot:
    """Apply a change to the newest head of a branch; return the new head, or the present one if it has the change.

    Raises `MergeConflictError`: then nothing was changed.
    """
    check_append(append)
    answers = Answers(resolve)
    pause, retries = _FIRST_PAUSE, _RETRIES
    while True:
        engine.snapshots.heed_erasures()
        head = engine.newest(branch)
        change = None if head.stored is None else source(engine, head.stored)
        if change is None:
            return head
        views = OpenedSnapshots(engine)
        found = plan(engine, views, change, head, answers, append=append, progress=progress)
        if found.conflicts:
            views.let_go()  # the caller may keep the error
            raise MergeConflictError(found.conflicts, is_cut=found.is_cut)
        if found.is_empty and change.merged is None:
            return head
        transaction = engine.begin(
            head, branch=branch, message=message or change.message, properties=properties, other_parent=change.merged
        )
        try:
            apply(found, engine.snapshots.of(change.theirs), transaction)
            made = transaction.commit()
            return head if made is None else made
        except (ConflictError, SnapshotExpiredError):
            transaction.rollback()
            retries -= 1
            if not retries:
                raise
        except BaseException:
            transaction.rollback()
            raise
        time.sleep(random.uniform(0, pause))
        pause = min(2 * pause, _LONGEST_PAUSE)


#: Value of `on_conflict=`.
MERGE = "merge"


def settle(
    base: Snapshot, mine: Hierarchy, staged: Collection[str], changes: Iterable[KeyChange], head: Snapshot
) -> Settled:
    """Return the merged values of keys that a transaction staged, whose commit finds the head changed.

    The base is the transaction's base, ours is what it staged, theirs is the head. Equal changes of both sides are in
    conflict here: two increments are two increments. Raises `ConflictError`.
    """
    ours = Side(mine, {change.key: change for change in changes})
    theirs = Side(head, {change.key: change for change in differing(base, head)})
    plan = three_way(base, ours, theirs, is_strict=True)
    if plan.conflicts:
        raise ConflictError(
            [each.key for each in plan.conflicts],
            reason=f"another commit changed the same as this transaction: {'; '.join(map(str, plan.conflicts[:5]))}",
            base=base.commit,
            head=head.commit,
            conflicts=plan.conflicts,
        )
    settled: dict[str, bytes | None] = {**plan.values, **dict.fromkeys(plan.deleted)}
    for key in staged:
        # A staged value equal to the base's is not a change, nor is one equal to theirs. It is written as theirs: a run
        # rebuilt from the staged frames must not bring the old value back.
        is_theirs = key in plan.taken or (key in theirs.changes and key not in ours.changes)
        if is_theirs and key not in settled:
            view = head.get_view(key)
            settled[key] = None if view is None else bytes(view)
    return settled


def settling(on_conflict: str | None) -> Settle | None:
    """Return the function that settles conflicts of a commit. Raises `ValueError`."""
    if on_conflict not in (None, MERGE):
        raise ValueError(f"on_conflict={on_conflict!r}: {MERGE!r}, or None, which raises ConflictError")
    return None if on_conflict is None else settle

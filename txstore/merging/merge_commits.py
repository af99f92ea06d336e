"""Runs a merge as a commit: the result of a three-way merge is staged at the head and published like any other."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

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
from txstore.history.ancestry import common_ancestors
from txstore.history.changes import parent_of
from txstore.history.snapshot import Snapshot
from txstore.merging.merge_bases import base_of
from txstore.merging.merge_conflicts import Answer, Answers
from txstore.merging.three_way import MergePlan, three_way
from txstore.merging.virtual_commits import side_of
from txstore.progress import Progress
from txstore.transactions.transaction import Transaction

#: Longest pause, in seconds, before a merge is tried again on a head that moved; and the number of tries.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0
_RETRIES = 100

#: Value of `append=`: join the rows that both sides appended.
CONCATENATE: Final = "concatenate"


class Incoming(NamedTuple):
    """The change to apply to the head: from a base to `theirs`. None, or no base, is the empty repository.

    With several bases, it is the change from their merge (`merge_bases`).
    """

    bases: Sequence[Stored]
    theirs: Stored | None
    merged: Stored | None  # the other parent of the commit
    message: str


class Source:
    """The source of a change, which can be applied to any head."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def onto(self, head: Stored) -> Incoming | None:
        """Return the change for a head; None if the head has it already."""
        raise NotImplementedError


class OfBranch(Source):
    """All changes that a branch has and the target lacks: a merge."""

    def __init__(self, engine: Engine, branch: str, name: str) -> None:
        super().__init__(engine)
        self._branch = branch
        self._name = name

    def onto(self, head: Stored) -> Incoming | None:
        commits = self.engine.commits
        commits.branches.check_living(self._branch)
        theirs = commits.head(self._branch)
        if theirs is None:
            raise CommitNotFoundError(f"branch {self._name!r}", advice="it has no commits yet")
        try:
            best = common_ancestors(commits, head, theirs)
        except SnapshotExpiredError as error:
            raise NoCommonAncestorError(head.commit, theirs.commit) from error
        if not best:
            raise NoCommonAncestorError(head.commit, theirs.commit)
        if best[0].name == theirs.name:
            return None
        return Incoming(best, theirs, theirs, f"merge of {theirs.commit}")


class OfCommit(Source):
    """The changes of one commit, again; or with `reverts` the opposite."""

    def __init__(self, engine: Engine, stored: Stored, *, reverts: bool) -> None:
        super().__init__(engine)
        self._commit = stored
        self._reverts = reverts

    def onto(self, head: Stored) -> Incoming:
        parent, commit = parent_of(self.engine.commits, self._commit), self._commit
        self._check_not_erased(parent)
        said = f": {commit.header.message}" if commit.header.message else ""
        if self._reverts:
            return Incoming([commit], parent, None, f"revert of {commit.commit}{said}")
        return Incoming([] if parent is None else [parent], commit, None, f"pick of {commit.commit}{said}")

    def _check_not_erased(self, parent: Stored | None) -> None:
        """Raise `ErasedError` if values that the commit wrote or deleted were erased."""
        snapshots = self.engine.snapshots
        before, after = snapshots.of(parent), snapshots.of(self._commit)
        after.check_not_erased("", since=before.seq)
        for prefix in after.runs_since(before.seq).new_prefixes(before.seq):
            before.check_not_erased(prefix)


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
    head = source.engine.newest(branch)
    change = None if head.stored is None else source.onto(head.stored)
    if change is None:
        return MergePlan()
    return plan(source.engine, OpenedSnapshots(source.engine), change, head, answers, append=append, progress=progress)


def commit(
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
    answers, engine = Answers(resolve), source.engine
    pause, retries = _FIRST_PAUSE, _RETRIES
    while True:
        engine.snapshots.heed_erasures()
        head = engine.newest(branch)
        change = None if head.stored is None else source.onto(head.stored)
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

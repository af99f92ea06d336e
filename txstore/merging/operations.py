"""Merging as a commit: what a three-way merge finds to be done is staged at the head, and published like any other."""

from __future__ import annotations

import random
import time
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from txstore.engine import Engine
from txstore.errors import (
    CommitNotFoundError,
    ConflictError,
    MergeConflictError,
    NoCommonAncestorError,
    SnapshotExpiredError,
)
from txstore.history.ancestry import merge_base
from txstore.history.changes import common_ancestor, differing, is_equal, parent_of
from txstore.history.commit import Stored
from txstore.history.runs import Found, Runs
from txstore.history.snapshot import Snapshot
from txstore.merging.conflicts import Answer, Answers
from txstore.merging.moves import recognised
from txstore.merging.side import Side
from txstore.merging.three_way import Plan, three_way
from txstore.transactions.transaction import Transaction

#: Seconds before a merge is tried again on a head that has moved, at most; and how often.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0
_RETRIES = 100

#: What `append=` says of arrays that both sides have appended to.
CONCATENATE = "concatenate"


class Change(NamedTuple):
    """What is to be made of the head: the change from `base` to `theirs`. None is the empty repository."""

    base: Stored | None
    theirs: Stored | None
    merged: Stored | None  # the other parent of the commit
    message: str


class Source:
    """Where a change comes from, for whatever head it is to be applied to."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def onto(self, head: Stored) -> Change | None:
        """Return the change for a head; None if it has it."""
        raise NotImplementedError


class OfBranch(Source):
    """All that a branch has, and the target has not: a merge."""

    def __init__(self, engine: Engine, branch: str, name: str) -> None:
        super().__init__(engine)
        self._branch = branch
        self._name = name

    def onto(self, head: Stored) -> Change | None:
        commits = self.engine.commits
        commits.check_living(self._branch)
        theirs = commits.head(self._branch)
        if theirs is None:
            raise CommitNotFoundError(f"branch {self._name!r}", hint="it has no commits yet")
        try:
            base = merge_base(commits, head, theirs)
        except SnapshotExpiredError as error:
            raise NoCommonAncestorError(head.commit, theirs.commit) from error
        if base is None:
            raise NoCommonAncestorError(head.commit, theirs.commit)
        if base.name == theirs.name:
            return None
        return Change(base, theirs, theirs, f"merge of {theirs.commit}")


class OfCommit(Source):
    """What one commit has changed, again; or, with `reverts`, the opposite."""

    def __init__(self, engine: Engine, stored: Stored, *, reverts: bool) -> None:
        super().__init__(engine)
        self._commit = stored
        self._reverts = reverts

    def onto(self, head: Stored) -> Change:
        parent, commit = parent_of(self.engine.commits, self._commit), self._commit
        self._check_not_erased(parent)
        said = f": {commit.header.message}" if commit.header.message else ""
        if self._reverts:
            return Change(commit, parent, None, f"revert of {commit.commit}{said}")
        return Change(parent, commit, None, f"pick of {commit.commit}{said}")

    def _check_not_erased(self, parent: Stored | None) -> None:
        """Raise `ErasedError` if what the commit has written, or deleted, is there no more."""
        snapshots = self.engine.snapshots
        before, after = snapshots.of(parent), snapshots.of(self._commit)
        after.check_not_erased("", since=before.seq)
        for prefix in after.runs_since(before.seq).new_prefixes(before.seq):
            before.check_not_erased(prefix)


def plan(
    engine: Engine, change: Change, ours: Snapshot, resolve: Mapping[str, Answer] | None = None, *, append: str | None
) -> Plan:
    """Return what makes of ours what both have made of the base.

    Raises `CorruptionError`, and `ValueError` or `TypeError` for answers that are none.
    """
    base, theirs = engine.snapshots.of(change.base), engine.snapshots.of(change.theirs)
    sides = (_side(engine, base, ours), _side(engine, base, theirs))
    return three_way(base, *sides, Answers(resolve), concatenates=append == CONCATENATE)


def _side(engine: Engine, base: Snapshot, side: Snapshot) -> Side:
    ancestor = None
    if base.stored is not None and side.stored is not None:
        ancestor = common_ancestor(engine.commits, base.stored, side.stored)
    changes = {change.key: change for change in differing(base, side, base=engine.snapshots.of(ancestor))}
    gone = {key: _place(base.runs, was) for key, was, is_now in changes.values() if was is not None and is_now is None}
    made = {
        key: _place(side.runs, is_now)
        for key, was, is_now in (changes.values() if gone else ())
        if was is None and is_now is not None
    }

    def is_same(was: str, is_now: str) -> bool:
        found, now = changes[was].before, changes[is_now].after
        return found is not None and now is not None and is_equal(base.runs, found, side.runs, now, is_now, was)

    return Side(side, changes, recognised(base, side, gone, made), is_same)


def _place(runs: Runs, found: Found) -> Hashable:
    """Return where a value lies, in words that are the same in every snapshot."""
    return runs.pack_name(found.run, found.pack).id, found.offset, found.kind


def check_append(append: str | None) -> None:
    if append not in (None, CONCATENATE):
        raise ValueError(f"append={append!r}: 'concatenate', or None, by which it is a conflict")


def apply(found: Plan, theirs: Snapshot, transaction: Transaction) -> None:
    """Stage what is to be done to what the transaction is based on."""
    transaction.move_all(found.moved)
    for path in found.deleted_below:
        transaction.delete_dir(path)
    for key in found.deleted:
        transaction.pop(key, None)
    for key, value in found.values.items():
        transaction[key] = value
    transaction.take(found.taken, theirs)


def preview(
    source: Source, branch: str, resolve: Mapping[str, Answer] | None = None, *, append: str | None = None
) -> Plan:
    """Return what would be done to the head of a branch."""
    check_append(append)
    head = source.engine.newest(branch)
    change = None if head.stored is None else source.onto(head.stored)
    return Plan() if change is None else plan(source.engine, change, head, resolve, append=append)


def commit(
    source: Source,
    branch: str,
    resolve: Mapping[str, Answer] | None = None,
    *,
    append: str | None = None,
    message: str | None = None,
    properties: Mapping[str, Any] | None = None,
) -> Snapshot:
    """Apply a change to the head of a branch, whatever that is by then; return the new head, or this if it has it.

    Raises `MergeConflictError`: then nothing was changed.
    """
    check_append(append)
    engine = source.engine
    pause, retries = _FIRST_PAUSE, _RETRIES
    while True:
        head = engine.newest(branch)
        change = None if head.stored is None else source.onto(head.stored)
        if change is None:
            return head
        found = plan(engine, change, head, resolve, append=append)
        if found.conflicts:
            raise MergeConflictError(found.conflicts)
        if found.is_empty and change.merged is None:
            return head
        transaction = engine.begin(
            head, branch=branch, message=message or change.message, properties=properties, other_parent=change.merged
        )
        try:
            apply(found, engine.snapshots.of(change.theirs), transaction)
            return transaction.commit()
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

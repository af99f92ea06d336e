"""Merging as a commit: what a three-way merge finds to be done is staged at the head, and published like any other."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from txstore.engine import Engine
from txstore.errors import ConflictError, SnapshotExpiredError
from txstore.history.changes import changed
from txstore.history.snapshot import Snapshot
from txstore.merging.conflicts import Answer, Answers
from txstore.merging.three_way import Plan, Side, check_settled, merge
from txstore.transactions.transaction import Transaction

#: Seconds before a merge is tried again on a head that has moved, at most; and how often.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0
_RETRIES = 100


class Merging(NamedTuple):
    """What is merged: the change from `base` to `theirs`. `ancestor` is the newest commit that both and ours have."""

    base: Snapshot
    theirs: Snapshot
    ancestor: Snapshot
    message: str


def plan(
    merging: Merging, ours: Snapshot, resolve: Mapping[str, Answer] | None = None, *, concatenates: bool = False
) -> Plan:
    """Return what makes of ours what both have made of the base.

    Raises `CorruptionError`, and `ValueError` or `TypeError` for answers that are none.
    """
    base, theirs, ancestor = merging.base, merging.theirs, merging.ancestor
    one, other = (
        Side(side, {change.key: change for change in changed(base, side, base=ancestor)}) for side in (ours, theirs)
    )
    return merge(base, one, other, Answers(resolve), concatenates=concatenates)


def apply(found: Plan, theirs: Snapshot, transaction: Transaction) -> None:
    """Stage what is to be done."""
    for path in found.deleted_below:
        transaction.delete_dir(path)
    for key in found.deleted:
        transaction.pop(key, None)
    for key, value in found.values.items():
        transaction[key] = value
    for key, source in found.taken.items():
        transaction[key] = theirs[source]


def commit(
    engine: Engine,
    branch: str,
    find: Callable[[Snapshot], Merging],
    *,
    resolve: Mapping[str, Answer] | None = None,
    concatenates: bool = False,
    message: str | None = None,
    properties: Mapping[str, Any] | None = None,
) -> Snapshot:
    """Merge into the head of a branch, whatever that is by then; return the new head, or what it is if it has all.

    `find` returns what to merge into a head. Raises `MergeConflictError`: then nothing was changed.
    """
    pause, retries = _FIRST_PAUSE, _RETRIES
    while True:
        head = engine.newest(branch)
        merging = find(head)
        found = plan(merging, head, resolve, concatenates=concatenates)
        check_settled(found)
        if found.is_empty:
            return head
        transaction = engine.begin(head, branch=branch, message=message or merging.message, properties=properties)
        try:
            apply(found, merging.theirs, transaction)
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

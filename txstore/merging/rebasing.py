"""Rebases a commit that finds the head changed: it merges the transaction's changes and the others', key by key.

The base is the transaction's base, ours is what it staged, theirs is the head. Here equal changes of both sides are in
conflict: two increments are two increments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from txstore.errors import ConflictError
from txstore.format.mapping import Hierarchy
from txstore.history.changes import KeyChange, differing
from txstore.history.snapshot import Snapshot
from txstore.merging.merge_side import Side
from txstore.merging.three_way import three_way
from txstore.transactions.conflicts import Settle, Settled

#: Value of `on_conflict=`.
MERGE = "merge"


def settle(
    base: Snapshot, mine: Hierarchy, staged: Collection[str], changes: Iterable[KeyChange], head: Snapshot
) -> Settled:
    """Return the merged values of keys that a transaction staged. Raises `ConflictError`."""
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

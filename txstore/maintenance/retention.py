"""Expires and compacts old commits while new ones are made, for a repository that is not vacuumed otherwise.

Every `STEP` commits, the process that made the last one expires old commits: it copies their live values together,
raises the oldest kept version, and deletes their files. This reads every key, so the process waits until enough was
committed since: the cost is spread over the expired commits, for any number of keys.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

from txstore.commit import Stored
from txstore.errors import TxStoreError, warn
from txstore.history import operations
from txstore.history.commits import Commits
from txstore.history.snapshot import Snapshot, Snapshots
from txstore.maintenance.optimize import below, optimize
from txstore.maintenance.vacuum import expiring, vacuum
from txstore.transactions.held_locks import TransactionLocks
from txstore.transactions.staging import Staging
from txstore.transactions.transaction import Transaction

#: Least number of commits between two folds.
STEP = 64
#: A fold is worth its cost from these ratios on: old commits, or keys written in them, for each key at the head; and
#: old commits for each kept one.
COMMITS_FOR_A_KEY, WRITTEN_FOR_A_KEY, COMMITS_FOR_A_KEPT_ONE = 1 / 64, 1 / 4, 1 / 4


def check_retention(retention: int | timedelta | None) -> dict[str, Any] | None:
    """Return the arguments of `vacuum` for a retention: a number of commits, or a time."""
    if retention is None:
        return None
    if isinstance(retention, timedelta):
        if retention < timedelta(0):
            raise ValueError(f"retention={retention!r}: give a positive time")
        return {"older_than": retention}
    if isinstance(retention, bool) or not isinstance(retention, int):
        raise TypeError(f"retention= takes a number of commits or a timedelta, not {type(retention).__name__}")
    if retention < 1:
        raise ValueError(f"retention={retention}: at least the newest commit is kept, so 1 is the least")
    return {"keep": retention}


class FoldingTransaction(Transaction):
    """A transaction of a repository with a retention: it commits, then it folds old commits."""

    def __init__(
        self,
        commits: Commits,
        snapshots: Snapshots,
        staging: Staging,
        locks: TransactionLocks | None,
        *,
        wanted: dict[str, Any],
        durable: bool,
    ) -> None:
        super().__init__(commits, snapshots, staging, locks)
        self._commits = commits
        self._snapshots = snapshots
        self._wanted = wanted
        self._durable = durable

    def commit(self, message: str | None = None, *, allow_lost: bool = False) -> Snapshot | None:
        made = super().commit(message, allow_lost=allow_lost)
        if made is not None and made.stored is not None:
            fold(self._commits, self._snapshots, made.stored, self._wanted, durable=self._durable)
        return made


def fold(commits: Commits, snapshots: Snapshots, made: Stored, wanted: dict[str, Any], *, durable: bool) -> None:
    """Expire old commits after a commit, if it is time to. A failure is only a warning."""
    header = made.header
    if header.version % STEP:
        return
    try:
        oldest_kept = expiring(commits, snapshots, branch=header.branch, **wanted)
        # Half of it: the commits of a fold itself raise the oldest kept version by one or two more than the number of
        # commits between folds.
        if oldest_kept - header.oldest_kept >= STEP // 2 and _is_worth_it(commits, made, oldest_kept):
            told = {name: str(value) for name, value in wanted.items()}
            with operations.recorded(commits.storage, "retention", {"branch": made.commit.branch, **told}) as result:
                optimize(
                    commits, snapshots, branch=header.branch, durable=durable, choose=below(header.branch, oldest_kept)
                )
                result.update(vacuum(commits, snapshots, branch=header.branch, **wanted).as_dict())
    except (TxStoreError, OSError) as error:
        # The commit is made. The process that makes one 64 commits later tries again.
        with contextlib.suppress(RuntimeWarning):  # where warnings are errors
            warn(f"old commits were not folded: {error}", RuntimeWarning)


def _is_worth_it(commits: Commits, made: Stored, oldest_kept: int) -> bool:
    header = made.header
    keys = sum(run.entries for run in header.runs)
    count, kept = oldest_kept - header.oldest_kept, header.version - oldest_kept
    if count < COMMITS_FOR_A_KEPT_ONE * kept:
        return False  # a vacuum reads the headers of all that are kept
    if count >= COMMITS_FOR_A_KEY * keys:
        return True
    some = [commits.files.read(header.branch, header.oldest_kept + i * count // STEP) for i in range(STEP)]
    statistics = [stored.header.statistics for stored in some if stored is not None]
    written = sum(each.keys_set + each.keys_deleted + each.prefixes_deleted for each in statistics)
    return written * count / STEP >= WRITTEN_FOR_A_KEY * keys

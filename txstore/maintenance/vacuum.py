"""Deletes files that no kept commit needs. Before it deletes any, it makes the oldest kept version durable (I10).

A vacuum raises the oldest kept version by a commit, so that every writer meets it. When that commit is durable, and
the file `oldest_kept/<version>` says the same, the vacuum reads pins and tags once more. A process that pins or tags a
commit reads the oldest kept version afterwards, so one of the two sees the other. If a vacuum is interrupted, the next
one finishes its work.

If there is no room for the commit and the file, on a full disk or in a bucket at its quota, the vacuum first deletes
what is already unneeded. That takes no record: the oldest kept version that allows it was raised before. Then it
deletes two small files that can be written again.

A commit's protection may pass from a pin to the record of a transaction, or to a tag: the vacuum reads them in this
order.

A repository with a retention is not vacuumed otherwise. Every `STEP` commits, the process that made the last one
expires old commits: it copies their live values together, raises the oldest kept version, and deletes their files. This
reads every key, so the process waits until enough was committed since: the cost is spread over the expired commits, for
any number of keys.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from txstore.commit import MAIN, Stored
from txstore.errors import CommitNotFoundError, CorruptionError, TxStoreError, WrongFileTypeError, is_full, warn
from txstore.format import names, packfile
from txstore.format.display import html_head, readable_size
from txstore.history import operations
from txstore.history.ancestry import Ancestry
from txstore.history.commits import Commits
from txstore.history.find import first_since
from txstore.history.full_disk import Spare
from txstore.history.new_commit import Contents, NewCommit, SyncFailedError, syncing
from txstore.history.operations import delete_old
from txstore.history.snapshot import Snapshot, Snapshots
from txstore.history.staged_packs import recorded
from txstore.locks.pins import SPAN
from txstore.maintenance.optimize import below, optimize
from txstore.maintenance.reachable import (
    Reachable,
    StagedPacks,
    data_packs,
    kept_commits,
    kept_for_feeds,
    living_branches,
    sizes_of,
)
from txstore.maintenance.replacement_packs import packs_in_use
from txstore.segments.packs import MissingPackError
from txstore.steps import step
from txstore.storage.interface import Storage, paths_in
from txstore.transactions.held_locks import TransactionLocks
from txstore.transactions.participants.reclaim import reclaim_staging
from txstore.transactions.staging import Staging
from txstore.transactions.transaction import Transaction

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, repr=False)
class VacuumReport:
    """The result of a vacuum, or with `dry_run` what it would do.

    Attributes
    ----------
    oldest kept version : int
        The lowest version that is kept now.
    expired : int
        Number of commits that this vacuum made unreadable.
    files, bytes : int
        Number of deleted files, and their bytes.
    staged : int
        Number of these bytes that were staged by processes that died before they committed.
    dry_run : bool
    held : tuple of str
        Who needs commits that were to expire: processes, open transactions, feeds.
    """

    oldest_kept: int
    expired: int
    files: int
    bytes: int
    staged: int = 0
    dry_run: bool = False
    held: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, int]:
        """Return the numbers by their names: no names of processes, for the log of operations."""
        return {
            "oldest_kept": self.oldest_kept, "expired": self.expired, "files": self.files, "bytes": self.bytes,
            "staged": self.staged,
        }  # fmt: skip

    def __str__(self) -> str:
        would = "would be " if self.dry_run else ""
        staged = f", {readable_size(self.staged)} of it staged by processes that died" if self.staged else ""
        return (
            f"{self.files:,} files ({readable_size(self.bytes)}{staged}) {would}deleted, {self.expired:,} commits "
            f"{would}expired; commits are kept from version {self.oldest_kept} on"
            + "".join(f"; {holder}" for holder in self.held)
        )

    def __repr__(self) -> str:
        return f"<VacuumReport: {self}>"

    def _repr_html_(self) -> str:
        return html_head("VacuumReport", str(self))


@step("vacuum")
def vacuum(
    commits: Commits,
    snapshots: Snapshots,
    *,
    branch: str,
    keep: int | None = None,
    older_than: timedelta | datetime | None = None,
    dry_run: bool = False,
) -> VacuumReport:
    """Raise the oldest kept version as requested and as pins and tags allow; delete. See `Repository.vacuum`."""
    if keep is not None and keep < 1:
        raise ValueError(f"keep={keep}: at least the newest commit is kept, so keep=1 is the least")
    vacuuming = _Vacuum(commits, snapshots, branch=branch, dry_run=dry_run)
    try:
        report = vacuuming.run(keep, None if older_than is None else _microseconds(older_than, commits.storage))
        _log.info("%s: vacuum: %s", commits.storage.url, report)
        return report
    except SyncFailedError as error:
        raise error.cause from None


def expiring(
    commits: Commits,
    snapshots: Snapshots,
    *,
    branch: str,
    keep: int | None = None,
    older_than: timedelta | datetime | None = None,
) -> int:
    """Return the oldest kept version to which a vacuum would raise it."""
    head = commits.head(branch)
    if head is None or head.header.branch != branch:
        return 0
    before = None if older_than is None else _microseconds(older_than, commits.storage)
    return _Vacuum(commits, snapshots, branch=branch, dry_run=True).wanted(head, keep, before)


def _microseconds(older_than: timedelta | datetime, storage: Storage) -> int:
    if isinstance(older_than, timedelta):
        older_than = datetime.fromtimestamp(storage.now(), UTC) - older_than
    if older_than.tzinfo is None:
        raise ValueError(f"{older_than.isoformat()} has no time zone: add one, or give a timedelta")
    return int(older_than.timestamp() * 1_000_000)


class _Vacuum:
    """One vacuum; and the commit by which it raises the oldest kept version."""

    def __init__(self, commits: Commits, snapshots: Snapshots, *, branch: str, dry_run: bool) -> None:
        self.commits = commits
        self.storage = commits.storage
        self.snapshots = snapshots
        self.branch = branch
        self.dry_run = dry_run
        self.oldest_kept = 0  # the version to which this vacuum raises it
        self._reclaimed: frozenset[str] = frozenset()  # files of `.staging/`
        self._ancestry = Ancestry(commits)
        self._gone = self._gone_bytes = self._gone_uploaded = 0  # deleted, or to be: files, bytes, uploads
        self._spare = Spare(commits, branch)
        self._held: dict[str, None] = {}  # who needs commits that were to expire

    def run(self, keep: int | None, before: int | None) -> VacuumReport:
        if not self.dry_run:
            self.commits.identity.create(durable=True)  # a copied repository may lack empty directories
        self._check_not_stopped()
        sizes = self.storage.sizes(names.STAGING)
        staged = reclaim_staging(self.commits, dry_run=self.dry_run)
        files = [path.removeprefix(f"{names.STAGING}/") for path in staged]
        self._reclaimed = frozenset(files)
        staged_size = sum(sizes.get(file, 0) for file in files if not self._is_committed(file))
        head = self.commits.head(self.branch)
        if head is None:
            return VacuumReport(0, 0, len(staged), staged_size, staged_size, self.dry_run)
        oldest_kept_before = oldest_kept = self.commits.oldest_kept.of(self.branch)
        has_own = head.header.branch == self.branch
        if has_own:
            oldest_kept = self.wanted(head, keep, before)
        try:
            if not self.dry_run and has_own:
                head = self._raise(head, oldest_kept_before, oldest_kept)
                oldest_kept = head.header.oldest_kept
            self._sweep(oldest_kept)
        finally:
            self._spare.restore()
        if not self.dry_run:
            delete_old(self.storage)
        fork = self.commits.branches.fork(self.branch)
        first = oldest_kept_before if fork is None else max(oldest_kept_before, fork.version + 1)
        named = {(tag.branch, tag.version) for tag in self.commits.tags.all().values()}
        named |= {(record.fork.branch, record.fork.version) for record in self.commits.branches.all().values()}
        # A header only claims the number of versions: do not loop over them.
        kept = sum(branch == self.branch and first <= version < oldest_kept for branch, version in named)
        expired = max(0, oldest_kept - first) - kept
        count, size = self._gone + len(staged), self._gone_bytes + staged_size
        staged_size += self._gone_uploaded
        return VacuumReport(oldest_kept, expired, count, size, staged_size, self.dry_run, tuple(self._held))

    def _check_not_stopped(self) -> None:
        """Raise `OSError` if a commit may lack its version: a repair restores it, and needs its other files."""
        for branch in living_branches(self.commits):
            self.commits.store.check_not_stopped(branch)

    def _is_committed(self, staged: str) -> bool:
        """Tell whether a file below `.staging/` is another name of a pack: its transaction died after its commit."""
        found = names.parse_staging(staged)
        return found is not None and self.storage.exists(names.data_pack_path(packfile.participants_pack(*found)))

    # --- the highest possible oldest kept version

    def wanted(self, head: Stored, keep: int | None, before: int | None) -> int:
        """Return the version of the lowest commit to keep."""
        if keep is None and before is None:
            return head.header.oldest_kept
        wanted = head.header.version if keep is None else head.header.version - keep + 1
        if before is not None:
            wanted = min(wanted, first_since(self.commits, head, before))
        return max(head.header.oldest_kept, self._limited(head, wanted))

    def _limited(self, head: Stored, wanted: int) -> int:
        limits = [*self._pinned(head, wanted)]  # first: see above
        limits += self._bases()
        limits += ((version, f"the feed {name!r} needs") for version, name in kept_for_feeds(self.commits, head))
        for version, who in limits:
            if version < wanted:
                self._held[f"{who} {self.commits.branches.label(self.branch, version)}"] = None
        return min([wanted, *(version for version, _ in limits)])

    def _bases(self) -> Iterator[tuple[int, str]]:
        """Yield the base versions of recorded transactions: a named transaction outlives its processes."""
        for record in recorded(self.commits.storage):
            if record.branch == self.branch:
                what = "a transaction" if record.name is None else f"the transaction {record.name!r}"
                yield 0 if record.base is None else record.base[0], f"{what}, begun by {record.owner}, is open on"

    def _pinned(self, head: Stored, below: int) -> Iterator[tuple[int, str]]:
        """Yield the lowest version that a living process reads or bases a transaction on, if it is below `below`."""
        difference = head.header.seq - head.header.version  # both grow by one with each commit
        pins = self.snapshots.pins(self.branch)
        if (seq := pins.lowest(below + difference)) is not None:
            yield max(0, seq - difference), f"{pins.holders(below + difference)} reads, or writes on,"

    # --- the commit that raises the oldest kept version

    def _raise(self, head: Stored, before: int, oldest_kept: int) -> Stored:
        """Raise the oldest kept version by a commit, if wanted, and then by its file; return the newest commit.

        Raises `OSError`, `SyncFailedError`.
        """
        self.oldest_kept = oldest_kept
        sweep = partial(self._sweep_if_settled, before)
        make_room: list[Callable[[], None]] = [sweep, self._spare.delete_head_cache, self._spare.delete_guard]
        while True:
            try:
                if oldest_kept > head.header.oldest_kept:
                    self._make_durable(head)  # before other processes wait for us
                    head = self._publish(head)
                    oldest_kept = head.header.oldest_kept
                if head.header.oldest_kept > before:
                    self._make_durable(head)  # an interrupted vacuum may not have done this
                    self.commits.oldest_kept.write(head)
                return head
            except OSError as error:
                if not is_full(error):
                    raise
                if not make_room:
                    told = (
                        f"{error.strerror}. The vacuum has deleted what it could without a record, and lacks room for "
                        "two small files: delete something else there, a tag or a branch, say, and run it again"
                    )
                    raise OSError(error.errno, told, error.filename) from error
            make_room.pop(0)()

    def _make_durable(self, head: Stored) -> None:
        with syncing():  # I9: for lack of room, too
            self.commits.store.make_durable(head)

    def _sweep_if_settled(self, oldest_kept: int) -> None:
        """Delete files that no kept commit needs now; none if the file of the head's oldest kept version is not yet
        written.
        """
        head = self.commits.head(self.branch)
        if head is not None and head.header.oldest_kept <= oldest_kept:
            self._sweep(oldest_kept)

    def _publish(self, head: Stored) -> Stored:
        writer = self.commits.staged.new(os.urandom(16), 0)
        # Always durable (I10): files of commits with `durability="none"` are synced once, not each time.
        new = NewCommit(self.commits, writer, branch=self.branch, durable=True, message="vacuum")
        try:
            new.prepare(head)
            stored = new.publish(self._catch_up, self._contents)
            assert stored is not None
            return stored
        finally:
            if writer.close() and not new.proposed:
                self.storage.delete(writer.path)

    def _catch_up(self) -> Snapshot:
        head = self.snapshots.newest(self.branch)
        if head.stored is not None:
            self._ancestry.reach(head.stored)  # before others wait for us
        return head

    def _contents(self, head: Snapshot) -> Contents:
        assert head.stored is not None
        # Read again, as late as possible: a transaction whose base falls below the oldest kept version can't commit.
        oldest_kept = self._limited(head.stored, self.oldest_kept)
        # Only this commit knows the merged commits below the oldest kept version.
        return Contents((), tuple(head.run_names), oldest_kept=oldest_kept, reach=self._ancestry.joined(head.stored))

    # --- deleting

    def _sweep(self, oldest_kept: int) -> None:
        """Delete files that no commit from `oldest_kept` on needs; it is raised already."""
        doomed, empty = self._doomed(oldest_kept)
        lengths, uploaded = sizes_of(self.commits, doomed), StagedPacks(self._reclaimed)
        if not self.dry_run:
            self._check_not_stopped()  # another process may have stopped it since
            self.storage.sync_directory(names.TAGS)  # a tag that is gone must not come back
            self.commits.store.let_stand(doomed)
            for i in range(0, len(doomed), self.storage.capabilities.deleted_together):
                with contextlib.suppress(WrongFileTypeError):  # a directory of such a name: `verify` reports it
                    self.storage.delete(*doomed[i : i + self.storage.capabilities.deleted_together])
            for directory in empty:
                self.storage.remove_directory(directory)
        self._gone += len(doomed)
        self._gone_bytes += sum(lengths.values())
        self._gone_uploaded += sum(length for path, length in lengths.items() if path in uploaded)

    def _doomed(self, oldest_kept: int) -> tuple[list[str], list[str]]:
        """Return the files to delete, and the directories that are empty without them."""
        while True:
            oldest_kept_versions = self._oldest_kept_versions()
            try:
                return self._unreachable(oldest_kept)
            except (CommitNotFoundError, CorruptionError):
                # Another vacuum may have raised it further meanwhile, and deleted files that we were about to read.
                if self._oldest_kept_versions() == oldest_kept_versions and not self.commits.oldest_kept.is_above(
                    self.branch, oldest_kept
                ):
                    raise
                oldest_kept = max(oldest_kept, self.commits.oldest_kept.of(self.branch))

    def _oldest_kept_versions(self) -> dict[str, int]:
        return {branch: self.commits.oldest_kept.of(branch) for branch in living_branches(self.commits)}

    def _unreachable(self, oldest_kept: int) -> tuple[list[str], list[str]]:
        """Find the files that no kept commit of any branch needs.

        A commit's data packs get their names in `packs/` before it is made, and keep those below `.staging/` until
        after: a process that lists `packs/`, then `.staging/`, then reads the heads has seen one of the three. The
        files of branches are listed before the branches: files of an unlisted branch belong to a deleted one.
        """
        candidates = list(data_packs(self.commits))
        # `dry_run` has deleted nothing yet.
        staged = StagedPacks(set(self.storage.list(names.STAGING)) - self._reclaimed)
        directories = self.commits.files.branch_directories()
        pinned = {branch: self.snapshots.pins(branch).lowest(SPAN) for branch in {MAIN, *directories}}
        bases = list(recorded(self.commits.storage))
        needed = Reachable(self.commits)
        for stored in kept_commits(self.commits, {self.branch: oldest_kept}):
            needed.add(stored)
        living = {branch: self.commits.oldest_kept.of(branch) for branch in living_branches(self.commits)}
        living[self.branch] = oldest_kept
        doomed, empty = [], []
        for branch in directories:
            versions = sorted(self.commits.files.versions(branch))
            kept_from = living.get(branch, versions[-1] + 1 if versions else 0)
            lowest = min(
                [kept_from, *self._versions_pinned(branch, versions, pinned[branch])]
                + [0 if each.base is None else each.base[0] for each in bases if each.branch == branch]
            )
            for version in versions:
                if lowest <= version < kept_from and (found := self.commits.files.read(branch, version)) is not None:
                    # A reader that asks for a deleted one pins it until it gets the error: then it may exist in part.
                    with contextlib.suppress(MissingPackError):
                        needed.add(found)
            for path in paths_in(self.commits.storage, names.commits_directory(branch)):
                found_version = names.parse_version(path.rpartition("/")[2])
                if branch in living and names.parse_stop(path.rpartition("/")[2]) is not None:
                    continue  # a repair needs it
                # An orphan that was moved aside: its commit was never acknowledged.
                if found_version is None or (found_version < lowest and path not in needed.paths):
                    doomed.append(path)
            raised = paths_in(self.commits.storage, names.oldest_kept_directory(branch))
            if branch in living:
                found_versions = (names.parse_version(path.rpartition("/")[2]) or 0 for path in raised)
                highest = max([living[branch], *found_versions])  # `dry_run` has not written its own
                doomed += [path for path in raised if path != names.oldest_kept_path(branch, highest)]
            elif lowest == kept_from:
                doomed += [*raised, names.head_cache_path(branch)]
                empty += [names.commits_directory(branch), names.oldest_kept_directory(branch)]
        # The records are read after the packs were listed: a pack gets into its record before it is there.
        replacements = packs_in_use(self.storage, needed.paths)
        doomed += [
            path for path in candidates if path not in needed.paths and path not in staged and path not in replacements
        ]
        return doomed, empty

    def _versions_pinned(self, branch: str, versions: list[int], seq: int | None) -> Iterator[int]:
        """Yield the lowest version of a branch that a living process reads, if any."""
        for version in versions if seq is not None else ():
            with contextlib.suppress(CorruptionError):
                stored = self.commits.files.read(branch, version)
                if stored is not None and seq is not None:
                    yield max(0, seq - (stored.header.seq - version))  # both grow by one with each commit
                    return


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

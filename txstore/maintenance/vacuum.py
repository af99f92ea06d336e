"""Deleting what nothing that is kept needs any more. I10: the floor first, durably; then the files.

A vacuum that raises the floor is a commit, so that every writer meets it. When that is durable, and the file
`floor/<slot>` says so too, pins and tags are looked at once more: whoever pins or tags a commit looks for the floor
afterwards, so one of the two sees the other. Whatever is left undone when a vacuum is interrupted, the next one does.

What goes from one to another, from pin to record of a transaction, or to tag, is looked for in that order.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from txstore.errors import CorruptionError, WrongFileTypeError
from txstore.format import encoding, names, packfile
from txstore.format.records import TransactionRecord
from txstore.history.commit import Stored
from txstore.history.commits import Commits
from txstore.history.find import first_since
from txstore.history.packs import MissingPackError
from txstore.history.slots import Contents, Publisher, SyncFailedError
from txstore.history.snapshot import Snapshot, Snapshots
from txstore.maintenance.reachable import Reachable, StagedPacks, data_packs, kept_commits, sizes_of
from txstore.storage.interface import Storage
from txstore.transactions.reclaim import reclaim_staging


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """What a vacuum did, or with `dry_run` would do.

    Attributes
    ----------
    floor : int
        The lowest slot that is kept now.
    expired : int
        How many commits can't be read any more that could be before.
    files, bytes : int
        What was deleted.
    staged : int
        How many of these bytes were staged by processes that died before they committed.
    dry_run : bool
    """

    floor: int
    expired: int
    files: int
    bytes: int
    staged: int = 0
    dry_run: bool = False


def vacuum(
    commits: Commits,
    snapshots: Snapshots,
    *,
    branch: str,
    keep: int | None = None,
    older_than: timedelta | datetime | None = None,
    dry_run: bool = False,
) -> VacuumReport:
    """Raise the floor as far as asked for and as nobody minds; delete. See `Repository.vacuum`."""
    if keep is not None and keep < 1:
        raise ValueError(f"keep={keep}: at least the newest commit is kept, so keep=1 is the least")
    vacuuming = _Vacuum(commits, snapshots, branch=branch, dry_run=dry_run)
    try:
        return vacuuming.run(keep, None if older_than is None else _microseconds(older_than, commits.storage))
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
    """Return how far a vacuum would raise the floor."""
    head = commits.head(branch)
    if head is None:
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
    """One vacuum; and the commit by which it raises the floor, as a `Plan` of `history.slots`."""

    def __init__(self, commits: Commits, snapshots: Snapshots, *, branch: str, dry_run: bool) -> None:
        self.commits = commits
        self.storage = commits.storage
        self.snapshots = snapshots
        self.branch = branch
        self.dry_run = dry_run
        self.floor = 0  # how far it is to be raised

    def run(self, keep: int | None, before: int | None) -> VacuumReport:
        if not self.dry_run:
            self.commits.identity.create(durable=True)  # of a copy, empty directories may be missing
        sizes = self.storage.sizes(names.STAGING)
        staged = reclaim_staging(self.commits, dry_run=self.dry_run)
        files = [path.removeprefix(f"{names.STAGING}/") for path in staged]
        staged_size = sum(sizes.get(file, 0) for file in files if not self._is_committed(file))
        head = self.commits.head(self.branch)
        if head is None:
            return VacuumReport(0, 0, len(staged), staged_size, staged_size, self.dry_run)
        floor_before = self.commits.floor(self.branch)
        floor = self.wanted(head, keep, before)
        if not self.dry_run:
            if floor > head.header.floor:
                self.commits.make_durable(head)  # before anybody has to wait for us
                self.floor = floor
                head = self._publish(head)
                floor = head.header.floor
            if head.header.floor > floor_before:
                self.commits.make_durable(head)  # one that was interrupted may not have come to that
                self.commits.write_floor(head)
        doomed = self._doomed(floor)
        size = sum(sizes_of(self.commits, doomed).values())
        if not self.dry_run:
            self.storage.sync_directory(names.TAGS)  # a tag that is gone must not come back
            for i in range(0, len(doomed), self.storage.deleted_together):
                with contextlib.suppress(WrongFileTypeError):  # a directory of such a name: `verify` tells
                    self.storage.delete(*doomed[i : i + self.storage.deleted_together])
        tagged = {tag.slot for tag in self.commits.tags().values() if floor_before <= tag.slot < floor}
        expired = floor - floor_before - len(tagged)
        count, size = len(doomed) + len(staged), size + staged_size
        return VacuumReport(floor, expired, count, size, staged_size, self.dry_run)

    def _is_committed(self, staged: str) -> bool:
        """Tell whether a file below `.staging/` is another name of a pack: its transaction died after its commit."""
        found = names.parse_staging(staged)
        return found is not None and self.storage.exists(names.data_pack_path(packfile.participants_pack(*found)))

    # --- how far the floor may rise

    def wanted(self, head: Stored, keep: int | None, before: int | None) -> int:
        """Return the slot of the lowest commit to keep."""
        if keep is None and before is None:
            return head.header.floor
        wanted = head.header.slot if keep is None else head.header.slot - keep + 1
        if before is not None:
            wanted = min(wanted, first_since(self.commits, head, before))
        return max(head.header.floor, self._limited(head, wanted))

    def _limited(self, head: Stored, wanted: int) -> int:
        wanted = self._pinned(head, below=wanted)  # first: see above
        return min([wanted, *self._bases()])

    def _bases(self) -> Iterator[int]:
        """Yield the slots that recorded transactions are based on: what has a name outlives its processes."""
        files = self.storage.list(names.STAGING)
        transactions = set(map(names.parse_record, files)) - {None}
        # A record that was renamed while they were listed may be missing from the list; what was staged is there.
        transactions |= {staged[0] for staged in map(names.parse_staging, files) if staged is not None}
        for record in map(self._record, filter(None, transactions)):
            if record is not None and record.branch == self.branch:
                yield 0 if record.base is None else record.base[0]

    def _record(self, transaction: bytes) -> TransactionRecord | None:
        """Return the record of a transaction; None if it has just ended, has none, or died while it was written."""
        # The first again: between two looks, it may have been unsealed.
        for path in (names.open_path(transaction), names.sealed_path(transaction), names.open_path(transaction)):
            with contextlib.suppress(FileNotFoundError, encoding.MalformedError):
                return TransactionRecord.decode(self.storage.read(path))
        return None

    def _pinned(self, head: Stored, below: int) -> int:
        """Return the lowest slot that a living process reads or bases a transaction on; `below` if none is lower."""
        difference = head.header.seq - head.header.slot  # both grow by one with each commit
        seq = self.snapshots.pins.lowest(below + difference)
        return below if seq is None else max(0, seq - difference)

    # --- the commit that raises it

    def _publish(self, head: Stored) -> Stored:
        writer = self.commits.new_pack(os.urandom(16), 0)
        # Durable in any case (I10): what commits of `durability="none"` have made is synced once, not each time.
        publisher = Publisher(self.commits, writer, branch=self.branch, durable=True, message="vacuum")
        try:
            publisher.prepare(head)
            stored = publisher.publish(self)
            assert stored is not None
            return stored
        finally:
            if writer.close() and not publisher.offered:
                self.storage.delete(writer.path)

    def catch_up(self) -> Snapshot:
        return self.snapshots.newest(self.branch)

    def contents(self, head: Snapshot) -> Contents:
        assert head.stored is not None
        # Looked at again, as late as can be: a transaction whose base falls below the floor can't be committed.
        return Contents((), tuple(head.run_names), floor=self._limited(head.stored, self.floor))

    # --- what goes

    def _doomed(self, floor: int) -> list[str]:
        while True:
            try:
                return list(self._unreachable(floor))
            except CorruptionError:
                # Another vacuum may have gone further meanwhile, and have deleted what we were about to look at.
                if not self.commits.is_below_floor(self.branch, floor):
                    raise
                floor = self.commits.floor(self.branch)

    def _unreachable(self, floor: int) -> Iterator[str]:
        """Yield the paths of files that nothing kept needs.

        A commit's data packs get their names in `packs/` before it is made, and keep those below `.staging/` until
        after: whoever looks at `packs/`, then `.staging/`, then the head has seen one of the three.
        """
        candidates = list(data_packs(self.commits))
        staged = StagedPacks(self.storage.list(names.STAGING))
        head = self.commits.head(self.branch)
        assert head is not None
        lowest = self._limited(head, floor)
        needed = Reachable(self.commits)
        for stored in kept_commits(self.commits, self.branch, head, floor):
            needed.add(stored)
        for stored in self._down_from(floor, lowest):
            # Whoever asks for one that is gone pins it until told so: then it may be there in part.
            with contextlib.suppress(MissingPackError):
                needed.add(stored)
        for path in candidates:
            if path not in needed.paths and path not in staged:
                yield path
        directory = names.commits_directory(self.branch)
        for file in self.storage.list(directory):
            slot = names.parse_slot(file)
            path = f"{directory}/{file}"
            if names.is_orphan(file) or (slot is not None and slot < lowest and path not in needed.paths):
                yield path  # an orphan that was moved aside: nobody was ever told of it
        directory = names.floor_directory(self.branch)
        for file in self.storage.list(directory):
            slot = names.parse_slot(file)
            if slot is not None and slot < self.commits.floor(self.branch):
                yield f"{directory}/{file}"

    def _down_from(self, floor: int, lowest: int) -> Iterator[Stored]:
        """Yield the commits below the floor that somebody pinned just before it was raised."""
        for slot in sorted(slot for slot in self.commits.slots(self.branch) if lowest <= slot < floor):
            stored = self.commits.read(self.branch, slot)
            if stored is not None:
                yield stored

"""Erases all versions of the nodes below some paths, from every commit, branch and tag, for good.

Order: first the erasure surveys every file, and waits for the readers and writers of the commits that it has found;
until then it changes nothing. Then ordinary commits delete the paths from the heads, the erasure waits for all readers
of older commits, and a record says what is being erased. From then on no process restores these values, or starts a
branch at a commit that has them. The erasure waits for those that have just done so, and deletes what they committed.
Then it replaces one file after the other, until a walk through all of them finds nothing.

Erasures of one repository take turns, from the first look to the last file. If one was interrupted after it had begun
to replace files, its record says all that is needed: the next erasure, of whatever, finishes that one first. Before
that, nothing was erased, and the call has to be repeated.

Rows of arrays are erased in the same order. In place of the deletion, ordinary commits overwrite the rows with fill
values. Before any file is replaced, the erasure writes new values for all versions, and the record says where they lie:
from then on a reader finds them, whether the old ones are still there or not.
"""

from __future__ import annotations

import contextlib
import gc
import os
import posixpath
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from txstore.commit import MAIN, Commit, Stored
from txstore.deriving.declared import decode
from txstore.errors import (
    CommitNotFoundError,
    CommitWaitWarning,
    ConflictError,
    ConstraintError,
    CorruptionError,
    ErasureError,
    ErasureTimeoutError,
    NodeNotFoundError,
    SnapshotExpiredError,
    ViewError,
    warn,
)
from txstore.format import names, packfile
from txstore.format.display import html_head, readable_size
from txstore.format.keys import directory_prefix, is_related
from txstore.format.packfile import PackName
from txstore.format.records import ErasureRecord, ReplacementTable
from txstore.history.commits import Commits
from txstore.history.new_commit import Contents, NewCommit
from txstore.history.operations import forget_details
from txstore.history.snapshot import Snapshot, Snapshots
from txstore.history.staged_packs import recorded
from txstore.locks.pins import HERE, SPAN
from txstore.maintenance.reachable import living_branches
from txstore.maintenance.replacement_packs import ValueAfter, row_fates, write_replacements
from txstore.maintenance.scrub import Fates, Survey, rewrite, survey
from txstore.maintenance.vacuum import vacuum
from txstore.segments.replaced import read_records
from txstore.storage.commit_lock import this_user
from txstore.storage.interface import Storage, paths_in, write_over

T = TypeVar("T")

_LOOK_AGAIN = 0.05  # seconds
#: Checks for remaining values, while other processes can't be kept from committing.
_ROUNDS = 5
_DELETED = "The newest commits have it no more, the older ones still have it"


#: Deletes the paths from a head of a branch with a commit, or overwrites the rows. With `asks=True` it changes nothing.
#: Either way, it raises what the commit raises.
Delete = Callable[..., object]
#: Commits the values of some keys of a branch's head again.
Renew = Callable[[Snapshot, str, Collection[str]], object]


class RowsToErase(Protocol):
    """Rows of arrays: what an erasure has to know of them if it does not erase all below the paths."""

    dimensions: tuple[str, ...]

    def check(self) -> bool:
        """Tell whether any kept commit has values of the rows that are not fill values.

        Raises `ErasureError` if they can't be erased.
        """

    def shown_unmet(self, *, is_begun: bool) -> str:
        """Return, in words, the labels that `check` has met in no commit; "" for none.

        If the erasure `is_begun`, it may have erased labels: those don't count.
        """

    def covers(self, record: ErasureRecord) -> bool:
        """Tell whether an interrupted erasure may have been one of these rows: records don't say which."""

    def are_in(self, snapshot: Snapshot) -> bool:
        """Tell whether a commit has values of the rows that are not fill values."""

    def values(self) -> Iterator[ValueAfter]:
        """Yield each value below the paths that a kept commit has, once, and what becomes of it."""


@dataclass(frozen=True, slots=True, repr=False)
class ErasureReport:
    """The result of an erasure.

    Attributes
    ----------
    paths : tuple of str
    commit : Commit or None
        The commit that records the erasure in the history of "main"; None if nothing was left to erase.
    values, bytes : int
        Number of erased values, of all versions, and their length in bytes.
    files : int
        Number of replaced files.
    """

    paths: tuple[str, ...]
    commit: Commit | None
    values: int
    bytes: int
    files: int

    def __str__(self) -> str:
        if self.commit is None:
            return "nothing was left to erase"
        return f"{self.values:,} values ({readable_size(self.bytes)}) erased, in {self.files:,} files, as {self.commit}"

    def __repr__(self) -> str:
        return f"<ErasureReport {_shown(self.paths)}: {self}>"

    def _repr_html_(self) -> str:
        return html_head("ErasureReport", f"{_shown(self.paths)}: {self}")


@contextlib.contextmanager
def erasing(commits: Commits, snapshots: Snapshots, renew: Renew, *, timeout: float | None) -> Iterator[Erasing]:
    """Take a turn among the erasures of a repository, and finish those that were interrupted.

    Raises `ErasureTimeoutError`, and the errors of `Storage.alone`.
    """
    commits.identity.check_there()
    with commits.storage.alone(names.ERASE_LOCK) as check_turn:
        snapshots.heed_erasures()  # new values are made of what is stored, never of what was
        turn = Erasing(commits, snapshots, renew, timeout, check_turn)
        try:
            turn.finish_interrupted()
            yield turn
        finally:  # files that a vacuum has deleted are in no survey, and the cache may have pieces of them
            commits.storage.cache.forget_all()


@dataclass
class Erasing:
    """A turn: `erase` is `Repository.erase`."""

    _commits: Commits
    _snapshots: Snapshots
    _renew: Renew
    _timeout: float | None
    _check_turn: Callable[[], object]
    _finished: list[tuple[ErasureRecord, ErasureReport]] = field(default_factory=list)  # which others had begun

    def finish_interrupted(self) -> None:
        for record in self._unfinished():
            if record.may_have_replaced:
                erasing = self._of(record.paths, None, None)
                self._finished.append((record, erasing.finish(record)))
            elif record.table is not None and record.table.packs:
                # Nothing was replaced, and what it wrote may have what is erased next.
                self._check_turn()
                write_record(self._commits.storage, replace(record, table=ReplacementTable(())))
                self._commits.storage.delete(*(PackName(pack).path for pack in record.table.packs))

    def erase(self, paths: Collection[str], delete: Delete, rows: RowsToErase | None = None) -> ErasureReport:
        """Erase all versions below some paths, or some rows of arrays."""
        erasing = self._of(paths, delete, rows)

        def is_same(record: ErasureRecord) -> bool:
            return record.paths == erasing.paths if rows is None else rows.covers(record)

        begun = list(filter(is_same, self._unfinished()))
        same = [report for record, report in self._finished if is_same(record)]
        report = erasing.run(is_begun=bool(begun or same))
        for record in self._unfinished():  # their rows are gone, with the rest or as these
            left = [path for path in record.paths if not is_below(path, erasing.paths)]
            if rows is not None:
                left = [] if record in begun else [*record.paths]
            self._check_turn()
            if not left:
                self._commits.storage.delete(record.path)
            elif left != [*record.paths]:  # else no call could match the record again: some of the arrays are gone
                write_record(self._commits.storage, replace(record, paths=tuple(left)))
        return same[-1] if same and report.commit is None else report

    def _of(self, paths: Collection[str], delete: Delete | None, rows: RowsToErase | None) -> _Erasing:
        return _Erasing(
            self._commits, self._snapshots, self._renew, paths, delete, self._timeout, rows, self._check_turn
        )

    def _unfinished(self) -> list[ErasureRecord]:
        return [record for record in read_records(self._commits.storage) if record.finished is None]


class _Erasing:
    """The erasure of one call, or one that was interrupted."""

    def __init__(
        self,
        commits: Commits,
        snapshots: Snapshots,
        renew: Renew,
        paths: Collection[str],
        delete: Delete | None,
        timeout: float | None,
        rows: RowsToErase | None,
        check_turn: Callable[[], object],
    ) -> None:
        self.paths = tuple(sorted(set(paths)))
        self._rows = rows
        self._commits = commits
        self._storage = commits.storage
        self._snapshots = snapshots
        self._renew = renew
        self._delete = delete
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._check_turn = check_turn
        self._files = 0
        self._has_collected = False
        self._has_warned = False
        self._names_processes = False  # at the end of the wait: it takes a look at all processes of the machine
        self._deleted = 0  # commits by which this erasure deleted the paths, or tried to
        self._firsts: dict[str, tuple[bytes, int]] = {}  # by branch: a head, and the result of `_first_without` for it
        #: By branch: the seq from which on all commits that were looked at lack the rows.
        self._clean: dict[str, int] = {}
        # By branch, until the first wait has ended: the result of `_first_without` when it began. Else the erasure
        # would wait for a moment without any reader, which may never come beside processes that keep committing.
        self._began: dict[str, int] | None = {}
        self._record: ErasureRecord | None = None  # of an interrupted erasure, while it is finished

    def finish(self, record: ErasureRecord) -> ErasureReport:
        """Finish an erasure that was interrupted, by what its record says."""
        self._record = record
        self._wait(done="It was interrupted, and has to be finished before anything else is erased")
        record = self._scrub(record)
        return self._end(record)

    def run(self, *, is_begun: bool) -> ErasureReport:
        """`is_begun`: it may be the second call for one that was interrupted."""
        self._check_quarantine()
        self._check_views()
        found = self._survey(None)
        if not is_begun:
            self._check_met(found)
        if not (found.changes if self._rows is None else self._is_left(self._rows, is_begun=is_begun)):
            return ErasureReport(self.paths, None, 0, 0, 0)
        self._check_shared(found)
        self._wait()
        self._began = None
        self._check_quarantine()  # it may have waited for long
        self._check_views()
        for branch in living_branches(self._commits):  # all of them, before the first is changed
            self._while_living(branch, self._ask)
        record = self._new_record()
        if self._rows is not None:  # else their labels could be overwritten, expire, and no call could name them again
            self._write(record)
        self._delete_everywhere()
        until = self._delete_until_unread()
        if self._commits.staged.uploads:  # else a vacuum sees at once which processes live
            for paths in self._staged().values():
                self._storage.delete(*(set(paths) - self._storage.are_held(paths)))
        vacuum(self._commits, self._snapshots, branch=MAIN)  # files that no commit needs then need no survey
        # I12: from now on no process restores these values, and the second look is for those that have just done so.
        self._write(replace(record, until=until))
        record = replace(record, until=self._delete_until_unread())
        if self._rows is not None:
            record = self._replace(self._rows, record)
        else:
            self._write(record)
            record = self._scrub(self._pass_by(record))
        return self._end(record)

    def _end(self, record: ErasureRecord) -> ErasureReport:
        forget_details(self._storage)
        # If another vacuum deleted a file just as this erasure replaced it, the file exists again.
        vacuum(self._commits, self._snapshots, branch=MAIN)
        for branch in living_branches(self._commits) if record.table is not None else ():
            self._while_living(branch, self._write_anew)
        commit = self._note(record)
        self._write(replace(record, finished=time.time_ns() // 1000))
        return ErasureReport(self.paths, commit, record.values, record.length, self._files)

    # --- checks before the erasure

    def _check_quarantine(self) -> None:
        if self._storage.list(names.QUARANTINE):
            raise ErasureError(
                self.paths,
                f"a repair has left files in {names.QUARANTINE}/, and they may hold these values: look at them, "
                "delete them",
            )

    def _check_views(self, done: str = "Nothing was changed") -> None:
        """Refuse sources of views: what was derived from them tells of them. Refuse outputs: they are derived again."""
        for branch in living_branches(self._commits):
            head = self._commits.head(branch)
            views = {} if head is None else decode(self._storage.url, head.header.declared.views)
            for name, view in views.items():
                if any(is_related(source, path) for source in view.sources for path in self.paths):
                    raise ErasureError(
                        self.paths,
                        f"the view {name!r} derives {_shown(view.outputs)} from it: drop the view, and erase its "
                        f"outputs, too, or delete them and let a vacuum expire these commits. {done}",
                    )
                if any(is_related(output, path) for output in view.outputs for path in self.paths):
                    raise ErasureError(
                        self.paths,
                        f"the view {name!r} derives it from {_shown(view.sources)}, and would derive it again: drop "
                        f"the view, and erase its sources, too. {done}",
                    )

    def _check_met(self, found: Survey) -> None:
        for path in self.paths:
            if path not in found.met:
                raise NodeNotFoundError(path)

    def _check_shared(self, found: Survey) -> None:
        if found.shared:
            raise ErasureError(
                self.paths,
                "these have some of the same values, which were moved or copied without being written: "
                f"{_shown(found.shared)}. Give them, too, or take them out of the history first: delete them, then "
                "vacuum",
            )

    def _is_left(self, rows: RowsToErase, *, is_begun: bool) -> bool:
        """Tell whether any file may have values of the rows. Raises `ErasureError`."""
        has_rows = self._unless_expired(rows.check)
        if unmet := rows.shown_unmet(is_begun=is_begun):
            raise ErasureError(
                self.paths,
                f"no commit has such rows ({unmet}), or they were erased with their labels: nothing was changed",
            )
        if has_rows:
            return True
        # Values that no kept commit has may be theirs: they were overwritten, and their commits have expired since.
        places = self._unless_expired(lambda: {place for value in rows.values() for place in value.places})
        fates = Fates(frozenset(), lambda pack, offset: None if (pack, offset) in places else packfile.REF_ERASED)
        return bool(self._survey(None, fates).changes)

    # --- processes in the way

    def _wait(self, done: str = "Nothing was changed") -> None:
        while holders := list(self._holders()):
            if self._has_collected and self._deadline is not None and time.monotonic() >= self._deadline:
                self._names_processes = True
                raise ErasureTimeoutError(self.paths, list(self._holders()) or holders, done=done)
            if self._has_collected:
                for holder in holders:
                    if holder.startswith(HERE):
                        self._warn(holder)
                time.sleep(_LOOK_AGAIN)
            else:
                gc.collect()  # a snapshot without users here may still be pinned
                self._has_collected = True

    def _warn(self, holder: str) -> None:
        """Tell this process, once, that it waits for itself: perhaps no other thread will close what it has opened."""
        if not self._has_warned:
            self._has_warned = True
            told = f"{holder}, and the erasure waits for that: close the stores, snapshots and datasets opened there"
            with contextlib.suppress(CommitWaitWarning):  # where warnings are errors: an erasure may have begun
                warn(told, CommitWaitWarning)

    def _holders(self) -> Iterator[str]:
        """Yield, in words, each process that reads a commit with values to erase, or has a transaction open on one."""
        living = living_branches(self._commits)
        for branch in {*self._commits.files.branch_directories()} - {*living}:
            if self._snapshots.pins(branch).lowest(SPAN) is not None:
                yield f"a process reads the deleted branch {branch}"
        for branch in living:
            yield from self._while_living(branch, self._holders_of) or ()

        if self._commits.staged.uploads:
            # Unrecorded transactions do not say which commit they are based on.
            for transaction, paths in self._staged().items():
                if self._storage.are_held(paths):
                    yield f"transaction {transaction.hex()} is open"

    def _holders_of(self, branch: str) -> list[str]:
        head = self._commits.head(branch)
        if head is None:
            return []
        header, found = head.header, list[str]()
        difference = header.seq - header.version  # both grow by one with each commit
        if self._record is not None:
            first = self._record.until.get(branch, -1) + difference
        else:
            first = self._first_without(branch, head)
        if self._began is not None:
            first = min(first, self._began.setdefault(branch, first))
        pins = self._snapshots.pins(branch)
        if (seq := pins.lowest(first)) is not None:
            version = seq - difference
            what = self._commits.branches.label(branch, version) if version >= 0 else "what was before the first commit"
            found.append(f"{pins.holders(first, named=self._names_processes)} reads {what}, or writes on it")
        for record in recorded(self._commits.storage):
            base = -1 if record.base is None else record.base[0]
            if record.branch == branch and base + difference < first:
                what = f"the transaction {record.name!r}" if record.name is not None else "a transaction"
                found.append(
                    f"{what}, begun by {record.owner}, is open on {self._commits.branches.label(branch, base)}"
                )
        return found

    def _while_living(self, branch: str, work: Callable[[str], T]) -> T | None:
        """Do `work` with a branch; repeat it if a vacuum overtook it; return None if the branch was deleted."""
        while True:
            oldest_kept = self._commits.oldest_kept.of(branch)
            try:
                return work(branch)
            except (SnapshotExpiredError, CommitNotFoundError, CorruptionError, FileNotFoundError):
                if not self._commits.branches.is_living(branch):
                    return None
                if self._commits.oldest_kept.of(branch) == oldest_kept:
                    raise

    def _first_without(self, branch: str, head: Stored) -> int:
        """Return the seq from which on no commit of a branch has any of it: at most the one after the head's."""
        known, first = self._firsts.get(branch, (b"", 0))
        if known != head.header.id:
            snapshot = self._snapshots.of(head)
            if self._is_there(snapshot):
                self._clean.pop(branch, None)
                first = snapshot.seq + 1
            else:
                first = max(map(snapshot.last_change, self.paths))
                if self._rows is not None:  # others go on writing to the arrays, and nothing needs to wait for that
                    first = self._clean.setdefault(branch, first)
            self._firsts[branch] = head.header.id, first
        return first

    def _staged(self) -> dict[bytes, list[str]]:
        """Return the staged packs by transaction, without recorded transactions."""
        known = {record.id for record in recorded(self._commits.storage)}
        found: dict[bytes, list[str]] = {}
        for path in paths_in(self._commits.storage, names.STAGING):
            part = names.parse_staging(posixpath.basename(path))
            if part is not None and part[0] not in known:
                found.setdefault(part[0], []).append(path)
        return found

    def _is_there(self, snapshot: Snapshot) -> bool:
        if self._rows is not None:
            return self._rows.are_in(snapshot)
        return any(map(snapshot.has_keys_below, self.paths))

    def _survey(self, until: Mapping[str, int] | None, fates: Fates | None = None) -> Survey:
        """Survey every file. Files that a vacuum deletes meanwhile need no survey."""
        return self._unless_expired(lambda: survey(self._commits, self.paths, until, fates))

    def _unless_expired(self, work: Callable[[], T]) -> T:
        """Do `work`; repeat it if a vacuum has deleted what it was about to read."""
        while True:
            kept = self._kept()
            try:
                return work()
            except (CorruptionError, FileNotFoundError):
                if self._kept() == kept:
                    raise

    def _kept(self) -> dict[str, int]:
        return {branch: self._commits.oldest_kept.of(branch) for branch in living_branches(self._commits)}

    # --- deleting and recording

    def _pass_by(self, record: ErasureRecord) -> ErasureRecord:
        """Where no pins tell which processes have a transaction open: let each meet the record before it can commit.

        A transaction looks for records when it moves to a head that it does not know. Each branch gets such a head now:
        what was committed before is among what is erased, and what is committed behind it has looked.
        """
        if self._commits.are_pins_seen:
            return record
        for branch in living_branches(self._commits):
            self._while_living(branch, lambda each: self._commit(each, f"erasing {_shown(self.paths)}", {}))
        record = replace(record, until=self._delete_everywhere())
        self._write(record)
        return record

    def _delete_until_unread(self) -> dict[str, int]:
        """Wait for readers of the paths, and delete what they have committed; return as `_delete_everywhere`."""
        while True:
            self._wait(done=_DELETED)
            # An optimize that we waited for may have committed copies. So the erased range ends only here.
            deleted, until = self._deleted, self._delete_everywhere()
            if self._deleted == deleted:
                self._check_views(_DELETED)  # one may have been declared on what the last commits had
                return until

    def _delete_everywhere(self) -> dict[str, int]:
        """Delete the paths from every head; return, for each branch, the last version that may still have values."""
        until = {}
        for branch in self._commits.files.branch_directories():
            until[branch] = max(self._commits.files.versions(branch), default=-1)
        for branch in living_branches(self._commits):
            version = self._while_living(branch, self._delete_from)
            if version is not None:
                until[branch] = version
        return until

    def _delete_from(self, branch: str) -> int:
        """Return the version of a commit of the branch that has nothing below the paths."""
        assert self._delete is not None
        while True:
            head = self._snapshots.newest(branch)
            if not self._is_there(head):
                return head.version
            try:
                self._deleted += 1
                self._clean.pop(branch, None)  # this head has the rows
                self._delete(head, branch, asks=False)
            except (ConflictError, SnapshotExpiredError):
                if self._deadline is not None and time.monotonic() >= self._deadline:
                    raise
            except ViewError:
                self._check_views(_DELETED if self._deleted > 1 else "Nothing was changed")
                raise

    def _ask(self, branch: str) -> None:
        """Raise what the commit that deletes the paths from a branch would raise, before anything is changed."""
        assert self._delete is not None
        head = self._snapshots.newest(branch)
        if self._is_there(head):
            with contextlib.suppress(ConflictError):  # with a commit since
                self._delete(head, branch, asks=True)

    def _new_record(self) -> ErasureRecord:
        """Return a record that is newer than all there are: of two tables, the newer one counts."""
        last = max((record.time for record in read_records(self._storage)), default=0)
        when = max(time.time_ns() // 1000, last + 1)
        erasure = os.urandom(16).hex()
        if self._rows is None:
            return ErasureRecord(erasure, self.paths, this_user(), when, {})
        dimensions, table = self._rows.dimensions, ReplacementTable(())
        return ErasureRecord(erasure, self.paths, this_user(), when, {}, dimensions=dimensions, table=table)

    def _write(self, record: ErasureRecord) -> None:
        self._check_turn()
        write_record(self._storage, record)

    def _replace(self, rows: RowsToErase, record: ErasureRecord) -> ErasureRecord:
        """Write new values, then erase the old ones."""

        def note(table: ReplacementTable, begun: ErasureRecord) -> ErasureRecord:
            noted = replace(begun, table=table)
            self._write(noted)
            return noted

        def work() -> ErasureRecord:
            nonlocal record
            record = self._pass_by(note(ReplacementTable(()), record))
            note_table = partial(note, begun=record)
            return self._scrub(note_table(write_replacements(self._commits, rows.values(), note_table)))

        return self._unless_expired(work)

    def _scrub(self, record: ErasureRecord) -> ErasureRecord:
        fates = None if record.table is None else row_fates(self._storage, record)
        self._check_turn()
        with self._storage.lock(names.COMMIT_LOCK):
            for _ in range(_ROUNDS):
                found = self._survey(record.until, fates)
                if not found.changes:
                    self._commits.store.head_caches.forget()
                    return record
                if found.shared and record.table is not None and not record.values:
                    self._write(replace(record, table=ReplacementTable(record.table.packs)))  # nothing was replaced
                self._check_shared(found)  # a commit since the first look may have copied them
                record = replace(record, values=record.values + found.values, length=record.length + found.bytes)
                self._write(record)
                self._files += scrub(self._storage, found)
                self._snapshots.forget(change.pack_id for change in found.changes.values())
        raise ErasureError(self.paths, "other processes keep writing there: try again when they have ended")

    def _write_anew(self, branch: str) -> None:
        """Commit the values of the head that have replaced others, as they are now.

        Who goes by what commits change, as plain copies and feeds do, would keep what it had before.
        """
        while True:
            head = self._snapshots.newest(branch)
            keys = list(head.replaced_below(self.paths))
            try:
                if keys:
                    self._renew(head, branch, keys)
                return
            except ConstraintError:  # it is frozen
                return
            except (ConflictError, SnapshotExpiredError):
                if self._deadline is not None and time.monotonic() >= self._deadline:
                    raise

    def _note(self, record: ErasureRecord) -> Commit:
        """Make the commit that records the erasure."""
        message = f"erased {_shown(self.paths)}"
        properties: dict[str, Any] = {"erased": list(self.paths), "erasure": record.id}
        if record.dimensions:
            message = f"erased rows of {_shown(self.paths)} along {_shown(record.dimensions)}"
            properties["dimensions"] = list(record.dimensions)
        return self._commit(MAIN, message, properties)

    def _commit(self, branch: str, message: str, properties: Mapping[str, Any]) -> Commit:
        """Make a commit that changes nothing."""
        writer = self._commits.staged.new(os.urandom(16), 0)
        new = NewCommit(
            self._commits, writer, branch=branch, durable=True, message=message, properties=properties
        )  # fmt: skip
        try:
            new.prepare(self._commits.head(branch))
            stored = new.publish(
                lambda: self._snapshots.newest(branch), lambda head: Contents((), tuple(head.run_names))
            )
            assert stored is not None
            return stored.commit
        finally:
            if writer.close() and not new.proposed:
                self._storage.delete(writer.path)


def scrub(storage: Storage, found: Survey) -> int:
    """Replace every file that holds values to erase; return the number of files."""
    count = 0
    for path, change in found.changes.items():
        with contextlib.suppress(FileNotFoundError):  # a vacuum deleted it since: it must not come back
            rewrite(storage, path, change)
            count += 1
    return count


def write_record(storage: Storage, record: ErasureRecord) -> None:
    """Write a record, replacing an earlier one of the same erasure."""
    storage.make_directory(names.ERASED, durable=True)
    write_over(storage, record.path, record.encode())


def _shown(paths: Collection[str]) -> str:
    some = [repr(path) for path, _ in zip(paths, range(5), strict=False)]
    return ", ".join(some) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")


def is_below(path: str, others: Collection[str]) -> bool:
    """Tell whether a node is one of some others, or lies below one."""
    return any(f"{path}/".startswith(directory_prefix(other)) for other in others)


def check_paths(paths: Collection[str]) -> tuple[str, ...]:
    """Return the paths of nodes in the form of key prefixes. Raises `ValueError`, `KeyFormatError`."""
    if not paths:
        raise ValueError("name the arrays or groups to be erased")
    found = [directory_prefix(path)[:-1] for path in paths]
    if "" in found:
        raise ValueError("the root can't be erased: delete the repository, or name the arrays and groups in it")
    return tuple(path for path in found if not any(path.startswith(f"{other}/") for other in found))

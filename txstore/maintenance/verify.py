"""Checks everything reachable, from the oldest kept version to the head, and changes nothing.

Two passes: the frames of all packs, then the runs, whose refs must lead to them. The commits that a fault touches are
found last.
"""

from __future__ import annotations

import contextlib
import operator
from collections import deque
from collections.abc import Callable
from functools import partial

from txstore.commit import Stored
from txstore.errors import CorruptionError, SourceError, TxStoreError
from txstore.format import names, packfile
from txstore.format.commitfile import RunName
from txstore.format.keys import decode_key
from txstore.format.packfile import PackName
from txstore.history.commits import Commits
from txstore.history.opening import open_commits
from txstore.history.snapshot import Snapshot, unpinned
from txstore.maintenance.check_file import (
    Checked,
    Values,
    Window,
    check_frames,
    check_sections,
    entries_of,
    frames_end,
    open_run,
)
from txstore.maintenance.commits_of_faults import ListedRun, Place, Tracer
from txstore.maintenance.reachable import living_branches
from txstore.maintenance.report import Fault, Faults, Report
from txstore.maintenance.verify_history import HistoryCheck
from txstore.maintenance.verify_small_files import SmallFilesCheck
from txstore.progress import Progress
from txstore.segments.ranged_packs import open_packs
from txstore.segments.ranged_runs import is_replaced
from txstore.segments.replaced import read_records, run_of
from txstore.segments.runs import may_be_replaced, names_of
from txstore.storage.foreign_files import Sources
from txstore.storage.foreign_values import FileVersion
from txstore.storage.interface import Storage
from txstore.storage.request_threads import in_parallel


def verify(commits: Commits, progress: Progress | None = None) -> Report:
    """Check every commit from the oldest kept version on, and everything it refers to. See `Repository.verify`."""
    seen: dict[str, int] | None = {}
    while True:
        verifier = Verifier(commits, progress)
        report = verifier.run()
        if report.ok:
            return report
        oldest_kept_versions = _oldest_kept_versions(commits)
        if oldest_kept_versions in (verifier.oldest_kept_versions, seen):
            return report
        seen = oldest_kept_versions  # a vacuum may have run meanwhile, and deleted the files that were missed


def _oldest_kept_versions(commits: Commits) -> dict[str, int] | None:
    """Return the oldest kept versions of the existing branches: if one changes, or a branch goes, a vacuum may delete
    files.
    """
    commits, found = open_commits(commits.storage), {}
    try:
        for branch in living_branches(commits):
            head = commits.head(branch)
            found[branch] = -1 if head is None else head.header.oldest_kept
    except (TxStoreError, OSError):
        return None
    return found


class Verifier:
    """One walk through a repository: the names and small files, the history, all packs, and all runs."""

    def __init__(self, commits: Commits, progress: Progress | None = None) -> None:
        self._commits = commits
        self._storage = commits.storage
        self._fetched = self._storage.dispatch.reader(self._storage.read_range)
        self._progress = progress
        self.report = Report()
        self._faults = Faults(self.report)
        self._history = HistoryCheck(commits, self._faults, self._fetched)
        self._files = SmallFilesCheck(commits, self._faults, self._history.named, self.report.strays)
        self._runs: dict[tuple[bytes, int], ListedRun] = {}
        self._damaged: set[bytes] = set()  # unreadable packs: the head or the file is damaged
        # for these, the span of versions that read them
        self._readers: dict[bytes, set[tuple[str, int, int]]] = {}
        self._known: set[str] = set()  # files that a commit needs
        self._brought: dict[str, Place] = {}  # by pack, the commit that it came with
        self._oldest: dict[Place, Snapshot] = {}  # of those looked into

    @property
    def oldest_kept_versions(self) -> dict[str, int] | None:
        """The oldest kept versions of the existing branches, by their heads when these were found; None if unknown."""
        return self._history.oldest_kept_versions

    def run(self) -> Report:
        files, history = self._files, self._history
        if not files.check_names():
            return self.report
        files.check_guard()
        try:
            repository_id = self._commits.identity.id
        except (TxStoreError, OSError) as error:
            self._faults.add_error(error, names.FORMAT, part="format")
            return self.report
        branches: list[str] = []
        checks: list[Callable[[], None]] = [
            files.check_tags,
            files.check_oldest_kept_versions,
            files.check_erasures,
            files.check_operations,
            partial(history.check_branches, branches),
        ]
        deque(self._storage.dispatch.each(operator.call, checks), maxlen=0)
        for branch in branches:
            history.check_chain(branch)
            history.check_kept_aside(branch)
        for place in history.named - history.ids.keys():
            if (stored := history.read_quietly(place)) is not None:
                history.ids[place] = stored.header.id  # a vacuum has kept it; damage is reported with its name
        values = Values()
        try:
            self._expect_packs()
            for place in sorted(history.ids):
                self._check_commit(place, repository_id, values)
            self._replacements = ReplacementChecks(self._storage, repository_id, self._faults.add)
            self._check_replacements(values)
            self._expect_runs()
            history.total = self.report.bytes  # bytes that other processes added meanwhile do not count
            for key, listed in list(self._runs.items()):
                self._check_run(key, listed, values)
        finally:
            values.close()
        files.check_staging()
        if self.report.faults:
            tracer = Tracer(self._commits, history.ids, list(self._runs.values()), self._readers, self._brought)
            self.report.faults = [tracer.with_commits(fault) for fault in self.report.faults]
        return self.report

    def _check_replacements(self, values: Values) -> None:
        try:
            found = self._replacements.check(values)
        except (TxStoreError, OSError) as error:
            self._faults.add_error(error, names.ERASED, part="erasure")
            return
        for checked in found:
            self.report.values += checked.values
            self.report.bytes += checked.end
            for fault in checked.faults:
                self._faults.add(fault)

    def _expect_packs(self) -> None:
        for place in sorted(self._history.files_of):
            commit, *packs = self._history.files_of[place]
            for path, length in (*packs, commit):
                self._fetched.expect(path, length)

    def _expect_runs(self) -> None:
        sizes = dict(file for files in self._history.files_of.values() for file in files)
        for listed in self._runs.values():
            path = listed.name.pack.path if listed.name.pack is not None else ""
            if path in sizes:
                self._fetched.expect(path, sizes[path], [(listed.name.offset, listed.name.length)])

    def _check_commit(self, place: Place, repository_id: bytes, values: Values) -> None:
        path = names.commit_path(*place)
        try:
            stored = self._read_again(place)
            if stored is None:
                return  # gone since: a vacuum
            self.report.commits += 1
            for pack in stored.header.packs:
                self._check_pack(stored, pack.name, repository_id, pack.end, values)
            self._check_pack(stored, stored.header.name, repository_id, frames_end(stored), values)
            for fault in check_sections(self._fetched, stored):
                self._faults.add(fault)
            self.report.bytes += stored.footer.file_length - frames_end(stored)
        except (TxStoreError, OSError) as error:
            self._faults.add_error(error, path)
            return
        for name in names_of(stored.header.runs, stored.header.name):
            if name.pack is None:
                continue
            key = (name.pack.id, name.offset)
            self._runs[key] = self._runs.get(key, ListedRun(name, {})).also_in(place)
        self._tell()

    def _read_again(self, place: Place) -> Stored | None:
        """Return a commit, from the bytes that were fetched for the check if they suffice."""
        if place not in self._history.files_of:
            return self._commits.files.read(*place)
        path, length = self._history.files_of[place][0]
        begin = max(length - self._commits.files.tail_size, 0)
        try:
            tail = self._fetched.read_range(path, begin, length - begin)
        except FileNotFoundError:
            return None
        return self._commits.files.decode(path, *place, tail, begin + len(tail))

    def _check_pack(self, stored: Stored, name: PackName, repository_id: bytes, end: int, values: Values) -> None:
        branch, version = place = stored.header.branch, stored.header.version
        self._known.add(name.path)
        if self._brought.setdefault(name.path, place) != place:
            other = names.commit_path(*self._brought[name.path])
            reason = f"it says that it has brought {name.path}, and so does {other}"
            self._faults.add(Fault(names.commit_path(*place), reason))
            return
        try:
            checked = check_frames(self._fetched, name, repository_id, end, values)
        except FileNotFoundError:
            self._damaged.add(name.id)
            if branch in self._history.oldest_kept_of and version >= self._history.oldest_kept_of[branch]:
                self._faults.add(Fault(name.path, "the file is missing", part="missing"))
            else:
                self._known.discard(name.path)  # the check of refs reports values that are still read
            return
        except OSError as error:
            self._faults.add_error(error, name.path)
            self._damaged.add(name.id)
            return
        self._take(checked, name, end)
        listed = {(run.offset, run.length) for run in stored.header.runs if run.pack == name}
        for offset, _ in sorted(checked.runs - listed):
            self._faults.add(Fault(name.path, "the header does not list this run", offset))
        for offset, _ in sorted(listed - checked.runs) if checked.is_whole else ():
            self._faults.add(Fault(name.path, "the header lists a run where no frame holds one", offset))

    def _take(self, checked: Checked, name: PackName, end: int) -> None:
        self.report.values += checked.values
        self.report.bytes += end
        for fault in checked.faults:
            self._faults.add(fault)
            if fault.part == "head":
                self._damaged.add(name.id)

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self.report.bytes, max(self._history.total, self.report.bytes))

    def _check_run(self, key: tuple[bytes, int], listed: ListedRun, values: Values) -> None:
        name, path = listed.name, listed.name.pack.path if listed.name.pack is not None else ""
        try:
            run, packs = open_run(self._fetched, name, path)
        except OSError as error:
            if path not in self._known or not isinstance(error, FileNotFoundError):
                self._faults.add_error(error, path)
            return
        except ValueError as error:
            self._faults.add(Fault(path, f"damaged run: {error}", name.offset, part="run"))
            return
        tables = [name.pack, *packs]
        for pack in tables:
            if pack is not None and pack.id in self._damaged:
                self._readers.setdefault(pack.id, set()).update(listed.spans)
        for page in entries_of(run):
            self.report.refs += len(page)
            self.report.foreign += sum(entry[1] == packfile.REF_FOREIGN for entry in page)
            for encoded, kind, _, number, offset, length, checksum in page:
                if decode_key(encoded) is None:
                    self._faults.add(Fault(path, f"{encoded!r} is no key", name.offset, part="run"))
                pack = tables[number]
                if kind == packfile.REF_TOMBSTONE or pack is None:
                    continue
                if not values.has(pack.id, kind, offset, length, checksum):
                    self._check_ref(values, pack, encoded, kind, offset, length, checksum, listed.firsts)

    def _check_ref(
        self,
        values: Values,
        pack: PackName,
        encoded: bytes,
        kind: int,
        offset: int,
        length: int,
        checksum: int,
        firsts: list[Place],
    ) -> None:
        """Check a value itself: its frame is damaged, or its pack is below the oldest kept version and was not
        walked.
        """
        key = encoded.decode(errors="backslashreplace")
        is_marked = kind == packfile.REF_ERASED or may_be_replaced(kind, length, checksum)
        if is_marked and any(each.covers(key) and not each.finished for each in self._files.erasures):
            return  # the interrupted erasure is reported
        if values.has(pack.id, packfile.REF_ERASED, offset, length, 0):
            if kind != packfile.REF_ERASED and checksum == 0 and not self._replacements.has(pack, offset):
                reason = "the value was replaced, and no erasure's table says by which"
                self._faults.add(Fault(pack.path, reason, offset, key, "ref"))
            return  # else a process may have merged this run from runs that it had opened before the erasure
        if values.has(pack.id, kind, offset, length, checksum) is False:
            self._faults.add(Fault(pack.path, "a ref leads to where no such value is", offset, key, part="ref"))
            return
        try:
            window = Window(self._storage, pack.path)
            found = window.checksum(offset, length)
            is_blank = found != checksum and window.is_zero(offset, offset + length)
        except FileNotFoundError:
            is_read = pack.path not in self._known and any(
                self._is_read(first, pack, encoded, offset) for first in firsts
            )
            if is_read:
                self._known.add(pack.path)
                self._faults.add(Fault(pack.path, "the file is missing", part="missing"))
            return
        except OSError as error:
            self._faults.add_error(error, pack.path)
            return
        self._known.add(pack.path)
        if is_blank and (kind == packfile.REF_ERASED or any(erasure.covers(key) for erasure in self._files.erasures)):
            return
        if found != checksum:
            self._faults.add(Fault(pack.path, "the value has a wrong checksum", offset, key, part="value"))

    def _is_read(self, first: Place, pack: PackName, encoded: bytes, offset: int) -> bool:
        """Tell whether the branch's oldest commit that lists a run sees a value of it. If not, no commit there does.

        Then the value may be gone.
        """
        if first not in self._oldest:
            self._oldest = {first: unpinned(self._commits, self._commits.files.read(*first))}
        runs = self._oldest[first].runs
        found = runs.lookup(encoded)
        return found is not None and (found.offset, runs.pack_name(found.run, found.pack)) == (offset, pack)


def check_sources(storage: Storage, sources: Sources) -> list[Fault]:
    """Return faults for outside files, used by the newest commit of each branch, that changed or can't be read.

    Damage in the repository itself is skipped: `verify` reports it.
    """
    files: dict[FileVersion, str] = {}  # each with the first key whose value it holds
    commits = open_commits(storage)
    with contextlib.suppress(TxStoreError, OSError):
        for branch in living_branches(commits):
            with contextlib.suppress(TxStoreError, OSError):  # the rest of the run can't be read
                _add_files(unpinned(commits, commits.head(branch)), files)

    def reason_of(file: FileVersion) -> str | None:
        try:
            now = sources.look(file.url)
        except (FileNotFoundError, NotADirectoryError):
            return f"there is no such file; values lie in it as it was: {file.shown}"
        except SourceError as error:
            return error.reason
        except OSError as error:
            return f"it can't be looked at: {error}"
        return None if now == file else f"values lie in it as it was, {file.shown}, and it has changed: {now.shown}"

    reasons = zip(files.items(), in_parallel(reason_of, files), strict=True)
    return [Fault(file.url, reason, key=key, part="source") for (file, key), reason in reasons if reason]


def _add_files(snapshot: Snapshot, files: dict[FileVersion, str]) -> None:
    if not snapshot.may_be_foreign:
        return
    runs = snapshot.runs
    for found in runs.scan_all():
        if found.kind == packfile.REF_FOREIGN:
            key = found.key.decode(errors="backslashreplace")
            with contextlib.suppress(CorruptionError):
                files.setdefault(runs.foreign(key, found).file, key)


class ReplacementChecks:
    """The tables of one repository, and the packs with the new values.

    A vacuum deletes those that no kept commit needs. So a missing one is a fault only where a ref asks for it.
    """

    def __init__(self, storage: Storage, repository_id: bytes, add: Callable[[Fault], object]) -> None:
        self._storage = storage
        self._id = repository_id
        self._add = add
        self._packs = open_packs(storage)

    def check(self, values: Values) -> list[Checked]:
        """Check what is there; return the counts of each pack. Raises `CorruptionError`, `OSError`."""
        found, tables = list[Checked](), list[RunName]()
        for record in read_records(self._storage):
            run = run_of(record)
            packs = [PackName(pack) for pack in record.table.packs] if record.table is not None else []
            there = [pack for pack in packs if self._storage.exists(pack.path)]
            for pack in there:
                end = self._storage.read_tail(pack.path, 0)[1]
                found.append(check_frames(self._storage, pack, self._id, end, values))
            if run is not None and packs[-1] in there:
                tables.append(run)
        for run in tables:  # behind all packs: from the first question on, `values` takes no more
            self._check_table(run, values)
        return found

    def _check_table(self, name: RunName, values: Values) -> None:
        assert name.pack is not None
        try:
            run, packs = open_run(self._storage, name, name.pack.path)
        except ValueError as error:
            self._add(Fault(name.pack.path, f"damaged run: {error}", name.offset, part="run"))
            return
        tables = [name.pack, *packs]
        for page in entries_of(run):
            for key, kind, _, number, offset, length, checksum in page:
                if kind == packfile.REF_PACK and not values.has(tables[number].id, kind, offset, length, checksum):
                    reason = "the table of an erasure leads to where no such value is"
                    self._add(Fault(tables[number].path, reason, offset, key.decode(errors="backslashreplace"), "ref"))

    def has(self, pack: PackName, offset: int) -> bool:
        """Tell whether a table says which value replaces one."""
        try:
            return is_replaced(self._packs, pack, offset)
        except CorruptionError:
            return False

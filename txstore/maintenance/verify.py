"""Checks everything reachable, from the oldest kept version to the head, and changes nothing.

The names in a repository and its small files; the records of branches, and the commits of each; then two passes: the
frames of all packs, and the runs, whose refs must lead to them. The commits that a fault touches are found last.
"""

from __future__ import annotations

import contextlib
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from txstore.commit import MAIN, Stored
from txstore.errors import CorruptionError, SourceError, TxStoreError, UnsupportedFormatError, WrongFileTypeError
from txstore.format import encoding, names, packfile, records
from txstore.format.commitfile import RunName
from txstore.format.keys import decode_key
from txstore.format.packfile import PackName
from txstore.format.records import Tag, TransactionRecord
from txstore.history.branch_store import check_not_lost
from txstore.history.commits import Commits
from txstore.history.erasures import RECHUNK, Erasure, as_erasure, last_met
from txstore.history.find import find_tagged
from txstore.history.opening import open_commits
from txstore.history.operations import read_operation
from txstore.history.snapshot import Snapshot, unpinned
from txstore.maintenance.check_file import (
    Checked,
    Values,
    Window,
    check_frames,
    check_sections,
    entries_of,
    fault_of_head,
    frames_end,
    open_run,
)
from txstore.maintenance.reachable import living_branches
from txstore.maintenance.report import Fault, Faults, ListedRun, Place, Report, Tracer
from txstore.progress import Progress
from txstore.segments.ranged_packs import open_packs
from txstore.segments.ranged_runs import is_replaced
from txstore.segments.replaced import read_record, read_records, run_of
from txstore.segments.runs import may_be_replaced, names_of
from txstore.storage.foreign_files import Sources
from txstore.storage.foreign_values import FileVersion
from txstore.storage.interface import Storage, paths_in
from txstore.storage.kept import FileReader
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
        self._heads: set[str] = set()  # packs of which the head alone was checked
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
            for fault in check_sections(self._fetched.read_range, stored):
                self._faults.add(fault)
            self.report.bytes += stored.footer.file_length - frames_end(stored)
        except (TxStoreError, OSError) as error:
            self._faults.add_error(error, path)
            return
        for name in names_of(stored.header.runs, stored.header.name):
            if name.pack is None:
                continue
            key = (name.pack.id, name.offset)
            listed = self._runs.get(key, ListedRun(name, {}))
            if listed.name != name:
                self._faults.add(Fault(path, "it lists a run otherwise than another commit does"))
            self._runs[key] = listed.also_in(place)
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
            checked = check_frames(self._fetched.read_range, name, repository_id, end, values)
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
            run, packs = open_run(self._fetched.read_range, name, path)
        except OSError as error:
            if path not in self._known or not isinstance(error, FileNotFoundError):
                self._faults.add_error(error, path)
            return
        except ValueError as error:
            self._faults.add(Fault(path, f"damaged run: {error}", name.offset, part="run"))
            return
        tables = [name.pack, *packs]
        if name.pack is not None:
            self._check_head(name.pack)
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
            window = Window(self._storage.read_range, pack.path)
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
        self._check_head(pack)
        if is_blank and (kind == packfile.REF_ERASED or any(erasure.covers(key) for erasure in self._files.erasures)):
            return
        if found != checksum:
            self._faults.add(Fault(pack.path, "the value has a wrong checksum", offset, key, part="value"))

    def _check_head(self, pack: PackName) -> None:
        """Check the head of a pack that no kept commit has brought: its commit has expired, and others read it."""
        if pack.path in self._brought or pack.path in self._heads:
            return
        self._heads.add(pack.path)
        try:
            head = self._storage.read_range(pack.path, 0, packfile.HEAD_SIZE)
        except OSError as error:
            self._faults.add_error(error, pack.path)
            return
        if reason := fault_of_head(head, pack, self._commits.identity.id):
            self._faults.add(Fault(pack.path, reason, 0, part="head"))
            self._damaged.add(pack.id)

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
                found.append(check_frames(self._storage.read_range, pack, self._id, end, values))
            if run is not None and packs[-1] in there:
                tables.append(run)
        for run in tables:  # behind all packs: from the first question on, `values` takes no more
            self._check_table(run, values)
        return found

    def _check_table(self, name: RunName, values: Values) -> None:
        assert name.pack is not None
        try:
            run, packs = open_run(self._storage.read_range, name, name.pack.path)
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


#: At most this many missing files in a row are reported one by one.
_MISSING_TOLD = 1000


class HistoryCheck:
    """Finds the readable commits, and reports what is wrong with the others and between them."""

    def __init__(self, commits: Commits, faults: Faults, fetched: FileReader) -> None:
        self._commits = commits
        self._faults = faults
        self._fetched = fetched
        self.ids: dict[Place, bytes] = {}  # of the readable commits
        self.files_of: dict[Place, list[tuple[str, int]]] = {}  # by commit: its files and packs, with their lengths
        self.total = 0  # bytes of these
        self.named: set[Place] = set()  # kept below an oldest kept version: tagged, start of a branch, or merged
        self.oldest_kept_of: dict[str, int] = {}  # of the existing branches
        #: The same, by their heads when these were found; None if unknown.
        self.oldest_kept_versions: dict[str, int] | None = {}

    def check_branches(self, living: list[str]) -> None:
        """Add the ids of the existing branches; report damaged records, and lost fork points."""
        living.append(MAIN)
        for file in self._commits.branches.files():
            path = names.branch_path(file)
            try:
                record = self._commits.branches.read(file)
            except (TxStoreError, OSError) as error:
                self._faults.add_error(error, path, part="branch")
                self.oldest_kept_versions = None
                continue
            if record is None or record.id in living:
                continue
            living.append(record.id)
            try:
                self._commits.files.fork_point(record.id)
            except (TxStoreError, OSError) as error:
                self._faults.add_error(error, path, part="branch")
            self.named.add((record.fork.branch, record.fork.version))

    def check_chain(self, branch: str) -> None:
        """Find the readable commits; report the unreadable ones, and links that do not hold."""
        there = self._commits.files.versions(branch)  # before the head is read: other processes may be committing
        oldest_kept, top = min(there, default=0), max(there, default=-1)
        fork = self._commits.branches.fork(branch)
        first = 0 if fork is None else fork.version + 1
        checked = self._commits.files.begin(self._check_head_cache, branch)
        try:
            try:
                head = self._commits.head(branch)
            finally:
                checked()  # first: it says of a lost commit that it is missing
            if self.oldest_kept_versions is not None:
                self.oldest_kept_versions[branch] = -1 if head is None else head.header.oldest_kept
            has_own = head is not None and head.header.branch == branch
            oldest_kept, top = (
                (head.header.oldest_kept, head.header.version) if head is not None and has_own else (0, first - 1)
            )
        except (TxStoreError, OSError) as error:
            self._faults.add_error(error, names.commits_directory(branch))
            self.oldest_kept_versions = None
            read = (self.read_quietly((branch, version)) for version in there)
            oldest_kept = max((s.header.oldest_kept for s in read if s is not None), default=oldest_kept)
        oldest_kept = self.oldest_kept_of[branch] = max(oldest_kept, first)
        for version in sorted(there):
            if version > top:
                path = names.commit_path(branch, version)
                self._faults.add(
                    Fault(path, "this commit does not follow the one in the version before it", part="orphan")
                )
        child: Stored | None = None
        versions = self._versions_down(branch, there, top, oldest_kept)
        for version, stored, end, refused in self._commits.files.each(partial(self._read_or_error, branch), versions):
            path = names.commit_path(branch, version)
            if refused is not None:
                self._faults.add_error(refused, path)
            elif stored is None:
                self._faults.add(Fault(path, "the file is missing", part="missing"))
            if stored is not None:
                if len(end) == stored.footer.file_length:
                    self._fetched.keep(path, end)
                self.ids[branch, version] = stored.header.id
                self.files_of[branch, version] = [(stored.path, stored.footer.file_length)]
                self.files_of[branch, version] += [(pack.name.path, pack.end) for pack in stored.header.packs]
                self._check_merged(stored)
                if stored.header.seq != version + 1:
                    reason = f"its seq is {stored.header.seq}, and has to be its parent's + 1: {version + 1}"
                    self._faults.add(Fault(path, reason, part="link"))
                self.total += stored.footer.file_length + sum(pack.end for pack in stored.header.packs)
                is_below = child is not None and child.header.version == version + 1
                if child is not None and is_below and child.follows(stored):
                    self._check_counts(child, stored)
                elif child is not None and is_below:
                    self._faults.add(
                        Fault(path, f"this is not the parent that version {version + 1} names", part="link")
                    )
            child = stored
        if fork is not None and child is not None and child.header.version == first == oldest_kept:
            named = (child.header.parent_id, child.header.parent_hash)
            if (child.header.fork, *named) != (fork.branch, fork.id, fork.hash):
                path = names.commit_path(branch, first)
                self._faults.add(
                    Fault(path, "it does not follow the commit that its branch begins behind", part="link")
                )
            elif (stored := self.read_quietly((fork.branch, fork.version))) is not None:
                self._check_counts(child, stored)

    def _check_counts(self, stored: Stored, parent: Stored) -> None:
        """Report numbers of a commit that do not count on from those of its parent."""
        header, before = stored.header, parent.header
        for is_right, reason in (
            (header.time > before.time, "its time is not above its parent's"),
            (header.oldest_kept >= before.oldest_kept, "its oldest kept version is below its parent's"),
        ):
            if not is_right:
                self._faults.add(Fault(stored.path, reason, part="link"))

    def check_kept_aside(self, branch: str) -> None:
        """Report a rechunk that has gone on after an erasure of its array: its copy may be of values from before."""
        try:
            head = self._commits.head(branch)
            told = None if head is None else head.header.properties.get(RECHUNK)
            path = told.get("path") if isinstance(told, dict) and "pieces" in told else None
            if head is None or not isinstance(path, str):
                return
            last = last_met(self._commits.storage, branch, path)
        except (TxStoreError, OSError):
            return  # reported at its own place
        if last is not None and head.header.branch == branch and head.header.version > last:
            name = self._commits.branches.name_of(branch)
            reason = (
                f"the branch {name!r} has a copy of {path!r} that a rechunk makes, perhaps with values that were "
                "erased meanwhile: repeat the rechunk, which begins anew, or delete the branch; then vacuum"
            )
            self._faults.add(Fault(head.path, reason, part="erasure"))

    def _check_merged(self, stored: Stored) -> None:
        """Report a merge whose other parent is missing, although no vacuum expired it."""
        merged = stored.header.merged
        if merged is None:
            return
        try:
            if self._commits.files.named(merged) is not None:
                self.named.add((merged.branch, merged.version))
                return
            is_given_up = merged.version < self._commits.oldest_kept.of(merged.branch)
            if is_given_up or not self._commits.branches.is_living(merged.branch):
                return
        except (TxStoreError, OSError):
            return  # reported at its own place
        self._faults.add(
            Fault(stored.path, f"the commit that it has merged is not there: {merged.id.hex()}", part="link")
        )

    def _versions_down(self, branch: str, listed: Iterable[int], top: int, oldest_kept: int) -> Iterator[int]:
        """Yield the versions from the top down to the oldest kept version. Report a long row of missing ones as one
        fault.

        Names of files and the oldest kept version in a header only claim how many versions exist.
        """
        there = sorted({version for version in listed if oldest_kept <= version <= top}, reverse=True)
        above = top + 1
        for version in [*there, oldest_kept - 1]:
            missing = range(above - 1, version, -1)
            if len(missing) <= _MISSING_TOLD:
                yield from missing
            else:
                reason = f"the file is missing, and so are those of the {len(missing) - 1} versions below it"
                self._faults.add(Fault(names.commit_path(branch, above - 1), reason, part="missing"))
            if version >= oldest_kept:
                yield version
            above = version

    def _read_or_error(
        self, branch: str, version: int
    ) -> tuple[int, Stored | None, bytes, TxStoreError | OSError | None]:
        try:
            stored, end = self._commits.files.read_with_end(branch, version) or (None, b"")
        except (TxStoreError, OSError) as error:
            return version, None, b"", error
        return version, stored, end, None

    def read_quietly(self, place: Place) -> Stored | None:
        try:
            return self._commits.files.read(*place)
        except (TxStoreError, OSError):
            return None

    def _check_head_cache(self, branch: str) -> None:
        """Report a damaged head cache, and a lost newest commit: a durable one that it names."""
        path = names.head_cache_path(branch)
        try:
            head_cache = self._commits.store.head_caches.read(branch)
        except FileNotFoundError:
            return
        except OSError as error:
            self._faults.add_error(error, path, part="head cache")
            return
        except encoding.MalformedError as error:
            content = self._commits.storage.read(path)
            if any(content):  # all zeros: its writer was killed, or power was lost, before the write
                self._faults.add(Fault(path, error.reason, part="head cache"))
            return
        if not head_cache.is_durable_at(self._commits.storage.place()):
            return
        try:
            stored = self._commits.files.read(branch, head_cache.version)
            if stored is not None and stored.header.id == head_cache.commit_id:
                return
        except (OSError, TxStoreError):
            return  # it is only a cache; a damaged commit is reported where its version is read
        try:
            check_not_lost(self._commits.branches, self._commits.oldest_kept, branch, head_cache)
        except CorruptionError as error:
            self._faults.add_error(error, path, part="missing")


S = TypeVar("S")
T = TypeVar("T")


class SmallFilesCheck:
    """Reports damaged small files, and files that do not belong there."""

    def __init__(self, commits: Commits, faults: Faults, named: set[Place], strays: list[str]) -> None:
        """Adds the tagged commits to `named`, and what does not belong there to `strays`."""
        self._commits = commits
        self._storage = commits.storage
        self._faults = faults
        self._named = named
        self.strays = strays
        self.erasures: list[Erasure] = []

    def check_guard(self) -> None:
        try:
            if self._storage.read(names.GUARD) != records.encode_guard():
                self._faults.add(Fault(names.GUARD, "this is not the guard that keeps plain zarr out", part="guard"))
        except FileNotFoundError:
            self._faults.add(Fault(names.GUARD, "the file is missing", part="guard"))
        except (TxStoreError, OSError) as error:
            self._faults.add_error(error, names.GUARD, part="guard")

    def check_tags(self) -> None:
        deque(self._each(self._check_tag, sorted(self._commits.tags.names())), maxlen=0)

    def _check_tag(self, name: str) -> None:
        try:
            header = find_tagged(self._commits, name).header
            self._named.add((header.branch, header.version))
        except UnsupportedFormatError as error:
            self._faults.add_error(error, error.path)
        except (TxStoreError, OSError) as error:
            self._faults.add_error(error, names.tag_path(name), part="tag")

    def check_oldest_kept_versions(self) -> None:
        oldest_kept_versions = [names.oldest_kept_directory(branch) for branch in self._storage.list(names.OLDEST_KEPT)]
        for path in sorted(
            path
            for oldest_kept in oldest_kept_versions
            if names.belongs(oldest_kept)
            for path in paths_in(self._commits.storage, oldest_kept)
        ):
            try:
                Tag.decode(self._storage.read(path))
            except FileNotFoundError:
                continue
            except (TxStoreError, OSError) as error:
                self._faults.add_error(error, path, part="oldest_kept")
            except encoding.MalformedError as error:
                self._faults.add(Fault(path, error.reason, part="oldest_kept"))

    def check_erasures(self) -> None:
        for name in sorted(self._storage.list(names.ERASED)):
            path = f"{names.ERASED}/{name}"
            if not names.belongs(path):
                continue
            try:
                record = read_record(self._storage, path)
            except (TxStoreError, OSError) as error:
                self._faults.add_error(error, path, part="erasure")
                continue
            self.erasures.append(as_erasure(record))
            if record.finished is None:
                shown = ", ".join(map(repr, record.paths))
                reason = f"the erasure of {shown} by {record.by} was interrupted: erase it again"
                self._faults.add(Fault(path, reason, part="erasure"))

    def check_operations(self) -> None:
        deque(self._each(self._check_operation, sorted(paths_in(self._storage, names.OPERATIONS))), maxlen=0)

    def _check_operation(self, path: str) -> None:
        try:
            read_operation(self._storage, path)
        except FileNotFoundError:
            return  # a vacuum has just deleted it
        except (TxStoreError, OSError) as error:
            self._faults.add_error(error, path, part="operation")

    def check_staging(self) -> None:
        staged: list[str] = []
        with contextlib.suppress(PermissionError):  # a user who may only read has no access
            staged = self._storage.list(names.STAGING)
        for file in sorted(staged):
            path = f"{names.STAGING}/{file}"
            name = names.parse_named(file)
            if names.parse_record(file) is None and name is None:
                continue
            try:
                content = self._storage.read(path)
                if name is None and content:  # an empty one: its owner is about to write it, or died before
                    TransactionRecord.decode(content)
                elif content and (len(content) != 32 or len(bytes.fromhex(content.decode())) != 16):
                    raise encoding.MalformedError("it names no transaction")
            except FileNotFoundError:
                continue  # the transaction has ended
            except (TxStoreError, OSError) as error:
                self._faults.add_error(error, path, part="staging")
            except ValueError as error:
                self._faults.add(Fault(path, str(error), part="staging"))

    def check_names(self) -> bool:
        """Report strays; return whether each directory is one, so that its files can be checked."""
        directories = ["", *names.DIRECTORIES, names.BRANCHES, names.ERASED, names.OPERATIONS]
        known, are_directories = set(directories), True
        while directories:
            listed, below = zip(directories, self._each(self._names_in, directories), strict=True), []
            for directory, found in listed:
                if isinstance(found, WrongFileTypeError):
                    self._faults.add_error(found, directory)
                    are_directories = False
                    continue
                for path in (f"{directory}/{name}" if directory else name for name in found):
                    if not names.belongs(path):
                        self.strays.append(path)
                    elif names.parse_stop(path.rpartition("/")[2]) is not None:
                        reason = "the server did not create exclusively: commits may have taken each other's places"
                        self._faults.add(Fault(path, reason, part="stop"))
                    elif directory == names.PACKS or (
                        directory in ("commits", names.OLDEST_KEPT) and path not in known
                    ):
                        below.append(path)
                    elif directory == names.LOCKS:
                        self._check_type(path)
            directories = below
        return are_directories

    def _names_in(self, directory: str) -> list[str] | WrongFileTypeError:
        try:
            return sorted(self._storage.list(directory))
        except PermissionError:  # a user who may only read has no access to `.staging`
            return []
        except WrongFileTypeError as error:
            return error

    def _each(self, check: Callable[[S], T], arguments: Iterable[S]) -> Iterator[T]:
        """Yield the results of checks that make requests: on a remote storage, in parallel."""
        return self._storage.dispatch.each(check, arguments)

    def _check_type(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            try:
                self._storage.read_tail(path, 0)
            except WrongFileTypeError as error:
                self._faults.add_error(error, path)

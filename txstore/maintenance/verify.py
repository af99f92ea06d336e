"""Checks everything reachable, from the oldest kept version to the head, and changes nothing.

Two passes: the frames of all packs, then the runs, whose refs must lead to them. The commits that a fault touches are
found last.
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
from txstore.format.keys import decode_key
from txstore.format.packfile import PackName
from txstore.format.records import Tag, TransactionRecord
from txstore.history.commits import Commits
from txstore.history.erasures import Erasure, as_erasure, read_record
from txstore.history.find import find_tagged
from txstore.history.opening import open_commits
from txstore.history.snapshot import Snapshot
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
from txstore.maintenance.reachable import living_branches
from txstore.maintenance.report import Fault, Report
from txstore.maintenance.tracing import ListedRun, Place, Tracer
from txstore.progress import Progress
from txstore.segments.ranged_packs import open_packs
from txstore.segments.runs import names_of
from txstore.storage.foreign import FileVersion
from txstore.storage.interface import Storage, paths_in
from txstore.storage.request_threads import in_parallel
from txstore.storage.sources import Sources

#: At most this many missing files in a row are reported one by one.
_MISSING_TOLD = 1000

S = TypeVar("S")
T = TypeVar("T")


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
    """One walk through a repository."""

    def __init__(self, commits: Commits, progress: Progress | None = None) -> None:
        self.commits = commits
        self.storage = commits.storage
        self._fetched = self.storage.dispatch.reader(self.storage.read_range)
        self.report = Report()
        self._told: set[Fault] = set()
        self.runs: dict[tuple[bytes, int], ListedRun] = {}
        self._progress = progress
        self._total = 0
        self._ids: dict[Place, bytes] = {}  # of the readable commits
        self._damaged: set[bytes] = set()  # unreadable packs: the head or the file is damaged
        # for these, the span of versions that read them
        self._readers: dict[bytes, set[tuple[str, int, int]]] = {}
        self._files_of: dict[Place, list[tuple[str, int]]] = {}  # by commit: its files and packs, with their lengths
        self._known: set[str] = set()  # files that a commit needs
        self._brought: dict[str, Place] = {}  # by pack, the commit that it came with
        self._oldest_kept_versions: dict[str, int] = {}  # of the existing branches
        #: The same, by their heads when these were found; None if unknown.
        self.oldest_kept_versions: dict[str, int] | None = {}
        self._named: set[Place] = set()  # kept below an oldest kept version: tagged, start of a branch, or merged
        self._oldest: dict[Place, Snapshot] = {}  # of those looked into
        self._erasures: list[Erasure] = []

    def run(self) -> Report:
        if not self._check_names():
            return self.report
        self._check_small_files()
        try:
            repository_id = self.commits.identity.id
        except (TxStoreError, OSError) as error:
            self._add_error(error, names.FORMAT, part="format")
            return self.report
        branches: list[str] = []
        checks: list[Callable[[], None]] = [
            self._check_tags,
            self._check_oldest_kept_versions,
            self._check_erasures,
            partial(self._check_branches, branches),
        ]
        deque(self._each(operator.call, checks), maxlen=0)
        for branch in branches:
            self._check_chain(branch)
        for place in self._named - self._ids.keys():
            if (stored := self._read_quietly(place)) is not None:
                self._ids[place] = stored.header.id  # a vacuum has kept it; damage is reported with its name
        values = Values()
        try:
            self._expect_packs()
            for place in sorted(self._ids):
                self._check_commit(place, repository_id, values)
            self._expect_runs()
            self._total = self.report.bytes  # bytes that other processes added meanwhile do not count
            for key, listed in list(self.runs.items()):
                self._check_run(key, listed, values)
        finally:
            values.close()
        self._check_staging()
        if self.report.faults:
            tracer = Tracer(self.commits, self._ids, list(self.runs.values()), self._readers, self._brought)
            self.report.faults = [tracer.with_commits(fault) for fault in self.report.faults]
        return self.report

    def _expect_packs(self) -> None:
        for place in sorted(self._files_of):
            commit, *packs = self._files_of[place]
            for path, length in (*packs, commit):
                self._fetched.expect(path, length)

    def _expect_runs(self) -> None:
        sizes = dict(file for files in self._files_of.values() for file in files)
        for listed in self.runs.values():
            path = listed.name.pack.path if listed.name.pack is not None else ""
            if path in sizes:
                self._fetched.expect(path, sizes[path], [(listed.name.offset, listed.name.length)])

    # --- the history

    def _check_branches(self, living: list[str]) -> None:
        """Add the ids of the existing branches; report damaged records, and lost fork points."""
        living.append(MAIN)
        for file in self.commits.branches.files():
            path = names.branch_path(file)
            try:
                record = self.commits.branches.read(file)
            except (TxStoreError, OSError) as error:
                self._add_error(error, path, part="branch")
                self.oldest_kept_versions = None
                continue
            if record is None or record.id in living:
                continue
            living.append(record.id)
            try:
                self.commits.files.fork_point(record.id)
            except (TxStoreError, OSError) as error:
                self._add_error(error, path, part="branch")
            self._named.add((record.fork.branch, record.fork.version))

    def _check_chain(self, branch: str) -> None:
        """Find the readable commits; report the unreadable ones, and links that do not hold."""
        there = self.commits.files.versions(branch)  # before the head is read: other processes may be committing
        oldest_kept, top = min(there, default=0), max(there, default=-1)
        fork = self.commits.branches.fork(branch)
        first = 0 if fork is None else fork.version + 1
        try:
            head = self.commits.head(branch)
            if self.oldest_kept_versions is not None:
                self.oldest_kept_versions[branch] = -1 if head is None else head.header.oldest_kept
            has_own = head is not None and head.header.branch == branch
            oldest_kept, top = (
                (head.header.oldest_kept, head.header.version) if head is not None and has_own else (0, first - 1)
            )
        except (TxStoreError, OSError) as error:
            self._add_error(error, names.commits_directory(branch))
            self.oldest_kept_versions = None
            read = (self._read_quietly((branch, version)) for version in there)
            oldest_kept = max((s.header.oldest_kept for s in read if s is not None), default=oldest_kept)
        oldest_kept = self._oldest_kept_versions[branch] = max(oldest_kept, first)
        for version in sorted(there):
            if version > top:
                path = names.commit_path(branch, version)
                self._add(Fault(path, "this commit does not follow the one in the version before it", part="orphan"))
        checked = self.commits.files.begin(partial(self._check_head_cache, branch), oldest_kept)
        child: Stored | None = None
        versions = self._versions_down(branch, there, top, oldest_kept)
        for version, stored, end, refused in self.commits.files.each(partial(self._read_or_error, branch), versions):
            path = names.commit_path(branch, version)
            if refused is not None:
                self._add_error(refused, path)
            elif stored is None:
                self._add(Fault(path, "the file is missing", part="missing"))
            if stored is not None:
                if len(end) == stored.footer.file_length:
                    self._fetched.keep(path, end)
                self._ids[branch, version] = stored.header.id
                self._files_of[branch, version] = [(stored.path, stored.footer.file_length)]
                self._files_of[branch, version] += [(pack.name.path, pack.end) for pack in stored.header.packs]
                self._check_merged(stored)
                self._total += stored.footer.file_length + sum(pack.end for pack in stored.header.packs)
                is_below = child is not None and child.header.version == version + 1
                named = (child.header.parent_id, child.header.parent_hash) if child is not None and is_below else None
                if named not in (None, (stored.header.id, stored.hash)):
                    self._add(Fault(path, f"this is not the parent that version {version + 1} names", part="link"))
            child = stored
        checked()
        if fork is not None and child is not None and child.header.version == first == oldest_kept:
            named = (child.header.parent_id, child.header.parent_hash)
            if (child.header.fork, *named) != (fork.branch, fork.id, fork.hash):
                path = names.commit_path(branch, first)
                self._add(Fault(path, "it does not follow the commit that its branch begins behind", part="link"))

    def _check_merged(self, stored: Stored) -> None:
        """Report a merge whose other parent is missing, although no vacuum expired it."""
        merged = stored.header.merged
        if merged is None:
            return
        try:
            if self.commits.files.named(merged) is not None:
                self._named.add((merged.branch, merged.version))
                return
            is_given_up = merged.version < self.commits.oldest_kept.of(merged.branch)
            if is_given_up or not self.commits.branches.is_living(merged.branch):
                return
        except (TxStoreError, OSError):
            return  # reported at its own place
        self._add(Fault(stored.path, f"the commit that it has merged is not there: {merged.id.hex()}", part="link"))

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
                self._add(Fault(names.commit_path(branch, above - 1), reason, part="missing"))
            if version >= oldest_kept:
                yield version
            above = version

    def _read_or_error(
        self, branch: str, version: int
    ) -> tuple[int, Stored | None, bytes, TxStoreError | OSError | None]:
        try:
            stored, end = self.commits.files.read_with_end(branch, version) or (None, b"")
        except (TxStoreError, OSError) as error:
            return version, None, b"", error
        return version, stored, end, None

    def _read_quietly(self, place: Place) -> Stored | None:
        try:
            return self.commits.files.read(*place)
        except (TxStoreError, OSError):
            return None

    def _check_head_cache(self, branch: str, oldest_kept: int) -> None:
        """Report a damaged head cache, and lost newest commits: those up to a durable one that it names."""
        path = names.head_cache_path(branch)
        try:
            head_cache = self.commits.head_caches.read(branch)
        except FileNotFoundError:
            return
        except OSError as error:
            self._add_error(error, path, part="head cache")
            return
        except encoding.MalformedError as error:
            content = self.storage.read(path)
            if any(content):  # all zeros: its writer was killed, or power was lost, before the write
                self._add(Fault(path, error.reason, part="head cache"))
            return
        if not self.commits.head_caches.is_durable(head_cache) or head_cache.version < oldest_kept:
            return  # a power loss can leave an older head cache than that of the last vacuum
        try:
            stored = self.commits.files.read(branch, head_cache.version)
        except (OSError, TxStoreError):
            return  # it is only a cache; a damaged commit is reported where its version is read
        if stored is None or stored.header.id != head_cache.commit_id:
            reason = f"commit {head_cache.commit_id.hex()} was durable in this version and is not there"
            self._add(Fault(names.commit_path(branch, head_cache.version), reason, part="missing"))

    # --- the first pass: packs

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
                self._add(fault)
            self.report.bytes += stored.footer.file_length - frames_end(stored)
        except (TxStoreError, OSError) as error:
            self._add_error(error, path)
            return
        for name in names_of(stored.header.runs, stored.header.name):
            if name.pack is None:
                continue
            key = (name.pack.id, name.offset)
            self.runs[key] = self.runs.get(key, ListedRun(name, {})).also_in(place)
        self._tell()

    def _read_again(self, place: Place) -> Stored | None:
        """Return a commit, from the bytes that were fetched for the check if they suffice."""
        if place not in self._files_of:
            return self.commits.files.read(*place)
        path, length = self._files_of[place][0]
        begin = max(length - self.commits.files.tail_size, 0)
        try:
            tail = self._fetched.read_range(path, begin, length - begin)
        except FileNotFoundError:
            return None
        return self.commits.files.decode(path, *place, tail, begin + len(tail))

    def _check_pack(self, stored: Stored, name: PackName, repository_id: bytes, end: int, values: Values) -> None:
        branch, version = place = stored.header.branch, stored.header.version
        self._known.add(name.path)
        if self._brought.setdefault(name.path, place) != place:
            other = names.commit_path(*self._brought[name.path])
            reason = f"it says that it has brought {name.path}, and so does {other}"
            self._add(Fault(names.commit_path(*place), reason))
            return
        try:
            checked = check_frames(self._fetched, name, repository_id, end, values)
        except FileNotFoundError:
            self._damaged.add(name.id)
            if branch in self._oldest_kept_versions and version >= self._oldest_kept_versions[branch]:
                self._add(Fault(name.path, "the file is missing", part="missing"))
            else:
                self._known.discard(name.path)  # the check of refs reports values that are still read
            return
        except OSError as error:
            self._add_error(error, name.path)
            self._damaged.add(name.id)
            return
        self._take(checked, name, end)
        listed = {(run.offset, run.length) for run in stored.header.runs if run.pack == name}
        for offset, _ in sorted(checked.runs - listed):
            self._add(Fault(name.path, "the header does not list this run", offset))
        for offset, _ in sorted(listed - checked.runs) if checked.is_whole else ():
            self._add(Fault(name.path, "the header lists a run where no frame holds one", offset))

    def _take(self, checked: Checked, name: PackName, end: int) -> None:
        self.report.values += checked.values
        self.report.bytes += end
        for fault in checked.faults:
            self._add(fault)
            if fault.part == "head":
                self._damaged.add(name.id)

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self.report.bytes, max(self._total, self.report.bytes))

    # --- the second pass: runs

    def _check_run(self, key: tuple[bytes, int], listed: ListedRun, values: Values) -> None:
        name, path = listed.name, listed.name.pack.path if listed.name.pack is not None else ""
        try:
            run, packs = open_run(self._fetched, name, path)
        except OSError as error:
            if path not in self._known or not isinstance(error, FileNotFoundError):
                self._add_error(error, path)
            return
        except ValueError as error:
            self._add(Fault(path, f"damaged run: {error}", name.offset, part="run"))
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
                    self._add(Fault(path, f"{encoded!r} is no key", name.offset, part="run"))
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
        if kind == packfile.REF_ERASED and any(each.covers(key) and not each.finished for each in self._erasures):
            return  # the interrupted erasure is reported
        if values.has(pack.id, packfile.REF_ERASED, offset, length, 0):
            return  # a process merged this run from runs that it had opened before the erasure
        if values.has(pack.id, kind, offset, length, checksum) is False:
            self._add(Fault(pack.path, "a ref leads to where no such value is", offset, key, part="ref"))
            return
        try:
            window = Window(self.storage, pack.path)
            found = window.checksum(offset, length)
            is_blank = found != checksum and window.is_zero(offset, offset + length)
        except FileNotFoundError:
            is_read = pack.path not in self._known and any(
                self._is_read(first, pack, encoded, offset) for first in firsts
            )
            if is_read:
                self._known.add(pack.path)
                self._add(Fault(pack.path, "the file is missing", part="missing"))
            return
        except OSError as error:
            self._add_error(error, pack.path)
            return
        self._known.add(pack.path)
        if is_blank and (kind == packfile.REF_ERASED or any(erasure.covers(key) for erasure in self._erasures)):
            return
        if found != checksum:
            self._add(Fault(pack.path, "the value has a wrong checksum", offset, key, part="value"))

    def _is_read(self, first: Place, pack: PackName, encoded: bytes, offset: int) -> bool:
        """Tell whether the branch's oldest commit that lists a run sees a value of it. If not, no commit there does.

        Then the value may be gone.
        """
        if first not in self._oldest:
            self._oldest = {
                first: Snapshot(self.commits.files.read(*first), open_packs(self.storage), self.storage.url)
            }
        runs = self._oldest[first].runs
        found = runs.lookup(encoded)
        return found is not None and (found.offset, runs.pack_name(found.run, found.pack)) == (offset, pack)

    # --- the other files

    def _check_small_files(self) -> None:
        try:
            if self.storage.read(names.GUARD) != records.encode_guard():
                self._add(Fault(names.GUARD, "this is not the guard that keeps plain zarr out", part="guard"))
        except FileNotFoundError:
            self._add(Fault(names.GUARD, "the file is missing", part="guard"))
        except (TxStoreError, OSError) as error:
            self._add_error(error, names.GUARD, part="guard")

    def _check_tags(self) -> None:
        deque(self._each(self._check_tag, sorted(self.commits.tags.names())), maxlen=0)

    def _check_tag(self, name: str) -> None:
        try:
            header = find_tagged(self.commits, name).header
            self._named.add((header.branch, header.version))
        except UnsupportedFormatError as error:
            self._add_error(error, error.path)
        except (TxStoreError, OSError) as error:
            self._add_error(error, names.tag_path(name), part="tag")

    def _check_oldest_kept_versions(self) -> None:
        oldest_kept_versions = [names.oldest_kept_directory(branch) for branch in self.storage.list(names.OLDEST_KEPT)]
        for path in sorted(
            path
            for oldest_kept in oldest_kept_versions
            if names.belongs(oldest_kept)
            for path in paths_in(self.commits.storage, oldest_kept)
        ):
            try:
                Tag.decode(self.storage.read(path))
            except FileNotFoundError:
                continue
            except (TxStoreError, OSError) as error:
                self._add_error(error, path, part="oldest_kept")
            except encoding.MalformedError as error:
                self._add(Fault(path, error.reason, part="oldest_kept"))

    def _check_erasures(self) -> None:
        for name in sorted(self.storage.list(names.ERASED)):
            path = f"{names.ERASED}/{name}"
            if not names.belongs(path):
                continue
            try:
                record = read_record(self.storage, path)
            except (TxStoreError, OSError) as error:
                self._add_error(error, path, part="erasure")
                continue
            self._erasures.append(as_erasure(record))
            if record.finished is None:
                shown = ", ".join(map(repr, record.paths))
                reason = f"the erasure of {shown} by {record.by} was interrupted: erase it again"
                self._add(Fault(path, reason, part="erasure"))

    def _check_staging(self) -> None:
        staged: list[str] = []
        with contextlib.suppress(PermissionError):  # a user who may only read has no access
            staged = self.storage.list(names.STAGING)
        for file in sorted(staged):
            path = f"{names.STAGING}/{file}"
            name = names.parse_named(file)
            if names.parse_record(file) is None and name is None:
                continue
            try:
                content = self.storage.read(path)
                if name is None and content:  # an empty one: its owner is about to write it, or died before
                    TransactionRecord.decode(content)
                elif content and (len(content) != 32 or len(bytes.fromhex(content.decode())) != 16):
                    raise encoding.MalformedError("it names no transaction")
            except FileNotFoundError:
                continue  # the transaction has ended
            except (TxStoreError, OSError) as error:
                self._add_error(error, path, part="staging")
            except ValueError as error:
                self._add(Fault(path, str(error), part="staging"))

    def _check_names(self) -> bool:
        """Report strays; return whether each directory is one, so that its files can be checked."""
        directories = ["", *names.DIRECTORIES, names.BRANCHES, names.ERASED]
        known, are_directories = set(directories), True
        while directories:
            listed, below = zip(directories, self._each(self._names_in, directories), strict=True), []
            for directory, found in listed:
                if isinstance(found, WrongFileTypeError):
                    self._add_error(found, directory)
                    are_directories = False
                    continue
                for path in (f"{directory}/{name}" if directory else name for name in found):
                    if not names.belongs(path):
                        self.report.strays.append(path)
                    elif names.parse_stop(path.rpartition("/")[2]) is not None:
                        reason = "the server did not create exclusively: commits may have taken each other's places"
                        self._add(Fault(path, reason, part="stop"))
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
            return sorted(self.storage.list(directory))
        except PermissionError:  # a user who may only read has no access to `.staging`
            return []
        except WrongFileTypeError as error:
            return error

    def _each(self, check: Callable[[S], T], arguments: Iterable[S]) -> Iterator[T]:
        """Yield the results of checks that make requests: on a remote storage, in parallel."""
        return self.storage.dispatch.each(check, arguments)

    def _check_type(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            try:
                self.storage.read_tail(path, 0)
            except WrongFileTypeError as error:
                self._add_error(error, path)

    # --- noting

    def _add_error(self, error: TxStoreError | OSError, path: str, *, part: str | None = None) -> None:
        if isinstance(error, WrongFileTypeError):
            self._add(Fault(error.path, error.reason, part="type"))
        elif isinstance(error, CorruptionError):
            self._add(Fault(error.path, error.reason, error.offset, error.key, part or "header"))
        elif isinstance(error, ConnectionError | TimeoutError) or _is_refused_by_server(error):
            raise error  # the error says nothing about the file
        elif isinstance(error, OSError):
            self._add(Fault(path, f"it can't be read: {error}", part=part or "unreadable"))
        else:
            self._add(Fault(str(getattr(error, "path", path)), str(error), part=part or "header"))

    def _add(self, fault: Fault) -> None:
        if fault not in self._told:  # a damaged head is met twice
            self._told.add(fault)
            self.report.faults.append(fault)


def _is_refused_by_server(error: BaseException) -> bool:
    """Tell whether the server refused these credentials. An unreadable file on a disk is a fault instead."""
    return isinstance(error, PermissionError) and "://" in str(error.filename)


def check_sources(storage: Storage, sources: Sources) -> list[Fault]:
    """Return faults for outside files, used by the newest commit of each branch, that changed or can't be read.

    Damage in the repository itself is skipped: `verify` reports it.
    """
    files: dict[FileVersion, str] = {}  # each with the first key whose value it holds
    commits = open_commits(storage)
    with contextlib.suppress(TxStoreError, OSError):
        for branch in living_branches(commits):
            with contextlib.suppress(TxStoreError, OSError):  # the rest of the run can't be read
                _add_files(Snapshot(commits.head(branch), open_packs(storage), storage.url), files)

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

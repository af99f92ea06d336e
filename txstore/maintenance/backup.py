"""Copies a repository while others write it. The copy holds what the heads were when the backup started.

Order: packs, each commit after all that it needs, branches, tags, head caches, and in a new copy `format.json` last. So
at any moment the copy is a whole repository, or none yet. Each file is copied to a temporary name, checked, synced and
renamed, so a file with its final name is complete. An interrupted backup is simply run again. A backup takes no lock;
it pins what it copies.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

from txstore.commit import MAIN, Stored
from txstore.errors import BackupErasureError, BackupError, CorruptionError, RepositoryNotFoundError
from txstore.format import commitfile, names, packfile, records
from txstore.format.commitfile import RunName
from txstore.format.display import html_head
from txstore.format.encoding import MalformedError
from txstore.format.packfile import PackName
from txstore.format.records import Branch, ErasureRecord, ReplacementTable, RepositoryFormat, Tag
from txstore.history.commits import Commits
from txstore.history.erasures import as_erasure
from txstore.history.kept_commits import kept_with
from txstore.history.opening import Access, open_commits, open_storage
from txstore.history.operations import delete_old, forget_details, read_operation, without_details
from txstore.locks.pins import Pins
from txstore.maintenance.check_file import ReadRange, check_frames, check_sections, frames_end, open_run
from txstore.maintenance.erase import scrub, write_record
from txstore.maintenance.reachable import data_packs, hold_all
from txstore.maintenance.replacement_packs import row_fates
from txstore.maintenance.report import Fault
from txstore.maintenance.scrub import Survey, survey
from txstore.progress import Progress
from txstore.segments.replaced import read_records
from txstore.segments.runs import names_of
from txstore.storage.interface import StagedFile, Storage, paths_in, write_over
from txstore.storage.request_threads import in_parallel
from txstore.transactions.participants.reclaim import reclaim_staging

_log = logging.getLogger(__name__)

#: Files written before they are synced: syncing them together costs little more than syncing one.
_BATCH = 64


@dataclass(frozen=True, slots=True, repr=False)
class Backup:
    """The result of a backup. `version` and `commit` name the copy's new head of "main"; `bytes` were copied.

    `erasures` records of erasures are new in the copy, and `erased` values were erased there for them. `is_new`:
    no copy existed before.
    """

    destination: str
    version: int
    commit: str
    files: int
    bytes: int
    erasures: int = 0
    erased: int = 0
    is_new: bool = False

    def __str__(self) -> str:
        what = "is new" if self.is_new else "was brought up to date" if self.files else "was up to date"
        copied = f"{self.files:,} files, {self.bytes:,} bytes copied"
        erased = f"; {self.erased:,} values erased, by {self.erasures:,} erasures" if self.erasures else ""
        return f"{self.destination} {what}: commits up to version {self.version}; {copied}{erased}"

    def __repr__(self) -> str:
        return f"<Backup {self}>"

    def _repr_html_(self) -> str:
        return html_head("Backup", str(self))


def back_up(
    source: Storage,
    destination: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    verify: bool = True,
    erase: bool = False,
    progress: Progress | None = None,
) -> Backup:
    """Copy a repository, or what is new in it. See `Repository.backup`."""
    commits = open_commits(source)
    if not commits.identity.exists():
        raise RepositoryNotFoundError(source.url)
    try:
        target = open_storage(destination, Access(dict(storage_options or {})))
    except RepositoryNotFoundError as error:
        is_link = os.path.islink(os.path.expanduser(destination))
        what = "a symbolic link that leads to nothing" if is_link else "inside of the repository above it"
        raise BackupError(os.fspath(destination), f"it is {what}: choose a place apart") from error
    _check_apart(source.url, target.url)
    return _BackUp(commits, target, verify, erase, progress).run()


def _check_apart(source: str, target: str) -> None:
    if ("://" in source) != ("://" in target):
        return
    one, other = (place if "://" in place else os.path.realpath(place) for place in (source, target))
    if f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/"):
        raise BackupError(target, f"it is in the repository {source}, or the other way round: choose a place apart")


class _BackUp:
    def __init__(
        self, commits: Commits, target: Storage, verify: bool, erases: bool, progress: Progress | None
    ) -> None:
        self.commits = commits
        self.source = commits.storage
        self.target = target
        self._copier = Copier(self.source, target, commits.identity.id, verify, progress)
        self._erases = erases
        self._id = commits.identity.id
        self._pins: dict[str, Pins] = {}
        self._erasures = self._erased = 0
        self._branches: dict[str, Branch] = {}  # by name
        self._heads: dict[str, Stored] = {}  # by branch, if the branch has commits of its own
        self._oldest_kept_versions: dict[str, int] = {}  # of all branches
        self._tags: dict[str, bytes] = {}  # content of the copied tags, by name
        self._seen: set[tuple[bytes, int]] = set()  # runs whose packs are known
        self._needed: dict[str, set[str]] = {}  # by the file that holds runs: the files that these refer to

    def run(self) -> Backup:
        try:
            return self._run_again()
        finally:
            for pins in self._pins.values():
                pins.drop(self)

    def _run_again(self) -> Backup:
        while True:
            try:
                return self._run()
            except (FileNotFoundError, CorruptionError) as error:
                if self._are_tags_gone():
                    continue  # again without these tags: only they kept the missing file, below the oldest kept version
                if isinstance(error, FileNotFoundError) and self._is_overtaken():
                    raise BackupError(self.target.url, "a vacuum has deleted files meanwhile: run it again") from error
                if isinstance(error, FileNotFoundError) and (missing := self._in_source(error)) is not None:
                    raise CorruptionError(missing, reason="the file is missing") from error
                raise

    def _is_overtaken(self) -> bool:
        """Tell whether a vacuum may have deleted files that this backup has yet to copy."""
        commits = open_commits(self.source)
        return any(
            not commits.branches.is_living(branch) or commits.oldest_kept.of(branch) > oldest_kept
            for branch, oldest_kept in self._oldest_kept_versions.items()
        )

    def _in_source(self, error: FileNotFoundError) -> str | None:
        """Return the path of the missing file, if it is a file of the repository."""
        begin = f"{self.source.url}/"
        path = error.filename if isinstance(error.filename, str) else str(error)
        return path.removeprefix(begin) if path.startswith(begin) else None

    def _run(self) -> Backup:
        self._pin_heads()
        self._tags = self._read_tags() if self._heads else {}
        self._seen = set()
        copies = open_commits(self.target)
        is_new = self._check_target(copies)
        last = {} if is_new else self._last(copies)
        erasures = self._new_erasures(copies)
        for directory in ("", *names.DIRECTORIES):
            self._copier.make_directory(directory)
        self._copier.write_once(names.GUARD, records.encode_guard())  # always the same, whatever the source has
        self._erase(erasures)
        if self._heads:
            self._copy_history(last)
        self._write_branches(copies)
        for name, content in self._tags.items():
            self._copier.write_small(names.tag_path(name), content)
        self._copy_operations()
        if is_new:
            about = RepositoryFormat.decode(self.source.read(names.FORMAT))
            self._copier.write_once(names.FORMAT, replace(about, versions=self.target.capabilities.versions).encode())
        copies = open_commits(self.target)
        for branch, head in self._heads.items():
            made = copies.head(branch)
            if made is None or made.header.id != head.header.id:
                raise BackupError(self.target.url, "a process has committed into it meanwhile: choose another place")
            if self._copier.files:
                head_cache = names.head_cache_path(branch)
                with contextlib.suppress(FileExistsError):
                    content = copies.store.head_caches.of(made, durable=True).encode()
                    self.target.write_once(head_cache, content, durable=False, at_most=self._copier.at_most(head_cache))
                copies.store.head_caches.write_of_copy(made)
        main = self._heads.get(MAIN)
        return Backup(
            self.target.url, -1 if main is None else main.header.version, "" if main is None else main.header.id.hex(),
            self._copier.files, self._copier.bytes, self._erasures, self._erased, is_new,
        )  # fmt: skip

    def _pin_heads(self) -> None:
        """Find and pin the heads: while this object lives, a vacuum deletes nothing that they keep."""
        oldest_kept_versions = hold_all(self.commits, self._pins_of, self)
        found = self.commits.branches.all()
        self._branches = {name: record for name, record in found.items() if record.id in oldest_kept_versions}
        heads = {branch: self.commits.head(branch) for branch in oldest_kept_versions}
        self._heads = {branch: head for branch, head in heads.items() if head and head.header.branch == branch}
        raised = {
            branch: max(oldest_kept_versions[branch], head.header.oldest_kept) for branch, head in self._heads.items()
        }
        self._oldest_kept_versions = {**oldest_kept_versions, **raised}

    def _pins_of(self, branch: str) -> Pins:
        return self._pins.setdefault(branch, Pins(self.source.open_pins, branch))

    # --- checks of the target

    def _check_target(self, copies: Commits) -> bool:
        """Tell whether the place is new, or holds the beginning of a backup; raise `BackupError` if neither."""
        try:
            found = set(self.target.list(""))
        except NotADirectoryError as error:
            raise BackupError(self.target.url, "it is a file; a backup is a directory") from error
        if names.FORMAT in found:
            if copies.identity.id != self._id:
                raise BackupError(self.target.url, "it holds another repository: choose an empty or a new directory")
            return False
        others = {name for name in found - names.TOP if not names.is_litter(name)}
        if others:
            raise BackupError(self.target.url, f"it holds something else ({min(others)!r}): choose a new one")
        commits = (
            path
            for each in copies.files.branch_directories()
            for path in paths_in(copies.storage, names.commits_directory(each))
        )
        for path in (*commits, *data_packs(copies)):
            try:
                found_id = packfile.decode_head(self.target.read_range(path, 0, packfile.HEAD_SIZE))[1]
            except MalformedError:
                found_id = b""
            if found_id != self._id:
                raise BackupError(self.target.url, "it holds the beginnings of another repository: choose a new one")
        return True

    def _last(self, copies: Commits) -> dict[str, Stored]:
        """Return the heads of the copy; raise `BackupError` unless they are of the repository's history."""
        found = {}
        there = {MAIN, *(record.id for record in copies.branches.all().values())}
        for branch in sorted(there & self._oldest_kept_versions.keys()):
            last = copies.head(branch)
            if last is None or last.header.branch != branch:
                continue
            stored = self.commits.files.read(branch, last.header.version)
            if branch not in self._heads or stored is None or stored.hash != last.hash:
                version = last.header.version
                what = f"its commit {last.commit.id[:12]}, in version {version}, is not in the repository's history"
                why = "another process has committed into it, or a vacuum has passed it: choose another directory"
                raise BackupError(self.target.url, f"{what}: {why}")
            found[branch] = last
        return found

    def _new_erasures(self, copies: Commits) -> list[tuple[ErasureRecord, Survey]]:
        """Return the records that the copy lacks, each with the values that it erases in the copy.

        Any user who may write the repository may write such a record, and the copy may be the last place that has the
        values. So this raises `BackupErasureError` if a record would erase values and the caller did not ask for it.
        """
        known = {record.id: record for record in read_records(self.target)}
        begun = [each for each in read_records(self.source) if each.may_have_replaced]
        new = [record for record in begun if known.get(record.id) != record]
        found = [(record, self._survey(copies, record)) for record in new]
        refused = [as_erasure(record) for record, survey in found if survey.changes]
        if refused and not self._erases:
            values = sum(survey.values for _, survey in found)
            raise BackupErasureError(self.target.url, refused, values)
        return found

    def _erase(self, erasures: Sequence[tuple[ErasureRecord, Survey]]) -> None:
        """Erase in the copy what was erased since the last backup: existing files are not copied again."""
        if erasures:
            forget_details(self.target)
            reclaim_staging(open_commits(self.target))  # a backup that was killed left copies of files
        for record, _ in erasures:
            if record.table is not None:
                self._copy_replacements(record, record.table)
            commits = open_commits(self.target)
            found = self._survey(commits, record)  # again: two records may concern one file
            scrub(self.target, found)
            # Before the record, which says that this is done.
            open_commits(self.target).store.head_caches.forget()
            for change in found.changes.values():
                self.target.cache.forget(change.pack_id)
            write_record(self.target, record)
            self._erasures += 1
            self._erased += found.values

    def _survey(self, copies: Commits, record: ErasureRecord) -> Survey:
        """Search the copy for what an erasure concerns there.

        The copy may have branches that were deleted before the erasure, so its record does not name them. All their
        commits are older than the erasure: a backup after it would have copied its record first.
        """
        gone = set(copies.files.branch_directories()) - record.until.keys() - self._oldest_kept_versions.keys()
        until = {**record.until, **{branch: max(copies.files.versions(branch), default=-1) for branch in gone}}
        return survey(copies, record.paths, until, None if record.table is None else row_fates(self.source, record))

    def _copy_replacements(self, record: ErasureRecord, table: ReplacementTable) -> None:
        """Copy the values that replace others, and say so: from then on a reader of the copy finds them."""
        packs = [PackName(pack).path for pack in table.packs]
        # Not those that a vacuum has deleted, because no reader needs them.
        missing = [path for path in packs if self.source.exists(path) and not self.target.exists(path)]
        copies = [self._copier.pack(path, self.source.read_tail(path, 0)[1]) for path in missing]
        for first in range(0, len(copies), _BATCH):
            self._copier.copy(copies[first : first + _BATCH])
        write_record(self.target, replace(record, finished=None))

    # --- finding what to copy

    def _copy_history(self, last: Mapping[str, Stored]) -> None:
        stored = list(self._new_commits(last))
        ours = {one.path for one in stored}
        for one in stored:
            self._copier.fetched.expect(one.path, one.footer.file_length)
        packs: dict[str, int | None] = {}
        for one in stored:
            for pack, end in self._packs_of(one):
                path = pack.path
                if path in ours or path in packs or self.target.exists(path):
                    continue
                if end is not None or self.source.exists(path):  # else a vacuum deleted it, because no reader needs it
                    packs[path] = end
        older = [self._copier.pack(*found) for found in sorted(packs.items())]
        ordered = _in_order(stored, self._needed)
        newer = [self._copier.commit(one) for one in ordered if not self.target.exists(one.path)]
        self._copier.total = sum(copy.length for copy in (*older, *newer))
        for first in range(0, len(older), _BATCH):
            self._copier.copy(older[first : first + _BATCH])
        # The files of one directory are durable before those of the next refer to them.
        for _, of_branch in groupby(newer, key=lambda copy: os.path.dirname(copy.path)):
            copies = list(of_branch)
            for first in range(0, len(copies), _BATCH):
                self._copier.copy(copies[first : first + _BATCH])
        for branch, head in self._heads.items():
            for path in paths_in(self.commits.storage, names.oldest_kept_directory(branch)):
                with contextlib.suppress(FileNotFoundError, MalformedError):
                    if Tag.decode(self.source.read(path)).version <= head.header.version:
                        self._copier.write_once(path)

    def _new_commits(self, last: Mapping[str, Stored]) -> Iterator[Stored]:
        """Yield the commits to copy, the oldest of each branch first: from the oldest kept version on, and named ones
        below.
        """
        tags = map(Tag.decode, self._tags.values())
        named = {(tag.branch, tag.version) for tag in tags}
        named |= {(record.fork.branch, record.fork.version) for record in self._branches.values()}
        met: set[tuple[str, int]] = set()
        related = self.commits.branches.related()
        for branch, head in self._heads.items():
            fork = self.commits.branches.fork(branch)
            first = (
                self._oldest_kept_versions[branch]
                if fork is None
                else max(self._oldest_kept_versions[branch], fork.version + 1)
            )
            if branch in last:
                first = max(first, last[branch].header.version)
            # One by one: the header only claims how many versions exist, and the first missing one ends the loop.
            versions = range(first, head.header.version + 1)
            for stored in map(self._kept, self.commits.files.each(partial(self._read, branch), versions)):
                met.add((branch, stored.header.version))
                there = (each for each in kept_with(stored, related) if each not in named)
                named.update(each for each in there if self.commits.files.read(*each) is not None)
                yield stored
        for branch, version in sorted(named - met):
            yield self._kept(self._read(branch, version))

    def _read(self, branch: str, version: int) -> tuple[Stored, bytes]:
        """Return a commit, and the end of its file."""
        found = self.commits.files.read_with_end(branch, version)
        if found is None:
            raise CorruptionError(names.commit_path(branch, version), reason="the file is missing, or went meanwhile")
        return found

    def _kept(self, found: tuple[Stored, bytes]) -> Stored:
        """Return a commit, and keep its content if the whole file was read: the copy then needs no second read."""
        stored, end = found
        if len(end) == stored.footer.file_length:
            self._copier.fetched.keep(stored.path, end)
        return stored

    def _packs_of(self, stored: Stored) -> Iterator[tuple[PackName, int | None]]:
        """Yield the packs that a commit refers to, each with its end if it came with this commit."""
        for data in stored.header.packs:
            yield data.name, data.end
        for name in names_of(stored.header.runs, stored.header.name):
            if name.pack is None or (name.pack.id, name.offset) in self._seen:
                continue
            self._seen.add((name.pack.id, name.offset))
            table = self._table(name, name.pack.path)
            self._needed.setdefault(name.pack.path, set()).update(pack.path for pack in table)
            for pack in (name.pack, *table):
                # Other commit files are copied as commits; those of a deleted branch are not copied.
                if pack.branch is None or pack.version < self._oldest_kept_versions.get(pack.branch, pack.version + 1):
                    yield pack, None

    def _table(self, name: RunName, path: str) -> list[PackName]:
        try:
            return open_run(self._copier.fetched.read_range, name, path)[1]
        except ValueError as error:
            raise CorruptionError(path, offset=name.offset, reason=f"damaged run: {error}") from error

    def _read_tags(self) -> dict[str, bytes]:
        """Return the content of tags on commits up to the heads: read once, because other processes change tags."""
        found = {}
        for name, tag in sorted(self.commits.tags.all().items()):
            head = self._heads.get(tag.branch)
            if head is None or tag.version <= head.header.version:
                found[name] = tag.encode()
        return found

    def _are_tags_gone(self) -> bool:
        """Tell whether another process has deleted a tag that this backup wanted to copy."""
        there = self.commits.tags.all()
        return any(name not in there or there[name].encode() != content for name, content in self._tags.items())

    def _copy_operations(self) -> None:
        """Copy the records of finished operations: from then on they stay as they are."""
        there = set(self.target.list(names.OPERATIONS))
        ours = sorted(paths_in(self.source, names.OPERATIONS))
        for path in (path for path in ours if os.path.basename(path) not in there):
            try:
                record = read_operation(self.source, path)
            except FileNotFoundError:
                continue  # a vacuum has just deleted it
            except CorruptionError as error:  # no reason to be without a backup
                _log.warning("%s: the record of an operation is not copied: %s", self.source.url, error)
                continue
            if record.finished is not None:
                self._copier.make_directory(names.OPERATIONS)
                content = without_details(record).encode()
                write_over(self.target, path, content, at_most=self._copier.at_most(path))
        delete_old(self.target)

    def _write_branches(self, copies: Commits) -> None:
        """Write the records of the branches into the copy. A renamed branch loses its old name there, too."""
        if self._branches:
            self._copier.make_directory(names.BRANCHES)
        for name, record in self._branches.items():
            self._copier.write_small(names.branch_path(name), record.encode())
        ours = {record.id for record in self._branches.values()}
        for name, record in copies.branches.all().items():
            if record.id in ours and name not in self._branches:
                copies.branches.delete(name)


def _in_order(commits: Iterable[Stored], referred: Mapping[str, set[str]]) -> list[Stored]:
    """Return commits in their order, but each after those it needs, which may be of other branches.

    `referred`: by file, the files to which its runs refer.
    """
    by_path = {stored.path: stored for stored in commits}
    ordered: dict[str, Stored] = {}
    for path in by_path:
        waiting = [path]
        while waiting:
            stored = by_path[waiting[-1]]
            needed = [other for other in _needs(stored, referred) if other in by_path and other not in ordered]
            waiting += [other for other in needed if other not in waiting]
            if by_path[waiting[-1]] is stored:
                ordered.setdefault(stored.path, stored)
                waiting.pop()
    return list(ordered.values())


def _needs(stored: Stored, referred: Mapping[str, set[str]]) -> Iterator[str]:
    header = stored.header
    yield from sorted(referred.get(stored.path, set()) - {stored.path})
    if header.version:
        yield names.commit_path(header.fork or header.branch, header.version - 1)
    if header.merged is not None:
        yield names.commit_path(header.merged.branch, header.merged.version)
    for run in header.runs:
        if run.pack is not None and run.pack != header.name:
            yield run.pack.path
    for pack in header.compaction_outputs:  # copied before all commits
        yield from sorted(referred.get(pack.path, ()))


#: Bytes that are copied at a time.
_COPIED = 1 << 20
#: Checks a file at another place.
Check = Callable[[ReadRange, str], list[Fault]]


@dataclass(frozen=True, slots=True)
class FileCopy:
    """One file to copy, up to a length."""

    path: str
    length: int
    check: Check


def _reader_of(content: bytes) -> ReadRange:
    return lambda _, offset, length: content[offset : offset + length]


class Copier:
    """Copies from one storage to another. Counts the files and bytes that it has copied."""

    def __init__(
        self, source: Storage, target: Storage, repository_id: bytes, verify: bool, progress: Progress | None
    ) -> None:
        self.fetched = source.dispatch.reader(source.read_range)
        self.files = self.bytes = 0
        self.total = 0  # bytes that there are to copy
        self._source = source
        self._target = target
        self._id = repository_id
        self._verify = verify
        self._progress = progress

    def pack(self, path: str, end: int | None) -> FileCopy:
        length = self._source.read_tail(path, 0)[1] if end is None else end

        def check(read: ReadRange, temporary: str) -> list[Fault]:
            pack_id = packfile.decode_head(read(temporary, 0, packfile.HEAD_SIZE))[0]
            name = (
                PackName(pack_id)
                if path.startswith(names.PACKS)
                else PackName(pack_id, *(names.parse_commit_path(path) or (None, 0)))
            )
            if end is None:
                return []  # only an expired commit knew where its frames end
            return check_frames(read, name, self._id, end, path=temporary).faults

        return FileCopy(path, length, check)

    def commit(self, stored: Stored) -> FileCopy:
        def check(read: ReadRange, temporary: str) -> list[Fault]:
            name = stored.header.name
            faults = check_frames(read, name, self._id, frames_end(stored), path=temporary).faults
            faults += check_sections(read, stored, temporary)
            footer = stored.footer
            encoded = read(temporary, footer.header_offset, footer.header_length)
            if commitfile.header_hash(encoded) != stored.hash:
                faults.append(Fault(stored.path, "the header differs from the one read before", footer.header_offset))
            for run in stored.header.runs:
                if run.pack is None:
                    open_run(read, run, temporary)
            return faults

        return FileCopy(stored.path, stored.footer.file_length, check)

    def copy(self, copies: list[FileCopy]) -> None:
        written: list[tuple[FileCopy, str, StagedFile]] = []
        for copy in copies:
            self.fetched.expect(copy.path, copy.length)
        try:
            for copy in copies:
                temporary = f"{names.STAGING}/{os.urandom(8).hex()}{names.NEW}"
                file = self._target.create(temporary, at_most=self.at_most(copy.path))
                written.append((copy, temporary, file))
                self._fill(copy, file)
            # All at once: when a disk syncs one file, it mostly writes the others, too.
            deque(in_parallel(lambda each: each[2].sync(), written), maxlen=0)
            for copy, temporary, _ in written:
                self._check(copy, temporary)
                directory = os.path.dirname(copy.path)
                self.make_directory(directory)
                with contextlib.suppress(FileExistsError):  # by another backup to the same place
                    self._target.rename_noreplace(temporary, copy.path)
                self.files += 1
        finally:
            for _, temporary, file in written:
                file.close()
                self._target.delete(temporary)
        for directory in dict.fromkeys(os.path.dirname(copy.path) for copy in copies):
            self._target.sync_directory(directory)

    def _fill(self, copy: FileCopy, file: StagedFile) -> None:
        for offset in range(0, copy.length, _COPIED):
            part = self.fetched.read_range(copy.path, offset, min(_COPIED, copy.length - offset))
            if len(part) != min(_COPIED, copy.length - offset):
                raise CorruptionError(copy.path, offset=offset + len(part), reason="the file is too short")
            file.write(offset, [part])
            self.bytes += len(part)
            if self._progress is not None:
                self._progress(self.bytes, max(self.total, self.bytes))

    def _check(self, copy: FileCopy, temporary: str) -> None:
        """Check the copied file, at least that it is a pack of this repository: another's file may have this name."""
        try:
            read: ReadRange = self._target.read_range
            if copy.length <= _COPIED:  # one open suffices
                read = _reader_of(read(temporary, 0, copy.length))
            head = packfile.decode_head(read(temporary, 0, packfile.HEAD_SIZE))
            if head[1] != self._id:
                raise CorruptionError(copy.path, offset=0, reason="this is not a pack of this repository")
            faults = copy.check(read, temporary) if self._verify else []
        except ValueError as error:
            raise CorruptionError(copy.path, reason=str(error)) from error
        for fault in faults:
            raise CorruptionError(copy.path, offset=fault.offset, key=fault.key, reason=fault.reason)

    def make_directory(self, path: str) -> None:
        self._target.make_directory(path, durable=True, at_most=self.at_most(path))

    def at_most(self, path: str) -> int:
        """Return the permission bits of a copy: no more for other users than the source file has."""
        try:
            return self._source.permissions(path) | 0o700
        except FileNotFoundError:  # a tag deleted meanwhile, or an empty directory that another copy left out
            return 0o700

    def write_small(self, path: str, content: bytes) -> None:
        """Write a tag, or the record of a branch, into the copy, in place of an older one of this name."""
        if self._target.exists(path) and self._target.read(path) != content:
            write_over(self._target, path, content, at_most=self.at_most(path))
            self.files += 1
        else:
            self.write_once(path, content)

    def write_once(self, path: str, content: bytes | None = None) -> None:
        """Copy a small file, or write `content`, unless it exists in the copy."""
        content = self._source.read(path) if content is None else content
        if self._target.exists(path):
            if self._target.read(path) != content:
                raise BackupError(self._target.url, f"its {path} differs from the repository's: choose a new one")
            return
        self.make_directory(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):
            self._target.write_once(path, content, durable=True, at_most=self.at_most(path))
        self.files += 1
        self.bytes += len(content)

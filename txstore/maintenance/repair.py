"""Repairs what `verify` reports, if the rest of the repository holds the same facts. It never deletes anything.

A run is rebuilt from the frames of its transaction, or from the runs that were merged into it; a footer from the
header; small files from commits. In headers, footers, the beginnings of frames and small files, one changed bit is
turned back. A value has no second copy. A backup has it, and whatever else can't be restored: the report says what.

Each step leaves the repository no worse than before, so an interrupted repair is simply run again: it writes a new file
beside the old one and syncs it, gives the old one a second name below `quarantine/`, and renames the new one into
place. Order: first the files that make a directory a repository; then the ends of commit files, without which nothing
else can be checked; then the order of commits; then packs and runs, the oldest first, because newer ones are rebuilt
from older ones.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain, islice, pairwise
from operator import itemgetter, ne
from typing import NamedTuple, TypeVar

from txstore.commit import MAIN, Stored
from txstore.errors import CorruptionError, TxStoreError, UnsupportedFormatError
from txstore.format import carried, commitfile, encoding, names, packfile, records
from txstore.format.commitfile import Footer, Header, RunName
from txstore.format.consolidated import is_consolidated
from txstore.format.encoding import NO_ID, VERSION, MalformedError, NewerFormatError, crc32c
from txstore.format.keys import after_prefix, decode_key, decode_prefix, is_document
from txstore.format.packfile import PackName
from txstore.format.records import Branch, HeadCache, RepositoryFormat, Tag
from txstore.history import operations
from txstore.history.commits import Commits
from txstore.history.opening import open_commits
from txstore.history.snapshot import Snapshot, unpinned
from txstore.maintenance.check_file import (
    Window,
    check_frames,
    check_sections,
    frames_end,
    gaps_between_sections,
    open_run,
    walk_frames,
)
from txstore.maintenance.reachable import living_branches
from txstore.maintenance.replacing import Correction, Replacer
from txstore.maintenance.report import Fault, Repair, Report
from txstore.maintenance.verify import Verifier, verify
from txstore.progress import Progress
from txstore.segments import runs
from txstore.segments.ranged_packs import open_packs
from txstore.segments.ranged_runs import is_replaced, open_runs
from txstore.segments.runs import names_of
from txstore.storage.interface import Earlier, Storage
from txstore.transactions.participants.chains import Link
from txstore.transactions.staged_keys import StagedKeys


class _Occupant(NamedTuple):
    """A commit that a version holds, or held before."""

    stored: Stored
    content: bytes = b""  # if the version held several commits
    versions: tuple[Earlier, ...] = ()  # the server's versions of the object with this content


def were_taken_twice(storage: Storage) -> bool:
    """Tell whether a version of a living branch held several commits, by what the server still keeps."""
    commits, files = open_commits(storage), Replacer(storage)
    if not commits.store.may_be_taken_twice:
        return False
    return any(_Line(commits, files, branch).has_doubles() for branch in living_branches(commits))


def make_one_line(storage: Storage, files: Replacer, branch: str) -> list[Fault]:
    """Put the commits of a branch in one line; return the lost ones.

    With exclusive creation, the first commit of each version would have won: the oldest that follows the commit in the
    version below. If the server keeps object versions, the replaced commits still exist. Commits that do not follow go
    to the quarantine, and the report names each commit that the history has lost, by its id.

    It does nothing if no process was stopped and no version is known to have held several commits.
    Raises `OSError`, also if the server still does not create exclusively.
    """
    commits = open_commits(storage)
    if not commits.store.may_be_taken_twice:
        return []
    stops = [stop for stop in map(names.parse_stop, storage.list(names.commits_directory(branch))) if stop is not None]
    line = _Line(commits, files, branch, was_stopped=bool(stops))
    if not stops and not line.has_doubles():
        return []
    storage.check_creation(waits=True)
    line.restore()
    line.tell_of_dropped()
    line.tell_of_named()
    for version, commit_id in stops:
        line.tell_of(commit_id, version, "a process has found that it may have lost its place")
    line.drop_tags()
    if line.is_whole():  # else a file that could not be moved is still in the way
        for version, commit_id in stops:
            files.move_away(names.stop_path(branch, version, commit_id), "moved away: commits may be made again")
    return line.lost


class _Line:
    def __init__(self, commits: Commits, files: Replacer, branch: str, *, was_stopped: bool = False) -> None:
        self.storage = commits.storage
        self.lost: list[Fault] = []
        self._files = files
        self._branch = branch
        self._was_stopped = was_stopped
        self._directory = names.commits_directory(branch)
        self._commits = commits
        self._oldest_kept = self._commits.oldest_kept.of(branch)
        self._told: set[bytes] = set()
        self._dropped: list[Stored] = []
        self._named: HeadCache | None = None  # what the head cache named

    def has_doubles(self) -> bool:
        """Tell whether any version held several commits."""
        earlier = self._earlier
        doubles = [version for version in self._versions() if len(earlier.get(names.version_name(version), ())) > 1]
        return any(len(self._held(version, None)) > 1 for version in doubles)

    def is_whole(self) -> bool:
        """Tell whether each commit follows the one in the version below."""
        below: Stored | None = None
        for stored in self._commits.files.each(self._read, self._versions()):
            if below is not None and stored is not None and not _may_follow(stored, below):
                return False
            below = stored
        return True

    def restore(self) -> None:
        """Restore the oldest line, and move commits that do not follow it out of the way.

        If no process was stopped, commits may follow one that replaced another: these stay.
        """
        versions = self._versions()
        currents = list(self._commits.files.each(self._read, versions))
        below: Stored | None = None
        for version, current, above in zip(versions, currents, [*currents[1:], None], strict=True):
            held = self._held(version, current)
            fit = [each for each in held if below is None or _may_follow(each.stored, below)]
            if held and not fit:
                self._drop_from(version, versions)
                break
            if not self._was_stopped and current is not None and above is not None and above.follows(current):
                fit.sort(key=lambda each: each.stored.hash != current.hash)
            if fit:
                self._settle(current, held, fit[0])
            below = fit[0].stored if fit else current
        self._write_head_cache()

    def _versions(self) -> list[int]:
        return sorted(version for version in self._commits.files.versions(self._branch) if version >= self._oldest_kept)

    def _read(self, version: int) -> Stored | None:
        try:
            return self._commits.files.read(self._branch, version)
        except CorruptionError:
            return None

    @cached_property
    def _earlier(self) -> Mapping[str, Sequence[Earlier]]:
        """Return what the server keeps of this branch's versions; nothing if the server can't tell."""
        try:
            return self.storage.earlier(self._directory)
        except OSError as error:
            if error.errno != errno.ENOTSUP and (self._was_stopped or not isinstance(error, PermissionError)):
                raise
            if self._was_stopped:
                self._files.note(self._directory, f"only the present files were looked at: {error.strerror}")
            return {}

    def _held(self, version: int, current: Stored | None) -> list[_Occupant]:
        """Return the commits that a version held and holds, the oldest first."""
        earlier = self._earlier.get(names.version_name(version), ())
        if len(earlier) < 2:
            return [] if current is None else [_Occupant(current)]
        found: dict[bytes, _Occupant] = {}
        path = names.commit_path(self._branch, version)
        for kept in earlier:
            content = kept.read()
            try:
                stored = self._commits.files.decode(path, self._branch, version, content, len(content))
            except CorruptionError:
                continue
            others = found[stored.hash].versions if stored.hash in found else ()  # an erasure wrote it again
            found[stored.hash] = _Occupant(stored, content, (*others, kept))
        return list(found.values())

    def _settle(self, current: Stored | None, held: Sequence[_Occupant], chosen: _Occupant) -> None:
        """Give a version that held several commits to one of them; the others go to the quarantine."""
        for each in held:
            if each is not chosen:
                self._dropped.append(each.stored)
                self._files.keep(each.stored.path, each.content)
        for each in held:
            for version in each.versions if each is not chosen else ():
                version.forget()
        if current is None or current.hash != chosen.stored.hash:
            self._files.note(chosen.stored.path, f"commit {chosen.stored.header.id.hex()} has its place again")

    def _drop_from(self, first: int, versions: Sequence[int]) -> None:
        """Move away the commits of a version and of those above it, newest first, until a move fails."""
        for version in sorted((version for version in versions if version >= first), reverse=True):
            current = self._read(version)
            held = self._held(version, current)
            path = names.commit_path(self._branch, version)
            if not self._files.move_away(path, "moved away: it does not follow what is below"):
                return
            for each in held:
                self._dropped.append(each.stored)
                if current is None or each.stored.hash != current.hash:
                    self._files.keep(each.stored.path, each.content)
        try:
            self.storage.free_names(self._directory, names.version_name(first - 1) if first else "")
        except OSError as error:
            if error.errno != errno.ENOTSUP:
                raise

    def _write_head_cache(self) -> None:
        commits = open_commits(self.storage)
        with contextlib.suppress(OSError, encoding.MalformedError):
            self._named = commits.store.head_caches.read(self._branch)
        self.storage.delete(names.head_cache_path(self._branch))  # it may name a commit that has lost its place
        head = commits.head(self._branch)
        if head is not None and head.header.branch == self._branch:
            commits.store.head_caches.write_of_copy(head)

    # --- lost commits

    @cached_property
    def _kept(self) -> set[bytes]:
        """Return the ids in the final history. Members of a group commit may have other versions than before."""
        return {
            stored.header.id for stored in self._commits.files.each(self._read, self._versions()) if stored is not None
        }

    def tell_of_dropped(self) -> None:
        """Report the lost commits: the dropped ones, and their parents of which nothing but the id is known."""
        for stored in self._dropped:
            header = stored.header
            said = f"{header.message!r} by {header.author!r}: its file is in {names.QUARANTINE}/"
            self.tell_of(header.id, header.version, said)
        for stored in self._dropped:
            header = stored.header
            if header.parent_id != encoding.NO_ID and header.fork is None:
                self.tell_of(header.parent_id, header.version - 1, "all that is known is that another one followed it")

    def tell_of_named(self) -> None:
        """Report the commit that the head cache named, if it is not in the history: nothing else may know of it."""
        if self._named is not None:
            self.tell_of(self._named.commit_id, self._named.version, "the head cache named it")

    def drop_tags(self) -> None:
        """Move away the tags of commits that are lost."""
        for name in self._commits.tags.names():
            with contextlib.suppress(TxStoreError):  # `verify` reports it
                tag = self._commits.tags.read(name)
                if tag.branch == self._branch and tag.commit_id in self._told:
                    action = f"moved away: the commit that it names is lost, {tag.commit_id.hex()}"
                    self._files.move_away(names.tag_path(name), action)

    def tell_of(self, commit_id: bytes, version: int, said: str) -> None:
        if version < self._oldest_kept or commit_id in self._told or commit_id in self._kept:
            return
        self._told.add(commit_id)
        reason = (
            f"commit {commit_id.hex()} is not in the history: another one had its version, or that of one before it"
        )
        path = names.commit_path(self._branch, version)
        self.lost.append(Fault(path, f"{reason} ({said})", part="lost", commits=(commit_id.hex(),), commit_count=1))


def _may_follow(stored: Stored, below: Stored) -> bool:
    """Tell whether a commit follows one below, or what is between them is missing."""
    return stored.header.version != below.header.version + 1 or stored.follows(below)


T = TypeVar("T")

#: In what is longer, in bytes, no changed bit is searched for; of a frame, only in the first bytes.
_SEARCHED, _SEARCHED_OF_FRAME = 8 << 10, 512
#: In a file with more damaged frames, it is searched for in these.
_FRAMES_SEARCHED = 1000
#: If the footer is damaged, header and footer are looked for in this many bytes before the end, at this many places.
_TAIL, _PLACES = 1 << 20, 16


def verify_and_repair(storage: Storage, progress: Progress | None = None) -> Report:
    """Verify, repair, and verify again. A repository without faults is not changed.

    It counts as a fault, too, if a server kept an object that a commit replaced.

    The report has the remaining faults, the repairs, and the faults that are gone. Raises `OSError`, and
    `UnsupportedFormatError` for files of a newer TxStore, which should repair them.
    """
    before = verify(open_commits(storage), progress)
    if before.ok and not were_taken_twice(storage):
        return before
    with operations.recorded(storage, "repair", {}, keeps_failed=False) as result:
        moved = _move_wrong_types_away(storage, before, progress)
        for directory in names.DIRECTORIES:  # a power loss may have removed some, and some tools copy no empty ones
            storage.make_directory(directory, durable=False)
        with storage.lock(names.COMMIT_LOCK):  # no process commits meanwhile
            repairer = _Repairer(storage)
            repairs = repairer.run()
        report = verify(open_commits(storage), progress)
        report.faults += repairer.lost
        result.update({"faults": len(before.faults), "repairs": len(moved + repairs), "left": len(report.faults)})
        result.update({"lost": list(map(str, repairer.lost))} if repairer.lost else {})
    left = {(fault.path, fault.part, fault.offset, fault.key) for fault in report.faults}
    report.repairs = moved + repairs
    report.repaired = [f for f in before.faults if (f.path, f.part, f.offset, f.key) not in left]
    return report


def _move_wrong_types_away(storage: Storage, report: Report, progress: Progress | None) -> list[Repair]:
    """Move links, FIFOs and so on to the quarantine: the names, never their targets. No process can use them."""
    files = Replacer(storage)
    while wrong := [fault.path for fault in report.faults if fault.part == "type"]:
        done = len(files.repairs)
        for path in wrong:
            files.move_away(path, "moved away: nothing of its type can be part of a repository")
            if path in names.DIRECTORIES and not storage.exists(path):
                storage.make_directory(path, durable=False)
        if len(files.repairs) == done:
            break
        report = verify(open_commits(storage), progress)  # only now can files below them be checked
    return files.repairs


class _Repairer:
    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._files = Replacer(storage)
        self.lost: list[Fault] = []  # durable commits that were moved away

    def run(self) -> list[Repair]:
        self._repair_identity()
        commits = open_commits(self.storage)
        try:
            commits.identity.exists()
        except UnsupportedFormatError:
            raise
        except TxStoreError:
            return self._files.repairs  # no file says which repository this is
        self._repair_branches(commits)
        commits = open_commits(self.storage)
        for branch in _living(commits):
            self._repair_ends(commits, branch)
            self.lost += make_one_line(self.storage, self._files, branch)
            self._give_up_lost(branch)
            self._give_up_above_gap(branch)
        self._repair_packs(open_commits(self.storage))
        self._drop_torn_commits()
        self._repair_small_files()
        return self._files.repairs

    # --- the files that make a directory a repository

    def _repair_identity(self) -> None:
        content, guard = self._read(names.FORMAT), records.encode_guard()
        try:
            RepositoryFormat.decode(content)
        except MalformedError as error:
            restored = _mended(content, RepositoryFormat.decode)
            found = set(self._repository_ids())
            if restored is None and isinstance(error, NewerFormatError):
                supported = f"version {VERSION}"
                raise UnsupportedFormatError(names.FORMAT, found=error.reason, supported=supported) from error
            if restored is None and len(found) == 1:
                restored = RepositoryFormat(found.pop())
            if restored is not None:
                self._files.write_small(names.FORMAT, restored.encode(), "restored")
        if self._read(names.GUARD) != guard:
            self._files.write_small(names.GUARD, guard, "written anew")

    def _read(self, path: str) -> bytes:
        try:
            return self.storage.read(path)
        except FileNotFoundError:
            return b""

    def _repository_ids(self) -> Iterable[bytes]:
        commits = open_commits(self.storage)
        for branch in commits.files.branch_directories():
            for version in commits.files.versions(branch):
                with suppress(MalformedError, OSError):
                    head = self.storage.read_range(names.commit_path(branch, version), 0, packfile.HEAD_SIZE)
                    yield packfile.decode_head(head)[1]

    def _repair_branches(self, commits: Commits) -> None:
        """Restore records of branches in which one bit has turned, or which a branch's first commit repeats."""
        damaged: dict[str, bytes] = {}
        recorded = {MAIN}
        for file in commits.branches.files():
            try:
                found = commits.branches.read(file)
                recorded.update(() if found is None else [found.id])
            except CorruptionError:
                damaged[file] = self.storage.read(names.branch_path(file))
        for file, content in damaged.items():
            restored, action = _mended(content, Branch.decode), "restored"
            if restored is None or names.branch_path(restored.name) != names.branch_path(file):
                others = [branch for branch in commits.files.branch_directories() if branch not in recorded]
                likely = [branch for branch in others if bytes.fromhex(branch) in content] or others
                restored = _branch(commits, file, likely[0]) if len(likely) == 1 else None
                action = "made anew from the branch's commits"
            if restored is not None:
                self._files.write_small(names.branch_path(file), restored.encode(), action)
                recorded.add(restored.id)

    # --- the ends of commit files

    def _repair_ends(self, commits: Commits, branch: str) -> None:
        """Repair headers and footers; move away the newest commits that can't be repaired, down to a whole one."""
        versions = sorted(commits.files.versions(branch))
        readable = {version: stored for version in versions if (stored := _read(commits, branch, version)) is not None}
        fork = commits.branches.fork(branch)
        if fork is not None and (begins_behind := _read(commits, fork.branch, fork.version)) is not None:
            readable[fork.version] = begins_behind
        oldest_kept = max((stored.header.oldest_kept for stored in readable.values()), default=0)
        for version in versions:
            if version < oldest_kept or version in readable:
                continue
            parent, child = readable.get(version - 1), readable.get(version + 1)
            if version > oldest_kept and parent is None:
                continue
            with suppress(CorruptionError, ValueError):
                path = names.commit_path(branch, version)
                if (found := _whole_end(commits, path, version, parent, child)) is not None:
                    self._files.rewrite(path, [found[0]], found[1], lambda _: True, "header or footer restored")
            stored = _read(commits, branch, version)
            if stored is not None:
                readable[version] = stored
            elif not any(stored.header.synced for above, stored in readable.items() if above > version):
                # A power loss may have left it, and those above: none was synced.
                self._drop_from(branch, version, versions, "its end is damaged, or another commit's")
                return

    def _drop_from(self, branch: str, first: int, versions: Iterable[int], reason: str) -> None:
        """Move the newest commits away, newest first, so that the rest is a valid history at any time."""
        action = f"{reason}: the head is version {first - 1} again"
        for version in sorted((version for version in versions if version >= first), reverse=True):
            self._files.move_away(names.commit_path(branch, version), action)
        self._give_up_lost(branch)

    def _give_up_lost(self, branch: str) -> None:
        """Let a branch go on from its newest whole commit, if the one is gone that its head cache names.

        The head cache goes to the quarantine: the search without it finds that commit, and it says what was lost.
        """
        commits = open_commits(self.storage)
        try:
            head_cache = commits.store.head_caches.read(branch)
            there = commits.files.read(branch, head_cache.version)
        except (OSError, TxStoreError, MalformedError):
            return  # there is no head cache, or the commit is there and damaged
        lost = head_cache.commit_id
        if (there is not None and there.header.id == lost) or commits.oldest_kept.is_above(branch, head_cache.version):
            return
        if head_cache.durable:
            here = " here" if head_cache.is_durable_at(self.storage.place()) else ""  # else where this was copied from
            told = f"commit {lost.hex()} was durable{here} and is lost: a rest of it may be in {names.QUARANTINE}/"
            self.lost.append(Fault(names.commit_path(branch, head_cache.version), told, part="missing"))
        self._files.move_away(names.head_cache_path(branch), f"moved away: it names commit {lost.hex()}, which is lost")

    def _give_up_above_gap(self, branch: str) -> None:
        """Let a branch go on from below a missing version, if no head cache of this place says what its head is."""
        commits = open_commits(self.storage)
        try:
            commits.head(branch)
            return
        except CorruptionError as error:
            if error.path != names.commits_directory(branch):
                return
        oldest_kept, fork = commits.oldest_kept.of(branch), commits.branches.fork(branch)
        first = max(oldest_kept, 0 if fork is None else fork.version + 1)
        versions = {version for version in commits.files.versions(branch) if version >= first}
        missing = next((v for v in range(first, max(versions, default=first)) if v not in versions), first)
        if missing > first:  # else nothing is left below
            told = f"version {missing} was durable and is lost: what was above it is in {names.QUARANTINE}/"
            self.lost.append(Fault(names.commit_path(branch, missing), told, part="missing"))
            self._drop_from(branch, missing, versions, f"version {missing} below it is missing")

    # --- packs

    def _repair_packs(self, commits: Commits) -> None:
        faults: dict[str, list[Fault]] = {}
        for fault in Verifier(commits).run().faults:
            faults.setdefault(fault.path, []).append(fault)
        for stored in _by_age(commits):
            header = stored.header
            parent = _read(commits, header.fork or header.branch, header.version - 1) if header.version else None
            files = [(pack.name, pack.end, pack.end) for pack in header.packs]
            for name, end, length in [*files, (header.name, frames_end(stored), stored.footer.file_length)]:
                if name.path in faults:
                    self._repair_pack(commits, stored, name, end, faults[name.path])
                    self._repair_runs(commits, stored, parent, name, length, faults[name.path])
                    self._repair_carried(commits, stored, faults[name.path])

    def _repair_pack(self, commits: Commits, stored: Stored, name: PackName, end: int, faults: list[Fault]) -> None:
        """Repair head, padding and the beginnings of frames."""
        identity, window = commits.identity.id, Window(self.storage.read_range, name.path)
        parts: list[Correction] = []
        damaged = {fault.part for fault in faults}
        if name in stored.header.compaction_outputs:
            if damaged & {"head", "frame"}:
                length = next(run.length for run in stored.header.runs if run.pack == name)
                parts.append((0, packfile.encode_compaction_output(name.id, identity, length)))
        elif "head" in damaged:
            number = packfile.number_of(stored.header.id, name.id)
            parts.append((0, packfile.encode_head(name.id, identity, number)))
        paddings = {fault.offset for fault in faults if fault.part == "padding"}

        def is_better(path: str) -> bool:
            left = check_frames(self.storage.read_range, name, identity, end, path=path).faults
            if stored.path == name.path:
                left += check_sections(self.storage.read_range, stored, path)
            return len(left) < len(faults) or not left

        with suppress(TxStoreError, OSError, ValueError):
            if "frame" in damaged:
                parts += _frame_starts(window, end)
            for start, stop in _paddings(window, stored, end) if paddings else ():
                if start in paddings:
                    parts.append((start, bytes(stop - start)))
            if parts:
                size = self.storage.read_tail(name.path, 0)[1]
                self._files.rewrite(name.path, parts, size, is_better, "heads, padding or frame headers restored")

    def _repair_runs(
        self, commits: Commits, stored: Stored, parent: Stored | None, file: PackName, length: int, faults: list[Fault]
    ) -> None:
        """Build the damaged runs of one file that came with a commit: its own, or a compaction output."""
        damaged = {fault.offset for fault in faults if fault.part == "run"}
        # For a version, the fault says that another commit is missing there: this one is not replaced.
        is_missing = file != stored.header.name and any(fault.part == "missing" for fault in faults)
        own = stored.header.runs[0] if stored.header.runs else None
        for run in names_of(stored.header.runs, stored.header.name):
            if run.pack != file or not (is_missing or run.offset in damaged):
                continue
            is_own = own is not None and own.pack is None and run == own.inside(file)

            def is_whole(path: str, run: RunName = run) -> bool:
                open_run(self.storage.read_range, run, path)
                return True

            with suppress(TxStoreError, OSError, ValueError):  # its sources are damaged, too
                section = _own_run(commits, stored, parent) if is_own else _merged_run(commits, stored, parent, run)
                if section is None or not _is_like(section, run):
                    continue
                if is_missing:
                    content = packfile.encode_compaction_output(file.id, commits.identity.id, len(section)) + section
                    self.storage.make_directory(names.data_pack_directory(file.id), durable=True)
                    self._files.write_small(file.path, content.ljust(length, b"\0"), "compaction output made anew")
                else:
                    action = f"{'own' if is_own else 'merged'} run rebuilt in its place"
                    self._files.rewrite(file.path, [(run.offset, section)], length, is_whole, action)

    def _repair_carried(self, commits: Commits, stored: Stored, faults: list[Fault]) -> None:
        for section in stored.header.sections:
            if any(fault.part == "carried" and fault.offset == section.offset for fault in faults):
                content = _carried_headers(commits, stored, section.length)
                if content is not None:
                    size, parts = stored.footer.file_length, [(section.offset, content)]
                    with suppress(TxStoreError, OSError, ValueError):
                        self._files.rewrite(stored.path, parts, size, lambda _: True, "carried headers restored")

    def _drop_torn_commits(self) -> None:
        """Move away the newest commits, if none of them was synced and the oldest has a run that can't be rebuilt."""
        commits = open_commits(self.storage)
        torn = {fault.path for fault in Verifier(commits).run().faults if fault.part == "run"}
        for branch in _living(commits):
            versions = sorted(commits.files.versions(branch))
            for version in versions:
                if names.commit_path(branch, version) in torn and _read(commits, branch, version) is not None:
                    above = [_read(commits, branch, other) for other in versions if other >= version]
                    if not any(stored is not None and stored.header.synced for stored in above):
                        self._drop_from(branch, version, versions, "it was not synced, and its run is lost")
                    break

    # --- small files

    def _repair_small_files(self) -> None:
        commits = open_commits(self.storage)
        faults = Verifier(commits).run().faults
        heads: dict[str, Stored] = {}
        for branch in _living(commits):
            with suppress(TxStoreError, OSError):
                if (found := commits.head(branch)) is not None:
                    heads[branch] = found
        for fault in faults:
            if fault.part == "orphan":
                self._files.move_away(fault.path, "moved away: it is not part of the repository")
            elif fault.part == "operation":
                self._files.move_away(fault.path, "moved away: nothing else says what it recorded")
            elif fault.part == "tag":
                with suppress(OSError):
                    tag = _tag(commits, self.storage.read(fault.path), list(heads.values()))
                    if tag is not None:
                        self._files.write_small(fault.path, tag, "restored: no other commit's tag is like it")
        for branch, head in heads.items():
            path = names.head_cache_path(branch)
            if any(fault.path == path and fault.part == "head cache" for fault in faults):
                commits.store.make_durable(head, branch)
                content = (
                    commits.store.head_caches.of(head, durable=True).encode() if head.header.branch == branch else b""
                )
                self._files.write_small(path, content, "written anew")


def _living(commits: Commits) -> list[str]:
    """Return the ids of the branches whose records can be read."""
    found = [MAIN]
    for file in commits.branches.files():
        with suppress(CorruptionError):
            record = commits.branches.read(file)
            if record is not None and record.id not in found:
                found.append(record.id)
    return found


def _by_age(commits: Commits) -> list[Stored]:
    """Return the readable commits, oldest first: newer files are rebuilt from older ones."""
    places = [(branch, v) for branch in commits.files.branch_directories() for v in commits.files.versions(branch)]
    found = [stored for place in places if (stored := _read(commits, *place)) is not None]
    return sorted(found, key=lambda stored: (stored.header.seq, stored.header.time))


def _read(commits: Commits, branch: str, version: int) -> Stored | None:
    """Return a commit, None if it is damaged. A read error or a newer format stops the repair."""
    try:
        return commits.files.read(branch, version)
    except CorruptionError:
        return None


def _mended(content: bytes, decode: Callable[[bytes], T], *, is_proven: bool = True) -> T | None:
    """Return what the bytes say, as they are or, if something proves it, with one bit turned back; else None."""
    number = int.from_bytes(content)
    turned = (1 << bit for bit in range(8 * len(content) if is_proven and len(content) <= _SEARCHED else 0))
    for mask in chain([0], turned):
        with suppress(MalformedError):
            return decode((number ^ mask).to_bytes(len(content)))
    return None


# --- runs


def _own_run(commits: Commits, stored: Stored, parent: Stored | None) -> bytes | None:
    """Build the run of a commit from its frames.

    None if they are damaged, do not form a write chain (I7), or are not as many keys and bytes as the commit says.
    """
    header = stored.header
    staged = StagedKeys(0)
    merged: dict[str, Link] = {}  # by the commit itself
    erased: set[tuple[int, int]] = set()  # participants and sequences of frames with erased values
    storage_packs = open_packs(commits.storage)
    packs = [pack for pack in header.packs if pack.name not in header.compaction_outputs]
    parts = [(0, header.name, frames_end(stored))]
    parts += [(packfile.number_of(header.id, pack.name.id), pack.name, pack.end) for pack in packs]
    for number, name, end in parts:
        window = Window(commits.storage.read_range, name.path)
        first = packfile.first_frame(bytes(window.at(0, packfile.HEAD_SIZE))) if packfile.nth_of(number) else 0
        for _, frame in walk_frames(window, end):
            if frame is None:
                return None
            kind, participant, sequence = frame.original_kind, packfile.participant_of(number), first + frame.sequence
            key = (decode_key if kind in packfile.FRAMES_WITH_KEY else decode_prefix)(frame.key)
            if key is None:
                return None
            # Refs to a value that was replaced have the kind that they had, and 0 as their checksum.
            if frame.is_erased and not is_replaced(storage_packs, name, frame.offset):
                erased.add((participant, sequence))
            offset = packfile.join_offset(packfile.nth_of(number), frame.offset)
            link = Link(participant, sequence, frame.seen, kind, offset, frame.length, frame.checksum, frame.region)
            if kind == packfile.FRAME_PREFIX:
                staged.hide(key, participant, sequence, frame.seen)
            elif kind == packfile.FRAME_MERGED:
                merged[key] = link
            elif kind in packfile.FRAMES_OF_KEYS:
                staged.add(key, link, later=True)  # settled at the end
    broken = staged.settle({}, lambda one, other: (one.length, one.checksum) == (other.length, other.checksum))
    if not merged.keys() >= set(broken):
        return None
    numbers = {packfile.number_of(header.id, pack.name.id): number for number, pack in enumerate(packs, 1)}
    base = unpinned(commits, parent, storage_packs)
    for keeps_equal in (False, True):  # what else the committer read decided whether it left out equal values
        prefixes = [prefix for prefix in staged.prefixes if _was_below(base, prefix)]
        entries = list(_entries(staged, merged, erased, base, numbers, keeps_equal=keeps_equal))
        values = [entry for entry in entries if entry[1] != packfile.REF_TOMBSTONE]
        counted = len(values), len(entries) - len(values), len(prefixes), sum(entry[3] for entry in values)
        if counted == header.statistics.as_tuple()[:4]:
            return bytes(runs.build(entries, [prefix.encode() for prefix in prefixes], [pack.name for pack in packs]))
    return None


def _entries(
    staged: StagedKeys,
    merged: dict[str, Link],
    erased: set[tuple[int, int]],
    base: Snapshot,
    numbers: dict[int, int],
    *,
    keeps_equal: bool,
) -> Iterator[tuple[bytes, int, int, int, int, int]]:
    # Merged values may have been staged in packs that the commit does not need.
    rest = ((key, link) for key, link in staged.items() if key not in merged)
    for key, link in heapq.merge(sorted(merged.items()), rest, key=itemgetter(0)):
        is_merged = link.kind == packfile.FRAME_MERGED
        is_erased = (link.participant, link.sequence) in erased
        kind = packfile.REF_ERASED if is_erased else packfile.REF_OF_FRAME.get(link.kind, packfile.REF_PACK)
        if link.kind == packfile.FRAME_TOMBSTONE or (is_merged and not link.length):
            if _was_there(base, key) and (is_merged or not staged.is_below_deleted(key)):
                yield key.encode(), packfile.REF_TOMBSTONE, 0, 0, 0, 0
        elif is_merged or keeps_equal or not _is_unchanged(staged, base, key, link, kind):
            nth, offset = packfile.split_offset(link.offset)
            number = numbers.get(packfile.pack_number(link.participant, nth), 0)
            yield key.encode(), kind, offset, link.length, link.checksum, number


def _was_there(base: Snapshot, key: str) -> bool:
    found = base.runs.lookup(key.encode())
    return found is not None and found.kind in (*packfile.FRAME_OF_REF, packfile.REF_ERASED)


def _was_below(base: Snapshot, prefix: str) -> bool:
    if base.has_keys_below(prefix):
        return True
    stop = after_prefix(prefix)
    changes = base.runs.changes(prefix.encode(), None if stop is None else stop.encode(), 0)
    return any(change.kind == packfile.REF_ERASED for change in changes)


def _is_unchanged(staged: StagedKeys, base: Snapshot, key: str, link: Link, kind: int) -> bool:
    """Tell whether the commit took a value to equal the base's, as `View.is_unchanged` does."""
    is_metadata = is_document(key) or is_consolidated(key)
    if staged.is_below_deleted(key) or not (is_metadata or link.seen == packfile.SEEN_NOTHING):
        return False
    found = base.runs.lookup(key.encode())
    return found is not None and (found.kind, found.length, found.checksum) == (kind, link.length, link.checksum)


def _merged_run(commits: Commits, stored: Stored, parent: Stored | None, run: RunName) -> bytes | None:
    """Repeat a commit's merge of runs: those of its parent that it no longer lists.

    It may have merged some, and listed a merged run of others: each run is newer than all after it in the list.
    """
    if parent is None:
        return None
    listed = names_of(stored.header.runs, stored.header.name)
    older = max((name.max_seq for name in listed[listed.index(run) + 1 :]), default=-1)
    before = names_of(parent.header.runs, parent.header.name)
    merged = [i for i, name in enumerate(before) if name not in listed and older < name.max_seq <= run.max_seq]
    if not merged or merged != list(range(merged[0], merged[-1] + 1)):
        return None
    inputs = [before[i] for i in merged]
    return bytes(open_runs(inputs, open_packs(commits.storage)).merge(len(inputs)))


def _is_like(section: bytes, name: RunName) -> bool:
    run = runs.name_run(section, name.seq, name.offset)
    return (run.length, run.entries) == (name.length, name.entries) and run.max_seq <= name.max_seq


def _carried_headers(commits: Commits, stored: Stored, length: int) -> bytes | None:
    """Return the headers of earlier commits that a commit carries, as many as fill `length`; None if unreadable."""
    entries: list[tuple[bytes, bytes]] = []
    with suppress(TxStoreError, OSError):
        for before in islice(commits.chain.ancestors(stored), 1, carried.GROUP):
            entries.append((before.header.encode(), before.footer.encode()))
            content = b""
            for header, footer in reversed(entries):
                content = carried.carry(header, footer, content)
            if len(content) >= length:
                return content if len(content) == length else None
    return None


# --- frames


def _frame_starts(window: Window, end: int) -> Iterator[Correction]:
    """Yield the beginnings of damaged frames that are whole with one bit turned back, up to the next whole frame."""
    walk, sequence, searched = list(walk_frames(window, end)), 0, 0
    for (place, whole), (stop, _) in pairwise([*walk, (end, None)]):
        start = place
        while whole is None and start < stop and searched < _FRAMES_SEARCHED:

            def decode(
                content: bytes, start: int = start, stop: int = stop, sequence: int = sequence
            ) -> tuple[bytes, int]:
                frame = packfile.decode_frame(memoryview(content), start, begin=start, size=stop)
                if frame.sequence != sequence or frame.end > stop:
                    raise MalformedError("another frame")
                return content[: frame.head_end - start], frame.end

            searched += 1
            found = _mended(bytes(window.at(start, min(_SEARCHED_OF_FRAME, stop - start))), decode)
            if found is None:
                break
            yield (start, found[0])
            start, sequence = found[1], sequence + 1
        sequence = sequence if whole is None else whole.sequence + 1


def _paddings(window: Window, stored: Stored, end: int) -> Iterator[tuple[int, int]]:
    """Yield where the paddings of a pack begin and end, whose frames end at `end`."""
    for _, frame in walk_frames(window, end):
        if frame is not None:
            yield frame.head_end, frame.offset
            yield frame.offset + frame.length, frame.end
    if window.path == stored.path:
        yield from gaps_between_sections(stored)


# --- the ends of commit files


def _whole_end(
    commits: Commits, path: str, version: int, parent: Stored | None, child: Stored | None
) -> tuple[Correction, int] | None:
    """Return header and footer of a commit file if one of them is whole, and the file's resulting length."""
    size = commits.storage.read_tail(path, 0)[1]
    begin = max(size - _TAIL, 0)
    tail = commits.storage.read_range(path, begin, size - begin)
    for start, end, checksum in _ends(tail, begin):
        is_proven = child is not None or checksum is not None

        def check(encoded: bytes, checksum: int | None = checksum, is_proven: bool = is_proven) -> tuple[bytes, Header]:
            if checksum is not None and crc32c(encoded) != checksum:
                raise MalformedError("not what the footer says")
            if child is not None and commitfile.header_hash(encoded) != child.header.parent_hash:
                raise MalformedError("not what the next commit says")
            header = Header.decode(encoded)
            if (header.repository_id, header.version) != (commits.identity.id, version):
                raise MalformedError("another's header")
            above = (NO_ID, NO_ID) if parent is None else (parent.header.id, parent.hash)
            is_plausible = header.encode() == encoded and (header.parent_id, header.parent_hash) == above
            if not (is_plausible or is_proven):
                raise MalformedError("not on top of its parent")
            return encoded, header

        found = _mended(tail[start:end], check, is_proven=is_proven)
        if found is not None:
            encoded, header = found
            length = begin + end + commitfile.FOOTER_SIZE
            footer = Footer(len(encoded), begin + start, length, header.id, crc32c(encoded))
            return (begin + start, encoded + footer.encode()), length
    return None


def _ends(tail: bytes, begin: int) -> Iterator[tuple[int, int, int | None]]:
    """Yield where in `tail` a header may begin and end, and its checksum if a footer has it."""
    last, is_told = len(tail) - commitfile.FOOTER_SIZE, False
    for place in (last, *_places(tail, b"TXSTFOOT")):
        footer = _mended(tail[max(place, 0) : place + commitfile.FOOTER_SIZE], Footer.decode)
        if footer is not None and footer.header_offset >= begin:
            start, is_told = footer.header_offset - begin, is_told or place == last
            yield start, start + footer.header_length, footer.header_checksum
    # What lies where the footer says is not taken for the header although the footer's checksum says that it isn't.
    for place in () if is_told else _places(tail, b"TXHD"):
        if (begin + place) % 8 == 0 and place < last:
            yield place, last, None


def _places(tail: bytes, magic: bytes) -> list[int]:
    """Return where some bytes are, the last first."""
    return [match.start() for match in re.finditer(magic, tail)][: -_PLACES - 1 : -1]


# --- small files


def _tag(commits: Commits, content: bytes, heads: Sequence[Stored]) -> bytes | None:
    """Return the tag that `content` nearly equals, if exactly one commit of the history fits."""
    found = set()
    for head in heads:
        with suppress(TxStoreError, OSError):  # the rest of the history can't be read
            for stored in commits.chain.ancestors(head):
                tag = Tag(stored.header.branch, stored.header.version, stored.header.id).encode()
                if len(tag) == len(content) and sum(map(ne, tag, content)) <= 4:
                    found.add(tag)
    return found.pop() if len(found) == 1 else None


def _branch(commits: Commits, file: str, branch_id: str) -> Branch | None:
    """Return the record of a branch as told by its first commit, if that exists. Capital letters are lost."""
    with suppress(TxStoreError, OSError):
        versions = commits.files.versions(branch_id)
        first = commits.files.read(branch_id, min(versions)) if versions else None
        if first is not None and first.header.fork is not None:
            header, fork = first.header, first.header.fork
            lineage = ((fork, header.version - 1), *commits.branches.lineage(fork))
            return Branch(file, branch_id, header.parent_id, header.parent_hash, lineage)
    return None

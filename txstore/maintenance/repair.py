"""Repairs what `verify` reports, if other parts of the repository hold the same facts. It never deletes anything.

Each step leaves the repository no worse than before, so an interrupted repair is simply run again: it writes a new file
beside the old one and syncs it, gives the old one a second name below `quarantine/`, and renames the new one into
place. Order: first the files that make a directory a repository; then the ends of commit files, without which nothing
else can be checked; then the order of commits; then packs and runs, the oldest first, because newer ones are rebuilt
from older ones.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable
from functools import partial

from txstore.commit import MAIN, Stored
from txstore.errors import CorruptionError, TxStoreError, UnsupportedFormatError
from txstore.format import commitfile, encoding, names, packfile, records
from txstore.format.commitfile import Footer, Header, RunName, Section
from txstore.format.packfile import PackName
from txstore.format.records import RepositoryFormat
from txstore.history import operations
from txstore.history.commits import Commits
from txstore.history.opening import open_commits
from txstore.maintenance import rebuild
from txstore.maintenance.check_file import Window, check_frames, check_sections, frames_end, open_run, walk_frames
from txstore.maintenance.rebuild import Correction, Rebuilt
from txstore.maintenance.replaced_versions import make_one_line, were_taken_twice
from txstore.maintenance.replacing import Replacer
from txstore.maintenance.report import Fault, Repair, Report
from txstore.maintenance.verify import Verifier, verify
from txstore.progress import Progress
from txstore.segments import runs as index
from txstore.segments.pack_writer import PackWriter
from txstore.segments.runs import names_of
from txstore.storage.interface import Storage

#: A `format.json` above this length, in bytes, is not searched for the one bit that has turned.
_FORMAT_MOST = 1024


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
        self._lost: dict[tuple[bytes, int], tuple[RunName, Rebuilt]] = {}  # runs that do not fit in their place

    def run(self) -> list[Repair]:
        self._repair_identity()
        commits = open_commits(self.storage)
        try:
            commits.identity.exists()
        except UnsupportedFormatError:
            raise
        except TxStoreError:
            return self._files.repairs  # no file says which repository this is
        self._repair_branches()
        commits = open_commits(self.storage)
        for branch in _living(commits):
            self._repair_ends(commits, branch)
            self.lost += make_one_line(self.storage, self._files, branch)
            self._give_up_lost(branch)
            self._give_up_above_gap(branch)
        commits = open_commits(self.storage)
        self._repair_packs(commits)
        self._drop_torn_commits()
        self._commit_lost_runs()
        self._repair_small_files()
        return self._files.repairs

    # --- the files that make a directory a repository

    def _repair_identity(self) -> None:
        content: bytes | None = None
        with contextlib.suppress(FileNotFoundError):
            content = self.storage.read(names.FORMAT)
        try:
            RepositoryFormat.decode(content or b"")
        except encoding.MalformedError as error:
            restored = _format_with_one_bit_turned(content or b"")
            found = set(self._repository_ids())
            if restored is None and isinstance(error, encoding.NewerFormatError):
                supported = f"version {encoding.VERSION}"
                raise UnsupportedFormatError(names.FORMAT, found=error.reason, supported=supported) from error
            if restored is None and len(found) == 1:
                restored = RepositoryFormat(found.pop()).encode()
            if restored is not None:
                self._files.write_small(names.FORMAT, restored, "restored")
        content = None
        with contextlib.suppress(FileNotFoundError):
            content = self.storage.read(names.GUARD)
        if content != records.encode_guard():
            self._files.write_small(names.GUARD, records.encode_guard(), "written anew")

    def _repository_ids(self) -> Iterable[bytes]:
        commits = open_commits(self.storage)
        for branch in commits.files.branch_directories():
            for version in commits.files.versions(branch):
                with contextlib.suppress(encoding.MalformedError, OSError):
                    head = self.storage.read_range(names.commit_path(branch, version), 0, packfile.HEAD_SIZE)
                    yield packfile.decode_head(head)[1]

    # --- branches

    def _repair_branches(self) -> None:
        """Restore records of branches in which one bit has turned, or which a branch's first commit repeats."""
        commits = open_commits(self.storage)
        damaged: dict[str, bytes] = {}
        recorded: set[str] = set()
        for file in commits.branches.files():
            try:
                found = commits.branches.read(file)
                recorded.update(() if found is None else [found.id])
            except CorruptionError:
                damaged[file] = self.storage.read(names.branch_path(file))
        for file, content in damaged.items():
            restored = rebuild.branch_with_one_bit_turned(file, content)
            if restored is not None:
                self._files.write_small(names.branch_path(file), restored.encode(), "restored")
                recorded.add(restored.id)
                continue
            others = [branch for branch in commits.files.branch_directories() if branch not in {MAIN, *recorded}]
            likely = [branch for branch in others if bytes.fromhex(branch) in content] or others
            if len(likely) == 1 and (made := rebuild.branch(commits, file, likely[0])) is not None:
                self._files.write_small(names.branch_path(file), made.encode(), "made anew from the branch's commits")
                recorded.add(made.id)

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
            stored = self._repair_end(commits, branch, version, parent, child, readable.values())
            if stored is not None:
                readable[version] = stored
            elif _is_torn_from(version, versions, readable):
                self._drop_from(branch, version, versions, "its end is damaged, or another commit's")
                return

    def _repair_end(
        self,
        commits: Commits,
        branch: str,
        version: int,
        parent: Stored | None,
        child: Stored | None,
        others: Collection[Stored],
    ) -> Stored | None:
        path = names.commit_path(branch, version)
        try:
            size = self.storage.read_tail(path, 0)[1]
            found, action = rebuild.whole_end(commits, path, version, size, parent, child), "header or footer restored"
            if found is None and child is None and not rebuild.is_of_another(commits, branch, version, size, others):
                found, action = (
                    rebuild.new_end(commits, branch, version, size, parent),
                    "header made anew: its frames and its run are whole; time, author, message are lost, and "
                    "constraints that it declared",
                )
            if found is None:
                return None
            self._files.rewrite(path, [found[0]], found[1], lambda _: True, action)
        except (CorruptionError, ValueError):
            return None
        return _read(commits, branch, version)

    def _drop_from(self, branch: str, first: int, versions: Iterable[int], reason: str) -> None:
        """Move the newest commits away, newest first, so that the rest is a valid history at any time."""
        for version in sorted(versions, reverse=True):
            if version >= first:
                self._files.move_away(
                    names.commit_path(branch, version), f"{reason}: the head is version {first - 1} again"
                )
        self._give_up_lost(branch)

    def _give_up_lost(self, branch: str) -> None:
        """Let a branch go on from its newest whole commit, if the one is gone that its head cache names.

        The head cache goes to the quarantine: the search without it finds that commit, and it says what was lost.
        """
        commits = open_commits(self.storage)
        try:
            head_cache = commits.head_caches.read(branch)
            there = commits.files.read(branch, head_cache.version)
        except (OSError, TxStoreError, encoding.MalformedError):
            return  # there is no head cache, or the commit is there and damaged
        lost = head_cache.commit_id
        if (there is not None and there.header.id == lost) or commits.oldest_kept.is_above(branch, head_cache.version):
            return
        if commits.head_caches.is_durable(head_cache):
            told = f"commit {lost.hex()} was durable here and is lost: a rest of it may be in {names.QUARANTINE}/"
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
        verifier = Verifier(commits)
        faults: dict[str, list[Fault]] = {}
        for fault in verifier.run().faults:
            faults.setdefault(fault.path, []).append(fault)
        for stored in _by_age(commits):
            header = stored.header
            parent = _read(commits, header.fork or header.branch, header.version - 1) if header.version else None
            for pack in stored.header.packs:
                if pack.name.path in faults:
                    self._repair_pack(commits, stored, pack.name, pack.end, faults[pack.name.path])
                    self._repair_runs(commits, stored, parent, pack.name, pack.end, faults[pack.name.path])
            if stored.path in faults:
                name, length = stored.header.name, stored.footer.file_length
                self._repair_pack(commits, stored, name, frames_end(stored), faults[stored.path])
                self._repair_runs(commits, stored, parent, name, length, faults[stored.path])
                self._repair_carried(commits, stored, faults[stored.path])

    def _repair_pack(self, commits: Commits, stored: Stored, name: PackName, end: int, faults: list[Fault]) -> None:
        """Repair head, padding and the beginnings of frames."""
        parts = []
        paddings: dict[int, int] = {}
        is_of_it = name not in stored.header.compaction_outputs  # a compaction output belongs to no transaction
        number = packfile.number_of(stored.header.id, name.id) if is_of_it else 0
        for fault in faults:
            if fault.part == "head":
                parts.append(Correction(0, packfile.encode_head(name.id, commits.identity.id, number)))
            elif fault.part == "padding" and fault.offset is not None:
                paddings = paddings or _paddings(self.storage, stored, name.path, end)
                parts.append(Correction(fault.offset, bytes(paddings.get(fault.offset, 0))))
        try:
            if any(fault.part == "frame" for fault in faults):
                parts += rebuild.frame_starts(commits, stored, name, end)
            if not parts:
                return
            size = self.storage.read_tail(name.path, 0)[1]

            def is_better(path: str) -> bool:
                left = check_frames(self.storage, name, commits.identity.id, end, path=path).faults
                if stored.path == name.path:
                    left += check_sections(self.storage, stored, path)
                return len(left) < len(faults) or not left

            self._files.rewrite(name.path, parts, size, is_better, "heads, padding or frame headers restored")
        except (TxStoreError, OSError, ValueError):
            return

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
            try:
                build = rebuild.own_run if is_own else partial(rebuild.merged_run, run=run)
                rebuilt = build(commits, stored, parent)
            except (TxStoreError, OSError, ValueError):
                continue  # its sources are damaged, too
            if rebuilt is None:
                continue
            fits = rebuilt.is_sure and _is_like(rebuilt.section, run)
            if fits and is_missing:
                self._put_compaction_output(file, length, rebuilt.section)
            elif not fits or not self._put_run(run, length, rebuilt.section, "own" if is_own else "merged"):
                self._lost[(file.id, run.offset)] = run, rebuilt

    def _repair_carried(self, commits: Commits, stored: Stored, faults: list[Fault]) -> None:
        for section in stored.header.sections:
            if not any(fault.part == "carried" and fault.offset == section.offset for fault in faults):
                continue
            content = rebuild.carried_headers(commits, stored, section.length)
            if content is not None:
                size, parts = stored.footer.file_length, [Correction(section.offset, content)]
                with contextlib.suppress(TxStoreError, OSError, ValueError):
                    self._files.rewrite(stored.path, parts, size, lambda _: True, "carried headers restored")

    def _put_compaction_output(self, name: PackName, length: int, section: bytes) -> None:
        begin = packfile.encode_compaction_output(name.id, open_commits(self.storage).identity.id, len(section))
        self.storage.make_directory(names.data_pack_directory(name.id), durable=True)
        self._files.write_small(name.path, (begin + section).ljust(length, b"\0"), "compaction output made anew")

    def _put_run(self, run: RunName, size: int, section: bytes, kind: str) -> bool:
        def is_whole(path: str) -> bool:
            open_run(self.storage, run, path)
            return True

        action = f"{kind} run rebuilt in its place"
        try:
            self._files.rewrite(index.placed(run).path, [Correction(run.offset, section)], size, is_whole, action)
        except (TxStoreError, OSError, ValueError):
            return False
        return True

    def _commit_lost_runs(self) -> None:
        """Commit a list of runs that includes the rebuilt ones that do not fit in their place."""
        commits = open_commits(self.storage)
        for branch in _living(commits):
            with contextlib.suppress(CorruptionError):
                head = commits.head(branch)
                if head is not None and head.header.branch == branch:
                    self._commit_lost_runs_of(commits, head)

    def _commit_lost_runs_of(self, commits: Commits, head: Stored) -> None:
        listed = names_of(head.header.runs, head.header.name)
        lost = {
            name: self._lost[(name.pack.id, name.offset)][1]
            for name in listed
            if name.pack is not None and (name.pack.id, name.offset) in self._lost
        }
        if not lost:
            return
        try:
            merged = {name: rebuild.as_merged(rebuilt.section, name) for name, rebuilt in lost.items()}
        except ValueError:  # its name has no version
            return
        stored = _write_runs(commits, head, listed, merged)
        paths = ", ".join(sorted({name.pack.path for name in lost if name.pack is not None}))
        self._files.note(stored.path, f"a new commit, with the runs rebuilt that are damaged in {paths}")

    # --- commits without fsync that a power loss damaged

    def _drop_torn_commits(self) -> None:
        """Move away the newest commits, if none of them was synced and the oldest has a run that can't be rebuilt."""
        commits = open_commits(self.storage)
        faults = Verifier(commits).run().faults
        for branch in _living(commits):
            self._drop_torn_commits_of(commits, branch, faults)

    def _drop_torn_commits_of(self, commits: Commits, branch: str, faults: list[Fault]) -> None:
        versions = sorted(commits.files.versions(branch))
        for version in versions:
            path = names.commit_path(branch, version)
            runs = [f for f in faults if f.path == path and f.part == "run"]
            stored = _read(commits, branch, version)
            if stored is None or not runs or all((stored.header.id, f.offset) in self._lost for f in runs):
                continue
            above = [_read(commits, branch, other) for other in versions if other >= version]
            if all(other is None or not other.header.synced for other in above):
                self._drop_from(branch, version, versions, "it was not synced, and its run is lost")
            return

    # --- small files

    def _repair_small_files(self) -> None:
        commits = open_commits(self.storage)
        faults = Verifier(commits).run().faults
        heads: dict[str, Stored] = {}
        for branch in _living(commits):
            with contextlib.suppress(TxStoreError, OSError):
                if (found := commits.head(branch)) is not None:
                    heads[branch] = found
        for fault in faults:
            if fault.part == "orphan":
                self._files.move_away(fault.path, "moved away: it is not part of the repository")
            elif fault.part == "operation":
                self._files.move_away(fault.path, "moved away: nothing else says what it recorded")
            elif fault.part == "tag":
                with contextlib.suppress(OSError):
                    content = rebuild.tag(commits, self.storage.read(fault.path), list(heads.values()))
                    if content is not None:
                        self._files.write_small(fault.path, content, "restored: no other commit's tag is like it")
        for branch, head in heads.items():
            path = names.head_cache_path(branch)
            if any(fault.path == path and fault.part == "head cache" for fault in faults):
                commits.durability.make(head, branch)
                content = commits.head_caches.of(head, durable=True).encode() if head.header.branch == branch else b""
                self._files.write_small(path, content, "written anew")


def _format_with_one_bit_turned(content: bytes) -> bytes | None:
    if len(content) > _FORMAT_MOST:
        return None
    turned = bytearray(content)
    for bit in range(8 * len(turned)):
        turned[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(encoding.MalformedError):
            RepositoryFormat.decode(bytes(turned))
            return bytes(turned)
        turned[bit // 8] ^= 1 << bit % 8
    return None


def _living(commits: Commits) -> list[str]:
    """Return the ids of the branches whose records can be read."""
    found = [MAIN]
    for file in commits.branches.files():
        with contextlib.suppress(CorruptionError):
            record = commits.branches.read(file)
            if record is not None and record.id not in found:
                found.append(record.id)
    return found


def _by_age(commits: Commits) -> list[Stored]:
    """Return the readable commits, oldest first: newer files are rebuilt from older ones."""
    places = [
        (branch, version) for branch in commits.files.branch_directories() for version in commits.files.versions(branch)
    ]
    found = [stored for place in places if (stored := _read(commits, *place)) is not None]
    return sorted(found, key=lambda stored: (stored.header.seq, stored.header.time))


def _read(commits: Commits, branch: str, version: int) -> Stored | None:
    """Return a commit, None if it is damaged. A read error or a newer format stops the repair."""
    try:
        return commits.files.read(branch, version)
    except CorruptionError:
        return None


def _is_torn_from(first: int, versions: Iterable[int], readable: dict[int, Stored]) -> bool:
    """Tell whether a power loss may have left a damaged commit and those above it: no whole one was synced."""
    above = [readable.get(version) for version in versions if version > first]
    return all(stored is None or not stored.header.synced for stored in above)


def _is_like(section: bytes, name: RunName) -> bool:
    run = index.name_run(section, name.seq, name.offset)
    return (run.length, run.entries) == (name.length, name.entries) and run.max_seq <= name.max_seq


def _paddings(storage: Storage, stored: Stored, path: str, end: int) -> dict[int, int]:
    """Return the lengths of the paddings of a pack whose frames end at `end`, by offset."""
    found = {}
    for _, frame in walk_frames(Window(storage, path), end):
        if frame is not None:
            found[frame.offset + frame.length] = frame.end - frame.offset - frame.length
            found[frame.head_end] = found.get(frame.head_end) or frame.offset - frame.head_end
    if path == stored.path:
        position = end
        sections = sorted((section.offset, section.length) for section in stored.header.sections)
        for offset, length in [*sections, (stored.footer.header_offset, 0)]:
            if offset > position:
                found[position] = offset - position
            position = offset + length
    return found


def _write_runs(commits: Commits, head: Stored, listed: tuple[RunName, ...], sections: dict[RunName, bytes]) -> Stored:
    """Commit only a new list of runs: `sections` holds the replacements, by run. Raises `OSError`."""
    storage, commit_id = commits.storage, os.urandom(16)
    header, end = head.header, packfile.HEAD_SIZE
    writer = PackWriter(storage, names.staging_path(commit_id, 0), commit_id, header.repository_id)
    try:
        placed: dict[RunName | None, RunName] = {}
        parts: list[Section] = []
        for name, section in [(None, index.build((), ())), *sections.items()]:
            placed[name] = index.name_run(section, header.seq + 1 if name is None else 0, end)
            parts.append(Section(commitfile.SECTION_RUN, end, len(section)))
            writer.write_at(end, section + bytes(-len(section) % 8))
            end += len(section) + -len(section) % 8
        own = placed[None]._replace(max_seq=header.seq + 1)
        new = Header(
            header.repository_id, commit_id, header.id, head.hash, header.version + 1, header.seq + 1,
            time=max(time.time_ns() // 1000, header.time + 1), branch=header.branch, message="runs rebuilt by verify",
            sections=tuple(parts), runs=(own, *(placed.get(name, name) for name in listed)),
            oldest_kept=header.oldest_kept, required=header.required, declared=header.declared,
        )  # fmt: skip
        encoded = new.encode()
        footer = Footer(
            len(encoded), end, end + len(encoded) + commitfile.FOOTER_SIZE, commit_id, encoding.crc32c(encoded)
        )
        writer.write_at(end, encoded + footer.encode())
        writer.finish(footer.file_length)
        writer.sync()
        commits.durability.make(head)
        stored = Stored(new, footer, commitfile.header_hash(encoded))
        commits.versions.take(writer.path, stored)
        commits.head_caches.write(stored, durable=False)
        commits.durability.settle(stored)
    finally:
        writer.close()
    return stored

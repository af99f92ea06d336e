"""Copying a repository while others write it: `backup`. What the head was at the start is what the copy holds.

Order: packs, commits by slot, tags, the hint, and in a new copy `format.json` last: at any moment the copy is a whole
repository, or none yet. Each file is copied beside its place, checked, synced and renamed, so that what is there is
complete, and an interrupted backup is simply run again. No lock is taken; what is copied is pinned.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

from txstore.errors import BackupError, CorruptionError, RepositoryNotFoundError
from txstore.format import commitfile, names, packfile, records
from txstore.format.commitfile import RunName
from txstore.format.encoding import MalformedError
from txstore.format.packfile import PackName
from txstore.format.records import Tag
from txstore.history.commit import MAIN, Stored
from txstore.history.commits import Commits
from txstore.history.opening import open_commits, open_storage
from txstore.history.runs import names_of
from txstore.locks.pins import Pins
from txstore.maintenance.check_file import check_frames, check_sections, frames_end, open_run
from txstore.maintenance.reachable import data_packs
from txstore.maintenance.report import Fault
from txstore.storage.interface import StagedFile, Storage

_COPIED = 1 << 20
#: Files that are written before they are synced: together they cost little more than one.
_BATCH = 64
Check = Callable[[str], list[Fault]]  # of a file at another place


@dataclass(frozen=True, slots=True)
class Backup:
    """What a backup did. `slot` and `commit` are of the head that the copy has now; `bytes` were copied."""

    destination: str
    slot: int
    commit: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Copy:
    """One file to copy: so many bytes of it."""

    path: str
    length: int
    check: Check


def back_up(
    source: Storage,
    destination: str | os.PathLike[str],
    *,
    verify: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Backup:
    """Copy a repository, or what is new in it. See `Repository.backup`."""
    commits = open_commits(source)
    if not commits.identity.exists():
        raise RepositoryNotFoundError(source.url)
    try:
        target = open_storage(destination)
    except RepositoryNotFoundError as error:
        raise BackupError(
            os.fspath(destination), "it is inside of the repository above it: choose a place apart"
        ) from error
    _check_apart(source.url, target.url)
    return _BackUp(commits, target, verify, progress).run()


def _check_apart(source: str, target: str) -> None:
    one, other = os.path.realpath(source), os.path.realpath(target)
    if os.path.commonpath([one, other]) in (one, other):
        raise BackupError(target, f"it is in the repository {source}, or the other way round: choose a place apart")


class _BackUp:
    def __init__(
        self, commits: Commits, target: Storage, verify: bool, progress: Callable[[int, int], None] | None
    ) -> None:
        self.commits = commits
        self.source = commits.storage
        self.target = target
        self._verify = verify
        self._progress = progress
        self._id = commits.identity.id
        self._pins = Pins(self.source.open_pins)
        self._files = self._bytes = self._total = self._floor = 0
        self._tags: dict[str, bytes] = {}  # what those say that are copied, by their names
        self._seen: set[tuple[bytes, int]] = set()  # runs whose packs are known

    def run(self) -> Backup:
        while True:
            try:
                return self._run()
            except (FileNotFoundError, CorruptionError) as error:
                if self._are_tags_gone():
                    continue  # without them: below the floor only they had kept what is missing
                head = open_commits(self.source).head(MAIN)
                if isinstance(error, FileNotFoundError) and head is not None and head.header.floor > self._floor:
                    raise BackupError(self.target.url, "a vacuum has deleted files meanwhile: run it again") from error
                if isinstance(error, FileNotFoundError) and (missing := self._in_source(error)) is not None:
                    raise CorruptionError(missing, reason="the file is missing") from error
                raise

    def _in_source(self, error: FileNotFoundError) -> str | None:
        """Return which file of the repository is missing, if it is one of that."""
        begin = f"{self.source.url}/"
        path = error.filename if isinstance(error.filename, str) else str(error)
        return path.removeprefix(begin) if path.startswith(begin) else None

    def _run(self) -> Backup:
        head = self._pinned_head()
        self._tags = {} if head is None else self._read_tags(head)
        self._seen = set()
        copies = open_commits(self.target)
        is_new = self._check_target(copies)
        last = None if is_new else copies.head(MAIN)
        self._check_history(head, last)
        for directory in ("", *names.DIRECTORIES):
            self._make_directory(directory)
        self._write_once(names.GUARD, records.encode_guard())  # always the same, whatever lies in the source
        if head is not None:
            self._copy_history(head, last)
        for name, content in self._tags.items():
            self._write_tag(names.tag_path(name), content)
        if is_new:
            self._write_once(names.FORMAT)
        copies = open_commits(self.target)
        made = copies.head(MAIN)
        if (None if made is None else made.header.id) != (None if head is None else head.header.id):
            raise BackupError(self.target.url, "somebody has committed into it meanwhile: choose another place")
        if made is not None and self._files:
            hint = names.hint_path(MAIN)
            with contextlib.suppress(FileExistsError):
                self.target.write_once(hint, b"", durable=False, at_most=self._at_most(hint))
            copies.write_hint(made, durable=True)
        return Backup(
            self.target.url, -1 if made is None else made.header.slot, "" if made is None else made.header.id.hex(),
            self._files, self._bytes,
        )  # fmt: skip

    def _pinned_head(self) -> Stored | None:
        """Return the head; a vacuum leaves alone what it needs, down to the floor, for as long as this object lives."""
        while True:
            head = self.commits.head(MAIN)
            if head is None:
                return None
            self._floor = max(head.header.floor, self.commits.floor(MAIN))
            self._pins.hold(self, head.header.seq - (head.header.slot - self._floor))
            if self.commits.floor(MAIN) <= self._floor:
                return head

    # --- whether it may be done

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
        for path in (*copies.paths_in(names.commits_directory(MAIN)), *data_packs(copies)):
            try:
                found_id = packfile.decode_head(self.target.read_range(path, 0, packfile.HEAD_SIZE))[1]
            except MalformedError:
                found_id = b""
            if found_id != self._id:
                raise BackupError(self.target.url, "it holds the beginnings of another repository: choose a new one")
        return True

    def _check_history(self, head: Stored | None, last: Stored | None) -> None:
        if last is None:
            return
        there = self.commits.read(MAIN, last.header.slot)
        if head is None or there is None or there.hash != last.hash:
            what = f"its commit {last.commit.id[:12]}, in slot {last.header.slot}, is not in the repository's history"
            why = "somebody has committed into it, or a vacuum has passed it: choose another directory"
            raise BackupError(self.target.url, f"{what}: {why}")

    # --- what there is to copy

    def _copy_history(self, head: Stored, last: Stored | None) -> None:
        stored = list(self._new_commits(head, last))
        ours = {one.path for one in stored}
        packs: dict[str, int | None] = {}
        for one in stored:
            for pack, end in self._packs_of(one):
                path = pack.path
                if path in ours or path in packs or self.target.exists(path):
                    continue
                if end is not None or self.source.exists(path):  # else a vacuum has found that nobody reads it
                    packs[path] = end
        older = [self._of_pack(*found) for found in sorted(packs.items())]
        newer = [self._of_commit(one) for one in stored if not self.target.exists(one.path)]
        self._total = sum(copy.length for copy in (*older, *newer))
        for copies in (older, newer):
            for first in range(0, len(copies), _BATCH):
                self._copy_batch(copies[first : first + _BATCH])
        for path in self.commits.paths_in(names.floor_directory(MAIN)):
            with contextlib.suppress(FileNotFoundError, MalformedError):
                if Tag.decode(self.source.read(path)).slot <= head.header.slot:
                    self._write_once(path)

    def _new_commits(self, head: Stored, last: Stored | None) -> Iterator[Stored]:
        """Yield the commits to copy, the oldest first: from the floor on, and tagged ones below it."""
        first = head.header.floor if last is None else max(head.header.floor, last.header.slot)
        tagged = {Tag.decode(content).slot for content in self._tags.values()}
        # One by one: how many slots there are is what a header says, until the first is found missing.
        for slot in chain(sorted(slot for slot in tagged if slot < first), range(first, head.header.slot + 1)):
            stored = self.commits.read(MAIN, slot)
            if stored is None:
                raise CorruptionError(names.commit_path(MAIN, slot), reason="the file is missing, or went meanwhile")
            yield stored

    def _packs_of(self, stored: Stored) -> Iterator[tuple[PackName, int | None]]:
        """Yield the packs that a commit refers to, and where those end that came with it."""
        for data in stored.header.packs:
            yield data.name, data.end
        for name in names_of(stored.header.runs, stored.header.name):
            if name.pack is None or (name.pack.id, name.offset) in self._seen:
                continue
            self._seen.add((name.pack.id, name.offset))
            for pack in (name.pack, *self._table(name, name.pack.path)):
                if pack.branch is None or pack.slot < self._floor:
                    yield pack, None

    def _table(self, name: RunName, path: str) -> list[PackName]:
        try:
            return open_run(self.source, name, path)[1]
        except ValueError as error:
            raise CorruptionError(path, offset=name.offset, reason=f"damaged run: {error}") from error

    def _read_tags(self, head: Stored) -> dict[str, bytes]:
        """Return what the tags on commits up to the head say: read once, since others delete and make them."""
        tags = {name: tag for name, tag in sorted(self.commits.tags().items()) if tag.slot <= head.header.slot}
        return {name: tag.encode() for name, tag in tags.items()}

    def _are_tags_gone(self) -> bool:
        """Tell whether a tag that was to be copied has been deleted since."""
        there = self.commits.tags()
        return any(name not in there or there[name].encode() != content for name, content in self._tags.items())

    def _of_pack(self, path: str, end: int | None) -> _Copy:
        length = self.source.read_tail(path, 0)[1] if end is None else end

        def check(temporary: str) -> list[Fault]:
            pack_id = packfile.decode_head(self.target.read_range(temporary, 0, packfile.HEAD_SIZE))[0]
            name = PackName(pack_id) if path.startswith(names.PACKS) else PackName(pack_id, MAIN, _slot_of(path))
            if end is None:
                return []  # where its frames end was known to a commit that is gone
            return check_frames(self.target, name, self._id, end, path=temporary).faults

        return _Copy(path, length, check)

    def _of_commit(self, stored: Stored) -> _Copy:
        def check(temporary: str) -> list[Fault]:
            name = stored.header.name
            faults = check_frames(self.target, name, self._id, frames_end(stored), path=temporary).faults
            faults += check_sections(self.target, stored, temporary)
            footer = stored.footer
            encoded = self.target.read_range(temporary, footer.header_offset, footer.header_length)
            if commitfile.header_hash(encoded) != stored.hash:
                faults.append(Fault(stored.path, "the header is another than was read", footer.header_offset))
            for run in stored.header.runs:
                if run.pack is None:
                    open_run(self.target, run, temporary)
            return faults

        return _Copy(stored.path, stored.footer.file_length, check)

    # --- copying

    def _copy_batch(self, copies: list[_Copy]) -> None:
        written: list[tuple[_Copy, str, StagedFile]] = []
        try:
            for copy in copies:
                temporary = f"{names.STAGING}/{os.urandom(8).hex()}{names.NEW}"
                file = self.target.create(temporary, at_most=self._at_most(copy.path))
                written.append((copy, temporary, file))
                self._copy(copy, file)
            for _, _, file in written:
                file.sync()
            for copy, temporary, _ in written:
                self._check(copy, temporary)
                directory = os.path.dirname(copy.path)
                self._make_directory(directory)
                with contextlib.suppress(FileExistsError):  # by another backup to the same place
                    self.target.rename_noreplace(temporary, copy.path)
                self._files += 1
        finally:
            for _, temporary, file in written:
                file.close()
                self.target.delete(temporary)
        for directory in dict.fromkeys(os.path.dirname(copy.path) for copy in copies):
            self.target.sync_directory(directory)

    def _copy(self, copy: _Copy, file: StagedFile) -> None:
        for offset in range(0, copy.length, _COPIED):
            part = self.source.read_range(copy.path, offset, min(_COPIED, copy.length - offset))
            if len(part) != min(_COPIED, copy.length - offset):
                raise CorruptionError(copy.path, offset=offset + len(part), reason="the file is too short")
            file.write(offset, [part])
            self._bytes += len(part)
            if self._progress is not None:
                self._progress(self._bytes, max(self._total, self._bytes))

    def _make_directory(self, path: str) -> None:
        self.target.make_directory(path, durable=True, at_most=self._at_most(path))

    def _at_most(self, path: str) -> int:
        """Return the permission bits that a copy may have: for others no more than what is copied has."""
        try:
            return self.source.permissions(path) | 0o700
        except FileNotFoundError:  # a tag that was deleted meanwhile; an empty directory that another copy had left out
            return 0o700

    def _check(self, copy: _Copy, temporary: str) -> None:
        """Checked or not, it is a pack of this repository: somebody may have given its name to another's file."""
        try:
            head = packfile.decode_head(self.target.read_range(temporary, 0, packfile.HEAD_SIZE))
            if head[1] != self._id:
                raise CorruptionError(copy.path, offset=0, reason="this is no pack of this repository")
            faults = copy.check(temporary) if self._verify else []
        except ValueError as error:
            raise CorruptionError(copy.path, reason=str(error)) from error
        for fault in faults:
            raise CorruptionError(copy.path, offset=fault.offset, key=fault.key, reason=fault.reason)

    def _write_tag(self, path: str, content: bytes) -> None:
        """Write a tag into the copy. One that was given anew is replaced."""
        if self.target.exists(path) and self.target.read(path) != content:
            temporary = f"{names.STAGING}/{os.urandom(8).hex()}{names.NEW}"
            self.target.write_once(temporary, content, durable=True, at_most=self._at_most(path))
            self.target.replace(temporary, path)
            self._files += 1
        else:
            self._write_once(path, content)

    def _write_once(self, path: str, content: bytes | None = None) -> None:
        """Copy a small file, or write what was read of it, unless it is there."""
        content = self.source.read(path) if content is None else content
        if self.target.exists(path):
            if self.target.read(path) != content:
                raise BackupError(self.target.url, f"its {path} is another than the repository's: choose a new one")
            return
        self._make_directory(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):
            self.target.write_once(path, content, durable=True, at_most=self._at_most(path))
        self._files += 1
        self._bytes += len(content)


def _slot_of(path: str) -> int:
    return names.parse_slot(path.rpartition("/")[2]) or 0

"""Copies files of a repository into another place, durably, and checks each copy."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from txstore.commit import Stored
from txstore.errors import BackupError, CorruptionError
from txstore.format import commitfile, names, packfile
from txstore.format.packfile import PackName
from txstore.maintenance.check_file import Files, check_frames, check_sections, frames_end, open_run
from txstore.maintenance.report import Fault
from txstore.progress import Progress
from txstore.storage.interface import StagedFile, Storage, write_over
from txstore.storage.request_threads import in_parallel

#: Bytes that are copied at a time.
_COPIED = 1 << 20
#: Checks a file at another place.
Check = Callable[[Files, str], list[Fault]]


@dataclass(frozen=True, slots=True)
class FileCopy:
    """One file to copy, up to a length."""

    path: str
    length: int
    check: Check


@dataclass(frozen=True, slots=True)
class _Content:
    """One file, as it was read."""

    content: bytes

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        return self.content[offset : offset + length]


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

        def check(files: Files, temporary: str) -> list[Fault]:
            pack_id = packfile.decode_head(files.read_range(temporary, 0, packfile.HEAD_SIZE))[0]
            name = (
                PackName(pack_id)
                if path.startswith(names.PACKS)
                else PackName(pack_id, *(names.parse_commit_path(path) or (None, 0)))
            )
            if end is None:
                return []  # only an expired commit knew where its frames end
            return check_frames(files, name, self._id, end, path=temporary).faults

        return FileCopy(path, length, check)

    def commit(self, stored: Stored) -> FileCopy:
        def check(files: Files, temporary: str) -> list[Fault]:
            name = stored.header.name
            faults = check_frames(files, name, self._id, frames_end(stored), path=temporary).faults
            faults += check_sections(files, stored, temporary)
            footer = stored.footer
            encoded = files.read_range(temporary, footer.header_offset, footer.header_length)
            if commitfile.header_hash(encoded) != stored.hash:
                faults.append(Fault(stored.path, "the header differs from the one read before", footer.header_offset))
            for run in stored.header.runs:
                if run.pack is None:
                    open_run(files, run, temporary)
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
            files: Files = self._target
            if copy.length <= _COPIED:  # one open suffices
                files = _Content(self._target.read_range(temporary, 0, copy.length))
            head = packfile.decode_head(files.read_range(temporary, 0, packfile.HEAD_SIZE))
            if head[1] != self._id:
                raise CorruptionError(copy.path, offset=0, reason="this is not a pack of this repository")
            faults = copy.check(files, temporary) if self._verify else []
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

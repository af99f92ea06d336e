"""Replaces files, or moves them out of the way; the quarantine keeps the old content."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from txstore.format import names
from txstore.maintenance.check_file import Window
from txstore.maintenance.report import Repair
from txstore.steps import step
from txstore.storage.interface import StagedFile, Storage, written_aside

_COPIED = 1 << 20


#: The right bytes for an offset of a file.
Correction = tuple[int, bytes]


class Replacer:
    """Replaces and moves files, and notes each change in `repairs`. Raises `OSError`."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.repairs: list[Repair] = []

    def note(self, path: str, action: str) -> None:
        self.repairs.append(Repair(path, action))

    def rewrite(
        self, path: str, parts: list[Correction], length: int, is_better: Callable[[str], bool], action: str
    ) -> None:
        """Replace a file by a copy with changed parts.

        Raises `ValueError` if the copy is no better, or a part lies beyond it.
        """
        if any(offset + len(content) > length for offset, content in parts):
            raise ValueError(f"a part to repair lies beyond the end of {path}")

        def write(temporary: str, file: StagedFile) -> None:
            window = Window(self.storage.read_range, path)
            for offset in range(0, length, _COPIED):
                file.write(offset, [bytes(window.at(offset, min(_COPIED, length - offset)))])
            for offset, content in parts:
                file.write(offset, [content])
            file.truncate(length)
            file.sync()
            if not is_better(temporary):
                raise ValueError(f"{path} would be no better")

        self._put(path, write, action)

    @step("replace: write")
    def write_small(self, path: str, content: bytes, action: str) -> None:
        def write(_: str, file: StagedFile) -> None:
            file.write(0, [content])
            file.sync()

        self._put(path, write, action)

    @step("replace: put")
    def _put(self, path: str, write: Callable[[str, StagedFile], object], action: str) -> None:
        """Write a new file, and replace another by it."""
        self.storage.make_directory(names.STAGING, durable=False)
        temporary = f"{names.STAGING}/{os.urandom(8).hex()}{names.NEW}"  # the next writer deletes what a dead one left
        file = self.storage.create(temporary, at_most=self._at_most(path))
        try:
            write(temporary, file)
            self._keep(path)
            self.storage.replace(temporary, path)
        except BaseException:
            self.storage.delete(temporary)
            raise
        finally:
            file.close()
        self.storage.sync_directory(os.path.dirname(path))
        self.note(path, action)

    def _at_most(self, path: str) -> int:
        """Return the permission bits that a copy may have: this name may be a link to another user's file."""
        try:
            return self.storage.permissions(path) | 0o700
        except FileNotFoundError:
            return 0o777

    def _keep(self, path: str) -> None:
        """Give a file a second name in the quarantine."""
        with contextlib.suppress(FileNotFoundError):
            self._quarantine(path, self.storage.link)

    def keep(self, path: str, content: bytes) -> None:
        """Put old content of a file into the quarantine, as if the file had been moved there."""
        self.storage.make_directory(names.STAGING, durable=False)
        with written_aside(self.storage, content, durable=True, at_most=0o777) as temporary:
            self._quarantine(path, lambda _, target: self._rename(temporary, target))

    def move_away(self, path: str, action: str) -> bool:
        """Move a file to the quarantine; return False if that fails."""
        try:
            self._quarantine(path, self._rename)
        except OSError:
            return False
        self.note(path, action)
        return True

    def _rename(self, source: str, target: str) -> None:
        try:
            self.storage.rename_noreplace(source, target)
        except PermissionError:  # a directory, on a system that renames without replacing by hard links
            if self.storage.exists(target):
                raise FileExistsError(target) from None
            self.storage.replace(source, target)

    @step("replace: quarantine")
    def _quarantine(self, path: str, put: Callable[[str, str], object]) -> None:
        target, number = f"{names.QUARANTINE}/{path}", 0
        self.storage.make_directory(os.path.dirname(target), durable=True)
        while True:
            try:
                put(path, target if not number else f"{target}.{number}")
                break
            except FileExistsError:
                number += 1
        self.storage.sync_directory(os.path.dirname(target))
        self.storage.sync_directory(os.path.dirname(path))

"""Permissions in a repository of several users: a user who may write the root may write everything below it.

New files and directories take the permission bits of the root, whatever the umask of the creating process. A root of
mode 2775 gives directories of mode 2775 and files of mode 664; the bit 2000 gives them the group of the root. If only
the owner may write the root, nobody else may write what is below it, and the umask decides the rest.

A user who may open a file may lock it, and make all writers wait. So users who may not write the root have no
permission for files that are locked: lock files, and all files below `.staging/`. The exception is `locks/pins`:
readers mark there what they read, by locks that no process waits for.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time

from txstore.format import names
from txstore.storage.tree import Tree

#: Nothing is created with these bits, whatever the umask: `Sharing` gives them, where the root has them.
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
#: How many times, and how long in seconds, a process waits until another user's new directory has its bits. That is
#: quick, but on a busy machine any process may stop for seconds.
_LOOKS, _PAUSE = 1000, 0.01


def of_writers(mode: int) -> int:
    """Return the permission bits of the users who may write a directory."""
    return mode & (0o700 | (0o070 if mode & stat.S_IWGRP else 0) | (0o007 if mode & stat.S_IWOTH else 0))


class Sharing:
    """The permission bits of what one process creates below one root directory."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._known: int | None = None

    def _bits(self) -> int:
        """Return the root's permission bits; 0 if it is not shared, which costs nothing but one look at the root."""
        if self._known is None:
            try:
                mode = stat.S_IMODE(self._tree.status("").st_mode)
            except FileNotFoundError:
                return 0  # it is yet to be created
            # Not the sticky bit: others move orphans aside, and delete what dead processes had staged.
            self._known = mode & (stat.S_ISGID | 0o777) if mode & OTHERS_MAY_WRITE else 0
        return self._known

    @property
    def writers(self) -> int:
        """The permission bits of the users who may write the root."""
        return of_writers(self._bits()) or 0o700

    def share_file(self, descriptor: int, at_most: int) -> None:
        """Give a file that was created just now its bits, but no more than these."""
        if bits := self._bits():
            with contextlib.suppress(OSError):  # a file system that has no permissions: who is refused, is told so
                os.fchmod(descriptor, bits & 0o666 & at_most)

    def make_directory(self, path: str, at_most: int) -> None:
        """Create a directory below the root, with no more than these bits; FileExistsError if it exists."""
        if path == names.STAGING:
            at_most &= self.writers
        bits = self._bits() & (stat.S_ISGID | at_most)
        if not bits:
            self._tree.make_directory(path, at_most & ~OTHERS_MAY_WRITE)
        elif path == names.STAGING:
            self._make_staging(bits)
        elif self._is_there(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self._tree.path(path))
        else:
            with contextlib.suppress(FileExistsError):
                self.make_directory(names.STAGING, 0o777)
            self._move_into_place(path, bits)

    def _is_there(self, path: str) -> bool:
        try:
            self._tree.status(path)
        except FileNotFoundError:
            return False
        return True

    def _move_into_place(self, path: str, bits: int) -> None:
        """Create a directory that other users never meet without its bits."""
        temporary = f"{names.STAGING}/{os.urandom(8).hex()}{names.NEW}"
        self._tree.make_directory(temporary)
        try:
            self._share(temporary, bits)
            self._tree.replace(temporary, path)  # this replaces an empty directory, which is as good
        except OSError as error:
            with contextlib.suppress(FileNotFoundError):  # taken for one that a dead process left
                self._tree.delete_directory(temporary)
            if error.errno == errno.ENOTEMPTY or self._is_there(path):  # or was there, and is gone again
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self._tree.path(path)) from None
            raise

    def _make_staging(self, bits: int) -> None:
        """Create the directory where the others are prepared. Another user who does so gets the time to share it."""
        try:
            self._tree.make_directory(names.STAGING)
        except FileExistsError:
            for _ in range(_LOOKS):
                status = self._tree.status(names.STAGING)
                missing = bits & ~status.st_mode
                if not missing:
                    break
                if status.st_uid == os.geteuid():  # a process of ours died before it had shared it, or is about to
                    self._share(names.STAGING, bits)
                    break
                if not missing & OTHERS_MAY_WRITE:  # the others are never given, for example by some file systems
                    break
                time.sleep(_PAUSE)
            raise
        self._share(names.STAGING, bits)

    def _share(self, directory: str, bits: int) -> None:
        with self._tree.open_directory(directory) as descriptor, contextlib.suppress(OSError):
            os.fchmod(descriptor, bits)

"""Repositories of several users: who may write the root directory may write all that is created below it.

What is created takes the permission bits of the root, whatever the umask of the process that creates it. A root of mode
2775 gives directories of mode 2775 and files of mode 664, which belong to its group because of the 2000. Under a root
that only its owner may write, the umask decides, as everywhere else.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time

from txstore import names

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
#: How often, and how long in seconds, another user's new directory is waited for to get its bits: that takes no time,
#: but on a busy machine any process may stand still for seconds.
_LOOKS, _PAUSE = 1000, 0.01


class Sharing:
    """The permission bits of what one process creates below one root directory."""

    def __init__(self, root: str) -> None:
        self._root = root + os.sep
        self._staging = self._root + names.STAGING
        self._known: int | None = None

    def _bits(self) -> int:
        """Return the root's permission bits; 0 if it is not shared, which costs nothing but one look at the root."""
        if self._known is None:
            try:
                mode = stat.S_IMODE(os.stat(self._root).st_mode)
            except FileNotFoundError:
                return 0  # it is yet to be created
            is_shared = os.name == "posix" and mode & _OTHERS_MAY_WRITE
            # Not the sticky bit: others move orphans aside, and delete what dead processes had staged.
            self._known = mode & (stat.S_ISGID | 0o777) if is_shared else 0
        return self._known

    def share_file(self, descriptor: int) -> None:
        """Give a file that was created just now its bits."""
        if bits := self._bits():
            with contextlib.suppress(OSError):  # a file system that has no permissions: who is refused, is told so
                os.fchmod(descriptor, bits & 0o666)

    def make_directory(self, path: str) -> None:
        """Create a directory; FileExistsError if it exists."""
        bits = self._bits() if path.startswith(self._root) else 0
        if not bits:
            os.mkdir(path)
        elif path == self._staging:
            self._make_staging(bits)
        elif os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        else:
            with contextlib.suppress(FileExistsError):
                self._make_staging(bits)
            self._move_into_place(path, bits)

    def _move_into_place(self, path: str, bits: int) -> None:
        """Create a directory that other users never meet without its bits."""
        temporary = f"{self._staging}/{os.urandom(8).hex()}{names.NEW}"
        os.mkdir(temporary)
        try:
            _share(temporary, bits)
            os.rename(temporary, path)  # this replaces an empty directory, which is as good
        except OSError:
            with contextlib.suppress(FileNotFoundError):  # taken for one that a dead process left
                os.rmdir(temporary)
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
            raise

    def _make_staging(self, bits: int) -> None:
        """Create the directory where the others are prepared. Another user who does so gets the time to share it."""
        try:
            os.mkdir(self._staging)
        except FileExistsError:
            for _ in range(_LOOKS):
                status = os.stat(self._staging)
                missing = bits & ~status.st_mode
                if not missing:
                    break
                if status.st_uid == os.geteuid():  # a process of ours died before it had shared it, or is about to
                    _share(self._staging, bits)
                    break
                if not missing & _OTHERS_MAY_WRITE:  # the others are never given, for example by some file systems
                    break
                time.sleep(_PAUSE)
            raise
        _share(self._staging, bits)


def _share(directory: str, bits: int) -> None:
    with contextlib.suppress(OSError):
        os.chmod(directory, bits)

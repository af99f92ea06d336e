"""Opens, creates, moves and deletes files below one directory, without following a symbolic link.

A user who may write a repository may put anything in it: a link to another user's home in place of `.staging`, or a
FIFO in place of a commit. So every operation below the root goes through this module. It uses the descriptor of a
directory that was opened without following links, and opens only directories and regular files
(`_native/open_below.h`). Any other type of file raises `WrongFileTypeError` at once. The path *to* the root is the
user's choice, and may have links.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from txstore._native import local
from txstore.errors import WrongFileTypeError
from txstore.format import names

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
#: To look at a file, or pass through a directory, also without permission to read it.
_LOOK = getattr(os, "O_PATH", os.O_RDONLY)
_LOOK_AT_IT = _LOOK | os.O_NOFOLLOW
_PASS_THROUGH = _LOOK | os.O_DIRECTORY

#: What the system says where something else is in the way than should be there.
_IN_THE_WAY = frozenset({
    errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ENXIO, errno.ENODEV, errno.EPERM, errno.EOPNOTSUPP,
})  # fmt: skip
_KINDS = {
    stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFREG: "a file",
}  # fmt: skip


def real_path(path: str) -> str:
    """Return a path without the links that the user's own has.

    They are followed now, and not again: a handle is of one directory. What would lead to another directory then, as
    links of other processes below `/proc` do, is left as it is.
    """
    try:
        local.open_below(path, "", _PASS_THROUGH).close()
        return path  # without any
    except OSError:
        real = os.path.realpath(path)
    try:
        return real if os.path.samefile(real, path) else path
    except FileNotFoundError:
        return real  # it is yet to be created
    except OSError:
        return path


class Tree:
    """What lies below a root, which is a path without links (`real_path`). Paths are relative; "" is the root."""

    def __init__(self, root: str) -> None:
        self.root = root

    def path(self, path: str) -> str:
        """Return the whole path: for messages, and for what is not of the tree."""
        return f"{self.root}/{path}" if path else self.root

    # --- opening

    def open(self, path: str, flags: int = os.O_RDONLY, mode: int = 0o666) -> local.Descriptor:
        """Open a regular file."""
        try:
            return local.open_below(self.root, path, flags, mode)
        except OSError as error:
            self._explain(error, path)
            raise

    def open_directory(self, path: str) -> local.Descriptor:
        try:
            return local.open_below(self.root, path, _DIRECTORY)
        except OSError as error:
            self._explain(error, path, wanted=stat.S_IFDIR)
            raise

    def map(self, path: str) -> Any:
        try:
            return local.map_file(self.root, path)
        except OSError as error:
            self._explain(error, path)
            raise

    def names(self, path: str) -> list[str]:
        """Return the names in a directory."""
        try:
            return local.list_directory(self.root, path)
        except OSError as error:
            self._explain(error, path, wanted=stat.S_IFDIR)
            raise

    def look(self, path: str) -> local.Descriptor:
        """Open whatever is there: a link itself, not what it leads to."""
        try:
            return local.open_below(self.root, path, _LOOK_AT_IT)
        except OSError as error:
            self._explain(error, path, wanted=None)
            raise

    def status(self, path: str) -> os.stat_result:
        with self.look(path) as number:
            return os.fstat(number)

    # --- names

    def make_directory(self, path: str, mode: int = 0o777) -> None:
        with self._above(path) as (directory, name):
            os.mkdir(name, mode, dir_fd=directory)

    def delete(self, path: str) -> None:
        """Delete a file, a link or whatever else is no directory."""
        with self._above(path) as (directory, name):
            os.unlink(name, dir_fd=directory)

    def delete_directory(self, path: str) -> None:
        with self._above(path, wanted=stat.S_IFDIR) as (directory, name):
            os.rmdir(name, dir_fd=directory)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name; FileExistsError if the target exists."""
        with self._above(source) as (old_directory, old), self._above(target) as (directory, name):
            os.link(old, name, src_dir_fd=old_directory, dst_dir_fd=directory, follow_symlinks=False)

    def replace(self, source: str, target: str) -> None:
        """Move a file or a directory, in the place of the target if there is one."""
        with self._above(source, wanted=None) as (old_directory, old), self._above(target) as (directory, name):
            os.replace(old, name, src_dir_fd=old_directory, dst_dir_fd=directory)

    def rename_noreplace(self, source: str, target: str) -> None:
        try:
            local.rename_noreplace(self.root, source, target)
        except OSError as error:
            self._explain(error, source, wanted=None)
            self._explain(error, target, wanted=None)
            raise

    @contextmanager
    def _above(self, path: str, *, wanted: int | None = stat.S_IFREG) -> Iterator[tuple[int, str]]:
        """Open the directory that a path ends in: yield it and the name there."""
        above, _, name = path.rpartition("/")
        try:
            with local.open_below(self.root, above, _PASS_THROUGH) as directory:
                yield directory, name
        except WrongFileTypeError:
            raise
        except OSError as error:
            self._explain(error, path, wanted=wanted)
            # What the system names is below the descriptor.
            if error.filename == name:
                error.filename = self.path(path)
            elif error.filename2 == name:
                error.filename2 = self.path(path)
            raise

    # --- errors

    def _explain(self, error: OSError, path: str, *, wanted: int | None = stat.S_IFREG) -> None:
        """Raise `WrongFileTypeError` if something else is there than `wanted` (None: anything), or on the way."""
        if error.errno not in _IN_THE_WAY or not path:
            return
        segments = path.split("/")
        for end in range(1, len(segments) + 1):
            found = "/".join(segments[:end])
            expected = stat.S_IFDIR if end < len(segments) else wanted
            try:
                kind = stat.S_IFMT(os.lstat(self.path(found)).st_mode)
            except OSError:
                break
            if expected is not None and expected != kind:
                described = _KINDS.get(kind, "nothing known")
                raise WrongFileTypeError(found, found=described, wanted=_KINDS[expected]) from error
        if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR) or not os.path.isdir(self.root):
            return
        if os.path.realpath(self.root) == self.root:
            found, expected = "something that comes and goes, such as a link", wanted or stat.S_IFREG
            raise WrongFileTypeError(path, found=found, wanted=_KINDS[expected]) from error
        error.strerror = (
            "the way to this repository leads through a symbolic link that was not there when it was opened: open it "
            "again"
        )


# --- permissions in a repository of several users: a user who may write the root may write everything below it
#
# New files and directories take the permission bits of the root, whatever the umask of the creating process. A root of
# mode 2775 gives directories of mode 2775 and files of mode 664; the bit 2000 gives them the group of the root. If only
# the owner may write the root, nobody else may write what is below it, and the umask decides the rest.
#
# A user who may open a file may lock it, and make all writers wait. So users who may not write the root have no
# permission for files that are locked: lock files, and all files below `.staging/`. The exception is `locks/pins`:
# readers mark there what they read, by locks that no process waits for.


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

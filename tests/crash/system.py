"""The system calls that `txstore.storage.interface` makes, over a simulated disk: its own code runs on top of them.

So that every call is one that the product really makes, and a sync that is missing there is missing here. What is
replaced are the names `os`, `fcntl` and `local` in the modules `local` and `tree`, and some of them in
`pins`, `kernel_locks` and `commit_lock`. Locks of open file descriptions are granted as the kernel does;
chunk-key locks and watches there are none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import random
import re
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.crash.disk import ROOT, Change, Disk, Enter, Leave, Move, Resize, Step, Sync, SyncNames, Write
from txstore import engine as engine_module
from txstore import processes
from txstore._native import local as native_local
from txstore.commit import Stored
from txstore.errors import LocksUnavailableError
from txstore.format.commitfile import Footer, Header
from txstore.locks import kernel_locks, pins
from txstore.steps import STEPS
from txstore.storage import commit_lock, tree
from txstore.storage import local as storage
from txstore.transactions import own_part
from txstore.transactions.lifecycle import Lifecycle

if sys.platform == "linux":
    import fcntl

PREFIX = "/simulated/"
URL = PREFIX + "data.tx"
_FIRST_DESCRIPTOR = 1 << 40  # no descriptor of the real system
_OUTER = 5  # steps that a site names
_FLOCK = "hhqqi4x"
_TO_THE_END = 1 << 62  # of a file


class ProgramDied(BaseException):
    """The simulated program was killed in the middle of a call: nothing that it does from now on has any effect."""


class Process:
    """What `txstore` keeps for each process, for one simulated one. Entered, it is the one that runs."""

    def __init__(self) -> None:
        self.joined: dict[bytes, Any] = {}
        self.participants = type(own_part._parts)()
        self.patches: list[Any] = []
        self.outer: Process | None = None

    def __enter__(self) -> Process:
        self.patches = [
            mock.patch.object(engine_module, "_joined", self.joined),
            mock.patch.object(own_part, "_parts", self.participants),
            mock.patch.object(own_part, "at_exit", _ignore),
        ]
        for patch in self.patches:
            patch.start()
        self.outer, SYSTEM.process = SYSTEM.process, self
        return self

    def __exit__(self, *_: object) -> None:
        for patch in self.patches:
            patch.stop()
        SYSTEM.process = self.outer

    def die(self) -> None:
        """Let go of everything at once, as when killed."""
        SYSTEM.close_all(self)


def _ignore(_: object) -> None:
    pass


class _Open:
    """An open file description."""

    def __init__(self, inode: int, path: str, process: Process | None) -> None:
        self.inode = inode
        self.path = path
        self.process = process


class _Descriptor:
    """What `local.open_below` returns. Of a process that has died, the system closes it."""

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number

    def close(self) -> None:
        number = self.detach()
        if number >= 0:
            SYSTEM.close(number)

    def detach(self) -> int:
        number, self._number = self._number, -1
        return number

    def __enter__(self) -> int:
        return self._number

    def __exit__(self, *_: object) -> None:
        self.close()


class System:
    """The one simulated machine. `turn_on` gives it a disk; what ran on it before is gone then."""

    def __init__(self) -> None:
        self.headers: dict[bytes, Header] = {}  # of all commits that were met, by their hashes
        self.descriptor = _FIRST_DESCRIPTOR  # of the last file opened: none is used twice
        self.turn_on(Disk(), boot=1)

    def turn_on(self, disk: Disk, *, boot: int, seed: int = 0) -> None:
        _let_go_of_pins(lambda descriptor: descriptor is not None and descriptor >= _FIRST_DESCRIPTOR)
        self.disk = disk
        self.boot = boot
        self.changed_at = 0  # when any file was changed last: nobody asks for more than that it stays the same
        self.process: Process | None = None
        self.before: Callable[[str, str, str], object] | None = None  # each call: its name, path and site
        self.after: Callable[[str, str, str], object] | None = None
        self.wait: Callable[[], None] | None = None  # for a lock that another holds
        self.omitted: tuple[str, ...] = ()  # how the sites begin whose calls do nothing
        self.wants_sites = False
        self.writes_at_most = sys.maxsize  # bytes, in one call
        self.has_noreplace = True
        self.calls, self.most_calls = 0, 20_000
        self.chance = random.Random(seed)
        self._open: dict[int, _Open] = {}
        self._locks: dict[int, list[tuple[_Open, int, int, int]]] = {}

    def close_all(self, process: Process | None) -> None:
        _let_go_of_pins(lambda descriptor: descriptor in self._open and self._open[descriptor].process is process)
        for descriptor, found in list(self._open.items()):
            if found.process is process:
                self.close(descriptor)

    # --- calls

    def begin(self, call: str, path: str) -> str:
        """Let happen what a test wants to happen instead of a call, or before it; return where it comes from."""
        self.calls += 1
        if self.calls > self.most_calls:
            # Finalizers that run now must make no further call.
            _let_go_of_pins(lambda descriptor: descriptor is None or descriptor in self._open)
            raise AssertionError(f"{call} {path} is call {self.calls}: there is no end to it")
        site = self.site(call, path) if self.wants_sites else ""
        if self.before is not None:
            self.before(call, path, site)
        return site

    def finish(self, call: str, path: str, site: str, *changes: Change) -> None:
        if changes and not site.startswith(self.omitted):
            self.disk.record(Step(call, path, site, changes))
        if self.after is not None:
            self.after(call, path, site)

    def do(self, call: str, path: str, *changes: Change) -> None:
        self.finish(call, path, self.begin(call, path), *changes)

    def site(self, call: str, path: str) -> str:
        """Return what is called, for which kind of file, and within which steps of the product: the innermost first."""
        steps: list[str] = []
        frame: Any = sys._getframe(1)
        while frame is not None and len(steps) < _OUTER:
            name = STEPS.get(frame.f_code)
            if name is not None and name not in steps:
                steps.append(name)
            frame = frame.f_back
        return " < ".join([f"{call} {_class_of(path)}", *steps])

    def _split(self, path: str) -> tuple[int, str]:
        """Return the directory that a path lies in, and its name there."""
        path = posixpath.normpath(path)
        if not path.startswith(PREFIX):
            if path == PREFIX.rstrip("/"):
                return ROOT, "."
            raise FileNotFoundError(errno.ENOENT, f"outside of the simulated disk: {path}", path)
        directory = ROOT
        *parents, name = path[len(PREFIX) :].split("/")
        for parent in parents:
            inode = self.disk.directories[directory].get(parent)
            if inode is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if inode not in self.disk.directories:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            directory = inode
        return directory, name

    def find(self, path: str) -> int:
        directory, name = self._split(path)
        inode = directory if name == "." else self.disk.directories[directory].get(name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return inode

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        site = self.begin("open", path)
        directory, name = self._split(path)
        inode = directory if name == "." else self.disk.directories[directory].get(name)
        if inode is not None and flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if inode is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            inode = self.disk.new_inode()
            self.finish("create", path, site, Enter(directory, name, inode))
        self.check_kind(inode, flags, path)
        self.descriptor += 1
        self._open[self.descriptor] = _Open(inode, path, self.process)
        return self.descriptor

    def check_kind(self, inode: int, flags: int, path: str) -> None:
        is_directory = inode in self.disk.directories
        if flags & os.O_DIRECTORY and not is_directory:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        if is_directory and not flags & (os.O_DIRECTORY | os.O_PATH):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)

    def open_below(self, root: str, path: str, flags: int, mode: int = 0o666) -> _Descriptor:
        return _Descriptor(self._open_below(root, path, flags, mode))

    def _open_below(self, root: str, path: str, flags: int, mode: int) -> int:
        """What is passed through on the way to a name there is no call of its own."""
        whole = posixpath.join(root, path).rstrip("/")
        if not flags & os.O_PATH:
            return self.open(whole, flags, mode)
        if flags & os.O_NOFOLLOW:
            self.begin("stat", whole)
        inode = self.find(whole)
        self.check_kind(inode, flags, whole)
        self.descriptor += 1
        self._open[self.descriptor] = _Open(inode, whole, self.process)
        return self.descriptor

    def at(self, name: str, directory: int | None) -> str:
        return name if directory is None else posixpath.join(self.opened(directory).path, name)

    def content(self, inode: int, path: str) -> bytes | bytearray:
        if inode in self.disk.directories:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return self.disk.files[inode]

    def opened(self, descriptor: int) -> _Open:
        try:
            return self._open[descriptor]
        except KeyError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None

    def close(self, descriptor: int) -> None:
        found = self._open.pop(descriptor, None)
        if found is not None:  # else it was open when the power was lost
            locks = self._locks.get(found.inode, [])
            locks[:] = [lock for lock in locks if lock[0] is not found]

    def lseek(self, descriptor: int, offset: int, whence: int) -> int:
        return len(self.disk.files[self.opened(descriptor).inode]) + offset  # only ever from the end

    def pread(self, descriptor: int, length: int, offset: int) -> bytes:
        found = self.opened(descriptor)
        return bytes(self.disk.files[found.inode][offset : offset + length])

    def pwrite(self, descriptor: int, content: Any, offset: int) -> int:
        return self.pwritev(descriptor, [content], offset)

    def pwritev(self, descriptor: int, parts: Sequence[Any], offset: int) -> int:
        found = self.opened(descriptor)
        content = b"".join(parts)[: self.writes_at_most]
        self.do("write", found.path, Write(found.inode, offset, content))
        return len(content)

    def ftruncate(self, descriptor: int, length: int) -> None:
        found = self.opened(descriptor)
        self.do("truncate", found.path, Resize(found.inode, length))

    def fsync(self, descriptor: int) -> None:
        found = self.opened(descriptor)
        is_directory = found.inode in self.disk.directories
        change = SyncNames(found.inode) if is_directory else Sync(found.inode)
        self.do("sync names" if is_directory else "sync", found.path, change)

    fdatasync = fsync

    def fstat(self, descriptor: int) -> Any:
        return self.status(self.opened(descriptor).inode)

    def lstat(self, path: str) -> Any:
        return self.status(self.find(path))

    def status(self, inode: int) -> Any:
        mode = 0o40755 if inode in self.disk.directories else 0o100644
        return SimpleNamespace(
            st_mode=mode,
            st_ino=inode,
            st_ctime_ns=self.changed_at,
            st_nlink=self.disk.names_of(inode),
            st_size=len(self.disk.files.get(inode, b"")),
        )

    def list_directory(self, root: str, path: str) -> list[str]:
        path = posixpath.join(root, path).rstrip("/")
        self.begin("list", path)
        inode = self.find(path)
        if inode not in self.disk.directories:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return list(self.disk.directories[inode])

    def mkdir(self, path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        path = self.at(path, dir_fd)
        site = self.begin("mkdir", path)
        directory, name = self.free(path)
        self.finish("mkdir", path, site, Enter(directory, name, self.disk.new_inode()))

    def rmdir(self, path: str, *, dir_fd: int | None = None) -> None:
        path = self.at(path, dir_fd)
        if self.disk.directories[self.find(path)]:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self.do("rmdir", path, Leave(*self._split(path)))

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        path = self.at(path, dir_fd)
        site = self.begin("unlink", path)
        if self.find(path) in self.disk.directories:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self.finish("unlink", path, site, Leave(*self._split(path)))

    def link(
        self,
        source: str,
        target: str,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        source, target = self.at(source, src_dir_fd), self.at(target, dst_dir_fd)
        site = self.begin("link", target)
        inode = self.find(source)
        directory, name = self.free(target)
        self.finish("link", target, site, Enter(directory, name, inode))

    def free(self, path: str) -> tuple[int, str]:
        directory, name = self._split(path)
        if name == "." or name in self.disk.directories[directory]:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return directory, name

    def rename_noreplace(self, root: str, source: str, target: str) -> None:
        source, target = posixpath.join(root, source), posixpath.join(root, target)
        if not self.has_noreplace:
            self.link(source, target)
            with contextlib.suppress(OSError):
                self.unlink(source)
            return
        site = self.begin("rename", target)
        inode = self.find(source)
        old_directory, old = self._split(source)
        directory, name = self.free(target)
        changes: tuple[Change, ...] = (Move(directory, old, name, inode),)
        if old_directory != directory:
            changes = (Enter(directory, name, inode), Leave(old_directory, old))
        self.finish("rename", target, site, *changes)

    def replace(
        self, source: str, target: str, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        source, target = self.at(source, src_dir_fd), self.at(target, dst_dir_fd)
        site = self.begin("replace", target)
        inode = self.find(source)
        (old_directory, old), (directory, name) = self._split(source), self._split(target)
        changes: tuple[Change, ...] = (Move(directory, old, name, inode),)
        if old_directory != directory:
            changes = (Enter(directory, name, inode), Leave(old_directory, old))
        self.finish("replace", target, site, *changes)

    def map_file(self, root: str, path: str) -> bytes:
        path = posixpath.join(root, path)
        self.begin("map", path)
        return bytes(self.content(self.find(path), path))

    def allocate(self, descriptor: int, offset: int, length: int) -> bool:
        found = self.opened(descriptor)
        if offset + length > len(self.disk.files[found.inode]):
            self.do("allocate", found.path, Resize(found.inode, offset + length))
        return True

    def start_writeback(self, descriptor: int, offset: int, length: int) -> None:
        self.opened(descriptor)

    # --- locks

    def fcntl(self, descriptor: int, command: int, argument: bytes) -> bytes:
        found = self.opened(descriptor)
        kind, _, start, length, _ = struct.unpack(_FLOCK, argument)
        end = start + length if length else _TO_THE_END
        held = self._locks.setdefault(found.inode, [])
        if kind == fcntl.F_UNLCK:
            held[:] = [lock for lock in held if lock[0] is not found or lock[1] < start or lock[2] > end]
            return argument
        while other := next((lock for lock in held if _conflict(lock, found, start, end, kind)), None):
            if command == fcntl.F_OFD_GETLK:
                return struct.pack(
                    _FLOCK, other[3], 0, other[1], 0 if other[2] == _TO_THE_END else other[2] - other[1], -1
                )
            if command == fcntl.F_OFD_SETLK:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), found.path)
            if self.wait is None:
                raise AssertionError(f"{found.path} is locked, and nobody is there to unlock it")
            self.wait()
        if command == fcntl.F_OFD_GETLK:
            return struct.pack(_FLOCK, fcntl.F_UNLCK, 0, 0, 0, 0)
        held.append((found, start, end, kind))
        return argument

    def randbytes(self, length: int) -> bytes:
        return self.chance.randbytes(length)


def _let_go_of_pins(is_theirs: Callable[[int | None], bool]) -> None:
    """Let the pins of processes that are gone do nothing when they are collected: their locks went with them."""
    for found in processes.all_of(processes._forked):
        if not isinstance(found, pins.Pins):
            continue
        if is_theirs(None if found._descriptor is None else found._descriptor.fileno()):
            found._bytes, found._descriptor, found._open_file = None, None, lambda: None


def _conflict(lock: tuple[_Open, int, int, int], mine: _Open, start: int, end: int, kind: int) -> bool:
    exclusive = fcntl.F_WRLCK in (lock[3], kind)
    return exclusive and lock[0] is not mine and lock[1] < end and start < lock[2]


def _class_of(path: str) -> str:
    """Return a path without what differs from one file of its kind to the next."""
    path = posixpath.normpath(path)
    if path == PREFIX.rstrip("/"):
        return "the parent"
    path = path.removeprefix(URL).removeprefix("/") or "."
    path = re.sub(r"\b[0-9a-f]{2}(?=/|$)|\b[0-9a-f]{16,}", "*", re.sub(r"\b\d{10}\b", "N", path))
    return re.sub(r"(?<=\*\.)[1-9]\d*$", "n", re.sub(r"^(tags|operations)/.*", r"\1/*", path))


SYSTEM = System()


#: What of `os` the storage may use. What is not here is a call that the simulation has to learn first.
_CALLS = (
    "open", "close", "lseek", "pread", "pwrite", "pwritev", "ftruncate", "fsync", "fdatasync", "fstat", "lstat",
    "mkdir", "rmdir", "unlink", "link", "replace",
)  # fmt: skip
_SAME = ("path", "sep", "name", "strerror", "geteuid")
_os = SimpleNamespace(
    **{name: getattr(SYSTEM, name) for name in _CALLS},
    **{name: value for name, value in vars(os).items() if name in _SAME or name.startswith(("O_", "SEEK_"))},
    urandom=SYSTEM.randbytes,
)
_local = SimpleNamespace(
    open_below=SYSTEM.open_below,
    list_directory=SYSTEM.list_directory,
    map_file=SYSTEM.map_file,
    allocate=SYSTEM.allocate,
    start_writeback=SYSTEM.start_writeback,
    rename_noreplace=SYSTEM.rename_noreplace,
    crc32c=native_local.crc32c,
)


class _Fcntl:
    fcntl = SYSTEM.fcntl

    def __getattr__(self, name: str) -> Any:
        return getattr(fcntl, name)


class SimulatedStorage(storage.LocalStorage):
    """A local storage on the simulated disk. Chunk-key locks are not on that."""

    def boot(self) -> int:
        return SYSTEM.boot

    def watch(self, path: str) -> int:
        raise OSError(errno.ENOSYS, "no watches on the simulated disk")

    def lock_directory(self) -> str:
        raise LocksUnavailableError(self.url, "they are not on the simulated disk")


_init = Stored.__init__


def _init_stored(stored: Stored, header: Header, footer: Footer, hash: bytes, *names: Any) -> None:
    """Remember a commit: a vacuum may delete its file, and those that are kept still hold what it has changed."""
    SYSTEM.headers[hash] = header
    _init(stored, header, footer, hash, *names)


@contextlib.contextmanager
def simulated() -> Iterator[System]:
    """Let `txstore` work on the simulated machine."""
    patches = [
        mock.patch.object(storage, "os", _os),
        mock.patch.object(storage, "fcntl", _Fcntl()),
        mock.patch.object(storage, "local", _local),
        mock.patch.object(tree, "os", _os),
        mock.patch.object(tree, "local", _local),
        mock.patch.object(pins, "opening", contextlib.nullcontext()),  # of one process, not of all of the machine
        mock.patch.object(kernel_locks, "fcntl", _Fcntl()),
        mock.patch.object(kernel_locks.ByteLocks, "holders", return_value=[]),  # for people, too
        mock.patch.object(commit_lock, "fcntl", _Fcntl()),
        mock.patch.object(commit_lock, "os", _os),
        mock.patch.object(commit_lock, "_tell"),  # who has the turn: for people, and for as long as it lasts
        mock.patch.object(commit_lock, "about", return_value=b"{}"),
        mock.patch.object(os, "urandom", SYSTEM.randbytes),
        mock.patch.object(Stored, "__init__", _init_stored),
        mock.patch.object(engine_module, "open_storage", lambda url, *_, **__: SimulatedStorage(url)),
    ]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        try:
            yield SYSTEM
        finally:
            forget_all()
            SYSTEM.turn_on(Disk(), boot=1)


def forget_all() -> None:
    """Let what ran on the simulated machine leave nothing behind when it is collected: it was killed."""
    _let_go_of_pins(lambda descriptor: descriptor is not None and descriptor >= _FIRST_DESCRIPTOR)
    for thing in processes.all_of(processes._forking):
        if isinstance(thing, Lifecycle) and thing.staging.storage.url == URL:
            thing.end()

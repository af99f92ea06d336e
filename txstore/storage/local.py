"""A directory on a local file system: mapped reads, syncs, renames that replace nothing, kernel locks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import struct
import sys
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial, wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from txstore import processes
from txstore._native import local
from txstore.errors import CorruptionError, WrongFileTypeError
from txstore.format import names, records
from txstore.steps import step
from txstore.storage import commit_lock
from txstore.storage.capabilities import LOCAL, NETWORK, LockOf
from txstore.storage.commit_lock import MetConflicts, RetryTurn, SyncQueue
from txstore.storage.dispatch import Dispatch, InThread
from txstore.storage.interface import Earlier, Held, Mapped, StagedFile, check_data, written_aside
from txstore.storage.kept import PackCache, PieceMemory
from txstore.storage.objects.interface import Ranges
from txstore.storage.tree import OTHERS_MAY_WRITE, Sharing, Tree, real_path

if TYPE_CHECKING:
    from typing_extensions import Buffer


P = ParamSpec("P")
T = TypeVar("T")


#: Files are mapped: the system keeps what was read of them.
_NO_MEMORY = PieceMemory(0)


class LocalStorage:
    """A directory on a local file system."""

    capabilities = LOCAL
    dispatch = Dispatch()
    ranges: Ranges | None = None

    def __init__(self, root: str) -> None:
        self.url = self.given = root
        self._tree = Tree(real_path(root))
        self._sharing = Sharing(self._tree)
        self.lock_timeout: float | None = None
        self.turns: dict[str, weakref.ref[_Turn]] = {}  # the last turn at each path, if no others wait in its queue
        self._met: MetConflicts = {}
        self.cache = PackCache(memory=_NO_MEMORY)

    # --- reading

    def read(self, path: str) -> bytes:
        with self._tree.open(path) as descriptor:
            content = _read_fully(descriptor, 0, records.MAX_SIZE + 1)
        if len(content) > records.MAX_SIZE:  # packs are mapped, or read by ranges
            reason = f"the file has more than the {records.MAX_SIZE} bytes that one of its kind may have"
            raise CorruptionError(path, reason=reason)
        return content

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        with self._tree.open(path) as descriptor:
            size = os.lseek(descriptor, 0, os.SEEK_END)
            length = min(length, size)
            return _read_fully(descriptor, size - length, length), size

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        with self._tree.open(path) as descriptor:
            return _read_fully(descriptor, offset, length)

    def open(self, path: str, size: int | None = None) -> LocalOpenFile:
        file = LocalOpenFile(self._tree.open(path), path)
        try:
            check_data(path, file.read(0, min(file.size, records.beginning_of(path))))
        except BaseException:
            file.close()
            raise
        return file

    def refuse_links(self, path: str) -> None:
        """No method follows any."""

    def map(self, path: str) -> Mapped:
        return self._tree.map(path)

    def exists(self, path: str) -> bool:
        try:
            self._tree.look(path).close()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list(self, path: str) -> list[str]:
        try:
            return self._tree.names(path)
        except FileNotFoundError:
            return []

    def sizes(self, path: str) -> dict[str, int]:
        found = {}
        for name in self.list(path):
            with contextlib.suppress(FileNotFoundError, WrongFileTypeError):  # deleted meanwhile; or no file
                found[name] = self.read_tail(f"{path}/{name}", 0)[1]
        return found

    def permissions(self, path: str) -> int:
        return stat.S_IMODE(self._tree.status(path).st_mode)

    def _open_in_place(self, path: str, flags: int, at_most: int = 0o777) -> local.Descriptor:
        """Open a small file that is locked or written where it lies. If it is missing it is made.

        One that has other names is made anew: somebody may have given this name to what is another's.
        """
        looks = 0
        while True:
            try:
                descriptor = self._tree.open(path, flags)
            except FileNotFoundError:
                # Not by O_CREAT: another user could meet the file before it has the permissions that it gets.
                with contextlib.suppress(FileExistsError):
                    self.write_once(path, b"", durable=False, at_most=at_most)
                continue
            if os.fstat(descriptor.fileno()).st_nlink <= 1:
                return descriptor
            descriptor.close()
            looks += 1
            if looks < _LOOKS:  # where a rename is a link and an unlink, it may have been made just now
                time.sleep(_PAUSE)
                continue
            temporary = f"{names.STAGING}/{os.urandom(8).hex()}{names.NEW}"
            file = self.create(temporary, at_most=at_most)
            try:
                self.replace(temporary, path)
            finally:
                file.close()

    # --- writing

    def check_creation(self, *, waits: bool) -> None:
        """The kernel makes sure of it."""

    def earlier(self, directory: str) -> Mapping[str, Sequence[Earlier]]:
        return {}

    def free_names(self, directory: str, above: str) -> None:
        """A name that was deleted is free."""

    @step("make directory")
    def make_directory(self, path: str, *, durable: bool, at_most: int = 0o777) -> None:
        if not path:
            _make_directories(self._tree.root, durable, at_most)
            return
        try:
            self._sharing.make_directory(path, at_most)
        except FileExistsError:
            return
        except FileNotFoundError:
            self.make_directory(os.path.dirname(path), durable=durable)
            try:
                self._sharing.make_directory(path, at_most)
            except FileExistsError:
                return
        if durable:
            self._sync_names(os.path.dirname(path))

    def create_held(self, path: str, content: bytes) -> Held:
        held = self.create(path)
        try:
            held.write(0, [content])
        except BaseException:
            held.close()
            self.delete(path)
            raise
        return held

    def hold(self, path: str) -> Held:
        descriptor = self._tree.open(path, os.O_RDWR)
        if not _hold(descriptor.fileno()):
            descriptor.close()  # now: the error has this frame
            raise BlockingIOError(errno.EWOULDBLOCK, "another process holds this file", path)
        return LocalStagedFile(descriptor, self._tree.path(path))

    def is_held(self, path: str) -> bool:
        with contextlib.suppress(PermissionError), self._tree.open(path) as descriptor:
            return _is_held(descriptor)
        return True  # another user's, who has not yet given it its permissions

    def are_held(self, paths: Collection[str]) -> set[str]:
        held = set()
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                if self.is_held(path):
                    held.add(path)
        return held

    def is_abandoned(self, path: str) -> bool:
        return not self.is_held(path)

    def reclaim(self, path: str) -> bool:
        try:
            # PermissionError: another user's, which had not yet got its permissions; that user's processes reclaim it.
            with (
                contextlib.suppress(FileNotFoundError, PermissionError),
                self._tree.open(path, os.O_RDWR) as descriptor,
            ):
                if _hold(descriptor):  # so that its creator, which may not hold it yet, notices
                    self._tree.delete(path)
                    return True
        except WrongFileTypeError:
            # If it is a directory, it was to become one of the repository; a living process makes another.
            with contextlib.suppress(OSError):
                self._tree.delete_directory(path)
                return True
        return False

    def link(self, source: str, target: str) -> None:
        self._tree.link(source, target)

    def create(self, path: str, *, at_most: int = 0o777) -> StagedFile:
        while True:
            descriptor = self._tree.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666 & at_most & ~OTHERS_MAY_WRITE)
            try:
                number = descriptor.fileno()
                self._sharing.share_file(number, at_most)
                if not _hold(number):  # another process looks whether it is held
                    _wait_to_hold(number, commit_lock.Wait(self.url, path, self.lock_timeout))
                if os.fstat(number).st_nlink:  # else it was reclaimed by somebody who found it before it was held
                    return LocalStagedFile(descriptor, self._tree.path(path))
            except BaseException:
                descriptor.close()  # now: the error has this frame, and the file must not look held
                raise
            descriptor.close()

    def sync_file(self, path: str) -> None:
        with self._tree.open(path) as descriptor:
            _sync(descriptor)

    def sync_directory(self, path: str) -> None:
        if path == "..":  # where the root has its name: the user's
            sync_directory(os.path.dirname(self._tree.root))
        else:
            self._sync_names(path)

    def _sync_names(self, path: str) -> None:
        with self._tree.open_directory(path) as descriptor:
            os.fsync(descriptor)

    def rename_noreplace(self, source: str, target: str) -> None:
        self._tree.rename_noreplace(source, target)

    def replace(self, source: str, target: str) -> None:
        self._tree.replace(source, target)

    def replace_blanked(self, source: str, target: str, blanks: Sequence[tuple[int, int]]) -> None:
        with self._tree.open(target, os.O_RDWR) as old:
            # Of one that has other names, others may have given this name to what is another's.
            is_ours = os.fstat(old).st_nlink == 1
            self._tree.replace(source, target)
            self._sync_names(os.path.dirname(target))  # else a power loss could bring back what is blank by then
            if is_ours:
                for offset, length in blanks:
                    for start in range(offset, offset + length, _BLANKED):
                        _write_fully(old, start, [bytes(min(_BLANKED, offset + length - start))])
                _sync(old)

    @step("write once")
    def write_once(self, path: str, content: bytes, *, durable: bool, at_most: int = 0o777) -> None:
        with written_aside(self, content, durable=durable, at_most=at_most) as temporary:
            self.rename_noreplace(temporary, path)
        if durable:
            self.sync_directory(os.path.dirname(path))

    def write_in_place(self, path: str, content: bytes) -> None:
        with self._open_in_place(path, os.O_WRONLY) as descriptor:
            _write_fully(descriptor, 0, [content])

    def delete(self, *paths: str) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self._tree.delete(path)

    def remove_directory(self, path: str) -> None:
        with contextlib.suppress(OSError):
            self._tree.delete_directory(path)

    def watch(self, path: str) -> int:
        with self._tree.open_directory(path) as directory:
            return local.open_watch(f"/proc/self/fd/{directory}")

    def lock_directory(self) -> str:
        return self._tree.path(names.LOCKS)

    def open_pins(self) -> local.Descriptor | None:
        if sys.platform != "linux":
            return None
        try:
            descriptor = self._tree.open(names.PINS)
        except FileNotFoundError:
            try:
                with contextlib.suppress(FileExistsError):
                    self.write_once(names.PINS, b"", durable=False)
                descriptor = self._tree.open(names.PINS)
            except OSError:
                return None
        except OSError:
            return None
        try:
            fcntl.fcntl(descriptor.fileno(), fcntl.F_OFD_GETLK, commit_lock.TURN)
        except OSError:  # a file system without such locks
            return None
        return descriptor

    def boot(self) -> int:
        return _boot()

    def free(self) -> int | None:
        try:
            return shutil.disk_usage(self._tree.root).free
        except OSError:
            return None

    def now(self) -> float:
        return time.time()

    def place(self) -> int:
        # No copy has both the number and the time of change of the original's inode, whatever the file system. Not the
        # device: its number may change with each boot.
        try:
            status = self._tree.status(names.FORMAT)
        except OSError:
            return 0
        return local.crc32c(struct.pack("<QQ", status.st_ino & _U64, status.st_ctime_ns & _U64)) & ~1 or 2

    def lock(
        self, path: str, prepare: Callable[[], object] | None = None, *, queues: bool = False
    ) -> contextlib.AbstractContextManager[SyncQueue | None]:
        last = self.turns.get(path)
        turn = None if last is None else last()
        if turn is not None and turn.owner == processes.this_thread():
            return contextlib.nullcontext()  # the caller has the turn already, and nobody is in the queue
        return _Turn(self, path, prepare, queues)

    @contextlib.contextmanager
    def alone(self, path: str) -> Iterator[Callable[[], None]]:
        with self.lock(path):
            yield lambda: None

    def retry_turn(self, branch: str) -> contextlib.AbstractContextManager[RetryTurn | None]:
        if sys.platform != "linux" or self.capabilities.lock_of is not LockOf.ALL_PROCESSES:
            return contextlib.nullcontext()
        opened = partial(self._open_in_place, names.COMMIT_LOCK, os.O_RDWR, self._sharing.writers)
        return RetryTurn(opened, branch, self._met)


class _Turn:
    """The turn at a file, as long as a `with` block lasts.

    A class: if Ctrl-C comes while `contextlib` has not returned yet, a generator keeps the lock for as long as the
    traceback lives, and the next commit of this process waits for it.
    """

    def __init__(self, storage: LocalStorage, path: str, prepare: Callable[[], object] | None, queues: bool) -> None:
        self._storage = storage
        self._path = path
        self._prepare = prepare
        self._queues = queues
        self._descriptor: local.Descriptor | None = None
        self.owner: tuple[int, int] | None = None  # the process and thread that have the turn, without a queue

    def __enter__(self) -> SyncQueue | None:
        try:
            return self._take()
        except BaseException:
            self.__exit__()
            raise

    def _take(self) -> SyncQueue | None:
        storage = self._storage
        # The locks belong to the open file description: two threads that open the file exclude each other too.
        self._descriptor = storage._open_in_place(self._path, os.O_RDWR, storage._sharing.writers)
        descriptor = self._descriptor.fileno()
        commit_lock.take(descriptor, storage.url, self._path, storage.lock_timeout, self._prepare)
        # Committers may queue if kernel locks show them each other, and no other machine uses the files.
        if sys.platform == "linux" and storage.capabilities.lock_of is LockOf.ALL_PROCESSES:
            queue = SyncQueue(descriptor, storage.url, self._path, storage.lock_timeout)
            if self._queues:
                return queue
            queue.drain()
        self.owner = processes.this_thread()
        storage.turns[self._path] = weakref.ref(self)
        return None

    def __exit__(self, *_: object) -> None:
        self.owner = None
        if self._descriptor is not None:
            try:
                commit_lock.leave(self._descriptor.fileno())
            finally:
                self._descriptor.close()


_U64 = (1 << 64) - 1
#: Zeros that are written at once.
_BLANKED = 1 << 20
_BELIEVED, _LARGEST_OFFSET = 1 << 20, 1 << 62
#: How often, and how long in seconds, a file with two names is looked at until it is not taken for one in the making.
_LOOKS, _PAUSE = 10, 0.001
#: How many parts a vectored write takes; the standard promises 16.
_MOST_PARTS = max(os.sysconf("SC_IOV_MAX"), 16)


class LocalOpenFile:
    """See `interface.OpenFile`."""

    def __init__(self, descriptor: local.Descriptor, path: str) -> None:
        self._descriptor = descriptor
        self._path = path
        found = os.fstat(descriptor.fileno())
        self.size = found.st_size
        # The time of change, not of modification: it can't be set. An erasure overwrites parts of a file in place.
        self.tag: str | None = f"{found.st_ino:x}-{found.st_size:x}-{found.st_ctime_ns:x}"

    def read(self, offset: int, length: int) -> bytes:
        content = _read_fully(self._descriptor.fileno(), offset, length)
        if len(content) != length:
            raise CorruptionError(self._path, reason="the file was cut while it was read")
        return content

    def close(self) -> None:
        self._descriptor.close()


def _named(method: Callable[Concatenate[LocalStagedFile, P], T]) -> Callable[Concatenate[LocalStagedFile, P], T]:
    """Add the file's name to the errors of a method: the system names no file for a descriptor."""

    @wraps(method)
    def named(self: LocalStagedFile, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except OSError as error:
            error.filename = self._name
            raise

    return named


class LocalStagedFile:
    """An open file below `.staging/`."""

    def __init__(self, descriptor: local.Descriptor, name: str) -> None:
        self._descriptor = descriptor
        self._name = name  # for errors
        processes.watch(self)

    @_named
    def write(self, offset: int, parts: Sequence[Buffer]) -> None:
        _write_fully(self._descriptor.fileno(), offset, parts)

    @_named
    def read(self, offset: int, length: int) -> bytes:
        return _read_fully(self._descriptor.fileno(), offset, length)

    @_named
    def allocate(self, offset: int, length: int) -> None:
        local.allocate(self._descriptor.fileno(), offset, length)

    def start_writeback(self, offset: int, length: int) -> None:
        local.start_writeback(self._descriptor.fileno(), offset, length)

    @_named
    def truncate(self, length: int) -> None:
        os.ftruncate(self._descriptor.fileno(), length)

    @_named
    def sync(self) -> None:
        _sync(self._descriptor.fileno())

    def close(self) -> None:
        self._descriptor.close()

    def after_fork_in_child(self) -> None:
        self.close()  # or the file would be held for as long as the child lives


if sys.platform == "linux":
    _ALL_SHARED = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)  # struct flock


def _hold(descriptor: int) -> bool:
    """Lock a file for as long as its open file description lives; return whether that was possible."""
    return (
        commit_lock.try_lock(descriptor, commit_lock.ALL)
        if sys.platform == "linux"
        else commit_lock.try_file(descriptor)
    )


def _wait_to_hold(descriptor: int, wait: commit_lock.Wait) -> None:
    if sys.platform == "linux":
        commit_lock.wait_for_lock(descriptor, commit_lock.ALL, wait)
    else:
        commit_lock.lock_file(descriptor, wait)


def _is_held(descriptor: int) -> bool:
    if sys.platform == "linux":
        found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _ALL_SHARED)
        kind: int = struct.unpack_from("h", found)[0]
        return kind != fcntl.F_UNLCK
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


@cache
def _boot() -> int:
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return local.crc32c(file.read())
    except OSError:
        return 0


def _sync(descriptor: int) -> None:
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # fsync there leaves the data in the drive's cache
    else:
        os.fdatasync(descriptor)


def _make_directories(path: str, durable: bool, at_most: int = 0o777) -> None:
    """Create the root, and those above it, unless it exists."""
    try:
        os.mkdir(path, at_most)
    except FileExistsError:
        return
    except FileNotFoundError:
        _make_directories(os.path.dirname(path), durable)
        try:
            os.mkdir(path, at_most)
        except FileExistsError:
            return
    if durable:
        sync_directory(os.path.dirname(path))


def sync_directory(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_fully(descriptor: int, offset: int, length: int) -> bytes:
    if length > _BELIEVED or offset > _LARGEST_OFFSET:
        # It is what a file says, perhaps of itself: no more is asked for, and made room for, than there is.
        length = min(length, os.fstat(descriptor).st_size - offset)
        if length <= 0:
            return b""
    data = os.pread(descriptor, length, offset)
    while len(data) < length:
        more = os.pread(descriptor, length - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def _write_fully(descriptor: int, offset: int, parts: Sequence[Buffer]) -> None:
    for first in range(0, len(parts), _MOST_PARTS):
        some = parts[first : first + _MOST_PARTS]
        end = offset + sum(memoryview(part).nbytes for part in some)
        offset += os.pwritev(descriptor, some, offset)
        rest = memoryview(b"".join(some))[offset - end :] if offset < end else memoryview(b"")
        while rest:
            written = os.pwrite(descriptor, rest, offset)
            if not written:
                raise OSError(errno.EIO, "nothing could be written")
            offset += written
            rest = rest[written:]


# --- a directory that several machines share: NFS, CIFS, Lustre, or any file system that is not known to be local
#
# Files are not mapped: if another machine deletes a mapped file, the reading process crashes. A client may cache
# look-ups for a while (`Capabilities.stale_seconds`), so it sees a new commit late, but never wrong. Data that the
# server has confirmed is on its disk, and does not depend on the boot of this machine.


#: Seconds after which a staged file without a visible holder counts as abandoned.
_ABANDONED = 3600.0


class NetworkStorage(LocalStorage):
    """A directory on a file system that several machines share."""

    capabilities = NETWORK
    dispatch: Dispatch = InThread()
    try_range = None

    def __init__(self, root: str, cache: PackCache) -> None:
        super().__init__(root)
        self.cache = cache
        self.ranges = self

    def map(self, path: str) -> Mapped:
        return self.read(path)

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        return self.read_range(path, offset, length)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read_range(path, offset, length) for offset, length in ranges]

    def get_tail(self, path: str, length: int) -> tuple[bytes, int]:
        return self.read_tail(path, length)

    def list(self, path: str) -> list[str]:
        self._look_anew(path)
        return super().list(path)

    def _look_anew(self, path: str) -> None:
        """Open and close a directory: an NFS client asks the server then whether it has changed."""
        with contextlib.suppress(OSError):
            self._tree.open_directory(path).close()

    def boot(self) -> int:
        return 0

    def is_abandoned(self, path: str) -> bool:
        # Not every such file system shares its locks between machines (sshfs does not): what no process seems to
        # hold may be another machine's, unless it was not written for long (I10: by the server's clock).
        age = self.now() - self._tree.status(path).st_mtime
        return age > _ABANDONED and super().is_abandoned(path)

    def reclaim(self, path: str) -> bool:
        try:
            is_abandoned = self.is_abandoned(path)
        except OSError:
            return False
        return is_abandoned and super().reclaim(path)

    def now(self) -> float:
        """Return the time by the clock that the times of files are by."""
        path = f"{names.STAGING}/{os.urandom(8).hex()}{names.NEW}"
        descriptor = self._tree.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with descriptor as number:
                os.write(number, b"\0")
                return os.fstat(number).st_mtime
        finally:
            self._tree.delete(path)

"""The interface of a repository's storage. Paths are relative to the root, with `/` between segments.

A method opens only regular files, and follows no symbolic link: otherwise it raises `WrongFileTypeError`, an `OSError`.

All higher layers use only the protocol `Storage`; tests inject faults by wrapping it. Errors of the system are raised
as `OSError` with the file's name. Higher layers need only its standard subclasses.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from txstore.errors import CorruptionError
from txstore.format import names, records

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from txstore._native import local
    from txstore.storage.capabilities import Capabilities
    from txstore.storage.commit_lock import RetryTurn, SyncQueue
    from txstore.storage.dispatch import Dispatch
    from txstore.storage.kept import PackCache
    from txstore.storage.objects.interface import Ranges

T = TypeVar("T")

Mapped = Any  # an object with the buffer protocol: what a whole file looks like in memory

#: What opening a missing file raises. A caller that opens what must exist catches all of them (I4): zarr and fsspec
#: would take each for a missing key.
GONE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class StagedFile(Protocol):
    """A file that this process writes. Reading and writing by offset; safe in threads.

    The process holds it until it closes it. If the process dies, the system releases the file then, and never before.
    In a forked child it is closed.
    """

    def write(self, offset: int, parts: Sequence[Buffer]) -> None: ...
    def read(self, offset: int, length: int) -> bytes: ...
    def allocate(self, offset: int, length: int) -> None: ...
    def start_writeback(self, offset: int, length: int) -> None: ...
    def truncate(self, length: int) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class OpenFile(Protocol):
    """A file that is open for reading: it stays readable if another one takes its place. Safe in threads."""

    size: int
    tag: str | None
    """What no other content of this path has, as far as storage can tell without reading it; None: it can't."""

    def read(self, offset: int, length: int) -> bytes:
        """Return a range that lies in the file."""

    def close(self) -> None: ...


class Held(Protocol):
    """A file that a living process holds until it closes it. Other processes can tell."""

    def close(self) -> None: ...


class Earlier(NamedTuple):
    """What a file holds, or has held before it was replaced. Both raise `OSError`."""

    read: Callable[[], bytes]
    forget: Callable[[], None]  # for good: the file holds what came before, if it was the last


class Storage(Protocol):
    """The storage of one repository."""

    url: str
    capabilities: Capabilities

    dispatch: Dispatch
    """How many calls are made, or one that must not hold up the caller."""

    given: str
    """What opens the repository again in another process. It may hold a password."""

    lock_timeout: float | None
    """For how many seconds others are waited for; None: for as long as it takes, and not in silence."""

    @property
    def ranges(self) -> Ranges | None:
        """What packs are read from by ranges; None where they are mapped."""

    @property
    def cache(self) -> PackCache:
        """What was read of packs by ranges."""

    def read(self, path: str) -> bytes:
        """Return a whole small file."""

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        """Return the last bytes of a file (fewer if it is shorter) and its size."""

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Return a range of a file; shorter only where the file ends."""

    def open(self, path: str, size: int | None = None) -> OpenFile:
        """Open data of the repository. `size`: what it was before, of a file that keeps it; this may save a request.

        Where users can link to files of others, one may have given this name to a private file of this user. So it
        raises `CorruptionError` if the file does not begin as data do; so does reading from it.
        """

    def refuse_links(self, path: str) -> None:
        """Raise `WrongFileTypeError` if links lead to a path, where the other methods would follow them."""

    def map(self, path: str) -> Mapped:
        """Return the whole file as a read-only buffer that stays valid after the file is gone."""

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> list[str]:
        """Return the names in a directory; none if it does not exist."""

    def check_creation(self, *, waits: bool) -> None:
        """Raise `OSError` if two processes could create one file here. If it does not wait, the next commit does."""

    def earlier(self, directory: str) -> Mapping[str, Sequence[Earlier]]:
        """Return the earlier and present contents of the files in a directory, of each file the oldest first.

        If a file was deleted and created again, only contents since then; none if it does not exist. Raises `OSError`
        if the server can't tell.
        """

    def free_names(self, directory: str, above: str) -> None:
        """Delete the old versions of deleted files above a name: some servers refuse to create such names again.

        Raises `OSError` if the server can't do that.
        """

    def sizes(self, path: str) -> dict[str, int]:
        """Return the names of the files in a directory, and their lengths in bytes; none if it does not exist."""

    def permissions(self, path: str) -> int:
        """Return the permission bits of a file or directory; all of them where there are none."""

    # `at_most`: the permission bits that what is created may have. Which it gets is the directory's to say.

    def make_directory(self, path: str, *, durable: bool, at_most: int = 0o777) -> None:
        """Create a directory, and those above it, unless it exists. The empty path is the root."""

    def create(self, path: str, *, at_most: int = 0o777) -> StagedFile:
        """Create a file; FileExistsError if it exists."""

    def create_held(self, path: str, content: bytes) -> Held:
        """Create a small file that this process holds; FileExistsError if it exists."""

    def hold(self, path: str) -> Held:
        """Hold a file that exists. Raises `BlockingIOError` if a living process holds it."""

    def is_held(self, path: str) -> bool:
        """Tell whether a living process holds a staged file; FileNotFoundError if it does not exist.

        Where that can't be known at once, a process may be taken for alive that has just died.
        """

    def are_held(self, paths: Collection[str]) -> set[str]:
        """Return which of these staged files living processes hold. The answer is certain, and may take a while."""

    def is_abandoned(self, path: str) -> bool:
        """Tell whether a staged file has lost its owner, and may be deleted; FileNotFoundError if it does not exist."""

    def reclaim(self, path: str) -> bool:
        """Delete a staged file that no process holds; return False if one does, or if it does not exist."""

    def link(self, source: str, target: str) -> None:
        """Give a file a second name; FileExistsError if the target exists."""

    def sync_file(self, path: str) -> None:
        """Make the content of a finished file durable."""

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable; those of "..": the name of the root."""

    def rename_noreplace(self, source: str, target: str) -> None:
        """Move a file in one step; FileExistsError if the target exists."""

    def replace(self, source: str, target: str) -> None:
        """Move a file in one step, replacing the target if it exists."""

    def replace_blanked(self, source: str, target: str, blanks: Sequence[tuple[int, int]]) -> None:
        """As `replace`, durably; ranges, (offset, length), of the old file are zeros then for every process that has it
        open.
        """

    def write_once(self, path: str, content: bytes, *, durable: bool, at_most: int = 0o777) -> None:
        """Create a file with this content, in one step; FileExistsError if it exists."""

    def write_in_place(self, path: str, content: bytes) -> None:
        """Write the beginning of a file that may be lost in a crash."""

    def delete(self, *paths: str) -> None:
        """Delete files, in any order; a file that does not exist is no error."""

    def remove_directory(self, path: str) -> None:
        """Delete an empty directory; nothing happens where it is not empty, or does not exist."""

    def watch(self, path: str) -> int:
        """Return a descriptor that is readable once a name has appeared in a directory, for `_native.watch.drain`.

        The caller closes it. Raises `OSError` where that can't be known: then look again from time to time.
        """

    def boot(self) -> int:
        """Return a number of this boot of the machine, 0 if unknown. Within one boot, no file that was seen is lost."""

    def free(self) -> int | None:
        """Return the free space in bytes; None if unknown."""

    def now(self) -> float:
        """Return the time in seconds since 1970, by the server's clock if there is a server."""

    def place(self) -> int:
        """Return an even number that tells this directory from a copy of it; 0 if there is no repository."""

    def lock(
        self, path: str, prepare: Callable[[], object] | None = None, *, queues: bool = False
    ) -> contextlib.AbstractContextManager[SyncQueue | None]:
        """Take turns with other processes and threads. Serves fairness, never correctness.

        On a disk, a thread that has the turn, without a queue, may take it again: so it may commit while it has it.

        Raises `CommitTimeoutError` after `lock_timeout`.

        If there was a queue, `prepare` may be called when the caller is the next one, so as to leave less for its turn.

        With `queues`, committers that had a turn before may still be in the queue that is returned, and the caller
        may join it. None: this storage has no queues. Without `queues`, all committers have left the queue.
        """

    def alone(self, path: str) -> contextlib.AbstractContextManager[Callable[[], None]]:
        """Take turns with all processes, wherever they are. It is a turn with `lock` where that is enough.

        What it yields raises `OSError` if another process may have the turn since: this one was stopped for too long.
        """

    def retry_turn(self, branch: str) -> contextlib.AbstractContextManager[RetryTurn | None]:
        """Return the turn of a committer that repeats its work after a conflict. None: this storage has no turns."""

    def lock_directory(self) -> str:
        """Return where on this machine the chunk-key locks are. Raises `LocksUnavailableError` if there can be none."""

    def open_pins(self) -> local.Descriptor | None:
        """Return a new descriptor of the file of pins; None if there is none to be had, or it has no byte locks."""


def write_over(storage: Storage, path: str, content: bytes, *, durable: bool = True, at_most: int = 0o777) -> None:
    """Write a small file in the place of what is there."""
    storage.make_directory(names.STAGING, durable=False)  # copies are made without it
    with written_aside(storage, content, durable=durable, at_most=at_most) as temporary:
        storage.replace(temporary, path)
    if durable:
        storage.sync_directory(os.path.dirname(path))


@contextlib.contextmanager
def written_aside(storage: Storage, content: bytes, *, durable: bool, at_most: int) -> Iterator[str]:
    """Yield the path of a new file below `.staging/` with this content, for the caller to move.

    It is open until the caller has moved it: a vacuum deletes what lies beside it and is open nowhere.
    """
    temporary = f"{names.STAGING}/{os.urandom(8).hex()}{names.NEW}"
    file = storage.create(temporary, at_most=at_most)
    try:
        file.write(0, [content])
        if durable:
            file.sync()
        yield temporary
    except BaseException:
        storage.delete(temporary)
        raise
    finally:
        file.close()


def check_data(path: str, beginning: bytes) -> None:
    """Raise `CorruptionError` if a file does not begin as the data of a repository do that have this path."""
    if not records.is_data(path, beginning):
        raise CorruptionError(path, reason="this is no file of a repository")


def paths_in(storage: Storage, directory: str) -> list[str]:
    """Return what belongs to the repository in one of its directories. Other programs may leave files there."""
    found = (f"{directory}/{name}" for name in storage.list(directory))
    return [path for path in found if names.belongs(path)]


def read_listed(list_names: Callable[[], Sequence[str]], read: Callable[[str], T | None]) -> dict[str, T]:
    """Return what `read` returns for each listed name, without None: deleted.

    One that is gone may have got another name, which was there before the old one went: so the names are listed again,
    until a list shows no change. Else a vacuum could take what has the name for unneeded.
    """
    listed = list_names()
    while True:
        found = {name: content for name in listed if (content := read(name)) is not None}
        if len(found) == len(listed) or set(again := list_names()) == set(listed):
            return found
        listed = again


# --- what is written once, and then read

#: It goes to a file if it is longer, in bytes.
IN_MEMORY = 1 << 20


def spooled(storage: Storage | None, make: Callable[[Callable[[bytes], object]], object]) -> Mapped:
    """Return what `make` writes by calling what it is given: in memory while it is small, then in a file.

    The file lies below `.staging/`. If its process is killed, the next process that looks for abandoned files deletes
    it. The file has no name any more when it is read, and takes disk space until the last reader drops the content.
    Without a storage, all of it stays in memory.
    """
    spool = _Spool(storage)
    try:
        make(spool.write)
        return spool.content()
    finally:
        spool.close()


class _Spool:
    def __init__(self, storage: Storage | None) -> None:
        # Where files are not mapped, one would be read into memory again.
        self._storage = storage if storage is not None and storage.ranges is None else None
        self._path = ""
        self._file: StagedFile | None = None
        self._length = 0
        self._memory: bytes | bytearray = b""  # all that was written, if there is no file

    def write(self, piece: bytes) -> None:
        try:
            if self._file is None and self._storage is not None and self._length + len(piece) > IN_MEMORY:
                self._path = f"{names.STAGING}/{os.urandom(8).hex()}{names.NEW}"
                self._file = self._storage.create(self._path)
                self._file.write(0, [self._memory])
                self._memory = b""
            if self._file is not None:
                self._file.write(self._length, [piece])
        except OSError:  # a disk that is full must not keep anybody from committing what fits
            if self._file is not None and not self._memory:
                self._memory = bytearray(self._file.read(0, self._length))
            self.close()
            self._storage = None
        if self._file is None:
            if self._memory:
                self._memory = self._memory if isinstance(self._memory, bytearray) else bytearray(self._memory)
                self._memory += piece
            else:
                self._memory = piece  # as a rule, there is no other
        self._length += len(piece)

    def content(self) -> Mapped:
        return self._memory if self._file is None or self._storage is None else self._storage.map(self._path)

    def close(self) -> None:
        """Delete the file, if there is one. What was mapped of it stays."""
        file, self._file = self._file, None
        if file is not None and self._storage is not None:
            file.close()
            with contextlib.suppress(OSError):  # the next process that looks for abandoned files deletes it
                self._storage.delete(self._path)

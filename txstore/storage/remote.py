"""The storage of a repository on an object store: it creates objects exclusively where a local disk renames files.

A process collects a staged file in memory. To move it to a name that must be free, the process creates the object; the
server lets exactly one creator succeed. A created object is durable. An object store has no locks and no pins:
`docs/how-to/remote.md` says what replaces them.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import operator
import os
import posixpath
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from txstore import processes
from txstore.errors import CorruptionError, LocksUnavailableError, WrongFileTypeError
from txstore.format import encoding, names, records
from txstore.storage import leases
from txstore.storage.capabilities import of_objects
from txstore.storage.commit_lock import Wait
from txstore.storage.dispatch import Dispatch, InParallel
from txstore.storage.interface import Earlier, Held, Mapped, StagedFile, check_data
from txstore.storage.kept import PackCache
from txstore.storage.late_answers import LateAnswers
from txstore.storage.leases import Lease, Leases
from txstore.storage.objects.backend import Version
from txstore.storage.objects.errors import NotExclusiveError
from txstore.storage.objects.interface import ObjectStore, check_creation
from txstore.storage.request_threads import in_background

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from txstore._native import local


_LOOK_AGAIN = 0.2  # seconds
_END = 1 << 16  # bytes of an object that opening it reads


class RemoteStorage:
    """The `Storage` of a repository whose files are objects."""

    dispatch: Dispatch = InParallel()

    def __init__(self, objects: ObjectStore, cache: PackCache | None = None, *, given: str | None = None) -> None:
        self.objects = self.ranges = objects
        self.cache = cache or PackCache()
        self.url = objects.url
        self.given = given or objects.url
        makes_requests = objects.makes_requests
        self.capabilities = of_objects(objects.creation, makes_requests=makes_requests, holders_trusted=leases.TERM)
        self.leases = Leases(objects)
        self.late_answers = LateAnswers(objects) if makes_requests else objects
        self.creation_check = CreationCheck(objects, makes_requests=makes_requests)
        self.staged = StagedObjects()
        self._lock = processes.new_lock()
        self._turns: dict[str, threading.Lock] = {}
        self.lock_timeout: float | None = None

    # --- reading

    def read(self, path: str) -> bytes:
        return self.objects.get(path)

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        if (staged := self.staged.get(path)) is not None:
            return bytes(staged.content[-length:]), len(staged.content)
        return self.objects.get_tail(path, length)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        if (staged := self.staged.get(path)) is not None:
            return staged.read(offset, length)
        return bytes(self.objects.get_range(path, offset, length))

    def open(self, path: str, size: int | None = None) -> OpenObject:
        self.refuse_links(path)
        return OpenObject(self.objects, path, size)

    def refuse_links(self, path: str) -> None:
        if self.objects.has_links:
            parts = path.split("/")
            for each in ("/".join(parts[:length]) for length in range(1, len(parts) + 1)):
                if self.objects.is_link(each):
                    raise WrongFileTypeError(each, found="a link", wanted="a file or a directory")

    def map(self, path: str) -> Mapped:
        return self.objects.get(path)

    def exists(self, path: str) -> bool:
        return self.objects.exists(path)

    def list(self, path: str) -> list[str]:
        return [found.name for found in self.objects.list(path)]

    def sizes(self, path: str) -> dict[str, int]:
        return {found.name: found.size for found in self.objects.list(path)}

    # --- writing

    def check_creation(self, *, waits: bool) -> None:
        if waits:
            self.creation_check.doubt()
            self.creation_check.wait()
        else:
            self.creation_check.begin()

    def permissions(self, path: str) -> int:
        return 0o777

    def make_directory(self, path: str, *, durable: bool, at_most: int = 0o777) -> None:
        """There are none: a directory is what the names of objects begin with."""

    def create(self, path: str, *, at_most: int = 0o777) -> StagedFile:
        return self.staged.new(path)

    def create_held(self, path: str, content: bytes, *, is_alone: bool = False) -> Lease:
        """As in `Storage`. `is_alone`: no other process asks whether this one lives, but for a vacuum.

        Where others ask, the lease comes first: without one, the object would look abandoned. A vacuum leaves alone
        what is young, so one trip is enough for both.
        """
        create = partial(self._create_once, path, content)
        created = in_background(operator.call, create) if is_alone else create
        try:
            lease = self.leases.take(_leased(path))
        except BaseException as error:
            if is_alone:
                with contextlib.suppress(OSError):
                    created()  # so that nothing comes after whatever is deleted now
            if isinstance(error, BlockingIOError):
                raise FileExistsError(f"{path}: another process is about to create this") from error
            raise
        try:
            created()
        except BaseException:
            lease.close()
            raise
        lease.objects = _names_of(path)
        return lease

    def hold(self, path: str) -> Held:
        if not self.objects.exists(path):
            raise FileNotFoundError(path)
        lease = self.leases.take(_leased(path))
        lease.objects = _names_of(path)
        return lease

    def is_held(self, path: str) -> bool:
        if not self.objects.exists(path):
            raise FileNotFoundError(path)
        return self.leases.is_held(_leased(path))

    def are_held(self, paths: Collection[str]) -> set[str]:
        leased = {path: _leased(path) for path in paths}
        held = self.leases.are_held(set(leased.values()))
        return {path for path, lease in leased.items() if lease in held}

    def is_abandoned(self, path: str) -> bool:
        if not self.objects.exists(path):
            raise FileNotFoundError(path)
        return self.leases.may_go(path, _leased(path))

    def reclaim(self, path: str) -> bool:
        if not self.leases.may_go(path, _leased(path)):
            return False
        self.objects.delete([path])
        if not path.endswith(names.LEASE):
            self.leases.delete(_leased(path))
        return True

    def link(self, source: str, target: str) -> None:
        self.objects.create(target, self._content(source))

    def sync_file(self, path: str) -> None:
        """What the server has confirmed is durable."""

    def sync_directory(self, path: str) -> None:
        """As `sync_file`."""

    def rename_noreplace(self, source: str, target: str) -> None:
        self.late_answers.create(target, self._content(source))
        self.delete(source)

    def replace(self, source: str, target: str) -> None:
        self.objects.put(target, self._content(source))
        self.delete(source)

    def replace_blanked(self, source: str, target: str, blanks: Sequence[tuple[int, int]]) -> None:
        self.replace(source, target)

    def _content(self, path: str) -> Sequence[Buffer]:
        staged = self.staged.get(path)
        return [self.objects.get(path)] if staged is None else [staged.content]

    def write_once(self, path: str, content: bytes, *, durable: bool, at_most: int = 0o777) -> None:
        self.creation_check.wait()
        if self.objects.exists(path):
            raise FileExistsError(f"{path} exists")
        self._create_once(path, content)
        self.creation_check.wait()  # the answer may have told that the server keeps versions now

    def _create_once(self, path: str, content: bytes) -> None:
        try:
            self.objects.create(path, [content])
        except FileExistsError:
            # It may be ours: where the answer was lost, the request was sent again.
            if self.objects.get(path) != content:
                raise

    def write_in_place(self, path: str, content: bytes) -> None:
        self.objects.put(path, [content])

    def earlier(self, directory: str) -> Mapping[str, Sequence[Earlier]]:
        found: defaultdict[str, Sequence[Earlier]] = defaultdict(tuple)
        for each in self.objects.list_versions(directory):
            path = f"{directory}/{each.name}"
            read = partial(self.objects.get_version, path, each.id)
            forget = partial(self.objects.delete_versions, path, [each.id])
            found[each.name] = () if each.is_deletion else (*found[each.name], Earlier(read, forget))
        return found

    def free_names(self, directory: str, above: str) -> None:
        versions: defaultdict[str, Sequence[Version]] = defaultdict(tuple)
        for each in self.objects.list_versions(directory):
            if each.name > above:
                versions[each.name] = (*versions[each.name], each)
        for name, found in versions.items():
            if found[-1].is_deletion:
                self.objects.delete_versions(f"{directory}/{name}", [each.id for each in found])

    def delete(self, *paths: str) -> None:
        remote = [path for path in paths if not self.staged.forget(path)]
        leased = [path + names.LEASE for path in remote if names.parse_staging(posixpath.basename(path)) is not None]
        if remote:
            self.objects.delete([*remote, *leased])

    def remove_directory(self, path: str) -> None:
        """There are none."""

    def watch(self, path: str) -> int:
        raise OSError("an object store does not tell what was created: look again from time to time")

    def boot(self) -> int:
        return 0

    def free(self) -> int | None:
        return None

    def now(self) -> float:
        return self.objects.now()

    def place(self) -> int:
        return encoding.crc32c(self.url.encode()) & ~1 or 2

    @contextmanager
    def lock(self, path: str, prepare: Callable[[], object] | None = None, *, queues: bool = False) -> Iterator[None]:
        """Let the threads of this process take turns. Other processes are met at the version."""
        with self._lock:
            turn = self._turns.setdefault(path, processes.new_lock())
        wait = Wait(self.url, path, self.lock_timeout, lambda: "another thread of this process")
        if not turn.acquire(blocking=False):
            with wait.watched():
                if not turn.acquire(timeout=-1 if wait.left is None else wait.left):
                    raise wait.over()
        try:
            yield
        finally:
            turn.release()

    @contextmanager
    def alone(self, path: str) -> Iterator[Callable[[], None]]:
        """Take turns by a lease. That of a process that was killed is over after `leases.TERM`."""
        wait = Wait(self.url, path, self.lock_timeout, lambda: "a process that may be on another machine")
        with wait.watched():
            while True:
                try:
                    lease = self.leases.take(names.lease_path(path))
                    break
                except BlockingIOError:
                    if wait.left == 0:
                        raise wait.over() from None
                    time.sleep(_LOOK_AGAIN)
        try:
            yield lease.check_term
        finally:
            lease.close()

    def retry_turn(self, branch: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # they pause for random times

    def lock_directory(self) -> str:
        reason = "an object store has no locks between processes: leave out lock=, and repeat what is in conflict"
        raise LocksUnavailableError(self.url, reason)

    def open_pins(self) -> local.Descriptor | None:
        return None


class OpenObject:
    """See `interface.OpenFile`. Opening it reads its end: readers begin there, and small files lie in it."""

    def __init__(self, objects: ObjectStore, path: str, size: int | None) -> None:
        self._objects = objects
        self._path = path
        beginning = records.beginning_of(path)
        self._end, self.size = objects.get_tail(path, max(_END, beginning)) if size is None else (b"", size)
        is_whole = len(self._end) == self.size
        self.tag: str | None = hashlib.sha256(self._end).hexdigest()[:32] if is_whole else None
        if objects.has_links:
            if is_whole:
                check_data(path, self._end)
            else:  # then each read tells by the beginning
                self._end = b""

    def read(self, offset: int, length: int) -> bytes:
        begin = self.size - len(self._end)
        if offset >= begin:
            return self._end[offset - begin : offset - begin + length]
        if self._objects.has_links:
            beginning, found = self._objects.get_ranges(
                self._path, [(0, records.beginning_of(self._path)), (offset, length)]
            )
            check_data(self._path, bytes(beginning))
        else:
            found = self._objects.get_range(self._path, offset, length)
        content = bytes(found)
        if len(content) != length:
            raise CorruptionError(self._path, reason=f"it ends before byte {offset + length}")
        return content

    def close(self) -> None:
        """Nothing is open."""


def _leased(path: str) -> str:
    """Return what is held of a path: the record of a transaction whatever its state is."""
    found = names.parse_record(posixpath.basename(path))
    return path if found is None else f"{names.STAGING}/{found.hex()}"


def _names_of(path: str) -> tuple[str, ...]:
    """Return every name that what is held at a path may have."""
    found = names.parse_record(posixpath.basename(path))
    return (path,) if found is None else (names.open_path(found), names.sealed_path(found))


class StagedObject:
    """The content of an object before it is created. Safe in threads; a forked child has its own copy."""

    def __init__(self) -> None:
        self._content = bytearray()

    @property
    def content(self) -> bytearray:
        return self._content

    def write(self, offset: int, parts: Sequence[Buffer]) -> None:
        content = self._content
        if offset > len(content):
            content.extend(bytes(offset - len(content)))
        for part in parts:
            view = memoryview(part).cast("B") if memoryview(part).nbytes else b""
            content[offset : offset + len(view)] = view
            offset += len(view)

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self._content[offset : offset + length])

    def allocate(self, offset: int, length: int) -> None:
        """Nothing is gained by it here."""

    def start_writeback(self, offset: int, length: int) -> None:
        """It goes to the server as a whole."""

    def truncate(self, length: int) -> None:
        del self._content[length:]

    def sync(self) -> None:
        """The content is durable once the object exists."""

    def close(self) -> None:
        """It stays until it was moved or deleted."""


class StagedObjects:
    """The staged objects of one storage, by their paths. Safe in threads."""

    def __init__(self) -> None:
        self._staged: dict[str, StagedObject] = {}
        self._lock = processes.new_lock()

    def new(self, path: str) -> StagedObject:
        """Begin an object. Raises `FileExistsError` if this process has one with this path."""
        with self._lock:
            if path in self._staged:
                raise FileExistsError(f"{path} is being written")
            staged = self._staged[path] = StagedObject()
        return staged

    def get(self, path: str) -> StagedObject | None:
        return self._staged.get(path)

    def read(self, path: str) -> bytes:
        """Return what is staged under a path; nothing if there is no such object."""
        staged = self._staged.get(path)
        return b"" if staged is None else bytes(staged.content)

    def forget(self, path: str) -> bool:
        """Drop what is staged under a path; return whether there was anything."""
        with self._lock:
            return self._staged.pop(path, None) is not None


#: Seconds after which a committing process checks again that a server creates objects exclusively: else commits could
#: replace each other.
CHECKED_EVERY = 10.0


class _Proof(NamedTuple):
    """One check."""

    process: int  # that has asked: no thread of the parent's answers in a forked child
    began: float  # by the monotonic clock
    versions_begun: int  # of the store, then
    answer: Callable[[], None]

    @property
    def age(self) -> float:
        return time.monotonic() - self.began


class CreationCheck:
    """What one process knows of one server. Safe in threads."""

    def __init__(self, objects: ObjectStore, *, makes_requests: bool) -> None:
        self._objects = objects
        self._period = CHECKED_EVERY if makes_requests else math.inf
        self._asked: _Proof | None = None  # whose answer no caller has waited for yet
        self._proved: _Proof | None = None  # the last whose answer was that the server does
        self._lock = processes.new_lock()

    def begin(self) -> None:
        """Ask the server in the background, unless it has been proved."""
        with self._lock:
            if self._proved is None:
                self._asked = self._ask(in_background)

    def _ask(self, begin: Callable[..., Callable[[], None]]) -> _Proof:
        find_out = partial(check_creation, self._objects, names.GUARD, records.encode_guard())  # always the same
        began, versions_begun = time.monotonic(), self._objects.versions_begun
        return _Proof(os.getpid(), began, versions_begun, begin(operator.call, find_out))

    def wait(self) -> None:
        """Raise `NotExclusiveError` if the server lets a second creator of an object through.

        It has to be known at first, since files may have been copied to another server; when something is in doubt; and
        when the server has begun to keep versions, since some ignore conditions in such a bucket. Then an `OSError`
        says why it could not be asked. Otherwise the next caller asks the server again.
        """
        with self._lock:
            begun, asked, self._asked = self._objects.versions_begun, self._asked, None
            has_to = self._proved is None or self._proved.versions_begun != begun
            if asked is None or asked.process != os.getpid() or asked.versions_begun != begun:
                if not has_to:
                    return
                asked = self._ask(partial)
            try:
                asked.answer()
            except NotExclusiveError:
                self._proved = None
                raise
            except OSError:
                if has_to:
                    raise
            else:
                self._proved = asked

    def renew(self) -> None:
        """Begin to ask again, if that was long ago: a caller that creates an object waits for both answers."""
        with self._lock:
            last = self._asked or self._proved
            if self._proved is not None and last is not None and last.age >= self._period:
                self._asked = self._ask(in_background)

    def doubt(self) -> None:
        """Let the next `wait` ask the server again: an object had unexpected content."""
        with self._lock:
            self._asked = self._proved = None

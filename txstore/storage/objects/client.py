"""`ObjectClient`: wraps a backend so that it survives forks and pickles, retries requests, and raises our errors."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import pickle
import posixpath
import random
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from txstore import observing, processes
from txstore.storage.objects.backend import (
    READ_ONLY,
    SINGLE_WRITER,
    AwaitRange,
    Backend,
    Content,
    Object,
    Objects,
    TryRange,
    Version,
    Versions,
)
from txstore.storage.objects.errors import UNANSWERED, CutShortError, Explained, chain, explain, of_another
from txstore.storage.objects.urls import Target

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from txstore.storage.objects.plain import PlainBackend

_log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_SECONDS = 30.0  # after which a request that has failed is not sent again
# The same for a server that has never answered this client: its address is more likely to be wrong.
UNMET_SECONDS = 6.0
LEAST_TRIES = 3  # even if the first ones took longer than that to fail; of one that has never answered, one less
FIRST_PAUSE = 0.05  # seconds, doubled each time
LONGEST_PAUSE = 5.0

# The backends of this process, the last used last: unpickled stores share one, and its connections. Some libraries keep
# each client that was ever made until the process ends, so that one for each store would be a leak.
MOST_BACKENDS = 32
_backends: dict[bytes, Backend] = {}
_backends_lock = processes.new_lock()
#: By the URL of a root: of several threads of its only writer, one creates an object.
_single_writer_locks: dict[str, threading.Lock] = {}
_built: weakref.WeakSet[Backend] = weakref.WeakSet()

# The backends of the process that this one was forked from: their threads are gone, and to finalize what is left of
# them here would wait for those threads, or talk over connections that are the parent's.
_abandoned: list[Backend] = []


def backend_of(target: Target, build: Callable[[Target], Backend]) -> Backend:
    """Return this process's backend for a target."""
    with _backends_lock:
        try:
            name = pickle.dumps((target, build))
        except (pickle.PicklingError, TypeError, AttributeError):  # options hold what can't be: a session, say
            name = None
        backend = _backends.pop(name, None) if name is not None else None
        if backend is None:
            backend = build(target)
            _built.add(backend)
        if name is not None:
            _backends[name] = backend
            while len(_backends) > MOST_BACKENDS:
                del _backends[next(iter(_backends))]
        return backend


@processes.in_child
def _abandon() -> None:
    """In a forked child: do not touch the parent's backends, even when the process ends."""
    inherited = list(_built)
    _abandoned.extend(inherited)
    _built.clear()
    _backends.clear()
    filesystems = {id(filesystem := getattr(backend, "_fs", None)): filesystem for backend in inherited}
    for filesystem in filesystems.values():
        _leave_loop(getattr(filesystem, "_loop", None))
    # fsspec's classes have finalizers that wait for the event loop of the parent's thread. There is no other way to
    # find them than the list that the interpreter works off when it ends.
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        alive = finalizer.peek()
        if alive is not None and id(alive[0]) in filesystems:
            finalizer.detach()


def _leave_loop(loop: object) -> None:
    """Let an event loop of the parent's count as closed, so that libraries do nothing with it here.

    It has no thread here, and its epoll is the parent's, too: to take a connection off it, as is done when that is
    freed, would leave the parent waiting for answers that it has got.
    """
    if isinstance(loop, asyncio.BaseEventLoop):
        setattr(loop, "_closed", True)  # noqa: B010 - `close` would do the same to the parent


_WITHOUT_LINKS = ("memory", "s3", "azure", "gcs")


class ObjectClient:
    """An `interface.ObjectStore` over the backend that `build` makes."""

    makes_requests: bool
    has_links: bool
    creation: str

    def __init__(self, target: Target, creation: str, build: Callable[[Target], Backend]) -> None:
        self.url = target.url
        self.creation = creation
        self.makes_requests = target.family != "memory"
        self.has_links = target.family not in _WITHOUT_LINKS
        self._target = target
        self._build = build
        self._lock = processes.new_lock()
        self._backend: Backend | None = None
        self._pid = 0
        self._is_met = False  # the server has answered something

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def __reduce__(self) -> tuple[object, ...]:
        return ObjectClient, (self._target, self.creation, self._build)

    # --- reading

    def info(self, path: str) -> dict[str, Any]:
        """Return what fsspec tells of a file. Only a `PlainBackend` can."""
        return self._request(path, lambda backend: cast("PlainBackend", backend).info(path))

    def get(self, path: str) -> bytes:
        return self._request(path, lambda backend: backend.get(path))

    def get_range(self, path: str, offset: int, length: int) -> Content:
        if length <= 0:
            return b""
        return self._request(path, lambda backend: backend.get_range(path, offset, length))

    @property
    def try_range(self) -> TryRange | None:
        backend = self._backend
        if backend is None or self._pid != os.getpid() or backend.await_range is None:
            return None  # to connect may take long
        return partial(_try, backend.await_range)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Content]:
        wanted = [each for each in ranges if each[1] > 0]
        if not wanted:
            return [b""] * len(ranges)
        found = self._request(path, lambda backend: backend.get_ranges(path, wanted))
        for (offset, length), content in zip(wanted, found, strict=True):
            if len(content) != length:
                words = f"it ends within the {length} bytes at {offset}, of which there are {len(content)}"
                raise CutShortError(errno.EIO, words, self._target.shown(path))
        left = iter(found)
        return [next(left) if length > 0 else b"" for _, length in ranges]

    def get_tail(self, path: str, length: int) -> tuple[bytes, int]:
        content, size = self._request(path, lambda backend: backend.get_tail(path, max(length, 1)))
        return content[len(content) - length :] if length < len(content) else content, size

    def exists(self, path: str) -> bool:
        # Not a HEAD: its answer has no body, so that a missing bucket would look like a missing object.
        try:
            self.get_range(path, 0, 1)
        except FileNotFoundError:
            return False
        return True

    def list(self, directory: str) -> list[Object]:
        return self._request(directory, lambda backend: backend.list(directory), wish="list")

    def list_after(self, directory: str, name: str, limit: int) -> Objects | None:
        return self._request(directory, lambda backend: backend.list_after(directory, name, limit), wish="list")

    def is_link(self, path: str) -> bool:
        return self._request(path, lambda backend: backend.is_link(path))

    def now(self) -> float:
        return self._request("", lambda backend: backend.now(), wish="ask")

    # --- what objects were before

    @property
    def versions_begun(self) -> int:
        backend = self._backend
        return backend.versions_begun if backend is not None and self._pid == os.getpid() else 0

    def list_versions(self, directory: str) -> Sequence[Version]:
        if self._connected().versions is None:
            words = "older versions of objects are asked for through s3fs: pip install 'txstore[s3]'"
            raise OSError(errno.ENOTSUP, words if self._target.family == "s3" else "it keeps no versions", self.url)
        return self._request(directory, lambda backend: _versions_of(backend).list_versions(directory), wish="list")

    def get_version(self, path: str, version: str) -> bytes:
        return self._request(path, lambda backend: _versions_of(backend).get_version(path, version))

    def delete_versions(self, path: str, versions: Sequence[str]) -> None:
        self._check_writable(path)
        self._request(path, lambda backend: _versions_of(backend).delete_versions(path, versions), wish="delete")

    # --- writing

    def put(self, path: str, parts: Sequence[Buffer]) -> None:
        self._check_writable(path)
        self._request(path, lambda backend: backend.put(path, parts), wish="write")

    def create(self, path: str, parts: Sequence[Buffer]) -> None:
        self._check_writable(path)
        if not any(memoryview(part).nbytes for part in parts):
            raise ValueError(f"{self._target.shown(path)}: an empty object is not protected against a second creator")
        if self.creation == SINGLE_WRITER:  # on the caller's word, whatever the server does
            with _single_writer_locks.get(self.url) or _single_writer_locks.setdefault(self.url, processes.new_lock()):
                if self.exists(path):
                    raise FileExistsError(errno.EEXIST, "it exists already", self._target.shown(path))
                self.put(path, parts)
            return
        self._request(path, lambda backend: backend.create(path, parts), wish="write")

    def delete(self, paths: Sequence[str]) -> None:
        if paths:
            self._check_writable(paths[0])
            self._request(paths[0], lambda backend: backend.delete(paths), wish="delete")

    def _check_writable(self, path: str) -> None:
        if self.creation == READ_ONLY:
            words = (
                f"{self._target.protocol}:// can't create an object exclusively, so it is read-only for txstore: "
                "use another file system, or single_writer=True if no other process writes there"
            )
            raise PermissionError(errno.EROFS, words, self._target.shown(path))

    # --- how

    def _request(self, path: str, request: Callable[[Backend], T], *, wish: str = "read") -> T:
        """Send a request, and tell an observer of it."""
        if observing.observer is None:
            return self._answered(path, request, wish)
        with observing.observer.span("request", operation=wish, url=self.url, path=path):
            return self._answered(path, request, wish)

    def _answered(self, path: str, request: Callable[[Backend], T], wish: str) -> T:
        """Send a request until the server answers. The library's exception is dropped: it may hold credentials.

        `wish` names the request for messages: read, list, write, delete, or ask the server something.
        """
        started = time.monotonic()
        tries = 0
        is_unanswered = False
        while True:
            explained: Explained | None = None
            wrong: str | None = None
            try:
                answer = request(self._connected())
            except ValueError as error:  # what the libraries say of options that they can't use
                wrong = self._target.secrets().hide(str(error))
            except Exception as error:
                explained = explain(error, self._target.shown(path), self._target.secrets(), wish)
                if explained is None:
                    raise
                for each in chain(error):
                    each.__traceback__ = None  # what raised it may hold it, and would so hold all our callers (below)
            else:
                self._is_met = True
                return answer
            if explained is None:
                raise ValueError(f"{self._target.shown(path)}: {wrong}")
            self._is_met |= explained.is_answer
            tries += 1
            pause = min(FIRST_PAUSE * 2 ** (tries - 1), LONGEST_PAUSE) * random.uniform(0.5, 1.0)
            enough = RETRY_SECONDS if self._is_met else min(UNMET_SECONDS, RETRY_SECONDS)
            late = time.monotonic() + pause - started > enough
            if not explained.passes or (late and tries >= LEAST_TRIES - (not self._is_met)):
                if is_unanswered and wish in ("write", "delete"):
                    explained.error.add_note(UNANSWERED)
                elif wish == "read" and explained.is_denied and self._is_unreadable(path):
                    explained = Explained(of_another(explained.error), False)
                try:
                    raise explained.error
                finally:
                    # The error has this frame: else the two would keep all that our callers hold, pins and values too,
                    # until the next garbage collection.
                    del explained
            is_unanswered = True
            _log.info("%s: request to %s retried in %.2f s: %s", self._target.shown(path), wish, pause, explained.error)
            observing.count("request.retries", 1, operation=wish)
            time.sleep(pause)

    def _is_unreadable(self, path: str) -> bool:
        """Tell whether an object that may not be read is there: on S3 each object has an owner of its own."""
        if self._target.family != "s3":
            return False
        directory, name = posixpath.split(path)
        try:
            return any(each.name == name for each in self._connected().list(directory))
        except Exception:  # noqa: BLE001 - whatever it is: that it may not be read is said anyway
            return False

    def _connected(self) -> Backend:
        """Return the backend of this process."""
        if self._backend is not None and self._pid == os.getpid():
            return self._backend
        with self._lock:
            if self._backend is None or self._pid != os.getpid():
                self._backend = backend_of(self._target, self._build)
                self._pid = os.getpid()
            return self._backend


def _versions_of(backend: Backend) -> Versions:
    assert backend.versions is not None  # for mypy: the caller has listed them
    return backend.versions


async def _try(await_range: AwaitRange, path: str, offset: int, length: int) -> Content | None:
    try:
        return await await_range(path, offset, length)
    except Exception:  # noqa: BLE001 - whatever it is: `get_range` meets it, too, or gets over it
        return None

"""Writes head caches on an object store, in the background, at most once per `HEAD_CACHE_PERIOD`.

Each also holds the end of the commit's file: a process that opens the repository gets the header, and usually the index
of the run, without another request.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import posixpath
import threading
import time
import weakref
from concurrent.futures import Future
from typing import NamedTuple

from txstore import processes
from txstore.commit import MAIN, Stored
from txstore.errors import CorruptionError
from txstore.format import encoding, names
from txstore.format.records import HEAD_CACHE_SIZE, HeadCache
from txstore.history.commit_files import CommitFiles
from txstore.observing import carried
from txstore.storage.remote import RemoteStorage
from txstore.storage.request_threads import REQUESTS, executor

#: Bytes of the end of a commit file: read with one request, and stored in the head cache.
TAIL = 64 << 10
#: Seconds between two head caches of one process.
HEAD_CACHE_PERIOD = 1.0
#: Seconds that an ending process waits for its last head cache.
EXIT_SECONDS = 2.0
#: Seconds for which a process relies on a head that it has read. Creating the version shows whether it is still the
#: head.
STAYS = 1.0


class _Expected(NamedTuple):
    """A head cache that is being fetched before a caller needs it."""

    content: Future[bytes]
    asked: float
    process: int

    @property
    def is_fresh(self) -> bool:
        return self.process == os.getpid() and time.monotonic() - self.asked < STAYS


class ObjectHeadCaches:
    """Head caches on an object store: an object for each branch, written in the background."""

    def __init__(self, storage: RemoteStorage) -> None:
        self._storage = storage
        self._expected: _Expected | None = None
        self.made: dict[str, bytes] = {}  # for each branch, the last commit of this process
        self._writer = _HeadCacheWriter(self, storage)

    def read(self, branch: str) -> HeadCache:
        return self.read_with_end(branch)[0]

    def of(self, stored: Stored, *, durable: bool) -> HeadCache:
        return stored.head_cache(durable=durable, boot=self._storage.boot(), place=self._storage.place())

    def note(self, stored: Stored, tail: bytes) -> None:
        """Record the newest commit and the end of its file, for the next `write`."""
        self._writer.note(stored, tail)

    def write(self, stored: Stored, *, durable: bool) -> None:
        self.made[stored.header.branch] = stored.header.id  # this commit needs no further check
        self._writer.start()

    def write_of_copy(self, stored: Stored) -> None:
        self._writer.write(stored, self._storage.read_tail(stored.path, TAIL)[0])

    def stop(self) -> None:
        self._writer.forget()

    def forget(self) -> None:
        self.stop()
        directory = posixpath.dirname(names.head_cache_path(MAIN))
        self._storage.delete(*[f"{directory}/{name}" for name in self._storage.list(directory)])

    def expect(self) -> None:
        """Fetch the head cache early, so that the first look for the head waits for one request only."""
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts no more threads
            content = executor("single request", REQUESTS).submit(
                carried(self._storage.objects.get), names.head_cache_path(MAIN)
            )
            self._expected = _Expected(content, time.monotonic(), os.getpid())

    def read_with_end(self, branch: str) -> tuple[HeadCache, bytes]:
        """Return the head cache, and the end of the commit's file that it holds."""
        expected, self._expected = self._expected, None
        try:
            if branch == MAIN and expected is not None and expected.is_fresh:
                content = expected.content.result()
            else:
                content = self._storage.objects.get(names.head_cache_path(branch))
        finally:
            expected = None  # its error has this frame in the traceback, and so all callers with their pins
        return HeadCache.decode(content[:HEAD_CACHE_SIZE]), content[HEAD_CACHE_SIZE:]

    def commit(self, branch: str, files: CommitFiles) -> tuple[HeadCache | None, Stored | None]:
        """Return the head cache, if there is one, and the commit that it holds."""
        try:
            head_cache, tail = self.read_with_end(branch)
        except (OSError, encoding.MalformedError):
            return None, None
        with contextlib.suppress(CorruptionError):
            stored = files.decode(
                names.commit_path(branch, head_cache.version), branch, head_cache.version, tail, head_cache.file_length
            )
            if stored.header.id == head_cache.commit_id:
                return head_cache, stored
        return head_cache, None  # it is only a cache


_writers: weakref.WeakSet[_HeadCacheWriter] = weakref.WeakSet()


class _HeadCacheWriter:
    """Writes the newest head cache in the background. No caller waits, and some commits get none."""

    def __init__(self, head_caches: ObjectHeadCaches, storage: RemoteStorage) -> None:
        self._head_caches = head_caches
        self._storage = storage
        self._lock = processes.new_lock()
        self._noted: dict[str, tuple[Stored, bytes]] = {}  # by branch
        self._thread: threading.Thread | None = None  # None: it writes nothing, and has nothing to write
        self._last = -HEAD_CACHE_PERIOD
        processes.watch(self)
        _writers.add(self)

    def after_fork_in_child(self) -> None:
        self._noted, self._thread = {}, None  # they belong to the parent

    def note(self, stored: Stored, tail: bytes) -> None:
        with self._lock:
            self._noted[stored.header.branch] = stored, tail

    def forget(self) -> None:
        with self._lock:
            self._noted, thread = {}, self._thread
        if thread is not None:
            thread.join()

    def start(self) -> None:
        with self._lock:
            if not self._noted or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._run, name="txstore head cache", daemon=True)
            try:
                self._thread.start()
            # the interpreter ends, or allows no more threads: a head cache is optional
            except RuntimeError:
                self._thread = None

    def finish(self, timeout: float) -> None:
        """Wait a moment for the last head cache, so that a process that commits once and ends has one, too."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def _run(self) -> None:
        while noted := self._next():
            for stored, tail in noted:
                self.write(stored, tail)

    def _next(self) -> list[tuple[Stored, bytes]]:
        wait = self._last + HEAD_CACHE_PERIOD - time.monotonic()
        if wait > 0:
            threading.main_thread().join(wait)  # ends at once when the process ends
        with self._lock:
            noted, self._noted = list(self._noted.values()), {}
            if not noted:
                self._thread = None
        return noted

    def write(self, stored: Stored, tail: bytes) -> None:
        """Write the head cache for a commit; `tail` is the end of its file.

        I12: an erasure replaces the file, and then deletes the head caches. So whoever writes one looks at the file
        afterwards: if that has changed, the head cache came too late, however long this process stood still.
        """
        self._last = time.monotonic()
        path, fixed = names.head_cache_path(stored.header.branch), self._head_caches.of(stored, durable=True).encode()
        with contextlib.suppress(OSError, RuntimeError):  # the commit is valid without a head cache
            with contextlib.suppress(OSError):  # the server may have stored it nevertheless
                self._storage.objects.put(path, [fixed + tail])
            with contextlib.suppress(OSError):  # a vacuum has deleted it, or nobody can tell
                if self._storage.read_tail(stored.path, TAIL)[0] == tail:
                    return
            self._storage.objects.put(path, [fixed])


@atexit.register
def _finish_head_caches() -> None:
    for writer in list(_writers):
        writer.finish(EXIT_SECONDS)

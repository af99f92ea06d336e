"""Reads and writes head caches, which say where to look for the head of a branch. Only versions are authoritative."""

from __future__ import annotations

import contextlib
from typing import Protocol

from txstore.commit import Stored
from txstore.format import names, records
from txstore.format.records import HeadCache
from txstore.history.branch_names import DurableVersions
from txstore.storage.interface import Storage


class HeadCaches(Protocol):
    """The head caches of one repository, one for each branch."""

    def read(self, branch: str) -> HeadCache:
        """Return the head cache of a branch. Raises `OSError` or `MalformedError`."""

    def is_durable(self, head_cache: HeadCache) -> bool:
        """Tell whether a head cache was written for this directory, and says that its commit is durable."""

    def of(self, stored: Stored, *, durable: bool) -> HeadCache:
        """Return a head cache for a commit that is valid in this directory until the next boot."""

    def write(self, stored: Stored, *, durable: bool) -> None:
        """Write the head cache of a new commit. If this fails, the commit is valid all the same."""

    def write_of_copy(self, stored: Stored) -> None:
        """Write the head cache of a durable commit that a backup has copied."""

    def stop(self) -> None:
        """Wait until no earlier `write` is still running, and drop pending ones."""

    def forget(self) -> None:
        """Delete head caches that hold bytes of commit files, which the caller is about to replace."""


class FileHeadCaches:
    """Head caches on a disk: a small file for each branch, written in place."""

    def __init__(self, storage: Storage, durable: DurableVersions) -> None:
        self._storage = storage
        self._durable = durable

    def read(self, branch: str) -> HeadCache:
        return HeadCache.decode(self._storage.read_range(names.head_cache_path(branch), 0, records.HEAD_CACHE_SIZE))

    def is_durable(self, head_cache: HeadCache) -> bool:
        return head_cache.durable and head_cache.place == self._storage.place() != 0

    def of(self, stored: Stored, *, durable: bool) -> HeadCache:
        place = self._storage.place()
        if not durable and stored.header.branch in self._durable.copied:
            place = place ^ 2 or 4  # the place of no directory: readers must know that the copy was not synced
        return stored.head_cache(durable=durable, boot=self._storage.boot(), place=place)

    def write(self, stored: Stored, *, durable: bool) -> None:
        head_cache = self.of(stored, durable=durable)
        with contextlib.suppress(OSError):
            self._storage.write_in_place(names.head_cache_path(stored.header.branch), head_cache.encode())

    def write_of_copy(self, stored: Stored) -> None:
        self.write(stored, durable=True)

    def stop(self) -> None:
        """Do nothing: `write` writes at once."""

    def forget(self) -> None:
        """Do nothing: these hold no bytes of commit files."""

"""The head cache of a branch: where to look for the head. The versions are the truth."""

from __future__ import annotations

import contextlib
from typing import Protocol

from txstore.commit import Stored
from txstore.format import names, records
from txstore.format.records import HeadCache
from txstore.history.durable_versions import DurableVersions
from txstore.storage.interface import Storage


class HeadCaches(Protocol):
    """The head caches of one repository, one for each branch."""

    def read(self, branch: str) -> HeadCache:
        """Raises `OSError` or `MalformedError`."""

    def is_durable(self, head_cache: HeadCache) -> bool:
        """Tell whether a head cache says, of this directory, that its commit is durable."""

    def of(self, stored: Stored, *, durable: bool) -> HeadCache:
        """Return the head cache that names a commit, true of this directory in this boot."""

    def write(self, stored: Stored, *, durable: bool) -> None:
        """Write the head cache of a commit that was just made. The commit stands whatever becomes of it."""

    def write_of_copy(self, stored: Stored) -> None:
        """Write the head cache of a durable commit that a backup has put in its place."""

    def stop(self) -> None:
        """Return when no head cache that was asked for by now is written any more."""

    def forget(self) -> None:
        """Delete what head caches hold of commit files that are about to be replaced."""


class FileHeadCaches:
    """A small file for each branch, written in place."""

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
            place = place ^ 2 or 4  # of no directory: its readers have to know that nothing of the copy was synced
        return stored.head_cache(durable=durable, boot=self._storage.boot(), place=place)

    def write(self, stored: Stored, *, durable: bool) -> None:
        head_cache = self.of(stored, durable=durable)
        with contextlib.suppress(OSError):
            self._storage.write_in_place(names.head_cache_path(stored.header.branch), head_cache.encode())

    def write_of_copy(self, stored: Stored) -> None:
        self.write(stored, durable=True)

    def stop(self) -> None:
        """Each is written at once."""

    def forget(self) -> None:
        """They hold nothing of commit files."""

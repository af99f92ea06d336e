"""Room for two small files where there is none: two others go, which can be written anew and which nothing depends on.

A vacuum that has to write something before it can delete much more makes room in this way: on a full disk, or in a
bucket at its quota. The head cache only tells where to look for the head; the guard only keeps plain zarr out. The head
cache goes first: a server that is asked whether it creates exclusively is asked to create the guard.
"""

from __future__ import annotations

import contextlib

from txstore.commit import Stored
from txstore.errors import TxStoreError
from txstore.format import names
from txstore.history.commits import Commits


class Spare:
    """The head cache of a branch, and the guard. Each is deleted once at most."""

    def __init__(self, commits: Commits, branch: str) -> None:
        self._commits = commits
        self._branch = branch
        self._has_head_cache = self._has_guard = True

    def delete_head_cache(self) -> None:
        """Make room for one file. Raises `OSError`, `TxStoreError`."""
        self._durable_head()  # I1: only the head cache of a copy tells that the copy was not synced
        self._commits.head_caches.stop()  # or the next one would take the room
        self._has_head_cache = False
        self._commits.storage.delete(names.head_cache_path(self._branch))

    def delete_guard(self) -> None:
        """Make room for one more. Raises `OSError`."""
        self._has_guard = False
        self._commits.storage.delete(names.GUARD)

    def restore(self) -> None:
        """Write again what was deleted, if it was. If others have taken the room, the next commit does so.

        Raises `OSError` if what the head cache would say can't be made true.
        """
        if not self._has_guard:
            self._commits.identity.restore_guard(durable=True)
        if not self._has_head_cache:
            with contextlib.suppress(TxStoreError):
                head = self._durable_head()
                if head is not None:
                    self._commits.head_caches.write_of_copy(head)

    def _durable_head(self) -> Stored | None:
        """Return the newest commit of the branch, made durable (I1); None if it has none of its own.

        Raises `OSError`, `TxStoreError`.
        """
        head = self._commits.head(self._branch)
        if head is None or head.header.branch != self._branch:
            return None
        self._commits.durability.ensure_without_room(head)
        return head

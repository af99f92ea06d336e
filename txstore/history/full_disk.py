"""Frees space for two small files on a full disk: deletes two files that TxStore can write again, and does not need.

On a full disk, or in a bucket at its quota, a vacuum has to write a little before it can delete much. It then deletes
the head cache, which only says where to look for the head, and the guard, which only keeps plain zarr out. The head
cache goes first, because TxStore needs to create the guard to check that a server creates exclusively.
"""

from __future__ import annotations

import contextlib

from txstore.commit import Stored
from txstore.errors import TxStoreError
from txstore.format import names
from txstore.history.commits import Commits


class Spare:
    """The head cache of a branch, and the guard. Each is deleted at most once."""

    def __init__(self, commits: Commits, branch: str) -> None:
        self._commits = commits
        self._branch = branch
        self._has_head_cache = self._has_guard = True

    def delete_head_cache(self) -> None:
        """Free the space for one file. Raises `OSError`, `TxStoreError`."""
        self._durable_head()  # I1: only the head cache of a copy says that the copy was not synced
        self._commits.store.head_caches.stop()  # else the next head cache would take the space
        self._has_head_cache = False
        self._commits.storage.delete(names.head_cache_path(self._branch))

    def delete_guard(self) -> None:
        """Free the space for one more file. Raises `OSError`."""
        self._has_guard = False
        self._commits.storage.delete(names.GUARD)

    def restore(self) -> None:
        """Write the deleted files again. If other files have taken the space, the next commit writes them.

        Raises `OSError` if the head can't be made durable, which its head cache would claim.
        """
        if not self._has_guard:
            self._commits.identity.restore_guard(durable=True)
        if not self._has_head_cache:
            with contextlib.suppress(TxStoreError):
                head = self._durable_head()
                if head is not None:
                    self._commits.store.head_caches.write_of_copy(head)

    def _durable_head(self) -> Stored | None:
        """Make the newest commit of the branch durable (I1) and return it. None if the branch has no own commits.

        Raises `OSError`, `TxStoreError`.
        """
        head = self._commits.head(self._branch)
        if head is None or head.header.branch != self._branch:
            return None
        self._commits.store.ensure_without_room(head)
        return head

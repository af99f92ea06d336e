"""Stores the oldest kept version of each branch. A vacuum may have deleted the commits below it."""

from __future__ import annotations

import contextlib

from txstore.commit import Stored
from txstore.format import names
from txstore.format.records import Tag
from txstore.history.branch_names import BranchNames
from txstore.steps import step
from txstore.storage.interface import Storage
from txstore.storage.objects.errors import NoListsError


class OldestKept:
    """The oldest kept versions of one repository. A vacuum writes one small file for each."""

    def __init__(self, storage: Storage, branches: BranchNames) -> None:
        self._storage = storage
        self._branches = branches

    def of(self, branch: str) -> int:
        """Return the lowest version that every vacuum has kept. For a new branch: the version it starts at.

        0 where the server lists no names. The header of the newest commit says it, too.
        """
        directory = names.oldest_kept_directory(branch)
        try:
            raised = [each for each in map(names.parse_version, self._storage.list(directory)) if each is not None]
            fork = None if raised else self._branches.fork(branch)
        except NoListsError:
            return 0
        return max(raised, default=0) if fork is None else fork.version

    def is_above(self, branch: str, version: int) -> bool:
        """Tell whether a vacuum has expired a version. Version -1 is the empty state before the first commit."""
        oldest_kept = self.of(branch)
        return oldest_kept > 0 and version < oldest_kept

    @step("write oldest kept version")
    def write(self, stored: Stored) -> None:
        """Record the oldest kept version of a vacuum's durable commit: the vacuum deletes the commits below it next.

        Raises `OSError`.
        """
        header = stored.header
        content = Tag(header.branch, header.version, header.id).encode()
        self._storage.make_directory(names.oldest_kept_directory(header.branch), durable=True)
        # the process that made the branch's directory may not have synced it
        self._storage.sync_directory(names.OLDEST_KEPT)
        with contextlib.suppress(FileExistsError):  # an interrupted vacuum has written it
            self._storage.write_once(names.oldest_kept_path(header.branch, header.oldest_kept), content, durable=True)

"""The history of a repository: finds the head of a branch, reads commits, and appends the next one.

How it does so depends on the storage. On a file system, a committer renames a file under the commit lock. In an object
store, it creates the next version, which succeeds once. `opening` chooses the way.

A branch is named by its id here, as it is everywhere below the facade: `branch_names` knows the names.
"""

from __future__ import annotations

from collections.abc import Callable

from txstore.commit import MAIN, Stored
from txstore.history.branch_store import BranchStore, Ground
from txstore.history.kept_commits import KeptCommits, TagNames
from txstore.history.staged_packs import StagingPlace


class Commits:
    """The history of one repository."""

    def __init__(self, ground: Ground, store: BranchStore, staged: StagingPlace) -> None:
        self.storage, self.identity, self.branches = ground.storage, ground.identity, ground.branches
        self.files, self.oldest_kept, self.chain = ground.files, ground.oldest_kept, ground.chain
        self.store, self.staged = store, staged
        self.tags = TagNames(self.storage, self.identity)
        self.kept = KeptCommits(self.branches, self.tags, self.oldest_kept, self.chain, store.head)
        self._warned_of = 0  # the time of the last commit from the future that a warning named

    @property
    def are_pins_seen(self) -> bool:
        """Whether a vacuum sees which commits other processes read."""
        return self.storage.capabilities.pins_are_seen

    def head(self, branch: str = MAIN) -> Stored | None:
        """Return the newest commit; for a branch without own commits, the one it starts at. None: no commit yet."""
        return self.store.head(branch)

    def hold_kept(self, find: Callable[[], dict[str, int]], hold: Callable[[str, Stored], object]) -> dict[str, int]:
        """Pin the oldest kept commit of each branch. Return the oldest kept versions, which `find` looks up."""
        while True:
            found = find()
            if not self.are_pins_seen:
                return found
            for branch, oldest_kept in found.items():
                if (stored := self.files.at(branch, oldest_kept)) is not None:
                    hold(branch, stored)
            if find().items() <= found.items():  # else a vacuum may have looked for pins too early to see these
                return found

    def warns_of(self, stored: Stored, lead: int) -> bool:
        """Tell whether to warn of a commit from the future: not if it is within `lead` microseconds of one warned of.

        The commits after it are dated a microsecond later each: one warning is enough.
        """
        if stored.header.time - self._warned_of <= lead:
            return False
        self._warned_of = stored.header.time
        return True

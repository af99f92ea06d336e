"""The history of a repository: finds the head of a branch, reads commits, and appends the next one.

How it does so depends on the storage. On a file system, a committer renames a file under the commit lock. In an object
store, it creates the next version, which succeeds once. `opening` chooses the way.

A branch is named by its id here, as it is everywhere below the facade: `branch_names` knows the names.
"""

from __future__ import annotations

from collections.abc import Callable

from txstore.commit import MAIN, Stored
from txstore.history.branch_names import BranchNames, OldestKept
from txstore.history.chain import Chain
from txstore.history.commit_files import CommitFiles
from txstore.history.durability import Durability
from txstore.history.heads import HeadCaches, Heads
from txstore.history.identity import Identity
from txstore.history.kept_commits import KeptCommits, TagNames
from txstore.history.staged_packs import StagingPlace
from txstore.history.versions import VersionTaking
from txstore.storage.interface import Storage


class Commits:
    """The history of one repository."""

    def __init__(
        self,
        storage: Storage,
        identity: Identity,
        branches: BranchNames,
        files: CommitFiles,
        oldest_kept: OldestKept,
        chain: Chain,
        heads: Heads,
        versions: VersionTaking,
        head_caches: HeadCaches,
        durability: Durability,
        staged: StagingPlace,
    ) -> None:
        self.storage = storage
        self.identity = identity
        self.branches = branches
        self.files = files
        self.oldest_kept = oldest_kept
        self.chain = chain
        self.heads, self.versions, self.head_caches = heads, versions, head_caches
        self.durability, self.staged = durability, staged
        self.tags = TagNames(storage, identity)
        self.kept = KeptCommits(branches, self.tags, oldest_kept, chain, self.head)
        self._warned_of = 0  # the time of the last commit from the future that a warning named

    @property
    def are_pins_seen(self) -> bool:
        """Whether a vacuum sees which commits other processes read."""
        return self.storage.capabilities.pins_are_seen

    def head(self, branch: str = MAIN) -> Stored | None:
        """Return the newest commit; for a branch without own commits, the one it starts at. None: no commit yet."""
        return self.heads.find(branch)

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

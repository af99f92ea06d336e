"""Records which commits of each branch are known to be durable, so that no committer syncs them again."""

from __future__ import annotations

from txstore.history.branch_names import BranchNames


class DurableVersions:
    """For each branch, the highest version that is known to be durable with all versions below it."""

    def __init__(self, branches: BranchNames) -> None:
        self._branches = branches
        self._versions: dict[str, int] = {}
        self.copied: set[str] = set()  # branches of a copied repository, whose files were never synced

    def version(self, branch: str) -> int:
        """Return the highest version up to which a branch is known to be durable."""
        known = self._versions.get(branch)
        if known is None:  # the commit that it starts at was durable before the branch was made
            fork = self._branches.fork(branch)
            known = self._versions[branch] = -1 if fork is None else fork.version
        return known

    def reach(self, branch: str, version: int) -> None:
        """Record that a branch is durable at least up to a version."""
        self._versions[branch] = max(self.version(branch), version)

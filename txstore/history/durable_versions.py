"""What is known to be durable of each branch, so that no committer syncs it again."""

from __future__ import annotations

from txstore.history.branch_names import BranchNames


class DurableVersions:
    """Of each branch, the version that is known to be durable with all versions below it."""

    def __init__(self, branches: BranchNames) -> None:
        self._branches = branches
        self._versions: dict[str, int] = {}
        self.copied: set[str] = set()  # branches of a copy: the original's files were durable, these were not synced

    def version(self, branch: str) -> int:
        """Return up to which version a branch is known to be durable."""
        known = self._versions.get(branch)
        if known is None:  # what it begins behind was made so before there was the branch
            fork = self._branches.fork(branch)
            known = self._versions[branch] = -1 if fork is None else fork.version
        return known

    def reach(self, branch: str, version: int) -> None:
        """Note that a branch is durable up to a version, if not above it."""
        self._versions[branch] = max(self.version(branch), version)

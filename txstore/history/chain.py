"""Follows the chain of commits from a commit to its parent, down to the oldest kept commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from txstore.commit import Stored
from txstore.errors import CorruptionError, TxStoreError
from txstore.format import names
from txstore.history.branch_names import BranchNames, OldestKept
from txstore.history.commit_files import CommitFiles


class Told:
    """The commits that later commits carry: none on a disk, where reading them one by one takes no requests."""

    def __init__(self, files: CommitFiles) -> None:
        self._files = files

    def by_child(self, parent: Stored | None, branch: str) -> bytes:
        """Return the earlier commits that the next commit after `parent` has to carry."""
        return b""

    def below(self, stored: Stored, oldest_kept: int, wanted: int | None) -> Iterator[Stored | None]:
        """Yield what is in the version that a commit's parent had, and below it in the same branch, down to the oldest
        kept version. A commit may be told by one above it, and be gone.
        """
        return read_below(self._files, stored, oldest_kept, wanted)


def read_below(files: CommitFiles, stored: Stored, oldest_kept: int, wanted: int | None) -> Iterator[Stored | None]:
    """Do as `Told.below`, from the commit files themselves."""
    branch = stored.header.fork or stored.header.branch
    below = range(stored.header.version - 1, oldest_kept - 1, -1)
    return files.each(partial(files.read, branch), below, wanted=wanted)


class Chain:
    """The chains of commits of one repository."""

    def __init__(self, files: CommitFiles, oldest_kept: OldestKept, branches: BranchNames, told: Told) -> None:
        self._files = files
        self._oldest_kept = oldest_kept
        self._branches = branches
        self.told = told

    def ancestors(
        self,
        stored: Stored | None,
        *,
        wanted: int | None = None,
        as_told: bool = False,
        lowest: int | None = None,
    ) -> Iterator[Stored]:
        """Yield a commit and its kept ancestors, newest first. `wanted`: the number that the caller needs, if known.

        `as_told`: what later commits tell of them is enough, be their files there or not. `lowest`: an oldest kept
        version that may be below the one that the commit names, between which there may be nothing. Raises
        `CorruptionError` where the chain is broken.
        """
        if stored is None:
            return
        down = self.told.below if as_told else partial(read_below, self._files)
        oldest_kept, given_up = stored.header.oldest_kept, -1  # below `given_up`, a commit of this branch may be gone
        if lowest is not None:
            oldest_kept, given_up = min(lowest, oldest_kept), oldest_kept
        line = down(stored, oldest_kept, wanted)
        # While that is asked for, those below are read.
        asked: Callable[[], int] | None = self._files.begin(self._oldest_kept.of_history, stored.header.branch)
        while True:
            yield stored
            header = stored.header
            if header.version <= oldest_kept:
                return
            if header.fork:
                line = down(stored, 0, wanted)
            error: Exception | None = None
            try:
                stored = next(line, None)
            except (TxStoreError, OSError) as raised:
                error = raised
            if asked is not None:
                oldest_kept, asked = max(oldest_kept, asked()), None
                if header.version <= oldest_kept:
                    return  # the file below may belong to no history
            if error is not None:
                raise error
            if stored is None and (
                header.version <= given_up or (oldest_kept := self._oldest_kept.of(header.branch)) >= header.version
            ):
                return  # a vacuum has expired it meanwhile
            if stored is None and not self._branches.is_living(header.branch):
                return  # a vacuum has deleted the rest of the branch
            if header.fork:  # from here on, the oldest kept version of that branch counts
                given_up = -1
                oldest_kept = (
                    self._oldest_kept.of_history(header.fork)
                    if self._branches.is_living(header.fork)
                    else header.version
                )
            if stored is None or stored.header.id != header.parent_id or stored.hash != header.parent_hash:
                path = names.commit_path(header.fork or header.branch, header.version - 1)
                raise CorruptionError(path, reason=f"this is not the parent that version {header.version} names")

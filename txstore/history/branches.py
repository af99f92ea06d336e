"""Makes the branches of a repository a mapping."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

from txstore.commit import MAIN, Commit
from txstore.errors import CommitNotFoundError
from txstore.history.commits import Commits
from txstore.history.find import NO_COMMIT, At, find_commit
from txstore.history.log import html_of_named
from txstore.history.snapshot import Snapshots


class Branches(MutableMapping[str, Commit]):
    """A mapping from the name of each branch to its newest commit.

    A branch starts at a commit, and moves with each commit to it. Before its first own commit, its newest commit is
    the commit at which it starts. Two names can't differ only in case.
    """

    def __init__(self, commits: Commits, snapshots: Snapshots) -> None:
        self._commits = commits
        self._snapshots = snapshots

    def __getitem__(self, name: str) -> Commit:
        try:
            branch = self._commits.branches.id_of(name)
        except CommitNotFoundError as error:
            raise KeyError(name) from error
        head = self._commits.head(branch)
        if head is None:
            raise CommitNotFoundError(f"branch {name!r}", advice="this repository has no commits yet")
        return head.commit

    def __setitem__(self, name: str, commit: At | None) -> None:
        """Start a branch at a commit, durably. An existing branch can't be set: it moves only by commits.

        Raises `ValueError` if the name is used, `KeyFormatError` if the name is invalid, `CommitNotFoundError`, and
        `SnapshotExpiredError` for a commit that a vacuum has expired.
        """
        self._commits.branches.check_free(name)
        if commit is None:
            raise CommitNotFoundError(f"branch {name!r}", advice=NO_COMMIT)
        stored = find_commit(self._commits, commit)
        pinned = self._snapshots.of(stored)  # I10: a vacuum sees the pin or the branch
        try:
            self._commits.create_branch(name, stored)
        finally:
            del pinned

    def __delitem__(self, name: str) -> None:
        """Delete a branch, durably. The next vacuum deletes the data that only this branch has.

        Raises `ValueError` for the first branch, and if a named transaction is open on this branch.
        """
        try:
            self._commits.delete_branch(name)
        except CommitNotFoundError as error:
            raise KeyError(name) from error

    def rename(self, name: str, new: str) -> None:
        """Rename a branch, durably. Its readers and writers continue.

        Raises `KeyError` if there is no such branch, `ValueError` for the first branch or if the new name is used.
        """
        try:
            self._commits.rename_branch(name, new)
        except CommitNotFoundError as error:
            raise KeyError(name) from error

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in list(self)

    def __iter__(self) -> Iterator[str]:
        return iter([MAIN, *sorted(self._commits.branches.all())])

    def __len__(self) -> int:
        return 1 + len(self._commits.branches.all())

    def __repr__(self) -> str:
        return f"<Branches {', '.join(self)}>"

    def _repr_html_(self) -> str:
        return html_of_named("Branches", self)

"""Makes the branches of a repository a mapping."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

from txstore.commit import MAIN, Commit, Stored
from txstore.errors import CommitNotFoundError, ErasedError, SnapshotExpiredError
from txstore.format import names
from txstore.history import operations
from txstore.history.commits import Commits
from txstore.history.find import NO_COMMIT, At, find_commit
from txstore.history.log import html_of_named
from txstore.history.snapshot import Snapshot, Snapshots
from txstore.history.staged_packs import recorded


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
        `SnapshotExpiredError` for a commit that a vacuum has expired, `ErasedError` for one with values that are being
        erased.
        """
        self._commits.branches.check_free(name)
        if commit is None:
            raise CommitNotFoundError(f"branch {name!r}", advice=NO_COMMIT)
        stored = find_commit(self._commits, commit)
        pinned = self._snapshots.of(stored)  # I10: a vacuum sees the pin or the branch
        about = {"branch": name, "at": str(stored.commit), "commit": stored.commit.id}
        try:
            with operations.recorded(self._commits.storage, "create branch", about, keeps_failed=False):
                self._create(name, stored, pinned)
        finally:
            del pinned

    def _create(self, name: str, stored: Stored, snapshot: Snapshot) -> None:
        """Begin a branch behind a commit, durably. Raises `ValueError` for a name in use, and `ErasedError`."""
        commits, header = self._commits, stored.header
        commits.branches.check_free(name)
        commits.tags.check_free(name)
        commits.store.ensure(stored)  # I1: the branch is
        commits.branches.create(name, stored.name)
        try:
            commits.tags.check_free(name)  # a process that makes a tag looks for branches after that
            snapshot.check_not_being_erased()  # one whose record is not there yet waits for the pin, or sees the branch
        except (ValueError, ErasedError):
            commits.branches.delete(name)
            raise
        if not commits.kept.stays(stored, but_branch=name):
            commits.branches.delete(name)  # as a tag
            raise SnapshotExpiredError(commits.branches.label(header.branch, header.version))

    def __delitem__(self, name: str) -> None:
        """Delete a branch, durably. The next vacuum deletes the data that only this branch has.

        Raises `ValueError` for the first branch, and if a named transaction is open on this branch.
        """
        try:
            self._delete(name)
        except CommitNotFoundError as error:
            raise KeyError(name) from error

    def _delete(self, name: str) -> None:
        """Delete a branch, durably. Its commits stay until a vacuum."""
        branch = self._commits.branches.id_of(name)
        for record in recorded(self._commits.storage):
            if record.branch == branch and record.name is not None:
                raise ValueError(f"transaction {record.name!r} is open on branch {name!r}: commit it, or roll it back")
        about = {"branch": name, "id": branch}  # not its head: to look for it may complete a group commit
        with (
            operations.recorded(self._commits.storage, "delete branch", about, keeps_failed=False),
            self._commits.storage.lock(names.COMMIT_LOCK),  # no process commits to it meanwhile
        ):
            self._commits.branches.delete(name)

    def rename(self, name: str, new: str) -> None:
        """Rename a branch, durably. Its readers and writers continue.

        Raises `KeyError` if there is no such branch, `ValueError` for the first branch or if the new name is used.
        """
        try:
            self._rename(name, new)
        except CommitNotFoundError as error:
            raise KeyError(name) from error

    def _rename(self, name: str, new: str) -> None:
        commits = self._commits
        commits.tags.check_free(new)
        about = {"branch": name, "to": new}
        with (
            operations.recorded(commits.storage, "rename branch", about, keeps_failed=False),
            commits.storage.lock(names.COMMIT_LOCK),
        ):
            commits.branches.rename(name, new)
            try:
                commits.tags.check_free(new)
            except ValueError:
                commits.branches.rename(new, name)
                raise

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

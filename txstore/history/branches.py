"""Makes the branches, and the tags, of a repository mappings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, MutableMapping

from txstore.commit import MAIN, Commit, Stored
from txstore.errors import CommitNotFoundError, ErasedError, SnapshotExpiredError, TxStoreError
from txstore.format import names
from txstore.format.keys import check_name
from txstore.format.records import Tag
from txstore.history import operations
from txstore.history.commits import Commits
from txstore.history.find import NO_COMMIT, At, find_commit, find_tagged
from txstore.history.log import html_of_named
from txstore.history.snapshot import Snapshot, Snapshots
from txstore.history.staged_packs import recorded
from txstore.steps import step


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


class Tags(MutableMapping[str, Commit]):
    """The tags of a repository. A tag never moves. A vacuum keeps a tagged commit until you delete the tag."""

    def __init__(self, commits: Commits, snapshots: Snapshots) -> None:
        self._commits = commits
        self._snapshots = snapshots

    def __getitem__(self, name: str) -> Commit:
        try:
            return find_tagged(self._commits, name).commit
        except CommitNotFoundError as error:
            raise KeyError(name) from error

    def __setitem__(self, name: str, commit: At | None) -> None:
        """Tag a commit, durably. `CommitNotFoundError` for None, which `repo.head()` returns if there is no commit."""
        if commit is None:
            raise CommitNotFoundError(f"tag {name!r}", advice=NO_COMMIT)
        stored = find_commit(self._commits, commit)
        pinned = self._snapshots.of(stored)  # I10: a vacuum sees the pin or the tag
        about = {"tag": name, "at": str(stored.commit), "commit": stored.commit.id}
        try:
            with operations.recorded(self._commits.storage, "create tag", about, keeps_failed=False):
                self._write(name, stored)
        except FileExistsError:
            raise ValueError(f"tag {name!r} exists; a tag is never moved: choose another name") from None
        finally:
            del pinned

    @step("write tag")
    def _write(self, name: str, stored: Stored) -> None:
        """Create a tag. Raises `FileExistsError`: a tag is written once; `ValueError` if a branch has the name."""
        commits, header = self._commits, stored.header
        self._check_no_branch(name)
        commits.store.make_durable(stored)  # I1: the tag is
        content = Tag(header.branch, header.version, header.id).encode()
        commits.storage.write_once(names.tag_path(check_name("tag", name)), content, durable=True)
        try:
            self._check_no_branch(name)  # a process that makes a branch looks for tags after that
        except ValueError:
            commits.tags.delete(name)
            raise
        if not commits.kept.stays(stored, but_tag=name):
            # A vacuum may have looked for tags before this one was there.
            commits.tags.delete(name)
            raise SnapshotExpiredError(commits.branches.label(header.branch, header.version))

    def _check_no_branch(self, name: str) -> None:
        """Raise `ValueError` if a branch has the name of a tag: `at=` takes both."""
        with contextlib.suppress(CommitNotFoundError):
            self._commits.branches.id_of(name)
            raise ValueError(f"branch {name!r} exists, and at={name!r} would name either: choose another name")

    def __delitem__(self, name: str) -> None:
        """Delete a tag, durably. Its commit stays until a vacuum expires it."""
        commits, about = self._commits, {"tag": name}
        with contextlib.suppress(TxStoreError, OSError):  # a tag may be deleted because it is damaged
            tag = commits.tags.read(name)
            about |= {"at": commits.branches.label(tag.branch, tag.version), "commit": tag.commit_id.hex()}
        try:
            with operations.recorded(commits.storage, "delete tag", about, keeps_failed=False):
                commits.tags.delete(name)
        except CommitNotFoundError as error:
            raise KeyError(name) from error

    def __iter__(self) -> Iterator[str]:
        tags = sorted(self._commits.tags.names())
        if not tags:
            self._commits.identity.check_there()
        return iter(tags)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"<Tags {', '.join(self)}>"

    def _repr_html_(self) -> str:
        return html_of_named("Tags", self)

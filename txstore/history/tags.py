"""Makes the tags of a repository a mapping."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, MutableMapping

from txstore.commit import Commit, Stored
from txstore.errors import CommitNotFoundError, SnapshotExpiredError, TxStoreError
from txstore.format import names
from txstore.format.keys import check_name
from txstore.format.records import Tag
from txstore.history import operations
from txstore.history.commits import Commits
from txstore.history.find import NO_COMMIT, At, find_commit, find_tagged
from txstore.history.log import html_of_named
from txstore.history.snapshot import Snapshots
from txstore.steps import step


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

"""Makes the tags of a repository a mapping."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

from txstore.commit import Commit
from txstore.errors import CommitNotFoundError
from txstore.history.commits import Commits
from txstore.history.find import NO_COMMIT, At, find_commit, find_tagged
from txstore.history.log import html_of_named
from txstore.history.snapshot import Snapshots


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
        try:
            self._commits.write_tag(name, stored)
        except FileExistsError:
            raise ValueError(f"tag {name!r} exists; a tag is never moved: choose another name") from None
        finally:
            del pinned

    def __delitem__(self, name: str) -> None:
        """Delete a tag, durably. Its commit stays until a vacuum expires it."""
        try:
            self._commits.delete_tag(name)
        except CommitNotFoundError as error:
            raise KeyError(name) from error

    def __iter__(self) -> Iterator[str]:
        tags = sorted(self._commits.tag_names())
        if not tags:
            self._commits.identity.check_there()
        return iter(tags)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"<Tags {', '.join(self)}>"

    def _repr_html_(self) -> str:
        return html_of_named("Tags", self)

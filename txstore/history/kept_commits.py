"""Tells which commits a vacuum keeps, and which names keep them."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Collection, Iterator, Sequence

from txstore.commit import MAIN, Stored
from txstore.errors import CommitNotFoundError, CorruptionError
from txstore.format import encoding, names
from txstore.format.keys import check_name
from txstore.format.records import Tag
from txstore.history.branch_names import BranchNames, OldestKept
from txstore.history.chain import Chain
from txstore.history.identity import Identity
from txstore.steps import step
from txstore.storage.interface import Storage, read_listed
from txstore.storage.objects.errors import NoListsError


def near_names(asked: str, there: Sequence[str]) -> str:
    """Return a text with the names that are similar to an unknown one; "" if none is."""
    near = difflib.get_close_matches(asked, there, cutoff=0.5)
    return f"there is {' and '.join(map(repr, near))}" if near else ""


class TagNames:
    """The records of the tags of one repository."""

    def __init__(self, storage: Storage, identity: Identity) -> None:
        self._storage = storage
        self._identity = identity

    def all(self) -> dict[str, Tag]:
        """Return all tags by their names. Raises `CorruptionError`."""

        def read(name: str) -> Tag | None:
            with contextlib.suppress(CommitNotFoundError):
                return self.read(name)
            return None

        return read_listed(self.names, read)

    def names(self) -> list[str]:
        return [name for name in self._storage.list(names.TAGS) if names.is_name(name)]

    def read(self, name: str) -> Tag:
        path = names.tag_path(check_name("tag", name))
        try:
            return Tag.decode(self._storage.read(path))
        except FileNotFoundError:
            self._identity.check_there()
            raise self._missing(name) from None
        except encoding.MalformedError as error:
            raise CorruptionError(path, reason=error.reason) from error

    def _missing(self, name: str) -> CommitNotFoundError:
        near = ""
        with contextlib.suppress(NoListsError):
            near = near_names(name, self.names())
        return CommitNotFoundError(f"tag {name!r}", advice=f"there is no such tag; {near or 'see repo.tags'}")

    def check_free(self, name: str) -> None:
        """Raise `ValueError` if a tag has the name of a branch: `at=` takes both."""
        if self._storage.exists(names.tag_path(check_name("tag", name))):
            raise ValueError(f"tag {name!r} exists, and at={name!r} would name either: choose another name")

    @step("delete tag")
    def delete(self, name: str) -> None:
        """Delete a tag, durably. Raises `CommitNotFoundError` if there is none, `OSError`."""
        path = names.tag_path(check_name("tag", name))
        if not self._storage.exists(path):
            self._identity.check_there()
            raise self._missing(name)
        self._storage.delete(path)
        # A tag that came back after a power loss would name a commit that a vacuum may have deleted.
        self._storage.sync_directory(names.TAGS)


class KeptCommits:
    """The commits that tags, branches, merges and the oldest kept versions of a repository keep."""

    def __init__(
        self,
        branches: BranchNames,
        tags: TagNames,
        oldest_kept: OldestKept,
        chain: Chain,
        head: Callable[[str], Stored | None],
    ) -> None:
        self._branches = branches
        self._tags = tags
        self._oldest_kept = oldest_kept
        self._chain = chain
        self._head = head

    def has(self, stored: Stored) -> bool:
        """Tell whether a commit is kept: no vacuum has expired it.

        A commit is kept if it is not below the oldest kept version of an existing branch, if it is tagged, if a branch
        starts at it, or if it is the last commit of a branch that a kept commit has merged.
        """
        header = stored.header
        if self._oldest_kept.of(header.branch) <= header.version and self._branches.is_living(header.branch):
            return True
        return self._is_held(stored) or self._is_merged(stored)

    def stays(self, stored: Stored, *, but_tag: str | None = None, but_branch: str | None = None) -> bool:
        """Tell whether a commit is kept even without one of its names."""
        header = stored.header
        if header.version >= self._oldest_kept.of(header.branch) and self._branches.is_living(header.branch):
            return True
        return self._is_held(stored, but_tag=but_tag, but_branch=but_branch)

    def _is_held(self, stored: Stored, *, but_tag: str | None = None, but_branch: str | None = None) -> bool:
        """Tell whether a commit is tagged, or a branch starts at it."""
        commit_id = stored.header.id
        if any(record.commit_id == commit_id for name, record in self._branches.all().items() if name != but_branch):
            return True  # also if a tag is damaged
        return any(tag.commit_id == commit_id for name, tag in self._tags.all().items() if name != but_tag)

    def _is_merged(self, stored: Stored) -> bool:
        """Tell whether a kept commit has merged this one."""
        living = [MAIN, *(record.id for record in self._branches.all().values())]
        heads = [head for head in map(self._head, living) if head is not None]
        place, related = (stored.header.branch, stored.header.version), self._branches.related()
        return any(place in kept_with(child, related) for head in heads for child in self._chain.ancestors(head))


def kept_with(stored: Stored, related: Collection[str]) -> Iterator[tuple[str, int]]:
    """Yield the branch and version of each commit that a given commit keeps: the last that it has merged of a branch.

    A later merge with any of the `related` branches starts from these.
    """
    header = stored.header
    if header.merged is not None:
        yield header.merged.branch, header.merged.version
    for branch, version in header.reach.items():
        if branch != header.branch and branch in related:
            yield branch, version

"""Reads the tags of a repository, and the commit that each names."""

from __future__ import annotations

import contextlib

from txstore.errors import CommitNotFoundError, CorruptionError
from txstore.format import encoding, names
from txstore.format.keys import check_name
from txstore.format.records import Tag
from txstore.history.identity import Identity
from txstore.steps import step
from txstore.storage.interface import Storage, read_listed


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
            raise CommitNotFoundError(f"tag {name!r}", advice="there is no such tag; see repo.tags") from None
        except encoding.MalformedError as error:
            raise CorruptionError(path, reason=error.reason) from error

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
            raise CommitNotFoundError(f"tag {name!r}", advice="there is no such tag; see repo.tags")
        self._storage.delete(path)
        # A tag that came back after a power loss would name a commit that a vacuum may have deleted.
        self._storage.sync_directory(names.TAGS)

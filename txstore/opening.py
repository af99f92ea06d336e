"""Which storage a URL means, and the history that lies on it."""

from __future__ import annotations

import os
from typing import Any

from fsspec.core import split_protocol

from txstore.commits import Commits
from txstore.local_storage import LocalStorage
from txstore.objects import open_objects
from txstore.remote_commits import RemoteCommits
from txstore.remote_storage import RemoteStorage
from txstore.storage import Storage


def open_storage(
    url: str | os.PathLike[str], options: dict[str, Any] | None = None, *, single_writer: bool = False
) -> Storage:
    """Return the storage for a path or URL. Nothing is read yet.

    `options` are those of the fsspec file system; `single_writer` says that nobody else writes, where the file system
    can't make sure that a commit is made by one alone.

    Raises `ValueError` for a scheme that nobody knows, or for options that a local directory does not have.
    """
    protocol, path = split_protocol(os.fspath(url))
    if protocol not in (None, "file", "local"):
        return RemoteStorage(open_objects(os.fspath(url), options, single_writer=single_writer))
    if options:
        raise ValueError(f"storage_options {sorted(options)} mean nothing for the local path {path!r}: leave them out")
    return LocalStorage(os.path.abspath(os.path.expanduser(path)))


def open_commits(storage: Storage) -> Commits:
    """Return the history of the repository that lies, or will, on a storage."""
    return RemoteCommits(storage) if isinstance(storage, RemoteStorage) else Commits(storage)

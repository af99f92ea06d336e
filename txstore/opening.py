"""Which storage a URL means, and the history that lies on it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fsspec.core import split_protocol

from txstore.commits import Commits
from txstore.file_systems import is_on_network
from txstore.local_storage import LocalStorage
from txstore.network_storage import NetworkStorage
from txstore.objects import open_objects
from txstore.pack_cache import CACHE_SIZE, open_cache
from txstore.remote_commits import RemoteCommits
from txstore.remote_storage import RemoteStorage
from txstore.sources import Allowed
from txstore.storage import Storage


class Access(NamedTuple):
    """How a URL is reached: what `Repository` is told besides."""

    storage_options: Mapping[str, Any] = MappingProxyType({})  # of the fsspec file system; they may be secrets
    single_writer: bool = False
    cache_dir: str | None = None
    cache_size: int = CACHE_SIZE
    sources: Allowed = MappingProxyType({})  # below which URLs values may lie outside; the options may be secrets

    def __repr__(self) -> str:
        sources = f", sources {sorted(self.sources)}" if self.sources else ""
        return f"<Access with {sorted(self.storage_options)}{sources}>"


_PLAIN = Access()


def open_storage(url: str | os.PathLike[str], access: Access = _PLAIN) -> Storage:
    """Return the storage for a path or URL. Nothing is read yet.

    Raises `ValueError` for a scheme that nobody knows, or for options that a local directory does not have.
    """
    protocol, path = split_protocol(os.fspath(url))
    if protocol not in (None, "file", "local"):
        objects = open_objects(os.fspath(url), access.storage_options, single_writer=access.single_writer)
        return RemoteStorage(objects, open_cache(access.cache_dir, access.cache_size))
    root = os.path.abspath(os.path.expanduser(path))
    is_shared = is_on_network(root)
    meant_for_others = sorted(access.storage_options)
    meant_for_others += ["single_writer"] if access.single_writer else []
    meant_for_others += ["cache_dir"] if access.cache_dir and not is_shared else []
    if meant_for_others:
        raise ValueError(f"{', '.join(meant_for_others)}: means nothing for the local path {path!r}; leave it out")
    if is_shared:
        return NetworkStorage(root, open_cache(access.cache_dir, access.cache_size))
    return LocalStorage(root)


def open_commits(storage: Storage) -> Commits:
    """Return the history of the repository that lies, or will, on a storage."""
    return RemoteCommits(storage) if isinstance(storage, RemoteStorage) else Commits(storage)

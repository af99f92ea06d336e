"""Opens the storage that a URL names, and the history on it.

A store prints itself as `txstore://` and its URL, and zarr adds the path of an array:
`txstore:///data/run.tx/position`. TxStore can open such a printed URL. Only a printed URL may include a path inside the
repository; TxStore finds the repository's end by checking each parent directory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fsspec.core import split_protocol

from txstore.errors import RepositoryNotFoundError
from txstore.format import names
from txstore.history.branch_names import BranchNames, OldestKept
from txstore.history.branch_store import Ground
from txstore.history.branches_in_objects import BranchesInObjects
from txstore.history.branches_on_disk import BranchesOnDisk
from txstore.history.carried_commits import CarriedCommits
from txstore.history.chain import Chain, Told
from txstore.history.commit_files import CommitFiles
from txstore.history.commits import Commits
from txstore.history.identity import Identity
from txstore.history.object_head_caches import TAIL, ObjectHeadCaches
from txstore.history.staged_packs import PacksInPlace, PacksInStaging
from txstore.history.url_parameters import split_parameters
from txstore.storage.file_systems import is_on_network
from txstore.storage.foreign_files import Allowed
from txstore.storage.interface import Storage
from txstore.storage.kept import CACHE_SIZE, open_cache
from txstore.storage.local import LocalStorage, NetworkStorage
from txstore.storage.objects.interface import open_objects
from txstore.storage.objects.urls import archives_of, check_slashes, public
from txstore.storage.remote import RemoteStorage

#: Bytes of decoded chunks that a repository keeps in memory, unless it is told otherwise.
CHUNK_CACHE_SIZE = 0


class Access(NamedTuple):
    """The options for access to a URL, as given to `Repository`."""

    storage_options: Mapping[str, Any] = MappingProxyType({})  # for the fsspec file system; may contain secrets
    single_writer: bool = False
    cache_dir: str | None = None
    cache_size: int = CACHE_SIZE
    sources: Allowed = MappingProxyType({})  # URLs below which foreign values may lie; options may contain secrets
    commit_timeout: float | None = None  # seconds
    chunk_cache: int = CHUNK_CACHE_SIZE  # bytes of decoded chunks in memory

    def __repr__(self) -> str:
        sources = f", sources {sorted(self.sources)}" if self.sources else ""
        return f"<Access with {sorted(self.storage_options)}{sources}>"


_PLAIN = Access()


def locate(url: str | os.PathLike[str], access: Access = _PLAIN) -> tuple[str, str]:
    """Return the URL of a repository, and the path inside it. The path is empty unless the URL begins with `txstore:`.

    Raises `ValueError` for a malformed URL, and for one with parameters: `split_parameters` takes them off.
    """
    address = os.fspath(url)
    check_slashes(address)
    if not address.startswith((names.PRINTED, names.CHAINED)):
        return address, ""
    _, parameters = split_parameters(address)
    if given := str(parameters):
        raise ValueError(
            f"?{given}: take this off the URL, and pass it as arguments. Only tools that take a URL take it so"
        )
    whole = repository = address.removeprefix(names.PRINTED).removeprefix(names.CHAINED).rstrip("/")
    inside: list[str] = []
    while not is_repository(repository, access):
        above, _, name = repository.rpartition("/")
        if not above or above.endswith(":/"):
            return whole, ""  # there is no repository yet
        repository, inside = above, [name, *inside]
    return repository, "/".join(inside)


def is_repository(url: str, access: Access = _PLAIN) -> bool:
    """Tell by the names in it whether this is the root of a repository."""
    if split_protocol(url)[0] is not None:
        return open_storage(url, access).exists(names.FORMAT)
    return names.is_repository(url)


def _is_inside(given: str, repository: str, path: str) -> RepositoryNotFoundError:
    reason = f"this is inside of the repository {repository}: open that, and give zarr path={path!r}"
    return RepositoryNotFoundError(given, reason=reason)


def open_storage(url: str | os.PathLike[str], access: Access = _PLAIN) -> Storage:
    """Return the storage for a path or URL. This reads no file of the repository.

    Raises `ValueError` for a scheme that no installed library supports, or for options that a local directory does not
    have, and `RepositoryNotFoundError` for a path inside a repository.
    """
    url, inside = locate(given := os.fspath(url), access)
    if inside:
        raise _is_inside(given, url, inside)
    if archives_of(url):
        raise ValueError(f"{public(url)}: an archive or a manifest is no place of a repository: unpack it first")
    protocol, path = split_protocol(url)
    if protocol not in (None, "file", "local"):
        objects = open_objects(url, access.storage_options, single_writer=access.single_writer)
        return RemoteStorage(objects, open_cache(access.cache_dir, access.cache_size), given=given)
    root = os.path.abspath(os.path.expanduser(path))
    if os.path.islink(root) and not os.path.exists(root):
        reason = (
            f"this is a symbolic link to {os.readlink(root)!r}, which does not exist: restore that, or delete the link"
        )
        raise RepositoryNotFoundError(root, reason=reason)
    if not os.path.lexists(root) and is_repository(root + names.BESIDE):
        reason = (
            f"the repository is in {root + names.BESIDE!r}, and the link to it that `protect` made is gone: "
            f"`txstore protect {root}` makes it again"
        )
        raise RepositoryNotFoundError(root, reason=reason)
    if not os.path.lexists(root):  # the user means an array inside a repository, not a new repository in another
        for above in map(str, Path(root).parents):
            if is_repository(above):
                raise _is_inside(root, above, os.path.relpath(root, above))
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
    """Return the history of the repository on a storage. The repository need not exist yet."""
    if isinstance(storage, RemoteStorage):
        return _commits_in_objects(storage)
    identity = Identity(storage)
    branches = BranchNames(storage, identity)
    files, oldest_kept = CommitFiles(storage, identity, branches), OldestKept(storage, branches)
    chain = Chain(files, oldest_kept, branches, Told(files))
    ground = Ground(storage, identity, branches, files, oldest_kept, chain)
    return Commits(ground, BranchesOnDisk(ground), PacksInStaging(storage, identity))


def _commits_in_objects(storage: RemoteStorage) -> Commits:
    head_caches = ObjectHeadCaches(storage)
    identity = Identity(storage, head_caches.expect)
    branches = BranchNames(storage, identity)
    files = CommitFiles(storage, identity, branches, tail_size=TAIL, at_once=128, kept_in=storage.cache)
    oldest_kept = OldestKept(storage, branches)
    carried = CarriedCommits(files, identity, branches, storage.cache)
    chain = Chain(files, oldest_kept, branches, carried)
    ground = Ground(storage, identity, branches, files, oldest_kept, chain)
    store = BranchesInObjects(storage, ground, carried, head_caches)
    oldest_kept.head = store.head
    return Commits(ground, store, PacksInPlace(storage, identity))

"""`Repository.export`: one commit as a plain Zarr hierarchy, byte for byte, that is there whole or can't be opened."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from txstore.bridges.foreign_files import ForeignFile, Place
from txstore.bridges.zarr_arrays import in_parallel
from txstore.commit import MAIN, Commit
from txstore.errors import CommitNotFoundError, ExportError
from txstore.keys import directory_prefix, is_document
from txstore.snapshot import Snapshot

if TYPE_CHECKING:
    from txstore.repository import Repository

#: Says what is being exported here; gone when all is there.
MARKER = ".txstore-export"


@dataclass(frozen=True, slots=True)
class Export:
    """What an export has written."""

    commit: Commit
    keys: int
    bytes: int
    written: int  # bytes; the others were there, from a run that was interrupted


def export(
    repo: Repository,
    destination: str | os.PathLike[str],
    *,
    at: int | str | datetime | None = None,
    branch: str = MAIN,
    tag: str | None = None,
    path: str = "",
    verify: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Export:
    """See `Repository.export`."""
    snapshot = repo.mapping(at, branch=branch, tag=tag)
    place = Place(destination, storage_options)
    commit = snapshot.commit
    if commit is None:
        raise CommitNotFoundError(repo.url, hint="there is no commit yet, so there is nothing to export")
    prefix = directory_prefix(path)
    sizes = {key.removeprefix(prefix): snapshot.size_of(key) or 0 for key in snapshot.keys_below(path)}
    if not sizes:
        raise ExportError(place.url, f"there is nothing at {path or '/'!r} in {commit}; look at the path")
    _check_keys(place, sizes)
    check_outside(repo, place)
    told = {"repository": repo.id, "commit": commit.id, "path": prefix}
    there = _begin(place, told)
    copying = _Copying(snapshot, place, prefix, sizes, there, verify, progress)
    # Chunks, then arrays, then groups, the root last: what can be opened is whole.
    for keys in _in_order(sizes):
        copying.copy(keys)
    place.fs.rm_file(place.path(MARKER))
    return Export(commit, len(sizes), copying.total, copying.written)


def _check_keys(place: Place, sizes: Mapping[str, int]) -> None:
    """Raise `ExportError` for keys that can't be file names below the destination."""
    for key in sizes:
        parts = key.split("/")
        if "\0" in key or key == MARKER:
            raise ExportError(place.url, f"the key {key!r} can't be a file name; delete it, or export another path")
        if any("/".join(parts[:n]) in sizes for n in range(1, len(parts))):
            raise ExportError(place.url, f"above the key {key!r} is another: a file can't be a directory, too")


def check_outside(repo: Repository, place: Place) -> None:
    """Raise `ExportError` for a place inside of the repository."""
    repository = Place(repo.url) if "://" not in repo.url else None
    if place.is_local and repository is not None:
        inner, outer = os.path.realpath(place.root), os.path.realpath(repository.root)
    else:
        inner, outer = place.url, repo.url
    if f"{inner}/".startswith(f"{outer}/"):
        raise ExportError(place.url, "it is inside of the repository; choose a place beside it")


def _begin(place: Place, told: Mapping[str, str]) -> dict[str, ForeignFile]:
    """Say what is being exported, and return the files that are there, from a run before.

    Raises `ExportError` if something else is there.
    """
    if place.fs.isfile(place.root):
        raise ExportError(place.url, "this is a file; choose an empty or a new place")
    there = {}
    with suppress(FileNotFoundError):
        there = place.files()
    if MARKER in there:
        try:
            same = json.loads(place.read(MARKER)) == told
        except ValueError:
            same = not set(there) - {MARKER}  # it was killed as it wrote this, before all else
        if not same:
            raise ExportError(place.url, "another export was begun here; delete it, or choose another place")
        return there
    if there:
        raise ExportError(place.url, f"it holds something ({min(there)!r}); choose an empty or a new place")
    place.fs.makedirs(place.root, exist_ok=True)
    place.fs.pipe_file(place.path(MARKER), json.dumps(told).encode())
    return {}


def _in_order(sizes: Mapping[str, int]) -> Iterable[list[str]]:
    documents = [key for key in sizes if is_document(key)]
    yield [key for key in sizes if not is_document(key)]
    # The deepest first; of format 2 the attributes before what says that there is a node.
    for depth in sorted({key.count("/") for key in documents}, reverse=True):
        for names in ((".zattrs",), ("zarr.json", ".zarray", ".zgroup")):
            yield [key for key in documents if key.count("/") == depth and key.rpartition("/")[2] in names]


class _Copying:
    def __init__(
        self,
        snapshot: Snapshot,
        place: Place,
        prefix: str,
        sizes: Mapping[str, int],
        there: Mapping[str, ForeignFile],
        verify: bool,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._snapshot = snapshot
        self._place = place
        self._prefix = prefix
        self._sizes = sizes
        self._there = there
        self._verify = verify
        self._progress = progress
        self.total = sum(sizes.values())
        self.done = self.written = 0
        self._directories: set[str] = set()

    def copy(self, keys: Iterable[str]) -> None:
        for key, written in in_parallel(self._copy, keys, self._sizes.__getitem__):
            self.done += self._sizes[key]
            self.written += written
            if self._progress is not None:
                self._progress(self.done, self.total)

    def _copy(self, key: str) -> int:
        """Return how many bytes had to be written."""
        value = bytes(self._snapshot[self._prefix + key])  # its checksum is compared
        file = self._there.get(key)
        if file is not None and file.size == len(value) and self._place.read(key) == value:
            return 0
        path = self._place.path(key)
        directory = path.rpartition("/")[0]
        if directory not in self._directories:
            self._place.fs.makedirs(directory, exist_ok=True)
            self._directories.add(directory)
        self._place.fs.pipe_file(path, value)
        if self._verify and self._place.read(key) != value:
            raise ExportError(self._place.url, f"what was written to {key!r} is not what comes back; try another place")
        return len(value)

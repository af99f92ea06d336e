"""`Repository.export`: one commit as a plain Zarr hierarchy, byte for byte, that is there whole or can't be opened."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txstore.errors import CommitNotFoundError, ExportError
from txstore.format.keys import directory_prefix, is_document
from txstore.history.commit import MAIN, Commit
from txstore.history.find import At
from txstore.history.snapshot import Snapshot
from txstore.interchange.concealing import concealing
from txstore.interchange.destinations import Destination, check_outside, found_marker, is_place, open_destination, put
from txstore.interchange.zarr_arrays import in_parallel

if TYPE_CHECKING:
    from txstore.interchange.facade import Facade

#: Says what is being exported here; gone when all is there.
MARKER = ".txstore-export"


@dataclass(frozen=True, slots=True)
class Export:
    """What an export has written."""

    commit: Commit
    keys: int
    bytes: int
    written: int  # bytes; the others were there, from a run that was interrupted


@concealing
def export(
    repo: Facade,
    destination: str | os.PathLike[str],
    *,
    at: At | None = None,
    branch: str = MAIN,
    tag: str | None = None,
    path: str = "",
    verify: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Export:
    """See `Repository.export`."""
    snapshot = repo.mapping(at, branch=branch, tag=tag)
    target = open_destination(destination, storage_options, durable=False, refused=ExportError)
    commit = snapshot.commit
    if commit is None:
        raise CommitNotFoundError(repo.url, hint="there is no commit yet, so there is nothing to export")
    prefix = directory_prefix(path)
    sizes = {key.removeprefix(prefix): snapshot.size_of(key) or 0 for key in snapshot.keys_below(path)}
    if not sizes:
        raise ExportError(target.url, f"there is nothing at {path or '/'!r} in {commit}; look at the path")
    _check_keys(target, sizes)
    check_outside(target, repo.url)
    with target.alone():
        there = _begin(target, {"repository": repo.id, "commit": commit.id, "path": prefix})
        copying = _Copying(snapshot, target, prefix, sizes, there, verify, progress)
        # Chunks, then arrays, then groups, the root last: what can be opened is whole.
        for keys in _in_order(sizes):
            copying.copy(keys)
        target.delete([MARKER])
    return Export(commit, len(sizes), copying.total, copying.written)


def _check_keys(target: Destination, sizes: Mapping[str, int]) -> None:
    """Raise `ExportError` for keys that can't be file names below the destination."""
    for key in sizes:
        target.check_key(key)
        if key == MARKER:
            raise ExportError(target.url, f"the key {key!r} is the name of a file that export needs: delete it")
        parts = key.split("/")
        if any("/".join(parts[:n]) in sizes for n in range(1, len(parts))):
            raise ExportError(target.url, f"above the key {key!r} is another: a file can't be a directory, too")


def _begin(target: Destination, told: Mapping[str, str]) -> frozenset[str]:
    """Say what is being exported, and return which keys are there, from a run before.

    Raises `ExportError` if something else is there.
    """
    place = target.place()
    marker = found_marker(target, MARKER)
    if marker is None:
        target.write_marker(MARKER, json.dumps({**told, "place": place}).encode())
        return frozenset()
    try:
        before = json.loads(marker)
        there = before.pop("place")
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
        before = there = None
    if before != told or not is_place(there, place):
        raise ExportError(target.url, "another export was begun here; delete it, or choose another place")
    return frozenset(target.list())


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
        target: Destination,
        prefix: str,
        sizes: Mapping[str, int],
        there: Collection[str],
        verify: bool,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._snapshot = snapshot
        self._target = target
        self._prefix = prefix
        self._sizes = sizes
        self._there = there
        self._verify = verify
        self._progress = progress
        self.total = sum(sizes.values())
        self.done = self.written = 0

    def copy(self, keys: Iterable[str]) -> None:
        for key, written in in_parallel(self._copy, keys, self._sizes.__getitem__):
            self.done += self._sizes[key]
            self.written += written
            if self._progress is not None:
                self._progress(self.done, self.total)

    def _copy(self, key: str) -> int:
        """Return how many bytes had to be written."""
        value = bytes(self._snapshot[self._prefix + key])  # its checksum is compared
        is_written = put(self._target, key, value, compare=key in self._there, verify=self._verify)
        return len(value) if is_written else 0

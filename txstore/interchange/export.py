"""`Repository.export`: one commit as a plain Zarr hierarchy, byte for byte; until it is complete, it can't be opened.

Only the consolidated metadata at the root are added, because readers look for them: the repository has none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from txstore.commit import MAIN, Commit
from txstore.errors import CommitNotFoundError, ExportError
from txstore.format.consolidated import consolidate, documents_of, is_consolidated
from txstore.format.keys import directory_prefix, is_document
from txstore.history.find import At
from txstore.history.snapshot import Snapshot
from txstore.interchange.concealing import concealing
from txstore.interchange.destinations import (
    Destination,
    bits_of_copies,
    check_outside,
    check_tree,
    found_marker,
    is_place,
    open_destination,
    put,
)
from txstore.interchange.zarr_arrays import in_parallel
from txstore.progress import Progress

if TYPE_CHECKING:
    from txstore.store import OpenedRepository

#: Says what is being exported here; gone when all is there.
MARKER = ".txstore-export"


@dataclass(frozen=True, slots=True)
class Export:
    """What an export has written."""

    commit: Commit
    keys: int
    bytes: int
    written: int  # bytes; the others were there, from a run that was interrupted
    is_unchanged: bool = False  # all was there, whole: an export that had been finished


@concealing
def export(
    repo: OpenedRepository,
    destination: str | os.PathLike[str],
    *,
    at: At | None = None,
    branch: str = MAIN,
    tag: str | None = None,
    path: str = "",
    consolidated: bool = True,
    verify: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Export:
    """See `Repository.export`."""
    snapshot = repo.mapping(at, branch=branch, tag=tag)
    at_most = bits_of_copies(repo.engine.storage)
    target = open_destination(destination, storage_options, durable=False, at_most=at_most, refused=ExportError)
    commit = snapshot.commit
    if commit is None:
        raise CommitNotFoundError(repo.url, advice="there is no commit yet, so there is nothing to export")
    prefix = directory_prefix(path)
    sizes = {key.removeprefix(prefix): snapshot.size_of(key) or 0 for key in snapshot.keys_below(path)}
    if not sizes:
        raise ExportError(target.url, f"there is nothing at {path or '/'!r} in {commit}; look at the path")
    check_tree(target, sizes)
    if MARKER in sizes:
        raise ExportError(target.url, f"the key {MARKER!r} is the name of a file that export needs: delete it")
    check_outside(target, repo.url)
    made = consolidate(documents_of(snapshot, path)) if consolidated else {}
    sizes |= {key: len(content) for key, content in made.items()}
    copying = _Export(snapshot, target, prefix, sizes, made, verify, progress)
    with target.alone():
        if copying.is_finished():
            return Export(commit, len(sizes), copying.total, 0, is_unchanged=True)
        told = {"repository": repo.id, "commit": commit.id, "path": prefix, "consolidated": consolidated}
        copying.there = _begin(target, told)
        # Chunks, then arrays, then groups, the root last: what can be opened is whole.
        for keys in _in_order(sizes):
            copying.copy(keys)
        target.delete([MARKER])
    return Export(commit, len(sizes), copying.total, copying.written)


def _begin(target: Destination, told: Mapping[str, Any]) -> frozenset[str]:
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
    yield [key for key in sizes if not is_document(key) and not is_consolidated(key)]
    # The deepest first; of format 2 the attributes before what says that there is a node.
    for depth in sorted({key.count("/") for key in documents}, reverse=True):
        for names in ((".zattrs",), ("zarr.json", ".zarray", ".zgroup")):
            yield [key for key in documents if key.count("/") == depth and key.rpartition("/")[2] in names]
    yield [key for key in sizes if is_consolidated(key)]


class _Export:
    def __init__(
        self,
        snapshot: Snapshot,
        target: Destination,
        prefix: str,
        sizes: Mapping[str, int],
        made: Mapping[str, bytes],
        verify: bool,
        progress: Progress | None,
    ) -> None:
        self._snapshot = snapshot
        self._target = target
        self._prefix = prefix
        self._sizes = sizes
        self._made = made  # in place of what the snapshot has
        self.there: Collection[str] = ()  # from a run before
        self._verify = verify
        self._progress = progress
        self.total = sum(sizes.values())
        self.done = self.written = 0

    def is_finished(self) -> bool:
        """Tell whether a run before has written all of it, and nothing was changed since. Each value is compared."""
        there = islice(self._target.list(), len(self._sizes) + 1)  # no more of what is something else
        if self._target.read_marker(MARKER) is not None or set(there) != self._sizes.keys():
            return False

        def is_there(key: str) -> bool:
            return self._target.read(key) == self._value(key)

        # Documents first: of another commit or path they differ.
        keys = sorted(self._sizes, key=is_document, reverse=True)
        return all(found for _, found in in_parallel(is_there, keys, self._sizes.__getitem__))

    def copy(self, keys: Iterable[str]) -> None:
        for key, written in in_parallel(self._copy, keys, self._sizes.__getitem__):
            self.done += self._sizes[key]
            self.written += written
            if self._progress is not None:
                self._progress(self.done, self.total)

    def _copy(self, key: str) -> int:
        """Return how many bytes had to be written."""
        value = self._value(key)
        is_written = put(self._target, key, value, compare=key in self.there, verify=self._verify)
        return len(value) if is_written else 0

    def _value(self, key: str) -> bytes:
        if key in self._made:
            return self._made[key]
        return bytes(self._snapshot[self._prefix + key])  # its checksum is compared

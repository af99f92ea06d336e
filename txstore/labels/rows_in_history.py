"""Finds every stored value that a kept commit has below some arrays, and the elements of it that are rows to erase.

A value is named by the place where it lies: many commits have the same one. Its rows may be at other places by the
coordinates of other commits, then all of these are erased.

If an array was made shorter, the chunk at its end may still have the rows that it had before, and copies of that chunk
have them, too. Elements that no kept commit shows belong to no row, and are erased with the others, in any array:
commits that have expired, or were on a branch that is deleted, may have shown more of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from txstore.commit import Commit, Stored
from txstore.errors import ErasureError
from txstore.format import packfile
from txstore.format.commitfile import RunName
from txstore.format.keys import after_prefix, directory_prefix, is_document, node_of_document
from txstore.format.packfile import PackName
from txstore.history.commits import Commits
from txstore.history.snapshot import Snapshot, unpinned
from txstore.labels.rows_of_array import ArrayAt, ArrayRows, Boxes
from txstore.maintenance.reachable import kept_commits
from txstore.segments.ranged_packs import open_packs

if TYPE_CHECKING:
    from txstore.segments.runs import Found

#: Where a value lies: a pack, and the offset in it.
Address = tuple[PackName, int]


@dataclass
class StoredValue:
    """A value that kept commits have. `address` is where refs say that it lies.

    If another has replaced it, `pack` and `offset` say where that lies. `boxes` are the elements to erase.
    """

    key: str
    path: str
    kind: int
    address: Address
    pack: PackName
    offset: int
    length: int
    checksum: int
    boxes: dict[int, Boxes] = field(default_factory=dict)  # by their identity
    array: ArrayAt | None = None  # at a commit that has rows in it, if there is one
    unlabelled: Commit | None = None  # a commit that does not say which rows it has, as long as no other does
    shown: dict[int, int] | None = None  # how much of it any commit shows along an axis, if none shows all

    @property
    def places(self) -> tuple[Address, ...]:
        return tuple(dict.fromkeys([self.address, (self.pack, self.offset)]))


class RowsInHistory:
    """The values of arrays at or below some paths, from all kept commits.

    `values` has them by address, `paths` the arrays that have the dimensions at any commit.
    """

    def __init__(self, commits: Commits, prefixes: Sequence[str], rows: ArrayRows, *, leaves_labels: bool) -> None:
        """Look through all kept commits. `prefixes` are paths of nodes.

        `leaves_labels`: the coordinates of the dimensions are left alone, unless a prefix names them.

        Raises `ErasureError`; and `CorruptionError` or `FileNotFoundError`, also if a vacuum deletes commits meanwhile.
        """
        self.values: dict[Address, StoredValue] = {}
        self.paths: set[str] = set()
        self._commits = commits
        self._prefixes = tuple(prefixes)
        self._rows = rows
        self._leaves_labels = leaves_labels
        self._nodes: set[str] = set()  # that have had a document
        self._packs = open_packs(commits.storage)
        self._partly_shown: dict[str, dict[str, None]] = {}  # keys by array, at its present length
        chains = groupby(kept_commits(commits, {}), key=lambda stored: stored.header.branch)
        for _, chain in chains:
            self._walk(list(chain)[::-1])

    def _walk(self, chain: list[Stored]) -> None:
        """Look through commits of one branch, the oldest first."""
        before: frozenset[RunName] = frozenset()
        last: dict[str, ArrayAt | None] = {}
        previous: Snapshot | None = None
        for stored in chain:
            snapshot = unpinned(self._commits, stored, self._packs)
            if previous is not None:
                snapshot.opened = previous.opened
                if previous.version + 1 != snapshot.version:  # of a branch, only commits with names are left there
                    before, last = frozenset(), {}
            names = frozenset(snapshot.run_names)
            keys = self._keys_in(snapshot, [name for name in snapshot.run_names if name not in before])
            fresh: dict[str, list[str]] = {}
            for key in keys:
                if is_document(key):
                    self._nodes.add(node_of_document(key))
            for key in keys:
                if not is_document(key) and (path := self._array_of(key)) is not None:
                    fresh.setdefault(path, []).append(key)
            for path in sorted(self._nodes):
                self._look(snapshot, path, fresh.get(path, []), last)
            before, previous = names, snapshot

    def _keys_in(self, snapshot: Snapshot, names: Iterable[RunName]) -> list[str]:
        """Return the keys below the prefixes that any of some runs has."""
        found: set[bytes] = set()
        for name in names:
            run = snapshot.runs_named([name])
            for path in self._prefixes:
                prefix = directory_prefix(path)
                stop = after_prefix(prefix)
                found.update(
                    change.key
                    for change in run.changes(prefix.encode(), None if stop is None else stop.encode(), 0)
                    if change.kind in packfile.FRAME_OF_REF
                )
        return [key.decode() for key in sorted(found)]

    def _array_of(self, key: str) -> str | None:
        """Return the node of a chunk's key."""
        path = key
        while path:
            path = path.rpartition("/")[0]
            if path in self._nodes:
                return path
        return None

    def is_below(self, path: str) -> bool:
        """Tell whether any commit has a node at or below a path."""
        return any(f"{node}/".startswith(directory_prefix(path)) for node in self._nodes)

    def _look(self, snapshot: Snapshot, path: str, fresh: list[str], last: dict[str, ArrayAt | None]) -> None:
        array, was = self._rows.at(snapshot, path), last.get(path)
        if array is not None and self._leaves_labels and array.is_coordinate and path not in self._prefixes:
            array = None
        last[path] = array
        if array is not None:
            self.paths.add(path)
        keys = dict.fromkeys(fresh)
        if array is not None and (was is None or was.signature != array.signature):
            keys.update(dict.fromkeys(array.boxes))
            if was is None or was.is_labelled != array.is_labelled or was.axes != array.axes:
                keys.update(dict.fromkeys(self._live_below(snapshot, path)))
        if array is not None and was is not None and array.extents != was.extents:
            keys.update(self._partly_shown.pop(path, {}))
        for key, found in zip(keys, snapshot.runs.refs([key.encode() for key in keys]), strict=True):
            if found is not None and found.kind in packfile.FRAME_OF_REF:
                self._note(snapshot, path, key, found, array)

    def _live_below(self, snapshot: Snapshot, path: str) -> Iterator[str]:
        return (key for key in snapshot.keys_below(path) if not is_document(key))

    def _note(self, snapshot: Snapshot, path: str, key: str, found: Found, array: ArrayAt | None) -> None:
        runs = snapshot.runs
        address = runs.pack_name(found.run, found.pack), found.offset
        value = self.values.get(address)
        if value is None:
            new = runs.resolved(found, may_be_old=True)
            pack = runs.pack_name(new.run, new.pack)
            value = StoredValue(key, path, found.kind, address, pack, new.offset, new.length, new.checksum)
            self.values[address] = value
            if array is None or not array.is_labelled:
                value.unlabelled = snapshot.commit
        shown, known = {} if array is None else array.shown(key), value.shown
        value.shown = shown if known is None else {n: max(shown[n], known[n]) for n in shown.keys() & known.keys()}
        if array is None:
            return
        if shown:
            self._partly_shown.setdefault(path, {})[key] = None
        if array.is_labelled:
            value.unlabelled = None
        if value.array is None:
            value.array, value.key, value.path = array, key, path
        boxes = array.boxes.get(key)
        if boxes is not None:
            value.boxes[id(boxes)] = boxes
            value.array, value.key, value.path = array, key, path

    def check(self) -> None:
        """Raise `ErasureError` if some rows can't be found, or can't be erased."""
        for value in self.values.values():
            if value.unlabelled is not None and value.path in self.paths and not value.boxes:
                raise ErasureError(
                    [value.path],
                    f"{value.unlabelled} has values of it, and no coordinate that says which rows these are: erase it "
                    "as a whole, or by positions, or let a vacuum expire that commit",
                )
            if value.boxes and value.kind == packfile.REF_FOREIGN:
                raise ErasureError(
                    [value.path],
                    f"{value.key!r} lies in a file outside of the repository, which TxStore never changes: write it "
                    "here first, or erase the array as a whole",
                )

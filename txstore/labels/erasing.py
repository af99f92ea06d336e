"""Erases rows of arrays: what `maintenance.erase` has to be told of them, and the commits that overwrite them.

In every commit the rows are those that have the labels by that commit's own coordinate. The chunks with rows get fill
values there, and are encoded anew by the codecs of the array, as that commit describes it. All other elements stay.

A stored value is named by the place where it lies: many commits have the same one. Its rows may be at other places by
the coordinates of other commits, then all of these are erased.

If an array was made shorter, the chunk at its end may still have the rows that it had before, and copies of that chunk
have them, too. Elements that no kept commit shows belong to no row, and are erased with the others, in any array:
commits that have expired, or were on a branch that is deleted, may have shown more of it.
"""

from __future__ import annotations

import base64
import contextlib
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import groupby, product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from txstore.codecs.chunk_codec import ChunkDecoder, ChunkFiller, NotMergeableError
from txstore.commit import Commit, Stored
from txstore.engine import Engine
from txstore.errors import CorruptionError, ErasedError, ErasureError, NodeNotFoundError
from txstore.format import packfile
from txstore.format.cf import decoded
from txstore.format.commitfile import RunName
from txstore.format.documents import Described, describe, index_of
from txstore.format.keys import after_prefix, ancestors, directory_prefix, document_key, is_document, node_of_document
from txstore.format.packfile import PackName
from txstore.format.records import ErasureRecord
from txstore.history.changes import refs_of
from txstore.history.commits import Commits
from txstore.history.snapshot import Snapshot, unpinned
from txstore.maintenance.erase import is_below
from txstore.maintenance.reachable import kept_commits, living_branches
from txstore.maintenance.replacement_packs import ValueAfter
from txstore.segments.ranged_packs import open_packs

if TYPE_CHECKING:
    from txstore.codecs.chunk_codec import Places
    from txstore.format.grids import Grid
    from txstore.segments.runs import Found


Positions = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]


class Choice:
    """Rows along one dimension, by labels, as xarray's `.sel` finds them in any commit's coordinate, or by positions.

    A list names each of its labels. A slice names all labels between two, both included, in whichever order they are
    stored and given. Of dates, a text such as "2020-01" names the whole month, but not in a list. `unmet` are the
    labels that no commit has had so far, of those looked into.
    """

    def __init__(self, dimension: str, chosen: Any, *, by_position: bool) -> None:
        """Raises `ValueError` or `TypeError` for what names no rows."""
        self.dimension = dimension
        self.by_position = by_position
        self._slice = chosen if isinstance(chosen, slice) else None
        labels = () if self._slice is not None else _listed(chosen)
        self._is_list = self._slice is None and not _is_one(chosen)
        self._labels = list(labels)
        if self._slice is not None:
            if self._slice.step is not None:
                raise ValueError(f"{dimension!r}: a slice with a step names no range of labels: leave out the step")
            if not by_position and self._slice.start is None and self._slice.stop is None:
                raise ValueError(f"{dimension!r}: this slice is all of it: erase the arrays as a whole")
        elif not self._labels:
            raise ValueError(f"{dimension!r}: no labels are given")
        if by_position:
            self._check_positions()
        self.unmet: set[int] = set(range(len(self._labels))) if self._slice is None else {0}

    def _check_positions(self) -> None:
        bounds = [self._slice.start, self._slice.stop] if self._slice is not None else self._labels
        for each in bounds:
            if each is None and self._slice is not None:
                continue
            if isinstance(each, bool | np.bool_) or not isinstance(each, int | np.integer):
                raise TypeError(f"{self.dimension!r}: positions are integers, and {each!r} is none")
            if each < 0:
                raise ValueError(
                    f"{self.dimension!r}: position {each} counts from the end, which is elsewhere in each commit: "
                    "count from the start"
                )

    @property
    def shown_unmet(self) -> str:
        if self._slice is not None:
            return f"{self._slice.start!r} to {self._slice.stop!r}"
        some = [str(self._labels[number]) for number in sorted(self.unmet)[:5]]
        return ", ".join(some) + (", ..." if len(self.unmet) > 5 else "")

    def in_length(self, length: int) -> Positions:
        """Return the positions that are meant of a dimension of this length."""
        if self._slice is not None:
            found = np.arange(*self._slice.indices(length), dtype=np.intp)
            self.unmet -= {0} if len(found) else set()
            return found
        there = {number: each for number, each in enumerate(self._labels) if each < length}
        self.unmet -= there.keys()
        return np.unique(np.array(sorted(there.values()), np.intp))

    def among(self, values: npt.NDArray[Any]) -> Positions:
        """Return the positions of the labels in a coordinate that was decoded. Raises `TypeError`, `ValueError`."""
        if self._slice is not None:
            mask = self._between(values, self._slice.start, self._slice.stop)
            self.unmet -= {0} if mask.any() else set()
            return np.flatnonzero(mask)
        if self._is_list and len(self._labels) > 8 and values.dtype.kind in "biufUS":
            return self._many(values)
        found = np.zeros(len(values), bool)
        for number, label in enumerate(self._labels):
            mask = _is_label(self.dimension, values, label, may_be_period=not self._is_list)
            if mask.any():
                self.unmet.discard(number)
                found |= mask
        return np.flatnonzero(found)

    def _many(self, values: npt.NDArray[Any]) -> Positions:
        """Do as `among` for a long list, in one step."""
        numbers, wanted = [], []
        for number, label in enumerate(self._labels):
            own = _in_type_of(values, _comparable(self.dimension, values, label))
            if own is not None:
                numbers.append(number)
                wanted.append(own)
        labels = np.concatenate(wanted) if wanted else values[:0]
        self.unmet -= {number for number, there in zip(numbers, np.isin(labels, values), strict=True) if there}
        return np.flatnonzero(np.isin(values, labels))

    def _between(self, values: npt.NDArray[Any], start: Any, stop: Any) -> Mask:
        """Return which labels lie between two, the lower one first or last: their order may change between commits."""
        if (start is None or stop is None) and _descend(values):
            raise ValueError(
                f"{self.dimension!r}: the labels descend in some commit, so that a slice with one end may mean either "
                "side of it: give both ends"
            )
        ends = [None if each is None else _ends(self.dimension, values, each) for each in (start, stop)]
        low, high = ends
        if low is not None and high is not None and low[0] > high[0]:
            low, high = high, low
        mask = np.ones(len(values), bool)
        if low is not None:
            mask &= values >= low[0]
        if high is not None:
            _, last, is_included = high
            mask &= values <= last if is_included else values < last
        return mask


def _descend(values: npt.NDArray[Any]) -> bool:
    return bool((values[1:] <= values[:-1]).all()) and bool((values[1:] < values[:-1]).any())


def _is_one(chosen: Any) -> bool:
    return isinstance(chosen, str | bytes) or np.ndim(chosen) == 0


def _listed(chosen: Any) -> Sequence[Any]:
    if _is_one(chosen):
        return [chosen if not isinstance(chosen, np.ndarray) else chosen[()]]
    if np.ndim(chosen) != 1:
        raise ValueError("labels are one label, a list of them, or a slice")
    return list(chosen) if not isinstance(chosen, np.ndarray) else list(chosen.reshape(-1))


def _is_label(dimension: str, values: npt.NDArray[Any], label: Any, *, may_be_period: bool) -> Mask:
    if values.dtype.kind == "M" and may_be_period and isinstance(label, str):
        first, last, is_included = _ends(dimension, values, label)
        return np.asarray((values >= first) & (values <= last if is_included else values < last))
    return np.asarray(values == _comparable(dimension, values, label))


def _ends(dimension: str, values: npt.NDArray[Any], label: Any) -> tuple[Any, Any, bool]:
    """Return the first moment of a label, the last one, and whether that is included. Most labels are one moment."""
    moment = _comparable(dimension, values, label)
    if values.dtype.kind == "M" and isinstance(label, str):
        unit: Any = np.datetime_data(moment.dtype)[0]
        return moment, moment + np.timedelta64(1, unit), False
    return moment, moment, True


def _in_type_of(values: npt.NDArray[Any], label: Any) -> npt.NDArray[Any] | None:
    """Return a label as an array of one element, of the type that a coordinate has; None if no element equals it."""
    try:
        own = np.array([label]).astype(values.dtype)
    except OverflowError:
        return None
    return own if bool((own == label).all()) else None


def _comparable(dimension: str, values: npt.NDArray[Any], label: Any) -> Any:
    """Return a label as something that elements of a coordinate can be compared with."""
    kind = values.dtype.kind
    fault = TypeError(f"{dimension!r} has labels of {values.dtype}, and {label!r} is of another kind")
    if kind == "M":
        if not isinstance(label, str | date | np.datetime64):
            raise fault
        if getattr(label, "tzinfo", None) is not None:
            raise ValueError(
                f"{dimension!r}: {label} has a time zone, and the labels have none: convert it, as by "
                ".tz_convert('UTC').tz_localize(None) of pandas"
            )
        try:
            # Of pandas, `np.datetime64` would take microseconds.
            moment = label.to_datetime64() if hasattr(label, "to_datetime64") else np.datetime64(label)
        except ValueError as error:
            raise ValueError(f"{dimension!r}: {label!r} is no date: {error}") from None
        if np.isnat(moment):
            raise ValueError(f"{dimension!r}: NaT is no label")
        return moment
    if kind in "biuf" or kind == "c":
        if (
            isinstance(label, str | bytes | date | np.datetime64 | np.timedelta64)
            or np.asarray(label).dtype.kind not in "biufc"
        ):
            raise fault
        if np.isnan(label):
            raise ValueError(f"{dimension!r}: NaN is no label")
        return label
    if kind == "m":
        if not isinstance(label, np.timedelta64) and not hasattr(label, "total_seconds"):
            raise fault
        duration = label.to_timedelta64() if hasattr(label, "to_timedelta64") else np.timedelta64(label)
        if np.isnat(duration):
            raise ValueError(f"{dimension!r}: NaT is no label")
        return duration
    if kind in "UT" or (kind == "O" and all(isinstance(each, str) for each in values[:1])):
        if not isinstance(label, str):
            raise fault
        return str(label)
    if kind == "S":
        if not isinstance(label, str | bytes):
            raise fault
        return label.encode() if isinstance(label, str) else label
    if isinstance(label, str):  # dates of another calendar, as cftime has them
        raise fault
    return label


class ErasedRows:
    """The rows of arrays, or of all arrays of groups that have the dimensions: a `maintenance.erase.RowsToErase`.

    `paths` are those of the arrays.
    """

    def __init__(
        self,
        engine: Engine,
        paths: Sequence[str],
        rows: Mapping[str, Any],
        *,
        labels: bool = False,
        positions: bool = False,
    ) -> None:
        """Look through all commits for them. `Repository.erase` documents the parameters and errors."""
        if not rows:
            raise ValueError("name the rows: {dimension: labels}")
        if labels and (len(rows) > 1 or positions):
            raise ValueError("labels=True erases the labels of whole rows: give one dimension, and its labels")
        self.dimensions = tuple(rows)
        self._engine = engine
        self._given = tuple(dict.fromkeys(directory_prefix(path)[:-1] for path in paths))
        self._choices = [Choice(name, chosen, by_position=positions) for name, chosen in rows.items()]
        self._rows = ArrayRows(self._choices)
        self._packs = open_packs(engine.storage)
        self._prefixes, self._keeps_labels = self._given, not labels
        #: By where a value lies: its rows by the coordinates of all commits that have it.
        self._boxes: dict[Address, Collection[Boxes]] = {}
        self._found: RowsInHistory | None = self._look()
        for path in self._given:
            if not self._found.is_below(path):
                raise NodeNotFoundError(path)
        if not self._found.paths:
            shown = ", ".join(map(repr, self.dimensions))
            raise ErasureError(self._given, f"no commit has an array there with the dimensions {shown}")
        if labels:
            self._prefixes = tuple(dict.fromkeys((*self._given, *sorted(self._rows.coordinates))))
            self._found = self._look()
        if "" in self._found.paths:
            raise ValueError("rows of an array at the root can't be erased: erase it as a whole")
        self.paths = tuple(sorted(self._found.paths))

    def _look(self) -> RowsInHistory:
        """Look through all commits, again if a vacuum has deleted what this was about to read."""
        commits = self._engine.commits
        while True:
            kept = {branch: commits.oldest_kept.of(branch) for branch in living_branches(commits)}
            try:
                return RowsInHistory(commits, self._prefixes, self._rows, leaves_labels=self._keeps_labels)
            except (CorruptionError, FileNotFoundError):
                if {branch: commits.oldest_kept.of(branch) for branch in living_branches(commits)} == kept:
                    raise

    # --- what an erasure asks

    def check(self) -> bool:
        found, self._found = self._found, None
        if found is not None:
            with contextlib.suppress(CorruptionError, FileNotFoundError):  # a vacuum may have come since
                return self._check(found)
        return self._check(self._look())

    def _check(self, found: RowsInHistory) -> bool:
        found.check()
        self._boxes = {place: value.boxes.values() for value in found.values.values() for place in value.places}
        # Each is encoded, though one would answer: what can't be is to be known before anything is changed.
        return sum(after.value is not None for after in self._values(found)) > 0

    def shown_unmet(self, *, is_begun: bool) -> str:
        if is_begun and not self._keeps_labels:
            return ""
        return "; ".join(f"{choice.dimension!r}: {choice.shown_unmet}" for choice in self._choices if choice.unmet)

    def covers(self, record: ErasureRecord) -> bool:
        return record.dimensions == self.dimensions and all(is_below(path, self._prefixes) for path in record.paths)

    def are_in(self, snapshot: Snapshot) -> bool:
        return next(self._new_values(snapshot), None) is not None

    def values(self) -> Iterator[ValueAfter]:
        return self._values(self._look())

    def _values(self, found: RowsInHistory) -> Iterator[ValueAfter]:
        for value in found.values.values():
            if value.path in self.paths:
                yield ValueAfter(value.key, value.places, self._filled(value, value.shown or {}))

    def _filled(self, value: StoredValue, shown: Mapping[int, int]) -> bytes | None:
        array = value.array
        if array is None or not (value.boxes or shown) or not value.length or value.kind != packfile.REF_PACK:
            return None
        stored = self._packs.get(value.pack).view(value.offset, value.length, value.checksum, value.key)
        return _filled(array, value.key, stored, value.boxes.values(), shown)

    # --- the heads

    def overwrite(self, head: Snapshot, branch: str, *, asks: bool) -> None:
        """Commit fill values for the rows on top of the head of a branch, or only ask whether that can be."""
        shown = ", ".join(map(repr, self.paths[:5])) + (", ..." if len(self.paths) > 5 else "")
        along = ", ".join(map(repr, self.dimensions))
        message = f"overwrite rows of {shown} along {along}, to be erased"
        with self._engine.begin(head, branch=branch, message=message) as mapping:
            for key, value in self._new_values(head):
                mapping[key] = value
            if asks:
                mapping.check()
                mapping.rollback()

    def _new_values(self, snapshot: Snapshot) -> Iterator[tuple[str, bytes]]:
        """Yield the chunks of a commit that have values of the rows, each with fill values in their place."""
        for path in self.paths:
            array = self._rows.at(snapshot, path)
            if array is None:
                continue
            for key, boxes in array.boxes.items():
                found = snapshot.lookup(key)
                stored = None if found is None else snapshot.get_view(key)
                if found is None or stored is None:
                    continue
                place = snapshot.runs.pack_name(found.run, found.pack), found.offset
                if (new := _filled(array, key, stored, [boxes, *self._boxes.get(place, ())])) is not None:
                    yield key, new


def _filled(
    array: ArrayAt, key: str, stored: memoryview, boxes: Iterable[Boxes], shown: Mapping[int, int] | None = None
) -> bytes | None:
    described = array.described
    try:
        filler = ChunkFiller(array.document, described.content, key[len(directory_prefix(described.path)) :])
        return filler.filled(stored, [box for each in boxes for box in each], array.missing, shown=shown)
    except NotMergeableError as error:
        raise ErasureError(
            [described.path], f"{key!r} can't be encoded anew: {error}. Erase the array as a whole"
        ) from error


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


#: What a chunk key's elements are chosen by: boxes whose union counts, one for each way to assign axes to dimensions.
Boxes = tuple["Places", ...]


@dataclass(frozen=True)
class ArrayAt:
    """An array at one commit, and the chunks that have rows to erase, by their keys.

    `is_labelled`: its coordinates say which rows those are. Of two with the same `signature`, `boxes` are the same.
    `axes` are those that the rows are chosen along.
    """

    described: Described
    is_labelled: bool
    signature: tuple[Any, ...]
    axes: tuple[int, ...]
    grid: Grid = field(repr=False)
    boxes: Mapping[str, Boxes] = field(repr=False)

    @property
    def document(self) -> str:
        return self.described.key.rpartition("/")[2]

    @property
    def extents(self) -> tuple[int, ...]:
        """How long it is along these axes."""
        return tuple(self.described.node.shape[axis] for axis in self.axes)

    def shown(self, key: str) -> dict[int, int]:
        """Return how much of a chunk the array shows along these axes, except those along which it shows all."""
        index = index_of(key[len(directory_prefix(self.described.path)) :], len(self.grid.shape))
        found = dict[int, int]()
        if index is None:
            return found
        with contextlib.suppress(IndexError):  # behind the last one of a grid of chunks of several lengths
            for axis in self.axes:
                along = self.grid.axes[axis]
                if along.start_of(index[axis] + 1) > along.extent:
                    found[axis] = along.extent - int(along.start_of(index[axis]))
        return found

    @property
    def is_coordinate(self) -> bool:
        """Whether it has the labels of the dimension that it is named after."""
        return self.described.dimensions == (self.described.path.rpartition("/")[2],)

    @property
    def missing(self) -> Any:
        """What stands for a missing value in the conventions of CF, if the data type holds it; None: the fill value."""
        return _missing(self.described.attributes.get("_FillValue"))


class ArrayRows:
    """Finds the rows of arrays at one commit after the other. A coordinate that stays the same is read once."""

    def __init__(self, choices: Sequence[Choice]) -> None:
        self._choices = choices
        self._positions: dict[tuple[Any, ...], Positions | None] = {}
        self._last: dict[str, ArrayAt] = {}
        self.coordinates: set[str] = set()  # that labels were looked for in

    def at(self, snapshot: Snapshot, path: str) -> ArrayAt | None:
        """Return an array at a commit; None if there is none, or it lacks one of the dimensions.

        Raises `ErasureError` if its documents or coordinates can't be read.
        """
        described = _describe(snapshot, path)
        if described is None or described.kind != "array":
            return None
        names = described.dimensions
        dimensions = [choice.dimension for choice in self._choices]
        axes = {each: [n for n, name in enumerate(names) if name == each] for each in dimensions}
        if not all(axes.values()):
            return None
        try:
            grid = described.grid()
            if len(names) != len(grid.shape):
                return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ErasureError([path], f"its document can't be understood: {error}") from error
        positions = {
            choice.dimension: self._rows(snapshot, path, choice, grid.shape[axes[choice.dimension][0]])
            for choice in self._choices
        }
        known = {name: found for name, found in positions.items() if found is not None}
        is_labelled = len(known) == len(positions)
        chosen = [n for each in axes.values() for n in each]
        others = tuple(axis.count for n, axis in enumerate(grid.axes) if n not in chosen)
        described_grid = described.document.get("chunk_grid") or described.document.get("chunks")
        signature = (
            is_labelled, repr(described_grid), repr(described.document.get("chunk_key_encoding")), others, names,
            *(found.tobytes() for found in known.values()),
        )  # fmt: skip
        last = self._last.get(path)
        if last is not None and last.signature == signature:
            boxes = last.boxes
        else:
            boxes = dict(_boxes(described, axes, known)) if is_labelled else {}
        found = ArrayAt(described, is_labelled, signature, tuple(dict.fromkeys(chosen)), grid, boxes)
        self._last[path] = found
        return found

    def _rows(self, snapshot: Snapshot, path: str, choice: Choice, length: int) -> Positions | None:
        """Return the positions of the rows along one dimension; None if the commit has no labels for it."""
        if choice.by_position:
            return choice.in_length(length)
        coordinate = coordinate_of(snapshot, path, choice.dimension)
        if coordinate is None:
            return None
        self.coordinates.add(coordinate.path)
        grid = coordinate.grid()
        if grid.shape != (length,):
            return None
        (axis,) = grid.axes
        keys = list(grid.keys(grid.everything()))
        refs = list(refs_of(snapshot, keys))
        for chunk in {*range(axis.count)} - {keys.index(key) for key, _ in refs} if len(refs) < len(keys) else ():
            # It is not written, or all of it is the fill value: several rows can't have that as their label.
            if min(axis.start_of(chunk + 1), length) - axis.start_of(chunk) > 1:
                return None
        token = choice.dimension, coordinate.path, coordinate.content, *refs
        if token not in self._positions:
            if len(self._positions) > 64:
                self._positions.clear()
            values = _values_of(snapshot, coordinate, keys)
            try:
                self._positions[token] = choice.among(decoded(choice.dimension, values, coordinate.attributes))
            except OverflowError as error:
                raise ErasureError([path], f"the labels in {coordinate.path!r} can't be compared: {error}") from error
        return self._positions[token]


def _describe(snapshot: Snapshot, path: str) -> Described | None:
    """Return the description of a node; None if there is none, or all of it was erased at this commit."""
    try:
        return describe(snapshot.get_view, path)
    except ErasedError:
        return None


def coordinate_of(snapshot: Snapshot, path: str, dimension: str) -> Described | None:
    """Return the coordinate of a dimension: the array of its name in the group of an array, or in one above."""
    for group in ancestors(path):
        if "/" in dimension:
            return None
        found = _describe(snapshot, f"{group}/{dimension}" if group else dimension)
        if found is not None and found.kind == "array" and found.dimensions == (dimension,):
            return found
    return None


def _values_of(snapshot: Snapshot, coordinate: Described, keys: Sequence[str]) -> npt.NDArray[Any]:
    parts, skip = [], len(document_key(coordinate.path, ""))
    name = coordinate.key.rpartition("/")[2]
    (length,) = coordinate.grid().shape
    try:
        for key in keys:
            parts.append(ChunkDecoder(name, coordinate.content, key[skip:]).decode(snapshot.get_view(key)))
    except NotMergeableError as error:
        raise ErasureError([coordinate.path], f"its labels can't be read: {error}") from error
    if not parts:
        return np.empty(0)
    found: npt.NDArray[Any] = np.concatenate(parts)[:length]
    return found


def _boxes(
    described: Described, axes: Mapping[str, Sequence[int]], known: Mapping[str, Positions]
) -> Iterator[tuple[str, Boxes]]:
    """Yield the key of each chunk that has a row, and where."""
    grid = described.grid()
    found: dict[str, list[Places]] = {}
    for assigned in product(*axes.values()):
        along: list[Mapping[int, Positions | None]] = [dict.fromkeys(range(axis.count)) for axis in grid.axes]
        for axis, positions in zip(assigned, known.values(), strict=True):
            along[axis] = _by_chunk(grid.axes[axis], positions)
        for chunk in product(*along):
            (key,) = grid.keys([chunk])
            box = tuple(places[at] for places, at in zip(along, chunk, strict=True))
            found.setdefault(key, []).append(box)
    return ((key, tuple(boxes)) for key, boxes in found.items())


def _by_chunk(axis: Any, positions: Positions) -> dict[int, Positions | None]:
    """Return positions along an axis by the chunk that they lie in, each from where the chunk begins."""
    inside = positions[positions < axis.extent]
    chunks = np.asarray(axis.chunk_of(inside))
    return {
        int(chunk): (inside[chunks == chunk] - int(axis.start_of(int(chunk)))).astype(np.intp)
        for chunk in np.unique(chunks)
    }


def _missing(written: Any) -> Any:
    """Return a `_FillValue` as xarray writes it to an attribute; None if there is none that is understood."""
    if isinstance(written, str):
        try:
            content = base64.standard_b64decode(written)
        except ValueError:
            return None
        return struct.unpack("<d", content)[0] if len(content) == 8 else None
    return written if isinstance(written, int | float) and not isinstance(written, bool) else None

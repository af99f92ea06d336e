"""Finds labels of a one-dimensional array that are out of order, or that it has twice, without reading all of it.

The caller says which chunks a commit changes; the others were checked by earlier commits. At most `_AT_ONCE` bytes of
labels are in memory at a time, and the span of each chunk. Constraints import this module late: it imports numpy. No
I/O of its own.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from txstore import processes
from txstore.format.commitfile import CommitName
from txstore.format.documents import Described
from txstore.format.grids import Grid

#: Labels that a fault names, and positions of each.
_NAMED, _POSITIONS = 10, 3
#: NaT among integers that count from a date, as xarray writes it.
_NAT = np.iinfo(np.int64).min
#: Characters of a label in a fault.
_SHOWN = 60
#: Units of CF, and calendars, that Python can count in.
_SINCE = re.compile(r"(days|hours|minutes|seconds|milliseconds|microseconds) since (\d{4}-\d\d-\d\d[ T\d:.]*)")
_CALENDARS = ("standard", "gregorian", "proleptic_gregorian")
#: Bytes of labels that are compared at a time, and what a text of variable length counts.
_AT_ONCE, _TEXT = 32 << 20, 64
#: Chunks that are looked up, and fetched, at a time.
_PAGE = 256
#: Kinds of numpy types that have an order.
_ORDERED = "biufmMSUOT"


class UnreadableLabelsError(Exception):
    """The labels of a chunk can't be told. Internal: the caller reports a fault."""


@dataclass(frozen=True)
class Changed(Iterable[int]):
    """The chunks that a commit may have changed: some, ascending, and all of a range behind them."""

    some: Sequence[int]
    rest: range

    def __iter__(self) -> Iterator[int]:
        return chain(self.some, self.rest)


class Chunks(Protocol):
    """The chunks of an array as a commit leaves them: see `constraints.Outcome`."""

    def elements(self, array: Described, key: str) -> AnyArray: ...
    def identify(self, keys: Sequence[str]) -> Sequence[Hashable | None]: ...
    def fetch(self, keys: Sequence[str]) -> None: ...
    def head(self) -> tuple[bytes, CommitName] | None: ...
    def changed_since(self, commit: CommitName, path: str) -> Sequence[str] | None: ...


class Labels:
    """The labels of an array of one dimension, chunk by chunk, as a commit leaves them."""

    def __init__(self, array: Described, grid: Grid, chunks: Chunks) -> None:
        described = json.dumps([array.key, array.node.structure], sort_keys=True)
        #: Names what decides what the elements of a stored value are.
        self._kind = hashlib.blake2b(described.encode(), digest_size=16).digest()
        self._array = array
        self._grid = grid
        self._chunks = chunks
        (self._axis,) = grid.axes
        self.count: int = self._axis.count
        self._itemsize = _TEXT  # of the labels that were read last
        self._kept: dict[int, AnyArray] = {}  # the first chunks that were read
        self._room = _AT_ONCE

    @property
    def everything(self) -> Changed:
        return Changed((), range(self.count))

    def changed(self, keys: Iterable[str], length: int) -> Changed:
        """Return the chunks of some keys, and those that lie beyond a length, wholly or in part."""
        grown = range(int(self._axis.chunk_of(length)) if length < self._axis.extent else self.count, self.count)
        found = {index for key in keys if (index := self._index_of(key)) is not None}
        return Changed(sorted(index for index in found if index < grown.start), grown)

    def _index_of(self, key: str) -> int | None:
        last = re.split(r"[/.]", key)[-1]
        if not (last.isascii() and last.isdigit()):
            return None
        index = int(last)
        return index if index < self.count and self.key(index) == key else None

    def key(self, index: int) -> str:
        return next(iter(self._grid.keys([(index,)])))

    def start(self, index: int) -> int:
        return int(self._axis.start_of(index))

    def length(self, index: int) -> int:
        return min(self.start(index + 1), self._axis.extent) - self.start(index)

    def read(self, index: int) -> AnyArray:
        """Return the labels of a chunk. Raises `UnreadableLabelsError`."""
        if index in self._kept:
            return self._kept[index]
        labels = self._chunks.elements(self._array, self.key(index))[: self.length(index)]
        if labels.dtype.kind not in _ORDERED or labels.dtype.names:
            raise UnreadableLabelsError(f"elements of {labels.dtype} have no order")
        self._itemsize = _TEXT if labels.dtype.kind in "OT" else labels.dtype.itemsize
        if not labels.dtype.isnative:
            labels = labels.astype(labels.dtype.newbyteorder("="))
        if self.size([index]) <= self._room:
            self._room -= self.size([index])
            self._kept[index] = labels
        return labels

    def fetched(self, indices: Iterable[int]) -> Iterator[int]:
        """Yield chunks that are read next, some of them at a time fetched together."""
        rest = iter(indices)
        while page := [*islice(rest, _PAGE)]:
            self._chunks.fetch([self.key(index) for index in page if index not in self._kept])
            yield from page

    def size(self, indices: Iterable[int]) -> int:
        """Return how many bytes of memory the labels of some chunks take, about."""
        return sum(map(self.length, indices)) * self._itemsize

    def missing(self, labels: AnyArray) -> list[int]:
        """Return where some labels are NaN or NaT: the first of these places."""
        are_missing = is_missing(labels)
        if labels.dtype.kind == "i" and "since" in str(self._array.attributes.get("units")):
            are_missing |= labels == _NAT
        places: list[int] = np.flatnonzero(are_missing)[: _NAMED + 1].tolist()
        return places

    def shown(self, label: Any) -> str:
        """Return a label for a message: a number of days or hours since a date as the date."""
        value = label.item() if isinstance(label, np.generic) and label.dtype.kind not in "mM" else label
        is_text = isinstance(value, str | bytes)
        text = repr(value) if is_text else _date(value, self._array.attributes) or str(value)
        return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."

    def spans(self, indices: Iterable[int]) -> Iterator[tuple[int, LabelSpan | None]]:
        """Yield chunks with their spans. None: the chunk is not stored, so all its labels are the fill value."""
        rest = iter(indices)
        while page := [*islice(rest, _PAGE)]:
            names = self._chunks.identify([self.key(index) for index in page])
            known = {
                index: VALUES.get((name, self._kind, self.length(index)))
                for index, name in zip(page, names, strict=True)
                if name is not None
            }
            self._chunks.fetch([self.key(index) for index, span in known.items() if span is None])
            for index, name in zip(page, names, strict=True):
                span = known.get(index)
                if span is None and name is not None:
                    span = span_of(self.read(index))
                    VALUES.put((name, self._kind, self.length(index)), span, weight_of(span))
                yield index, span

    def other_spans(self, mine: Collection[int]) -> list[LabelSpan | None]:
        """Return the spans of all chunks that this commit does not change, by their indices; None for `mine`.

        None also where all labels are NaN or NaT.
        """
        head = self._chunks.head()
        place = (None if head is None else head[0], self._array.path, self._kind)
        table = self._table(place)
        for index in mine:
            table[index] = None
        unknown = (index for index, span in enumerate(table) if span is None and index not in mine)
        for index, stored in self.spans([*unknown]):
            span = stored or span_of(self.read(index))
            table[index] = None if span.low is None else span
        if head is not None:
            one = next((span for span in table if span is not None), None)
            is_text = one is not None and isinstance(one.low, str | bytes)
            TABLES.put(place, (head[1], table), sum(map(weight_of, table)) if is_text else len(table))
        return table

    def _table(self, place: Hashable) -> list[LabelSpan | None]:
        """Return the spans of all chunks at the head, as far as they are known."""
        remembered = TABLES.get(place)
        keys = None if remembered is None else self._chunks.changed_since(remembered[0], self._array.path)
        if remembered is None or keys is None:
            return [None] * self.count
        table = remembered[1][: self.count]
        table += [None] * (self.count - len(table))
        changed = [index for key in keys if (index := self._index_of(key)) is not None]
        # The last chunk may have more labels now.
        for index in (*changed, len(remembered[1]) - 1):
            if index < self.count:
                table[index] = None
        return table


def _date(number: Any, attributes: Mapping[str, Any]) -> str | None:
    """Return the date that a number stands for by the attributes of CF; None where they say nothing that is simple."""
    found = _SINCE.fullmatch(str(attributes.get("units")))
    if found is None or attributes.get("calendar", "standard") not in _CALENDARS or isinstance(number, bool):
        return None
    try:
        date = datetime.fromisoformat(found[2].strip()) + timedelta(**{found[1]: number})
    except (ValueError, OverflowError, TypeError):
        return None
    return date.isoformat().removesuffix("T00:00:00")


# --- order


def disorder(labels: Labels, changed: Changed, *, descending: bool, strict: bool) -> str | None:
    """Return what is out of order in or beside the changed chunks; None if nothing is."""
    missing = _Named()
    wrong = _Named()
    before: tuple[int, AnyArray] | None = None  # the chunk before, and its last label
    ahead = labels.fetched(changed)
    index = next(ahead, None)
    while index is not None and not (missing.is_full or wrong.is_full):
        after = next(ahead, None)
        own = labels.read(index)
        for place in labels.missing(own):
            missing.add(str(labels.start(index) + place))
        row, start = [own], labels.start(index)
        if index > 0:
            if before is None or before[0] != index - 1:
                before = index - 1, labels.read(index - 1)[-1:]
            row, start = [before[1], own], start - 1
        if index + 1 < labels.count and after != index + 1:
            row.append(labels.read(index + 1)[:1])
        _note_disorder(labels, np.concatenate(row), start, wrong, descending=descending, strict=strict)
        before, index = (index, own[-1:]), after
    if missing:
        return f"it has no label (NaN or NaT) at {', '.join(missing.told)}{missing.more}"
    if wrong:
        return f"its labels do not {'descend' if descending else 'ascend'}: {'; '.join(wrong.told)}{wrong.more}"
    return None


def _note_disorder(labels: Labels, row: AnyArray, start: int, wrong: _Named, *, descending: bool, strict: bool) -> None:
    first, second = (row[1:], row[:-1]) if descending else (row[:-1], row[1:])
    good = second > first if strict else second >= first
    for place in np.flatnonzero(~np.asarray(good, bool))[: _NAMED + 1].tolist():
        at, follows = labels.shown(row[place + 1]), labels.shown(row[place])
        wrong.add(f"{at} at {start + place + 1} follows {follows} at {start + place}")


class _Named:
    """What a fault names: a few, and whether there are more."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.is_full = False

    def add(self, what: str) -> None:
        if len(self.told) < _NAMED:
            self.told.append(what)
        else:
            self.is_full = True

    def __bool__(self) -> bool:
        return bool(self.told)

    @property
    def more(self) -> str:
        return "; and more" if self.is_full else ""


# --- labels that occur twice


def repeats(labels: Labels, changed: Changed) -> str | None:
    """Return which labels of the changed chunks the array has more than once; None if there are none."""
    spans: list[tuple[int, LabelSpan]] = []  # of the changed chunks
    missing = _Named()
    absent: list[int] = []  # positions, where nothing is stored
    for index, stored in labels.spans(changed):
        start = labels.start(index)
        if stored is None:
            absent += range(start, start + min(labels.length(index), _POSITIONS))
            if len(absent) > 1:  # of an array that grew, there may be billions
                fill = labels.shown(labels.read(index)[0])
                return f"labels are repeated: {fill} at {', '.join(map(str, absent))}, where nothing is stored"
        span = stored or span_of(labels.read(index))
        if span.has_missing or span.low == _NAT:
            for place in labels.missing(labels.read(index)):
                missing.add(str(start + place))
            if missing.is_full:
                break
        spans.append((index, span))
    if missing:
        return f"it has no label (NaN or NaT) at {', '.join(missing.told)}{missing.more}"
    if not spans:
        return None
    mine = {index for index, _ in spans}
    overlapped = _Intervals(span for _, span in spans)
    if len(mine) < labels.count:
        others = enumerate(labels.other_spans(mine))
        spans += [(index, span) for index, span in others if span is not None and overlapped.meets(span)]
    found = _Named()
    for group in _groups(spans):
        for label, positions in _repeated(labels, group, mine):
            more = ", ..." if len(positions) > _POSITIONS else ""
            found.add(f"{label} at {', '.join(map(str, positions[:_POSITIONS]))}{more}")
            if found.is_full:
                return f"labels are repeated: {'; '.join(found.told)}{found.more}"
    return f"labels are repeated: {'; '.join(found.told)}" if found else None


class _Intervals:
    """Ranges of labels, those that overlap joined."""

    def __init__(self, spans: Iterable[LabelSpan]) -> None:
        self._lows: list[Any] = []
        self._highs: list[Any] = []
        for span in sorted((span for span in spans if span.low is not None), key=lambda each: each.low):
            if self._highs and span.low <= self._highs[-1]:
                self._highs[-1] = max(self._highs[-1], span.high)
            else:
                self._lows.append(span.low)
                self._highs.append(span.high)

    def meets(self, span: LabelSpan) -> bool:
        at = bisect_right(self._lows, span.high) - 1
        return at >= 0 and bool(self._highs[at] >= span.low)


def _groups(spans: Sequence[tuple[int, LabelSpan]]) -> Iterator[dict[int, LabelSpan]]:
    """Yield the chunks whose ranges overlap directly or by others, together; also one that may repeat its own."""
    group: dict[int, LabelSpan] = {}
    high: Any = None
    for index, span in sorted((each for each in spans if each[1].low is not None), key=lambda each: each[1].low):
        if group and span.low > high:
            if _may_repeat(group):
                yield group
            group = {}
        high = max(high, span.high) if group else span.high
        group[index] = span
    if _may_repeat(group):
        yield group


def _may_repeat(group: Mapping[int, LabelSpan]) -> bool:
    return len(group) > 1 or any(not span.is_distinct for span in group.values())


def _repeated(labels: Labels, group: Mapping[int, LabelSpan], mine: set[int]) -> Iterator[tuple[str, list[int]]]:
    """Yield the labels that some chunks have more than once, at least once in one of `mine`, with their positions."""
    indices = [index for index in group if index in mine]
    if len(indices) < len(group) and labels.size(indices) <= _AT_ONCE:
        own = np.sort(np.concatenate([labels.read(index) for index in labels.fetched(indices)]))
        indices += [index for index, span in group.items() if index not in mine and _has_any(own, span)]
    else:
        indices = [*group]
    parts = -(-labels.size(indices) // _AT_ONCE)
    for part in range(parts):
        found = map(labels.read, labels.fetched(indices))
        values = np.concatenate([each[_chosen(each, part, parts)] for each in found])
        values.sort()
        if bool((values[1:] == values[:-1]).any()):
            yield from _equal(labels, indices, mine, part, parts)


def _has_any(ordered: AnyArray, span: LabelSpan) -> bool:
    """Tell whether a label lies in a span."""
    if ordered.dtype.kind in "mM":
        ordered = ordered.view(np.int64)
    at = int(np.searchsorted(ordered, span.low))
    return at < len(ordered) and bool(ordered[at] <= span.high)


def _hashes(labels: AnyArray) -> npt.NDArray[np.uint64]:
    """Return numbers, equal ones for equal labels."""
    if labels.dtype.kind in "SUOT":
        return np.array([hash(label) for label in labels.tolist()], np.int64).view(np.uint64)
    plain = labels + 0 if labels.dtype.kind == "f" else labels  # -0.0 is 0.0
    numbers = plain.view(f"u{plain.dtype.itemsize}").astype(np.uint64)
    return (numbers * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)


def _chosen(labels: AnyArray, part: int, parts: int) -> Any:
    """Return which labels are compared in one of several parts: equal ones in the same."""
    return slice(None) if parts == 1 else np.flatnonzero(_hashes(labels) % np.uint64(parts) == part)


def _equal(
    labels: Labels, indices: Sequence[int], mine: set[int], part: int, parts: int
) -> Iterator[tuple[str, list[int]]]:
    """Yield the labels of one part that occur more than once, at least once in `mine`, with their positions."""
    values, places, are_mine = [], [], []
    for index in labels.fetched(indices):
        found = labels.read(index)
        chosen = _chosen(found, part, parts)
        values.append(found[chosen])
        places.append(np.arange(labels.start(index), labels.start(index) + len(found))[chosen])
        are_mine.append(np.full(len(values[-1]), index in mine))
    order = np.argsort(found := np.concatenate(values), kind="stable")
    ordered, place, is_mine = found[order], np.concatenate(places)[order], np.concatenate(are_mine)[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    ends = np.append(starts[1:], len(ordered))
    is_again = ends - starts > 1
    for start, end in zip(starts[is_again].tolist(), ends[is_again].tolist(), strict=True):
        if is_mine[start:end].any():
            yield labels.shown(ordered[start]), sorted(place[start:end].tolist())


# --- between which labels those of each chunk lie: remembered, so that a commit need not read the chunks again
#
# A span is remembered by what names the stored value, which never changes. The spans of all chunks of an array are
# remembered by the commit at which they are so: of a later commit, only those are looked up that it has changed.

AnyArray: TypeAlias = npt.NDArray[Any]
_Kind = TypeVar("_Kind")

#: Chunks whose spans are remembered: of single values, and in the tables of arrays.
_VALUES, _IN_TABLES = 1 << 16, 1 << 18
#: Characters that take as much memory as a span of numbers.
_TEXT = 128


class LabelSpan(NamedTuple):
    """The smallest and largest label of a chunk, whether all its labels differ, and whether one is NaN or NaT."""

    low: Any  # None: there are no labels
    high: Any
    is_distinct: bool
    has_missing: bool


class Remembered(Generic[_Kind]):
    """Keeps what was used last, up to a capacity. Safe in threads."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._all: OrderedDict[Hashable, tuple[_Kind, int]] = OrderedDict()
        self._size = 0
        self._lock = processes.new_lock()

    def get(self, name: Hashable) -> _Kind | None:
        with self._lock:
            found = self._all.get(name)
            if found is None:
                return None
            self._all.move_to_end(name)
            return found[0]

    def put(self, name: Hashable, what: _Kind, size: int = 1) -> None:
        with self._lock:
            self._size += size - self._all.pop(name, (what, 0))[1]
            self._all[name] = what, size
            while self._size > self._capacity:
                _, (_, dropped) = self._all.popitem(last=False)
                self._size -= dropped

    def clear(self) -> None:
        with self._lock:
            self._all.clear()
            self._size = 0


VALUES: Remembered[LabelSpan] = Remembered(_VALUES)
#: The spans of the chunks of an array at a commit. None: not known, or no labels.
TABLES: Remembered[tuple[CommitName, list[LabelSpan | None]]] = Remembered(_IN_TABLES)


def span_of(labels: AnyArray) -> LabelSpan:
    there = labels[~is_missing(labels)]
    if there.dtype.kind in "mM":
        there = there.view(np.int64)
    if not len(there):
        return LabelSpan(None, None, is_distinct=True, has_missing=len(labels) > 0)
    is_ascending = bool((there[1:] > there[:-1]).all())
    ordered = there if is_ascending else np.sort(there)
    is_distinct = is_ascending or not bool((ordered[1:] == ordered[:-1]).any())
    low, high = ordered[:1].tolist()[0], ordered[-1:].tolist()[0]
    return LabelSpan(low, high, is_distinct, len(there) < len(labels))


def weight_of(span: LabelSpan | None) -> int:
    """Return how many spans of numbers take as much memory: text may be long."""
    if span is None or not isinstance(span.low, str | bytes):
        return 1
    return 1 + (len(span.low) + len(span.high)) // _TEXT


def is_missing(labels: AnyArray) -> npt.NDArray[np.bool_]:
    """Return which labels are NaN or NaT."""
    if labels.dtype.kind in "mM":
        return np.isnat(labels)
    return np.isnan(labels) if labels.dtype.kind == "f" else np.zeros(len(labels), bool)

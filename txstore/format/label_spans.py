"""Remembers in memory between which labels those of each chunk lie, so that a commit need not read the chunks again.

A span is remembered by what names the stored value, which never changes. The spans of all chunks of an array are
remembered by the commit at which they are so: of a later commit, only those are looked up that it has changed. This
module imports numpy. No I/O of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from txstore import processes
from txstore.format.commitfile import CommitName

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


class SpanTable(NamedTuple):
    """The spans of the chunks of an array at a commit. None: not known, or no labels."""

    commit: CommitName
    spans: list[LabelSpan | None]


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
TABLES: Remembered[SpanTable] = Remembered(_IN_TABLES)


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

"""Finds the rows that a user means by labels, as xarray's `.sel` does, or by positions, in any commit's coordinate.

A label may be a number, a date or a text. A list names each of its labels. A slice names all labels between two, both
included, in whichever order they are stored and given. Of dates, a text such as "2020-01" names the whole month, but
not in a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]


class Choice:
    """Rows along one dimension. `unmet` are the labels that no commit has had so far, of those looked into."""

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

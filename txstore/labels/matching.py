"""Finds labels in a stored coordinate, and where new ones belong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from txstore.labels.grids import Positions

#: Rows that keep their order: begin and end before, and where they begin afterwards.
Segment = tuple[int, int, int]


def find(stored: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> Positions:
    """Return the position of each wanted label, -1 if it is not there.

    Neither array is sorted as a rule; if `stored` is, the search takes time with the number of wanted labels only,
    after one look at the order. Raises `RepeatedLabelsError` for a wanted label that is stored twice.
    """
    if not len(stored) or not len(wanted):
        return np.full(len(wanted), -1, np.intp)
    if stored.dtype.kind == "O":
        return _find_texts(stored, wanted)
    if bool((stored[1:] > stored[:-1]).all()):
        places = np.searchsorted(stored, wanted)
        places[places == len(stored)] = 0
        return np.where(stored[places] == wanted, places, -1).astype(np.intp)
    order = np.argsort(wanted, kind="stable")
    ordered = wanted[order]
    places = np.searchsorted(ordered, stored)
    places[places == len(ordered)] = 0
    hits = np.flatnonzero(ordered[places] == stored)
    if len(np.unique(places[hits])) != len(hits):
        _raise_repeated(order[places[hits]])
    found = np.full(len(wanted), -1, np.intp)
    found[order[places[hits]]] = hits
    return found


def _find_texts(stored: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> Positions:
    sought = {label: place for place, label in enumerate(wanted.tolist())}
    hits = [(sought[label], place) for place, label in enumerate(stored.tolist()) if label in sought]
    if len({which for which, _ in hits}) != len(hits):
        _raise_repeated(np.array([which for which, _ in hits]))
    found = np.full(len(wanted), -1, np.intp)
    for which, place in hits:
        found[which] = place
    return found


class RepeatedLabelsError(ValueError):
    """Labels that occur more than once; `places` are their places in the dataset."""

    def __init__(self, places: Sequence[int]) -> None:
        self.places = list(places)
        super().__init__(self.places)


def _raise_repeated(places: npt.NDArray[Any]) -> None:
    values, counts = np.unique(places, return_counts=True)
    raise RepeatedLabelsError(values[counts > 1].tolist())


def repeated(labels: npt.NDArray[Any]) -> list[int]:
    """Return the first places of labels that occur more than once."""
    if labels.dtype.kind == "O":
        first: dict[Any, int] = {}
        again = {}
        for place, label in enumerate(labels.tolist()):
            if first.setdefault(label, place) != place:
                again[label] = first[label]
        return sorted(again.values())
    _, places, counts = np.unique(labels, return_index=True, return_counts=True)
    return sorted(places[counts > 1].tolist())


@dataclass(frozen=True)
class Placed:
    """Where the labels of a dataset belong along one dimension.

    `positions` are those of the dataset's labels after the upsert, `is_new` marks the ones that are not stored yet.
    `segments` say where the stored rows go.
    """

    positions: Positions
    is_new: npt.NDArray[np.bool_]
    length: int
    segments: tuple[Segment, ...]

    @property
    def moves_rows(self) -> bool:
        return any(start != to for start, _, to in self.segments)

    @property
    def inserted(self) -> int:
        return int(self.is_new.sum())


def append(stored: npt.NDArray[Any], found: Positions) -> Placed:
    """Place the labels that are not stored behind the stored ones, in the order of the dataset."""
    is_new = found < 0
    positions = found.copy()
    positions[is_new] = np.arange(len(stored), len(stored) + int(is_new.sum()))
    return Placed(positions, is_new, len(stored) + int(is_new.sum()), ((0, len(stored), 0),))


def insert(stored: npt.NDArray[Any], wanted: npt.NDArray[Any], found: Positions) -> Placed:
    """Place the labels that are not stored in the order of the stored ones, which ascend or descend.

    Raises `ValueError` if they do neither.
    """
    is_new = found < 0
    if not is_new.any():
        return append(stored, found)
    fresh = np.flatnonzero(is_new)
    if is_ordered(stored, descending=False):
        order, behind = np.argsort(wanted[fresh], kind="stable"), np.searchsorted(stored, wanted[fresh])
    elif is_ordered(stored, descending=True):
        order = np.argsort(wanted[fresh], kind="stable")[::-1]
        behind = len(stored) - np.searchsorted(stored[::-1], wanted[fresh], side="right")
    else:
        raise ValueError("the stored labels are in no order to insert others in: use missing='append'")
    fresh, behind = fresh[order], behind[order]  # `behind`: how many stored rows lie before each
    positions = found.copy()
    positions[fresh] = behind + np.arange(len(fresh))
    borders = [0, *np.unique(behind).tolist(), len(stored)]
    segments = [
        (start, stop, start + int(np.searchsorted(behind, start, side="right")))
        for start, stop in pairwise(borders)
        if start < stop
    ]
    old = np.flatnonzero(~is_new)
    positions[old] = found[old] + np.searchsorted(behind, found[old], side="right")
    return Placed(positions, is_new, len(stored) + len(fresh), tuple(segments))


def is_ordered(labels: npt.NDArray[Any], *, descending: bool) -> bool:
    """Tell whether labels ascend, or descend, strictly."""
    one, other = (labels[1:], labels[:-1]) if descending else (labels[:-1], labels[1:])
    return bool(np.all(one < other))

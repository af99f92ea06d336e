"""Finds where the periods of a time axis begin: years, months, days or hours of labels with CF units.

https://cfconventions.org/cf-conventions/cf-conventions.html#time-coordinate
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from txstore.format.documents import Described

if TYPE_CHECKING:
    import numpy.typing as npt

PERIODS = ("year", "month", "day", "hour")


def units_of(coordinate: Described) -> Mapping[str, Any]:
    """Return the attributes that say which times the labels are."""
    return {name: coordinate.attributes[name] for name in ("units", "calendar") if name in coordinate.attributes}


def begins(labels: npt.NDArray[Any], units: Mapping[str, Any], by: str) -> list[int]:
    """Return the places at which a period begins.

    Raises `ValueError` if the labels do not ascend, are no times, or say nothing, and `ImportError` without xarray.
    """
    if not labels.size:
        return []
    if (labels.dtype.kind == "f" and not np.isfinite(labels).all()) or (
        labels.dtype.kind == "M" and np.isnat(labels).any()
    ):
        raise ValueError("its time coordinate has labels that are no times: NaN, NaT or infinity")
    if (labels[1:] < labels[:-1]).any():
        raise ValueError("its time coordinate does not ascend")
    keys = _keys(labels, units, by)
    return [0, *(np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1)) + 1).tolist()]


def _keys(labels: npt.NDArray[Any], told: Mapping[str, Any], by: str) -> npt.NDArray[np.int64]:
    """Return for each label its year, month and so on, down to the period."""
    import xarray as xr

    units = told.get("units")
    if labels.dtype.kind != "M" and (not isinstance(units, str) or " since " not in units):
        raise ValueError(f"its time coordinate has no units such as 'days since 2000-01-01', but {units!r}")
    times = xr.decode_cf(xr.Dataset({"t": ("t", labels, dict(told))}))["t"]
    if times.dtype.kind not in "MO":
        raise ValueError(f"its time coordinate can't be read as times: its units are {units!r}")
    if times.isnull().any():
        raise ValueError("its time coordinate has labels that are no times: NaT")
    return np.stack([getattr(times.dt, each).values for each in PERIODS[: PERIODS.index(by) + 1]], axis=1)


def same_until(before: npt.NDArray[Any] | None, after: npt.NDArray[Any]) -> int:
    """Return how many labels at the beginning are what they were."""
    if before is None:
        return 0
    length = min(len(before), len(after))
    others = np.flatnonzero(before[:length] != after[:length])
    return int(others[0]) if others.size else length

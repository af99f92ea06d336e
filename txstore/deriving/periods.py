"""Finds where the periods of a time axis begin: years, months, days or hours of labels with CF units.

https://cfconventions.org/cf-conventions/cf-conventions.html#time-coordinate
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from txstore.format.cf import decoded

if TYPE_CHECKING:
    import numpy.typing as npt
    import xarray as xr

PERIODS = ("year", "month", "day", "hour")


def begins(labels: npt.NDArray[Any], meaning: Mapping[str, Any], by: str) -> list[int]:
    """Return the places at which a period begins. `meaning`: the attributes that say which times the labels are.

    Raises `ValueError` if the labels do not ascend, are no times, or say nothing, and `ImportError` without xarray.
    """
    if not labels.size:
        return []
    if (labels.dtype.kind == "f" and not np.isfinite(labels).all()) or (
        labels.dtype.kind == "M" and np.isnat(labels).any()
    ):
        raise ValueError("its time coordinate has labels that are no times: NaN, NaT or infinity")
    times = _times(labels, meaning)
    if (times.values[1:] < times.values[:-1]).any():
        raise ValueError("its time coordinate does not ascend")
    keys = np.stack([getattr(times.dt, each).values for each in PERIODS[: PERIODS.index(by) + 1]], axis=1)
    return [0, *(np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1)) + 1).tolist()]


def _times(labels: npt.NDArray[Any], meaning: Mapping[str, Any]) -> xr.DataArray:
    import xarray as xr  # late: xarray is an extra

    units = meaning.get("units")
    if labels.dtype.kind != "M" and (not isinstance(units, str) or " since " not in units):
        raise ValueError(f"its time coordinate has no units such as 'days since 2000-01-01', but {units!r}")
    times = xr.DataArray(decoded("time", labels, meaning), dims=("time",))
    if times.dtype.kind not in "MO":
        raise ValueError(f"its time coordinate can't be read as times: its units are {units!r}")
    if times.isnull().any():
        raise ValueError("its time coordinate has labels that are no times: NaT")
    return times


def same_until(before: npt.NDArray[Any] | None, after: npt.NDArray[Any]) -> int:
    """Return how many labels at the beginning are what they were."""
    if before is None:
        return 0
    length = min(len(before), len(after))
    others = np.flatnonzero(before[:length] != after[:length])
    return int(others[0]) if others.size else length

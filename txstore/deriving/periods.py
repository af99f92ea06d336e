"""Finds where the periods of a time axis begin: years, months, days or hours of labels with CF units.

https://cfconventions.org/cf-conventions/cf-conventions.html#time-coordinate
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

PERIODS = ("year", "month", "day", "hour")


def begins(labels: npt.NDArray[Any], attributes: Mapping[str, Any], by: str) -> list[int]:
    """Return the places at which a period begins.

    Raises `ValueError` if the labels do not ascend, are no times, or say nothing, and `ImportError` without xarray.
    """
    if not labels.size:
        return []
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise ValueError("its time coordinate has NaNs")
    if (labels[1:] < labels[:-1]).any():
        raise ValueError("its time coordinate does not ascend")
    keys = _keys(labels, attributes, by)
    return [0, *(np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1)) + 1).tolist()]


def _keys(labels: npt.NDArray[Any], attributes: Mapping[str, Any], by: str) -> npt.NDArray[np.int64]:
    """Return for each label its year, month and so on, down to the period."""
    import xarray as xr

    units = attributes.get("units")
    if labels.dtype.kind != "M" and (not isinstance(units, str) or " since " not in units):
        raise ValueError(f"its time coordinate has no units such as 'days since 2000-01-01', but {units!r}")
    told = {name: attributes[name] for name in ("units", "calendar") if name in attributes}
    times = xr.decode_cf(xr.Dataset({"t": ("t", labels, told)}))["t"]
    if times.dtype.kind not in "MO":
        raise ValueError(f"its time coordinate can't be read as times: its units are {units!r}")
    return np.stack([getattr(times.dt, each).values for each in PERIODS[: PERIODS.index(by) + 1]], axis=1)


def same_until(before: npt.NDArray[Any] | None, after: npt.NDArray[Any]) -> int:
    """Return how many labels at the beginning are what they were."""
    if before is None:
        return 0
    length = min(len(before), len(after))
    others = np.flatnonzero(before[:length] != after[:length])
    return int(others[0]) if others.size else length

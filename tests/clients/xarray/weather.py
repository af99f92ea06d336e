"""The data set that most tests of this group write."""

from __future__ import annotations

import numpy as np
import xarray as xr


def days(first: int = 0, count: int = 40, side: int = 200) -> xr.Dataset:
    """Return a temperature and rain, of shape (count, side, side), in chunks of four days."""
    random = np.random.default_rng(first)
    return xr.Dataset(
        {
            "t": (("time", "y", "x"), random.random((count, side, side)), {"units": "K"}),
            "rain": (("time", "y", "x"), random.random((count, side, side)).astype("f4"), {"units": "mm"}),
        },
        {"time": np.datetime64("2026-01-01", "ns") + np.arange(first, first + count) * np.timedelta64(1, "D"),
         "y": np.arange(side), "x": np.arange(side)},
        {"title": "days"},
    ).chunk(time=4)  # fmt: skip

"""Datasets with labels, and what a store should hold after upserts of them."""

import numpy as np
import pandas as pd
import xarray as xr

import txstore


def hours(start: str, count: int = 24, *, add: float = 0, freq: str = "h") -> xr.Dataset:
    """Some hours of two variables, whose values say their label, and `add`."""
    time = pd.date_range(start, periods=count, freq=freq)
    value = (time - pd.Timestamp("2024-01-01")) / pd.Timedelta("1h") + add
    return xr.Dataset(
        {
            "t": (("time", "x"), (np.asarray(value)[:, None] + [0, 0.25, 0.5]).astype("f4")),
            "w": ("time", np.asarray(value).astype("i8")),
        },
        {"time": time, "x": [1, 2, 3]},
    )


def numbered(labels: object, *, add: float = 0, dim: str = "time") -> xr.Dataset:
    """Rows with numbers as labels, whose values are the label, and `add`."""
    found = np.asarray(labels)
    return xr.Dataset({"v": (dim, found * 10.0 + add)}, {dim: found})


def stored(repo: txstore.Repository, **options: object) -> xr.Dataset:
    return xr.open_dataset(repo, engine="txstore", **options).load()

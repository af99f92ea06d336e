"""xbatcher makes batches of what a snapshot has, and keeps them in a repository."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
import xbatcher

from tests.clients.trials import Both, tool
from tests.clients.xarray.weather import days

CODE = "xbatcher.BatchGenerator(xr.open_zarr(repo.snapshot()), {...})"


@tool("xbatcher", code=CODE, tried="`BatchGenerator` with overlaps, loaded one by one")
def test_batches(both: Both) -> None:
    def read(store: Any) -> list[np.ndarray]:
        data = xr.open_zarr(store, chunks=None)
        batches = xbatcher.BatchGenerator(data, {"time": 8, "y": 100, "x": 100}, input_overlap={"time": 4})
        return [batch[name].to_numpy() for batch in batches for name in ("t", "rain")]

    assert len(both(lambda store: days().to_zarr(store), read)) == 2 * 9 * 4

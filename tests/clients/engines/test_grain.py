"""grain draws batches out of a snapshot, in threads and in worker processes."""

from __future__ import annotations

from typing import Any

import grain
import numpy as np
import pytest
import zarr

from tests.clients.engines import jobs
from tests.clients.trials import Both, tool


class Rows:
    """Groups of rows of an array, by their number: what grain calls a source with random access."""

    def __init__(self, store: Any) -> None:
        self._x = zarr.open_array(store, path="x", mode="r")

    def __len__(self) -> int:
        return self._x.shape[0] // 10

    def __getitem__(self, number: int) -> Any:
        return self._x[10 * number : 10 * number + 10]


@tool("grain", code="grain.MapDataset.source(source)  # source[i] is x[i] of zarr.open_array(repo.snapshot())",
      tried="shuffled batches, by threads and by processes")  # fmt: skip
@pytest.mark.parametrize("workers", [0, 2])
def test_grain(both: Both, workers: int) -> None:
    def write(store: Any) -> None:
        zarr.create_array(store, name="x", data=jobs.values(0), chunks=(10, jobs.COLUMNS))

    def read(store: Any) -> list[np.ndarray]:
        data = grain.MapDataset.source(Rows(store)).shuffle(seed=1).batch(2).to_iter_dataset()
        if workers:
            data = data.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
        return list(data)

    found = both(write, read, rounds=1 if workers else 3)
    np.testing.assert_array_equal(np.sort(np.concatenate(found).ravel()), np.sort(jobs.values(0).ravel()))

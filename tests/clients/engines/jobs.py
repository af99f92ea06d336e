"""The job that each engine does: tasks that write parts of one array, tasks that read them, and one that fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr

PARTS, ROWS, COLUMNS = 8, 800, 2000


def create(store: Any) -> None:
    zarr.create_array(store, name="x", shape=(PARTS * ROWS, COLUMNS), chunks=(ROWS // 2, COLUMNS), dtype="f8")


def values(part: int) -> Any:
    return np.random.default_rng(part).random((ROWS, COLUMNS))


def fill(store: Any, part: int) -> int:
    zarr.open_array(store, path="x")[ROWS * part : ROWS * (part + 1)] = values(part)
    return part


def add_up(store: Any, part: int) -> float:
    return float(np.sum(zarr.open_array(store, path="x", mode="r")[ROWS * part : ROWS * (part + 1)]))


def fail(store: Any, part: int) -> int:
    """Write a part; one of them raises an error then."""
    fill(store, part)
    if part == PARTS - 1:
        raise RuntimeError("out of luck")
    return part

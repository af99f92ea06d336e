"""joblib's workers, and those of loky, stage into one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import joblib
import loky
import numpy as np
import pytest
import zarr

from tests.clients.trials import Both, tool

PARTS, ROWS = 8, 400


def fill(x: Any, part: int) -> int:
    x[ROWS * part : ROWS * (part + 1)] = np.random.default_rng(part).random((ROWS, 2000))
    return part


def mean(x: Any, part: int) -> float:
    return float(np.mean(x[ROWS * part : ROWS * (part + 1)]))


def room(store: Any) -> Any:
    return zarr.create_array(store, name="x", shape=(ROWS * PARTS, 2000), chunks=(100, 2000), dtype="f8")


@tool(
    "joblib",
    code="Parallel(2)(delayed(fill)(zarr.open_array(store), part) for part in range(8))",
    tried="workers of loky, multiprocessing and threading",
)
@pytest.mark.parametrize("backend", ["loky", "multiprocessing", "threading"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_joblib(both: Both, backend: str) -> None:
    with joblib.Parallel(2, backend=backend) as parallel:
        both(
            lambda store: parallel(
                joblib.delayed(fill)(array, part) for array in [room(store)] for part in range(PARTS)
            ),
            lambda store: parallel(
                joblib.delayed(mean)(array, part)
                for array in [zarr.open_array(store, path="x")]
                for part in range(PARTS)
            ),
        )


@pytest.fixture
def executor() -> Iterator[Any]:
    executor = loky.get_reusable_executor(2)
    yield executor
    executor.shutdown(wait=True)


@tool("loky", code="executor.map(fill, [zarr.open_array(store)] * 8, range(8))", tried="its reusable executor")
def test_loky(both: Both, executor: Any) -> None:
    both(
        lambda store: list(executor.map(fill, [room(store)] * PARTS, range(PARTS))),
        lambda store: list(executor.map(mean, [zarr.open_array(store, path="x")] * PARTS, range(PARTS))),
    )

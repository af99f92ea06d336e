"""What the tests with zarr 2 share. Each repository is verified when its test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zarr

import txstore
import txstore.zarr2

if not zarr.__version__.startswith("2."):
    raise pytest.UsageError(f"these tests need zarr 2, not {zarr.__version__}: make test-on WHAT=zarr2")


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[txstore.Repository]:
    repo = txstore.Repository(tmp_path / "data.tx")
    yield repo
    if repo.exists:
        assert repo.verify().faults == []


@pytest.fixture(params=["plain", "store"])
def wrap(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """How a mapping is passed to zarr 2: as it is, or as a store of zarr 2."""
    return {"plain": lambda mapping: mapping, "store": txstore.zarr2.MappingStore}[request.param]

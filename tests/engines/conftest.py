"""What the tests of engines share: workers that find the jobs, and repositories that are verified when a test ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import txstore
from tests.engines import jobs

ROOT = Path(__file__).parents[2]
os.environ["PYTHONPATH"] = str(ROOT)  # workers import what their tasks are of


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[txstore.Repository]:
    """A repository with an array "x", in one commit."""
    repo = txstore.Repository(tmp_path / "data.tx")
    with repo.transaction("create") as store:
        jobs.create(store)
    yield repo
    assert repo.verify().faults == []


@pytest.fixture
def flag(tmp_path: Path) -> Path:
    """The worker that makes this file is killed: the next attempt is not."""
    return tmp_path / "killed"

"""What the tests of clients share. Each repository is verified when its test ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import txstore


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[txstore.Repository]:
    repo = txstore.Repository(tmp_path / "data.tx")
    yield repo
    if repo.exists:
        assert repo.verify().faults == []

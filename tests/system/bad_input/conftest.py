"""Repositories that lie, all of whose checksums are right."""

from collections.abc import Callable
from pathlib import Path

import pytest

import txstore
from tests.fuzz.forging import Forged
from txstore.format import names


@pytest.fixture
def forged(tmp_path: Path) -> Callable[[Callable[[Forged], object]], Path]:
    """Write a repository of three commits, and again with what a function makes of it; return where that is."""
    repo = txstore.Repository(tmp_path / "true.tx")
    for i in range(3):
        with repo.transaction(f"commit {i}") as store:
            store["a/c/0"] = b"%d" % i * 100
            store[f"b/c/{i}"] = b"b"

    def forged(change: Callable[[Forged], object]) -> Path:
        parts = Forged.read(tmp_path / "true.tx")
        del parts.others[names.head_cache_path("main")]
        change(parts)
        parts.write(tmp_path / "data.tx")
        return tmp_path / "data.tx"

    return forged

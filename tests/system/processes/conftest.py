"""What the tests of transactions of several processes share."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from txstore.store import TxStore


@pytest.fixture
def store(repo: txstore.Repository) -> Iterator[TxStore]:
    """A transaction over a repository with an array "x" of 8 chunks of 4 elements. It is rolled back at the end."""
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.zeros(32, "i8"), chunks=(4,))
    store = repo.transaction()
    yield store
    store.rollback()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that others can reach, as they can't pytest's."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)

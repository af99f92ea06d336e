"""What the tests of transactions of several processes share."""

from collections.abc import Iterator

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

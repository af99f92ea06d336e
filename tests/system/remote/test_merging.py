"""Merges on object stores: what one side has moved, and the other has changed."""

import numpy as np
import pytest
import zarr

import txstore
from tests.system.remote.conftest import STORES, with_engine

pytestmark = pytest.mark.long


@pytest.mark.parametrize("store", [each for each in ("memory", "s3-obstore") if each in STORES])
def test_changes_follow_a_move(store: str, server_of) -> None:
    name, engine = STORES[store]
    cloud = with_engine(server_of(name), engine)
    repo = txstore.Repository(cloud.url(), storage_options=cloud.storage_options)
    with repo.transaction() as writer:
        zarr.create_group(writer)
        zarr.create_array(writer, name="x", data=np.arange(8), chunks=(4,))
    repo.branches["dev"] = repo.head()
    with repo.transaction(branch="dev") as writer:
        writer.move("x", "y")
    with repo.transaction() as writer:
        zarr.open_array(writer, path="x")[0] = 10
    repo.merge("dev")
    repo.merge("main", branch="dev")
    for branch in ("main", "dev"):
        reader = repo.snapshot(branch=branch)
        assert list(zarr.open_group(reader, mode="r")) == ["y"]
        assert zarr.open_array(reader, path="y", mode="r")[:].tolist() == [10, *range(1, 8)]
    assert repo.verify().ok

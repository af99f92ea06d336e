"""Directories of repositories, and servers for them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.reader_js.node import SERVERS, Node, node


@pytest.fixture(name="node")
def the_node() -> Node:
    return node()


@pytest.fixture(params=["directory", *SERVERS])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The parent of repositories, as the reader sees it."""
    if request.param == "directory":
        yield str(tmp_path)
        return
    with SERVERS[request.param](tmp_path) as base:
        yield base


@pytest.fixture
def repo(tmp_path: Path) -> txstore.Repository:
    """Three commits, of which the second is tagged and begins a branch."""
    repo = txstore.Repository(tmp_path / "data.tx")
    with repo.transaction("first", properties={"run": 7}) as store:
        zarr.create_array(store, name="a", data=np.arange(1000), chunks=(10,))
        zarr.create_array(store, name="sharded", data=np.arange(4096).reshape(64, 64), chunks=(4, 4), shards=(32, 32))
        zarr.create_group(store, path="old/group", attributes={"größe": "ß"})
    with repo.transaction("second") as store:
        zarr.open_array(store, path="a")[:25] = -1
        zarr.create_array(store, name="large", data=np.random.default_rng(1).integers(0, 99, 100_000), chunks=(50_000,))
    repo.tags["v1"] = repo.head()
    repo.branches["Dev"] = repo.head()
    with repo.transaction("on dev", branch="Dev") as store:
        store.move("a", "b")
    with repo.begin("third") as transaction:
        transaction.delete_dir("old")
        transaction["empty"] = b""
    return repo

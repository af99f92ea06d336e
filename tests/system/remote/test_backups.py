"""Backups from each kind of storage to each: whole, run again, and of what is new."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.system.remote.conftest import STORES, with_engine

pytestmark = pytest.mark.long

LOCAL = "local"
#: Each store beside the local disk, on either side, and all of them in turn among themselves.
FAR = list(STORES)
PAIRS = [
    (LOCAL, LOCAL),
    *((LOCAL, store) for store in FAR),
    *((store, LOCAL) for store in FAR),
    *zip(FAR, FAR[1:] + FAR[:1], strict=True),
    *((store, store) for store in ("memory", "s3-obstore", "ceph-obstore") if store in FAR),
]

Place = tuple[str, dict[str, Any]]


@pytest.fixture
def place(server_of, tmp_path) -> Callable[[str], Place]:
    """Return where a repository of a kind of storage may be, and its options."""
    numbers = itertools.count()

    def place(store: str) -> Place:
        if store == LOCAL:
            return str(tmp_path / f"{next(numbers)}.tx"), {}
        kind, engine = STORES[store]
        server = with_engine(server_of(kind), engine)
        return server.url(), dict(server.storage_options)

    return place


def opened(place: Place) -> txstore.Repository:
    return txstore.Repository(place[0], storage_options=place[1])


@pytest.mark.parametrize(("source", "destination"), PAIRS)
def test_a_backup(place, source, destination):
    repo, there = opened(place(source)), place(destination)
    with repo.transaction("first") as store:
        zarr.create_array(store, name="x", data=np.arange(20_000), chunks=(1000,))
    repo.tags["v1"] = repo.head()
    repo.branches["dev"] = repo.head()
    with repo.transaction("on dev", branch="dev") as store:
        zarr.open_array(store, path="x")[0] = 5

    made = repo.backup(there[0], storage_options=there[1] or None)
    assert made.is_new
    assert str(made).startswith(f"{made.destination} is new")
    assert repo.backup(there[0], storage_options=there[1] or None).files == 0
    with repo.transaction("second") as store:
        zarr.open_array(store, path="x")[7] = 70
    made = repo.backup(there[0], storage_options=there[1] or None)
    assert not made.is_new
    assert "was brought up to date" in str(made)

    copy = opened(there)
    assert copy.verify().faults == []
    assert [commit.message for commit in copy.log()] == ["second", "first"]
    assert [commit.message for commit in copy.log(branch="dev")] == ["on dev", "first"]
    assert zarr.open_array(copy.snapshot(), path="x", mode="r")[[0, 7]].tolist() == [0, 70]
    assert zarr.open_array(copy.snapshot(at="v1"), path="x", mode="r")[7] == 7
    with copy.transaction("goes on") as store:
        zarr.open_array(store, path="x")[8] = 80
    assert copy.verify().faults == []

"""Opening a repository on an object store: what does not wait for another answer is asked for beside it."""

import threading
import uuid

import fsspec
import numpy as np
import pytest
import zarr

import txstore
from tests.tools.waiting import TIMEOUT
from txstore.format import names
from txstore.storage.objects.client import ObjectClient


@pytest.fixture
def url() -> str:
    url, others = f"memory://{uuid.uuid4().hex}", set(threading.enumerate())
    with txstore.Repository(url).transaction() as store:
        zarr.create_array(store, name="x", shape=(4,), chunks=(2,), dtype="u1")[:] = np.arange(4)
    for thread in set(threading.enumerate()) - others:
        if thread.name == "txstore head cache":
            thread.join(TIMEOUT)
    return url


def test_nobody_reads_or_writes_an_older_state_where_the_newest_commit_is_gone(url: str) -> None:
    files = fsspec.filesystem("memory")
    files.rm(f"{url}/{names.commit_path('main', 0)}")
    for use in (txstore.Repository.head, lambda repo: repo.begin()):
        with pytest.raises(txstore.CorruptionError, match="was durable in this version and is not there"):
            use(txstore.Repository(url))
    assert [fault.part for fault in txstore.Repository(url).verify().faults] == ["missing"]
    assert len(txstore.Repository(url).verify(repair=True).faults) == 1
    assert txstore.Repository(url).head() is None


def test_the_head_cache_is_asked_for_beside_what_the_repository_is(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(2, timeout=TIMEOUT)
    asked: list[str] = []
    get = ObjectClient.get

    def meet(objects: ObjectClient, path: str) -> bytes:
        asked.append(path)
        together.wait()
        return get(objects, path)

    monkeypatch.setattr(ObjectClient, "get", meet)
    snapshot = txstore.Repository(url).snapshot()
    assert sorted(asked) == sorted([names.FORMAT, names.head_cache_path("main")])
    assert list(zarr.open_array(snapshot, path="x", mode="r")[:]) == [0, 1, 2, 3]

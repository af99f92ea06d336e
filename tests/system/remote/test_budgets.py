"""How many requests it takes, as a proxy in front of S3 counts them: the promises of docs/how-to/remote.md."""

from collections.abc import Callable

import numpy as np
import pytest
import zarr

import txstore
from tests.system.remote.proxy import Proxy
from tests.tools.inside import finish_head_cache
from tests.tools.waiting import wait_for_background_cleanup, wait_for_requests
from txstore.history import branches_in_objects, object_head_caches
from txstore.storage import kept, leases, remote

pytestmark = pytest.mark.long

CHUNKS = 100_000


@pytest.fixture
def open_repo(s3, proxy, monkeypatch) -> Callable[..., txstore.Repository]:
    monkeypatch.setattr(object_head_caches, "HEAD_CACHE_PERIOD", 0.0)  # one for each commit
    monkeypatch.setattr(leases, "BEAT", 1000.0)  # no renewals, which would be counted
    # What was asked a moment ago is asked again after seconds, which this machine may take for a step.
    monkeypatch.setattr(object_head_caches, "STAYS", 1e9)
    monkeypatch.setattr(branches_in_objects, "TRUSTED", 1e9)
    monkeypatch.setattr(remote, "CHECKED_EVERY", 1e9)
    through = s3.with_options(endpoint_url=proxy.url)
    url = through.url()
    return lambda: txstore.Repository(url, storage_options=through.storage_options)


def reads(counts: dict[str, int]) -> int:
    assert counts["deletes"] == 0, counts
    return counts["reads"] + counts["lists"]


def finish_head_caches(*repos: txstore.Repository) -> None:
    wait_for_requests()
    wait_for_background_cleanup()
    for repo in repos:
        finish_head_cache(repo)


def begin(proxy: Proxy, *writers: txstore.Repository) -> None:
    """Count from here on: what the writers still had to write in the background belongs to what was before."""
    finish_head_caches(*writers)
    proxy.log.clear()


def counted(proxy: Proxy, *writers: txstore.Repository) -> dict[str, int]:
    """Return the counts since `begin`, with those of what the writers write in the background."""
    finish_head_caches(*writers)
    return proxy.counts()


def test_a_small_commit(open_repo, proxy):
    repo = open_repo()
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=(1000,), chunks=(1,), dtype="i4", fill_value=-1)
    for number in range(12):
        begin(proxy, repo)
        with repo.transaction(f"{number}") as store:
            array = zarr.open_array(store, path="x")
            array[number % 7] = number
        counts = counted(proxy, repo)
        assert counts["writes"] == 2, proxy.log  # the commit, and the head cache
        assert reads(counts) <= 3, [(each.method, each.path) for each in proxy.log]


def test_a_run_that_meets_nobody(open_repo, proxy):
    """It takes as many requests as a transaction."""
    repo = open_repo()
    with repo.transaction() as store:
        zarr.create_array(store, name="log", shape=(0,), chunks=(100,), dtype="i4", fill_value=-1)
    repo.run(lambda store: zarr.open_array(store, path="log").append(np.zeros(1, "i4")))
    for number in range(5):
        begin(proxy, repo)
        repo.run(lambda store, number=number: zarr.open_array(store, path="log").append(np.full(1, number, "i4")))
        counts = counted(proxy, repo)
        assert counts["writes"] == 2, proxy.log  # the commit, and the head cache
        assert reads(counts) <= 2, [(each.method, each.path) for each in proxy.log]  # one behind the head cache


def test_opening_and_reading_one_chunk_of_many(open_repo, proxy):
    repo = open_repo()
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=(CHUNKS,), chunks=(1,), dtype="i4", fill_value=0, compressors=None)
        for number in range(CHUNKS):
            store[f"x/c/{number}"] = number.to_bytes(4, "little")
    finish_head_caches(repo)
    for number in (0, 12_345, CHUNKS - 1):
        kept._shared._empty()  # as in a process that has read nothing
        proxy.log.clear()
        fresh = open_repo()
        array = zarr.open_array(fresh.snapshot(), path="x", mode="r")
        assert array[number] == number
        counts = proxy.counts()
        assert counts["writes"] == 0
        assert reads(counts) <= 6, [(each.method, each.path, each.headers.get("range")) for each in proxy.log]


def test_latest(open_repo, proxy):
    repo, other = open_repo(), open_repo()
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.arange(10), chunks=(1,))
    reader = other.snapshot()
    assert list(reader)
    for commits in (0, 1, 3):
        for number in range(commits):
            with repo.transaction() as store:
                zarr.open_array(store, path="x")[number] = 7
        begin(proxy, repo)
        reader = reader.latest()
        counts = proxy.counts()
        assert counts["writes"] == 0
        assert reads(counts) <= 3, [(each.method, each.path) for each in proxy.log]
        assert reader.base == repo.head()
    writer = repo.transaction()
    proxy.log.clear()
    writer = writer.latest()
    assert reads(proxy.counts()) <= 3

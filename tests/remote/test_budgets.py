"""How many requests it takes, as a proxy in front of S3 counts them: the promises of docs/remote.md."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
import zarr

import txstore
from tests.remote.proxy import Proxy
from tests.waiting import wait_until
from txstore import pack_cache, remote_commits

CHUNKS = 100_000
DEADLINE = 20


@pytest.fixture
def open_repo(s3, proxy) -> Callable[..., txstore.Repository]:
    through = s3.with_options(endpoint_url=proxy.url)
    url = through.url()
    return lambda: txstore.Repository(url, storage_options=through.storage_options)


def reads(counts: dict[str, int]) -> int:
    assert counts["deletes"] == 0
    return counts["reads"] + counts["lists"]


def wait_for_hint(repo: txstore.Repository) -> None:
    """Return when the hint names the head: it is written in the background."""
    head = repo.head()
    assert head is not None
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        try:
            if repo.engine.commits.read_hint("main").commit_id.hex() == head.id:
                return
        except FileNotFoundError:
            pass
        time.sleep(0.02)
    raise AssertionError("no hint was written")


def settled(proxy: Proxy) -> dict[str, int]:
    """Return the counts, those of a hint that comes a little later included."""
    time.sleep(0.1)
    return proxy.counts()


def test_a_small_commit(open_repo, proxy, monkeypatch):
    monkeypatch.setattr(remote_commits, "HINT_PERIOD", 0.0)  # one for each commit
    repo = open_repo()
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=(1000,), chunks=(1,), dtype="i4", fill_value=-1)
    for number in range(12):
        wait_for_hint(repo)
        proxy.log.clear()
        with repo.transaction(f"{number}") as store:
            array = zarr.open_array(store, path="x")
            array[number % 7] = number
        wait_until(lambda: proxy.counts()["writes"] >= 2)
        counts = settled(proxy)
        assert counts["writes"] <= 2, proxy.log
        assert reads(counts) <= 3, [(each.method, each.path) for each in proxy.log]


def test_a_commit_after_others(open_repo, proxy):
    """Another process has committed meanwhile: it takes what tells whether that is in conflict, and no more."""
    repo, other = open_repo(), open_repo()
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=(1000,), chunks=(1,), dtype="i4", fill_value=-1)
    for number in range(5):
        store = repo.transaction()
        zarr.open_array(store, path="x")[number] = number
        with other.transaction() as theirs:
            zarr.open_array(theirs, path="x")[500 + number] = number
        wait_for_hint(other)
        time.sleep(0.05)
        proxy.log.clear()
        store.commit()
        counts = settled(proxy)
        assert counts["writes"] <= 2
        assert reads(counts) <= 3, [(each.method, each.path) for each in proxy.log]


def test_opening_and_reading_one_chunk_of_many(open_repo, proxy):
    repo = open_repo()
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=(CHUNKS,), chunks=(1,), dtype="i4", fill_value=0, compressors=None)
        for number in range(CHUNKS):
            store[f"x/c/{number}"] = number.to_bytes(4, "little")
    wait_for_hint(repo)
    for number in (0, 12_345, CHUNKS - 1):
        pack_cache._shared._empty()  # as in a process that has read nothing
        proxy.log.clear()
        fresh = open_repo()
        array = zarr.open_array(fresh.snapshot(), path="x", mode="r")
        assert array[number] == number
        counts = settled(proxy)
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
        wait_for_hint(repo)
        time.sleep(0.05)
        proxy.log.clear()
        reader = reader.latest()
        counts = settled(proxy)
        assert counts["writes"] == 0
        assert reads(counts) <= 3, [(each.method, each.path) for each in proxy.log]
        assert reader.base == repo.head()
    writer = repo.transaction()
    proxy.log.clear()
    writer = writer.latest()
    assert reads(settled(proxy)) <= 3

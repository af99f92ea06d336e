"""Several processes in one transaction on an object store: what they stage is stored, found, counted, and deleted."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import zarr

import txstore
from tests.processes.members import Member, append, clear, committed, fill, get, members, put, seal
from tests.processes.workers import QUICK, SPAWN, TIMEOUT
from tests.remote import lease_times
from tests.remote.conftest import STORES, with_engine
from tests.remote.servers import Server
from txstore import leases, names
from txstore.store import TxStore

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills and stops processes")


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "BEAT", lease_times.BEAT)
    monkeypatch.setattr(leases, "TERM", lease_times.TERM)


def opened(server: Server) -> txstore.Repository:
    return txstore.Repository(server.url(), storage_options=server.storage_options)


@pytest.fixture
def repo(server_of: Callable[[str], Server]) -> Iterator[txstore.Repository]:
    """A repository on S3; verified when the test ends."""
    repo = opened(server_of("s3"))
    yield repo
    assert repo.verify().faults == []


@pytest.fixture(params=["s3-s3fs", "s3-obstore", "azure-obstore", "sftp"])
def repo_anywhere(request: pytest.FixtureRequest, server_of: Callable[[str], Server]) -> Iterator[txstore.Repository]:
    """A repository on one of several servers."""
    name, engine = STORES[request.param]
    repo = opened(with_engine(server_of(name), engine))
    yield repo
    assert repo.verify().faults == []


def begin(repo: txstore.Repository) -> TxStore:
    """Return a transaction over an array "x" of 8 chunks of 4 zeros."""
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.zeros(32, "i8"), chunks=(4,))
    return repo.transaction()


@pytest.fixture
def store(repo: txstore.Repository) -> Iterator[TxStore]:
    store = begin(repo)
    yield store
    store.rollback()


def paths(repo: txstore.Repository, directory: str = names.STAGING) -> list[str]:
    return [found.name for found in repo.engine.storage.objects.list(directory)]


def packs(repo: txstore.Repository) -> set[str]:
    return {file for folder in paths(repo, names.PACKS) for file in paths(repo, f"{names.PACKS}/{folder}")}


def referred(repo: txstore.Repository) -> set[str]:
    commits = repo.engine.commits
    return {pack.name.id.hex() for stored in commits.ancestors(commits.head()) for pack in stored.header.packs}


def assert_tidy(repo: txstore.Repository) -> None:
    """Nothing is left but what commits refer to."""
    assert paths(repo) == []
    assert packs(repo) == referred(repo)


# --- every way to start a process


def fill_region(store: TxStore, number: int) -> None:
    fill(store, "x", 8 * number, 8 * number + 8, number + 1)


def test_workers_of_a_pool_fill_one_array(repo_anywhere):
    store = begin(repo_anywhere)
    with ProcessPoolExecutor(2, mp_context=QUICK, initializer=lease_times.shorten) as pool:
        list(pool.map(fill_region, [store] * 4, range(4), timeout=TIMEOUT))
        assert committed(repo_anywhere) == [0] * 32
        changes = store.changes()
        assert changes["set"] == [f"x/c/{i}" for i in range(8)]
        assert sorted(key for keys in changes["participants"].values() for key in keys) == changes["set"]
        assert all(who.startswith("process ") and "this one" not in who for who in changes["participants"])
        assert zarr.open_array(store, path="x")[:].tolist() == [number // 8 + 1 for number in range(32)]
        store.commit("by workers")
    assert committed(repo_anywhere) == [number // 8 + 1 for number in range(32)]
    assert len(list(repo_anywhere.log())) == 2
    assert_tidy(repo_anywhere)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_one_process_each_fills_one_array(repo, store, method):
    context = multiprocessing.get_context(method)
    processes = [context.Process(target=fill_region, args=(store, number), daemon=True) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(TIMEOUT)
        assert process.exitcode == 0
    store.commit()
    assert committed(repo) == [number // 8 + 1 for number in range(32)]
    assert_tidy(repo)

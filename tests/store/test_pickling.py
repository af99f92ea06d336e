"""Stores that go through pickle: to the same process, to another, to dask's workers."""

import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import dask
import dask.array
import numpy as np
import pytest
import zarr

import txstore
from tests.tools.commits import create_array, set_keys, write_array
from txstore.store import TxStore


def in_another_process(use: Callable[[bytes], str], store: TxStore) -> str:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(use, pickle.dumps(store)).result(60)


def first_use(pickled: bytes) -> str:
    """Tell what happens, in the words "unpickled" and then the keys, or the name of an exception."""
    store = pickle.loads(pickled)
    try:
        return f"unpickled, {list(store)}"
    except txstore.TxStoreError as error:
        return f"unpickled, {type(error).__name__}"


def first_write(pickled: bytes) -> str:
    store = pickle.loads(pickled)
    store["b"] = b"2"
    try:
        return str(store.commit())
    except txstore.TxStoreError as error:
        return f"unpickled and staged, {type(error).__name__}"


def commit(repo: txstore.Repository, key: str, value: bytes = b"1") -> None:
    set_keys(repo, {key: value})


def test_a_snapshot_stays_at_its_commit(repo: txstore.Repository) -> None:
    commit(repo, "a")
    snapshot = repo.snapshot()
    pickled = pickle.dumps(snapshot)
    commit(repo, "b")
    copy = pickle.loads(pickled)
    assert copy == snapshot
    assert copy.read_only
    assert list(copy.latest()) == ["a", "b"]
    assert in_another_process(first_use, copy) == "unpickled, ['a']"


def test_a_writer_of_a_repository_that_does_not_exist_is_independent_in_another_process(repo):
    assert in_another_process(first_write, repo.transaction()).startswith("main@0")
    assert list(repo.snapshot()) == ["b"]


def test_a_block_sends_its_transaction_also_where_there_is_no_repository(repo: txstore.Repository) -> None:
    """As cubed does, which lets a worker create the array."""
    with repo.transaction() as store:
        assert in_another_process(first_write, store) == "unpickled and staged, TransactionStateError"
    assert list(repo.snapshot()) == ["b"]


@pytest.mark.long
@pytest.mark.parametrize("staged", [True, False])
def test_another_process_writes_into_the_same_transaction(repo: txstore.Repository, staged: bool) -> None:
    commit(repo, "a")
    store = repo.transaction()
    if staged:
        store["c"] = b"3"
    assert in_another_process(first_use, store) == f"unpickled, {['a', 'c'] if staged else ['a']}"
    assert in_another_process(first_write, store) == "unpickled and staged, TransactionStateError"
    assert list(repo.snapshot()) == ["a"]
    store.commit()
    assert list(repo.snapshot()) == (["a", "b", "c"] if staged else ["a", "b"])


def test_staged_writes_are_joined_in_the_same_process(repo: txstore.Repository) -> None:
    store = repo.transaction()
    empty = pickle.loads(pickle.dumps(store))
    assert (empty == store, empty.read_only) == (True, False)
    store["a"] = b"1"
    copy = pickle.loads(pickle.dumps(store))
    assert copy == store
    assert copy["a"] == b"1"
    copy["b"] = b"2"
    store.commit()
    assert list(repo.snapshot()) == ["a", "b"]


def test_a_repository_that_is_not_there_is_reported_by_the_first_read_of_a_pickle(tmp_path: Path) -> None:
    """Raising while unpickling hangs a pool of workers."""
    path = tmp_path / "here.tx"
    repo = txstore.Repository(path)
    create_array(repo, "x", data=np.arange(3))
    pickled = pickle.dumps(repo.snapshot())
    path.rename(tmp_path / "elsewhere.tx")
    copy = pickle.loads(pickled)
    with pytest.raises(txstore.RepositoryNotFoundError, match=r"here\.tx"):
        copy["x/zarr.json"]
    for open_it in (zarr.open_array, zarr.open_group):
        with pytest.raises(txstore.RepositoryNotFoundError, match=r"here\.tx"):
            open_it(copy, path="x", mode="r")
    assert not path.exists()


@pytest.mark.long
@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes"])
def test_dask_computes_from_a_snapshot(repo: txstore.Repository, scheduler: str) -> None:
    create_array(repo, "x", data=np.arange(100), chunks=(10,))
    lazy = dask.array.from_zarr(zarr.open_array(repo.snapshot(), path="x", mode="r"))
    write_array(repo, "x", ..., 0)
    with dask.config.set(num_workers=2, **{"multiprocessing.context": "spawn"}):
        assert int(lazy.sum().compute(scheduler=scheduler)) == 4950


def test_a_reader_of_a_repository_without_commits_stays_there(repo):
    repo.transaction(name="job").rollback()  # created, and nothing committed
    reader = repo.snapshot()
    assert list(reader) == []
    set_keys(repo, {"key": b"1"})
    assert list(pickle.loads(pickle.dumps(reader))) == list(reader) == []

"""Several processes in one transaction: what they stage, in which order, and who sees it; the owner commits it all."""

import multiprocessing
import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.members import committed, fill, fill_region, get, locked, members, put
from tests.tools.waiting import wait_until
from tests.tools.workers import TIMEOUT
from txstore.storage import local
from txstore.store import TxStore

METHODS = ["spawn", "forkserver", "fork"]


# --- every way to start a process
def with_executor(context: Any, store: TxStore) -> None:
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        list(pool.map(fill_region, [store] * 4, range(4), timeout=TIMEOUT))


def with_pool(context: Any, store: TxStore) -> None:
    with context.Pool(2) as pool:
        pool.starmap_async(fill_region, [(store, number) for number in range(4)]).get(TIMEOUT)
        pool.close()
        pool.join()


def with_living_pool(context: Any, store: TxStore) -> None:
    """Its processes live until the test ends: they need not have ended for the commit."""
    pool = context.Pool(2)
    pool.starmap_async(fill_region, [(store, number) for number in range(4)]).get(TIMEOUT)
    with_living_pool.pools.append(pool)


with_living_pool.pools = []


def with_processes(context: Any, store: TxStore) -> None:
    processes = [context.Process(target=fill_region, args=(store, number), daemon=True) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(TIMEOUT)
        assert process.exitcode == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    ("crew", "method"),
    [
        pytest.param(crew, method, marks=[] if crew is with_processes and method == "fork" else pytest.mark.long)
        for crew in (with_executor, with_pool, with_living_pool, with_processes)
        for method in METHODS
    ],
)
def test_workers_fill_one_array(repo, store, crew, method):
    crew(multiprocessing.get_context(method), store)
    assert committed(repo) == [0] * 32
    changes = store.changes()
    assert changes["set"] == [f"x/c/{i}" for i in range(8)]
    staged = changes["participants"]
    assert sorted(key for keys in staged.values() for key in keys) == changes["set"]
    assert all(who.startswith("process ") and "this one" not in who for who in staged)
    store.commit("by workers")
    assert committed(repo) == [number // 8 + 1 for number in range(32)]
    assert len(list(repo.log())) == 2
    assert not os.listdir(Path(repo.url, ".staging"))
    while with_living_pool.pools:
        with with_living_pool.pools.pop() as pool:
            pool.close()
            pool.join()


# --- two that write one chunk
def test_halves_of_one_chunk_under_a_lock(repo, store):
    with members(store, 2) as (first, second):
        first.do(locked, "x", np.s_[0:2], fill, "x", 0, 2, 1)
        second.do(locked, "x", np.s_[2:4], fill, "x", 2, 4, 2)
        first.do(locked, "x", np.s_[1:3], fill, "x", 1, 3, 3)  # what it had read before is not what it writes back
    store.commit()  # the two were killed, and their operations had ended
    assert committed(repo)[:4] == [1, 3, 3, 2]


def fill_in_block(store: TxStore, start: int, stop: int, value: int) -> None:
    with store:
        fill(store, "x", start, stop, value)


def look(store: TxStore) -> list[str]:
    return [*zarr.open_group(store, mode="r")]


def test_a_block_over_parts_that_its_process_wrote_before_and_after_it_saw_others(repo, store):
    """A frame of the block said that the first part was seen, and seemed to know nothing of the second."""
    with members(store, 2) as (first, second):
        first.do(fill, "x", 1, 3, 1)
        second.do(fill, "x", 0, 1, 2)
        first.do(look)
        first.do(fill, "x", 2, 4, 3)
        first.do(fill_in_block, 1, 4, 4)
        store.commit()
    assert committed(repo)[:4] == [2, 4, 4, 4]


def hold_when_told(directory: str) -> None:
    """A process that stands still when it has created a file and does not hold it yet."""
    hold = local._hold

    def hold_late(descriptor: int) -> bool:
        Path(directory, "created").touch()
        wait_until(Path(directory, "go on").exists)
        return hold(descriptor)

    local._hold = hold_late


def test_who_joins_while_another_creates_its_file_does_not_take_it_for_dead(repo, store, tmp_path):
    with (
        members(store, 1, first=partial(hold_when_told, str(tmp_path))) as (slow,),
        members(store, 1, joined=False) as (other,),
    ):
        slow.begin(locked, "x", np.s_[0:2], fill, "x", 0, 2, 1)
        wait_until((tmp_path / "created").exists)
        other.do(get, "x/zarr.json")
        (tmp_path / "go on").touch()
        slow.answer()
        other.do(locked, "x", np.s_[1:3], fill, "x", 1, 3, 3)
        store.commit()
    assert committed(repo)[:4] == [1, 3, 3, 0]


@pytest.mark.parametrize("is_killed", [False, True])
def test_after_a_block_its_process_goes_on_where_the_block_ended(repo, store, is_killed):
    """It wrote over the state from before the block. If it was killed later, its write counted as repeated."""
    with members(store, 1) as (worker,):
        worker.do(fill_in_block, 0, 3, 1)
        worker.do(fill, "x", 1, 2, 2)
        if is_killed:
            worker.kill()
        store.commit()
    assert committed(repo)[:4] == [1, 2, 1, 0]


def test_halves_of_one_chunk_without_a_lock(repo, store):
    with members(store, 2) as (first, second):
        first.do(fill, "x", 4, 6, 1)
        second.do(fill, "x", 6, 8, 2)
        store.commit()
    assert committed(repo)[4:8] == [1, 1, 2, 2]


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
@pytest.mark.parametrize("values", [(0, 2), (2, 0), (0, 0)])
def test_halves_of_one_chunk_of_which_one_is_all_fill_value(repo, store, values, isolation):
    store.rollback()
    store = repo.transaction(isolation=isolation)
    with members(store, 2) as (first, second):
        first.do(fill, "x", 4, 6, values[0])
        second.do(fill, "x", 6, 8, values[1])
        store.commit()
    assert committed(repo)[4:8] == [values[0]] * 2 + [values[1]] * 2
    assert ("x/c/1" in repo.mapping()) == any(values)


def create_anew(store: TxStore) -> None:
    zarr.create_array(store, name="x", shape=(32,), chunks=(4,), dtype="i8", overwrite=True)


def delete_and_create(store: TxStore) -> None:
    del zarr.open_group(store)["x"]
    create_anew(store)


def create_group_anew(store: TxStore) -> None:
    zarr.create_group(store, overwrite=True)
    create_anew(store)


def shrink_and_grow(store: TxStore) -> None:
    z = zarr.open_array(store, path="x")
    z.resize((2,))
    z.resize((32,))


def fill_whole(store: TxStore) -> None:
    fill(store, "x", 0, 32, 9)


def replaced_by_a_worker(store: TxStore) -> None:
    with members(store, 1) as (member,):
        member.do(create_anew)
        member.leave()


REPLACING = [create_anew, delete_and_create, create_group_anew, shrink_and_grow, fill_whole, replaced_by_a_worker]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    ("replace", "method"),
    [(replace, "forkserver") for replace in REPLACING] + [(create_anew, "fork"), (create_anew, "spawn")],
)
def test_parts_of_one_chunk_that_was_replaced_before(repo, store, replace, method):
    """One worker joins between two writes of another one, and knows of the replacing from the first of them."""
    context = multiprocessing.get_context(method)
    replace(store)
    with members(store, 1, context) as (first,):
        first.do(fill, "x", 4, 5, 1)
        with members(store, 1, context) as (second,):
            second.do(fill, "x", 5, 7, 2)
            first.do(fill, "x", 7, 8, 3)
            store.commit()
    assert committed(repo)[4:8] == [1, 2, 2, 3]


def test_parts_of_one_chunk_that_overlap_without_a_lock(repo, store):
    with members(store, 2) as (first, second):
        first.do(fill, "x", 4, 7, 1)
        second.do(fill, "x", 6, 8, 2)
        with pytest.raises(txstore.ConflictError, match="without knowing of each other") as caught:
            store.commit()
        assert caught.value.keys == ("x/c/1",)
        said = str(caught.value)
        assert "align the work with the chunks" in said
        assert "reads and writes its part within `with store.lock(path, selection)`" in said
        assert "repo.run" not in said  # nobody else's commit is in the way
        assert "latest()" not in said
    assert committed(repo) == [0] * 32


def read(store: TxStore, path: str, start: int, stop: int) -> None:
    zarr.open_array(store, path=path)[start:stop]


def read_then_lock(store: TxStore, start: int, stop: int, value: int) -> None:
    z = zarr.open_array(store, path="x")
    z[start:stop]
    with store.lock("x", np.s_[start:stop]):
        z[start:stop] = value


@pytest.mark.long
def test_what_was_read_before_the_lock_is_to_be_read_under_it(repo, store):
    with members(store, 2) as (first, second):
        second.do(read, "x", 6, 8)
        first.do(read_then_lock, 4, 6, 1)
        second.do(locked, "x", np.s_[6:8], put, "x/c/1", bytes(32))  # made of what it had read, for all one can tell
        with pytest.raises(txstore.ConflictError, match="without knowing of each other") as caught:
            store.commit()
        assert caught.value.keys == ("x/c/1",)
        said = str(caught.value)
        assert "Roll back, and let each read under the lock what it changes there" in said
        assert "align" not in said  # they have taken turns
    store.rollback()


# --- bad input
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_pickle_that_is_used_after_the_end(repo, store, end):
    store["key"] = b"1"
    with members(store, 2) as (early, late):
        early.do(put, "early", b"1")
        getattr(store, end)()
        for member in (early, late):
            with pytest.raises(txstore.TransactionStateError, match="this transaction has ended") as caught:
                member.do(put, "late", b"1")
            assert caught.value.state == "ended"
    assert ("early" in repo.mapping()) is (end == "commit")
    assert "late" not in repo.mapping()


def test_a_worker_that_sees_another_disk_at_the_same_path(repo, store, tmp_path):
    store["key"] = b"1"
    elsewhere = tmp_path / "elsewhere"
    with members(store, 2, joined=False) as (first, second):
        os.rename(repo.url, elsewhere)
        with pytest.raises(txstore.RepositoryNotFoundError, match="is not there: does this process see the same disk"):
            first.do(put, "late", b"1")
        assert not os.path.exists(repo.url)
        with txstore.Repository(repo.url).transaction() as other:
            other["other"] = b"1"
        with pytest.raises(txstore.RepositoryNotFoundError, match="another repository than the store was made for"):
            second.do(put, "late", b"1")
        assert dict(txstore.Repository(repo.url).mapping()) == {"other": b"1"}
        shutil.rmtree(repo.url)
        os.rename(elsewhere, repo.url)
    store.commit()
    assert repo.mapping()["key"] == b"1"

"""Transactions with a name: processes that share nothing but the disk stage into one, and any of them ends it."""

import multiprocessing
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.system.processes.ranks import NAME, assert_tidy, content, named, ranks, stage, value_of
from tests.tools.members import committed, members
from tests.tools.workers import QUICK, TIMEOUT, Worker, ended
from txstore import TransactionStateError

ROOT = Path(__file__).parents[3]

#: A job of its own, as a batch system starts it; it dies half-way if it is told to.
RANK = """
import os, signal, sys
import txstore, zarr
url, rank, dies = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "dies"
with txstore.Repository(url).transaction(name="run-17") as store:
    x = zarr.open_array(store, path="x")
    for chunk in range(10):
        if dies and chunk == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        x[100 * rank + 10 * chunk : 100 * rank + 10 * chunk + 10] = rank + 1
"""


def run_ranks(repo: txstore.Repository, *which: int, dies: int | None = None) -> list[int]:
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, repo.url, str(rank), "dies" if rank == dies else "lives"], cwd=ROOT
        )
        for rank in which
    ]
    try:
        return [job.wait(TIMEOUT) for job in jobs]
    finally:
        for job in jobs:
            job.kill()


def create_x(repo: txstore.Repository, **more: Any) -> None:
    with repo.transaction("create") as store:
        zarr.create_array(store, name="x", **{"shape": (400,), "chunks": (10,), "dtype": "i4", **more})


# --- what it is for
@pytest.mark.long
def test_four_ranks_and_a_restart(repo: txstore.Repository) -> None:
    create_x(repo)
    assert run_ranks(repo, 0, 1, 2, 3, dies=2) == [0, 0, -9, 0]
    assert not np.any(zarr.open_array(repo.snapshot(), path="x")[:])
    with pytest.raises(txstore.ParticipantLostError) as lost:
        repo.transaction(name=NAME).commit()
    assert lost.value.keys == tuple(f"x/c/{20 + chunk}" for chunk in range(5))
    assert len(lost.value.participants) == 1
    assert run_ranks(repo, 2) == [0]
    assert not np.any(zarr.open_array(repo.snapshot(), path="x")[:])
    assert repo.transaction(name=NAME).commit("all of it").message == "all of it"
    assert list(zarr.open_array(repo.snapshot(), path="x")[:]) == [1 + i // 100 for i in range(400)]
    assert [commit.message for commit in repo.log()] == ["all of it", "create"]
    assert_tidy(repo)


def test_what_power_loss_has_taken_of_the_dead_is_not_committed(repo: txstore.Repository) -> None:
    """Frames that were never synced may be there without their values."""
    with ranks(1, repo) as (rank,):
        transaction = rank.do("join")
        rank.do("put", "a", "b", "c")
    (part,) = Path(repo.url, ".staging").glob(f"{transaction}.*[0-9]")
    with part.open("r+b") as file:
        file.seek(part.read_bytes().rindex(value_of("b")))
        file.write(bytes(50))
    with pytest.raises(txstore.ParticipantLostError) as lost:
        repo.transaction(name=NAME).commit(allow_lost=True)
    assert lost.value.keys == ("b",)
    stage(repo, "a", "b", "c")  # all of it: nothing of the damaged file goes into the commit
    repo.transaction(name=NAME).commit()
    assert content(repo) == ["a", "b", "c"]


# --- beginning
def join_in_rounds(barrier: Any, url: str, number: int, rounds: int) -> list[str]:
    repo, found = txstore.Repository(url, durability="none"), []
    for i in range(rounds):
        barrier.wait()
        with repo.transaction(name=f"round-{i}") as store:
            store[f"{i}/{number}"] = value_of(f"{i}/{number}")
            found.append(store.mapping.id)
    return found


def test_two_begin_at_once(open_repo: Any) -> None:
    """One transaction, also when the repository is created by the same race."""
    repo, rounds = open_repo(durability="none"), 60
    barrier = QUICK.Barrier(2, timeout=TIMEOUT)
    workers = [Worker(join_in_rounds, barrier, repo.url, number, rounds, context=QUICK) for number in range(2)]
    with ended(*workers):
        one, other = [worker.result() for worker in workers]
    assert one == other
    assert len(set(one)) == rounds
    assert sorted(named(repo)) == sorted(f"round-{i}" for i in range(rounds))
    for i in range(rounds):
        repo.transaction(name=f"round-{i}").commit()
    assert content(repo) == sorted(f"{i}/{number}" for i in range(rounds) for number in range(2))
    assert_tidy(repo)


def join_and_commit(url: str, number: int, count: int) -> list[str]:
    """Stage keys one at a time under one name, which others commit all the time; return those that were staged."""
    repo = txstore.Repository(url, durability="none")
    staged = []
    for i in range(count):
        key = f"{number}/{i}"
        while key not in staged:
            try:
                with repo.transaction(name=NAME) as store:
                    store[key] = value_of(key)
                    staged.append(key)
                repo.transaction(name=NAME).commit()
            except TransactionStateError as error:
                if error.state not in ("open", "committing", "ended"):
                    raise
    return staged


def test_a_name_that_is_committed_and_begun_anew_all_the_time(open_repo: Any) -> None:
    """What a `with` block has staged without an error is committed, once, whoever does it."""
    repo = open_repo(durability="none")
    workers = [Worker(join_and_commit, repo.url, number, 25, context=QUICK) for number in range(3)]
    with ended(*workers):
        staged = [key for worker in workers for key in worker.result()]
    if named(repo):
        repo.transaction(name=NAME).commit()
    assert content(repo) == sorted(staged)
    ids = [commit.id for commit in repo.log()]
    assert len(ids) == len(set(ids))
    assert_tidy(repo)


@pytest.mark.parametrize("name", ["", ".a", "-a", "a/b", "a b", "../a", "a\0", "ä", "a" * 101, 7])
def test_bad_names(repo: txstore.Repository, name: Any) -> None:
    with pytest.raises(txstore.KeyFormatError, match="transaction"):
        repo.transaction(name=name)
    assert not repo.exists


@pytest.mark.parametrize(
    "name",
    [
        "a" * 100,
        "a.open",
        "a.sealed",
        "a.new",
        "0123456789abcdef0123456789abcdef.1",
        "named-a",
        "abcdefghijklmnopqrstuvwxyz.0",
    ],
)
def test_names_that_look_like_other_files(repo: txstore.Repository, name: str) -> None:
    stage(repo, "a", name=name)
    with txstore.Repository(repo.url).transaction() as store:  # tidies up first
        store["b"] = value_of("b")
    assert named(repo) == [name]
    repo.transaction(name=name).commit()
    assert content(repo) == ["a", "b"]
    assert_tidy(repo)


def test_a_name_and_locks_for_its_whole_life(repo: txstore.Repository) -> None:
    create_x(repo)
    with pytest.raises(ValueError, match=r"store\.lock"):
        repo.transaction(name=NAME, lock=["x"])
    assert named(repo) == []


# --- leaving


def test_after_the_block_nothing_can_be_staged(repo: txstore.Repository) -> None:
    with repo.transaction(name=NAME) as store:
        x = zarr.create_array(store, name="x", shape=(4,), chunks=(2,), dtype="i4")
    with pytest.raises(TransactionStateError, match="goes on"):
        x[:] = 1
    with pytest.raises(TransactionStateError, match="goes on"):
        store.commit()
    repo.transaction(name=NAME).commit()
    assert not np.any(zarr.open_array(repo.snapshot(), path="x")[:])


# --- children of a rank


def fill_chunk(store: txstore.TxStore, number: int) -> None:
    zarr.open_array(store, path="x")[10 * number : 10 * number + 10] = number + 1


def read_all(store: txstore.TxStore) -> None:
    zarr.open_array(store, path="x")[:]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
def test_idle_workers_of_a_pool_delay_no_commit(repo: txstore.Repository, method: str, isolation: str) -> None:
    """They live, and may be given more to do, of whatever transaction."""
    create_x(repo)
    with ProcessPoolExecutor(2, multiprocessing.get_context(method)) as pool:
        for name in ("one", "two"):
            store = repo.transaction(name=name, isolation=isolation)
            list(pool.map(fill_chunk, [store] * 6, range(6)))
            list(pool.map(read_all, [store] * 2))
            store.commit(name)
    assert [commit.message for commit in repo.log()] == ["two", "one", "create"]
    assert zarr.open_array(repo.snapshot(), path="x")[::10].tolist() == [*range(1, 7), *[0] * 34]
    assert_tidy(repo)


@pytest.mark.parametrize("before", [0, 1])
def test_a_worker_that_is_in_a_block_is_at_work(repo: txstore.Repository, before: int) -> None:
    """Also before it has staged anything there. If it is killed there, what it had done before counts."""
    create_x(repo)
    store = repo.transaction(name=NAME)
    with members(store, 1, joined=False) as (worker,):
        for number in range(before):
            worker.do(fill_chunk, number)
        for _ in range(2):
            worker.do(enter_sent, store)
            for end in (store.commit, store.rollback):
                with pytest.raises(TransactionStateError, match=r"may still stage into it\. Each leaves by"):
                    end()
            worker.do(leave)
        worker.do(enter_sent, store, 3)
        worker.kill()
    with pytest.raises(txstore.ParticipantLostError) as lost:
        store.commit()
    assert lost.value.keys == ("x/c/3",)
    fill_chunk(store, 3)
    store.commit()
    assert committed(repo)[::10] == [1] * before + [0] * (3 - before) + [4] + [0] * 36


_entered: list[txstore.TxStore] = []  # in a worker


def enter_sent(_: txstore.TxStore, sent: txstore.TxStore, *chunks: int) -> None:
    _entered.append(sent.__enter__())
    for number in chunks:
        fill_chunk(sent, number)


def leave(_: txstore.TxStore) -> None:
    _entered.pop().__exit__(None, None, None)

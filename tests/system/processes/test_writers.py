"""Processes that write one repository at the same time: nothing is lost, and nobody waits for ever."""

import pytest

import txstore
from tests.tools.inside import staged
from tests.tools.workers import run_together


def write_own_keys(barrier, path, number: int, commits: int, durability: str) -> None:
    repo = txstore.Repository(path, durability=durability)
    barrier.wait()
    for i in range(commits):
        with repo.transaction(f"{number}/{i}") as store:
            store[f"{number}/{i}"] = b"%d" % i
            store[f"{number}/last"] = b"%d" % i


@pytest.mark.long
@pytest.mark.parametrize(
    ("processes", "commits", "durability"), [(2, 200, "none"), (4, 100, "none"), (2, 40, "fsync"), (4, 20, "fsync")]
)
def test_disjoint_keys_never_conflict(repo, processes, commits, durability):
    run_together(write_own_keys, *((repo.url, number, commits, durability) for number in range(processes)))
    expected = {f"{n}/{i}": b"%d" % i for n in range(processes) for i in range(commits)}
    expected |= {f"{n}/last": b"%d" % (commits - 1) for n in range(processes)}
    assert dict(repo.mapping()) == expected
    log = list(repo.log())
    assert [commit.version for commit in log] == list(range(processes * commits))[::-1]
    for number in range(processes):  # each process's own commits are in its own order
        mine = [commit.message for commit in log if commit.message.startswith(f"{number}/")]
        assert mine == [f"{number}/{i}" for i in reversed(range(commits))]


def increment(barrier, path, times: int, durability: str) -> int:
    repo = txstore.Repository(path, durability=durability)
    runs = 0

    def add_one(store):
        nonlocal runs
        runs += 1
        store["count"] = b"%d" % (int(store["count"]) + 1)

    barrier.wait()
    for _ in range(times):
        repo.run(add_one, retries=10_000)
    return runs


@pytest.mark.parametrize(
    ("processes", "times", "durability"),
    [
        pytest.param(2, 100, "none", marks=pytest.mark.long),
        pytest.param(4, 50, "none", marks=pytest.mark.long),
        (4, 10, "fsync"),
    ],
)
def test_every_increment_counts(repo, processes, times, durability):
    with repo.transaction() as store:
        store["count"] = b"0"
    runs = run_together(increment, *[(repo.url, times, durability)] * processes)
    assert repo.snapshot()["count"] == b"%d" % (processes * times)
    assert repo.head().version == processes * times  # those that conflicted took no version
    assert sum(runs) >= processes * times
    assert not staged(repo)


def write_once(barrier, path, number: int) -> str:
    repo = txstore.Repository(path)
    tx = repo.begin()
    tx["key"] = b"%d" % number
    barrier.wait()
    try:
        tx.commit()
    except txstore.ConflictError:
        assert dict(tx) == {"key": b"%d" % number}  # what is staged is still there
        tx.rollback()
        return "lost"
    return "won"


@pytest.mark.long
def test_one_of_many_blind_writes_wins(repo):
    with repo.transaction() as store:
        store["key"] = b"base"
    outcomes = run_together(write_once, *((repo.url, number) for number in range(4)))
    assert sorted(outcomes) == ["lost"] * 3 + ["won"]
    assert repo.snapshot()["key"] == b"%d" % outcomes.index("won")

"""Processes that write one repository at the same time: nothing is lost, and nobody waits for ever."""

import pytest

import txstore
from tests.tools.inside import staged
from tests.tools.workers import run_together


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

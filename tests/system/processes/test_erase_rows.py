"""Rows are erased by processes that are killed at any moment, beside others that write and read the same array."""

import random
import time
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.maintenance.erased_rows import array_of, contents, leaks
from tests.tools.workers import QUICK, Worker, ended
from txstore import Repository

SECRET = np.frombuffer(random.Random(9).randbytes(8 * 64), np.uint64).reshape(8, 8)


def fill(repo: Repository) -> None:
    with repo.transaction("made") as store:
        array_of(store, "p", np.arange(1, 9), ["p"], (4,))
        array_of(store, "v", SECRET, ["p", "x"], (2, 8))
    for number in range(6):
        with repo.transaction(f"{number}") as store:
            zarr.open_array(store, path="v")[number] = SECRET[number][::-1]
    repo.branches["dev"] = repo.head()  # type: ignore[assignment]
    with repo.transaction("dev", branch="dev") as store:
        zarr.open_array(store, path="v")[2] = SECRET[2] + np.uint64(1)


def erase(url: str) -> None:
    txstore.Repository(url).erase("v", {"p": 3}, timeout=60)


def append(url: str, rounds: int) -> int:
    """Append rows, and change some, until it was done so often; return how many there are."""
    repo = txstore.Repository(url)

    def change(store: Any) -> None:
        for path, row in {"p": np.array([1000]), "v": np.full((1, 8), 7, np.uint64)}.items():
            zarr.open_array(store, path=path).append(row)
        zarr.open_array(store, path="v")[7, 3] = 5

    for _ in range(rounds):
        repo.run(change, timeout=60)
        time.sleep(0.02)
    return int(zarr.open_array(repo.snapshot(), path="v", mode="r").shape[0])


def check_others(repo: Repository) -> None:
    """What is not erased is as it was."""
    made = zarr.open_array(repo.snapshot(at=0), path="v", mode="r")[...]
    np.testing.assert_array_equal(np.delete(made, 2, 0), np.delete(SECRET, 2, 0))
    assert np.array_equal(made[2], SECRET[2]) or not made[2].any()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_killed_again_and_again(repo: Repository, seed: int) -> None:
    fill(repo)
    chance = random.Random(seed)
    for _ in range(6):
        worker = Worker(erase, repo.url, context=QUICK)
        with ended(worker):
            worker.answered(chance.uniform(0.02, 0.6))
        again = txstore.Repository(repo.url)
        check_others(again)
        assert {fault.part for fault in again.verify().faults} <= {"erasure"}
        del again
    erase(repo.url)
    check_others(repo)
    secrets = [row.tobytes()[:16] for row in (SECRET[2], SECRET[2][::-1], SECRET[2] + np.uint64(1))]
    assert leaks(repo.url, *secrets) == []
    assert all(each.finished for each in repo.erasures())
    found = contents(repo)
    assert not any(data[2].any() for (_, _, path), data in found.items() if path == "v")


def test_beside_a_writer(repo: Repository) -> None:
    fill(repo)
    writer, eraser = Worker(append, repo.url, 40, context=QUICK), Worker(erase, repo.url, context=QUICK)
    with ended(writer, eraser):
        eraser.result()
        rows = writer.result()
    assert rows == 48
    head = zarr.open_array(repo.snapshot(), path="v", mode="r")[...]
    assert (head[8:] == 7).all()
    assert head[7, 3] == 5
    assert not head[2].any()
    check_others(repo)
    assert leaks(repo.url, SECRET[2].tobytes()[:16], SECRET[2][::-1].tobytes()[:16]) == []

"""Processes commit at the same time, and a part of what they commit would break a constraint."""

from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.workers import run_together
from txstore import ConstraintError
from txstore.constraints import Complete, EqualLength

pytestmark = pytest.mark.long

WRITERS, COMMITS, BROKEN = 8, 500, 5  # every fifth


def length_of(store: txstore.TxStore, path: str) -> int:
    return zarr.open_array(store, path=path, mode="r").shape[0]


def write(barrier: Any, url: str, numbers: list[int]) -> tuple[list[int], list[int]]:
    """Return which of the commits were made, and which were refused."""
    repo = txstore.Repository(url, durability="none")
    made, refused = [], []
    barrier.wait()

    for number in numbers:

        def append(store: txstore.TxStore, number: int = number) -> None:
            rows = np.full(1 + number % 3, number, "i4")
            for path in ("x", "y"):
                if number % BROKEN or path == ("x", "y")[number % 2]:
                    zarr.open_array(store, path=path).append(rows)

        try:
            repo.run(append, message=f"{number}", retries=10_000)
        except ConstraintError:
            refused.append(number)
        else:
            made.append(number)
    return made, refused


def test_exactly_what_breaks_it_is_refused(repo):
    with repo.transaction() as store:
        for path in ("x", "y"):
            zarr.create_array(store, name=path, shape=(0,), chunks=(16,), dtype="i4")
        store.constraints["aligned"] = EqualLength(["x", "y"])
        store.constraints["whole"] = Complete("x")
    numbers = [list(range(1 + writer, COMMITS + 1, WRITERS)) for writer in range(WRITERS)]
    answers = run_together(write, *((repo.url, each) for each in numbers))
    right = {number for number in range(1, COMMITS + 1) if number % BROKEN}
    assert sorted(number for made, _ in answers for number in made) == sorted(right)
    assert sum(len(refused) for _, refused in answers) == COMMITS - len(right) == COMMITS // BROKEN

    log = list(repo.log())
    assert sorted(int(commit.message) for commit in log[:-1]) == sorted(right)
    for commit in log:
        store = repo.snapshot(at=commit.version)
        assert length_of(store, "x") == length_of(store, "y")
        assert sorted(store.constraints) == ["aligned", "whole"]
    for path in ("x", "y"):
        found = zarr.open_array(repo.snapshot(), path=path, mode="r")[:].tolist()
        assert sorted(found) == sorted(number for number in right for _ in range(1 + number % 3))

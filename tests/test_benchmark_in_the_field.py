"""The benchmark of several processes: what it counts as lost, torn and twice."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.field import BLOCK, COLUMNS, REGION, check_appends, check_regions, code, measure


def region(worker: int, sequence: int, length: int = REGION) -> np.ndarray[Any, Any]:
    return np.full((length, COLUMNS), code(worker, sequence))


def rows(*blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return what a test says is in the array."""
    return np.concatenate(blocks)


def test_regions() -> None:
    done = {0: [1, 2], 1: [1, 2]}
    assert check_regions(rows(region(0, 2), region(1, 3)), done).total() == 0  # one more was written, and not told
    assert check_regions(rows(region(0, 2), region(1, 1)), done) == {"lost": 1}
    half = np.concatenate((region(1, 2, REGION // 2), region(1, 3, REGION // 2)))
    assert check_regions(rows(region(0, 2), half), done) == {"torn": 1}


def test_appends() -> None:
    done = {0: [1, 2], 1: [1]}
    blocks = [region(worker, sequence, BLOCK) for worker, sequences in done.items() for sequence in sequences]
    assert check_appends(rows(*blocks), done).total() == 0
    assert check_appends(rows(*blocks, region(2, 9, BLOCK)), done).total() == 0
    assert +check_appends(rows(*blocks[1:]), done) == {"lost": 1}
    assert +check_appends(rows(*blocks, blocks[0]), done) == {"twice": 1}
    blocks[0][0, 0] = 7
    assert +check_appends(rows(*blocks), done) == {"torn": 1, "lost": 1}


@pytest.mark.long
@pytest.mark.parametrize("job", ["regions", "appends"])
def test_txstore_loses_nothing(tmp_path: Path, job: str) -> None:
    found = measure("TxStore", job, tmp_path, argparse.Namespace(processes=3, seconds=2.0, kill_every=0.5))
    assert found["acknowledged"] > 0
    assert {name: found[name] for name in ("lost", "torn", "twice", "failed", "unreadable")} == {
        "lost": 0, "torn": 0, "twice": 0, "failed": 0, "unreadable": None,
    }  # fmt: skip

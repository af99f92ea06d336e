"""The benchmark of several processes: what it counts as lost, torn and twice."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.field.__main__ import measure
from benchmarks.field.adapters import COLUMNS, Adapter
from benchmarks.field.jobs import BLOCK, REGION, check_appends, check_regions, code


class Kept(Adapter):
    """What a test says is in the array."""

    def __init__(self, *blocks: np.ndarray[Any, Any]) -> None:
        self.rows = np.concatenate(blocks)

    def read(self, start: int | None = None, stop: int | None = None) -> np.ndarray[Any, Any]:
        return self.rows[start:stop]


def region(worker: int, sequence: int, rows: int = REGION) -> np.ndarray[Any, Any]:
    return np.full((rows, COLUMNS), code(worker, sequence))


def test_regions() -> None:
    done = {0: [1, 2], 1: [1, 2]}
    assert check_regions(Kept(region(0, 2), region(1, 3)), done).total() == 0  # one more was written, and not told
    assert check_regions(Kept(region(0, 2), region(1, 1)), done) == {"lost": 1}
    half = np.concatenate((region(1, 2, REGION // 2), region(1, 3, REGION // 2)))
    assert check_regions(Kept(region(0, 2), half), done) == {"torn": 1}


def test_appends() -> None:
    done = {0: [1, 2], 1: [1]}
    blocks = [region(worker, sequence, BLOCK) for worker, sequences in done.items() for sequence in sequences]
    assert check_appends(Kept(*blocks), done).total() == 0
    assert check_appends(Kept(*blocks, region(2, 9, BLOCK)), done).total() == 0
    assert +check_appends(Kept(*blocks[1:]), done) == {"lost": 1}
    assert +check_appends(Kept(*blocks, blocks[0]), done) == {"twice": 1}
    blocks[0][0, 0] = 7
    assert +check_appends(Kept(*blocks), done) == {"torn": 1, "lost": 1}


@pytest.mark.long
@pytest.mark.parametrize("job", ["regions", "appends", "reads"])
def test_txstore_loses_nothing(tmp_path: Path, job: str) -> None:
    found = measure("TxStore", job, tmp_path, argparse.Namespace(processes=3, seconds=2.0, kill_every=0.5))
    assert found["acknowledged"] > 0
    assert {name: found[name] for name in ("lost", "torn", "twice", "failed", "unreadable")} == {
        "lost": 0, "torn": 0, "twice": 0, "failed": 0, "unreadable": None,
    }  # fmt: skip

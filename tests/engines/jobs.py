"""The job that each engine runs: tasks that write parts of one array, of which one kills its worker."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import txstore
from tests.tools.waiting import wait_until
from txstore.store import TxStore

PARTS = 8
#: Elements of a part, which are two chunks.
LENGTH = 200
KILLED = 3
#: Where the worker of that part is killed: between its two writes, after both, or between both within a block.
PLACES = ["between", "after", "block"]


def create(store: TxStore) -> None:
    zarr.create_array(store, name="x", shape=(PARTS * LENGTH,), chunks=(LENGTH // 2,), dtype="i4", fill_value=-1)


def values(part: int) -> Any:
    return np.arange(LENGTH, dtype="i4") + LENGTH * part


def work(store: TxStore, part: int, flag: Path | None, place: str) -> int:
    """Write a part. The first worker that writes the one that is chosen is killed, if there is a flag to set."""
    if place == "block":
        with store:
            _write(store, part, flag, place)
    else:
        _write(store, part, flag, place)
    return part


def _write(store: TxStore, part: int, flag: Path | None, place: str) -> None:
    x: Any = zarr.open_array(store, path="x")
    first, half = LENGTH * part, LENGTH // 2
    x[first : first + half] = values(part)[:half]
    if place != "after":
        die(part, flag)
    x[first + half : first + LENGTH] = values(part)[half:]
    if place == "after":
        die(part, flag)


def die(part: int, flag: Path | None) -> None:
    if part == KILLED and flag is not None and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def fail(store: TxStore, part: int) -> int:
    """Write a part, or a half of it and no more."""
    work(store, part, None, "between")
    if part == KILLED:
        raise RuntimeError("out of luck")
    return part


def check_complete(repo: txstore.Repository) -> None:
    """One commit has all parts."""
    assert len(repo.log()) == 2
    found = zarr.open_array(repo.snapshot(), path="x", mode="r")[:]
    np.testing.assert_array_equal(found, np.concatenate([values(part) for part in range(PARTS)]))


def check_nothing(repo: txstore.Repository) -> None:
    """No commit has any part, and nothing that was staged is left."""
    assert len(repo.log()) == 1
    assert (np.asarray(zarr.open_array(repo.snapshot(), path="x", mode="r")[:]) == -1).all()
    wait_until(lambda: _is_clean(repo))  # of processes that were killed, and of those that are about to end
    assert repo.transactions() == []


def _is_clean(repo: txstore.Repository) -> bool:
    repo.vacuum()
    return not list(Path(repo.url, ".staging").iterdir())

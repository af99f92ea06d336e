"""Repositories with samples, and processes that go on committing to them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import txstore
from tests.tools.workers import SPAWN, Worker, ended

#: Samples.
COUNT = 203
#: Bytes: four chunks of 8 samples of 20 bytes.
WINDOW = 640


def write(repo: txstore.Repository, count: int, *, chunk: int = 8, generation: int = 0) -> txstore.Commit:
    """Commit `count` samples: "x" is (number, number, generation), "y" the number; chunks have 8 samples."""
    numbers = np.arange(count)
    with repo.transaction("training data") as store:
        x = np.stack([numbers, numbers, np.full(count, generation)], axis=1).astype("f4")
        zarr.create_array(store, name="x", data=x, chunks=(chunk, 3), overwrite=True)
        zarr.create_array(store, name="y", data=numbers, chunks=(chunk,), overwrite=True)
    return repo.head()


def commit_again_and_again(begun: Any, stop: Any, path: Path) -> int:
    """Overwrite all samples, and append some, in commit after commit, until told to stop."""
    repo = txstore.Repository(path, durability="none")
    made = 0
    while not stop.is_set() or not made:
        with repo.transaction() as store:
            x, y = (zarr.open_array(store, path=name) for name in ("x", "y"))
            x[:, 2] = made + 1
            y[:] = -1
            x.append(np.full((3, 3), -1, "f4"))
            y.append(np.full(3, -1))
        made += 1
        begun.set()
    return made


@contextmanager
def committing(path: Path, function: Callable[..., int] = commit_again_and_again) -> Iterator[None]:
    """Let another process commit while the block runs."""
    begun, stop = SPAWN.Event(), SPAWN.Event()
    writer = Worker(function, begun, stop, path)
    with ended(writer):
        assert begun.wait(60)
        yield
        stop.set()
        assert writer.result() >= 1


def numbers_of(items: Any) -> list[int]:
    """The numbers of samples, or of batches of them; what is torn, or of another commit, is an error."""
    found: list[int] = []
    for item in items:
        x, y = np.atleast_2d(np.asarray(item["x"])), np.atleast_1d(np.asarray(item["y"]))
        np.testing.assert_array_equal(x[:, 0], y)
        np.testing.assert_array_equal(x[:, 1], y)
        assert not x[:, 2].any()
        found += y.tolist()
    return found

"""Kills a rechunk before and after each step that makes data durable or deletes it, and lets the same call continue.

    python -m tests.rechunk.kill_rechunker DIRECTORY [HOW_MANY]

A process of its own: it forks, and has no threads.
"""

import shutil
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import zarr

import txstore
import txstore.rechunk.job
from tests.interchange.copies import forked, killed
from txstore.steps import STEPS

txstore.rechunk.job._COMMITTED = 1 << 40  # after each piece
txstore.rechunk.job._FEW = 0

CHUNKS = (12, 2)


def opened(path: Path) -> txstore.Repository:
    return txstore.Repository(path, durability="none")


def fill(path: Path) -> None:
    with opened(path).transaction() as store:
        zarr.create_array(store, name="x", data=np.arange(120).reshape(12, 10), chunks=(1, 10))


def change(repo: txstore.Repository, value: int) -> None:
    def step(store: txstore.TxStore) -> None:
        array = zarr.open_array(store, path="x", mode="r+")
        array[value % 12, :3] = -value
        array.attrs["value"] = value

    repo.run(step)


def rechunk(path: Path) -> None:
    repo = opened(path)
    told = iter(range(1, 100))
    repo.rechunk("x", chunks=CHUNKS, max_memory=12 * 4 * 8 * 3, workers=1, progress=lambda *_: change(repo, next(told)))


class Steps:
    """Counts the steps of this thread, as a profile function, and dies at one of them."""

    def __init__(self, die_at: int) -> None:
        self.count = 0
        self.die_at = die_at

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "return") and frame.f_code in STEPS:
            if self.count == self.die_at:
                killed()
            self.count += 1


def die(path: Path, at: int, counted: Path | None = None) -> None:
    steps = Steps(at)
    sys.setprofile(steps)
    rechunk(path)
    sys.setprofile(None)
    if counted is not None:
        counted.write_text(str(steps.count), encoding="utf-8")


def check(path: Path, done: Path) -> None:
    """What is there is whole, a writer writes, and the same call completes the job."""
    repo = opened(path)
    change(repo, 200)
    model = zarr.open_array(repo.snapshot(), path="x", mode="r")[:]
    assert repo.verify().faults == []
    rechunk(path)
    array = zarr.open_array(repo.snapshot(), path="x", mode="r")
    assert array.chunks == CHUNKS
    last = int(array.attrs["value"])
    for value in range(1, last + 1 if last < 100 else 1):
        model[value % 12, :3] = -value
    assert np.array_equal(array[:], model)
    assert list(repo.branches) == ["main"]
    assert sum("rechunk" in commit.properties for commit in repo.log()) == 1
    assert np.array_equal(zarr.open_array(repo.snapshot(at=0), path="x", mode="r")[:], np.arange(120).reshape(12, 10))
    assert repo.verify().faults == []
    repo.vacuum(keep=1)
    assert repo.verify().faults == []
    assert np.array_equal(zarr.open_array(repo.snapshot(), path="x", mode="r")[:], model)
    done.write_text("done", encoding="utf-8")


def main(directory: Path, how_many: int) -> int:
    original, counted = directory / "original.tx", directory / "counted"
    forked(lambda: fill(original))
    shutil.copytree(original, directory / "whole.tx")
    forked(lambda: die(directory / "whole.tx", -1, counted))
    steps = int(counted.read_text(encoding="utf-8"))
    for number in range(min(how_many, steps)):
        at = number * steps // min(how_many, steps)
        path, done = directory / f"{at}.tx", directory / f"{at}.done"
        shutil.copytree(original, path)
        assert forked(lambda path=path, at=at: die(path, at)) == 9
        forked(lambda path=path, done=done: check(path, done))
        if not done.exists():
            print(f"killed at step {at} of {steps}: see {path}")
            return 1
        shutil.rmtree(path)
    print(f"killed at {min(how_many, steps)} of {steps} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10**9))

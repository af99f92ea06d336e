"""Beside writers that commit updates and appends all the time, a rechunk loses nothing, and comes to its end."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
import txstore.rechunk.job
from tests.tools.waiting import TIMEOUT, wait_until

pytestmark = pytest.mark.long

WIDTH = 12

#: Writes and appends, without a pause, until it is told to stop; each commit counts itself in the attributes.
WRITER = """
import sys
from pathlib import Path
import numpy as np
import zarr
import txstore

repo, stop, column = txstore.Repository(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])

def step(number):
    def change(store):
        array = zarr.open_array(store, path="x", mode="r+")
        assert array.attrs.get(f"writer {column}", 0) == number - 1
        if column == 0 and number % 3 == 0:
            array.append(np.full((2, array.shape[1]), number, array.dtype))
        array[number * 7 % 40, column] = number
        array.attrs[f"writer {column}"] = number
    return change

number = 0
while not stop.exists():
    number += 1
    repo.run(step(number), timeout=60)
print(number)
"""


def model(counts: list[int]) -> np.ndarray:
    """Return what the array has to be after so many commits of each writer."""
    found = np.zeros((40, WIDTH), "i8")
    for number in range(1, counts[0] + 1):
        if number % 3 == 0:
            found = np.concatenate([found, np.full((2, WIDTH), number)])
    for column, count in enumerate(counts):
        for number in range(1, count + 1):
            found[number * 7 % 40, column] = number
    return found


@pytest.mark.parametrize("writers", [1, 2])
@pytest.mark.parametrize("few", [0, 1 << 20])
def test_nothing_is_lost(repo, tmp_path, monkeypatch, writers, few):
    monkeypatch.setattr(txstore.rechunk.job, "_COMMITTED", 1 << 40)
    monkeypatch.setattr(txstore.rechunk.job, "_FEW", few)
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=(40, WIDTH), chunks=(1, WIDTH), dtype="i8")
    stop = tmp_path / "stop"
    processes = [
        subprocess.Popen([sys.executable, "-c", WRITER, repo.url, str(stop), str(column)], stdout=subprocess.PIPE)
        for column in range(writers)
    ]
    try:
        wait_until(lambda: len(read(repo).attrs) == writers)  # all of them write
        grids = [(40, 1), (7, 5), (1, WIDTH)]
        for chunks in grids:
            made = repo.rechunk("x", chunks=chunks)
            # Each commit on its own is whole: what the counts in its attributes say.
            for at in (made.version - 1, made.version):
                assert_is_whole(read(repo, at), writers)
            assert read(repo, made.version).chunks == chunks
        wait_until(lambda: repo.head().version > made.version + 2)  # they go on, on the last grid
    finally:
        stop.touch()
        counts = [int(process.communicate(timeout=TIMEOUT)[0] or -1) for process in processes]
    assert [process.returncode for process in processes] == [0] * writers
    array = read(repo)
    assert [array.attrs[f"writer {column}"] for column in range(writers)] == counts
    assert_is_whole(array, writers)
    assert list(repo.branches) == ["main"]


def read(repo: txstore.Repository, at: int | None = None) -> zarr.Array:
    return zarr.open_array(repo.snapshot(at), path="x", mode="r")


def assert_is_whole(array: zarr.Array, writers: int) -> None:
    counts = [array.attrs[f"writer {column}"] for column in range(writers)]
    assert np.array_equal(array[:], model(counts))


def test_killed_at_some_steps(tmp_path):
    kill(tmp_path, "8")


def kill(directory: Path, *how_many: str) -> None:
    command = [sys.executable, "-m", "tests.rechunk.kill_rechunker", str(directory), *how_many]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout + done.stderr


MEMORY = """
import sys
from pathlib import Path
import txstore

repo = txstore.Repository(sys.argv[1], durability="none")
repo.rechunk("warm", chunks=(64, 1))

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))

Path("/proc/self/clear_refs").write_text("5")
before = resident()
repo.rechunk("x", chunks=(4096, 64), max_memory=64 << 20)
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it asks Linux for the peak of memory")
def test_memory(open_repo):
    """The array is four times as large as what the copy may take, and is copied in two passes."""
    repo = open_repo(durability="none")
    random = np.random.default_rng(0)
    with repo.transaction() as store:
        zarr.create_array(store, name="warm", data=random.random((64, 64)), chunks=(1, 64))
        array = zarr.create_array(store, name="x", shape=(4096, 8192), chunks=(64, 8192), dtype="f8", compressors=None)
        for start in range(0, 4096, 64):
            array[start : start + 64] = random.random((64, 8192))
    found = subprocess.run([sys.executable, "-c", MEMORY, repo.url], stdout=subprocess.PIPE, text=True, check=True)
    assert int(found.stdout) < 112 << 20
    for part in (np.s_[:, 70:140], np.s_[1000:1010]):
        after, before = (zarr.open_array(repo.snapshot(at), path="x", mode="r") for at in (None, 0))
        assert np.array_equal(after[part], before[part])

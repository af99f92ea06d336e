"""A rechunk keeps a copy of an array aside: no erased value is left in it, or comes back with it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.faults import Killed
from txstore.maintenance import erase as erasing

LENGTH = 384
#: So little that the copy is made in two passes.
TWO_PASSES: dict[str, Any] = {"chunks": (LENGTH, 1), "max_memory": 384 << 10, "workers": 1}
MISSING = -1.0

Progress = Callable[[int, int], None]


@pytest.fixture
def repo(open_repo: Callable[..., txstore.Repository]) -> txstore.Repository:
    return open_repo(durability="none")


def written(repo: txstore.Repository) -> Any:
    data = np.random.default_rng(0).random((LENGTH, LENGTH))
    with repo.transaction("the array") as store:
        zarr.create_array(store, name="day", data=np.arange(LENGTH), dimension_names=["day"])
        zarr.create_array(
            store, name="x", data=data, chunks=(1, LENGTH), compressors=None, dimension_names=["day", "place"],
            attributes={"_FillValue": MISSING}, fill_value=MISSING,
        )  # fmt: skip
    return data


def read(repo: txstore.Repository) -> Any:
    return zarr.open_array(repo.snapshot(), path="x", mode="r")[:]


def files_with(repo: txstore.Repository, values: Any) -> list[str]:
    """Return the files that have any of some values."""
    files = [path for path in Path(repo.url).rglob("*") if path.is_file()]
    found = []
    for path in files:
        content = path.read_bytes()
        if any(value.tobytes() in content for value in values):
            found.append(str(path))
    return found


def interrupt_after(part: float) -> Progress:
    def progress(done: int, total: int) -> None:
        if done > part * total:
            raise Killed

    return progress


def once_at(part: float, change: Callable[[], object]) -> Progress:
    """Return a `progress=` that makes a change between two steps: where a pass begins."""
    left, last = [change], 0

    def progress(done: int, total: int) -> None:
        nonlocal last
        if left and done == last == part * total:  # it is told once more
            left.pop()()
        last = done

    return progress


@pytest.mark.parametrize("part", [0.3, 0.8])
def test_rows_that_are_erased_while_it_is_interrupted(repo, part):
    data = written(repo)
    with pytest.raises(Killed):
        repo.rechunk("x", **TWO_PASSES, progress=interrupt_after(part))
    assert files_with(repo, data[7, :3])
    repo.erase("x", {"day": 7})
    assert files_with(repo, data[7, :5]) == []
    repo.rechunk("x", **TWO_PASSES)
    assert files_with(repo, data[7, :5]) == []
    data[7] = MISSING
    assert np.array_equal(read(repo), data)
    assert list(repo.branches) == ["main"]


@pytest.mark.parametrize("part", [0.3, 0.8])
def test_an_array_that_is_erased_while_it_is_interrupted(repo, part):
    data = written(repo)
    with pytest.raises(Killed):
        repo.rechunk("x", **TWO_PASSES, progress=interrupt_after(part))
    repo.erase("x")
    assert files_with(repo, data[:5, 7]) == []
    with pytest.raises(txstore.NodeNotFoundError):
        repo.rechunk("x", **TWO_PASSES)
    assert list(repo.branches) == ["main"]


@pytest.mark.parametrize("part", [0.0, 0.5])
def test_rows_that_are_erased_between_two_steps(repo, part):
    """What this process has read before is not committed behind the erasure."""
    data = written(repo)
    repo.rechunk("x", **TWO_PASSES, progress=once_at(part, lambda: repo.erase("x", {"day": 7})))
    assert files_with(repo, data[7, :5]) == []
    data[7] = MISSING
    assert np.array_equal(read(repo), data)
    assert list(repo.branches) == ["main"]


@pytest.mark.parametrize("when", ["vacuum", "write_replacements"])
def test_it_continues_behind_the_last_look_for_readers(repo, monkeypatch, when):
    data = written(repo)
    with pytest.raises(Killed):
        repo.rechunk("x", **TWO_PASSES, progress=interrupt_after(-1))
    other, real = txstore.Repository(repo.url), getattr(erasing, when)

    def beside(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        with pytest.raises(Killed):
            other.rechunk("x", **TWO_PASSES, progress=interrupt_after(0.6))
        return real(*args, **options)

    monkeypatch.setattr(erasing, when, beside)
    repo.erase("x", {"day": 7})
    assert files_with(repo, data[7, :5]) == []


def test_an_erasure_waits_for_what_is_being_copied(repo):
    data = written(repo)
    told: list[txstore.ErasureTimeoutError] = []

    def erase(done: int, total: int) -> None:
        if done > total // 2 and not told:  # inside of a step
            with pytest.raises(txstore.ErasureTimeoutError) as caught:
                repo.erase("x", {"day": 7}, timeout=0)
            told.append(caught.value)

    repo.rechunk("x", **TWO_PASSES, progress=erase)
    assert told
    assert np.array_equal(read(repo), data)
    repo.erase("x", {"day": 7})
    assert files_with(repo, data[7, :5]) == []


def test_verify_finds_a_copy_that_was_made_of_what_is_erased(repo):
    written(repo)
    with pytest.raises(Killed):
        repo.rechunk("x", **TWO_PASSES, progress=interrupt_after(0.3))
    _, job = repo.branches
    state = repo.branches[job].properties
    repo.erase("x", {"day": 7})
    assert repo.verify().ok
    with repo.transaction("behind the erasure", branch=job, properties=state) as store:
        zarr.create_array(store, name="of the job", shape=3, dtype="i1")
    (fault,) = repo.verify().faults
    assert f"{job!r} has a copy of 'x'" in fault.reason
    repo.rechunk("x", **TWO_PASSES)
    assert repo.verify().ok

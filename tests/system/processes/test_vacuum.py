"""Maintenance beside those who read and write in other processes: nobody waits, conflicts or misses anything."""

import contextlib
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.faults import watch
from tests.tools.steps import forked, status_of
from tests.tools.upkeep import content, oldest_kept_of, rewrite
from tests.tools.waiting import wait_until
from txstore.errors import SnapshotExpiredError

pytestmark = [pytest.mark.long, pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs signals and forks")]


# --- readers
def read_and_wait(url: str, version: int, ready: str, go: str) -> None:
    snapshot = txstore.Repository(url).mapping(at=version)
    Path(ready).touch()
    wait_until(Path(go).exists)
    assert sorted(snapshot) == [f"a/c/{i}" for i in range(10)]
    for key in snapshot:
        assert len(snapshot[key]) == 96


@pytest.fixture
def signs(tmp_path):
    return str(tmp_path / "ready"), str(tmp_path / "go")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_reader_that_is_killed_or_stopped(repo, signs, number):
    rewrite(repo, 10)
    with forked(read_and_wait, repo.url, 5, *signs) as reader:
        wait_until(Path(signs[0]).exists)
        os.kill(reader, number)
        status = status_of(reader)
        assert os.WIFSTOPPED(status) == (number == signal.SIGSTOP)
        oldest_kept = repo.vacuum(keep=1).oldest_kept
        assert oldest_kept == 5 if os.WIFSTOPPED(status) else oldest_kept > 5
        Path(signs[1]).touch()
        if os.WIFSTOPPED(status):
            os.kill(reader, signal.SIGCONT)
            assert status_of(reader) == 0


def test_a_forked_reader_pins_for_itself(repo, signs):
    """Its parent forgets the snapshot; what the child reads stays."""
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.arange(40), chunks=(4,))
    rewrite(repo, 6)
    arrays = [zarr.open_array(repo.snapshot(at=0), path="x", mode="r")]
    ready, go = map(Path, signs)

    def child() -> None:
        assert arrays[0][:4].tolist() == [0, 1, 2, 3]
        ready.touch()
        wait_until(go.exists)
        assert arrays[0][:].tolist() == list(range(40))

    del store
    with forked(child) as reader:
        wait_until(ready.exists)
        arrays.clear()
        with repo.transaction() as store:
            zarr.open_array(store, path="x")[:] = 0
        repo.optimize()
        assert repo.vacuum(keep=1).oldest_kept == 0
        go.touch()
        assert status_of(reader) == 0
    assert repo.vacuum(keep=1).oldest_kept > 0


# --- writers
def commit_with_hook(url: str, sign: str, go: str) -> None:
    """A writer whose file system's lock excludes nobody stands still right before its rename."""
    from txstore.storage.local import LocalStorage

    LocalStorage.lock = lambda self, path, prepare=None, **_: contextlib.nullcontext()  # type: ignore[method-assign,assignment,return-value]
    LocalStorage.open_pins = lambda self: None  # type: ignore[method-assign]
    repo = txstore.Repository(url, durability="none")
    transaction = repo.begin("late")
    transaction["late"] = b"1"
    watched = watch(repo)
    watched.before["rename_noreplace"] = lambda *_: (Path(sign).touch(), os.kill(os.getpid(), signal.SIGSTOP))
    try:
        transaction.commit()
    except SnapshotExpiredError:
        os._exit(7)


def test_a_writer_stopped_right_before_its_rename(repo, signs):
    rewrite(repo, 3)
    with forked(commit_with_hook, repo.url, *signs) as writer:
        assert os.WIFSTOPPED(status_of(writer))
        model = rewrite(repo, 5, size=200)
        repo.optimize()
        repo.vacuum(keep=1)
        assert oldest_kept_of(repo) > 3
        os.kill(writer, signal.SIGCONT)
        assert os.waitstatus_to_exitcode(status_of(writer)) == 7
    assert content(repo).keys() == model.keys()
    assert content(txstore.Repository(repo.url)).keys() == model.keys()

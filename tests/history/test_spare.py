"""Room that is made by deleting the head cache and the guard: what is written again is true, and comes back."""

import errno
import os
import shutil
from pathlib import Path

import pytest

import txstore
from tests.tools.commits import set_keys
from tests.tools.faults import Watched, always, watch
from txstore.format import names
from txstore.format.records import HeadCache
from txstore.history.full_disk import Spare


def overwrite(path: Path, times: int, durability: str = "fsync") -> None:
    repo = txstore.Repository(path, durability=durability)
    for number in range(times):
        set_keys(repo, {"a": bytes([number]) * (1 << 20)}, f"{number}")


def spare_of(repo: txstore.Repository) -> Spare:
    return Spare(repo.engine.commits, "main")


def watched(path: Path) -> tuple[Spare, Watched]:
    repo = txstore.Repository(path)
    calls = watch(repo)
    return spare_of(repo), calls


def synced(calls: Watched) -> set[str]:
    """The commits that are synced."""
    return {path for _, path in calls.named("sync_file") if path.startswith("commits/")}


def is_durable(path: Path) -> bool:
    """Tell what the head cache says."""
    return HeadCache.decode((path / names.head_cache_path("main")).read_bytes()).durable


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data.tx"


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_head_cache_that_is_written_again_is_true(path, meanwhile):
    """What it calls durable has been synced (I1), also of commits that are made meanwhile."""
    overwrite(path, 1)
    if not meanwhile:
        overwrite(path, 3, durability="none")
    spare, calls = watched(path)
    spare.delete_head_cache()
    spare.delete_guard()
    if meanwhile:
        overwrite(path, 3, durability="none")
        calls.calls.clear()
    spare.restore()
    assert is_durable(path)
    assert synced(calls) == {names.commit_path("main", version) for version in (1, 2, 3)}


@pytest.mark.parametrize("is_killed", [False, True])
def test_of_a_copy_everything_is_synced_before_its_head_cache_goes(path, tmp_path, is_killed):
    """The head cache of the original tells that nobody has synced the copy; nothing else does."""
    overwrite(path, 3)
    copy = tmp_path / "copy.tx"
    shutil.copytree(path, copy)
    spare, calls = watched(copy)
    spare.delete_head_cache()
    if not is_killed:
        spare.restore()
    assert synced(calls) >= {names.commit_path("main", version) for version in range(3)}


def test_a_sync_that_fails_is_told(path):
    """Who tried again would be told that all is well (I9)."""
    overwrite(path, 1)
    spare, calls = watched(path)
    spare.delete_head_cache()
    overwrite(path, 1, durability="none")
    calls.before["sync_file"] = always(OSError(errno.EIO, "failed"))
    with pytest.raises(OSError, match="failed"):
        spare.restore()
    assert not is_durable(path)


@pytest.mark.parametrize("what", ["commit", "vacuum"])
@pytest.mark.parametrize("durability", ["fsync", "none"])
def test_who_comes_after_one_that_was_killed_writes_the_guard(path, what, durability):
    overwrite(path, 3)
    spare_of(txstore.Repository(path)).delete_guard()
    if what == "vacuum":
        txstore.Repository(path, durability=durability).vacuum()
    else:
        overwrite(path, 1, durability)
    assert txstore.Repository(path).verify().faults == []
    assert os.path.exists(path / names.GUARD)

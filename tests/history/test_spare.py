"""Room that is made by deleting the head cache and the guard: what is written again is true, and comes back."""

import errno
import os
import shutil
from pathlib import Path

import pytest

import txstore
from tests.tools.commits import set_keys
from tests.tools.faults import always
from txstore.format import names
from txstore.history.branches_on_disk import BranchesOnDisk
from txstore.history.commits import Commits
from txstore.history.full_disk import Spare


def overwrite(path: Path, times: int, durability: str = "fsync") -> None:
    repo = txstore.Repository(path, durability=durability)
    for number in range(times):
        set_keys(repo, {"a": bytes([number]) * (1 << 20)}, f"{number}")


def opened(path: Path) -> Commits:
    return txstore.Repository(path).engine.commits


def make_room(path: Path) -> None:
    spare = Spare(opened(path), "main")
    spare.delete_head_cache()
    spare.delete_guard()
    spare.restore()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data.tx"


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions of the commits that are synced."""
    versions, sync = list[int](), BranchesOnDisk._sync_files

    def note(self: BranchesOnDisk, stored):
        versions.append(stored.header.version)
        sync(self, stored)

    monkeypatch.setattr(BranchesOnDisk, "_sync_files", note)
    return versions


def test_a_head_cache_that_is_written_again_is_true(path, synced):
    """What it calls durable has been synced (I1)."""
    overwrite(path, 1)
    overwrite(path, 3, durability="none")
    synced.clear()
    make_room(path)
    commits = opened(path)
    assert commits.store.head_caches.read("main").durable
    assert sorted(synced) == [1, 2, 3]


def test_commits_that_are_made_meanwhile_are_synced(path, synced):
    overwrite(path, 1)
    spare = Spare(opened(path), "main")
    spare.delete_head_cache()
    overwrite(path, 2, durability="none")
    synced.clear()
    spare.restore()
    assert opened(path).store.head_caches.read("main").durable
    assert sorted(synced) == [1, 2]


@pytest.mark.parametrize("is_killed", [False, True])
def test_of_a_copy_everything_is_synced_before_its_head_cache_goes(path, tmp_path, monkeypatch, is_killed):
    """The head cache of the original tells that nobody has synced the copy; nothing else does."""
    overwrite(path, 3)
    copy = tmp_path / "copy.tx"
    shutil.copytree(path, copy)
    files, sync = set[str](), type(opened(copy).storage).sync_file

    def note(self, path):
        files.add(path)
        sync(self, path)

    monkeypatch.setattr(type(opened(copy).storage), "sync_file", note)
    spare = Spare(opened(copy), "main")
    spare.delete_head_cache()
    if not is_killed:
        spare.restore()
    assert {names.commit_path("main", version) for version in range(3)} <= files


def test_a_sync_that_fails_is_told(path, monkeypatch):
    """Who tried again would be told that all is well (I9)."""
    overwrite(path, 1)
    spare = Spare(opened(path), "main")
    spare.delete_head_cache()
    overwrite(path, 1, durability="none")
    monkeypatch.setattr(BranchesOnDisk, "_sync_files", fail(errno.EIO))
    with pytest.raises(OSError, match="failed"):
        spare.restore()
    assert not opened(path).store.head_caches.read("main").durable


def fail(number: int):
    return always(OSError(number, "failed"))


@pytest.mark.parametrize("what", ["commit", "vacuum"])
@pytest.mark.parametrize("durability", ["fsync", "none"])
def test_who_comes_after_one_that_was_killed_writes_the_guard(path, what, durability):
    overwrite(path, 3)
    Spare(opened(path), "main").delete_guard()
    if what == "vacuum":
        txstore.Repository(path, durability=durability).vacuum()
    else:
        overwrite(path, 1, durability)
    assert txstore.Repository(path).verify().faults == []
    assert os.path.exists(path / names.GUARD)

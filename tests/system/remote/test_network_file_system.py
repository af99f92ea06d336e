"""Directories that other machines share. Where the kernel has no such client, one is played: what differs is forced."""

import errno
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import txstore
from tests.tools.faults import always, watch
from txstore import CommitUnknownError
from txstore.history import opening
from txstore.history.opening import open_storage
from txstore.storage import file_systems, local, tree
from txstore.storage.capabilities import NETWORK
from txstore.storage.local import NetworkStorage

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every directory for one that other machines see, on a server that can't rename without replacing."""

    def rename(root: str, source: str, target: str) -> None:
        os.link(f"{root}/{source}", f"{root}/{target}")
        os.unlink(f"{root}/{source}")

    monkeypatch.setattr(opening, "is_on_network", lambda path: True)
    monkeypatch.setattr(tree.local, "rename_noreplace", rename)


def put(repo: txstore.Repository, **values: bytes) -> None:
    with repo.begin() as mapping:
        mapping.update(values)


def test_which_file_systems_are_shared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = str(tmp_path / "a" / "b.tx")
    for file_system, is_shared in (("nfs4", True), ("fuse.sshfs", True), ("cifs", True), ("ext4", False), ("", False)):
        monkeypatch.setattr(file_systems, "_types", {os.stat(tmp_path).st_dev: file_system})
        assert file_systems.is_on_network(missing) is is_shared


def test_a_file_that_is_cut_off_while_it_is_read_is_an_error_and_no_signal(repo, tmp_path):
    put(repo, a=bytes(3 << 20), b=b"b" * 100)
    snapshot = repo.snapshot()
    assert snapshot.mapping["b"] == b"b" * 100
    commit = tmp_path / "data.tx" / "commits" / "main" / "0000000000"
    content = commit.read_bytes()
    os.truncate(commit, 5000)
    with pytest.raises(txstore.CorruptionError, match="0000000000"):
        snapshot.mapping["a"]
    commit.write_bytes(content)


def test_what_the_boot_of_one_machine_says_of_another_machines_disk(tmp_path: Path) -> None:
    assert open_storage(tmp_path).boot() == 0


class Late:
    """A machine that does not see a name for a while, though it is there."""

    def __init__(self, repo: txstore.Repository, name: str, seconds: float) -> None:
        self.watched = watch(repo)
        self.watched.before["read_tail"] = self
        self.name = name
        self.until = time.monotonic() + seconds

    def ends(self) -> None:
        self.until = 0.0

    def __call__(self, path: str, *_: object) -> None:
        if path.endswith(self.name) and time.monotonic() < self.until:
            raise FileNotFoundError(errno.ENOENT, "not seen yet", path)


def test_a_commit_that_is_seen_late_is_not_overwritten(open_repo: Callable[..., txstore.Repository]) -> None:
    repo, other = open_repo(), open_repo()
    put(repo, a=b"1")
    put(other, b=b"2")
    Late(repo, "0000000001", 0.5)
    put(repo, c=b"3")  # its version is taken, by what it does not see
    assert dict(open_repo().snapshot().mapping) == {"a": b"1", "b": b"2", "c": b"3"}


def test_an_answer_that_is_lost(open_repo: Callable[..., txstore.Repository]) -> None:
    """A server that has made the link, and is asked again: the name exists, and it is ours."""
    repo = open_repo()
    put(repo, a=b"1")
    watched = watch(repo)
    watched.after["rename_noreplace"] = always(FileExistsError(errno.EEXIST, "it exists"))
    put(repo, a=b"2")
    del watched.after["rename_noreplace"]
    assert [commit.version for commit in repo.log()] == [1, 0]


def test_the_version_is_never_seen(monkeypatch, open_repo):
    """It exists, and can't be read back for longer than anything is believed: that is an error, and nothing is lost."""
    monkeypatch.setattr(NetworkStorage, "capabilities", replace(NETWORK, stale_seconds=0.2))
    repo, other = open_repo(), open_repo()
    put(repo, a=b"1")
    put(other, b=b"2")
    late = Late(repo, "0000000001", 3600)
    mine = repo.begin()
    mine["c"] = b"3"
    with pytest.raises((OSError, CommitUnknownError)):
        mine.commit()
    mine.rollback()
    late.ends()
    assert sorted(open_repo().snapshot().mapping) == ["a", "b"]


def test_what_another_machine_stages_is_not_taken_for_abandoned(monkeypatch, open_repo):
    """On sshfs nobody sees what other machines have locked."""
    repo, other = open_repo(), open_repo()
    put(repo, a=b"1")
    mine = repo.begin()
    mine["b"] = bytes(3 << 20)
    monkeypatch.setattr(local, "_hold", lambda *_, **__: True)
    put(other, c=b"1")  # whose first write looks for what the dead have left
    other.vacuum()
    mine.commit()
    assert sorted(open_repo().snapshot().mapping) == ["a", "b", "c"]


def test_what_nobody_has_written_for_long_is_abandoned(tmp_path, open_repo):
    repo = open_repo()
    put(repo, a=b"1")
    left = tmp_path / "data.tx" / ".staging" / f"{'ab' * 16}.0"
    left.write_bytes(b"what a dead process has staged")
    repo.vacuum()
    assert left.exists()
    os.utime(left, (0, time.time() - 7200))
    repo.vacuum()
    assert not left.exists()

"""The disk fills up in the middle of a write: nothing is published, and after a rollback the process goes on."""

import errno
import os
import pickle
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.commits import set_keys
from tests.tools.disk import tree
from tests.tools.faults import always, watch


@pytest.fixture(params=["512k"])
def small_disk(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A disk of 512 KiB, in memory."""
    if os.name != "posix" or os.getuid() != 0:
        pytest.skip("mounting needs root")
    path = Path(tempfile.mkdtemp())
    mount = ["mount", "-t", "tmpfs", "-o", f"size={request.param}", "tmpfs", path]
    done = subprocess.run(mount, capture_output=True, check=False)
    if done.returncode:
        path.rmdir()
        pytest.skip("mounting is not allowed here")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)  # what was read is still mapped
    path.rmdir()


def fill(path: Path, leave: int = 0) -> Path:
    """Take all the room that there is, but for some bytes."""
    ballast = path / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
        file.truncate(max(file.tell() - leave, 0))
    return ballast


def assert_told(error: OSError, disk: Path) -> None:
    """The message says which file there was no room for, and what has become of the transaction."""
    assert error.filename.startswith(f"{disk}/data.tx/")
    assert error.filename in str(error)
    assert "nothing was published" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def published(repo: txstore.Repository) -> list[str]:
    return [commit.message for commit in repo.log()]


def test_a_large_value_does_not_fit(small_disk):
    repo = txstore.Repository(small_disk / "data.tx")
    set_keys(repo, {"a": b"1"}, "first")
    session = txstore.TxStore(repo)
    session["b"] = b"2"
    with pytest.raises(OSError, match="No space left") as caught:
        session["a"] = bytes(1 << 20)
    assert_told(caught.value, small_disk)
    with pytest.raises(txstore.TransactionStateError, match=r"No space left.*rollback\(\)"):
        session.commit()
    session.rollback()
    assert published(repo) == ["first"]
    assert list((small_disk / "data.tx/.staging").iterdir()) == []
    session["a"] = b"3"
    session.commit("second")
    assert published(repo) == ["second", "first"]
    assert repo.snapshot()["a"] == b"3"
    assert repo.verify().faults == []


def test_a_block_that_does_not_fit_leaves_nothing_behind(small_disk):
    repo = txstore.Repository(small_disk / "data.tx")
    set_keys(repo, {"a": b"1"}, "first")
    before = tree(small_disk / "data.tx")
    fill(small_disk, leave=4096)
    with pytest.raises(OSError, match="No space left"), repo.transaction("second") as store:
        zarr.create_array(store, name="x", data=np.random.default_rng(1).random(1 << 16), chunks=(1 << 12,))
    assert tree(small_disk / "data.tx") == before


# --- making room
MEDIUM = pytest.mark.parametrize("small_disk", ["24m"], indirect=True)


def overwrite(repo: txstore.Repository, key: str, size: int, times: int, *, branch: str = "main") -> None:
    with repo.begin(branch=branch) as transaction:
        for number in range(times):
            transaction[key] = bytes([number]) * size


@MEDIUM
def test_optimize_does_what_there_is_room_for(small_disk):
    repo = txstore.Repository(small_disk / "data.tx")
    for key in ("a", "b"):
        overwrite(repo, key, 4 << 20, 2)
    fill(small_disk, leave=5 << 20)
    with pytest.warns(RuntimeWarning, match=r"room to copy 1 of 2 packs: vacuum\(keep=1\), then optimize again"):
        repo.optimize()
    repo.vacuum(keep=1)
    repo.optimize()
    repo.vacuum(keep=1)
    usage = repo.usage()
    assert usage.overwritten == 0
    assert usage.total < 9 << 20
    assert {key: repo.snapshot()[key] for key in ("a", "b")} == dict.fromkeys("ab", bytes([1]) * (4 << 20))


@pytest.mark.parametrize("leave", [0, 4096, 8192])
def test_a_full_disk_is_emptied(small_disk, leave):
    """A vacuum that gives up commits is one itself: where there is no room for that, others go first."""
    repo = txstore.Repository(small_disk / "data.tx")
    for number in range(4):
        overwrite(repo, "a", 10_000 + number, 2)
    ballast = fill(small_disk, leave=leave)
    report = txstore.Repository(small_disk / "data.tx").vacuum(keep=1)
    assert report.expired == report.oldest_kept == 3
    ballast.unlink()
    assert repo.snapshot()["a"] == bytes([1]) * 10_003
    assert repo.verify().faults == []


def test_what_is_garbage_already_goes_without_a_commit(small_disk):
    repo = txstore.Repository(small_disk / "data.tx")
    overwrite(repo, "a", 100, 1)
    repo.branches["old"] = repo.head()
    overwrite(repo, "b", 100_000, 1, branch="old")
    del repo.branches["old"]
    ballast = fill(small_disk)
    head = repo.head()
    assert repo.vacuum().bytes > 100_000
    assert repo.head() == head
    ballast.unlink()


@MEDIUM
def test_optimize_says_how_much_room_it_takes(small_disk):
    repo = txstore.Repository(small_disk / "data.tx")
    for key in ("a", "b"):
        overwrite(repo, key, 4 << 20, 2)
    head = repo.head()
    fill(small_disk, leave=1 << 20)
    with pytest.raises(OSError, match=r"to begin takes 4,\d{3},\d{3} bytes, to copy all of it 8,.* are free") as caught:
        repo.optimize()
    assert "nothing was published" in str(caught.value)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, repo.url)
    assert repo.head() == head
    assert list((small_disk / "data.tx/.staging").iterdir()) == []


@pytest.mark.parametrize("length", [*range(1, 9), 1017, 1024, 1030])
@pytest.mark.parametrize("first", [b"1", b"1" * 200_000])
def test_an_attempt_to_commit_leaves_nothing_in_the_pack(open_repo, length, first):
    """What follows the frames is written again by each attempt; frames that are appended between must hide it."""
    repo = open_repo()
    storage = watch(repo)
    tx = repo.begin(message="m" * 3000, properties={"x": "y" * 3000})
    tx["a"] = first
    set_keys(repo, {"other": b"1"})
    storage.before["rename_noreplace"] = always(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with pytest.raises(OSError, match="No space left"):
        tx.commit()  # it comes up to the rename
    storage.before.clear()
    for i in range(4):
        tx[f"b/{i}"] = b"2" * length
    tx.commit("m")
    assert repo.verify().faults == []

"""An erasure is killed, or the power lost, after every step of it: done again, it is done, and nothing else is lost."""

import contextlib
import os
import random
import sys

import pytest

import txstore
from tests import reliability
from tests.crash.disk import Disk, Image, Tree
from tests.crash.interrupted import after_every_step
from tests.crash.system import SYSTEM, URL, Process, forget_all, simulated

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="the simulated system is a Linux")]

#: So many images are looked at.
IMAGES = max(40, int(os.environ.get("TXSTORE_CRASH_IMAGES", "0")) // 10)

SECRET, KEPT = random.Random(1).randbytes(600), random.Random(2).randbytes(600)


def fill() -> None:
    repo = txstore.Repository(URL)
    for number in range(3):
        with repo.begin(f"{number}") as tx:
            tx["s/a"] = bytes([number]) + SECRET
            tx[f"s/{number}"] = SECRET
            tx[f"k/{number}"] = KEPT
    repo.tags["v1"] = 0
    repo.branches["dev"] = repo.head()
    with repo.begin("of dev", branch="dev") as tx:
        tx["s/a"] = SECRET
    repo.optimize()


def has_secret(tree: Tree) -> bool:
    """Tell whether any file that has a name has it."""
    directories, files = tree
    named = {inode for entries in directories.values() for inode in entries.values()}
    return any(SECRET[100:140] in content for inode, content in files.items() if inode in named)


def recorded() -> tuple[Disk, set[str]]:
    """Run it; return the disk with the steps of the erasure, and what commits there were."""
    disk = Disk()
    SYSTEM.turn_on(disk, boot=1, seed=1)
    try:
        with Process():
            fill()
            repo = txstore.Repository(URL)
            ids = {commit.id for name in ("main", "dev") for commit in repo.log(name)}
            del repo
        forget_all()
        erasing = Disk(disk.image())
        SYSTEM.turn_on(erasing, boot=1, seed=2)
        with Process():
            txstore.Repository(URL).erase("s")
    finally:
        forget_all()
    assert has_secret(erasing.start)
    assert not has_secret(erasing.image())
    return erasing, ids


def check(image: Image, ids: set[str], *, boot: int) -> None:
    SYSTEM.turn_on(Disk(image.tree), boot=boot, seed=1 << 20)
    try:
        with Process():
            repo = txstore.Repository(URL)
            assert {commit.id for name in ("main", "dev") for commit in repo.log(name)} >= ids
            faults = repo.verify().faults
            assert {fault.part for fault in faults} <= {"erasure"}, faults
            for version in range(3):  # what it is meanwhile is told, or as it was
                with contextlib.suppress(txstore.ErasedError):
                    assert bytes(repo.mapping(at=version)["s/a"])[1:] == SECRET
            repo.erase("s")
            assert repo.verify().faults == []
            assert all(each.finished for each in repo.erasures())
            for name in ("main", "dev"):
                for version in range(4):
                    mapping = repo.mapping(at=version, branch=name)
                    assert all(mapping[f"k/{number}"] == KEPT for number in range(min(version + 1, 3)))
                    with pytest.raises(txstore.ErasedError):
                        mapping["s/0"]
        assert not has_secret(SYSTEM.disk.image())
    finally:
        forget_all()


def test_killed_or_without_power_after_every_step() -> None:
    with simulated(), reliability.counting("erasures interrupted") as counted:
        disk, ids = recorded()
        seen = after_every_step(disk, lambda image, boot: check(image, ids, boot=boot), IMAGES)
        counted["images looked at"] = seen
    assert seen > 20

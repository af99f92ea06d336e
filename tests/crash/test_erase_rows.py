"""An erasure of rows is killed, or loses power, after every step: done again, it is done, and nothing else is lost."""

import json
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

ROW = 200  # bytes: too long to be met by chance
SECRET = random.Random(1).randbytes(ROW)
KEPT = {label: random.Random(label).randbytes(ROW) for label in (10, 30, 40)}


def document(rows: int, width: int) -> bytes:
    return json.dumps({
        "zarr_format": 3, "node_type": "array", "shape": [rows, width] if width > 1 else [rows],
        "data_type": "uint8", "fill_value": 0, "attributes": {},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, width] if width > 1 else [4]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes"}], "dimension_names": ["p", "x"] if width > 1 else ["p"],
    }).encode()  # fmt: skip


#: Each commit has the rows at other places.
VERSIONS = ([10, 20], [10, 20, 30], [40, 10, 20, 30])


def fill() -> None:
    repo = txstore.Repository(URL)

    def put(labels: list[int], branch: str = "main") -> None:
        with repo.begin(str(labels), branch=branch) as tx:
            rows = b"".join(SECRET if label == 20 else KEPT[label] for label in labels)
            tx["p/zarr.json"], tx["p/c/0"] = document(len(labels), 1), bytes(labels).ljust(4, b"\0")
            tx["v/zarr.json"], tx["v/c/0/0"] = document(len(labels), ROW), rows.ljust(4 * ROW, b"\0")

    for labels in VERSIONS:
        put(labels)
    repo.tags["v1"] = 0
    repo.branches["dev"] = repo.head()
    put([20, 30], "dev")
    repo.optimize()


def has_secret(tree: Tree) -> bool:
    """Tell whether any file that has a name has it."""
    directories, files = tree
    named = {inode for entries in directories.values() for inode in entries.values()}
    return any(SECRET[100:140] in content for inode, content in files.items() if inode in named)


def erase() -> None:
    txstore.Repository(URL).erase("v", {"p": 20})


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
            erase()
    finally:
        forget_all()
    assert has_secret(erasing.start)
    assert not has_secret(erasing.image())
    return erasing, ids


def check_rows(repo: txstore.Repository, *, is_done: bool) -> None:
    for branch, version, labels in [*(("main", i, labels) for i, labels in enumerate(VERSIONS)), ("dev", 3, [20, 30])]:
        stored = bytes(repo.mapping(at=version, branch=branch)["v/c/0/0"])
        assert len(stored) == 4 * ROW
        for at, label in enumerate(labels):
            row = stored[at * ROW : (at + 1) * ROW]
            if label == 20:
                assert row == bytes(ROW) or (row == SECRET and not is_done)
            else:
                assert row == KEPT[label]


def check(image: Image, ids: set[str], *, boot: int) -> None:
    SYSTEM.turn_on(Disk(image.tree), boot=boot, seed=1 << 20)
    try:
        with Process():
            repo = txstore.Repository(URL)
            assert {commit.id for name in ("main", "dev") for commit in repo.log(name)} >= ids
            faults = repo.verify().faults
            assert {fault.part for fault in faults} <= {"erasure"}, faults
            check_rows(repo, is_done=False)
            repo.vacuum()
            check_rows(repo, is_done=False)
            del repo
            erase()
            repo = txstore.Repository(URL)
            assert repo.verify().faults == []
            assert all(each.finished for each in repo.erasures())
            check_rows(repo, is_done=True)
        assert not has_secret(SYSTEM.disk.image())
    finally:
        forget_all()


def test_killed_or_without_power_after_every_step() -> None:
    with simulated(), reliability.counting("erasures interrupted") as counted:
        disk, ids = recorded()
        seen = after_every_step(disk, lambda image, boot: check(image, ids, boot=boot), IMAGES)
        counted["images looked at"] = seen
    assert seen > 20

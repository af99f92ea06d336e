"""Descriptors are bounded: however many packs there are, a reader holds none of them open."""

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.waiting import wait_until
from tests.tools.workers import QUICK, TIMEOUT, Worker, ended
from txstore._native import local

PACKS = 10_000
READERS = 16
AT_MOST = 8  # for the repository

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc"),
    pytest.mark.skipif(
        local.IMPLEMENTATION == "python" and sys.version_info < (3, 13), reason="a map keeps a descriptor there"
    ),
]


@pytest.fixture(scope="session")
def many_packs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A repository with an array of so many chunks, each of which came with a commit of its own."""
    path = tmp_path_factory.mktemp("descriptors") / "data.tx"
    repo = txstore.Repository(path, durability="none")
    with repo.transaction("create") as store:
        zarr.create_array(store, name="x", shape=(PACKS,), chunks=(1,), dtype="i8", compressors=None, filters=None)
    for number in range(PACKS):
        with repo.begin() as transaction:
            transaction[f"x/c/{number}"] = number.to_bytes(8, "little")
    yield path
    assert repo.head().version == PACKS


def held(path: str) -> list[str]:
    """What this process holds open of a repository, and what may be a watch on it."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:  # that of the listing
            continue
        if target.startswith(path) or "inotify" in target:
            found.append(target)
    return found


def read_some(barrier, path: str, number: int) -> list[str]:
    """Read and follow at the same time as the others; return what is held while all of it is still in use."""
    repo = txstore.Repository(path)
    array = zarr.open_array(repo.snapshot(), path="x", mode="r")
    snapshot = repo.mapping()
    follower = threading.Thread(target=lambda: next(repo.follow(timeout=TIMEOUT), None), daemon=True)
    follower.start()
    barrier.wait()
    chunks = np.sort(np.random.default_rng(number).choice(PACKS, 500, replace=False))
    kept = [snapshot.get_view(f"x/c/{chunk}") for chunk in chunks]
    assert [int.from_bytes(view, "little") for view in kept] == chunks.tolist()
    assert np.array_equal(array.oindex[chunks], chunks)
    if local.IMPLEMENTATION == "c":
        wait_until(lambda: any("inotify" in one for one in held(path)))
    barrier.wait()
    return held(path)


def test_many_readers_hold_few_descriptors(many_packs):
    barrier = QUICK.Barrier(READERS, timeout=TIMEOUT)
    readers = [Worker(read_some, barrier, str(many_packs), number, context=QUICK) for number in range(READERS)]
    with ended(*readers):
        found = [reader.result() for reader in readers]
    assert max(map(len, found)) <= AT_MOST
    assert local.IMPLEMENTATION == "python" or all(any("inotify" in one for one in each) for each in found)

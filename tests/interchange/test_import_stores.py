"""Import of stores that the caller has opened: as they are, in little memory; gone on with after a death."""

import signal
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.abc.store import Store
from zarr.storage import LocalStore, MemoryStore, WrapperStore, ZipStore

import txstore
from tests.interchange.test_import import assert_imported, plain
from tests.tools.disk import run_python

__all__ = ["plain"]


def wrapped(plain: Path, _: Path) -> Store:
    return WrapperStore(LocalStore(plain))


def zipped(plain: Path, scratch: Path) -> Store:
    store = ZipStore(scratch / "plain.zip", mode="w")
    store._sync_open()
    for path in sorted(plain.rglob("*")):
        if path.is_file():
            store._zf.write(path, path.relative_to(plain).as_posix())
    store.close()
    return ZipStore(scratch / "plain.zip", mode="r")


def snapshot(plain: Path, scratch: Path) -> Store:
    other = txstore.Repository(scratch / "other.tx")
    other.import_from(plain)
    return other.snapshot()


@pytest.mark.parametrize("make", [wrapped, zipped, snapshot, lambda plain, _: LocalStore(plain)])
def test_any_store(make: Callable[[Path, Path], Store], repo: txstore.Repository, plain: Path, tmp_path: Path) -> None:
    group = zarr.open_group(plain, use_consolidated=False)
    group.create_array("scalar", data=np.array(2.5))
    group.create_array("empty", shape=(0, 3), dtype="i4")
    store = make(plain, tmp_path)
    commit = repo.import_from(store)
    assert commit.properties["import"]["source"] in (type(store).__name__, str(plain), f"zip::{tmp_path}/plain.zip")
    assert_imported(repo, plain)
    assert zarr.open_array(repo.snapshot(), path="scalar", mode="r")[()] == 2.5
    with pytest.raises(FileExistsError, match="free"):
        repo.import_from(store)
    repo.import_from([store, store], "joined", concat=0, exclude=["scalar", "OME"])
    assert zarr.open_array(repo.snapshot(), path="joined/x", mode="r").shape == (200,)


class Made(WrapperStore[Store]):
    """Chunks of 1 MiB that nobody holds."""

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        found = await super().get(key, prototype, byte_range)
        return found if key.endswith(".json") else prototype.buffer.from_bytes(key.encode().ljust(1 << 20, b"."))

    async def getsize(self, key: str) -> int:
        return await super().getsize(key) if key.endswith(".json") else 1 << 20


def test_memory_has_a_bound(repo: txstore.Repository) -> None:
    """An array that is one chunk thick, and has 320 beside each other, which slices of the first axis take at once."""
    inner = MemoryStore()
    array = zarr.create_array(inner, shape=(1, 320 << 20), chunks=(1, 1 << 20), dtype="u1", compressors=None)
    array[:, :: 1 << 20] = 1
    tracemalloc.start()
    try:
        repo.import_from(Made(inner))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 160 << 20
    assert bytes(zarr.open_array(repo.snapshot(), mode="r")[0, 319 << 20 :][:7]) == b"c/0/319"


KILLED = """
import os, sys, txstore
from zarr.storage import LocalStore, WrapperStore
def die(done, total):
    if done > total // 2:
        os.kill(os.getpid(), 9)
txstore.Repository(sys.argv[1]).import_from(WrapperStore(LocalStore(sys.argv[2])), name="move", progress=die)
"""


def test_an_import_that_was_killed_goes_on(repo: txstore.Repository, tmp_path: Path) -> None:
    """Also if values have changed since, which a store does not tell: nothing of the old ones stays."""
    plain = tmp_path / "plain.zarr"
    array = zarr.create_array(plain, shape=(4000,), chunks=(10,), dtype="i8", fill_value=-1, compressors=None)
    array[:] = 1
    assert run_python(KILLED, repo.url, plain).returncode == -signal.SIGKILL
    (killed,) = repo.transactions()
    assert killed.name == "move"
    assert repo.head() is None
    array[:] = 2
    repo.import_from(WrapperStore(LocalStore(plain)), name="move")
    assert set(zarr.open_array(repo.snapshot(), mode="r")[:].tolist()) == {2}
    assert [commit.version for commit in repo.log()] == [0]


def test_an_import_goes_on_from_the_same_keys_only(repo: txstore.Repository, tmp_path: Path) -> None:
    plain = tmp_path / "plain.zarr"
    array = zarr.create_array(plain, shape=(4000,), chunks=(10,), dtype="i8", fill_value=-1, compressors=None)
    array[:] = 1
    assert run_python(KILLED, repo.url, plain).returncode == -signal.SIGKILL
    array[:10] = -1  # the chunk is gone
    with pytest.raises(txstore.TransactionStateError, match="the source has changed since"):
        repo.import_from(WrapperStore(LocalStore(plain)), name="move")
    repo.transaction(name="move").rollback()


def test_what_has_changed_since_is_imported_again(repo: txstore.Repository, plain: Path) -> None:
    """Only that is written; what is gone is deleted, below the path alone."""
    made = repo.import_from(plain, "in", properties={"job": 7})
    assert made.properties["job"] == 7
    assert made.properties["import"]["path"] == "in"
    with repo.transaction("beside") as store:
        zarr.create_array(store, name="inner", data=np.arange(3))
    group = zarr.open_group(plain, use_consolidated=False)
    group["x"][:5] = 0  # type: ignore[index]
    group.attrs["title"] = "later"
    del group["deep/y"]
    group.create_array("new", data=np.arange(4))
    made = repo.import_from(WrapperStore(LocalStore(plain)), "in", replace=True)
    there = zarr.open_group(repo.snapshot(), path="in", mode="r")
    assert there.attrs["title"] == "later"
    assert there["x"][:7].tolist() == [0, 0, 0, 0, 0, 5, 6]  # type: ignore[index]
    assert there["new"][:].tolist() == [0, 1, 2, 3]  # type: ignore[index]
    assert "deep/y" not in there
    assert zarr.open_array(repo.snapshot(), path="inner", mode="r")[:].tolist() == [0, 1, 2]
    assert made.statistics["keys_set"] < 8
    made = repo.import_from(plain, "in", replace=True)
    assert made.statistics["keys_set"] == made.statistics["keys_deleted"] == 0


def test_a_replacing_import_that_was_killed_goes_on(repo: txstore.Repository, tmp_path: Path) -> None:
    """A local file has a version; what the commit before has of it is not taken for staged."""
    plain = tmp_path / "plain.zarr"
    array = zarr.create_array(plain, shape=(4000,), chunks=(10,), dtype="i8", fill_value=-1, compressors=None)
    array[:] = 1
    repo.import_from(plain)
    array[:] = 2
    killed = KILLED.replace("WrapperStore(LocalStore(sys.argv[2]))", "sys.argv[2], replace=True")
    assert run_python(killed, repo.url, plain).returncode == -signal.SIGKILL
    assert set(zarr.open_array(repo.snapshot(), mode="r")[:].tolist()) == {1}
    repo.import_from(plain, name="move", replace=True)
    assert set(zarr.open_array(repo.snapshot(), mode="r")[:].tolist()) == {2}

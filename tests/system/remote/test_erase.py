"""Erasing on object stores: files are objects, what was read is cached, and nobody tells who reads."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.maintenance.erased_rows import array_of
from tests.maintenance.test_erase import SECRETS, check_all_is_told, fill, leaks
from tests.system.remote.repositories import again, opened
from tests.system.remote.servers import Server
from tests.tools.inside import join_shared, objects_of
from tests.tools.upkeep import below, put
from tests.tools.workers import SPAWN, TIMEOUT, Worker, ended

pytestmark = pytest.mark.long


def scanned(repo: txstore.Repository) -> list[str]:
    """What `leaks` finds in all objects, but those that a cleanup in the background deletes meanwhile."""
    objects = objects_of(repo)

    def found() -> Iterator[tuple[str, bytes]]:
        for path, _ in below(objects):
            with contextlib.suppress(FileNotFoundError):
                yield path, bytes(objects.get(path))

    return leaks(found())


@pytest.fixture
def filled(server: Server) -> txstore.Repository:
    """With a commit of two participants: the packs of such list their frames a second time."""
    repo = opened(server)
    fill(repo)
    with repo.begin("of two") as mapping:
        mapping["s/mine"] = SECRETS["s/c/0"]
        shared = mapping.lifecycle.share()
        other = again(repo)
        theirs = join_shared(other, shared)
        theirs["s/theirs"] = SECRETS["s/c/1"]
        theirs["k/theirs"] = b"kept"
        theirs.lifecycle.seal()
        theirs.lifecycle.end()
    assert scanned(repo)
    return repo


def test_no_object_has_a_byte_of_it(filled: txstore.Repository) -> None:
    other = again(filled)
    reader = other.mapping(at=1)
    assert reader["s/c/0"] == SECRETS["s/c/0 again"]
    filled.erase("s")
    assert scanned(filled) == []
    for repo in (filled, again(filled)):
        check_all_is_told(repo, 3)
        assert repo.mapping()["k/theirs"] == b"kept"
        with pytest.raises(txstore.ErasedError):
            repo.mapping(at=7)["s/theirs"]
    with pytest.raises(txstore.ErasedError):
        reader["s/t/c/0"]  # its run is open: zeros are found
    assert reader["k/c/0"]
    assert again(filled).verify().faults == []
    put(other, {"s/c/0": b"new"})
    assert again(filled).mapping()["s/c/0"] == b"new"
    assert [each.finished is not None for each in filled.erasures()] == [True]


def test_who_stages_is_waited_for(filled: txstore.Repository) -> None:
    writer = again(filled).begin("goes on")
    writer["s/c/7"] = SECRETS["s/c/0"]
    writer.lifecycle.share()
    with pytest.raises(txstore.ErasureTimeoutError, match=r"open.*Nothing was changed"):
        filled.erase("s", timeout=0)
    writer.rollback()
    filled.erase("s", timeout=30)
    assert scanned(filled) == []


#: Rows of three arrays; the last one is erased as a whole, with its attributes.
ROWS = np.frombuffer(random.Random(6).randbytes(8 * 24), np.uint64).reshape(3, 8)
NOTE = "said of nobody else"


def write_again(url: str, options: dict[str, Any], has_read: Any, is_erased: Any) -> None:
    """Read everything; when it is erased, bring back what can be, by every way there is."""
    repo = txstore.Repository(url, storage_options=options)
    for path in "vwx":
        zarr.open_array(repo.snapshot(at=0), path=path, mode="r")[:]
    has_read.set()
    assert is_erased.wait(TIMEOUT)
    repo.optimize()
    for path in "vwx":
        for change in ("restore", "copy"):
            with contextlib.suppress(txstore.ErasedError), repo.transaction(change) as store:
                store.restore(path, at=0) if change == "restore" else store.copy(path, f"{path}c", at=0)
    repo.optimize()
    for version in range(1, 4):
        with contextlib.suppress(txstore.ErasedError, txstore.ConflictError):
            repo.revert(version)
    repo.optimize()


def test_a_process_that_had_read_it_writes_none_of_it(s3: Server) -> None:
    repo = opened(s3)
    with repo.transaction("first") as store:
        array_of(store, "p", np.arange(8), ["p"], (4,))
        for path, row in zip("vwx", ROWS, strict=True):
            array_of(store, path, row, ["p"], (4,), attributes={"note": NOTE} if path == "x" else {})
    del store
    has_read, is_erased = SPAWN.Event(), SPAWN.Event()
    worker = Worker(write_again, repo.url, s3.storage_options, has_read, is_erased)
    with ended(worker):
        assert has_read.wait(TIMEOUT)
        repo.erase("v", {"p": 2})
        repo.erase("w", {"p": [2, 5]})
        repo.erase("x")
        is_erased.set()
        worker.result()
    erased = [ROWS[0, 2], *ROWS[1, [2, 5]], *ROWS[2]]
    found = {path: bytes(objects_of(repo).get(path)) for path, _ in below(objects_of(repo))}
    pieces = [*(each.tobytes() for each in erased), NOTE.encode()]
    assert [path for path, content in found.items() if any(piece in content for piece in pieces)] == []
    copy = zarr.open_array(again(repo).snapshot(), path="vc", mode="r")[:]
    np.testing.assert_array_equal(copy, np.where(np.arange(8) == 2, 0, ROWS[0]))
    assert again(repo).verify().faults == []

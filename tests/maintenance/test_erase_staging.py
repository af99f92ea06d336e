"""What keeps values aside while they are erased: open transactions, what processes have staged or cached, copies that
wait to be published. An erasure waits for it, or nothing of it is published behind the erasure.
"""

import contextlib
import gc
import os
import pickle
import random
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.maintenance.erased_rows import array_of, files_of
from tests.tools.inside import existing, objects_of
from tests.tools.upkeep import below
from tests.tools.waiting import wait_for_background_cleanup, wait_until
from tests.tools.workers import QUICK, Worker, ended
from tests.transactions.test_dead_uploads import kill
from txstore.format import names
from txstore.maintenance import erase as erasing
from txstore.maintenance import optimize as optimizing
from txstore.segments import object_writer
from txstore.storage import leases

#: The labels 10 and so on; a row has 16 elements, and there are 4 rows in a chunk.
ROWS = np.frombuffer(random.Random(8).randbytes(8 * 8 * 16), np.uint64).reshape(8, 16)
#: Longer than what a process keeps in its memory before it writes to its staged file.
LONG = 3 << 20

#: The row of label 12, or the whole array. The other rows of its chunk are 10, 11 and 13.
ERASED: dict[str, tuple[Any, ...]] = {"rows": ("v", {"p": 12}), "path": ("v",)}


@pytest.fixture(params=["disk", "objects"])
def somewhere(request: pytest.FixtureRequest, open_repo: Callable[..., txstore.Repository]) -> txstore.Repository:
    if request.param == "disk":
        return filled(open_repo())
    return filled(txstore.Repository(f"memory://{uuid.uuid4().hex}/data.tx"))


@pytest.fixture
def on_disk(open_repo: Callable[..., txstore.Repository]) -> txstore.Repository:
    return filled(open_repo())


@pytest.fixture
def in_objects() -> txstore.Repository:
    return filled(txstore.Repository(f"memory://{uuid.uuid4().hex}/data.tx"))


def filled(repo: txstore.Repository) -> txstore.Repository:
    with repo.transaction("first") as store:
        array_of(store, "p", np.arange(10, 18), ["p"], (8,))
        array_of(store, "v", ROWS, ["p", "x"], (4, 16))
        array_of(store, "other", np.arange(8), ["p"], (8,))
    del store
    gc.collect()
    return repo


def again(repo: txstore.Repository) -> txstore.Repository:
    """Return the repository as another process opens it."""
    return txstore.Repository(repo.url)


def is_on_disk(repo: txstore.Repository) -> bool:
    return "://" not in repo.url


def array(store: Any, path: str = "v") -> Any:
    return zarr.open_array(store, path=path)


def files(repo: txstore.Repository) -> Iterator[tuple[str, bytes]]:
    wait_for_background_cleanup()
    if is_on_disk(repo):
        yield from files_of(repo.url)
    else:
        objects = objects_of(repo)  # type: ignore[attr-defined]
        yield from ((path, bytes(objects.get(path))) for path, _ in below(objects))


def leaks(repo: txstore.Repository, *what: Any) -> list[str]:
    """Return the files with any of the 8 bytes of the first elements of what was erased."""
    pieces = [each.tobytes()[:32] for each in (what or [ROWS[2]])]
    return [path for path, content in files(repo) if any(piece in content for piece in pieces)]


def check_erased(repo: txstore.Repository, kind: str) -> None:
    """It is in no file, and no commit shows it; everything else is there."""
    gc.collect()
    assert leaks(repo, *([ROWS[2]] if kind == "rows" else ROWS)) == []
    fresh = again(repo)
    if kind == "path":
        with pytest.raises(txstore.ErasedError):
            zarr.open_array(fresh.snapshot(at=0), path="v", mode="r")
    else:
        expected = np.where(np.arange(8)[:, None] == 2, 0, ROWS)
        np.testing.assert_array_equal(zarr.open_array(fresh.snapshot(at=0), path="v", mode="r")[:], expected)
    np.testing.assert_array_equal(zarr.open_array(fresh.snapshot(), path="other", mode="r")[:], np.arange(8))
    assert fresh.verify().faults == []


# --- open transactions
def write_beside(store: Any) -> None:
    """In the same chunk: what is staged of it has the other rows, too."""
    array(store)[0] = 5


def write_it_again(store: Any) -> None:
    array(store)[2] = 0  # else there would be nothing to stage
    array(store)[2] = ROWS[2]


STAGED = {"beside": write_beside, "again": write_it_again}


@pytest.mark.parametrize("kind", ERASED)
@pytest.mark.parametrize("stage", STAGED)
@pytest.mark.parametrize("deleted_before", [False, True])
def test_what_an_open_transaction_has_staged_does_not_come_back(somewhere, kind, stage, deleted_before):
    """Where its pin is seen, the erasure waits for it. Elsewhere it can't commit any more."""
    store = again(somewhere).transaction("open")
    STAGED[stage](store)
    if deleted_before:
        with somewhere.transaction("by hand") as other:
            if kind == "path":
                other.delete_dir_sync("v")
            else:
                array(other)[2] = 0
        del other
    if is_on_disk(somewhere):
        head = somewhere.head()
        with pytest.raises(txstore.ErasureTimeoutError, match=r"reads main@0, or writes on it\. Nothing"):
            somewhere.erase(*ERASED[kind], timeout=0)
        assert (somewhere.head(), somewhere.erasures()) == (head, [])
        with contextlib.suppress(txstore.ConflictError):
            store.commit()
        store.rollback()
        del store
        gc.collect()
        somewhere.erase(*ERASED[kind], timeout=0)
    else:
        somewhere.erase(*ERASED[kind], timeout=0)
        with pytest.raises(txstore.ConflictError):
            store.commit()
        assert leaks(somewhere) == []
        store.rollback()
        if kind == "rows":
            with again(somewhere).transaction("once more") as store:
                array(store)[1] = 6
            assert array(again(somewhere).snapshot())[1, 0] == 6
    check_erased(somewhere, kind)


@pytest.mark.parametrize("kind", ERASED)
def test_what_it_uploads_after_the_erasure_goes_with_the_conflict(in_objects, kind, monkeypatch):
    """It stood still until its lease was over. What it has staged of the chunk has the other rows, too."""
    monkeypatch.setattr(object_writer, "INLINE_SIZE", 0)
    store, objects = again(in_objects).transaction("stands still"), objects_of(in_objects)
    with monkeypatch.context() as patch:
        patch.setattr(leases, "BEAT", 1000.0)  # it renews nothing
        write_beside(store)
        wait_until(lambda: any(path.endswith(names.LEASE) for path, _ in below(objects)))
    objects.delete([path for path, _ in below(objects) if path.endswith(names.LEASE)])
    in_objects.erase(*ERASED[kind], timeout=0)
    with pytest.raises(txstore.ConflictError, match="erased after this transaction had begun"):
        store.commit()
    check_erased(in_objects, kind)
    store.rollback()


def test_on_a_branch_whose_head_had_nothing_to_erase(in_objects: txstore.Repository) -> None:
    """The erasure changes nothing there, but it lets whoever was about to commit look once more."""
    in_objects.branches["dev"] = in_objects.head()  # type: ignore[assignment]
    store = again(in_objects).transaction("open", branch="dev")
    write_beside(store)
    for branch in ("dev", "main"):
        with in_objects.transaction("by hand", branch=branch) as other:
            array(other)[2] = 0
    in_objects.erase("v", {"p": 12})
    with pytest.raises(txstore.ConflictError, match="erased after this transaction had begun"):
        store.commit()
    store.rollback()
    assert leaks(in_objects) == []


def test_one_that_is_published_while_the_erasure_writes_its_record(in_objects, monkeypatch):
    """It has looked for records, and found none: what it brings is erased with the rest."""
    store, write, made = again(in_objects).transaction("open"), erasing.write_record, list[Any]()
    write_beside(store)
    with in_objects.transaction("by hand") as other:
        array(other)[2] = 0

    def overtaken(*arguments: Any) -> None:
        if not made:
            made.append(store.commit())
        write(*arguments)

    monkeypatch.setattr(erasing, "write_record", overtaken)
    in_objects.erase("v", {"p": 12})
    assert made
    assert array(again(in_objects).snapshot())[0, 0] == 5
    assert leaks(in_objects) == []


def test_on_a_newer_commit_it_is_not_waited_for(somewhere: txstore.Repository) -> None:
    """What was staged there after the deletion is new, and stays; where no pins are seen, it can't be told apart."""
    with somewhere.transaction("by hand") as store:
        store.delete_dir_sync("v")
    del store
    gc.collect()
    new = np.frombuffer(random.Random(9).randbytes(8 * 16), np.uint64)
    store = again(somewhere).transaction("open")
    array_of(store, "v", new, ["x"], (16,))
    somewhere.erase("v", timeout=0)
    assert leaks(somewhere, *ROWS) == []
    if not is_on_disk(somewhere):
        with pytest.raises(txstore.ConflictError, match="erased after this transaction had begun"):
            store.commit()
        store.rollback()
        store = again(somewhere).transaction("once more")
        array_of(store, "v", new, ["x"], (16,))
    assert store.commit() is not None
    np.testing.assert_array_equal(array(again(somewhere).snapshot())[:], new)
    del store
    gc.collect()
    somewhere.erase("v", timeout=0)
    assert leaks(somewhere, new, *ROWS) == []


@pytest.mark.long
@pytest.mark.parametrize("kind", ERASED)
@pytest.mark.parametrize("ending", ["commit", "rollback", "killed"])
def test_what_has_been_uploaded_is_waited_for(in_objects, monkeypatch, kind, ending):
    """As long as there is a lease on it."""
    store = again(in_objects).transaction("large")
    write_beside(store)
    for number in range(8):
        store[f"v/more/{number}"] = ROWS[2].tobytes() + bytes(LONG)
    store.mapping.staging.part.writer._uploads.wait()  # type: ignore[union-attr, attr-defined]
    assert leaks(in_objects)
    with pytest.raises(txstore.ErasureTimeoutError, match=r"transaction [0-9a-f]{32} is open"):
        in_objects.erase(*ERASED[kind], timeout=0)
    if ending == "killed":
        kill(store)
        monkeypatch.setattr(leases, "TERM", 10.0)  # else it takes half a minute
    else:
        store.commit() if ending == "commit" else store.rollback()
    in_objects.erase(*(ERASED["path"] if ending == "commit" else ERASED[kind]))
    assert leaks(in_objects) == []


# --- other processes
def stage(url: str, name: str | None, signs: Path, ending: str) -> None:
    """Stage what is erased, so much that it is in the staged file; end as the test says."""
    with txstore.Repository(url).transaction("elsewhere", name=name) as store:
        write_beside(store)
        store["v/more"] = ROWS[2].tobytes() + bytes(LONG)
        if name is None:
            meet(signs)
            store.commit() if ending == "commit" else store.rollback()
    meet(signs)


def meet(signs: Path) -> None:
    """Tell that it is staged, and wait until it may end."""
    (signs / "staged").touch()
    wait_until((signs / "end").exists)


@contextlib.contextmanager
def elsewhere(repo: txstore.Repository, signs: Path, ending: str, name: str | None = None) -> Iterator[Worker]:
    worker = Worker(stage, repo.url, name, signs, ending, context=QUICK)
    with ended(worker):
        wait_until((signs / "staged").exists)
        assert any(".staging" in path for path in leaks(repo))
        yield worker


@pytest.mark.long
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no SIGSTOP here")
@pytest.mark.parametrize("kind", ERASED)
@pytest.mark.parametrize("then", ["goes on", "is killed"])
def test_of_a_process_that_stands_still(on_disk: txstore.Repository, tmp_path: Path, kind: str, then: str) -> None:
    """It lives, so it is told; nothing is taken from it."""
    with elsewhere(on_disk, tmp_path, "rollback") as worker:
        pid = worker.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(txstore.ErasureTimeoutError, match=r"process \d+ \(.*\) reads main@0, or writes on it"):
            on_disk.erase(*ERASED[kind], timeout=0)
        assert any(".staging" in path for path in leaks(on_disk))
        if then == "goes on":
            (tmp_path / "end").touch()
            os.kill(pid, signal.SIGCONT)
            worker.result()
        else:
            worker.process.kill()
            worker.process.join()
    on_disk.erase(*ERASED[kind], timeout=0)
    check_erased(on_disk, kind)


@pytest.mark.long
@pytest.mark.parametrize("kind", ERASED)
@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_name_outlives_its_process(on_disk: txstore.Repository, tmp_path: Path, kind: str, ending: str) -> None:
    """So does what was staged in it, and any process can end it."""
    with elsewhere(on_disk, tmp_path, ending, "nightly") as worker:
        worker.process.kill()
        worker.process.join()
    with pytest.raises(txstore.ErasureTimeoutError, match="the transaction 'nightly', begun by"):
        on_disk.erase(*ERASED[kind], timeout=0)
    assert any(".staging" in path for path in leaks(on_disk))
    if ending == "commit":
        assert on_disk.transaction(name="nightly").commit() is not None
    else:
        existing(on_disk, "nightly").rollback()
    gc.collect()
    on_disk.erase(*(ERASED["path"] if ending == "commit" else ERASED[kind]), timeout=0)
    assert leaks(on_disk) == []


def stage_part(pickled: bytes, signs: Path) -> None:
    store = pickle.loads(pickled)
    array(store)[1] = 6
    store["v/more"] = ROWS[2].tobytes() + bytes(LONG)
    meet(signs)


@pytest.mark.long
@pytest.mark.parametrize("kind", ERASED)
@pytest.mark.parametrize("is_killed", [False, True])
def test_of_several_participants(on_disk: txstore.Repository, tmp_path: Path, kind: str, is_killed: bool) -> None:
    store = on_disk.transaction("of two")
    write_beside(store)
    worker = Worker(stage_part, pickle.dumps(store), tmp_path, context=QUICK)
    with ended(worker):
        wait_until((tmp_path / "staged").exists)
        if is_killed:
            worker.process.kill()
            worker.process.join()
        with pytest.raises(txstore.ErasureTimeoutError, match="a transaction, begun by"):
            on_disk.erase(*ERASED[kind], timeout=0)
        assert leaks(on_disk)
        if not is_killed:
            (tmp_path / "end").touch()
            worker.result()
    store.rollback() if is_killed else store.commit()
    del store
    gc.collect()
    on_disk.erase(*(ERASED[kind] if is_killed else ERASED["path"]), timeout=0)
    assert leaks(on_disk) == []


# --- caches
@pytest.mark.parametrize("kind", ERASED)
def test_who_reads_anew_is_given_nothing_of_a_cache(somewhere: txstore.Repository, tmp_path: Path, kind: str) -> None:
    """Of decoded chunks, of pieces of packs in memory, and of those in a directory."""
    options: dict[str, Any] = {} if is_on_disk(somewhere) else {"cache_dir": tmp_path / "cache"}
    caching = txstore.Repository(somewhere.url, chunk_cache="1 MiB", **options)
    for _ in range(2):
        reader = zarr.open_array(caching.snapshot(at=0), path="v", mode="r")
        assert reader[2, 0] == ROWS[2, 0]
    assert len(caching.chunk_cache)
    del reader
    gc.collect()
    if not is_on_disk(somewhere):
        assert any(ROWS[2].tobytes()[:32] in content for _, content in files_of(tmp_path / "cache"))
    (somewhere if is_on_disk(somewhere) else txstore.Repository(somewhere.url, **options)).erase(*ERASED[kind])
    assert not any(ROWS[2].tobytes()[:32] in content for _, content in files_of(tmp_path / "cache"))
    for repo in (caching, again(somewhere)):
        if kind == "path":
            with pytest.raises(txstore.ErasedError):
                zarr.open_array(repo.snapshot(at=0), path="v", mode="r")
        else:
            found = zarr.open_array(repo.snapshot(at=0), path="v", mode="r")
            assert not found[2].any()
            np.testing.assert_array_equal(found[3], ROWS[3])


# --- what waits to be published
@pytest.mark.parametrize("kind", ERASED)
def test_an_optimize_publishes_no_copies_from_before(in_objects, monkeypatch, kind):
    """It has read values, and nothing tells of it yet."""
    for number in range(4):
        with in_objects.transaction("more") as store:
            array(store)[7] = number
    del store
    new_writer, erased = optimizing._Copies.new_writer, list[Any]()

    def overtaken(copies: Any) -> Any:
        if not erased:
            erased.append(None)
            in_objects.erase(*ERASED[kind])
        return new_writer(copies)

    monkeypatch.setattr(optimizing._Copies, "new_writer", overtaken)
    again(in_objects).optimize()
    assert erased
    assert leaks(in_objects) == []
    assert again(in_objects).optimize() is not None
    assert leaks(in_objects) == []
    assert again(in_objects).verify().faults == []


def commit_often(url: str, stop: str) -> int:
    """Commit beside the erased row, in the same chunk, as long as there is the array."""
    repo, count = txstore.Repository(url), 0
    while not os.path.exists(stop):
        with contextlib.suppress(txstore.ConflictError, txstore.SnapshotExpiredError, txstore.NodeNotFoundError):
            with repo.transaction() as store:
                array(store)[count % 2] = count
            count += 1
    return count


@pytest.mark.long
def test_beside_committers_that_queue(on_disk: txstore.Repository, tmp_path: Path) -> None:
    """Commits that follow one another before they have their versions bring nothing back."""
    stop = tmp_path / "stop"
    workers = [Worker(commit_often, on_disk.url, str(stop), context=QUICK) for _ in range(3)]
    with ended(*workers):
        head = on_disk.head()
        wait_until(lambda: (on_disk.head() or head).version > head.version + 5)
        on_disk.erase("v", {"p": 12}, timeout=None)
        on_disk.erase("v", {"p": 13}, timeout=None)
        stop.touch()
        assert all(worker.result() for worker in workers)
    assert leaks(on_disk, ROWS[2], ROWS[3]) == []
    np.testing.assert_array_equal(array(again(on_disk).snapshot())[4:], ROWS[4:])

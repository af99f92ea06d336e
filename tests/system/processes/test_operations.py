"""I8: what a participant has staged counts when its operation has ended: one call of zarr's API."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.members import committed, fill_chunk, get, members, put
from tests.tools.steps import forked, status_of
from tests.tools.waiting import wait_until
from tests.tools.workers import TIMEOUT
from txstore.store import TxStore

#: How often each way to end workers is tried: as often as one likes, `TXSTORE_ROUNDS=200`.
ROUNDS = int(os.environ.get("TXSTORE_ROUNDS", "2"))


def terminated_pool(store: TxStore, method: str) -> None:
    """The `with` block of a pool kills its workers, though none of them has dropped what it was sent."""
    with multiprocessing.get_context(method).Pool(3) as pool:
        pool.starmap_async(fill_chunk, [(store, number) for number in range(8)]).get(TIMEOUT)


def killed_executor(store: TxStore, method: str) -> None:
    pool = ProcessPoolExecutor(3, mp_context=multiprocessing.get_context(method))
    try:
        list(pool.map(fill_chunk, [store] * 8, range(8), timeout=TIMEOUT))
        for process in list(pool._processes.values()):
            process.kill()
    finally:
        pool.shutdown(cancel_futures=True)


def ended_executor(store: TxStore, method: str) -> None:
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context(method)) as pool:
        list(pool.map(fill_chunk, [store] * 8, range(8), timeout=TIMEOUT))


def joblib_pool(store: TxStore, _: str) -> None:
    joblib = pytest.importorskip("joblib")
    joblib.Parallel(n_jobs=3, backend="multiprocessing", timeout=TIMEOUT)(
        joblib.delayed(fill_chunk)(store, number) for number in range(8)
    )


WAYS = {
    "pool, fork": (terminated_pool, "fork"),
    "pool, forkserver": (terminated_pool, "forkserver"),
    "pool, spawn": (terminated_pool, "spawn"),
    "executor killed, forkserver": (killed_executor, "forkserver"),
    "executor, fork": (ended_executor, "fork"),
    "joblib's multiprocessing": (joblib_pool, ""),
}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("way", WAYS)
def test_what_has_returned_is_committed(open_repo, way):
    run, method = WAYS[way]
    for number in range(ROUNDS):
        repo = open_repo(f"{number}.tx", durability="none")
        with repo.transaction() as store:
            zarr.create_array(store, name="x", data=np.zeros(32, "i8"), chunks=(4,))
        with repo.transaction() as store:
            run(store, method)
        assert committed(repo) == [element // 4 + 1 for element in range(32)]


# --- within an operation
def die_at_write(store: TxStore, count: int) -> None:
    """Die right before the n-th frame, or the seal, that an append to an array of two chunks writes."""
    writer = store.mapping.staging.part.writer
    left = [count]

    def then(method: Any) -> Any:
        def write(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return method(*arguments, **options)

        return write

    writer.append, writer.append_batch = then(writer.append), then(writer.append_batch)
    zarr.open_array(store, path="x").append(np.ones(8, "i8"))


def test_a_worker_that_is_killed_within_an_operation_is_named(repo, store):
    """At each of its steps, the last of which is to say that it has ended."""
    for count in (2, 3):
        with members(store, 1) as (worker,):
            worker.do(put, f"whole {count}", b"1")
            worker.begin(die_at_write, count)
            worker.process.join(TIMEOUT)
            assert worker.process.exitcode == -signal.SIGKILL
            with pytest.raises(txstore.ParticipantLostError, match=f"process {worker.process.pid}") as lost:
                store.commit()
            assert "x/zarr.json" in lost.value.keys
            store.rollback()
    assert committed(repo) == [0] * 32


@pytest.mark.parametrize("options", [{}, {"name": "n"}, {"isolation": "serializable"}], ids=str)
def test_a_worker_that_is_killed_when_its_operation_has_ended_is_whole(repo, store, options):
    """Who gives a name says by its block that it is done; a worker that was sent the store need not."""
    begun = repo.transaction(**options)
    with members(begun, 1) as (worker,):
        worker.do(fill_chunk, 0)
        worker.do(get, "x/c/7")  # that it has read it is staged, too, in one that is serializable
        worker.kill()
    begun.commit()
    assert committed(repo)[:4] == [1] * 4


FAILING = """
import pickle, sys, zarr
store = pickle.load(open(sys.argv[1], "rb"))
zarr.open_array(store, path="x")[0:4] = 99
zarr.open_array(store, path="y")[:]
raise ValueError("the second half of the task")
"""


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
def test_a_process_that_ends_by_an_exception_has_not_done_its_work(repo, store, tmp_path, isolation):
    """Also if the last thing that it has told the others is what it has read."""
    owner = repo.transaction(isolation=isolation)
    zarr.create_array(owner, name="y", data=np.arange(8))
    (tmp_path / "store").write_bytes(pickle.dumps(owner))
    ran = subprocess.run([sys.executable, "-c", FAILING, tmp_path / "store"], capture_output=True, timeout=TIMEOUT)
    assert b"the second half" in ran.stderr
    with pytest.raises(txstore.ParticipantLostError):
        owner.commit()
    owner.rollback()


def fail_and_go_on(store: TxStore) -> None:
    """Append what can't be encoded, which sets the shape first; then do something else, well."""
    values = np.array(["a", "b", "c", "d", "e", "\ud800"], dtype=object)
    with pytest.raises(UnicodeEncodeError):
        zarr.open_array(store, path="text").append(values)
    fill_chunk(store, 0)


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_no_later_operation_vouches_for_one_that_has_failed(repo, store):
    zarr.create_array(store, name="text", shape=(4,), chunks=(4,), dtype="str")
    with members(store, 1) as (worker,):
        worker.do(fail_and_go_on)
        worker.kill()
        with pytest.raises(txstore.ParticipantLostError) as lost:
            store.commit()
        assert "text/zarr.json" in lost.value.keys


def two_at_once(store: TxStore, directory: str) -> None:
    """End one operation while another one has staged the half of what it is to stage."""
    staging = store.mapping.staging
    z = zarr.open_array(store, path="x")
    real = staging.stage
    half = threading.Event()

    def stage(kind: int, key: str, *arguments: Any) -> None:
        real(kind, key, *arguments)
        if key == "x/zarr.json":
            half.set()
            threading.Event().wait(TIMEOUT)

    # Keys share few locks, by hashes that differ from process to process: this key must not wait for the array's.
    at = staging.turns.at
    other = next(key for key in map(str, range(1000)) if at(key) is not at("x/zarr.json"))
    staging.stage = stage
    threading.Thread(target=lambda: z.append(np.ones(4, "i8")), daemon=True).start()
    assert half.wait(TIMEOUT)
    store[other] = b"1"
    Path(directory, "half").touch()
    threading.Event().wait(TIMEOUT)


def test_the_end_of_one_operation_says_nothing_of_another(repo, store, tmp_path):
    with members(store, 1) as (worker,):
        worker.begin(two_at_once, str(tmp_path))
        wait_until((tmp_path / "half").exists)
        worker.kill()
        with pytest.raises(txstore.ParticipantLostError) as lost:
            store.commit()
        assert "x/zarr.json" in lost.value.keys


def test_the_first_operation_of_a_process_has_ended_when_it_returns(repo, store):
    """It begins before anything tells zarr's tasks apart. To write the seal takes long here."""
    z = zarr.open_array(store, path="x")

    def work() -> None:
        part = store.mapping.staging.part
        real = part._seal

        def seal(seen: Any) -> int:
            time.sleep(0.2)
            return real(seen)

        part._seal = seal
        z[0:8] = 5
        os.kill(os.getpid(), signal.SIGKILL)

    with forked(work) as child:
        assert os.WIFSIGNALED(status_of(child))
    store.commit()
    assert committed(repo)[:8] == [5] * 8

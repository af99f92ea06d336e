"""Workers of a Dask cluster stage into one transaction: what they write is published whole, or not at all."""

import os
import signal
from pathlib import Path
from typing import Any

import dask
import dask.array
import numpy as np
import pytest
import xarray
import zarr
import zarr.core.codec_pipeline

import txstore
from tests.system.dask.conftest import WORKERS
from tests.tools.members import committed
from txstore import engine
from txstore.store import TxStore

pytestmark = pytest.mark.long


def numbers(start: int, stop: int, chunk: int, **coordinates: Any) -> xarray.Dataset:
    """Return a data set of one variable along time, whose values are its times."""
    values = dask.array.arange(start, stop, chunks=chunk)
    return xarray.Dataset({"x": ("time", values)}, coords={"time": np.arange(start, stop), **coordinates})


def create(repo: txstore.Repository, length: int, chunk: int) -> None:
    with repo.transaction("create") as store:
        zarr.create_array(store, name="x", shape=(length,), chunks=(chunk,), dtype="i8")


def test_what_is_read_again_has_another_name_if_it_was_overwritten(repo):
    create(repo, 8, 4)
    store = TxStore(repo)
    x = zarr.open_array(store, path="x")
    x[:] = 1
    before = dask.array.from_zarr(x)
    assert dask.array.from_zarr(x).name == before.name
    x[:] = 2
    assert dask.array.from_zarr(x).name != before.name
    assert dask.array.from_zarr(x).compute().tolist() == [2] * 8
    store.rollback()


def test_a_data_set_its_regions_and_what_is_appended(client, repo):
    with repo.transaction() as store:
        numbers(0, 32, 4).to_zarr(store, mode="w")
    with repo.transaction() as store:
        numbers(32, 48, 4).to_zarr(store, append_dim="time")
        assert committed(repo) == list(range(32))
        region = (numbers(8, 24, 8) * 10).drop_vars("time")
        region.to_zarr(store, region={"time": slice(8, 24)})
        assert len(committed(repo)) == 32
    expected = np.arange(48)
    expected[8:24] *= 10
    found = xarray.open_zarr(repo.snapshot())
    assert found.x.values.tolist() == expected.tolist()
    assert found.time.values.tolist() == list(range(48))


#: Who does the tasks: the threads of this process, or the cluster, which is there by default.
anywhere = pytest.mark.parametrize("where", [{"scheduler": "threads"}, {}], ids=["threads", "cluster"])


@anywhere
def test_tiles_that_know_nothing_of_chunks(client, repo, where):
    """Chunks of Dask that end anywhere within chunks of the array: nobody takes turns, and nothing is lost."""
    values = np.arange(1, 42 * 35 + 1).reshape(42, 35)
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=values.shape, chunks=(16, 16), dtype="i8")
    with dask.config.set(where), repo.transaction() as store:
        x = zarr.open_array(store, path="x")
        dask.array.store(dask.array.from_array(values, chunks=(5, 9)), x, lock=False)
    assert np.array_equal(zarr.open_array(repo.snapshot(), path="x", mode="r")[:], values)


def fill_two_chunks(store: TxStore, number: int, flags: Path, fails: bool) -> None:
    """Fail once between the two."""
    with store:
        z = zarr.open_array(store, path="x")
        z[8 * number : 8 * number + 4] = number
        flag = flags / str(number)
        if fails and not flag.exists():
            flag.touch()
            raise RuntimeError("half-way")
        z[8 * number + 4 : 8 * number + 8] = number


def test_half_of_a_task_is_not_published(client, repo, tmp_path):
    create(repo, 160, 4)
    store = repo.transaction()
    tasks = [client.submit(fill_two_chunks, store, n, tmp_path, n == 7) for n in range(20)]
    with pytest.raises(RuntimeError, match="half-way"):
        client.gather(tasks)
    client.gather(tasks, errors="skip")
    for task in tasks:
        task.release()
    with pytest.raises(txstore.ParticipantLostError) as lost:
        store.commit()
    assert lost.value.keys == ("x/c/14",)
    client.submit(fill_two_chunks, store, 7, tmp_path, False).result()
    store.commit()
    assert committed(repo) == [element // 8 for element in range(160)]


def die_once(block: np.ndarray, flag: str, block_info: Any = None) -> np.ndarray:
    """In the middle of the work, kill the worker: the first that comes here."""
    if block_info[0]["chunk-location"] == (20,):
        try:
            os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return block
        os.kill(os.getpid(), signal.SIGKILL)
    return block


def test_a_worker_is_killed_and_its_tasks_are_done_again(client, repo, tmp_path):
    """The nanny starts another; what the dead one had staged was done again, or the commit names it."""
    create(repo, 160, 4)
    values = dask.array.arange(160, chunks=4)
    values = values.map_blocks(die_once, str(tmp_path / "flag"), dtype="i8", meta=np.empty(0, "i8"))
    store = repo.transaction()
    dask.array.to_zarr(values, zarr.open_array(store, path="x"))
    assert Path(tmp_path, "flag").exists()
    try:
        store.commit()
    except txstore.ParticipantLostError as lost:
        assert committed(repo) == [0] * 160
        for key in lost.keys:
            start = 4 * int(key.rpartition("/")[2])
            zarr.open_array(store, path="x")[start : start + 4] = np.arange(start, start + 4)
        store.commit()
    assert committed(repo) == list(range(160))
    assert len(list(repo.log())) == 2
    client.wait_for_workers(WORKERS, timeout=60)


def test_a_process_is_one_participant_however_many_tasks_it_has(client, repo):
    create(repo, 800, 4)
    with repo.transaction() as store:
        lazy = xarray.DataArray(dask.array.from_zarr(zarr.open_array(store, path="x")), dims="i")
        assert lazy.data.npartitions == 200
        joined = client.run(stagings, store.mapping.shared_id)
        assert sum(joined.values()) == 0  # opening costs nothing
        assert int(lazy.sum().compute()) == 0
        assert max(client.run(stagings, store.mapping.shared_id).values()) <= 1
        assert store.changes()["participants"] == {}  # who only reads is none
        dask.array.to_zarr(lazy.data + 1, zarr.open_array(store, path="x"))
        for number, worker in enumerate(joined):  # dask may have given all of it to one
            tasks = [client.submit(put, store, f"k{number}/{i}", workers=[worker]) for i in range(10)]
            client.gather(tasks)
        assert len(store.changes()["participants"]) == WORKERS
        shared = store.mapping.staging.members.shared
        assert len([number for number in shared.participants() if number]) == WORKERS
    assert committed(repo) == [1] * 800


def put(store: TxStore, key: str) -> None:
    store[key] = b"1"


def stagings(transaction: bytes) -> int:
    """Return how often this worker has joined a transaction."""
    return sum(staging.record.id == transaction for stagings in engine._joined.values() for staging in stagings)


# --- several tasks that write one chunk
def add_under_a_lock(store: TxStore, element: int) -> None:
    with store.lock("x", element):
        z = zarr.open_array(store, path="x")
        z[element] = z[element] + 1


#: There are no locks on an object store.
with_locks = pytest.mark.parametrize("repo", ["local"], indirect=True)


@with_locks
@pytest.mark.parametrize("pipeline", ["Batched", "Fused"])
def test_tasks_that_take_turns_lose_nothing(client, repo, pipeline):
    """Of the threads of one worker, and of several workers."""
    if not hasattr(zarr.core.codec_pipeline, f"{pipeline}CodecPipeline"):
        pytest.skip("this zarr has no such pipeline")
    create(repo, 16, 8)
    client.run(zarr.config.set, {"codec_pipeline.path": f"zarr.core.codec_pipeline.{pipeline}CodecPipeline"})
    try:
        with repo.transaction() as store:
            client.gather([client.submit(add_under_a_lock, store, i % 16, pure=False) for i in range(200)])
    finally:
        client.run(zarr.config.reset)
    assert sum(committed(repo)) == 200


@with_locks
@pytest.mark.parametrize("where", ["cluster", "threads"])
def test_halves_of_chunks_in_a_synchronized_array(client, repo, where):
    """Each write is a transaction of its own, whichever thread or process makes it."""
    create(repo, 64, 16)
    values = dask.array.arange(1, 65, chunks=4)  # four tasks a chunk
    scheduler = client if where == "cluster" else "threads"
    dask.array.store(values, txstore.synchronized(repo, "x"), lock=False, scheduler=scheduler)
    assert committed(repo) == list(range(1, 65))

"""Several processes in one transaction: the owner commits what all have staged, or nothing, whatever happens to them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.array
import numpy as np
import pytest
import zarr

import txstore
from tests.conflicts.faults import watch
from tests.processes.steps import BeforeEach, forked, status_of
from tests.processes.workers import QUICK, SPAWN, TIMEOUT
from txstore.store import TxStore

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills and stops processes")

METHODS = ["spawn", "forkserver", "fork"]
BIG = 3 << 20


def get(store: TxStore, key: str) -> bytes | None:
    return bytes(store[key]) if key in store else None


def put(store: TxStore, key: str, value: bytes) -> None:
    store[key] = value


def remove(store: TxStore, key: str) -> None:
    del store[key]


def clear(store: TxStore, path: str) -> None:
    store.mapping.delete_dir(path)


def locked(store: TxStore, path: str, selection: Any, then: Callable[..., Any], *arguments: Any) -> Any:
    with store.lock(path, selection):
        return then(store, *arguments)


def fill(store: TxStore, path: str, start: int, stop: int, value: int) -> None:
    zarr.open_array(store, path=path)[start:stop] = value


def append(store: TxStore, path: str, value: int) -> None:
    zarr.open_array(store, path=path).append(np.full(2, value, "i8"))


def seal(store: TxStore) -> None:
    store.mapping.seal()


class Member:
    """A process that has been sent a store, and does with it what it is told."""

    def __init__(self, store: TxStore, context: Any = QUICK) -> None:
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, store), daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.pipe.send((function, arguments))

    def answer(self) -> Any:
        assert self.pipe.poll(TIMEOUT), "the process does not answer"
        answer = self.pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.begin(function, *arguments)
        return self.answer()

    def leave(self) -> None:
        """End in good order."""
        self.pipe.send(None)
        self.process.join(TIMEOUT)
        assert self.process.exitcode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.join(TIMEOUT)


def _serve(pipe: Any, store: TxStore) -> None:
    while (told := pipe.recv()) is not None:
        function, arguments = told
        try:
            answer = function(store, *arguments)
        except Exception as error:  # noqa: BLE001 - the test is told, whatever it is
            answer = error
        pipe.send(answer)


@contextmanager
def members(store: TxStore, count: int, context: Any = QUICK) -> Iterator[list[Member]]:
    """Start processes that share a transaction; kill what is left of them at the end."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            found.append(Member(store, context))
            stack.callback(found[-1].kill)
        yield found


@pytest.fixture
def store(repo: txstore.Repository) -> Iterator[TxStore]:
    """A transaction over a repository with an array of 8 chunks of 4."""
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.zeros(32, "i8"), chunks=(4,))
    store = repo.transaction()
    yield store
    store.rollback()


def committed(repo: txstore.Repository, path: str = "x") -> list[int]:
    return zarr.open_array(repo.snapshot(), path=path, mode="r")[:].tolist()


# --- every way to start a process


def fill_region(store: TxStore, number: int) -> None:
    fill(store, "x", 8 * number, 8 * number + 8, number + 1)


def with_executor(context: Any, store: TxStore) -> None:
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        list(pool.map(fill_region, [store] * 4, range(4), timeout=TIMEOUT))


def with_pool(context: Any, store: TxStore) -> None:
    with context.Pool(2) as pool:
        pool.starmap_async(fill_region, [(store, number) for number in range(4)]).get(TIMEOUT)
        pool.close()
        pool.join()


def with_living_pool(context: Any, store: TxStore) -> None:
    """Its processes live until the test ends: they need not have ended for the commit."""
    pool = context.Pool(2)
    pool.starmap_async(fill_region, [(store, number) for number in range(4)]).get(TIMEOUT)
    with_living_pool.pools.append(pool)


with_living_pool.pools = []


def with_processes(context: Any, store: TxStore) -> None:
    processes = [context.Process(target=fill_region, args=(store, number), daemon=True) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(TIMEOUT)
        assert process.exitcode == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("crew", [with_executor, with_pool, with_living_pool, with_processes])
def test_workers_fill_one_array(repo, store, crew, method):
    crew(multiprocessing.get_context(method), store)
    assert committed(repo) == [0] * 32
    changes = store.changes()
    assert changes["set"] == [f"x/c/{i}" for i in range(8)]
    staged = changes["participants"]
    assert sorted(key for keys in staged.values() for key in keys) == changes["set"]
    assert all(who.startswith("process ") and "this one" not in who for who in staged)
    store.commit("by workers")
    assert committed(repo) == [number // 8 + 1 for number in range(32)]
    assert len(list(repo.log())) == 2
    assert not os.listdir(Path(repo.url, ".staging"))
    while with_living_pool.pools:
        with with_living_pool.pools.pop() as pool:
            pool.close()
            pool.join()


def test_joblib_workers_fill_one_array(repo, store):
    joblib = pytest.importorskip("joblib")
    joblib.Parallel(n_jobs=2, backend="loky", timeout=TIMEOUT)(
        joblib.delayed(fill_region)(store, number) for number in range(4)
    )
    store.commit()
    assert committed(repo) == [number // 8 + 1 for number in range(32)]
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True)


def test_dask_processes_fill_one_array(repo, store):
    z = zarr.open_array(store, path="x")
    with dask.config.set(num_workers=2, **{"multiprocessing.context": "spawn"}):
        dask.array.arange(32, chunks=4).store(z, lock=False, scheduler="processes")
    assert z[:].tolist() == list(range(32))
    store.commit()
    assert committed(repo) == list(range(32))
    assert len(list(repo.log())) == 2


# --- two that write one chunk


def test_halves_of_one_chunk_under_a_lock(repo, store):
    with members(store, 2) as (first, second):
        first.do(locked, "x", np.s_[0:2], fill, "x", 0, 2, 1)
        second.do(locked, "x", np.s_[2:4], fill, "x", 2, 4, 2)
        first.do(locked, "x", np.s_[1:3], fill, "x", 1, 3, 3)  # what it had read before is not what it writes back
    with pytest.raises(txstore.ParticipantLostError):
        store.commit()  # the two were killed
    store.commit(allow_lost=True)
    assert committed(repo)[:4] == [1, 3, 3, 2]


def test_halves_of_one_chunk_without_a_lock(repo, store):
    with members(store, 2) as (first, second):
        first.do(fill, "x", 4, 6, 1)
        second.do(fill, "x", 6, 8, 2)
        with pytest.raises(txstore.ConflictError, match="without knowing of each other") as caught:
            store.commit()
        assert caught.value.keys == ("x/c/1",)
    assert committed(repo) == [0] * 32


def test_halves_of_one_chunk_by_threads_of_many_processes_under_a_lock(repo, store):
    with members(store, 2) as crew:
        for number, member in enumerate(crew):
            member.begin(fill_by_threads, number)
        for member in crew:
            member.answer()
            member.leave()
    store.commit()
    assert committed(repo)[:4] == [1, 2, 3, 4]


def fill_by_threads(store: TxStore, number: int) -> None:
    def fill_one(element: int) -> None:
        locked(store, "x", np.s_[element : element + 1], fill, "x", element, element + 1, element + 1)

    threads = [threading.Thread(target=fill_one, args=(2 * number + i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)


def test_appends_by_siblings_conflict(repo, store):
    with members(store, 2) as (first, second):
        first.do(append, "x", 1)
        second.do(append, "x", 2)
        with pytest.raises(txstore.ConflictError) as caught:
            store.commit()
        assert "x/zarr.json" in caught.value.keys


def test_equal_appends_by_siblings_conflict_too(repo, store):
    with members(store, 2) as (first, second):
        first.do(append, "x", 1)
        second.do(append, "x", 1)
        with pytest.raises(txstore.ConflictError, match=r"x/zarr\.json"):
            store.commit()


def test_appends_under_a_lock(repo, store):
    with members(store, 2) as crew:
        for round_ in range(3):
            for number, member in enumerate(crew):
                member.do(locked, "x", txstore.APPEND, append, "x", 10 * round_ + number)
        for member in crew:
            member.leave()
    store.commit()
    assert committed(repo)[32:] == [0, 0, 1, 1, 10, 10, 11, 11, 20, 20, 21, 21]


def append_with_old_array(store: TxStore, path: str, pipe: Any) -> None:
    z = zarr.open_array(store, path=path)
    pipe.send("opened")
    assert pipe.poll(TIMEOUT)
    with store.lock(path, txstore.APPEND):
        z.append(np.full(2, 2, "i8"))


def test_an_array_that_was_opened_before_the_lock_does_not_lose_an_append(repo, store):
    mine, theirs = QUICK.Pipe()
    store.mapping.share()
    late = QUICK.Process(target=append_with_old_array, args=(store, "x", theirs), daemon=True)
    late.start()
    assert mine.poll(TIMEOUT)
    with members(store, 1) as (first,):
        first.do(locked, "x", txstore.APPEND, append, "x", 1)
        first.leave()
    mine.send("go on")
    late.join(TIMEOUT)
    with pytest.raises(txstore.ConflictError, match=r"x/zarr\.json"):
        store.commit()


# --- what is staged


def stage_by_threads(store: TxStore, name: str, count: int, size: int) -> None:
    def stage(thread: int) -> None:
        for i in range(count):
            store[f"{name}/{thread}/{i}"] = bytes([i % 256]) * size

    threads = [threading.Thread(target=stage, args=(thread,)) for thread in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)


@pytest.mark.parametrize(("count", "size"), [(4, BIG), (2000, 20), (50, 5000)])
def test_values_of_all_sizes_from_threads_of_children(repo, store, count, size):
    with members(store, 2) as crew:
        for number, member in enumerate(crew):
            member.begin(stage_by_threads, f"m{number}", count, size)
        stage_by_threads(store, "owner", count, size)
        for member in crew:
            member.answer()
        assert store["m1/2/1"] == bytes([1]) * size  # the owner reads what children have staged
        for member in crew:
            member.leave()
    store.commit()
    snapshot = repo.mapping()
    for name in ("m0", "m1", "owner"):
        assert len(list(snapshot.keys_below(name))) == 3 * count
        for thread in range(3):
            assert snapshot[f"{name}/{thread}/{count - 1}"] == bytes([(count - 1) % 256]) * size


def test_deletions_in_children_and_owner_take_turns(repo, store):
    for key in ("d/1", "d/2", "d/e/3", "f"):
        store[key] = b"owner"
    with members(store, 2) as (first, second):
        first.do(remove, "d/1")
        first.do(put, "g", b"first")
        assert get(store, "d/1") is None
        clear(store, "d/e")
        store["d/e/4"] = b"owner again"
        second.do(clear, "d")  # it has been told of nothing since it was started, but of what was there then
        with pytest.raises(txstore.ConflictError) as caught:
            store.commit()
        assert set(caught.value.keys) <= {"d/1", "d/2", "d/e/3", "d/e/4"}


def test_a_deletion_by_one_who_knows_all_deletes_all(repo, store):
    store["d/1"] = b"owner"
    with members(store, 2) as (first, second):
        second.do(put, "d/2", b"second")
        third = Member(store)
        third.do(clear, "d")
        third.leave()
        first.do(put, "e", b"first")
        clear(store, "e")
        store["e/1"] = b"owner"
        first.leave()
        second.leave()
    store.commit()
    assert [key for key in repo.mapping() if not key.startswith("x/")] == ["e", "e/1"]


def test_what_is_written_anew_below_a_deleted_path_is_kept(repo, store):
    # The one who writes has the lower number: its frames are read before those that it builds on.
    with members(store, 2) as (first, second):
        first.do(put, "other", b"1")
        second.do(put, "d/x", b"second")
        second.do(clear, "d")
        first.do(locked, "x", np.s_[0:1], put, "d/x", b"first")
        first.leave()
        second.leave()
    store.commit()
    assert repo.mapping()["d/x"] == b"first"


def create_node(store: TxStore, path: str, overwrite: bool) -> None:
    group = zarr.open_group(store, mode="a")
    node = group.create_group(path, overwrite=overwrite)
    node.create_array("y", shape=(4,), chunks=(2,), dtype="i8", overwrite=overwrite)
    node.attrs["by"] = path


@pytest.mark.parametrize("overwrite", [False, True])
def test_groups_and_attributes_in_children(repo, overwrite):
    with repo.transaction() as store:
        zarr.open_group(store, mode="w").attrs["by"] = "the owner"
        with members(store, 4) as crew:
            for number, member in enumerate(crew[:2]):
                member.begin(create_node, f"g{number}", overwrite)
            for member in crew[:2]:
                member.answer()
                member.leave()
            late = Member(store)
            late.do(fill, "g0/y", 0, 4, 5)  # below what a sibling has created, below what the owner has cleared
            late.leave()
    group = zarr.open_group(repo.snapshot(), mode="r")
    assert dict(group.attrs) == {"by": "the owner"}
    assert sorted(group.group_keys()) == ["g0", "g1"]
    assert group["g1"].attrs["by"] == "g1"
    assert group["g0/y"][:].tolist() == [5] * 4


def start_one_more(store: TxStore, key: str) -> None:
    child = Member(store, SPAWN)
    child.do(put, key, b"grandchild")
    assert child.do(get, "staged by its parent") == b"1"
    child.leave()


def test_a_child_of_a_child(repo, store):
    child = QUICK.Process(target=_serve_not_daemonic, args=(store,))
    child.start()
    child.join(TIMEOUT)
    assert child.exitcode == 0
    store.commit()
    assert repo.mapping()["below"] == b"grandchild"


def _serve_not_daemonic(store: TxStore) -> None:
    store["staged by its parent"] = b"1"
    start_one_more(store, "below")


def write_to(store: TxStore, key: str) -> None:
    store[key] = b"1"


def test_read_only_copies_see_what_is_staged_and_stage_nothing(repo, store):
    store["staged"] = b"1"
    with members(store.with_read_only(True), 1) as (reader,):
        assert reader.do(get, "staged") == b"1"
        with pytest.raises(ValueError, match="read-only"):
            reader.do(write_to, "key")
    assert store.changes()["set"] == ["staged"]
    store.commit()


# --- the lost


def fill_chunks(store: TxStore, start: int, stop: int, value: int, until: int | None = None) -> None:
    z = zarr.open_array(store, path="x")
    for chunk in range(start, stop if until is None else until):
        z[4 * chunk : 4 * chunk + 4] = value


@pytest.mark.parametrize("anew", ["by a child", "by the owner"])
def test_a_worker_of_eight_is_killed_half_way(repo, anew):
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=(8 * 16,), chunks=(4,), dtype="i8")
    store = repo.transaction()
    with members(store, 8) as crew:
        for number, member in enumerate(crew):
            member.begin(fill_chunks, 4 * number, 4 * number + 4, number + 1, 4 * number + 2 if number == 5 else None)
        for member in crew:
            member.answer()
        crew[5].kill()
        for member in crew[:5] + crew[6:]:
            member.leave()
    pid = crew[5].process.pid
    with pytest.raises(txstore.ParticipantLostError, match=f"process {pid} .* do that work again") as caught:
        store.commit()
    assert caught.value.keys == ("x/c/20", "x/c/21")
    assert len(list(repo.log())) == 1
    if anew == "by a child":
        with members(store, 1) as (again,):
            again.do(fill_chunks, 20, 24, 6)
            again.leave()
    else:
        fill_chunks(store, 20, 24, 6)
    store.commit()
    assert committed(repo) == [number // 16 + 1 for number in range(8 * 16)]


def test_what_was_lost_may_be_taken(repo, store):
    with members(store, 1) as (worker,):
        worker.do(fill_chunks, 0, 2, 1)
    with pytest.raises(txstore.ParticipantLostError, match="allow_lost"):
        store.commit()
    store.commit(allow_lost=True)
    assert committed(repo)[:12] == [1] * 8 + [0] * 4


def test_work_is_not_done_anew_on_top_of_what_was_lost(repo, store):
    with members(store, 2) as (worker, again):
        again.do(get, "x/zarr.json")
        worker.do(fill, "x", 0, 2, 7)  # half a chunk
        worker.kill()
        third = Member(store)
        third.do(fill, "x", 2, 4, 1)
        third.leave()
        again.leave()
    store.commit()
    assert committed(repo)[:4] == [0, 0, 1, 1]


def raise_half_way(store: TxStore) -> None:
    store["half"] = b"1"
    raise RuntimeError("half-way")


def exit_half_way(store: TxStore) -> None:
    store["half"] = b"1"
    sys.exit(3)


def leave_block_half_way(store: TxStore) -> None:
    with store:
        raise_half_way(store)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("how", [raise_half_way, exit_half_way, leave_block_half_way])
def test_a_process_that_breaks_off_has_not_done_its_work(repo, store, method, how):
    process = multiprocessing.get_context(method).Process(target=how, args=(store,), daemon=True)
    process.start()
    process.join(TIMEOUT)
    assert process.exitcode
    with pytest.raises(txstore.ParticipantLostError):
        store.commit()


def die_in_the_middle(store: TxStore, key: str, size: int) -> None:
    """Die when a part of the frame is written."""
    from txstore import storage

    def write_half(descriptor: int, offset: int, parts: Any) -> None:
        content = b"".join(parts)
        os.pwrite(descriptor, content[: len(content) // 2], offset)
        os.kill(os.getpid(), signal.SIGKILL)

    storage._write_fully = write_half
    store[key] = b"\1" * size


@pytest.mark.parametrize("size", [5000, BIG])
@pytest.mark.parametrize("before", ["nothing", "something", "a seal"])
def test_a_torn_last_frame_is_not_there_and_is_missed(repo, store, size, before):
    with members(store, 1) as (worker,):
        if before == "nothing":
            worker.do(get, "x/zarr.json")
            worker.do(join)
        else:
            worker.do(put, "whole", b"1")
        if before == "a seal":
            worker.do(seal)
        worker.begin(die_in_the_middle, "torn", size)
        worker.process.join(TIMEOUT)
        assert worker.process.exitcode == -signal.SIGKILL
    assert get(store, "torn") is None
    with pytest.raises(txstore.ParticipantLostError) as caught:
        store.commit()
    assert "torn" in caught.value.keys
    store["torn"] = b"again"
    store["whole"] = b"again"
    store.commit()
    assert repo.mapping()["torn"] == b"again"


def join(store: TxStore) -> None:
    store.mapping._staging.attach()


def test_a_torn_frame_over_one_that_was_seen_is_missed(repo, store):
    store["torn"] = b"the owner's"
    with members(store, 1) as (worker,):
        worker.begin(die_in_the_middle, "torn", BIG)
        worker.process.join(TIMEOUT)
    # Joining was torn: nobody knows what was lost. With one that has joined, it is known.
    with members(store, 1) as (worker,):
        worker.do(join)
        worker.begin(die_in_the_middle, "torn", BIG)
        worker.process.join(TIMEOUT)
    with pytest.raises(txstore.ParticipantLostError) as caught:
        store.commit()
    assert caught.value.keys == ("torn",)
    store.commit(allow_lost=True)
    assert repo.mapping()["torn"] == b"the owner's"


def stage_until_killed(store: TxStore, number: int, seed: int, pipe: Any) -> None:
    """Tell of each key when it is staged: what was told must be found, and all that is found must be whole."""
    rng = random.Random(seed)
    for i in range(100_000):
        size = rng.choice([1, 40, 3000, 200_000])
        store[f"{number}/{i}"] = bytes([i % 256]) * size
        pipe.send((i, size))


@pytest.mark.parametrize("seed", range(6))
def test_killed_at_any_point(repo, store, seed):
    rng = random.Random(seed)
    with ExitStack() as stack:
        pipes, processes = [], []
        for number in range(3):
            mine, theirs = QUICK.Pipe(duplex=False)
            process = QUICK.Process(target=stage_until_killed, args=(store, number, seed, theirs), daemon=True)
            process.start()
            stack.callback(process.join, TIMEOUT)
            stack.callback(process.kill)
            theirs.close()
            pipes.append(mine)
            processes.append(process)
        told: list[dict[int, int]] = [{} for _ in pipes]
        for number in rng.sample(range(3), 3):
            for _ in range(rng.randrange(1, 30)):
                assert pipes[number].poll(TIMEOUT)
                i, size = pipes[number].recv()
                told[number][i] = size
            time.sleep(rng.random() * 0.003)
            processes[number].kill()
            processes[number].join(TIMEOUT)
            told[number] |= received(pipes[number])
    with pytest.raises(txstore.ParticipantLostError):
        store.commit()
    store.commit(allow_lost=True)
    found = repo.mapping()
    for number in range(3):
        whole = [key for key in found if key.startswith(f"{number}/")]
        assert len(told[number]) <= len(whole) <= len(told[number]) + 1  # the last may have been staged, and not told
        for key in whole:
            i = int(key.partition("/")[2])
            assert found[key] == bytes([i % 256]) * len(found[key])
            assert len(found[key]) == told[number].get(i, len(found[key]))


def received(pipe: Any) -> dict[int, int]:
    """Return what is still in a pipe. A message that its sender died sending is none."""
    found = {}
    try:
        while pipe.poll(0):
            i, size = pipe.recv()
            found[i] = size
    except (EOFError, OSError, pickle.UnpicklingError):
        pass
    return found


# --- the end, while others write


def stage_until_refused(store: TxStore, number: int, pipe: Any) -> None:
    staged = 0
    try:
        for i in range(10_000_000):
            store[f"{number}/{i}"] = b"%d" % i
            staged = i + 1
            if i == 20:
                pipe.send("under way")
    except txstore.TransactionStateError as error:
        pipe.send((staged, error.state, str(error)))


def writers(store: TxStore, count: int, stack: ExitStack) -> list[Any]:
    pipes = []
    for number in range(count):
        mine, theirs = QUICK.Pipe(duplex=False)
        process = QUICK.Process(target=stage_until_refused, args=(store, number, theirs), daemon=True)
        process.start()
        stack.callback(process.join, TIMEOUT)
        stack.callback(process.kill)
        pipes.append(mine)
    for pipe in pipes:
        assert pipe.poll(TIMEOUT)
        pipe.recv()
    return pipes


def test_a_commit_while_children_write(repo, store):
    with ExitStack() as stack:
        pipes = writers(store, 2, stack)
        store.commit()
        found = repo.mapping()
        for number, pipe in enumerate(pipes):
            assert pipe.poll(TIMEOUT)
            staged, state, _ = pipe.recv()
            assert state in ("committing", "ended")
            keys = list(found.keys_below(str(number)))
            # Of the one that was refused, it is not said; all before it are there, and none after it.
            assert staged <= len(keys) <= staged + 1
            assert all(found[f"{number}/{i}"] == b"%d" % i for i in range(len(keys)))
    assert repo.verify().faults == []


def test_a_rollback_while_children_write(repo, store):
    with ExitStack() as stack:
        pipes = writers(store, 2, stack)
        store.rollback()
        for pipe in pipes:
            assert pipe.poll(TIMEOUT)
            assert pipe.recv()[1] in ("committing", "ended")
    assert len(list(repo.log())) == 1
    assert not os.listdir(Path(repo.url, ".staging"))


@pytest.mark.parametrize("call", ["file.sync", "lock", "link", "rename_noreplace"])
def test_what_comes_during_the_commit_is_not_a_part_of_it(repo, call):
    """A frame that is appended after the seal must not get into the run: it lies behind what the header says counts."""
    with repo.transaction() as store:
        store["a"] = b"1"
    watched = watch(repo)
    store = repo.transaction()
    store["owner"] = bytes(2 << 20)
    with members(store, 1) as (worker,):
        worker.do(put, "early", b"1")

        def write(*_: object) -> None:
            if store.mapping.state == "committing":
                with pytest.raises(txstore.TransactionStateError):
                    worker.do(put, "late", b"2")
                assert get(store, "late") is None
                watched.before.clear()

        def sealed(*arguments: object) -> None:
            if call == "rename_noreplace":
                watched.before["list"] = write
            else:
                watched.before[call] = write
            watched.after.clear()

        watched.after["rename_noreplace"] = sealed
        store.commit()
    assert sorted(repo.mapping()) == ["a", "early", "owner"]
    assert repo.verify().faults == []


def test_a_commit_that_conflicts_leaves_all_as_it_was(repo, store):
    with members(store, 1) as (worker,):
        worker.do(put, "key", b"1")
        with repo.transaction() as other:
            other["key"] = b"other"
        with pytest.raises(txstore.ConflictError, match="key"):
            store.commit()
        worker.do(put, "more", b"1")  # the transaction goes on
        assert get(store, "more") == b"1"
        assert not any(files for _, _, files in os.walk(Path(repo.url, "packs")))
    store.rollback()


def test_a_stopped_child_is_neither_waited_for_nor_lost(repo, store):
    with members(store, 1) as (worker,):
        worker.do(put, "before", b"1")
        os.kill(worker.process.pid, signal.SIGSTOP)
        try:
            worker.begin(put, "after", b"2")
            store.commit()
        finally:
            os.kill(worker.process.pid, signal.SIGCONT)
        with pytest.raises(txstore.TransactionStateError, match="has ended"):
            worker.answer()
        assert get(repo.snapshot(), "before") == b"1"
        assert get(repo.snapshot(), "after") is None


def test_the_child_can_end_nothing(repo, store):
    with members(store, 1) as (worker,):
        worker.do(put, "key", b"1")
        for end in (TxStore.commit, TxStore.rollback):
            with pytest.raises(txstore.TransactionStateError, match="by the process that began it: here, just return"):
                worker.do(end)
    store.commit(allow_lost=True)
    assert repo.mapping()["key"] == b"1"


# --- the owner dies


def own(url: str, pipe: Any) -> None:
    store = txstore.Repository(url).transaction()
    store["owner"] = b"1"
    pipe.send(store)
    pipe.recv()


def test_a_child_that_outlives_its_owner(repo, store):
    mine, theirs = SPAWN.Pipe()
    owner = SPAWN.Process(target=own, args=(repo.url, theirs), daemon=True)
    owner.start()
    assert mine.poll(TIMEOUT)
    inherited = mine.recv()
    inherited["child"] = b"1"
    assert inherited["owner"] == b"1"
    with members(inherited, 1) as (sibling,):
        sibling.do(put, "sibling", b"1")
        owner.kill()
        owner.join(TIMEOUT)
        with pytest.raises(txstore.TransactionStateError, match="began this transaction has died"):
            sibling.do(put, "late", b"1")
    with pytest.raises(txstore.TransactionStateError, match="began this transaction has died"):
        inherited["late"] = b"1"
    assert len(list(repo.log())) == 1
    store["new"] = b"1"
    store.commit()
    assert repo.mapping()["new"] == b"1"


def commit_with_a_signal(url: str, step: int) -> None:
    """Own a transaction, and be killed before the n-th thing that its commit does with the storage."""
    repo = txstore.Repository(url)
    steps = iter(range(step))

    def kill_at_last(*_: object) -> None:
        if next(steps, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    watched = watch(repo)
    store = repo.transaction()
    store["owner"] = b"%d" % step
    child = os.fork()
    if child == 0:
        store["child"] = b"%d" % step
        seal(store)
        os._exit(0)
    os.waitpid(child, 0)
    watched.before = BeforeEach(kill_at_last)
    store.commit()


def test_the_owner_is_killed_at_each_step_of_its_commit(repo):
    with repo.transaction() as store:
        store["owner"] = store["child"] = b"base"
    step, whole, none = 0, 0, 0
    while True:
        before = dict(repo.mapping())
        with forked(commit_with_a_signal, repo.url, step) as owner:
            status = status_of(owner)
        found = dict(txstore.Repository(repo.url).mapping())
        if found == before:
            none += 1
        else:
            assert found == {"owner": b"%d" % step, "child": b"%d" % step}
            whole += 1
        assert repo.verify().faults == []
        with txstore.Repository(repo.url).transaction() as store:  # and the next one is not disturbed
            store["owner"] = b"next"
        if not os.WIFSIGNALED(status):
            break
        step += 1
    assert whole > 1
    assert none > 10


class Crash(BaseException):
    """No `except Exception` hides it."""


@pytest.mark.parametrize("error", [Crash(), OSError(5, "the medium has failed")], ids=["crash", "error"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_fault_at_each_step_of_the_commit(open_repo, error, when):
    step = 0
    while True:
        repo = open_repo(f"{step}.tx")
        with repo.transaction() as store:
            store["owner"] = store["child"] = b"base"
        watched = watch(repo)
        store = repo.transaction()
        store["owner"] = b"1"
        with members(store, 1) as (worker,):
            worker.do(put, "child", b"1")
            worker.leave()
        steps = iter(range(step))

        def fail_once(*_: object, steps=steps, watched=watched) -> None:
            if next(steps, None) is None:
                watched.before, watched.after = {}, {}
                raise error

        setattr(watched, when, BeforeEach(fail_once))
        outcome = "committed"
        try:
            store.commit()
        except (Crash, OSError, txstore.CommitUnknownError) as raised:
            outcome = "unknown" if isinstance(raised, txstore.CommitUnknownError) else "failed"
        failed_at_all = not getattr(watched, when)
        found = dict(txstore.Repository(repo.url).mapping())
        assert found in ({"owner": b"1", "child": b"1"}, {"owner": b"base", "child": b"base"}), step
        if outcome == "committed":
            assert found["child"] == b"1", step
        if outcome == "failed" and isinstance(error, OSError):
            assert found["child"] == b"base", (step, watched.calls[-5:])
        assert repo.verify().faults == []
        store._session.end("the test is over") if outcome != "unknown" else None
        if not failed_at_all:
            break
        step += 1
    assert step > 10


# --- bad input


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_pickle_that_is_used_after_the_end(repo, store, end):
    store["key"] = b"1"
    with members(store, 2) as (early, late):
        early.do(put, "early", b"1")
        getattr(store, end)()
        for member in (early, late):
            with pytest.raises(txstore.TransactionStateError, match="this transaction has ended") as caught:
                member.do(put, "late", b"1")
            assert caught.value.state == "ended"
    assert ("early" in repo.mapping()) is (end == "commit")
    assert "late" not in repo.mapping()


def test_a_worker_that_sees_another_disk_at_the_same_path(repo, store, tmp_path):
    store["key"] = b"1"
    elsewhere = tmp_path / "elsewhere"
    with members(store, 2) as (first, second):
        os.rename(repo.url, elsewhere)
        with pytest.raises(txstore.RepositoryNotFoundError, match="is not there: does this process see the same disk"):
            first.do(put, "late", b"1")
        assert not os.path.exists(repo.url)
        with txstore.Repository(repo.url).transaction() as other:
            other["other"] = b"1"
        with pytest.raises(txstore.RepositoryNotFoundError, match="another repository .* see the same disk"):
            second.do(put, "late", b"1")
        assert dict(txstore.Repository(repo.url).mapping()) == {"other": b"1"}
        shutil.rmtree(repo.url)
        os.rename(elsewhere, repo.url)
    store.commit()
    assert repo.mapping()["key"] == b"1"

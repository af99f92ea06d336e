"""Processes that write the same arrays through locks: nothing is lost, nobody conflicts, nobody waits for ever.

TXSTORE_ROUNDS says how many writes each process does in the first test; in the others it is half as many.
"""

import os
import signal
from collections import defaultdict
from contextlib import contextmanager

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.commits import commit, create_array
from tests.tools.workers import SPAWN, TIMEOUT, Worker, ended, run_together
from txstore import synchronized
from txstore.transactions.regions import METADATA

pytestmark = pytest.mark.long

MANY = int(os.environ.get("TXSTORE_ROUNDS", "40"))
ROUNDS = MANY // 2
LOCK_TIMEOUT = TIMEOUT


class Counted(txstore.Repository):
    """Counts the transactions that were begun: with locks, none is begun again because of a conflict."""

    begun = 0

    def transaction(self, *arguments, **more):
        self.begun += 1
        return super().transaction(*arguments, **more)


def open_x(store, path="x"):
    return zarr.open_array(store, path=path, mode="r+")


# --- elements of shared chunks
def increment(barrier, url, place: int) -> int:
    repo = Counted(url)
    a = synchronized(repo, "x", lock_timeout=LOCK_TIMEOUT)
    barrier.wait()
    for _ in range(MANY):
        a[place] = a[place] + 1
    return repo.begun


@pytest.mark.parametrize(("processes", "shards"), [(8, None), (3, (4,))])
def test_every_increment_of_elements_that_share_chunks(repo, processes, shards):
    """Each process has an element of its own; all chunks are shared."""
    with repo.transaction() as store:
        chunks = (2,) if shards else (4,)
        zarr.create_array(store, name="x", shape=(processes,), chunks=chunks, shards=shards, dtype="i8")
    begun = run_together(increment, *((repo.url, place) for place in range(processes)))
    assert zarr.open_array(repo.snapshot(), path="x", mode="r")[:].tolist() == [MANY] * processes
    assert repo.head().version == processes * MANY
    assert begun == [MANY] * processes


# --- appending
def block(process: int, number: int) -> np.ndarray:
    """Rows that say whose they are: process, number of the block, place in it. Of 1 to 7 rows."""
    length = 1 + (process + number) % 7
    return np.column_stack([np.full(length, process), np.full(length, number), np.arange(length)])


def blocks_of(rows: np.ndarray) -> list[tuple[int, int]]:
    """Return process and number of each block, in order; each is whole, and its rows stand together."""
    found = []
    while len(rows):
        process, number = int(rows[0, 0]), int(rows[0, 1])
        expected = block(process, number)
        assert rows[: len(expected)].tolist() == expected.tolist()
        found.append((process, number))
        rows = rows[len(expected) :]
    return found


def numbers_of_each(found: list[tuple[int, int]]) -> dict[int, list[int]]:
    numbers = defaultdict(list)
    for process, number in found:
        numbers[process].append(number)
    return dict(numbers)


# --- creating
def create_arrays(barrier, url, process: int) -> int:
    repo = Counted(url)
    g = synchronized(repo, lock_timeout=LOCK_TIMEOUT)
    won = 0
    barrier.wait()
    for number in range(ROUNDS // 2):
        g.require_group("shared").attrs[f"{process}/{number}"] = number
        g.create_array(f"own {process}/{number}", data=np.full(3, number))
        try:
            g.create_array(f"shared/{number}", data=np.full(3, process))
            won += 1
        except ValueError:
            assert g[f"shared/{number}"].shape == (3,)
    return won


def test_processes_that_create(repo):
    commit(repo, zarr.create_group)
    won = run_together(create_arrays, *((repo.url, process) for process in range(3)))
    rounds = ROUNDS // 2
    assert sum(won) == rounds
    g = synchronized(repo)
    assert len(dict(g["shared"].arrays())) == rounds
    assert g["shared"].attrs == {f"{p}/{n}": n for p in range(3) for n in range(rounds)}
    for process in range(3):
        for number in range(rounds):
            assert g[f"own {process}/{number}"][:].tolist() == [number] * 3


# --- holders that die or stop
def hold(url, lock, held) -> None:
    with txstore.Repository(url).transaction(lock=lock) as store:
        x = open_x(store)
        x[0] = 99  # is staged, and lost with the process
        held.set()
        signal.pause()


@contextmanager
def a_holder(repo, lock):
    held = SPAWN.Event()
    worker = Worker(hold, repo.url, lock, held)
    with ended(worker):
        assert held.wait(TIMEOUT)
        yield worker


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no such signals here")
@pytest.mark.parametrize("lock", [{"x": 0}, {"x": METADATA}, ["x"]])
def test_the_locks_of_a_killed_process_are_free(repo, lock):
    create_array(repo, "x", data=np.zeros(8), chunks=(4,))
    a = synchronized(repo, "x", lock_timeout=0)

    def write():
        if lock == {"x": METADATA}:
            a.attrs["a"] = 1
        else:
            a[1] = 1

    with a_holder(repo, lock) as worker:
        with pytest.raises(txstore.errors.LockTimeoutError):
            write()
        os.kill(worker.process.pid, signal.SIGSTOP)
        with pytest.raises(txstore.errors.LockTimeoutError):
            write()
        worker.process.kill()
        worker.process.join(TIMEOUT)
        write()
    assert a[0] == 0
    a[...] = 5
    assert a[:].tolist() == [5] * 8


def write_until_killed(url, process: int, acknowledge) -> None:
    rows = synchronized(txstore.Repository(url), "rows", lock_timeout=LOCK_TIMEOUT)
    for number in range(1 << 30):
        rows.append(block(process, number))
        acknowledge.send(number)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signals here")
def test_appenders_that_are_killed(repo):
    """What was acknowledged is there, whole and once; one append more may be; the others go on."""
    create_array(repo, "rows", shape=(0, 3), chunks=(5, 2), dtype="i8")
    acknowledged, processes = {}, 6
    pipes = [SPAWN.Pipe(duplex=False) for _ in range(processes)]
    workers = []
    for process, (_, writing) in enumerate(pipes):
        worker = SPAWN.Process(target=write_until_killed, args=(repo.url, process, writing), daemon=True)
        worker.start()
        writing.close()
        workers.append(worker)
    try:
        for process, (reading, _) in enumerate(pipes):
            for _ in range(1 + process):  # killed at different times, while the others write
                assert reading.poll(TIMEOUT), "the appender does not get on"
                acknowledged[process] = reading.recv()
            workers[process].kill()
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    for process, (reading, _) in enumerate(pipes):
        try:
            while True:
                acknowledged[process] = reading.recv()
        except EOFError:
            reading.close()
    found = numbers_of_each(blocks_of(zarr.open_array(repo.snapshot(), path="rows", mode="r")[:]))
    for process in range(processes):
        assert found[process] == list(range(len(found[process])))
        assert len(found[process]) - 1 in (acknowledged[process], acknowledged[process] + 1)
    synchronized(repo, "rows", lock_timeout=LOCK_TIMEOUT).append(block(0, 0))

"""I8: what a process has staged that died before it was done is missed at the commit, until it was done again.

Between two operations it has to be in a `with` block for that: see `test_operations`.
"""

import multiprocessing
import os
import pickle
import random
import signal
import sys
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.members import committed, enter, get, join, locked, members, put, seal
from tests.tools.workers import QUICK, TIMEOUT
from txstore.store import TxStore

pytestmark = pytest.mark.long

METHODS = ["spawn", "forkserver", "fork"]
BIG = 3 << 20


def fill_chunks(store: TxStore, start: int, stop: int, value: int, until: int | None = None) -> None:
    z = zarr.open_array(store, path="x")
    for chunk in range(start, stop if until is None else until):
        z[4 * chunk : 4 * chunk + 4] = value


def fill_in_block(store: TxStore, start: int, stop: int, value: int) -> None:
    with store:
        fill_chunks(store, start, stop, value)


@pytest.mark.parametrize("work", [fill_chunks, fill_in_block], ids=["operations", "blocks"])
def test_what_a_process_had_done_before_counts(repo, store, work):
    """A worker of Dask or Ray does one task after another: only that is repeated in which it was killed."""
    with members(store, 1) as (worker,):
        worker.do(work, 0, 2, 1)
        worker.do(work, 2, 3, 1)
        if work is fill_in_block:
            worker.do(enter)
            worker.do(fill_chunks, 3, 5, 1, 4)
            worker.kill()
        else:
            worker.begin(die_in_the_middle, "x/c/3", BIG)
            worker.process.join(TIMEOUT)
    with pytest.raises(txstore.ParticipantLostError) as caught:
        store.commit()
    assert caught.value.keys == ("x/c/3",)
    with members(store, 1) as (again,):
        assert again.do(get, "x/c/0") == store["x/c/0"] != bytes(32)
        again.do(fill_chunks, 3, 5, 2)
        again.leave()
    store.commit()
    assert committed(repo) == [1] * 12 + [2] * 8 + [0] * 12


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
    from txstore.storage import local as storage

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


def stage_until_killed(store: TxStore, number: int, seed: int, pipe: Any) -> None:
    """Tell of each key when it is staged: what was told must be found, and all that is found must be whole."""
    rng = random.Random(seed)
    with store:
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


def put_at(store: TxStore, selection: Any, value: int) -> None:
    zarr.open_array(store, path="y").oindex[selection] = value


MASK = np.arange(64) % 5 == 1


@pytest.mark.parametrize(
    ("lost", "other", "again"),
    [
        (np.s_[1:9:2], np.s_[0:10:2], np.s_[1:9:2]),
        (np.s_[3:4], np.s_[::2], np.s_[3:4]),
        (np.arange(1, 30, 3), np.arange(0, 33, 3), np.arange(1, 30, 3)),
        (MASK, ~MASK, MASK),
        (np.s_[1:63:2], np.s_[::2], np.s_[1:63]),  # too many to be told apart
    ],
    ids=["few", "one", "indices", "mask", "many"],
)
def test_elements_here_and_there_are_not_done_again_by_who_writes_others(repo, store, lost, other, again):
    """Before, between and behind them."""
    zarr.create_array(store, name="y", data=np.zeros(64, "i8"), chunks=(64,))
    expected = np.zeros(64, "i8")
    expected[other] = expected[again] = 1
    with members(store, 2) as (worker, another):
        worker.do(enter)
        worker.do(put_at, lost, 1)
        worker.kill()
        another.do(put_at, other, 1)
        with pytest.raises(txstore.ParticipantLostError) as caught:
            store.commit()
        assert caught.value.keys == ("y/c/0",)
        another.do(put_at, again, 1)
    store.commit()
    assert committed(repo, "y") == expected.tolist()


def append_half(store: TxStore, value: int) -> None:
    """Die when the document is staged, with its new shape, and none of the new rows."""
    z = zarr.open_array(store, path="x")
    for name in ("stage_part", "stage_batch"):
        setattr(store.mapping.staging, name, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    z.append(np.full(4, value))


def append_whole(store: TxStore, value: int) -> None:
    zarr.open_array(store, path="x").append(np.full(4, value))


def set_attribute(store: TxStore, value: int) -> None:
    zarr.open_array(store, path="x").attrs["a"] = value


def resize(store: TxStore, *shape: int) -> None:
    zarr.open_array(store, path="x").resize(shape)


@pytest.mark.parametrize("name", [None, "job"])
@pytest.mark.parametrize("then", [(append_whole, 2), (set_attribute, 2)], ids=["append", "attributes"])
def test_who_goes_on_after_a_half_append_does_not_hide_it(repo, then, name):
    """Where it is resumed, the rows in between would be fill values. Else it is not there, or is done again."""
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.zeros(32, "i8"), chunks=(4,))
    store = repo.transaction(name=name)
    with members(store, 3) as (before, worker, other):
        before.do(locked, "x", txstore.APPEND, append_whole, 1)
        before.leave()
        worker.begin(locked, "x", txstore.APPEND, append_half, 3)
        worker.process.join(TIMEOUT)
        other.do(locked, "x", txstore.APPEND, *then)
        other.leave()
    is_again = name is None and then[0] is append_whole
    if not is_again:
        with pytest.raises(txstore.ParticipantLostError) as caught:
            store.commit()
        assert "x/zarr.json" in caught.value.keys
    store.commit(allow_lost=True)
    rows = [2] * 4 if is_again else [] if name is None else [0] * 4 + [2] * 4
    assert committed(repo)[32:] == [1] * 4 + rows[: 4 if then[0] is set_attribute else None]


@pytest.mark.parametrize("lost", [(set_attribute, 1), (resize, 36)], ids=["attributes", "resize"])
def test_what_is_done_again_in_a_document_is_not_lost(repo, store, lost):
    """Also where the one that died had changed its shape before, in a block that it had left."""
    with members(store, 2) as (worker, other):
        worker.do(locked, "x", txstore.APPEND, append_whole, 1)
        worker.do(enter)
        worker.do(locked, "x", txstore.METADATA, *lost)
        worker.kill()
        other.do(locked, "x", txstore.METADATA, *lost)
        other.leave()
    store.commit()
    assert committed(repo)[32:] == [1] * 4

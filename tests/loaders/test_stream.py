"""The order of samples, shards, resuming, reading ahead: without any framework."""

import gc
import json
import os
import threading
import tracemalloc

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import txstore
from tests.loaders.training_data import COUNT, WINDOW, numbers_of, write
from tests.system.processes.test_descriptors import AT_MOST, held
from txstore.loaders import Samples, SampleStream
from txstore.loaders.reading import Order

pytestmark = pytest.mark.long


@given(
    samples=st.integers(0, 300),
    block=st.integers(1, 40),
    window=st.integers(1, 12),
    shuffle=st.booleans(),
    shards=st.integers(1, 9),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**40),
)
def test_shards_are_all_samples_each_once(samples, block, window, shuffle, shards, seed, epoch):
    order = Order(samples, block, window, shuffle, seed)
    found = []
    for shard in range(shards):
        mine = []
        for one in order.windows(epoch, shard, shards):
            places = np.full(one.length, -1)
            for (start, stop), where in zip(one.blocks, one.places, strict=True):
                assert start % block == 0
                places[where] = np.arange(start, stop)
            assert len(one.blocks) <= window
            mine += places.tolist()
        assert len(mine) == order.length(epoch, shard, shards)
        found += mine
    assert sorted(found) == list(range(samples))


def test_the_order_is_of_seed_and_epoch_alone(samples):
    def order(seed, epoch, batch_size=None):
        stream = SampleStream(samples, seed=seed, window=WINDOW, batch_size=batch_size)
        stream.set_epoch(epoch)
        return numbers_of(stream)

    assert order(1, 0) == order(1, 0) == order(1, 0, batch_size=10)
    assert len({tuple(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4


def test_the_order_stays_the_same_for_ever():
    # What was saved in mid-epoch is resumed by another version, and with another numpy.
    windows = list(Order(6, 2, 2, True, 5).windows(3, 0, 1))
    assert [one.blocks for one in windows] == [((0, 2), (2, 4)), ((4, 6),)]
    assert [[place.tolist() for place in one.places] for one in windows] == [[[2, 1], [0, 3]], [[0, 1]]]


def test_neighbours_are_parted(samples):
    numbers = np.array(numbers_of(SampleStream(samples, window=1 << 20)))
    assert np.abs(np.diff(numbers)).mean() > COUNT / 5  # a third, of a full shuffle
    mixed = np.array(numbers_of(SampleStream(samples, window=WINDOW))[:32]) // 8
    assert len(set(mixed.tolist())) in (4, 5)  # chunks in a window; the short one is of 3
    assert len(set(mixed[:8].tolist())) > 1


def test_without_shuffling_they_come_as_they_are_stored(samples):
    assert numbers_of(SampleStream(samples, shuffle=False, window=WINDOW, batch_size=9)) == list(range(COUNT))


def test_each_chunk_is_read_once_an_epoch(samples, monkeypatch):
    store = samples.arrays["x"].store
    read = []
    get = type(store).get

    async def counted(self, key, *arguments, **options):
        read.append(key)
        return await get(self, key, *arguments, **options)

    monkeypatch.setattr(type(store), "get", counted)
    for shard in range(3):
        numbers_of(SampleStream(samples, window=WINDOW, num_shards=3, shard_index=shard, batch_size=5))
    assert len(read) == len(set(read)) == 2 * -(-COUNT // 8)


@pytest.mark.parametrize(
    "options",
    [
        {"chunks": (8, 5, 7)},
        {"chunks": (8, 2, 3)},
        {"chunks": (4, 2, 4), "shards": (8, 4, 8)},
        {"chunks": (16, 5, 2), "fill_value": 7},
        {"chunks": (8, 5, 2), "zarr_format": 2, "order": "F"},
        {"chunks": (8, 5, 2), "dtype": ">i2"},
        {"chunks": (8, 5, 2), "dtype": "U3"},
        {"chunks": (1, 1, 1), "compressors": None},
    ],
)
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_arrays_of_every_layout(repo, options, shuffle):
    numbers = np.arange(43)
    values = (np.arange(43 * 35).reshape(43, 5, 7) % 251).astype("i4")
    with repo.transaction() as store:
        z = zarr.create_array(store, name="z", shape=values.shape, **{"dtype": "i4", **options})
        z[:30] = values[:30].astype(z.dtype)  # the rest is not stored
        zarr.create_array(store, name="y", data=numbers, chunks=(8,))
    stored = zarr.open_array(repo.snapshot(), path="z", mode="r")[:]
    batches = list(SampleStream(Samples(repo, ["y", "z"]), window=4000, shuffle=shuffle, batch_size=6))
    y, z = (np.concatenate([batch[name] for batch in batches]) for name in ("y", "z"))
    assert sorted(y.tolist()) == numbers.tolist()
    np.testing.assert_array_equal(z, stored[y])


@pytest.mark.parametrize("batch_size", [None, 7])
@pytest.mark.parametrize("shuffle", [True, False])
def test_resumed_anywhere_it_goes_on_with_the_next_sample(samples, batch_size, shuffle):
    def stream():
        return SampleStream(samples, window=WINDOW, shuffle=shuffle, batch_size=batch_size, num_shards=2, shard_index=1)

    first = stream()
    first.set_epoch(4)
    whole = numbers_of(first)
    for taken in (0, 1, 5, 13, len(whole)):
        interrupted = stream()
        interrupted.set_epoch(4)
        items = iter(interrupted)
        before = numbers_of(next(items) for _ in range(min(taken, len(whole) // (batch_size or 1))))
        state = json.loads(json.dumps(interrupted.state_dict()))
        items.close()
        resumed = stream()
        resumed.load_state_dict(state)
        assert resumed.epoch == 4
        assert before + numbers_of(resumed) == whole
        assert numbers_of(resumed) == whole, "the next time from the beginning"
        resumed.load_state_dict(state)
        resumed.set_epoch(5)
        assert len(numbers_of(resumed)) == len(whole)


def test_a_state_that_does_not_fit_is_refused(samples, repo):
    stream = SampleStream(samples, window=WINDOW, num_shards=2)
    next(iter(stream))
    state = stream.state_dict()
    write(repo, COUNT)
    with pytest.raises(ValueError, match=f"at='{samples.commit.id}'"):
        SampleStream(Samples(repo, ["x", "y"])).load_state_dict(state)
    with pytest.raises(ValueError, match="seed 0 is 3 now; use what"):
        SampleStream(samples, window=WINDOW, seed=3).load_state_dict(state)
    for index, count in ((1, 2), (0, 3)):
        other = SampleStream(samples, window=WINDOW, num_shards=count, shard_index=index)
        other.load_state_dict(state)
        with pytest.raises(ValueError, match=f"shard {index} of {count}.*as many ranks"):
            iter(other)


@pytest.mark.parametrize(
    "wrong", [{"batch_size": 0}, {"window": 0}, {"seed": -1}, {"num_shards": 2, "shard_index": 2}, {"num_shards": 0}]
)
def test_what_makes_no_sense_is_refused(samples, wrong):
    with pytest.raises(ValueError):
        SampleStream(samples, **wrong)
    with pytest.raises(ValueError):
        SampleStream(samples).set_epoch(-1)


def test_what_reading_raises_reaches_the_loop_and_leaves_no_thread(samples, repo):
    before = threads_that_read()
    with repo.transaction() as store:
        store["y/c/20"] = b"this is no chunk"
    items = iter(SampleStream(Samples(repo, ["x", "y"]), window=WINDOW))
    with pytest.raises(Exception, match=r"(?i)zstd|decompress|invalid"):
        numbers_of(items)
    items = iter(SampleStream(samples, window=WINDOW))
    next(items)
    del items
    gc.collect()
    assert threads_that_read() <= before


def threads_that_read() -> set[threading.Thread]:
    """Of all iterations. (zarr may start threads of its own at any time.)"""
    return {thread for thread in threading.enumerate() if thread.name.startswith("txstore ")}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_is_forked_in_mid_epoch_iterates_and_the_parent_goes_on(samples):
    stream = SampleStream(samples, window=WINDOW)
    items = iter(stream)
    before = [next(items) for _ in range(3)]
    child = os.fork()
    if not child:
        try:
            found = sorted(numbers_of(stream)) == list(range(COUNT))
            items.close()  # it would stop the parent's
            del items
            gc.collect()
            os._exit(0 if found else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert sorted(numbers_of(before) + numbers_of(items)) == list(range(COUNT))


def test_memory_is_bounded_by_the_window(repo):
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.ones((512, 64 << 10), "u1"), chunks=(4, 64 << 10))
    window = 1 << 20
    samples = Samples(repo, "x")
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        assert sum(len(batch["x"]) for batch in SampleStream(samples, window=window, batch_size=8)) == 512
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most - before < 6 * window  # of 32


def test_a_thousand_arrays(repo, tmp_path):
    names = [f"feature{n:04}" for n in range(1000)]
    document = {
        "zarr_format": 3, "node_type": "array", "shape": [40], "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "fill_value": 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], "attributes": {},
    }  # fmt: skip
    with repo.transaction() as store:
        for number, name in enumerate(names):
            store[f"{name}/zarr.json"] = json.dumps(document).encode()
            for chunk in range(10):
                values = np.arange(4 * chunk, 4 * chunk + 4) + 1000 * number
                store[f"{name}/c/{chunk}"] = values.astype("<i4").tobytes()
    samples = Samples(repo, names)
    found = []
    for batch in SampleStream(samples, batch_size=8, window=64 << 10):
        assert not os.path.isdir("/proc/self/fd") or len(held(repo.url)) <= AT_MOST
        rows = np.stack([batch[name] for name in names])
        np.testing.assert_array_equal(rows - rows[0], np.arange(1000)[:, None] * 1000 + np.zeros(8, int))
        found += rows[0].tolist()
    assert sorted(found) == list(range(40))
    assert txstore.Repository(repo.url).verify().faults == []

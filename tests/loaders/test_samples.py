"""What samples are of: one commit, and arrays that fit together."""

import asyncio
import json
import pickle
import subprocess
import sys
import time

import numpy as np
import pytest
import zarr

import txstore
from tests.loaders.training_data import numbers_of, write
from tests.tools.waiting import TIMEOUT
from txstore.loaders import Field, Samples, SampleStream
from txstore.loaders.reading import CachedSamples


def test_what_does_not_fit_is_said_at_construction_all_of_it(repo):
    write(repo, 20)
    with repo.transaction() as store:
        zarr.create_array(store, name="short", data=np.arange(7), chunks=(7,))
    with pytest.raises(txstore.SchemaError) as caught:
        Samples(
            repo,
            {"x": "x", "label": "short", "gone": "no/such"},
            expect={"x": ("f8", (3,)), "z": ("i4", ()), "gone": ("i4", ())},
        )
    assert len(caught.value.faults) == 4
    for part in ("'no/such'", "'x' has 20", "'label' has 7", "float64", "'z' is expected"):
        assert part in str(caught.value)


def test_what_has_no_samples(repo):
    with repo.transaction() as store:
        zarr.create_group(store, path="g")
        zarr.create_array(store, name="scalar", data=np.array(3.0))
    for path, words in (("scalar", "no dimension"), ("g", "no array at 'g'")):
        with pytest.raises(txstore.SchemaError, match=words):
            Samples(repo, [path])
    with pytest.raises(ValueError, match="at least one array"):
        Samples(repo, [])


@pytest.mark.parametrize(
    ("shape", "chunks", "reason"),
    [
        ((10**15,), (1,), "read 1 at a time, are more than 134217728 blocks"),
        ((10**15,), (10**6,), "more than 134217728 blocks"),
        ((4, 10**8, 10**8), (1, 1, 1), "which is 80000000000000000 bytes"),
        ((1 << 62, 3), (1 << 61, 3), "must be read at once"),
        ((10, 10**9), (1, 1), "lie in 1000000000 chunks"),
        ((1 << 63,), (1,), "more samples than can be counted"),
    ],
)
def test_samples_beyond_what_can_be_put_in_order(repo, shape, chunks, reason):
    """How many there are is what a document says, which anybody writes: it was a MemoryError, or an OverflowError."""
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=(4,) * len(shape), chunks=(2,) * len(shape), dtype="i8")
        document = json.loads(store["x/zarr.json"])
        document["shape"] = shape
        document["chunk_grid"]["configuration"]["chunk_shape"] = chunks
        store["x/zarr.json"] = json.dumps(document).encode()
    for use in (lambda samples: SampleStream(samples, seed=1), lambda samples: CachedSamples(samples, 1 << 20)):
        with pytest.raises(txstore.SchemaError, match=reason):
            use(Samples(repo, "x"))


def test_the_schema_of_one_commit_is_what_the_next_one_has_to_be(repo):
    write(repo, 20)
    schema = Samples(repo, ["x", "y"]).schema
    assert schema == {"x": Field(np.dtype("f4"), (3,)), "y": Field(np.dtype("i8"), ())}
    write(repo, 40)
    assert len(Samples(repo, ["x", "y"], expect=schema)) == 40


def test_the_commit_is_found_once_and_handed_on(repo):
    first = write(repo, 24)
    samples = Samples(repo, ["x", "y"])
    write(repo, 16, generation=1)
    again = pickle.loads(pickle.dumps(samples))
    for one in (samples, again, Samples(repo.url, ["x", "y"], at=samples.commit.id)):
        assert one.commit.id == first.id
        assert sorted(numbers_of(SampleStream(one))) == list(range(24))
    assert len(Samples(repo, ["x"])) == 16


def test_a_commit_that_a_vacuum_gave_up_is_an_error_and_no_missing_chunk(repo):
    write(repo, 24)
    pickled = pickle.dumps(Samples(repo, ["x", "y"]))
    for generation in range(3):
        write(repo, 24, generation=generation)
    repo.vacuum(keep=1)
    with pytest.raises(txstore.SnapshotExpiredError):
        next(iter(SampleStream(pickle.loads(pickled))))


def test_blocks_end_where_chunks_of_all_arrays_do(repo):
    with repo.transaction() as store:
        zarr.create_array(store, name="a", shape=(100, 10), dtype="f4", chunks=(4, 10))
        zarr.create_array(store, name="b", shape=(100,), dtype="i8", chunks=(6,))
        zarr.create_array(store, name="c", shape=(100,), dtype="i8", chunks=(50,))
        zarr.create_array(store, name="d", shape=(100, 10), dtype="f4", chunks=(2, 10), shards=(10, 10))
    assert Samples(repo, ["a", "b"]).block_length(10_000) == 12
    assert Samples(repo, ["a", "c"]).block_length(10_000) == 100
    assert Samples(repo, ["a", "c"]).block_length(1_000) == 4  # that of the larger samples
    assert Samples(repo, "d").block_length(1_000) == 10
    assert Samples(repo, "d").block_length(200) == 2
    assert sorted(SampleStream(Samples(repo, ["a", "c"]), window=1_000).order.as_dict()) == [
        "block", "samples", "seed", "shuffle", "window",
    ]  # fmt: skip


def test_samples_by_their_number(repo):
    write(repo, 50)
    cached = CachedSamples(Samples(repo, ["x", "y"]), 400)
    assert numbers_of(cached.take([49, 3, -1, 3, 17])) == [49, 3, 49, 3, 17]
    taken = cached.take([3])[0]
    taken["x"][:] = 7  # its own
    assert numbers_of(cached.take([3])) == [3]
    again = pickle.loads(pickle.dumps(cached))
    assert numbers_of(again.take(range(50))) == list(range(50))
    with pytest.raises(IndexError, match="no sample 50"):
        cached.take([50])


def test_many_arrays_are_opened_together_and_so_are_their_chunks(repo, monkeypatch):
    names = [f"x{n}" for n in range(20)]
    with repo.transaction() as store:
        for name in names:
            zarr.create_array(store, name=name, data=np.arange(8), chunks=(4,))
    under_way, most, deadline = 0, 0, time.monotonic() + TIMEOUT
    get = txstore.TxStore.get

    async def slow(self, key, *arguments, **options):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        while most < len(names) and time.monotonic() < deadline:  # an object store takes its time
            await asyncio.sleep(0.001)
        under_way -= 1
        return await get(self, key, *arguments, **options)

    monkeypatch.setattr(txstore.TxStore, "get", slow)
    samples = Samples(repo, names)
    assert most >= len(names)
    most = 0
    assert {int(value) for value in CachedSamples(samples).take([5])[0].values()} == {5}
    assert most >= len(names)


def test_no_framework_is_imported_before_it_is_asked_for():
    code = "import sys, txstore.loaders as loaders; print(sorted({'torch', 'tensorflow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

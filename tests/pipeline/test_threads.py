"""Threads that write parts of the same chunks through one store, or one array, lose nothing; an operation is whole."""

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.pipeline.tiles import SIZE, THREADS, tiles, values
from txstore.codecs.part_codec import PartCodec

KINDS: dict[str, dict[str, Any]] = {
    "raw": {"compressors": None},
    "zstd": {},
    "gzip": {"compressors": [zarr.codecs.GzipCodec()]},
    "shards": {"shards": (16, 16), "chunks": (4, 4)},
    "format 2": {"zarr_format": 2},
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[txstore.TxStore]:
    store = txstore.TxStore(tmp_path / "data.tx", durability="none")
    yield store
    store.rollback()


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [True, False], ids=["one array object", "one for each thread"])
def test_unaligned_tiles(store: txstore.TxStore, kind: str, shared: bool) -> None:
    options = {"chunks": (8, 8), **KINDS[kind]}
    z = zarr.create_array(store, name="x", shape=(SIZE, SIZE), dtype="i4", **options)
    for seed in range(8):
        rng = random.Random(seed)
        expected = values(seed)

        def write(tile: Any, expected: Any = expected) -> None:
            array = z if shared else zarr.open_array(store, path="x")
            array[tile] = expected[tile]

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(write, tiles(rng)))
        assert (z[...] == expected).all()
        store.commit()
        assert (zarr.open_array(store, path="x")[...] == expected).all()


def test_whole_chunks_and_parts_of_them(store: txstore.TxStore) -> None:
    """A part is written on what is there, and not on what was there before somebody wrote the whole."""
    z = zarr.create_array(store, name="x", shape=(64,), chunks=(8,), dtype="i4")
    for turn in range(1, 30):

        def whole(turn: int = turn) -> None:
            z[...] = turn

        def parts(turn: int = turn) -> None:
            z[4:60] = -turn

        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(whole), pool.submit(parts)]:
                done.result()
        found = z[...]
        assert set(found[:4]) | set(found[60:]) == {turn}
        assert set(found[4:60]) <= {turn, -turn}


def _fails_at(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    calls = iter(range(1000))
    real: Callable[..., Any] = PartCodec.encode

    def encode(self: PartCodec, array: Any) -> Any:
        if next(calls) == count:
            raise ZeroDivisionError
        return real(self, array)

    monkeypatch.setattr(PartCodec, "encode", encode)


def test_a_operation_that_has_staged_nothing_can_be_tried_again(store, monkeypatch):
    z = zarr.create_array(store, name="x", shape=(8,), chunks=(8,), dtype="i4")
    _fails_at(monkeypatch, 0)
    with pytest.raises(ZeroDivisionError):
        z[2:3] = 7
    z[2:3] = 7
    store.commit()
    assert z[...].tolist() == [0, 0, 7, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("kind", ["raw", "format 2", "a key"])
def test_an_array_that_another_thread_changes_while_it_is_written(tmp_path: Path, kind: str) -> None:
    """The values may be of two moments, as with plain Zarr; what is committed can be read."""
    repo = txstore.Repository(tmp_path / "data.tx")
    array, over = np.ones(4 << 20, "u1"), threading.Event()

    def change() -> None:
        for number in itertools.count():
            if over.is_set():
                return
            array.fill(number % 255 + 1)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        with repo.transaction() as store:
            for number in range(10):
                if kind == "a key":
                    store.mapping[f"{number}"] = array
                else:
                    z = zarr.create_array(store, name=f"{number}", shape=array.shape, chunks=(1 << 20,), dtype="u1",
                                          compressors=None, zarr_format=2 if kind == "format 2" else 3)  # fmt: skip
                    z[:] = array
    finally:
        over.set()
        thread.join()
    assert repo.verify().faults == []

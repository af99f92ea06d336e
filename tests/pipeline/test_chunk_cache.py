"""Reads through the cache of decoded chunks: the same elements, of each snapshot its own, in bounded memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from txstore.codecs.chunk_cache import ChunkCache, parse_size

SHAPE = (37, 53)  # the last chunks reach beyond the array
ARRAYS: dict[str, dict[str, Any]] = {
    "raw": {"chunks": (5, 7), "compressors": None},
    "zstd": {"chunks": (5, 7)},
    "gzip": {"chunks": (5, 7), "compressors": zarr.codecs.GzipCodec()},
    "transposed": {"chunks": (5, 7), "filters": [zarr.codecs.TransposeCodec(order=(1, 0))]},
    "shards": {"chunks": (5, 7), "shards": (10, 21)},
    "raw shards": {"chunks": (5, 7), "shards": (10, 21), "compressors": None},
    "gzip shards": {"chunks": (5, 7), "shards": (10, 21), "compressors": zarr.codecs.GzipCodec()},
    "format 2": {"chunks": (5, 7), "zarr_format": 2},
    "float16": {"chunks": (5, 7), "dtype": "f2", "fill_value": float("nan")},
    "big-endian": {"chunks": (5, 7), "dtype": ">i4"},
    "one chunk": {"chunks": SHAPE},
}


@pytest.fixture
def repo(open_repo: Callable[..., txstore.Repository]) -> txstore.Repository:
    return open_repo(chunk_cache="1 MiB")


def values(dtype: str = "i4") -> np.ndarray[Any, Any]:
    data: np.ndarray[Any, Any] = np.arange(np.prod(SHAPE)).reshape(SHAPE).astype(dtype)
    data[10:20, 7:42] = 0  # chunks of fill value, which are not stored
    return data


def array_of(repo: txstore.Repository, name: str) -> tuple[Any, np.ndarray[Any, Any]]:
    """Commit an array; return it as a reader sees it, and its elements."""
    options = {"dtype": "i4", **ARRAYS[name]}
    data = values(options["dtype"])
    with repo.transaction() as store:
        z: Any = zarr.create_array(store, name="x", shape=SHAPE, **options)
        z[...] = data
    return zarr.open_array(repo.snapshot(), path="x", mode="r"), data


def some_selection(random: np.random.Generator) -> Any:
    kinds = [
        lambda extent: int(random.integers(extent)),
        lambda extent: slice(*sorted(random.integers(0, extent + 1, 2).tolist())),
        lambda extent: slice(*sorted(random.integers(0, extent + 1, 2).tolist()), int(random.integers(2, 5))),
    ]
    return tuple(kinds[random.integers(len(kinds))](extent) for extent in SHAPE)


@pytest.mark.parametrize("name", ARRAYS)
def test_any_selection_has_the_same_elements(repo: txstore.Repository, name: str) -> None:
    z, data = array_of(repo, name)
    random = np.random.default_rng(0)
    for _ in range(150):
        selection = some_selection(random)
        np.testing.assert_array_equal(z[selection], data[selection])
        rows = random.integers(0, SHAPE[0], 3).tolist()
        columns = random.integers(0, SHAPE[1], 3).tolist()
        np.testing.assert_array_equal(z.oindex[rows, columns], data[np.ix_(rows, columns)])
        np.testing.assert_array_equal(z.vindex[rows, columns], data[rows, columns])
    assert repo.chunk_cache.hits > repo.chunk_cache.misses > 0
    mask = random.random(SHAPE) < 0.01
    np.testing.assert_array_equal(z.vindex[mask], data[mask])


def test_each_snapshot_has_its_own(repo: txstore.Repository) -> None:
    z, data = array_of(repo, "zstd")
    assert z[0, 0] == data[0, 0]
    with repo.transaction() as store:
        zarr.open_array(store, path="x")[0, 0] = 99
        assert zarr.open_array(store, path="x")[0, 0] == 99
        zarr.open_array(store, path="x")[0, 1] = 98
        assert zarr.open_array(store, path="x")[0, 0:2].tolist() == [99, 98]
    assert z[0, 0] == data[0, 0]
    new = zarr.open_array(repo.snapshot(), path="x", mode="r")
    assert new[0, 0:2].tolist() == [99, 98]
    assert new[0, 0] == 99


def test_what_the_caller_gets_is_its_own(repo: txstore.Repository) -> None:
    z, data = array_of(repo, "zstd")
    for _ in range(2):
        part = z[0:5, 0:7]
        part[...] = -1
        assert z[0, 0] == data[0, 0]


def test_memory_is_bounded_and_the_least_recently_used_goes_first() -> None:
    cache = ChunkCache(10_000)
    for number in range(100):
        cache.put((0, f"{number}", ()), np.zeros(1000, "u1"))
        assert cache.size <= 10_000
        if number >= 3:
            assert cache.get((0, "3", ())) is not None
    assert len(cache) == 7
    assert cache.get((0, "98", ())) is not None
    assert cache.get((0, "50", ())) is None
    cache.clear()
    assert (len(cache), cache.size) == (0, 0)


def test_large_reads_go_past_it(open_repo: Callable[..., txstore.Repository]) -> None:
    repo = open_repo(chunk_cache=8000)
    z, data = array_of(repo, "zstd")
    assert (z[...] == data).all()
    assert len(repo.chunk_cache) == 0
    assert z[0, 0] == data[0, 0]
    assert len(repo.chunk_cache) == 1


def test_without_a_size_there_is_none(open_repo: Callable[..., txstore.Repository]) -> None:
    repo = open_repo()
    z, data = array_of(repo, "zstd")
    assert z[0, 0] == data[0, 0]
    assert (repo.chunk_cache.hits, repo.chunk_cache.misses, repo.chunk_cache.capacity) == (0, 0, 0)


def test_fields_and_other_types_go_past_it(repo: txstore.Repository) -> None:
    records = np.zeros(10, [("a", "i4"), ("b", "f8")])
    records["a"], records["b"] = np.arange(10), np.arange(10) / 2
    words = np.array(["one", "two", "three"], "O")
    with repo.transaction() as store:
        zarr.create_array(store, name="records", data=records, chunks=(5,))
        if hasattr(zarr.dtype, "VariableLengthUTF8"):
            zarr.create_array(store, name="words", shape=(3,), chunks=(2,), dtype=str)[...] = words
        zarr.create_array(store, name="scalar", shape=(), dtype="i4")[...] = 7
    group: Any = zarr.open_group(repo.snapshot(), mode="r")
    for _ in range(2):
        assert (group["records"][2:7] == records[2:7]).all()
        if "words" in group:
            assert group["words"][:].tolist() == words.tolist()
        assert group["scalar"][()] == 7


def test_what_is_erased_is_not_kept(repo: txstore.Repository) -> None:
    z, data = array_of(repo, "zstd")
    commit = repo.head()
    assert z[0, 0] == data[0, 0]
    assert len(repo.chunk_cache) == 1
    with pytest.raises(txstore.ErasureTimeoutError):  # the snapshot is open
        repo.erase("x", timeout=0)
    del z
    repo.erase("x")
    assert len(repo.chunk_cache) == 0
    with pytest.raises(txstore.ErasedError):
        zarr.open_array(repo.snapshot(at=commit), path="x", mode="r")[0, 0]


def test_damage_is_an_error_each_time(tmp_path: Path) -> None:
    repo = txstore.Repository(tmp_path / "data.tx", chunk_cache="1 MiB", durability="none")
    data = np.random.default_rng(0).integers(0, 1 << 30, (64, 64))
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=data, chunks=(64, 64))
    del repo
    for pack in (tmp_path / "data.tx").rglob("*"):
        if pack.is_file() and pack.stat().st_size > 4096:
            content = bytearray(pack.read_bytes())
            content[len(content) // 2] ^= 1
            pack.write_bytes(content)
    repo = txstore.Repository(tmp_path / "data.tx", chunk_cache="1 MiB")
    z: Any = zarr.open_array(repo.snapshot(), path="x", mode="r")
    for _ in range(2):
        with pytest.raises(txstore.CorruptionError):
            z[0, 0]
    assert len(repo.chunk_cache) == 0


@pytest.mark.parametrize(
    ("size", "parsed"),
    [(0, 0), (1000, 1000), ("256 MiB", 256 << 20), ("1.5GB", 1_500_000_000), ("64kib", 64 << 10), ("12", 12)],
)
def test_sizes(size: int | str, parsed: int) -> None:
    assert parse_size(size) == parsed


@pytest.mark.parametrize("size", [-1, True, None, 1.5, "", "MiB", "-1 MiB", "1 MiX", "1 2"])
def test_what_is_no_size(size: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no size"):
        txstore.Repository(tmp_path / "data.tx", chunk_cache=size)

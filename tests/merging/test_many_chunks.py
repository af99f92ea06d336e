"""Chunks of many kinds that both sides have changed: put together many at a time, as one by one."""

import tempfile
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, GzipCodec

import txstore
from txstore.codecs.chunk_codec import ChunkCodec

RECORD = np.dtype([("a", "<i4"), ("b", "<f8")])
ARRAYS: dict[str, dict[str, Any]] = {
    "plain": {"shape": (40, 6), "chunks": (4, 4), "dtype": "f4"},
    "uncompressed": {"shape": (40, 6), "chunks": (4, 4), "dtype": "i2", "compressors": None},
    "big-endian": {"shape": (40, 6), "chunks": (4, 4), "dtype": "f8", "serializer": BytesCodec(endian="big")},
    "by zarr": {"shape": (40, 6), "chunks": (4, 4), "dtype": "f8", "compressors": [GzipCodec()]},
    "shards": {"shape": (40, 8), "chunks": (2, 2), "shards": (4, 4), "dtype": "u1"},
    "complex": {"shape": (40,), "chunks": (3,), "dtype": "c16"},
    "records": {"shape": (40,), "chunks": (3,), "dtype": RECORD},
    "bytes": {"shape": (40,), "chunks": (3,), "dtype": "S3"},
    "format 2": {"shape": (40, 6), "chunks": (4, 4), "dtype": "f4", "zarr_format": 2},
    "one axis": {"shape": (40,), "chunks": (40,), "dtype": "i8"},
    "no axes": {"shape": (), "dtype": "i8", "chunks": ()},
    "filled with NaN": {"shape": (40, 6), "chunks": (4, 4), "dtype": "f4", "fill_value": np.nan},
}


def some(shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    numbers = np.random.default_rng(seed).integers(0, 9, shape)
    if np.dtype(dtype).names:
        found = np.zeros(shape, dtype)
        found["a"], found["b"] = numbers, -numbers
        return found
    return numbers.astype(dtype)


def test_one_chunk_that_can_not_be_decoded_is_a_conflict_alone() -> None:
    repo = txstore.Repository(tempfile.mkdtemp() + "/data.tx", durability="none")
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.arange(1, 13, dtype="i4"), chunks=(4,))
    repo.branches["dev"] = repo.head()
    for branch, at in (("main", 0), ("dev", 1)):
        with repo.transaction(branch=branch) as store:
            zarr.open_array(store, path="x")[at::4] = 20 + at
            if branch == "dev":
                store.mapping["x/c/1"] = b"no zstd"
    with pytest.raises(txstore.MergeConflictError) as error:
        repo.merge("dev")
    assert [(each.kind, each.key) for each in error.value.conflicts] == [("chunk", "x/c/1")]
    repo.merge("dev", resolve={"x": "ours"})
    found = zarr.open_array(repo.snapshot(), path="x", mode="r")[:]
    assert found.tolist() == [20, 21, 3, 4, 20, 6, 7, 8, 20, 21, 11, 12]


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize("name", ARRAYS)
def test_many_at_a_time_are_as_one_by_one(name: str) -> None:
    options = {**ARRAYS[name]}
    repo = txstore.Repository(tempfile.mkdtemp() + "/data.tx", durability="none")
    with repo.transaction() as store:
        array = zarr.create_array(store, name="x", **options)
        array[...] = some(array.shape, array.dtype, 1)
    view = repo.mapping()
    document = next(key for key in ("x/zarr.json", "x/.zarray") if key in view)
    chunks = [key for key in view if key.rpartition("/")[2] not in ("zarr.json", ".zarray", ".zattrs", ".zgroup")]
    names = [key[2:] for key in chunks]
    codec = ChunkCodec(document[2:], view[document], names[0])
    values = [view[key] for key in chunks] + [None]
    stacked = codec.decode_all(values)
    assert [chunk.tobytes() for chunk in stacked] == [codec.decode(value).tobytes() for value in values]
    # Read again: gzip writes the second into what it makes.
    encoded, one_by_one = codec.encode_all(stacked), [codec.encode(chunk) for chunk in stacked]
    assert [each is None for each in encoded] == [each is None for each in one_by_one]
    assert [codec.decode(value).tobytes() for value in encoded] == [chunk.tobytes() for chunk in stacked]

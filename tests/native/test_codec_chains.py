"""Every chain of codecs that the C knows, in every order, in shards and without: it stores what zarr's codecs store.

`make sanitize` runs this file with the C under the address sanitizer: no codec writes behind its room.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec
from zarr.core.buffer import cpu
from zarr.storage import MemoryStore

import txstore
import txstore.pipeline
from txstore._native import chunks

OpenRepo = Callable[..., txstore.Repository]

COMPRESSORS: dict[str, Callable[[int], Any]] = {
    "zstd": lambda itemsize: ZstdCodec(level=1),
    "zstd-checked": lambda itemsize: ZstdCodec(level=3, checksum=True),
    "blosc-lz4": lambda itemsize: BloscCodec(cname="lz4", shuffle="noshuffle", typesize=itemsize),
    "blosc-lz4-shuffle": lambda itemsize: BloscCodec(cname="lz4", shuffle="shuffle", typesize=itemsize),
    "blosc-lz4-bitshuffle": lambda itemsize: BloscCodec(cname="lz4", shuffle="bitshuffle", typesize=itemsize),
    "blosc-zlib": lambda itemsize: BloscCodec(cname="zlib", shuffle="noshuffle", typesize=itemsize),
}
#: "c" is a checksum, "k" a compressor: the C takes at most one of these in a chain.
ORDERS = ["", "c", "cc", "k", "kc", "ck", "kcc", "ckc", "cck"]
CHAINS = [(order, name) for order in ORDERS for name in (COMPRESSORS if "k" in order else ["none"])]
#: Types and elements of a chunk. Among 244 bytes of few values, some chunks compress by a few bytes, or grow by a few.
SIZES = [("u1", 1), ("i4", 61), ("u1", 244), ("u2", 150), ("u1", 1031)]
CHUNKS = 16


def values(size: int, dtype: str) -> np.ndarray[Any, Any]:
    """Return chunks of which each compresses in another degree, from not at all to very well."""
    rng = np.random.default_rng(size)
    nbytes = size * np.dtype(dtype).itemsize
    parts = [rng.integers(0, (256, 64, 16, 4)[at % 4], nbytes, dtype="u1") for at in range(CHUNKS)]
    return np.concatenate(parts).view(dtype)


def codecs(order: str, name: str, dtype: str) -> list[Any]:
    itemsize = np.dtype(dtype).itemsize
    return [BytesCodec(), *(Crc32cCodec() if each == "c" else COMPRESSORS[name](itemsize) for each in order)]


def written(store: Any, path: str, data: Any, chunk: int, pipeline: list[Any]) -> zarr.Array[Any]:
    made = zarr.create_array(
        store, name=path, shape=data.shape, chunks=(chunk,), dtype=data.dtype, fill_value=0,
        serializer=pipeline[0], compressors=pipeline[1:] or None,
    )  # fmt: skip
    made[:] = data
    if isinstance(store, txstore.TxStore) and chunks.IMPLEMENTATION == "c":
        assert txstore.pipeline.describe(made).startswith("txstore: batches of ")
    return made


@pytest.mark.parametrize(("order", "name"), CHAINS)
def test_chunks_are_those_of_the_codecs_themselves(open_repo: OpenRepo, order: str, name: str) -> None:
    values_of_zarr: dict[str, Any] = {}
    with open_repo().transaction() as store:
        for dtype, size in SIZES:
            path, data, pipeline = f"{dtype}-{size}", values(size, dtype), codecs(order, name, dtype)
            written(MemoryStore(values_of_zarr), path, data, size, pipeline)
            np.testing.assert_array_equal(written(store, path, data, size, pipeline)[:], data)
            assert written(store, f"no-{path}", data[:0], size, pipeline)[:].shape == (0,)
        expected = {key: value.to_bytes() for key, value in values_of_zarr.items() if "/c/" in key}
        assert {key: bytes(store.mapping[key]) for key in store.mapping if "/c/" in key} == expected


@pytest.mark.parametrize(("order", "name"), CHAINS)
def test_shards_are_read_by_the_codecs_themselves(open_repo: OpenRepo, order: str, name: str) -> None:
    """An inner chunk may be larger than its elements: the checksum of the index lies behind the last one."""
    with open_repo().transaction() as store:
        for number, (dtype, size) in enumerate(SIZES):
            place: Any = "start" if number % 2 else "end"
            data, inner = values(size, dtype), codecs(order, name, dtype)
            index = [BytesCodec(), *([Crc32cCodec()] if number % 3 else [])]
            sharding = ShardingCodec(chunk_shape=(size,), codecs=inner, index_codecs=index, index_location=place)
            path = f"{dtype}-{size}"
            made = written(store, path, data, size * CHUNKS, [sharding])
            part = slice(size - 1, size * 2 + 1)
            np.testing.assert_array_equal(made[part], data[part])
            plain = MemoryStore({key: cpu.Buffer.from_bytes(store.mapping[key]) for key in store.mapping})
            np.testing.assert_array_equal(zarr.open_array(plain, path=path, mode="r")[:], data)


def test_a_chain_longer_than_the_c_knows_is_left_to_zarr(open_repo: OpenRepo) -> None:
    with open_repo().transaction() as store:
        made = zarr.create_array(store, name="x", data=np.arange(6), chunks=(2,), compressors=[Crc32cCodec()] * 9)
        assert made[:].tolist() == [*range(6)]

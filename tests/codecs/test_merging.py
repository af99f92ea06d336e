"""Chunks of every kind of array, taken apart and put together again as zarr itself would have stored them."""

import json
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.core.buffer import cpu

from txstore.codecs.chunk_codec import ChunkMerger, NotMergeableError
from txstore.format.regions import Region

pytestmark = pytest.mark.filterwarnings("ignore")

SHAPE, CHUNKS = (16, 12), (4, 3)
TOP, BOTTOM = Region.of_box(((0, 1), (0, 3))), Region.of_box(((2, 4), (0, 3)))

BOTH: dict[str, dict[str, Any]] = {
    "plain": {},
    "raw": {"compressors": None},
    "small": {"dtype": "u2"},
    "big-endian": {"dtype": ">f4"},
    "complex": {"dtype": "c16"},
    "times": {"dtype": "M8[ns]"},
    "bytes": {"dtype": "S5"},
    "text of a fixed length": {"dtype": "U3"},
    "structured": {"dtype": [("a", "i4"), ("b", "f8")]},
    "NaN where nothing is": {"dtype": "f8", "fill_value": np.nan},
}
FORMAT_2: dict[str, dict[str, Any]] = {
    "order F": {"order": "F"},
    "no fill value": {"fill_value": None},
    "delta": {"filters": [numcodecs.Delta("i8")]},
    "quantize": {"filters": [numcodecs.Quantize(2, "f8")], "dtype": "f8"},
    "blosc": {"compressors": numcodecs.Blosc()},
}
FORMAT_3: dict[str, dict[str, Any]] = {
    "shards": {"shards": (8, 6)},
    "transposed": {"filters": [zarr.codecs.TransposeCodec(order=(1, 0))]},
    "blosc": {"compressors": zarr.codecs.BloscCodec()},
    "gzip and checksum": {"compressors": [zarr.codecs.GzipCodec(), zarr.codecs.Crc32cCodec()]},
}
CASES = [
    *(pytest.param(fmt, options, id=f"{name}, format {fmt}") for name, options in BOTH.items() for fmt in (2, 3)),
    *(pytest.param(2, options, id=f"{name}, format 2") for name, options in FORMAT_2.items()),
    *(pytest.param(3, options, id=f"{name}, format 3") for name, options in FORMAT_3.items()),
]


def made(fmt: int, options: dict[str, Any]) -> tuple[dict[str, Any], zarr.Array]:
    store: dict[str, Any] = {}
    return store, zarr.create_array(
        store, **{"shape": SHAPE, "chunks": CHUNKS, "dtype": "i8", "zarr_format": fmt, **options}
    )


def values(dtype: np.dtype[Any], seed: int) -> np.ndarray[Any, Any]:
    numbers = np.random.default_rng(seed).integers(1, 99, SHAPE)
    if dtype.names is None:
        return numbers.astype(dtype)
    flat = [(int(number), float(number)) for number in numbers.ravel()]
    return np.array(flat, dtype).reshape(SHAPE)


def merger_of(store: dict[str, Any], fmt: int) -> tuple[ChunkMerger, str]:
    document, chunk = ("zarr.json", "c/0/0") if fmt == 3 else (".zarray", "0.0")
    return ChunkMerger(document, store[document].to_bytes(), chunk), chunk


@pytest.mark.parametrize(("fmt", "options"), CASES)
def test_zarr_reads_what_was_merged(fmt: int, options: dict[str, Any]) -> None:
    store, z = made(fmt, options)
    merger, key = merger_of(store, fmt)
    old, new = values(z.dtype, 1), values(z.dtype, 2)
    new[0:2] = old[0:2][::-1]
    z[...] = old
    old, before = z[...], store[key].to_bytes()
    z[...] = new
    new, after = z[...], store[key].to_bytes()
    assert merger.differ(before, after, TOP)
    assert not merger.differ(before, before, Region.whole())
    merged = merger.merged(before, [(after, TOP)])
    assert merged is not None
    assert not merger.differ(merged, after, TOP)
    assert not merger.differ(merged, before, BOTTOM)
    store[key] = cpu.Buffer.from_bytes(merged)
    expected = old.copy()
    expected[0:1, 0:3] = new[0:1, 0:3]
    found = z[...]
    assert found[0:4, 0:3].tobytes() == expected[0:4, 0:3].tobytes()


@pytest.mark.parametrize(("fmt", "options"), CASES)
def test_what_is_missing_is_fill_value(fmt: int, options: dict[str, Any]) -> None:
    store, z = made(fmt, options)
    merger, key = merger_of(store, fmt)
    assert merger.merged(None, []) is None
    z[...] = values(z.dtype, 1)
    full = store[key].to_bytes()
    assert merger.differ(None, full, TOP)
    assert merger.merged(full, [(None, Region.whole())]) is None
    merged = merger.merged(full, [(None, TOP)])
    assert not merger.differ(merged, None, TOP)
    assert not merger.differ(merged, full, BOTTOM)


def test_empty_chunks_are_written_where_zarr_is_told_to() -> None:
    store, _ = made(3, {})
    with zarr.config.set({"array.write_empty_chunks": True}):
        merger, _ = merger_of(store, 3)
        assert merger.merged(None, []) is not None


def test_later_layers_lie_over_earlier_ones() -> None:
    store, z = made(3, {"compressors": None, "dtype": "u1"})
    merger, key = merger_of(store, 3)
    encoded = []
    for number in range(3):
        z[...] = number + 1
        encoded.append(store[key].to_bytes())
    left, all_rows = Region.of_box(((0, 4), (0, 1))), Region.of_box(((1, 2), (0, 3)))
    assert merger.merged(encoded[0], [(encoded[1], left), (encoded[2], all_rows)]) == bytes(
        [2, 1, 1, 3, 3, 3, 2, 1, 1, 2, 1, 1]
    )


@pytest.mark.parametrize(
    ("fmt", "change"),
    [
        (3, {"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "nobody.knows"}]}),
        (3, {"data_type": "string", "codecs": [{"name": "vlen-utf8"}], "fill_value": ""}),
        (3, {"data_type": "int3"}),
        (3, {"chunk_grid": {"name": "hexagons"}}),
        (3, {"codecs": None}),
        (3, {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1 << 20, 1 << 20]}}}),
        (2, {"filters": [{"id": "pickle"}]}),
        (2, {"dtype": "|O", "filters": [{"id": "json2"}]}),
        (2, {"compressor": {"id": "lzip"}}),
    ],
)
def test_what_can_not_be_merged(fmt: int, change: dict[str, Any]) -> None:
    store, _ = made(fmt, {})
    document = "zarr.json" if fmt == 3 else ".zarray"
    described = json.loads(store[document].to_bytes()) | change
    with pytest.raises(NotMergeableError):
        ChunkMerger(document, json.dumps(described).encode(), "c/0/0")


def test_codecs_that_round() -> None:
    """What was rounded once is not changed by being rounded again."""
    store, z = made(2, {"dtype": "f8", "filters": [numcodecs.FixedScaleOffset(0, 3, "f8", "i2")]})
    merger, key = merger_of(store, 2)
    z[...] = 0.4
    chunk = store[key].to_bytes()
    assert merger.merged(chunk, [(chunk, TOP)]) == chunk
    store, z = made(2, {"dtype": "f8", "filters": [numcodecs.AsType("f2", "f8")]})
    merger, key = merger_of(store, 2)
    z[...] = 0.1
    chunk = store[key].to_bytes()
    assert not merger.differ(chunk, merger.merged(chunk, [(chunk, TOP)]), Region.whole())


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"\x28\xb5\x2f\xfd"])
def test_damaged_chunks(damage: bytes) -> None:
    store, _ = made(3, {})
    merger, _ = merger_of(store, 3)
    with pytest.raises(NotMergeableError):
        merger.merged(damage, [])
    store, _ = made(3, {"compressors": None})
    merger, _ = merger_of(store, 3)
    with pytest.raises(NotMergeableError):
        merger.merged(damage, [])


@pytest.mark.parametrize("region", [Region.of_box(((0, 5), (0, 3))), Region.of_box(((0, 1),))])
def test_a_region_of_another_shape(region: Region) -> None:
    store, _ = made(3, {})
    merger, _ = merger_of(store, 3)
    with pytest.raises(NotMergeableError):
        merger.merged(None, [(None, region)])


@pytest.mark.skipif(not hasattr(zarr.core.metadata.v3, "RectilinearChunkGridMetadata"), reason="needs zarr 3.2")
def test_rectilinear_grids() -> None:
    with zarr.config.set({"array.rectilinear_chunks": True}):
        store: dict[str, Any] = {}
        z = zarr.create_array(store, shape=(10,), chunks=[[3, 5, 2]], dtype="i4")
        z[...] = np.arange(1, 11)
        for place, size in enumerate((3, 5, 2)):
            key = f"c/{place}"
            merger = ChunkMerger("zarr.json", store["zarr.json"].to_bytes(), key)
            last = Region.of_box(((size - 1, size),))
            store[key] = cpu.Buffer.from_bytes(merger.merged(store[key].to_bytes(), [(None, last)]) or b"")
        assert z[...].tolist() == [1, 2, 0, 4, 5, 6, 7, 0, 9, 0]
        told = json.loads(store["zarr.json"].to_bytes())
        told["chunk_grid"]["configuration"]["chunk_shapes"] = [[[1, 10**12]]]
        with pytest.raises(NotMergeableError, match="lists more than"):  # before zarr writes them out
            ChunkMerger("zarr.json", json.dumps(told).encode(), "c/0")

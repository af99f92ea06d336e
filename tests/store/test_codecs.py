"""Every codec and data type of zarr: written in a transaction, changed in another, read back from the snapshots.

The first transaction writes the whole array, the second parts of chunks (which are read, changed and written again).
Both formats, and each pipeline that zarr has.
"""

from typing import Any

import numcodecs
import numcodecs.blosc
import numpy as np
import pytest
import zarr
import zarr.codecs.numcodecs as zn
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    VLenBytesCodec,
    VLenUTF8Codec,
    ZstdCodec,
)
from zarr.dtype import VariableLengthBytes

import txstore

SHAPE, CHUNKS = (21, 14), (8, 6)
NUMBERS = np.arange(21 * 14).reshape(SHAPE)
INTS = NUMBERS.astype("i4")
FLOATS = NUMBERS.astype("f8") / 4


def check(repo: txstore.Repository, first: np.ndarray[Any, Any], **arguments: Any) -> None:
    """Write `first`, then parts of its reverse over it; read both versions back, whole and in parts."""
    parts = [(slice(3, 11), slice(5, 7)), (20, slice(None)), (slice(None, None, 5), 13)]
    second, reverse = first.copy(), first[::-1, ::-1]
    arguments = {"chunks": CHUNKS, "fill_value": None, **arguments}
    with repo.transaction() as store:
        z = zarr.create_array(
            store, name="x", shape=first.shape, dtype=arguments.pop("dtype", first.dtype), **arguments
        )
        z[...] = first
    with repo.transaction() as store:
        z = zarr.open_array(store, path="x")
        for part in parts:
            z[part] = second[part] = reverse[part]
    for version, expected in enumerate([first, second]):
        z = zarr.open_array(repo.snapshot(version), path="x", mode="r")
        np.testing.assert_array_equal(z[...], expected)
        for part in parts:
            np.testing.assert_array_equal(z[part], expected[part])


def nested_sharding() -> ShardingCodec:
    return ShardingCodec(chunk_shape=(4, 3), codecs=[ShardingCodec(chunk_shape=(2, 1), codecs=[BytesCodec()])])


CODECS_3: dict[str, tuple[np.ndarray[Any, Any], dict[str, Any]]] = {
    "bytes little": (INTS, {"serializer": BytesCodec(endian="little"), "compressors": None}),
    "bytes big": (INTS, {"serializer": BytesCodec(endian="big"), "compressors": None}),
    **{f"blosc {n}": (INTS, {"compressors": BloscCodec(cname=n)}) for n in numcodecs.blosc.list_compressors()},  # type: ignore[arg-type]
    **{f"blosc {s}": (INTS, {"compressors": BloscCodec(shuffle=s)}) for s in ("noshuffle", "shuffle", "bitshuffle")},  # type: ignore[arg-type]
    "gzip": (INTS, {"compressors": GzipCodec(level=1)}),
    "zstd": (INTS, {"compressors": ZstdCodec(checksum=True)}),
    "crc32c": (INTS, {"compressors": Crc32cCodec()}),
    "two compressors": (INTS, {"compressors": [GzipCodec(), Crc32cCodec()]}),
    "transpose": (INTS, {"filters": TransposeCodec(order=(1, 0))}),
    "shards": (INTS, {"shards": (16, 12)}),
    "shards uncompressed": (INTS, {"shards": (16, 12), "compressors": None}),
    "shard index at the start": (INTS, {"shards": {"shape": (16, 12), "index_location": "start"}}),
    "nested shards": (INTS, {"serializer": nested_sharding(), "compressors": None}),
    "compressed shards": (INTS, {"serializer": nested_sharding(), "compressors": ZstdCodec()}),
    "vlen-utf8": (np.char.mod("κ%d", NUMBERS).astype("T"), {"serializer": VLenUTF8Codec()}),
    "vlen-bytes": (
        np.array([b"%d" % n for n in NUMBERS.flat], object).reshape(SHAPE),
        {"serializer": VLenBytesCodec(), "dtype": VariableLengthBytes(), "fill_value": b""},
    ),
    "numcodecs delta": (INTS, {"filters": zn.Delta(dtype="<i4")}),
    "numcodecs fixedscaleoffset": (FLOATS, {"filters": zn.FixedScaleOffset(offset=0, scale=4, dtype="<f8")}),
    "numcodecs bitround": (FLOATS, {"filters": zn.BitRound(keepbits=20)}),
    "numcodecs quantize": (FLOATS, {"filters": zn.Quantize(digits=4, dtype="<f8")}),
    "numcodecs astype": (INTS, {"filters": zn.AsType(encode_dtype="<i8", decode_dtype="<i4")}),
    "numcodecs packbits": (NUMBERS % 3 == 0, {"filters": zn.PackBits()}),
    **{
        f"numcodecs {codec.__name__}": (INTS, {"compressors": codec()})
        for codec in (
            zn.BZ2,
            zn.LZ4,
            zn.LZMA,
            zn.Zlib,
            zn.Zstd,
            zn.GZip,
            zn.Blosc,
            zn.Shuffle,
            zn.CRC32,
            zn.CRC32C,
            zn.Adler32,
            zn.Fletcher32,
            zn.JenkinsLookup3,
        )
    },
}
# Where the extras of numcodecs are installed:
if "zfpy" in numcodecs.registry.codec_registry:
    CODECS_3["numcodecs zfpy"] = (FLOATS, {"serializer": zn.ZFPY(mode=4, tolerance=0.001), "compressors": None})
if "pcodec" in numcodecs.registry.codec_registry:
    CODECS_3["numcodecs pcodec"] = (FLOATS, {"serializer": zn.PCodec(), "compressors": None})
if hasattr(zarr.codecs, "ScaleOffset"):
    CODECS_3["scale_offset"] = (FLOATS, {"filters": zarr.codecs.ScaleOffset(offset=1.0, scale=4.0)})

CODECS_2: dict[str, tuple[np.ndarray[Any, Any], dict[str, Any]]] = {
    "none": (INTS, {"compressors": None}),
    "default": (INTS, {}),
    "order F": (INTS, {"order": "F"}),
    "chunk keys with /": (INTS, {"chunk_key_encoding": {"name": "v2", "separator": "/"}}),
    **{
        codec.codec_id: (INTS, {"compressors": codec()})
        for codec in (
            numcodecs.Blosc,
            numcodecs.Zstd,
            numcodecs.LZ4,
            numcodecs.Zlib,
            numcodecs.GZip,
            numcodecs.BZ2,
            numcodecs.LZMA,
        )
    },
    "delta": (INTS, {"filters": [numcodecs.Delta("i4")]}),
    "fixedscaleoffset": (FLOATS, {"filters": [numcodecs.FixedScaleOffset(offset=0, scale=4, dtype="f8", astype="i4")]}),
    "quantize": (FLOATS, {"filters": [numcodecs.Quantize(digits=4, dtype="f8")]}),
    "astype": (INTS, {"filters": [numcodecs.AsType("i8", "i4")]}),
    "packbits": (NUMBERS % 3 == 0, {"filters": [numcodecs.PackBits()]}),
    "two filters": (INTS, {"filters": [numcodecs.Delta("i4"), numcodecs.Shuffle(4)]}),
    "vlen-utf8": (np.char.mod("κ%d", NUMBERS).astype("T"), {"filters": [numcodecs.VLenUTF8()]}),
    "vlen-bytes": (
        np.array([b"%d" % n for n in NUMBERS.flat], object).reshape(SHAPE),
        {"filters": [numcodecs.VLenBytes()], "dtype": VariableLengthBytes(), "fill_value": b""},
    ),
}

NUMERIC_DTYPES = ["?", *(f"{k}{n}" for k in "iu" for n in (1, 2, 4, 8)), "f2", "f4", "f8", "c8", "c16", ">i4", ">f8"]
OTHER_DTYPES = ["M8[s]", "M8[ns]", "m8[ms]", "S5", "U5", "V3"]
RECORD = np.dtype([("x", "f8"), ("n", "i2"), ("name", "S3")])


def numbers_as(dtype: str) -> np.ndarray[Any, Any]:
    if dtype == "V3":
        return np.array([b"%03d" % n for n in NUMBERS.flat], "S3").view("V3").reshape(SHAPE)
    return (NUMBERS % 101).astype(dtype)


@pytest.mark.long
@pytest.mark.parametrize("name", CODECS_3)
def test_a_codec_of_format_3_reads_back_what_was_committed(repo: txstore.Repository, pipeline: str, name: str) -> None:
    data, arguments = CODECS_3[name]
    check(repo, data, **arguments)


@pytest.mark.parametrize("name", CODECS_2)
def test_a_codec_of_format_2_reads_back_what_was_committed(repo: txstore.Repository, pipeline: str, name: str) -> None:
    data, arguments = CODECS_2[name]
    check(repo, data, zarr_format=2, **arguments)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", [*NUMERIC_DTYPES, *OTHER_DTYPES])
def test_a_data_type_reads_back_as_it_was_committed(repo, pipeline, dtype, zarr_format):
    check(repo, numbers_as(dtype), zarr_format=zarr_format)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_records_read_back_as_they_were_committed(repo: txstore.Repository, pipeline: str, zarr_format: int) -> None:
    records = np.array([(n / 4, n, b"%d" % n) for n in NUMBERS.flat], RECORD).reshape(SHAPE)
    check(repo, records, zarr_format=zarr_format)

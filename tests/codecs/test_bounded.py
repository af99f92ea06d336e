"""What TxStore decodes on its own is no longer than the array's document says, whatever a stranger has compressed."""

import bz2
import gzip
import json
import lzma
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr

import txstore
from txstore.pipeline import open_own

pytestmark = pytest.mark.filterwarnings("ignore")

OpenRepo = Callable[..., txstore.Repository]
COUNT = 64
LONG = bytes(1 << 20)


def deflated(kind: int) -> bytes:
    made = zlib.compressobj(9, zlib.DEFLATED, kind)
    return b"".join([made.compress(LONG) for _ in range(COUNT)]) + made.flush()


def zstd_frame(head: bytes) -> bytes:
    """Return a frame of 64 MiB: blocks that repeat one byte."""
    block = (128 << 10 << 3) | 2
    blocks = [struct.pack("<I", block | (at == COUNT * 8 - 1))[:3] + b"x" for at in range(COUNT * 8)]
    return struct.pack("<I", 0xFD2FB528) + head + b"".join(blocks)


UNKNOWN = b"\x00\x58"
#: Values that decode to 64 MiB.
LONG_VALUES = {
    "gzip": [deflated(31)],
    "zlib": [deflated(15)],
    "bz2": [bz2.compress(LONG * COUNT)],
    "lzma": [lzma.compress(LONG * COUNT, preset=0)],
    "lz4": [struct.pack("<I", COUNT << 20) + bytes(99)],
    "blosc": [bytes(numcodecs.Blosc("zstd", 1).encode(LONG * COUNT))],
    "zstd": [
        zstd_frame(UNKNOWN),
        zstd_frame(b"\xe0" + struct.pack("<Q", COUNT << 20)),
        bytes(numcodecs.Zstd().encode(b"short")) + zstd_frame(UNKNOWN),
        struct.pack("<II", 0x184D2A50, 3) + b"xyz" + zstd_frame(UNKNOWN),
        struct.pack("<IBQ", 0xFD2FB528, 0xE0, 1 << 40) + b"\1\0\0" + struct.pack("<II", 0x184D2A50, 0),
    ],
}


def with_flags(value: bytes) -> bytes:
    """Return a gzip member whose reserved flags are set: zlib refuses it, Python's module reads it."""
    return value[:3] + b"\xe0" + value[4:]


def with_dictionary(value: bytes) -> bytes:
    """Return an xz stream that says that it takes 1 GiB to decode."""
    end = 12 + 4 * value[12]
    head = value[12:16] + b"\x24" + value[17:end]
    return value[:12] + head + struct.pack("<I", zlib.crc32(head)) + value[end + 4 :]


#: Values whose first member is short. The libraries decode what is behind it to 64 MiB, too.
SHORT = b"short"
REFUSED_VALUES = [
    ("gzip", {"level": 1}, gzip.compress(SHORT) + b"\0" + deflated(31), "incorrect header"),
    ("gzip", {"level": 1}, gzip.compress(SHORT) + with_flags(deflated(31)), "unknown header flags"),
    ("lzma", {}, lzma.compress(SHORT) + with_dictionary(lzma.compress(LONG * COUNT, preset=0)), "Memory usage limit"),
    # As a raw stream, zeros decode to many zeros; in the other formats, to many streams of nothing.
    ("lzma", {"format": lzma.FORMAT_RAW, "filters": [{"id": lzma.FILTER_LZMA1}]}, LONG, "FORMAT_RAW"),
    ("bz2", {"level": 1}, bz2.compress(b"") * 1001, "more than 1,000 compressed members"),
    ("blosc", {}, bytes(numcodecs.Blosc("zstd", 1).encode(LONG * COUNT))[:4], "shorter than its header says"),
]
OPTIONS: dict[str, dict[str, Any]] = {
    "gzip": {"level": 1}, "zlib": {"level": 1}, "bz2": {"level": 1}, "lzma": {"preset": 0}, "lz4": {"acceleration": 1},
    "blosc": {"cname": "lz4", "clevel": 1, "shuffle": 1}, "zstd": {"level": 1},
}  # fmt: skip
NATIVE = ("gzip", "blosc", "zstd")


def document(name: str, where: str) -> dict[str, Any]:
    options = OPTIONS[name]
    if where.startswith("format 2"):
        codec = {"id": name, **options}
        coded = {"compressor": codec, "filters": None} if where.endswith("compressor") else {
            "compressor": None, "filters": [codec]
        }  # fmt: skip
        return {"zarr_format": 2, "shape": [8], "chunks": [4], "dtype": "<i4", "fill_value": 0, "order": "C", **coded}
    if name == "blosc":
        options = {**options, "shuffle": "shuffle", "typesize": 4, "blocksize": 0}
    if name == "zstd":
        options = {**options, "checksum": False}
    whole = [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": name if name in NATIVE else f"numcodecs.{name}", "configuration": options},
    ]
    index = {"index_codecs": whole[:1], "index_location": "end"}
    if where == "format 3, in a shard":
        whole = [{"name": "sharding_indexed", "configuration": {"chunk_shape": [4], "codecs": whole, **index}}]
    return {
        "zarr_format": 3, "node_type": "array", "shape": [8], "data_type": "int32", "fill_value": 0, "attributes": {},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "chunk_key_encoding": {"name": "default"}, "codecs": whole,
    }  # fmt: skip


PLACES = ["format 3", "format 3, in a shard", "format 2, as compressor", "format 2, as filter"]


def written(repo: txstore.Repository, name: str, where: str) -> str:
    """Write an array with a codec, and return the key of its first chunk."""
    file, chunk = (".zarray", "x/0") if where.startswith("format 2") else ("zarr.json", "x/c/0")
    with repo.transaction() as store:
        store.mapping[f"x/{file}"] = json.dumps(document(name, where)).encode()
        zarr.open_array(store, path="x")[:] = np.arange(1, 9)
    return chunk


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("name", LONG_VALUES)
def test_no_more_is_decoded_than_a_chunk_has(open_repo: OpenRepo, name: str, where: str) -> None:
    repo = open_repo()
    chunk = written(repo, name, where)
    good = bytes(repo.snapshot().mapping[chunk])
    for value in LONG_VALUES[name]:
        with repo.transaction() as store:
            store.mapping[chunk] = good  # before the next value: it is decoded, too
        with repo.transaction() as store:
            store.mapping[chunk] = value + (struct.pack("<QQ", 0, len(value)) if "shard" in where else b"")
        with pytest.raises(ValueError, match="TxStore decodes no more than that on its own"):
            list(repo.diff(repo.head()).values("x"))


@pytest.mark.parametrize(("name", "options", "value", "why"), REFUSED_VALUES)
def test_what_a_library_decodes_beyond_the_first_member_is_measured(open_repo, name, options, value, why):
    repo = open_repo()
    with repo.transaction() as store:
        made = document("gzip", "format 2, as compressor") | {"compressor": {"id": name, **options}}
        store.mapping["x/.zarray"] = json.dumps(made).encode()
    with repo.transaction() as store:
        store.mapping["x/0"] = value
    with pytest.raises((ValueError, zlib.error, lzma.LZMAError), match=why):
        list(repo.diff(repo.head()).values("x"))


TO_NUMBERS = {"id": "astype", "encode_dtype": "|u1", "decode_dtype": "<f8"}
TO_TEXTS = {"id": "fixedscaleoffset", "offset": 0, "scale": 1, "dtype": "<U500000", "astype": "|u1"}
FILTERS = [
    ("|b1", [{"id": "packbits"}] * 8, "decodes no more than that on its own"),
    ("<f8", [TO_NUMBERS] * 7, "decodes no more than that on its own"),
    ("<f8", [TO_NUMBERS | {"decode_dtype": "<U500000"}], "converts only numbers"),
    ("<f8", [TO_TEXTS], "converts only numbers"),
]


@pytest.mark.parametrize(("dtype", "filters", "why"), FILTERS)
def test_filters_make_no_more_of_a_value_than_a_chunk_has(open_repo, dtype, filters, why):
    repo = open_repo()
    made = document("gzip", "format 2, as compressor") | {"dtype": dtype, "compressor": None, "filters": filters}
    with repo.transaction() as store:
        store.mapping["x/.zarray"] = json.dumps(made).encode()
    with repo.transaction() as store:
        store.mapping["x/0"] = bytes(32)
    with pytest.raises(ValueError, match=why):
        list(repo.diff(repo.head()).values("x"))


def test_a_type_between_two_codecs_does_not_say_how_long_a_chunk_is(open_repo: OpenRepo) -> None:
    repo = open_repo()
    made = document("gzip", "format 3")
    text = {"encode_dtype": "<U500000", "decode_dtype": "<i4"}
    made["codecs"].insert(0, {"name": "numcodecs.astype", "configuration": text})
    with repo.transaction() as store:
        store.mapping["x/zarr.json"] = json.dumps(made).encode()
    with repo.transaction() as store:
        store.mapping["x/c/0"] = deflated(31)
    with pytest.raises(ValueError, match="converts only numbers"):
        list(repo.diff(repo.head()).values("x"))


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("name", LONG_VALUES)
def test_what_zarr_has_written_is_decoded(open_repo: OpenRepo, name: str, where: str) -> None:
    repo = open_repo()
    written(repo, name, where)
    with repo.transaction() as store:
        zarr.open_array(store, path="x")[1] = 20
    (changed,) = repo.diff(repo.head()).values("x")
    assert (changed.before.tolist(), changed.after.tolist()) == ([1, 2, 3, 4], [1, 20, 3, 4])


def test_a_value_of_texts_has_as_many_as_its_chunk(open_repo: OpenRepo) -> None:
    """And no more than it has room for."""
    repo = open_repo()
    for length in (2, 1 << 31):
        with repo.transaction() as store:
            made = {"shape": (2,), "chunks": (length,), "dtype": "string", "compressors": None}
            zarr.create_array(store, name=f"x{length}", **made)  # type: ignore[arg-type]
        with repo.transaction() as store:
            store.mapping[f"x{length}/c/0"] = struct.pack("<I", 1 << 30)
        with pytest.raises(ValueError, match="TxStore decodes no more than that on its own"):
            list(repo.diff(repo.head()).values(f"x{length}"))


@pytest.mark.parametrize("what", ["a value", "a shard", "a part that is written"])
def test_a_chunk_fits_in_memory_whatever_length_is_declared(open_repo: OpenRepo, what: str) -> None:
    repo = open_repo()
    made = document("zstd", "format 3, in a shard" if what == "a shard" else "format 3")
    made["chunk_grid"]["configuration"]["chunk_shape"] = [1 << 48]
    value = zstd_frame(b"\xe0" + struct.pack("<Q", 1 << 50))
    if what == "a shard":  # with a codec behind it, no part of it can be decoded alone
        made["codecs"][0]["configuration"]["chunk_shape"] = [1 << 47]
        made["codecs"].append({"name": "gzip", "configuration": {"level": 1}})
        value = gzip.compress(b"\xff" * 32)  # its parts are missing
    with repo.transaction() as store:
        store.mapping["x/zarr.json"] = json.dumps(made).encode()
        if what != "a part that is written":
            store.mapping["x/c/0"] = value
    with pytest.raises(ValueError, match="on this machine"), repo.transaction() as store:
        own = open_own(store, "x", mode="r+")
        own[:4] = own[:4]

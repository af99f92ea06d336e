"""Repositories that mean to hold up whoever opens them, and large ones, each from a row of a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import txstore
from tests.tools.forged_headers import forge_header


class Row(NamedTuple):
    name: str
    make: Callable[[txstore.Repository], Any]
    place: str


_LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
_STRING = {"data_type": "string", "fill_value": "", "codecs": [{"name": "vlen-utf8"}]}
_GROUP = {"zarr_format": 3, "node_type": "group"}
_VIEWS = ("", "?view=details", "?view=chunks")
MIB = 1 << 20


def grid(lengths: Any) -> dict[str, Any]:
    return {"name": "regular", "configuration": {"chunk_shape": lengths}}


def document(**members: Any) -> dict[str, Any]:
    return {
        "zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "uint8", "fill_value": 0,
        "chunk_grid": grid([4]), "attributes": {}, "chunk_key_encoding": {"name": "default"},
        "codecs": [{"name": "bytes"}],
    } | members  # fmt: skip


def keys(told: dict[str, Any]) -> Callable[[txstore.Repository], Any]:
    """Return what writes keys: bytes as they are, all else as JSON."""

    def make(repo: txstore.Repository) -> None:
        with repo.begin("keys") as mapping:
            for key, value in {"zarr.json": _GROUP, **told}.items():
                mapping[key] = value if isinstance(value, bytes) else json.dumps(value).encode()

    return make


def _old(**members: Any) -> dict[str, Any]:
    return {"zarr_format": 2, "dtype": "<f8", "shape": [4], "chunks": [4], "compressor": None, "filters": None,
            "order": "C", "fill_value": 0} | members  # fmt: skip


def _string(text: bytes) -> bytes:
    return (1).to_bytes(4, "little") + len(text).to_bytes(4, "little") + text


def _nested(depth: int) -> bytes:
    return json.dumps(document(attributes={"deep": 0})).replace("0}", "[" * depth + "]" * depth + "}").encode()


_DOCUMENTS: dict[str, dict[str, Any]] = {
    **{f"chunks of {str(lengths)[:12]}": document(chunk_grid=grid(lengths))
       for lengths in ([0], [1e-300], [1e300], [-1], ["2"], ["9" * MIB], [None], [[4]], [], {"a": 1}, [1] * 3000)},
    **{f"{dims} dimensions": document(shape=[1] * dims, chunk_grid=grid([1] * dims)) for dims in (64, 65, 3000, 10**6)},
    **{f"lengths of {length}": document(shape=[length] * 2, chunk_grid=grid([1] * 2))
       for length in (2**53 - 1, 2**53, 1e300, -1, 0, None, "4")},
    "chunks without end": document(shape=[2**40, 2**40], chunk_grid=grid([1, 1])),
    "one chunk without end": document(shape=[2**40], chunk_grid=grid([2**40])),
    "many attributes": document(attributes={f"a{i}": i for i in range(100_000)}),
    "nested attributes": document(attributes={f"a{i}": {f"b{j}": [j] * 9 for j in range(99)} for i in range(99)}),
    "lines": document(attributes={f"a{i}": "\n" * 10_000 for i in range(100)}),
    "a text": document(attributes={"text": "x" * (15 * MIB)}),
    "a text too long": document(attributes={"text": "x" * (60 * MIB)}),
    "a name": document(attributes={"x" * (8 * MIB): 1}),
    "a list": document(attributes={"list": [[]] * (3 * MIB)}),
    "names of dimensions": document(dimension_names=["x" * MIB] * 9),
    "many names of dimensions": document(dimension_names=["x"] * MIB),
    "many codecs": document(codecs=[{"name": "bytes"}] * 100_000),
    "a codec's name": document(codecs=[{"name": "x" * (4 * MIB)}]),
    "a fill value": document(fill_value="0x" + "f" * (4 * MIB)),
    "a list of fill values": document(fill_value=[0] * MIB),
    "a data type": document(data_type="float" + "1" * MIB + "x"),
    "a data type that is an object": document(data_type={"name": "x" * MIB, "configuration": {"length_bytes": 2**60}}),
    "an endless element": document(data_type={"name": "fixed_length_utf32", "configuration": {"length_bytes": 2**50}}),
    "a separator": document(chunk_key_encoding={"name": "default", "configuration": {"separator": "x" * MIB}}),
    "what no array has": document(**{f"member{i}": "x" * 20 for i in range(50_000)}),
    "consolidated": _GROUP | {"consolidated_metadata": {"metadata": {f"g{i}": document() for i in range(9000)}}},
}  # fmt: skip


def _rows() -> Iterator[Row]:
    for name, told in _DOCUMENTS.items():
        for view in _VIEWS:
            yield Row(f"{name} {view}", keys({"a/zarr.json": told}), f"tree/main/a{view}")
    for count in (100, 200_000, 2_000_000):
        for sign in (" ", "+00", "s"):
            units = {"units": f"days since 2000-01-01{sign * count}x"}
            told = {"x/zarr.json": document(attributes=units), "a/zarr.json": document(dimension_names=["x"])}
            yield Row(f"units with {count} times {sign}", keys(told), "tree/main/a")
    for depth in (1000, 100_000, 2_000_000):
        yield Row(f"attributes {depth} deep", keys({"a/zarr.json": _nested(depth)}), "tree/main/a?view=details")
    for size in (MIB, 60 * MIB):
        told = {"a/zarr.json": document(shape=[1], chunk_grid=grid([1]), **_STRING), "a/c/0": _string(b"x" * size)}
        yield Row(f"a value of {size} letters", keys(told), "tree/main/a")
    for name, members in {
        "eight times": _old(shape=[2**27], chunks=[2**27]), "structured": _old(dtype=[["a", "<f8"]] * MIB),
        "bytes": _old(dtype="|S1000000000"), "letters": _old(dtype="<U100000000"), "filters": _old(filters=[{}] * MIB),
    }.items():  # fmt: skip
        yield Row(f"format 2, {name}", keys({"a/.zarray": members}), "tree/main/a")
    for place in ("history", "tree/main/", "usage/main", "diff"):
        yield Row(f"siblings, {place}", keys(_siblings()), place)
        yield Row(f"words, {place}", _words, place)


def _siblings() -> dict[str, Any]:
    """Many that are odd beside one that is not."""
    odd = {f"g{i:03}/zarr.json": list(_DOCUMENTS.values())[i % 40] for i in range(40)}
    return {**odd, "good/zarr.json": document(), "bad/zarr.json": b"{" * MIB}


def _words(repo: txstore.Repository) -> None:
    """What a commit says is long."""
    keys({"a/zarr.json": document()})(repo)
    properties = {f"p{i}": "x" * 90 for i in range(30_000)}
    forge_header(Path(repo.url), 0, message="word\n" * MIB, author="x" * MIB, properties=properties)


def hostile() -> list[Row]:
    return list(_rows())


def _large_image(side: int, kind: str) -> Callable[[txstore.Repository], Any]:
    import zarr

    def make(repo: txstore.Repository) -> None:
        with repo.transaction("an image") as store:
            zarr.create_array(store, name="a", shape=(side, side), chunks=(256, 256), dtype=kind, fill_value=3)[
                :512
            ] = 1

    return make


def _many(count: int) -> Callable[[txstore.Repository], Any]:
    return keys({f"g{i:05}/zarr.json": _GROUP for i in range(count)})


def _commits(repo: txstore.Repository) -> None:
    for i in range(1200):
        with repo.begin(f"commit {i}") as mapping:
            mapping[f"a/c/{i}"] = bytes([i % 256])
            if not i:
                mapping["a/zarr.json"] = json.dumps(document(shape=[1200], chunk_grid=grid([1]))).encode()


def large() -> list[Row]:
    images = [(20_000, "u1"), (20_000, "f8"), (100_000, "f4"), (1_000_000, "u2"), (4000, "u1"), (2048, "f8")]
    rows = [
        Row(f"{side} {kind} {view}", _large_image(side, kind), f"tree/main/a{view}")
        for side, kind in images for view in ("", "?view=chunks")
    ]  # fmt: skip
    places = ("history", "tree/main/", "usage/main", "diff")
    rows += [Row(f"20,000 groups, {place}", _many(20_000), place) for place in places]
    return rows + [Row(f"1,200 commits, {place}", _commits, place) for place in (*places, "tree/main/a?view=chunks")]


def made(row: Row, folder: Path, number: int) -> str:
    """Make the repository of a row; return the name of its directory. Rows that differ by the place alone share one."""
    repo = txstore.Repository(folder / f"{number}.tx")
    row.make(repo)
    return f"{number}.tx"

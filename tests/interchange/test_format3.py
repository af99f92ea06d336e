"""Hierarchies of format 2 that are imported below groups of format 3: the same chunks, in the words of format 3."""

import json
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

import txstore
from txstore.errors import SourceError
from txstore.interchange.format3 import documents_in_format_3

VALUES = np.arange(60, dtype="f8").reshape(6, 10) / 4

CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "nothing": {"compressors": None},
    "zlib": {"compressors": numcodecs.Zlib(3)},
    "gzip": {"compressors": numcodecs.GZip(3)},
    "zstd": {"compressors": numcodecs.Zstd(3)},
    "lz4": {"compressors": numcodecs.LZ4()},
    "blosc": {"compressors": numcodecs.Blosc("lz4", 5, numcodecs.Blosc.BITSHUFFLE)},
    "blosc-auto": {"compressors": numcodecs.Blosc("zstd", 1, -1)},
    "kerchunk": {"filters": [numcodecs.Shuffle(8), numcodecs.Zlib(4)], "compressors": None},
    "fletcher32": {"filters": [numcodecs.Shuffle(8), numcodecs.Fletcher32()], "compressors": numcodecs.Zlib(1)},
    "delta": {"filters": [numcodecs.Delta("<f8")]},
    "scaled": {"filters": [numcodecs.FixedScaleOffset(0, 4, "<f8", "<i2")], "compressors": numcodecs.Zlib(1)},
    "scaled-to-bytes": {"filters": [numcodecs.FixedScaleOffset(0, 4, "<f8", "|u1")]},
    "big": {"dtype": ">f8"},
    "columns": {"order": "F"},
    "big-columns": {"dtype": ">i4", "order": "F", "filters": [numcodecs.Shuffle(4)]},
    "slashes": {"chunk_key_encoding": {"name": "v2", "separator": "/"}},
    "bool": {"dtype": "?"},
    "half": {"dtype": "f2", "fill_value": float("nan")},
    "complex": {"dtype": "c16"},
    "dates": {"dtype": "M8[s]"},
}


def make(store: Any, options: dict[str, Any], attributes: dict[str, Any] | None = None) -> Any:
    given = {"dtype": "f8", "fill_value": 1, **options}
    if given["dtype"] == "M8[s]":
        given["fill_value"] = np.datetime64("NaT", "s")
    array = zarr.create_array(
        store, name="x", shape=VALUES.shape, chunks=(4, 4), zarr_format=2, attributes=attributes or {}, **given
    )
    array[:4] = VALUES[:4].astype(given["dtype"])  # the rest is fill value
    return array[:]


@pytest.mark.parametrize("case", CASES)
def test_the_chunks_mean_what_they_meant(case: str) -> None:
    kept: dict[str, Any] = {}
    expected = make(MemoryStore(kept), CASES[case], {"units": "m"})
    chunks = {key: value for key, value in kept.items() if not key.rpartition("/")[2].startswith(".z")}
    documents = {key: value.to_bytes() for key, value in kept.items() if key not in chunks}
    made = documents_in_format_3(documents)
    assert sorted(made) == ["x/zarr.json", "zarr.json"]
    buffer = next(iter(kept.values()))
    both = {**chunks, **{key: type(buffer).from_bytes(value) for key, value in made.items()}}
    array = zarr.open_array(MemoryStore(both), path="x", mode="r+", zarr_format=3)
    assert array.attrs["units"] == "m"
    np.testing.assert_array_equal(array[:], expected)
    array[:] = expected[::-1]  # and can be written
    np.testing.assert_array_equal(array[:], expected[::-1])


def test_scalars_and_arrays_without_elements() -> None:
    kept: dict[str, Any] = {}
    store = MemoryStore(kept)
    zarr.create_array(store, name="s", shape=(), dtype="i4", zarr_format=2)[...] = 7
    zarr.create_array(store, name="e", shape=(0, 3), chunks=(1, 3), dtype="i4", zarr_format=2)
    kept["e/.zarray"] = type(kept["e/.zarray"]).from_bytes(
        json.dumps(json.loads(kept["e/.zarray"].to_bytes()) | {"chunks": [0, 3]}).encode()
    )
    documents = {key: value.to_bytes() for key, value in kept.items() if key != "s/0"}
    made = {key: type(kept["s/0"]).from_bytes(value) for key, value in documents_in_format_3(documents).items()}
    opened = MemoryStore({**made, "s/0": kept["s/0"]})
    assert zarr.open_array(opened, path="s", mode="r", zarr_format=3)[...] == 7
    assert zarr.open_array(opened, path="e", mode="r", zarr_format=3).shape == (0, 3)


@pytest.mark.parametrize("path", ["", "x"])
@pytest.mark.parametrize("dtype", ["<i2", ">i2"])
def test_records_keep_their_values_or_are_refused(open_repo: Any, tmp_path: Path, dtype: str, path: str) -> None:
    """Format 3 has no byte order for the fields of a record."""
    values = np.array([(1, 2), (3, 4)], [("a", "<i4"), ("b", dtype)])
    zarr.create_array(tmp_path / "plain.zarr", data=values, zarr_format=2)
    repo = open_repo()
    if path and dtype == ">i2":
        with pytest.raises(SourceError, match="big-endian records"):
            repo.import_from(tmp_path / "plain.zarr", path)
        return
    repo.import_from(tmp_path / "plain.zarr", path)
    assert zarr.open_array(repo.snapshot(), path=path, mode="r")[:].tolist() == values.tolist()


@pytest.fixture
def with_root(repo: txstore.Repository) -> txstore.Repository:
    with repo.transaction() as store:
        zarr.create_group(store)
    return repo


def test_what_xarray_takes_for_missing_stays_missing(with_root: txstore.Repository, tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    plain = tmp_path / "plain.zarr"
    data = xr.Dataset({"t": (("y", "x"), [[1.0, np.nan]]), "n": ("x", [3, 4])}, {"x": [0, 1]}, {"title": "t"})
    data.to_zarr(plain, zarr_format=2, encoding={"t": {"_FillValue": -9.0}, "n": {"_FillValue": 4}}, consolidated=False)
    with_root.import_from(plain, "deep/plain")
    found = xr.open_zarr(with_root.snapshot(), group="deep/plain", chunks=None).load()
    xr.testing.assert_identical(found, xr.open_zarr(plain, consolidated=False, chunks=None).load())
    assert found.n.dtype == "f8"  # since 4 is missing
    assert found.t.dims == ("y", "x")


def test_a_record_of_any_number_of_fields(with_root: txstore.Repository, tmp_path: Path) -> None:
    """zarr takes a millisecond for each: two megabytes would take minutes."""
    fields = [[f"f{number}", "|u1"] for number in range(12_000)]
    document = {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": fields, "order": "C"}
    (tmp_path / "x").mkdir()
    rest = {"compressor": None, "filters": None, "fill_value": None}
    (tmp_path / "x" / ".zarray").write_text(json.dumps({**document, **rest}))
    with pytest.raises(SourceError, match="its data type takes more than 131,072 characters"):
        with_root.import_from(tmp_path / "x", "deep")


def test_times_that_xarray_takes_for_missing(with_root: txstore.Repository, tmp_path: Path) -> None:
    """Of times xarray has no words for a fill value in format 3. It takes NaT for missing anyway."""
    xr = pytest.importorskip("xarray")
    for name, fill in (("none", "NaT"), ("a-time", "2026-03-01")):
        group = zarr.open_group(tmp_path / name, mode="w", zarr_format=2)
        fill_value = np.datetime64(fill, "ns")
        times = group.create_array("t", shape=(2,), dtype="<M8[ns]", fill_value=fill_value)
        times.attrs["_ARRAY_DIMENSIONS"] = ["x"]
        times[0] = np.datetime64("2026-03-02", "ns")
    with_root.import_from(tmp_path / "none", "none")
    found = xr.open_zarr(with_root.snapshot(), group="none", consolidated=False).t.values
    assert [str(each)[:10] for each in found] == ["2026-03-02", "NaT"]
    with pytest.raises(SourceError, match="its fill value is a time, 2026-03-01"):
        with_root.import_from(tmp_path / "a-time", "other")


@pytest.mark.parametrize(("values", "fill"), [(["a", ""], ""), ([1j, 0j], 0j)])
def test_xarray_opens_what_has_a_fill_value(
    with_root: txstore.Repository, tmp_path: Path, values: list[Any], fill: Any
) -> None:
    """It has words for that of complex numbers, in newer versions, and none for that of texts."""
    xr, zarr_backend = pytest.importorskip("xarray"), pytest.importorskip("xarray.backends.zarr")
    if isinstance(fill, complex):
        try:
            zarr_backend.FillValueCoder.encode(fill, np.dtype("c16"))
        except ValueError as error:
            pytest.skip(f"this xarray has none: {error}")
    group = zarr.create_group(tmp_path / "plain.zarr", zarr_format=2)
    group.create_array("x", data=np.array(values), fill_value=fill, attributes={"_ARRAY_DIMENSIONS": ["n"]})
    with_root.import_from(tmp_path / "plain.zarr", "deep/plain")
    expected = xr.open_zarr(tmp_path / "plain.zarr", consolidated=False, chunks=None).x.load()
    found = xr.open_zarr(with_root.snapshot(), group="deep/plain", consolidated=False, chunks=None).x.load()
    xr.testing.assert_equal(found, expected)


@pytest.mark.parametrize("dtype", ["|V500000000", [["a", "|V500000000"]]])
def test_a_fill_value_that_is_longer_than_memory(with_root: txstore.Repository, dtype: Any) -> None:
    """Of 200 bytes an import made a document of 667 MB, in three minutes."""
    array = {"zarr_format": 2, "shape": [3], "chunks": [2], "dtype": dtype, "fill_value": None, "order": "C"}
    refs = {".zgroup": {"zarr_format": 2}, "x/.zarray": array | {"filters": None, "compressor": None}}
    with pytest.raises(txstore.SourceError, match="its elements have 500,000,000 bytes each"):
        with_root.import_references(refs, "deep")


def test_a_manifest_of_format_2(open_repo: Any, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    from tests.interchange.manifests import TEMPERATURES, references_of, write_hdf5

    file = write_hdf5(tmp_path / "station.nc")
    repo = open_repo(sources=[tmp_path])
    with repo.transaction() as store:
        zarr.create_group(store)
    repo.import_references(references_of(file), "stations/one")
    group = zarr.open_group(repo.snapshot(), path="stations/one", mode="r")
    assert group.metadata.zarr_format == 3
    assert group.attrs["title"] == "station"
    np.testing.assert_array_equal(group["temperature"][:], TEMPERATURES)
    assert group["temperature"].metadata.dimension_names == ("time", "station")
    assert not [key for key in repo.mapping() if key.rpartition("/")[2].startswith(".z")]
    with repo.transaction() as store:
        zarr.open_array(store, path="stations/one/temperature")[0] = 280.0
    np.testing.assert_array_equal(
        zarr.open_array(repo.snapshot(), path="stations/one/temperature", mode="r")[1:], TEMPERATURES[1:]
    )
    assert repo.verify().ok


@pytest.mark.parametrize("path", ["", "stations/one"])
def test_an_array_beside_imported_references_hides_none(repo: txstore.Repository, path: str) -> None:
    """zarr makes nodes of format 3, and sees none of format 2 beside them."""
    document = {
        "zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|u1", "order": "C", "fill_value": 0,
        "filters": None, "compressor": None,
    }  # fmt: skip
    refs = {".zgroup": json.dumps({"zarr_format": 2}), "x/.zarray": json.dumps(document), "x/0": "ab"}
    repo.import_references(refs, path)
    with repo.transaction() as store:
        zarr.create_array(store, name="new", data=np.arange(3))
    group = zarr.open_group(repo.snapshot(), mode="r")
    assert group[f"{path}/x".strip("/")][:].tolist() == list(b"ab")
    assert group["new"][:].tolist() == [0, 1, 2]


def test_a_copy_below_a_group_of_format_3(with_root: txstore.Repository, tmp_path: Path) -> None:
    plain = zarr.open_group(tmp_path / "plain.zarr", mode="w", zarr_format=2, attributes={"title": "plain"})
    plain.create_array("deep/x", data=np.arange(10), chunks=(5,))
    told: list[tuple[int, int]] = []
    with_root.import_from(tmp_path / "plain.zarr", "in", progress=lambda *numbers: told.append(numbers))
    assert told[-1][0] == told[-1][1] > 0
    with_root.import_from(tmp_path / "plain.zarr", "joined", concat=0)
    for path in ("in", "joined"):
        group = zarr.open_group(with_root.snapshot(), path=path, mode="r", zarr_format=3)
        np.testing.assert_array_equal(group["deep/x"][:], np.arange(10))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"filters": [{"id": "json2"}], "dtype": "|O"}, "json2"),
        ({"filters": [{"id": "shuffle"}, {"id": "delta", "dtype": "<f8"}]}, "delta"),
        ({"order": "F", "filters": [{"id": "delta", "dtype": "<f8"}]}, "another order"),
        ({"compressor": {"id": "unheard-of"}}, "unheard-of"),
        ({"dtype": "nonsense"}, "x"),
    ],
)
def test_what_format_3_has_no_words_for(with_root: txstore.Repository, wrong: dict[str, Any], reason: str) -> None:
    document = {
        "zarr_format": 2, "shape": [4, 4], "chunks": [4, 4], "dtype": "<f8", "order": "C", "fill_value": 0,
        "filters": None, "compressor": None, **wrong,
    }  # fmt: skip
    refs = {".zgroup": json.dumps({"zarr_format": 2}), "x/.zarray": json.dumps(document)}
    with pytest.raises(SourceError, match=f"(?s){reason}.*a repository of its own"):
        with_root.import_references(refs, "below")
    assert "below/zarr.json" not in with_root.mapping()

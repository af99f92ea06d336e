"""Data sets of VirtualiZarr: written by reference, read as xarray reads the files that they are of."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.interchange.foreign import temperatures
from txstore.errors import SourceChangedError, SourceError

pytest.importorskip("virtualizarr")
pytest.importorskip("h5netcdf")

import xarray as xr
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from virtualizarr import open_virtual_dataset, open_virtual_datatree
from virtualizarr.manifests import ChunkManifest, ManifestArray
from virtualizarr.manifests.utils import create_v3_array_metadata
from virtualizarr.parsers import HDFParser, NetCDF3Parser

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning", "ignore::FutureWarning")

OpenRepo = Callable[..., txstore.Repository]


def write(path: Path, days: slice, **encoding: Any) -> Path:
    dataset = temperatures(days).drop_vars("station")
    dataset.tas.encoding.update(chunksizes=(10, 3, 8), zlib=True, shuffle=True, **encoding)
    dataset.elevation.encoding.update(_FillValue=0.5)
    dataset.to_netcdf(path, engine="h5netcdf", unlimited_dims=["time"])
    return path


def parse(path: Path, **arguments: Any) -> Any:
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    return open_virtual_dataset(f"file://{path}", **{"registry": registry, "parser": HDFParser(), **arguments})


def opened(repo: txstore.Repository, group: str = "") -> Any:
    return xr.open_zarr(repo.snapshot(), group=group or None, consolidated=False).load()


@pytest.fixture
def nc(tmp_path: Path) -> Path:
    (tmp_path / "raw").mkdir()
    return write(tmp_path / "raw" / "a.nc", slice(0, 20))


@pytest.fixture
def next_nc(nc: Path) -> Path:
    return write(nc.with_name("b.nc"), slice(20, 35))


@pytest.fixture
def repo(open_repo: OpenRepo, nc: Path) -> txstore.Repository:
    return open_repo(sources=[nc.parent])


def raw(shape: tuple[int, ...], chunks: tuple[int, ...], entries: dict[str, Any], fill: Any = 7) -> Any:
    metadata = create_v3_array_metadata(shape=shape, data_type=np.dtype("u1"), chunk_shape=chunks, fill_value=fill)
    grid = tuple(-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True))
    return ManifestArray(metadata, ChunkManifest(entries, shape=grid if not entries else None))


def of_bytes(path: Path, chunk: int = 0, length: int = 4, **arguments: Any) -> Any:
    """Return a data set of one virtual variable: some bytes of a file."""
    entry = {"path": str(path), "offset": 4 * chunk, "length": length}
    return xr.Dataset({"x": ("at", raw((4,), (4,), {"0": entry}, **arguments))})


# --- what is written
def test_a_file_is_read_as_it_is(repo: txstore.Repository, nc: Path) -> None:
    made = txstore.write_virtual(parse(nc), repo, "model/run")
    assert made.message == "virtual data set"
    xr.testing.assert_identical(opened(repo, "model/run"), xr.open_dataset(nc).load())
    assert repo.verify(sources=True).foreign == 5  # 2 by 2 chunks of tas, and elevation: the rest is in memory
    assert sorted(zarr.open_group(repo.snapshot(), mode="r").group_keys()) == ["model"]


@pytest.mark.parametrize("loaded", [[], ["time", "lat", "lon"], ["tas", "lat"]])
def test_what_is_in_memory_makes_no_difference(repo: txstore.Repository, nc: Path, loaded: list[str]) -> None:
    txstore.write_virtual(parse(nc, loadable_variables=loaded), repo)
    xr.testing.assert_identical(opened(repo), xr.open_dataset(nc).load())


def test_documents_are_those_of_the_writer_for_kerchunk(repo: txstore.Repository, nc: Path) -> None:
    virtual = parse(nc, loadable_variables=[])
    txstore.write_virtual(virtual, repo)
    refs = virtual.vz.to_kerchunk(format="dict", zarr_format=3)["refs"]
    for name in virtual.variables:
        own, told = json.loads(repo.mapping()[f"{name}/zarr.json"]), json.loads(refs[f"{name}/zarr.json"])
        for each in (own, told):
            each["chunk_key_encoding"] = None
        assert own == told
    assert repo.mapping().keys() >= {"tas/c/1/0/0", "time/c/0"}


def test_netcdf_3(repo: txstore.Repository, nc: Path) -> None:
    """Big-endian, and not compressed."""
    pytest.importorskip("netCDF4")
    path = nc.with_name("old.nc")
    temperatures(slice(0, 20)).drop_vars("station").to_netcdf(path, engine="netcdf4", format="NETCDF3_64BIT")
    txstore.write_virtual(parse(path, parser=NetCDF3Parser()), repo)
    xr.testing.assert_identical(opened(repo), xr.open_dataset(path).load())
    assert repo.verify(sources=True).foreign >= 2


def test_append(repo: txstore.Repository, nc: Path, next_nc: Path) -> None:
    with repo.transaction("two files") as store:
        assert txstore.write_virtual(parse(nc), store) is None
        txstore.write_virtual(parse(next_nc), store, append_dim="time")
    xr.testing.assert_identical(opened(repo), xr.open_mfdataset([nc, next_nc], data_vars="minimal").load())
    assert len(repo.log()) == 1


def test_append_to_what_is_ordinary(repo: txstore.Repository, nc: Path, next_nc: Path) -> None:
    """Virtual chunks follow those of `to_zarr`, if both are encoded alike."""
    with repo.transaction() as store:
        txstore.write_virtual(parse(nc), store)
        zarr.open_array(store, path="tas")[:5] = 0  # of ordinary chunks from now on
    txstore.write_virtual(parse(next_nc), repo, append_dim="time")
    found = opened(repo)
    assert found.sizes["time"] == 35
    np.testing.assert_array_equal(found.tas[5:], xr.open_mfdataset([nc, next_nc]).tas[5:])


def test_concatenated_with_missing_and_inlined_chunks(repo: txstore.Repository, nc: Path) -> None:
    content = nc.read_bytes()
    entries = {
        "0.1": {"path": str(nc), "offset": 8, "length": 4},
        "2.0": {"path": f"file://{nc}", "offset": 12, "length": 4},
        "1.1": {"path": "__inlined__", "offset": 0, "length": 4, "data": bytes(range(4))},
    }
    dataset = xr.Dataset({"x": (("a", "b"), raw((6, 4), (2, 2), entries)), "none": ("c", raw((9,), (2,), {}, 3))})
    txstore.write_virtual(dataset, repo)
    expected = np.full((6, 4), 7, "u1")
    expected[0:2, 2:4] = np.frombuffer(content[8:12], "u1").reshape(2, 2)
    expected[4:6, 0:2] = np.frombuffer(content[12:16], "u1").reshape(2, 2)
    expected[2:4, 2:4] = np.arange(4).reshape(2, 2)
    group: Any = zarr.open_group(repo.snapshot(), mode="r")
    np.testing.assert_array_equal(group["x"][:], expected)
    assert group["none"][:].tolist() == [3] * 9
    assert group["none"].metadata.dimension_names == ("c",)


def test_scalars_and_arrays_without_elements(repo: txstore.Repository, nc: Path) -> None:
    metadata = create_v3_array_metadata(shape=(), data_type=np.dtype("<i4"), chunk_shape=())
    scalar = ManifestArray(metadata, {"c": {"path": str(nc), "offset": 0, "length": 4}})
    txstore.write_virtual(xr.Dataset({"scalar": ((), scalar), "none": ("c", raw((0,), (2,), {}))}), repo)
    group: Any = zarr.open_group(repo.snapshot(), mode="r")
    assert group["scalar"][()] == np.frombuffer(nc.read_bytes()[:4], "<i4")[0]
    assert group["none"].shape == (0,)


def test_a_tree(repo: txstore.Repository, nc: Path) -> None:
    tree = xr.DataTree.from_dict({"/": xr.Dataset(attrs={"title": "t"}), "/a": xr.open_dataset(nc), "/a/b": None})
    path = nc.with_name("tree.nc")
    tree.to_netcdf(path, engine="h5netcdf")
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    virtual = open_virtual_datatree(f"file://{path}", registry=registry, parser=HDFParser())
    txstore.write_virtual(virtual, repo, "deep")
    found = xr.open_datatree(repo.snapshot(), engine="zarr", group="deep", consolidated=False)
    xr.testing.assert_identical(found.load(), xr.open_datatree(path).load())


# --- modes
def test_modes(repo: txstore.Repository, nc: Path) -> None:
    txstore.write_virtual(of_bytes(nc), repo, "g")
    with pytest.raises(FileExistsError, match="mode='w' replaces it"):
        txstore.write_virtual(of_bytes(nc), repo, "g")
    txstore.write_virtual(of_bytes(nc, 1).rename(x="y"), repo, "g", mode="a")
    assert sorted(opened(repo, "g")) == ["x", "y"]
    txstore.write_virtual(of_bytes(nc, 1), repo, "g", mode="a")
    assert opened(repo, "g").x.values.tobytes() == nc.read_bytes()[4:8]
    with pytest.raises(ValueError, match="mean something else: fill_value: 7 there, 9 here"):
        txstore.write_virtual(of_bytes(nc, fill=9), repo, "g", mode="a")
    txstore.write_virtual(of_bytes(nc, fill=9), repo, "g", mode="w")
    assert sorted(opened(repo, "g")) == ["x"]


def test_what_is_replaced_leaves_no_chunk(repo: txstore.Repository, nc: Path) -> None:
    """Not of the array before, nor of keys that no array has."""
    entries = {str(at): {"path": str(nc), "offset": 4 * at, "length": 4} for at in range(2)}
    with repo.transaction() as store:
        store["y/c/1"] = b"left"
        txstore.write_virtual(xr.Dataset({"x": ("at", raw((8,), (4,), entries))}), store)
    given = xr.Dataset(
        dict.fromkeys("xy", ("at", raw((8,), (4,), {"0": entries["1"], "1": {**entries["0"], "path": ""}})))
    )
    txstore.write_virtual(given, repo, mode="a")
    for name in "xy":
        assert opened(repo)[name].values.tobytes() == nc.read_bytes()[4:8] + bytes([7] * 4)


@pytest.mark.parametrize("name", ["a/b", 1])
def test_names_under_which_no_variable_would_be_found(repo: txstore.Repository, nc: Path, name: Any) -> None:
    with pytest.raises(ValueError, match="is no name of a variable"):
        txstore.write_virtual(of_bytes(nc).rename(x=name), repo)


def test_a_manifest_of_more_chunks_than_its_array_has(repo: txstore.Repository, nc: Path) -> None:
    """They would be seen as soon as the array grows."""
    larger = ChunkManifest({str(at): {"path": str(nc), "offset": 0, "length": 4} for at in range(2)})
    metadata = of_bytes(nc).x.data.metadata
    with pytest.raises(ValueError, match=r"\(1,\) chunks, and its manifest \(2,\)"):
        txstore.write_virtual(xr.Dataset({"x": ("at", ManifestArray(metadata, larger))}), repo)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "r"}, "not one of"),
        ({"append_dim": "at", "mode": "w"}, "goes with no mode"),
        ({"append_dim": "nowhere"}, "no dimension"),
        ({"append_dim": "at"}, "no group at '/'"),
    ],
)
def test_arguments(repo: txstore.Repository, nc: Path, arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        txstore.write_virtual(of_bytes(nc), repo, **arguments)
    with repo.transaction() as store, pytest.raises(ValueError, match=message):
        txstore.write_virtual(of_bytes(nc), store, **arguments)
    assert not repo.exists


def test_targets(repo: txstore.Repository, nc: Path) -> None:
    with repo.transaction() as store, pytest.raises(ValueError, match="the store's own transaction"):
        txstore.write_virtual(of_bytes(nc), store, message="why")
    txstore.write_virtual(of_bytes(nc), repo, message="why")
    with pytest.raises(ValueError, match="read-only"):
        txstore.write_virtual(of_bytes(nc), repo.snapshot(), "g")
    with pytest.raises(TypeError, match="not str"):
        txstore.write_virtual(of_bytes(nc), repo.url, "g")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not dict"):
        txstore.write_virtual({}, repo, "g")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is an array"):
        txstore.write_virtual(of_bytes(nc), repo, "x")
    with pytest.raises(ValueError, match="'x' is an array"):
        txstore.write_virtual(of_bytes(nc), repo, "x/y")


def test_what_can_not_be_appended(repo: txstore.Repository, nc: Path) -> None:
    with repo.transaction() as store:
        txstore.write_virtual(of_bytes(nc).assign(u=of_bytes(nc).x.assign_attrs(units="K")), store)
    for given, message in [
        (of_bytes(nc).rename(x="z"), "no array 'z'"),
        (of_bytes(nc, fill=9), "fill_value: 7 there, 9 here"),
        (xr.Dataset({"u": of_bytes(nc).x.assign_attrs(units="degC")}), "units"),
        (xr.Dataset({"x": of_bytes(nc).x.assign_attrs(_Unsigned="false")}), "_Unsigned"),
        (xr.Dataset({"x": of_bytes(nc).x.assign_attrs(flag_meanings="dry wet")}), "flag_meanings"),
        (xr.Dataset({"x": ("at", raw((4,), (2,), {}))}), "chunk_grid"),
        (xr.Dataset({"x": ("elsewhere", raw((4,), (4,), {})), "at": ("at", [1])}), "dimension_names"),
    ]:
        with pytest.raises(ValueError, match=message):
            txstore.write_virtual(given, repo, append_dim="at")
    with repo.transaction() as store:
        txstore.write_virtual(xr.Dataset({"x": ("at", raw((2,), (4,), {}))}), store, append_dim="at")
        store.commit(allow_misaligned=True)
    with pytest.raises(ValueError, match="6 elements along 'at', in chunks of 4"):
        txstore.write_virtual(of_bytes(nc), repo, append_dim="at")


# --- files
def test_refused_files_stage_nothing(repo: txstore.Repository, nc: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.bin"
    outside.write_bytes(bytes(8))
    relative = of_bytes(nc)
    relative.x.data.manifest._paths[...] = "raw/a.nc"
    with repo.transaction("what is left") as store:
        for given, message in [
            (of_bytes(outside), "may not be read here: to allow it, sources="),
            (of_bytes(nc.with_name("none.nc")), "there is no such file"),
            (of_bytes(nc, length=nc.stat().st_size + 1), "do not lie in it"),
            (relative, "rename_paths"),
        ]:
            with pytest.raises(SourceError, match=message):
                txstore.write_virtual(of_bytes(nc).merge(given.rename(x="y")), store, "g")
            assert store.staged_count == 0
        txstore.write_virtual(of_bytes(nc), store, "g")
    assert sorted(opened(repo, "g")) == ["x"]


def test_ranges_beyond_what_an_integer_holds(repo: txstore.Repository, nc: Path) -> None:
    given = of_bytes(nc)
    given.x.data.manifest._offsets[...] = 2**64 - 2
    with pytest.raises(SourceError, match="do not lie in it"):
        txstore.write_virtual(given, repo)


def test_a_half_can_not_be_committed(repo: txstore.Repository, nc: Path) -> None:
    """An error after something was staged, here of xarray about a variable in memory."""
    txstore.write_virtual(parse(nc), repo)
    short = parse(nc).isel(lat=slice(0, 3))[["lat"]].assign(new=of_bytes(nc).x)
    store = repo.transaction()
    with pytest.raises(ValueError):
        txstore.write_virtual(short, store, mode="a")
    with pytest.raises(txstore.TransactionStateError, match="rollback"):
        store.commit("half")
    store.rollback()


def test_a_file_that_has_changed(repo: txstore.Repository, nc: Path) -> None:
    txstore.write_virtual(parse(nc), repo)
    write(nc, slice(0, 30))
    with pytest.raises(SourceChangedError):
        opened(repo)


# --- many references
def test_many_references(repo: txstore.Repository, nc: Path) -> None:
    """More than are staged at once, of two files, with keys that were written before."""
    other = nc.with_name("other.bin")
    other.write_bytes(bytes(range(256)))
    count = 40_000
    metadata = create_v3_array_metadata(shape=(count,), data_type=np.dtype("u1"), chunk_shape=(1,))
    paths = np.where(np.arange(count) % 2, str(other), str(nc)).astype(np.dtypes.StringDType())
    offsets = (np.arange(count) % 256).astype("u8")
    manifest = ChunkManifest.from_arrays(paths=paths, offsets=offsets, lengths=np.ones(count, "u8"))
    with repo.transaction() as store:
        store["x/c/5"] = b"before"
        txstore.write_virtual(xr.Dataset({"x": ("at", ManifestArray(metadata, manifest))}), store)
        assert bytes(store["x/c/5"]) == b"\5"
        store["x/c/7"] = b"\0"
    found = zarr.open_array(repo.snapshot(), path="x", mode="r")[:300]
    expected = np.where(np.arange(300) % 2, np.arange(300) % 256, np.frombuffer(nc.read_bytes(), "u1")[offsets[:300]])
    expected[7] = 0
    np.testing.assert_array_equal(found, expected)
    assert repo.verify(sources=True).foreign == count - 1


def test_references_that_do_not_fit(repo: txstore.Repository, nc: Path) -> None:
    with repo.transaction() as store:
        for arguments, message in [
            ((["x/c/0"], [str(nc)], [0, 1], [1]), "1 URLs, 2 offsets"),
            ((["x/c/0", "x/c/1"], [str(nc)], [0], [1]), "2 keys for 1 references"),
            ((["x/c/0"], [str(nc)], [-1], [1]), "not negative"),
            ((["x/c/0"], [str(nc)], [0.5], [1]), "not negative"),
            ((["x/zarr.json"], [str(nc)], [0], [1]), "metadata document"),
        ]:
            with pytest.raises(ValueError, match=message):
                store.set_references(*arguments)
        store.set_references([], [], [], [])
        assert store.staged_count == 0


def test_no_codec_that_may_not_run_decodes_what_is_appended_to(open_repo, tmp_path, monkeypatch):
    """xarray decodes the first and the last time of an array to encode others in its units."""
    file = tmp_path / "bytes"
    file.write_bytes(bytes(8))
    times = np.datetime64("2020-01-01", "ns") + np.arange(8) * np.timedelta64(1, "D")
    first = of_bytes(file).assign_coords(at=times[:4])
    repo = open_repo(sources=[tmp_path])
    with repo.transaction() as store:
        txstore.write_virtual(first, store)
        document = json.loads(store["at/zarr.json"])
        own = {"name": "bytes", "configuration": {"endian": "little"}}
        document["codecs"] = [own, {"name": "numcodecs.crc32", "configuration": {}}]
        store["at/zarr.json"] = json.dumps(document).encode()
        zarr.open_array(store, path="at", mode="r+")[:] = np.arange(4)
    monkeypatch.setattr("txstore.codecs.allowed_codecs._COMPUTING", frozenset({"bytes"}))
    with repo.transaction() as store:
        for options in ({"append_dim": "at"}, {"mode": "a"}):
            with pytest.raises(txstore.CodecRefusedError, match=r"crc32"):
                txstore.write_virtual(of_bytes(file, 1).assign_coords(at=times[4:]), store, **options)
        assert not store.staged_count
        store.rollback()
    monkeypatch.setenv("TXSTORE_CODECS", "crc32")
    txstore.write_virtual(of_bytes(file, 1).assign_coords(at=times[4:]), repo, append_dim="at")
    assert (opened(repo)["at"].values == times).all()

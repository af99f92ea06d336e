"""Import of HDF5 and NetCDF: the numbers, the names of dimensions, the attributes; many files joined to one."""

from __future__ import annotations

import ctypes
import signal
import struct
import tracemalloc
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr

import txstore
from tests.interchange.foreign import positions, temperatures, write_netcdf, write_workers
from tests.tools.command_line import run
from tests.tools.disk import run_python
from txstore.interchange import arrays, hdf5_arrays
from txstore.interchange.arrays import chunk_shape, same
from txstore.interchange.hdf5_arrays import NetcdfArrays
from txstore.interchange.places import Place

h5py = pytest.importorskip("h5py")
xr = pytest.importorskip("xarray")
pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning", "ignore::FutureWarning")


def opened(repo: txstore.Repository, path: str = "") -> Any:
    return zarr.open_group(repo.snapshot(), path=path, mode="r")


@pytest.mark.parametrize("kind", ["nc", "h5", "2", "3"])
def test_files_whose_axes_have_other_names_are_not_joined(repo: txstore.Repository, tmp_path: Path, kind: str) -> None:
    """Of as many rows as columns, a transposed one has the same shape."""
    given = xr.Dataset({"v": (("time", "lat"), np.arange(16.0).reshape(4, 4))})
    paths = [tmp_path / f"{name}.{kind}" for name in "ab"]
    for path, dataset in zip(paths, (given, given.transpose("lat", "time")), strict=True):
        if kind in "23":
            dataset.to_zarr(path, zarr_format=int(kind), consolidated=False)  # type: ignore[call-overload]
        elif kind == "nc":
            dataset.to_netcdf(path)
        else:
            with h5py.File(path, "w") as file:
                file["v"] = dataset.v.values
                for axis, name in enumerate(dataset.v.dims):
                    file["v"].dims[axis].label = name
    for concat in ("time", 0):
        with pytest.raises(txstore.SourceError, match=r"its dimensions are \('lat', 'time'\)"):
            repo.import_from(paths, concat=concat)


def test_values_without_end_that_were_never_written(repo: txstore.Repository, tmp_path: Path) -> None:
    """A file of two kilobytes declares any number: to copy them would take as long as it says."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", shape=(10**15,), chunks=(1 << 20,), dtype="u1")
        file["y"] = [1, 2, 3]
    group = zarr.create_group(tmp_path / "a.zarr")
    group.create_array("x", shape=(10**15,), chunks=(1 << 20,), dtype="u1")
    for name, options in (("a.h5", {}), ("a.zarr", {"concat": 0})):
        with pytest.raises(txstore.SourceError, match=r"most were never written. To leave it out: exclude=\['x'\]"):
            repo.import_from(tmp_path / name, **options)
    repo.import_from(tmp_path / "a.h5", exclude=["x"])
    assert opened(repo)["y"][:].tolist() == [1, 2, 3]


def test_files_with_other_fill_values_are_not_joined(repo: txstore.Repository, tmp_path: Path) -> None:
    """In format 2, xarray takes it for missing data; in format 3, an attribute."""
    for zarr_format, name in ((2, "fill_value"), (3, "_FillValue")):
        for fill in (0, -9):
            dataset = xr.Dataset({"v": ("time", [1.0, np.nan, 0.5])})
            options: Any = {"encoding": {"v": {"_FillValue": fill}}, "zarr_format": zarr_format, "consolidated": False}
            dataset.to_zarr(tmp_path / f"{zarr_format}-{fill}.zarr", **options)
        with pytest.raises(txstore.SourceError, match=f"other {name}"):
            repo.import_from(str(tmp_path / f"{zarr_format}-*.zarr"), concat="time")


# --- eight workers


@pytest.mark.parametrize("concat", ["sample", 0])
def test_eight_files_of_workers_become_one_array(repo: txstore.Repository, tmp_path: Path, concat: str | int) -> None:
    paths = write_workers(tmp_path)
    told: list[tuple[int, int]] = []
    exclude = ["tracks/axis"] if concat == 0 else []
    commit = repo.import_from(paths, concat=concat, exclude=exclude, progress=lambda *n: told.append(n))
    tracks = opened(repo)["tracks"]
    position = tracks["position"]
    np.testing.assert_array_equal(position[:], positions(0, 200))
    assert position.attrs.asdict() == {"units": "m"}
    assert position.metadata.dimension_names == ("sample", "axis")
    assert list(tracks["name"][:]) == [f"p{n}" for n in range(200)]
    assert opened(repo).attrs["experiment"] == "storm"
    if not exclude:
        assert list(tracks["axis"][:]) == [b"lon", b"lat"]
    assert commit.properties["import"]["sources"] == 8
    assert told[-1][0] >= 200 * 2 * 8
    assert [commit.version for commit in repo.log()] == [0]


KILLED = """
import os, sys, txstore
from txstore.interchange import arrays, hdf5_arrays
arrays._BLOCK = 1
steps = iter(range(int(sys.argv[3])))
def die(done, total):
    if next(steps, None) is None:
        os.kill(os.getpid(), 9)
repo = txstore.Repository(sys.argv[1])
repo.import_from(sys.argv[2], concat="sample", chunks={"sample": 16}, name="merge", progress=die)
"""


@pytest.mark.long
def test_a_merge_that_was_killed_goes_on_where_it_was(
    repo: txstore.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_workers(tmp_path)
    pattern = tmp_path / "worker-*.h5"
    for steps in (2, 11):
        assert run_python(KILLED, repo.url, pattern, steps).returncode == -signal.SIGKILL
        assert repo.head() is None
    monkeypatch.setattr(arrays, "_BLOCK", 1)
    repo.import_from(pattern, concat="sample", chunks={"sample": 16}, name="merge")
    np.testing.assert_array_equal(opened(repo)["tracks/position"][:], positions(0, 200))
    assert list(opened(repo)["tracks/name"][:]) == [f"p{n}" for n in range(200)]
    assert opened(repo)["tracks/position"].chunks == (16, 2)
    assert [commit.version for commit in repo.log()] == [0]


def test_files_that_do_not_fit_together(repo: txstore.Repository, tmp_path: Path) -> None:
    paths = write_workers(tmp_path, 2)

    def refused(match: str, concat: str = "sample") -> None:
        with pytest.raises(txstore.SourceError, match=match):
            repo.import_from(paths, concat=concat)
        assert not repo.exists or repo.head() is None

    refused("no array in it has the dimension 'time'", "time")
    with h5py.File(paths[1], "a") as file:
        file["tracks/position"].attrs["units"] = "km"
    refused("other units")
    with h5py.File(paths[1], "a") as file:
        file["tracks/position"].attrs["units"] = "m"
        file["tracks/axis"][0] = b"x"
    refused("'tracks/axis' is not along 'sample', and differs.*exclude")
    with h5py.File(paths[1], "a") as file:
        file["tracks/extra"] = 1
    refused("not the same arrays.*tracks/extra")
    with h5py.File(paths[1], "a") as file:
        del file["tracks/extra"], file["tracks/position"]
        file["tracks/position"] = np.zeros((25, 3))
        file["tracks/position"].attrs["units"] = "m"
    refused("shape|sample")


# --- HDF5


def test_what_hdf5_can_hold(repo: txstore.Repository, tmp_path: Path) -> None:
    record = np.dtype([("x", "f8"), ("n", "i2"), ("name", "S3")])
    expected: dict[str, Any] = {
        "scalar": np.float32(2.5),
        "empty": np.zeros((0, 3)),
        "bool": np.array([True, False]),
        "complex": np.array([1 + 2j, np.nan]),
        "half": np.arange(4, dtype="f2"),
        "big-endian": np.arange(6, dtype=">i4"),
        "fixed": np.array([b"ab", b"c"]),
        "records": np.array([(1.5, 2, b"abc"), (np.nan, 3, b"d")], record),
        "negative zero": np.full(10, -0.0),
        "all nan": np.full(10, np.nan),
        "u8": np.array([2**64 - 1], "u8"),
    }
    with h5py.File(tmp_path / "all.h5", "w") as file:
        for name, value in expected.items():
            file[f"deep/{name}"] = value
        file["enum"] = np.array([1, 0], h5py.enum_dtype({"CALM": 0, "STORM": 1}, "u1"))
        file["text"] = np.array(["κ", "", "three"], object)
        packed = file.create_dataset(
            "packed",
            (1000, 1000),
            "i4",
            chunks=(100, 1000),
            compression="gzip",
            shuffle=True,
            fletcher32=True,
            fillvalue=7,
        )
        packed[:50] = np.arange(1000)
        packed.attrs.update({"list": [1, 2], "bytes": np.bytes_(b"b"), "text": "κ", "number": np.float32(0.5)})
        file["soft"] = h5py.SoftLink("/packed")
        file["x"] = np.arange(3.0)
        file["x"].make_scale("x")
        file["text"].dims[0].attach_scale(file["x"])
    repo.import_from(tmp_path / "all.h5")
    group = opened(repo)
    for name, value in expected.items():
        found = group[f"deep/{name}"]
        assert same(found[...], value), name
        assert found.shape == np.shape(value)
        assert found.dtype == np.asarray(value).dtype.newbyteorder(found.dtype.byteorder)
    assert list(group["text"][:]) == ["κ", "", "three"]
    assert group["text"].metadata.dimension_names == ("x",)
    assert group["x"].metadata.dimension_names == ("x",)
    assert group["x"].attrs.asdict() == {}
    assert group["enum"].attrs.asdict() == {"flag_meanings": "CALM STORM", "flag_values": [0, 1]}
    assert list(group["enum"][:]) == [1, 0]
    packed = group["packed"]
    assert packed.chunks == (100, 1000)
    assert packed.fill_value == 7
    assert packed.nchunks_initialized == 1
    np.testing.assert_array_equal(packed[:50], np.tile(np.arange(1000), (50, 1)))
    assert packed.attrs.asdict() == {"list": [1, 2], "bytes": "b", "text": "κ", "number": 0.5}
    np.testing.assert_array_equal(group["soft"][:], packed[:])


@pytest.mark.parametrize(
    "what", ["external", "dangling", "loop", "reference", "null", "vlen", "subarray", "latin text"]
)
def test_what_of_hdf5_zarr_can_not_hold_is_named(repo: txstore.Repository, tmp_path: Path, what: str) -> None:
    with h5py.File(tmp_path / "odd.h5", "w") as file:
        group = file.create_group("g")
        file["x"] = np.arange(3)
        if what == "external":
            with h5py.File(tmp_path / "other.h5", "w") as other:
                other["private"] = np.arange(3)
            group[what] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/private")
        elif what == "dangling":
            group[what] = h5py.SoftLink("/nowhere")
        elif what == "loop":
            group[what] = file["g"]
        elif what == "reference":
            group[what] = np.array([file.ref], h5py.ref_dtype)
        elif what == "null":
            group[what] = h5py.Empty("f4")
        elif what == "subarray":
            group.create_dataset(what, (2,), np.dtype(("i4", (2,))))
        elif what == "latin text":
            group.create_dataset(what, data=[b"\xb0C"], dtype=h5py.string_dtype())
        else:
            group.create_dataset(what, (2,), h5py.vlen_dtype("i4"))
    with pytest.raises(txstore.SourceError, match=f"'g/{what}' can't be imported.*exclude"):
        repo.import_from(tmp_path / "odd.h5")
    repo.import_from(tmp_path / "odd.h5", exclude=[f"g/{what}"])
    assert "x" in opened(repo)


def test_a_file_that_is_open_far_away(repo: txstore.Repository, tmp_path: Path) -> None:
    import fsspec

    (path,) = write_workers(tmp_path, 1)
    fsspec.filesystem("memory").pipe_file("/worker.h5", path.read_bytes())
    fsspec.filesystem("memory").pipe_file("/t.nc", write_netcdf(tmp_path / "t.nc", slice(5)).read_bytes())
    repo.import_from("memory://worker.h5", "h5")
    repo.import_from("memory://t.nc", "nc")
    np.testing.assert_array_equal(opened(repo, "h5")["tracks/position"][:], positions(0, 25))
    assert opened(repo, "nc")["tas"].shape == (5, 6, 8)


# --- NetCDF


def as_dataset(repo: txstore.Repository, **arguments: Any) -> Any:
    return xr.open_zarr(repo.snapshot(), consolidated=False, chunks=None, **arguments).load()


@pytest.mark.parametrize(
    ("engine", "version"), [("h5netcdf", "NETCDF4"), ("netcdf4", "NETCDF4"), ("netcdf4", "NETCDF3_64BIT")]
)
def test_netcdf_opens_in_xarray_as_the_file_does(
    repo: txstore.Repository, tmp_path: Path, engine: str, version: str
) -> None:
    pytest.importorskip("netCDF4" if engine == "netcdf4" else engine)
    path = write_netcdf(tmp_path / "temperatures.nc", engine=engine, format=version)
    commit = repo.import_from(path)
    assert commit.properties["import"]["format"] == "netcdf"
    with xr.open_dataset(path) as expected:
        found = as_dataset(repo)
        assert set(found.variables) == set(expected.variables)
        xr.testing.assert_identical(found, expected.load())
        for name in ("units", "calendar", "dtype", "scale_factor", "add_offset", "_FillValue"):
            for variable in ("tas", "time"):
                assert found[variable].encoding.get(name) == expected[variable].encoding.get(name)
    np.testing.assert_allclose(found.tas, temperatures(slice(None)).tas, atol=0.006)
    assert np.isnan(found.tas[:, 0, :3]).all()
    assert opened(repo)["tas"].dtype == np.int16


def test_many_netcdf_files_are_joined(repo: txstore.Repository, tmp_path: Path) -> None:
    months = [slice(0, 31), slice(31, 59), slice(59, 90)]
    for number, days in enumerate(months):
        write_netcdf(tmp_path / f"{number}.nc", days)
    repo.import_from(tmp_path / "*.nc", "model", concat="time", chunks={"time": 32, "lat": 3})
    found = xr.open_zarr(repo.snapshot(), group="model", consolidated=False, chunks=None).load()
    write_netcdf(tmp_path / "whole", slice(0, 90))
    with xr.open_dataset(tmp_path / "whole", engine="h5netcdf") as expected:
        xr.testing.assert_identical(found, expected.load())
    assert opened(repo, "model")["tas"].chunks == (32, 3, 8)


def test_times_that_are_counted_from_other_dates_are_not_joined(repo: txstore.Repository, tmp_path: Path) -> None:
    write_netcdf(tmp_path / "0.nc", slice(0, 31))
    other = temperatures(slice(31, 59))
    other.time.encoding["units"] = "hours since 2025-02-01"
    other.to_netcdf(tmp_path / "1.nc", engine="h5netcdf")
    with pytest.raises(txstore.SourceError, match=r"'time' does not fit.*other units.*open_mfdataset"):
        repo.import_from(tmp_path / "*.nc", concat="time")


def test_groups_of_netcdf(repo: txstore.Repository, tmp_path: Path) -> None:
    path = write_netcdf(tmp_path / "tree.nc", slice(0, 3))
    xr.Dataset({"depth": ("z", [1.0, 2.0])}, attrs={"of": "ocean"}).to_netcdf(
        path, group="ocean/deep", mode="a", engine="h5netcdf"
    )
    repo.import_from(path, exclude=["elevation"])
    np.testing.assert_array_equal(opened(repo)["ocean/deep/depth"][:], [1, 2])
    assert opened(repo)["ocean/deep"].attrs["of"] == "ocean"
    assert "elevation" not in opened(repo)
    assert "tas" in opened(repo)


def test_text_is_not_cut_off(repo: txstore.Repository, tmp_path: Path) -> None:
    """Arrays are made after the first element of the first file alone."""
    texts = [["a", "longer", ""], ["longer than all in the first file"]]
    for number, names in enumerate(texts):
        dataset = xr.Dataset({"name": ("n", np.array(names, object))})
        dataset.to_netcdf(tmp_path / f"text-{number}.nc", engine="h5netcdf")
    repo.import_from(tmp_path / "text-*.nc", concat="n")
    assert list(as_dataset(repo).name.values) == [*texts[0], *texts[1]]


@pytest.mark.long
@pytest.mark.parametrize("hidden", ["nothing", "netCDF4", "h5netcdf"])
def test_each_engine_of_xarray_reads_text_in_files_and_groups(
    repo: txstore.Repository, tmp_path: Path, hidden: str
) -> None:
    """Unless the files are closed that xarray has opened, netCDF4 crashes the process when it opens one again."""
    pytest.importorskip("netCDF4")
    code = """
import sys
if sys.argv[1] != "nothing":
    sys.modules[sys.argv[1]] = None  # as if it was not installed
import numpy as np, xarray as xr
engine = "h5netcdf" if sys.argv[1] == "netCDF4" else "netcdf4"
stations = xr.Dataset({"t": (("station", "time"), np.ones((2, 3)))}, {"station": np.array(["Oslo", "Rīga"], object)})
stations.to_netcdf("one.nc", engine=engine)
stations.to_netcdf("two.nc", engine=engine)
stations.to_netcdf("two.nc", engine=engine, group="below", mode="a")
from txstore.cli.main import app
for name in "one", "two":
    app(["import", f"{name}.nc", sys.argv[2], "--path", name], standalone_mode=False)
"""
    ran = run_python(code, hidden, repo.url, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    for group in ("one", "two", "two/below"):
        assert list(as_dataset(repo, group=group).station.values) == ["Oslo", "Rīga"]


# --- on the way


def test_what_was_damaged_on_the_way_is_an_error(
    repo: txstore.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_workers(tmp_path)
    monkeypatch.setattr(zarr.Array, "__getitem__", lambda self, selection: np.zeros(1))
    with pytest.raises(txstore.CorruptionError, match="reads back differently"):
        repo.import_from(tmp_path / "worker-*.h5", concat="sample")
    assert repo.head() is None


def test_the_command_joins(repo: txstore.Repository, tmp_path: Path) -> None:
    write_workers(tmp_path)
    done = run("import", tmp_path / "worker-*.h5", repo.url, "--concat", "sample", "--chunks", "sample=50")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("imported 8 files, ")
    assert opened(repo)["tracks/position"].chunks == (50, 2)


def test_chunks() -> None:
    def chunks(shape: tuple[int, ...], given: Any = None, wanted: Any = None, itemsize: int = 8) -> tuple[int, ...]:
        return chunk_shape(shape, itemsize, given=given, dimensions=[None, "x"][: len(shape)], wanted=wanted or {})

    assert chunks((100_000, 1000), (1, 1000)) == (16, 1000)  # a row each: too small
    assert chunks((100_000, 1000), (100, 1000)) == (100, 1000)
    assert np.prod(chunks((100_000, 1000))) * 8 <= 1 << 20
    assert chunks((5, 3)) == (5, 3)
    assert chunks((0, 3)) == (1, 3)
    assert chunks(()) == ()
    assert chunks((5, 3), wanted={0: 2, "x": 1}) == (2, 1)


def test_blocks_cover_an_array_once_and_end_where_chunks_do() -> None:
    seen = np.zeros((50, 7), int)
    for region in arrays.blocks([13, 0], [50, 7], [8, 3], 1 << 20):
        seen[region] += 1
        assert region[0].start % 8 == 0 or region[0].start == 13
    assert (seen[13:] == 1).all()
    assert not seen[:13].any()


def test_blocks_of_an_array_that_claims_any_size_come_one_by_one() -> None:
    regions = arrays.blocks([0, 0], [1 << 62, 1 << 62], [1, 1], 1)
    assert next(regions) == (slice(0, 1), slice(0, 1 << 24))


# --- files of strangers, which lead to more than they hold


def links_to_links(file: Any) -> None:
    below = file.create_group("leaf")
    for number in range(60):
        group = file.create_group(f"g{number}")
        group["a"] = group["b"] = below
        below = group


def deep(file: Any) -> None:
    for _ in range(2000):
        file = file.create_group("g")


def links_to_an_array(file: Any) -> None:
    file["a"] = np.zeros(1)
    for number in range(64):
        file[str(number)] = file["a"]


def one_text(file: Any, elements: int = 10_000) -> None:
    made = file.create_dataset("text", (1,), h5py.string_dtype(), chunks=(1,))
    made[0] = "x" * 100_000
    file.flush()
    where = made.id.read_direct_chunk((0,))[1]
    made = file.create_dataset("a", (elements,), made.dtype, chunks=(elements,), compression="gzip")
    made.id.write_direct_chunk((0,), zlib.compress(where * elements))


def short_and_long(file: Any) -> None:
    """xarray makes each as long as the longest."""
    file.create_dataset("a", (20_000,), h5py.string_dtype(), chunks=(20_000,))[0] = "x" * 60_000


def one_text_of_an_attribute(file: Any) -> None:
    file.attrs["long"] = "x" * (1 << 21)
    file.attrs["may"] = ["x"] * 1000


def attributes(file: Any) -> None:
    file["a"] = np.zeros(1)
    for number in range(70):
        file["a"].attrs[str(number)] = np.zeros(60_000, "u1")
    for number in range(63):
        file[str(number)] = file["a"]


@pytest.mark.parametrize("suffix", ["h5", "nc"])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (links_to_links, "more than 64 paths"),
        (links_to_an_array, "more than 64 paths"),
        (deep, "below 100 groups"),
        (one_text, "many of its elements lead to one text"),
        (one_text_of_an_attribute, "1,000 elements of its attribute 'may' may lead to one text"),
        (attributes, "attributes have more than"),
        (lambda file: file.create_dataset("a", (10,), "f4", chunks=(1 << 26,), maxshape=(None,)), "h5repack"),
    ],
)
def test_what_has_no_bound_is_refused(
    repo: txstore.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, words: str, suffix: str
) -> None:
    monkeypatch.setattr(hdf5_arrays, "MOST_IN_MEMORY", 1 << 27)
    with h5py.File(tmp_path / f"stranger.{suffix}", "w") as file:
        make(file)
    with pytest.raises(txstore.SourceError, match=f"can't be imported: .*{words}"):
        repo.import_from(tmp_path / f"stranger.{suffix}")


@pytest.mark.parametrize(
    "make", [short_and_long, lambda file: file.create_dataset("a", (1 << 25,), h5py.string_dtype())]
)
def test_texts_that_xarray_would_read_at_once(repo: txstore.Repository, tmp_path: Path, make: Any) -> None:
    with h5py.File(tmp_path / "stranger.nc", "w") as file:
        make(file)
    with pytest.raises(txstore.SourceError, match=r"can't be imported: .*format='hdf5'"):
        repo.import_from(tmp_path / "stranger.nc")


def test_a_coordinate_of_any_length_is_not_read_to_open_a_file(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "stranger.nc", "w") as file:
        file.create_dataset("x", (10**13,), "f8", chunks=(1000,)).make_scale("x")
    with closing(NetcdfArrays(Place(tmp_path / "stranger.nc"))) as opened:
        assert opened.arrays["x"].shape == (10**13,)


def test_attributes_of_hdf5_that_json_lacks(repo: txstore.Repository, tmp_path: Path) -> None:
    times = np.array(["2020-01-01"], "M8[ns]")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"] = np.arange(3.0)
        file["a"].dims[0].label = "x"
        file["a"].attrs.update({"CLASS": "IMAGE", "NAME": "mine", "_FillValue": np.array([2.0])})
        file.attrs.update({"nothing": h5py.Empty("f4"), "no text": h5py.Empty("S1"), "none": np.zeros(0)})
        file.attrs.update({"latin": np.bytes_(b"\xb0C"), "long": np.longdouble("0.5")})
        file.attrs["times"] = times.astype(h5py.opaque_dtype(times.dtype))
    repo.import_from(tmp_path / "a.h5")
    assert opened(repo).attrs.asdict() == {
        "nothing": [], "no text": "", "none": [], "latin": "\udcb0C", "long": "0.5",
        "times": ["2020-01-01T00:00:00.000000000"],
    }  # fmt: skip
    assert opened(repo)["a"].attrs["CLASS"] == "IMAGE"
    assert opened(repo)["a"].attrs["NAME"] == "mine"
    np.testing.assert_array_equal(xr.open_zarr(repo.snapshot(), consolidated=False).a, [0, 1, np.nan])


@pytest.mark.parametrize("kind", ["list", "record", "vlen"])
def test_attributes_of_hdf5_that_refer_to_objects(repo: txstore.Repository, tmp_path: Path, kind: str) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("a", data=np.arange(3))
        record = np.dtype([("where", h5py.ref_dtype), ("n", "i4")])
        several = np.empty(1, object)
        several[0] = np.array([file.ref, file.ref], h5py.ref_dtype)
        value, dtype = {
            "list": ([file.ref], h5py.ref_dtype),
            "record": (np.array([(file.ref, 1)], record), record),
            "vlen": (several, h5py.vlen_dtype(h5py.ref_dtype)),
        }[kind]
        made.attrs.create("b", value, dtype=dtype)
    with pytest.raises(txstore.SourceError, match="its attribute 'b' refers to another object"):
        repo.import_from(tmp_path / "a.h5")


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("i4", -9),
        ("S4", b"ab"),
        (h5py.string_dtype(), "ab"),
        ([("a", "i4"), ("b", "S2")], np.array((7, b"x"), [("a", "i4"), ("b", "S2")])[()]),
    ],
)
def test_the_fill_value_of_an_array_that_is_empty_yet(
    repo: txstore.Repository, tmp_path: Path, dtype: Any, value: Any
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", (0,), dtype, maxshape=(None,), fillvalue=value)
    repo.import_from(tmp_path / "a.h5")
    with repo.transaction("longer") as store:
        zarr.open_array(store, path="a").resize(3)
    assert list(opened(repo)["a"][:]) == [value] * 3


def of_three_bytes(file: Any, create: Any) -> None:
    kind = h5py.h5t.STD_I32LE.copy()
    kind.set_precision(24)
    kind.set_size(3)
    create(file.id, b"a", kind, h5py.h5s.create_simple((4,)))


@pytest.mark.parametrize("suffix", ["h5", "nc"])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda file: file.create_group(b".."), "has a segment '.' or '..'"),
        (lambda file: file.create_group(b"\xff\xfe"), "lone surrogate"),
        (lambda file: file.create_group("a" * 5000), "at most 4096 are possible"),
        (lambda file: of_three_bytes(file, h5py.h5d.create), "numpy has no equivalent of its data type"),
        (lambda file: of_three_bytes(file, h5py.h5a.create), "its attribute 'a': numpy has no equivalent"),
    ],
)
def test_names_and_types_that_zarr_lacks(
    repo: txstore.Repository, tmp_path: Path, make: Any, words: str, suffix: str
) -> None:
    with h5py.File(tmp_path / f"a.{suffix}", "w") as file:
        make(file)
    with pytest.raises(txstore.SourceError, match=f"can't be imported: .*{words}"):
        repo.import_from(tmp_path / f"a.{suffix}")


# --- chunks that HDF5 believes


@pytest.mark.parametrize("suffix", ["h5", "nc"])
@pytest.mark.parametrize(
    ("compression", "mask", "content"),
    [
        (None, 0, b"A" * 8),
        ("gzip", 1, b"A" * 8),
        ("gzip", 0, zlib.compress(b"A" * 8)),
        ("gzip", 0, zlib.compress(b"A" * 8) + zlib.compress(b"A" * 65_528)),
        ("gzip", 0, zlib.compress(b"A" * 65_536)[:-20]),
        ("gzip", 0, zlib.compress(bytes(1 << 28))),
        ("lzf", 0, b"\x07AAAAAAAA"),
        ("lzf", 0, b"\x00A" + b"\xe0\xff\x00" * 200),
    ],
    ids=["short", "masked", "deflate", "two streams", "cut", "long", "lzf", "lzf again"],
)
def test_a_chunk_that_is_shorter_or_longer_than_its_values(
    repo: txstore.Repository, tmp_path: Path, suffix: str, compression: str | None, mask: int, content: bytes
) -> None:
    path = tmp_path / f"stranger.{suffix}"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("a", (1 << 16,), "u1", chunks=(1 << 16,), compression=compression)
        made.id.write_direct_chunk((0,), content, mask)
        file["b"] = np.arange(3)
    with pytest.raises(txstore.SourceError, match=r"'a' can't be imported: its chunk at .* instead of 65,536"):
        repo.import_from(path)
    repo.import_from(path, exclude=["a"])


def test_a_short_chunk_of_which_hdf5_tells_nothing(repo: txstore.Repository, tmp_path: Path) -> None:
    """Where a data set grows along another axis than the first, HDF5 tells of another chunk, or that there is none."""
    values = np.arange(36, dtype="u1").reshape(6, 6)
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        for name in ("good", "short"):
            made = file.create_dataset(name, data=values, chunks=(2, 2), maxshape=(6, None), compression="gzip")
        sparse = file.create_dataset("sparse", (6, 6), "u1", chunks=(2, 2), maxshape=(6, None), compression="gzip")
        sparse[2:4, :2] = 1
        made.id.write_direct_chunk((2, 0), zlib.compress(b"A"))
    with pytest.raises(txstore.SourceError, match=r"'short' can't be imported: its chunk at \(2, 0\) decodes"):
        repo.import_from(tmp_path / "a.h5")
    repo.import_from(tmp_path / "a.h5", exclude=["short"])
    np.testing.assert_array_equal(opened(repo)["good"][:], values)
    assert opened(repo)["sparse"][:].sum() == 4


def test_chunks_that_were_never_written_are_asked_for_again(tmp_path: Path) -> None:
    """As blocks of an import do that end within them. HDF5 says so in other words once it has read there."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("a", (6, 6), "u1", chunks=(2, 2), maxshape=(6, None), compression="gzip")
        made[:2] = 1
    with h5py.File(tmp_path / "a.h5") as file:
        made = file["a"]
        for _ in range(2):
            assert not hdf5_arrays.check_chunks(made, (slice(0, 6), slice(0, 6)))
            assert made[:].sum() == 12


def test_a_long_chunk_that_was_never_written_takes_no_memory(tmp_path: Path) -> None:
    """A file of a few kilobytes may declare it."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("a", (10,), "u1", chunks=(1 << 28,), maxshape=(None,), shuffle=True)
        tracemalloc.start()
        try:
            assert not hdf5_arrays.check_chunks(made, (slice(0, 10),))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 1 << 20


def test_files_whose_axes_have_no_names_are_joined(repo: txstore.Repository, tmp_path: Path) -> None:
    """h5netcdf numbers the axes of a file, by their lengths."""
    for rows in (5, 4):
        with h5py.File(tmp_path / f"{rows}.nc", "w") as file:
            file["a"], file["b"] = np.full((rows, 3), rows), np.full(4, rows)
    repo.import_from([tmp_path / "5.nc", tmp_path / "4.nc"], concat=0)
    assert [*opened(repo)["a"][:, 0], *opened(repo)["b"][:]] == [5] * 5 + [4] * 4 + [5] * 4 + [4] * 4


@pytest.mark.parametrize("is_shuffled", [True, False])
def test_two_chunks_at_one_place(repo: txstore.Repository, tmp_path: Path, is_shuffled: bool) -> None:
    """HDF5 tells of the first, and reads the second."""
    path, short = tmp_path / "a.h5", b"A"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("a", data=np.zeros(8192, "u1"), chunks=(4096,), shuffle=is_shuffled)
        made.id.write_direct_chunk((4096,), short)
    key = struct.Struct("<IIQQ")
    content = path.read_bytes()
    assert content.count(key.pack(len(short), 0, 4096, 0)) == 1
    path.write_bytes(content.replace(key.pack(len(short), 0, 4096, 0), key.pack(len(short), 0, 0, 0)))
    with pytest.raises(txstore.SourceError, match="there are two chunks at"):
        repo.import_from(path)


def test_a_short_chunk_at_the_end_that_goes_through_no_filter(repo: txstore.Repository, tmp_path: Path) -> None:
    """h5py lacks this option of HDF5."""
    set_options = ctypes.CDLL(h5py.h5p.__file__).H5Pset_chunk_opts
    created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    created.set_chunk((4096,))
    created.set_deflate(4)
    assert set_options(ctypes.c_int64(created.id), ctypes.c_uint(2)) == 0
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        for name in ("good", "short"):
            space = h5py.h5s.create_simple((5000,))
            made = h5py.Dataset(h5py.h5d.create(file.id, name.encode(), h5py.h5t.NATIVE_UINT8, space, created))
            made[:] = 7
        made.id.write_direct_chunk((4096,), zlib.compress(bytes(4096)))
    with pytest.raises(txstore.SourceError, match=r"'short' can't be imported: its chunk at \(4096,\) decodes"):
        repo.import_from(tmp_path / "a.h5")
    repo.import_from(tmp_path / "a.h5", exclude=["short"])
    assert set(opened(repo)["good"][:]) == {7}


@pytest.mark.parametrize(
    "filters",
    [
        {"compression": "gzip", "shuffle": True, "fletcher32": True},
        {"compression": "lzf", "shuffle": True, "fletcher32": True},
        {"fletcher32": True},
        {"shuffle": True},
    ],
)
def test_filters_whose_chunks_are_measured(repo: txstore.Repository, tmp_path: Path, filters: Any) -> None:
    values = np.random.default_rng(0).integers(0, 99, (50, 70)) ** 2
    of_texts = {**filters, "fletcher32": False}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", data=values, chunks=(13, 32), **filters)
        file.create_dataset("zeros", data=0 * values, chunks=(13, 32), **filters)
        file.create_dataset("text", data=values.astype(str).astype(object), chunks=(13, 32), **of_texts)
    repo.import_from(tmp_path / "a.h5")
    np.testing.assert_array_equal(opened(repo)["a"][:], values)
    assert not opened(repo)["zeros"][:].any()
    np.testing.assert_array_equal(opened(repo)["text"][:].astype(int), values)


def test_a_filter_that_is_not_measured(
    repo: txstore.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", data=np.arange(100), chunks=(10,), scaleoffset=0)
    with pytest.raises(txstore.SourceError, match=r"filter scaleoffset.*TXSTORE_CODECS=scaleoffset"):
        repo.import_from(tmp_path / "a.h5")
    monkeypatch.setenv("TXSTORE_CODECS", "scaleoffset")
    repo.import_from(tmp_path / "a.h5")
    np.testing.assert_array_equal(opened(repo)["a"][:], np.arange(100))


def test_values_of_netcdf_that_were_never_written(repo: txstore.Repository, tmp_path: Path) -> None:
    """The library of NetCDF returns what is in its memory."""
    netcdf4 = pytest.importorskip("netCDF4")
    with netcdf4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("x", 300)
        file.createVariable("never", "i8", ("x",), fill_value=False)
        file.createVariable("half", "i8", ("x",), fill_value=False, chunksizes=(100,))[:100] = 1
        file.createVariable("all", "i8", ("x",), fill_value=False, chunksizes=(100,))[:] = 1
        file.createVariable("filled", "i8", ("x",), fill_value=7)
    for exclude in ([], ["never"]):
        with pytest.raises(txstore.SourceError, match="were never written, and it has no fill value"):
            repo.import_from(tmp_path / "a.nc", exclude=exclude)
    repo.import_from(tmp_path / "a.nc", exclude=["never", "half"])
    assert set(opened(repo)["all"][:]) == {1}
    assert set(opened(repo)["filled"][:]) == {7}


@pytest.mark.parametrize("far_away", [False, True])
def test_variables_of_netcdf_that_end_before_their_dimensions(
    repo: txstore.Repository, tmp_path: Path, far_away: bool
) -> None:
    netcdf4 = pytest.importorskip("netCDF4")
    with netcdf4.Dataset(tmp_path / "a.nc", "w") as file:
        for name in ("t", "u"):
            file.createDimension(name, None)
        file.createVariable("long", "f4", ("t",))[:] = np.arange(7)
        file.createVariable("wide", "f4", ("u",))[:] = np.arange(9)
        file.createVariable("short", "i4", ("t", "u"), fill_value=-5)[:2, :3] = 1
        file.createVariable("letters", "S1", ("t",))[0] = b"z"
    url = str(tmp_path / "a.nc")
    if far_away:
        fsspec.filesystem("memory").pipe("/a.nc", (tmp_path / "a.nc").read_bytes())
        url = "memory://a.nc"
    repo.import_from(url)
    expected = np.full((7, 9), -5)
    expected[:2, :3] = 1
    np.testing.assert_array_equal(opened(repo)["short"][:], expected)
    assert list(opened(repo)["letters"][:]) == [b"z", *[b""] * 6]


@pytest.mark.parametrize("form", ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"])
@pytest.mark.parametrize("names", ["a", "b", "ac", "abc"])
def test_a_file_of_netcdf_3_that_was_cut_off(repo: txstore.Repository, tmp_path: Path, form: str, names: str) -> None:
    """The library of NetCDF returns zeros, or other values of the file."""
    netcdf4 = pytest.importorskip("netCDF4")
    with netcdf4.Dataset(tmp_path / "a.nc", "w", format=form) as file:
        file.createDimension("t", None)
        file.createDimension("x", 30_001)
        file.title, file.numbers = "a", np.arange(3, dtype="i2")
        for name, kind, dimensions in (("a", "i2", ("t", "x")), ("b", "f8", ("x",)), ("c", "i1", ("t",))):
            if name in names:
                made = file.createVariable(name, kind, dimensions)
                made.units = "m"
                made[:] = np.ones([3 if each == "t" else 30_001 for each in dimensions])
    content = (tmp_path / "a.nc").read_bytes()
    repo.import_from(tmp_path / "a.nc", "whole")
    for name in names:
        assert (opened(repo)[f"whole/{name}"][:] == 1).all()
    for length in (40, len(content) // 2, len(content) - 4):
        (tmp_path / "a.nc").write_bytes(content[:length])
        with pytest.raises(txstore.SourceError, match=r"it is cut off|it ends in its header"):
            repo.import_from(tmp_path / "a.nc", "cut")


def test_texts_of_netcdf_that_are_none_or_one(repo: txstore.Repository, tmp_path: Path) -> None:
    netcdf4 = pytest.importorskip("netCDF4")
    with netcdf4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("t", None)
        file.createVariable("none", str, ("t",))
        file.createVariable("one", str, ())[...] = "κ"
    repo.import_from(tmp_path / "a.nc")
    assert opened(repo)["one"][()] == "κ"
    with repo.transaction("more") as store:
        zarr.open_array(store, path="none").append(np.array(["text"], object))
    assert list(opened(repo)["none"][:]) == ["text"]


# --- files of strangers, which lead to other files


KEY = b"-----BEGIN PRIVATE KEY-----" + b"x" * 37


def external(group: Any, name: str, *files: str) -> None:
    shape = (len(KEY) * len(files),)
    group.create_dataset(name, shape, "u1", external=[(file, 0, len(KEY)) for file in files])


def virtual(group: Any, name: str, file: str, source: str = "key") -> None:
    layout = h5py.VirtualLayout((len(KEY),), "u1")
    layout[:] = h5py.VirtualSource(file, source, (len(KEY),), "u1")
    group.create_virtual_dataset(name, layout)


def of_a_pattern(group: Any, file: str) -> None:
    space = h5py.h5s.create_simple((len(KEY),), (h5py.h5s.UNLIMITED,))
    space.select_hyperslab((0,), (h5py.h5s.UNLIMITED,), (len(KEY),), (len(KEY),))
    created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    created.set_virtual(space, file.encode(), b"key", h5py.h5s.create_simple((len(KEY),)))
    whole = h5py.h5s.create_simple((len(KEY),), (h5py.h5s.UNLIMITED,))
    h5py.h5d.create(group.id, b"a", h5py.h5t.STD_U8LE, whole, created)


def linked(group: Any, name: str, file: str, below: str = "/key") -> None:
    group[name] = h5py.ExternalLink(file, below)


def hard(file: Any, name: str, target: str) -> None:
    file[name] = file[target]


def numbers(file: Any) -> None:
    file["whole"] = np.arange(4)


#: By name: what makes such a file, with the paths of a key and of an HDF5 file that has it, and what is excluded.
WAYS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "its values": (lambda f, key, h5: external(f, "a", key), ()),
    "its values, by a relative path": (lambda f, key, h5: external(f, "a", Path(key).name), ()),
    "its values, in two files": (lambda f, key, h5: external(f, "a", "own.bin", key), ()),
    "its values, below the prefix of the environment": (lambda f, key, h5: external(f, "a", "key"), ()),
    "its values, in a group": (lambda f, key, h5: external(f.create_group("g/h"), "a", key), ()),
    "its values, by a soft link": (lambda f, key, h5: (external(f, "x", key), f.update(a=h5py.SoftLink("/x"))), ("x",)),
    "its values, by a second name": (lambda f, key, h5: (external(f, "x", key), hard(f, "a", "x")), ("x",)),
    "its values, in an excluded group": (
        lambda f, key, h5: (external(f.create_group("x"), "y", key), f.update(a=h5py.SoftLink("/x/y"))),
        ("x",),
    ),
    "virtual": (lambda f, key, h5: virtual(f, "a", h5), ()),
    "virtual, by a relative path": (lambda f, key, h5: virtual(f, "a", Path(h5).name), ()),
    "virtual, of a pattern": (lambda f, key, h5: of_a_pattern(f, h5.replace("key.h5", "%b.h5")), ()),
    "virtual, of a virtual one": (lambda f, key, h5: (virtual(f, "x", h5), virtual(f, "a", ".", "x")), ("x",)),
    "virtual, of the file itself": (lambda f, key, h5: (external(f, "x", key), virtual(f, "a", ".", "x")), ("x",)),
    "a link to an array": (lambda f, key, h5: linked(f, "a", h5), ()),
    "a link to a group": (lambda f, key, h5: linked(f, "a", h5, "/"), ()),
    "a link by a relative path": (lambda f, key, h5: linked(f, "a", Path(h5).name), ()),
    "a link below a group": (lambda f, key, h5: linked(f.create_group("g/h"), "a", h5), ()),
    "a link to a link": (lambda f, key, h5: (linked(f, "x", h5), f.update(a=h5py.SoftLink("/x"))), ("x",)),
    "a link by way of another": (
        lambda f, key, h5: (linked(f, "x", h5, "/"), f.update(a=h5py.SoftLink("/x/key"))),
        ("x",),
    ),
    "a reference to a region": (
        lambda f, key, h5: (external(f, "x", key), f.update(a=np.zeros(1)), f["a"].attrs.update(r=f["x"].regionref[:])),
        ("x",),
    ),
    "references": (
        lambda f, key, h5: (external(f, "x", key), f.create_dataset("a", data=[f["x"].ref], dtype=h5py.ref_dtype)),
        ("x",),
    ),
}


@pytest.mark.parametrize("name", ["stranger.h5", "stranger.nc", "memory://stranger.nc"])
@pytest.mark.parametrize("way", WAYS)
def test_no_other_file_of_the_user_is_imported(
    repo: txstore.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HDF5_EXTFILE_PREFIX", str(tmp_path))
    (tmp_path / "key").write_bytes(KEY)
    with h5py.File(tmp_path / "key.h5", "w") as file:
        file["key"] = np.frombuffer(KEY, "u1")
    for secret in ("key", "key.h5"):
        (tmp_path / secret).chmod(0o600)
    make, exclude = WAYS[way]
    with h5py.File(tmp_path / "made", "w") as file:
        numbers(file)
        make(file, str(tmp_path / "key"), str(tmp_path / "key.h5"))
    source = fsspec.open(name if "://" in name else str(tmp_path / name), "wb")
    with source as target:
        target.write((tmp_path / "made").read_bytes())
    with pytest.raises(txstore.SourceError, match="can't be imported"):
        repo.import_from(name, exclude=exclude)
    assert repo.head() is None


@pytest.mark.parametrize("name", ["a.h5", "a.nc"])
def test_a_file_that_was_another_one_meanwhile(repo: txstore.Repository, tmp_path: Path, name: str) -> None:
    """Its length and its time are as they were: a user who writes it may set both."""
    first, second, kept = tmp_path / "0" / name, tmp_path / "1" / name, tmp_path / "kept"
    for number, path in enumerate((first, second, tmp_path / "other")):
        path.parent.mkdir(exist_ok=True)
        with h5py.File(path, "w") as file:
            file["a"] = np.arange(5) + 10 * number
            file["a"].dims[0].label = "x"

    def exchange(done: int, total: int) -> None:
        if not kept.exists() and done < total:
            second.rename(kept)
            (tmp_path / "other").rename(second)
        elif done == total:
            kept.rename(second)

    with pytest.raises(txstore.SourceError, match="the source has changed while it was imported"):
        repo.import_from([first, second], concat=0, progress=exchange)
    assert repo.head() is None

"""Export: plain Zarr that anybody can read, the same bytes; there whole, or not to be opened."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import zarr

import txstore
from tests.store.test_codecs import CODECS_2, CODECS_3, NUMERIC_DTYPES, OTHER_DTYPES, RECORD, numbers_as
from tests.tools.command_line import assert_refused, run, run_json
from txstore.format.consolidated import plain_document
from txstore.interchange.destinations import LocalDestination
from txstore.interchange.places import Place
from txstore.interchange.publish import MARKER

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def bare(found: dict[str, bytes]) -> dict[str, bytes]:
    """What an export holds besides consolidated metadata."""
    return {key: plain_document(key, content) for key, content in found.items() if key != ".zmetadata"}


def same(one: Mapping[str, bytes], other: Mapping[str, bytes]) -> bool:
    """Whether all values are the same, but for how the JSON of a root's document is written."""
    roots = [json.loads(each["zarr.json"]) if "zarr.json" in each else None for each in (one, other)]
    rest = [{key: value for key, value in each.items() if key != "zarr.json"} for each in (one, other)]
    return roots[0] == roots[1] and rest[0] == rest[1]


def cases(zarr_format: int) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Every codec and data type of zarr's own tests, by the name of an array."""
    found: dict[str, tuple[Any, dict[str, Any]]] = dict(CODECS_3 if zarr_format == 3 else CODECS_2)
    found |= {f"dtype {dtype.strip('<>')} {n}": (numbers_as(dtype), {}) for n, dtype in enumerate(NUMERIC_DTYPES)}
    found |= {f"dtype {dtype}": (numbers_as(dtype), {}) for dtype in OTHER_DTYPES}
    found["records"] = (np.array([(n / 4, n, b"%d" % n) for n in range(294)], RECORD).reshape(21, 14), {})
    return {name.replace("/", "slash"): case for name, case in found.items()}


def write_case(group: Any, name: str, data: Any, arguments: dict[str, Any]) -> None:
    arguments = {"chunks": (8, 6), "fill_value": None, "dtype": data.dtype, **arguments}
    array = group.create_array(name, shape=data.shape, attributes={"of": name, "n": [1, 2.5, None]}, **arguments)
    array[...] = data


@pytest.mark.long
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_export_then_import_keeps_every_codec_and_data_type(open_repo, tmp_path, zarr_format):
    repo, out = open_repo(), tmp_path / "out.zarr"
    all_cases = cases(zarr_format)
    with repo.transaction() as store:
        group = zarr.create_group(store, path="deep/er", zarr_format=zarr_format, attributes={"title": "κ"})  # type: ignore[arg-type]
        for name, (data, arguments) in all_cases.items():
            write_case(group, name, data, arguments)
    done = repo.export(out)
    assert done.commit == repo.head()
    assert same(bare(files(out)), repo.mapping())
    assert (done.keys, done.bytes, done.written) == (len(files(out)), *[sum(map(len, files(out).values()))] * 2)

    again = open_repo("again.tx")
    again.import_from(out)
    assert dict(again.mapping()) == dict(repo.mapping())
    plain, back = zarr.open_group(out, mode="r")["deep/er"], zarr.open_group(again.snapshot(), mode="r")["deep/er"]
    assert len(all_cases) > 40
    for name, (data, _) in all_cases.items():
        for found in (plain[name], back[name]):  # type: ignore[index]
            np.testing.assert_array_equal(found[...], data, err_msg=name)  # type: ignore[index]
            assert found.attrs["of"] == name
        assert repr(plain[name].metadata) == repr(back[name].metadata)  # type: ignore[index]
    assert back.attrs["title"] == "κ"


@pytest.fixture
def filled(repo: txstore.Repository) -> txstore.Repository:
    with repo.transaction("first") as store:
        group = zarr.open_group(store)
        group.create_array("a/x", data=np.arange(10), chunks=(3,))
        group.create_array("y", data=np.arange(4), chunks=(2,))
    repo.tags["v1"] = 0
    with repo.transaction("second") as store:
        zarr.open_array(store, path="y")[:] = 7
    return repo


def test_a_process_without_us_reads_it(filled, tmp_path, run_plain):
    filled.export(tmp_path / "out")
    read = "import zarr; z = zarr.open_group(sys.argv[1], mode='r'); print(*z['a/x'][:], *z['y'][:])"
    assert run_plain(read, tmp_path / "out").split() == [*map(str, range(10)), *["7"] * 4]


def test_any_url(filled: txstore.Repository) -> None:
    filled.export("memory://exported/data.zarr")
    place = Place("memory://exported/data.zarr")
    assert same(bare({key: place.read(key) for key in place.files()}), filled.mapping())
    assert filled.export("memory://exported/data.zarr").is_unchanged


def test_what_is_interrupted_can_not_be_opened_and_is_gone_on_with(filled: txstore.Repository, tmp_path: Path) -> None:
    keys = filled.export(tmp_path / "whole").keys
    for steps in range(1, keys + 1):
        out, left = tmp_path / f"out-{steps}", iter(range(steps - 1))

        def stop(done: int, total: int, left: Any = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            filled.export(out, progress=stop)
        for path in ("a/x", "y"):
            if (out / path / "zarr.json").exists():  # then it is whole
                expected = zarr.open_array(filled.snapshot(), path=path, mode="r")[:]
                np.testing.assert_array_equal(zarr.open_array(out / path, mode="r")[:], expected)
        if steps < keys:
            with pytest.raises(FileNotFoundError):
                zarr.open_group(out, mode="r")
        # What a crash may have left half-written, or a disk has damaged since:
        half, other = out / "a/x/c/0", out / "a/x/c/1"
        half.write_bytes(half.read_bytes()[:-1])
        if other.exists():  # threads write, and how far they have come is theirs
            other.write_bytes(bytes(len(other.read_bytes())))
        done = filled.export(out)
        assert 0 < done.written < done.bytes
        assert files(out) == files(tmp_path / "whole")


def unread(directory: Path) -> dict[Path, tuple[int, ...]]:
    """What changes when files are written, or replaced, and not when they are read."""
    stats = {file: file.stat() for file in directory.rglob("*")}
    return {file: (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for file, stat in stats.items()}


def test_an_export_that_is_finished_is_told_to_be(filled: txstore.Repository, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = filled.export(out)
    before = unread(out)
    again = filled.export(out)
    assert not first.is_unchanged
    assert again.is_unchanged
    assert (again.commit, again.keys, again.bytes, again.written) == (first.commit, first.keys, first.bytes, 0)
    assert unread(out) == before, "nothing is written, and nothing is left there"
    for other in ({"at": 0}, {"path": "y"}, {"consolidated": False}):
        with pytest.raises(txstore.ExportError, match="holds something"):
            filled.export(out, **other)  # type: ignore[arg-type]
    value = out / "y/c/0"
    content = value.read_bytes()
    for changed in (content[:-1], bytes(len(content)), content + b"1"):
        value.write_bytes(changed)
        with pytest.raises(txstore.ExportError, match="holds something"):
            filled.export(out)
    value.write_bytes(content)
    (out / "more").write_bytes(b"1")
    with pytest.raises(txstore.ExportError, match="holds something"):
        filled.export(out)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_no_reader_warns_of_an_export(repo: txstore.Repository, tmp_path: Path, zarr_format: Literal[2, 3]) -> None:
    xr = pytest.importorskip("xarray")
    data = xr.Dataset({"t": (("y", "x"), np.arange(12.0).reshape(3, 4))}, coords={"x": [1, 2, 3, 4]})
    with repo.transaction() as store:
        data.to_zarr(store, consolidated=False, zarr_format=zarr_format)
    repo.export(tmp_path / "out")
    repo.export(tmp_path / "exact", consolidated=False)
    assert files(tmp_path / "exact") == dict(repo.mapping())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        xr.testing.assert_equal(xr.open_zarr(tmp_path / "out").load(), data)
        xr.testing.assert_equal(xr.open_dataset(tmp_path / "out", engine="zarr").load(), data)
        group = zarr.open_consolidated(tmp_path / "out")
    assert sorted(name for name, _ in group.members()) == ["t", "x"]


def test_what_was_damaged_on_the_way_is_an_error(filled, tmp_path, monkeypatch):
    monkeypatch.setattr(LocalDestination, "read", lambda self, key: b"else")
    with pytest.raises(txstore.ExportError, match="reads back differently"):
        filled.export(tmp_path / "out")
    filled.export(tmp_path / "unverified", verify=False)


def test_places_that_are_refused(filled: txstore.Repository, tmp_path: Path) -> None:
    before = files(tmp_path / "data.tx")
    for inside in (filled.url, f"{filled.url}/out", f"{filled.url}/../data.tx/out"):
        with pytest.raises(txstore.ExportError, match="lies in the repository"):
            filled.export(inside)
    (tmp_path / "link").symlink_to(filled.url)
    with pytest.raises(txstore.ExportError, match="lies in the repository"):
        filled.export(tmp_path / "link" / "out")
    with pytest.raises(txstore.ExportError, match="holds something"):
        filled.export(tmp_path)
    (tmp_path / "file").write_bytes(b"dear")
    with pytest.raises(txstore.ExportError, match="file"):
        filled.export(tmp_path / "file")
    with pytest.raises(txstore.ExportError, match="nothing at 'nope'"):
        filled.export(tmp_path / "out", path="nope")
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / MARKER).write_text(json.dumps({"repository": "another"}))
    with pytest.raises(txstore.ExportError, match="another export"):
        filled.export(begun)
    assert files(tmp_path / "data.tx") == before
    with pytest.raises(txstore.RepositoryNotFoundError):
        txstore.Repository(tmp_path / "none.tx").export(tmp_path / "out")


@pytest.mark.parametrize("key", ["a\0b", "y/zarr.json/below", MARKER])
def test_keys_that_are_no_file_names_are_refused(filled: txstore.Repository, tmp_path: Path, key: str) -> None:
    with filled.begin() as transaction:
        transaction[key] = b"1"
    with pytest.raises(txstore.ExportError, match="key"):
        filled.export(tmp_path / "deep" / "out")
    assert not (tmp_path / "deep").exists()


def test_the_command(filled: txstore.Repository, tmp_path: Path) -> None:
    told = run_json("export", filled.url, tmp_path / "out", "--at", "v1")
    assert told["commit"]["version"] == 0
    assert told["keys"] == len(files(tmp_path / "out"))
    assert "exported main@1" in run("export", filled.url, tmp_path / "new", "--path", "y").stdout
    again = run("export", filled.url, tmp_path / "new", "--path", "y")
    assert again.exit_code == 0
    assert "nothing to do" in again.stdout
    assert "is complete" in again.stdout
    assert run_json("export", filled.url, tmp_path / "out", "--at", "v1")["written"] == 0
    assert_refused(run("export", filled.url, tmp_path / "new"), "choose an empty or a new place")
    run("export", filled.url, tmp_path / "exact", "--no-consolidated")
    assert files(tmp_path / "exact") == dict(filled.mapping())

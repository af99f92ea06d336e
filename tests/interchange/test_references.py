"""References: what they say of each key, read by processes without txstore; for as long as the tag is there."""

from __future__ import annotations

import base64
import json
import math
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.interchange.test_export import cases, files, write_case
from tests.system.remote.conftest import server_of  # noqa: F401 - a fixture
from tests.system.remote.servers import Server
from tests.tools.command_line import assert_refused, run, run_json
from txstore.interchange import references
from txstore.interchange.references import INLINE_BELOW

pytest.importorskip("fastparquet")
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")]

#: What the reader prints is not asked for: it leaves the arrays in a file.
READER = """
import json, pickle, sys, warnings, numpy as np, zarr
warnings.simplefilter("ignore")
try:
    import txstore
except ImportError:
    pass
else:
    raise SystemExit("txstore is here")
fo, out, options, wanted = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])
options = {"fo": fo, "remote_protocol": "file", **options}
group = zarr.open_group("reference://", storage_options=options, mode="r", **wanted.pop("open", {}))
found = {}
for path, selection in wanted.items():
    array = group[path]
    assert array.name == "/" + path
    found[path] = np.asarray(array[...] if selection is None else array[slice(*selection)]), dict(array.attrs)
with open(out, "wb") as file:
    pickle.dump(found, file)
print(*sorted(name for name, _ in group.members(max_depth=None)), sep="\\n")
"""

Found = dict[str, tuple[Any, dict[str, Any]]]


@pytest.fixture
def read(tmp_path: Path, run_plain: Callable[..., str]) -> Callable[..., Found]:
    """Read arrays by references, in a process without txstore: path -> (values, attributes)."""

    def read(fo: object, wanted: Any, options: dict[str, Any] | None = None) -> Found:
        told = {"open": {"zarr_format": 2}} if str(fo).endswith(".parquet") else {}
        told |= wanted if isinstance(wanted, dict) else dict.fromkeys(wanted)
        members = run_plain(READER, fo, tmp_path / "found", json.dumps(options or {}), json.dumps(told))
        assert {path for path in told if path != "open"} <= set(members.splitlines())
        found: Found = pickle.loads((tmp_path / "found").read_bytes())
        return found

    return read


def fill(repo: txstore.Repository) -> None:
    with repo.transaction("fill") as store:
        group = zarr.open_group(store, attributes={"title": "κ"})
        group.create_array("x", data=np.arange(1000), chunks=(90,))
        group.create_array("a/b/y", data=np.arange(12.0).reshape(3, 4), chunks=(2, 3), dimension_names=["u", "v"])
        group.create_group("empty", attributes={"_FillValue": "x"})
    repo.tags["v1"] = 0


FILLED = {"x": np.arange(1000), "a/b/y": np.arange(12.0).reshape(3, 4)}


def check_filled(found: Found) -> None:
    for path, expected in FILLED.items():
        np.testing.assert_array_equal(found[path][0], expected)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_every_codec_and_data_type(repo, tmp_path, read, zarr_format, kind):
    everything = cases(zarr_format)
    if kind == "parquet":
        without = {name for name in everything if "shard" in name or name == "scale_offset"}
        assert (zarr_format == 2) == (without == set())
        everything = {name: case for name, case in everything.items() if name not in without}
    with repo.transaction() as store:
        group = zarr.create_group(store, zarr_format=zarr_format)  # type: ignore[arg-type]
        for name, (data, arguments) in everything.items():
            write_case(group, name, data, arguments)
    repo.tags["v1"] = 0
    out = tmp_path / f"x.{kind}"
    done = repo.references(out, tag="v1")
    assert done.commit == repo.head()
    found = read(out, list(everything))
    assert len(everything) > 40
    for name, (data, _) in everything.items():
        values, attributes = found[name]
        np.testing.assert_array_equal(values, data, err_msg=name)
        assert attributes == {"of": name, "n": [1, 2.5, None]}


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_they_hold_for_as_long_as_the_tag_does(repo, tmp_path, read, kind):
    fill(repo)
    out = tmp_path / f"x.{kind}"
    repo.references(out, tag="v1")
    with repo.transaction() as store:
        zarr.open_array(store, path="x")[:] = -1
        zarr.open_array(store, path="x").resize(100)
        del store["a/b/y/c/0/0"]
    repo.run(lambda store: zarr.open_group(store).create_array("later", data=np.ones(5)))
    repo.optimize()
    assert repo.vacuum(keep=1).expired == 2
    check_filled(read(out, FILLED.keys()))
    # Written anew, they say the same.
    before = files(out) if out.is_dir() else out.read_bytes()
    repo.references(tmp_path / f"again.{kind}", tag="v1")
    again = tmp_path / f"again.{kind}"
    assert (files(again) if again.is_dir() else again.read_bytes()) == before

    del repo.tags["v1"]
    repo.vacuum(keep=1)
    with pytest.raises(AssertionError, match="ReferenceNotReachable"):  # and no fill values
        read(out, ["x"])


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_what_is_not_there_is_filled(repo, tmp_path, read, kind):
    huge = 10**13
    v2, dotted = {"name": "v2", "separator": "."}, {"name": "default", "separator": "."}
    with repo.transaction() as store:
        group = zarr.open_group(store)
        group.create_array("scalar", data=np.array(7.5), chunks=())
        group.create_array("scalar-empty", shape=(), dtype="i4", fill_value=3)
        group.create_array("nothing", shape=(0, 4), chunks=(2, 2), dtype="i4")
        group.create_array("gaps", shape=(40, 30), chunks=(10, 10), dtype="f4", fill_value=math.nan)
        group["gaps"][15:25, 12:18] = 1
        group.create_array("huge", shape=(huge,), chunks=(10,), dtype="u1", fill_value=9)
        group["huge"][huge - 15 :] = 1
        group.create_array("dots", data=np.arange(200), chunks=(9,), chunk_key_encoding=v2)
        group.create_array("c", shape=(3, 3), chunks=(1, 1), dtype="i2", chunk_key_encoding=dotted)
        group["c"][:] = 4
        group.create_array("time", shape=(5,), chunks=(2,), dtype="M8[s]", fill_value=np.datetime64(77, "s"))
        store["gaps/c/9/9"] = b"not in the grid"
        store["gaps/c/0/01"] = b"nor is this"
        store["huge/notes.txt"] = b"nor this"
    out = tmp_path / f"x.{kind}"
    done = repo.references(out, tag="v1", create_tag=True)
    names = ["scalar", "scalar-empty", "nothing", "gaps", "dots", "c", "time"]
    found = read(out, {**dict.fromkeys(names), "huge": (huge - 100, huge)})
    ours = zarr.open_group(repo.snapshot(), mode="r")
    for name in names:
        np.testing.assert_array_equal(found[name][0], ours[name][...], err_msg=name)  # type: ignore[index]
    assert found["huge"][0].tolist() == [9] * 85 + [1] * 15
    if kind == "json":
        assert done.keys == len(repo.mapping())
    else:
        assert len(files(out)) < 10


def test_parts_of_shards(repo: txstore.Repository, tmp_path: Path, read: Callable[..., Found]) -> None:
    with repo.transaction() as store:
        group = zarr.open_group(store)
        for place in ("start", "end"):
            group.create_array(
                place, data=np.arange(5000), chunks=(10,), shards={"shape": (1000,), "index_location": place}
            )
        group.create_array("small", shape=(50,), chunks=(5,), shards=(10,), dtype="u1", fill_value=0, compressors=None)
        group["small"][3:7] = 1
    repo.references(tmp_path / "x.json", tag="v1", create_tag=True)
    found = read(tmp_path / "x.json", {"start": (1955, 2015), "end": (1955, 2015), "small": None})
    for place in ("start", "end"):
        assert found[place][0].tolist() == list(range(1955, 2015))
    assert found["small"][0].sum() == 4


# --- the files


def test_without_templates(repo: txstore.Repository, tmp_path: Path, read: Callable[..., Found]) -> None:
    """Readers that do not know them take a reference for the URL that it is."""
    fill(repo)
    for templates in (True, False):
        repo.references(tmp_path / f"{templates}.json", tag="v1", templates=templates)
    repo.references(tmp_path / "x.parquet", tag="v1", templates=False)  # which has none
    short, full = (json.loads((tmp_path / f"{each}.json").read_text()) for each in (True, False))
    assert set(full) == {"version", "refs"}
    where = f"file://{repo.url}"
    for key, told in short["refs"].items():
        meant = [told[0].replace("{{u}}", where), *told[1:]] if isinstance(told, list) else told
        assert full["refs"][key] == meant
    assert any(isinstance(told, list) for told in full["refs"].values())
    check_filled(read(tmp_path / "False.json", FILLED.keys()))


def test_what_the_json_says(repo: txstore.Repository, tmp_path: Path) -> None:
    with repo.begin() as transaction:
        transaction["zarr.json"] = b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'
        transaction["kappa/zarr.json"] = '{"zarr_format": 3, "node_type": "group", "attributes": {"κ": 1}}'.encode()
        transaction["plain/zarr.json"] = b'{"zarr_format":3,"node_type" :"group"}'
        transaction["odd/.zattrs"] = b"base64:QQ=="
        transaction["a/c/0"] = b"x" * (INLINE_BELOW - 1)
        transaction["a/c/1"] = b"y" * INLINE_BELOW
        transaction["a/c/10"] = b""
        transaction["a/c/2"] = b"base64:"
        transaction["κ/c/0"] = bytes(range(256)) * 9
        transaction["z/.zmetadata"] = b"{}"
        block = {"consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": {}}}
        transaction["stale/zarr.json"] = json.dumps({"node_type": "group", "zarr_format": 3, **block}).encode()
    done = repo.references(tmp_path / "x.json", tag="v1", create_tag=True)
    told = json.loads((tmp_path / "x.json").read_text(encoding="ascii"))
    assert told["version"] == 1
    assert told["templates"] == {"u": f"file://{tmp_path}/data.tx"}
    refs = told["refs"]
    mapping = repo.mapping()
    assert list(refs) == [key for key in mapping if key != "z/.zmetadata"]
    assert (done.keys, done.inline) == (len(refs), len(refs) - 2)
    root = json.loads(refs["zarr.json"])
    assert sorted(root.pop("consolidated_metadata")["metadata"]) == ["kappa", "plain", "stale"]
    assert root == json.loads(mapping["zarr.json"])
    assert json.loads(refs["stale/zarr.json"]) == {"node_type": "group", "zarr_format": 3}
    assert refs["plain/zarr.json"] == mapping["plain/zarr.json"].decode()
    for key in ("kappa/zarr.json", "odd/.zattrs", "a/c/0", "a/c/10", "a/c/2"):
        assert base64.b64decode(refs[key].removeprefix("base64:")) == mapping[key]
        assert refs[key].startswith("base64:")
    for key in ("a/c/1", "κ/c/0"):
        url, offset, length = refs[key]
        assert length == len(mapping[key])
        pack = Path(url.replace("{{u}}", f"{tmp_path}/data.tx")).read_bytes()
        assert pack[offset : offset + length] == mapping[key]


def test_a_value_that_looks_like_base64(repo: txstore.Repository, tmp_path: Path, read: Callable[..., Found]) -> None:
    with repo.transaction() as store:
        zarr.open_group(store).create_array("x", shape=(8,), dtype="S1", compressors=None)
        store["x/c/0"] = b"base64:c"
    for kind in ("json", "parquet"):
        repo.references(tmp_path / f"x.{kind}", tag="v1", create_tag=True)
        assert read(tmp_path / f"x.{kind}", ["x"])["x"][0].tobytes() == b"base64:c"


def test_a_repository_that_has_moved(repo: txstore.Repository, tmp_path: Path, read: Callable[..., Found]) -> None:
    fill(repo)
    repo.references(tmp_path / "x.json", tag="v1")
    here, there = tmp_path / "data.tx", tmp_path / "moved"
    os.rename(here, there)
    check_filled(read(tmp_path / "x.json", FILLED.keys(), {"template_overrides": {"u": f"file://{there}"}}))
    odd = tmp_path / "odd {{u}} #1"
    os.rename(there, odd)
    txstore.Repository(odd).references(tmp_path / "y.json", tag="v1")
    check_filled(read(tmp_path / "y.json", FILLED.keys()))
    assert json.loads((tmp_path / "y.json").read_text())["templates"] == {}
    os.rename(odd, here)


def test_parquet_of_dimensions_and_groups(repo: txstore.Repository, tmp_path: Path, read: Callable[..., Found]) -> None:
    fill(repo)
    done = repo.references(tmp_path / "x.parquet", tag="v1")
    found = read(tmp_path / "x.parquet", FILLED.keys())
    check_filled(found)
    assert found["a/b/y"][1] == {"_ARRAY_DIMENSIONS": ["u", "v"]}
    told = json.loads((tmp_path / "x.parquet/.zmetadata").read_text())
    assert told["metadata"][".zattrs"] == {"title": "κ"}
    assert done.keys == len(told["metadata"]) + 12 + 4
    assert sorted(files(tmp_path / "x.parquet")) == [".zmetadata", "a/b/y/refs.0.parq", "x/refs.0.parq"]


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_xarray_takes_for_missing_what_was_missing(repo: txstore.Repository, tmp_path: Path, kind: str) -> None:
    xarray = pytest.importorskip("xarray")
    data = xarray.Dataset(
        {
            "a": (("t", "x"), [[math.nan, 0.0, 2.0], [3.0, 4.0, 5.0]]),
            "b": ("x", np.array([0.0, -1.0, math.nan]), {"units": "m"}),
            "n": ("x", [0, 1, 2]),
        },
        coords={"t": np.array(["1970-01-01", "1970-01-03"], "M8[ns]")},
    )
    encoding = {"a": {"chunks": (1, 2)}, "b": {"_FillValue": -9.0}}
    with repo.transaction() as store:
        data.to_zarr(store, consolidated=False, encoding=encoding)
    repo.references(tmp_path / f"x.{kind}", tag="v1", create_tag=True)
    options = {"fo": str(tmp_path / f"x.{kind}"), "remote_protocol": "file"}
    with xarray.open_dataset(
        "reference://", engine="zarr", storage_options=options, zarr_format=2 if kind == "parquet" else 3
    ) as found:
        xarray.testing.assert_identical(found, data)


# --- what is refused


def test_without_a_tag(repo: txstore.Repository, tmp_path: Path) -> None:
    fill(repo)
    with pytest.raises(TypeError, match="tag"):
        repo.references(tmp_path / "x.json")  # type: ignore[call-arg]
    with pytest.raises(txstore.CommitNotFoundError, match=re.escape("repo.tags['v2'] = repo.head().version")):
        repo.references(tmp_path / "x.json", tag="v2")
    assert not (tmp_path / "x.json").exists()
    assert repo.references(tmp_path / "x.json", tag="v2", create_tag=True).commit == repo.tags["v2"] == repo.head()
    repo.run(lambda store: zarr.open_array(store, path="x").append([1]))
    assert repo.references(tmp_path / "x.json", tag="v2", create_tag=True).commit.version == 0


def test_places_that_are_refused(repo: txstore.Repository, tmp_path: Path) -> None:
    fill(repo)
    before = files(tmp_path / "data.tx")
    with pytest.raises(ValueError, match=r"\.json or \.parquet"):
        repo.references(tmp_path / "x.txt", tag="v1")
    with pytest.raises(txstore.ExportError, match="lies in the repository"):
        repo.references(tmp_path / "data.tx/x.json", tag="v1")
    (tmp_path / "dir.json").mkdir()
    with pytest.raises(txstore.ExportError, match="directory"):
        repo.references(tmp_path / "dir.json", tag="v1")
    (tmp_path / "there.parquet").mkdir()
    for name in ("there.parquet", "x.json.parquet", "{x}.parquet"):
        with pytest.raises(txstore.ExportError, match="choose"):
            repo.references(tmp_path / name, tag="v1")
    assert files(tmp_path / "data.tx") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.tx", "dir.json", "there.parquet"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"shards": (4, 4)}, "sharding_indexed"),
        (
            {"filters": zarr.codecs.TransposeCodec(order=(1, 0, 2)), "shape": (4, 4, 4), "chunks": (2, 2, 2)},
            "transposed",
        ),
        (
            {"dtype": [("a", "i4"), ("b", "f8")], "serializer": zarr.codecs.BytesCodec(endian="big")},
            "big-endian records",
        ),
    ],
)
def test_what_parquet_cannot_say(repo, tmp_path, arguments, words):
    with repo.transaction() as store:
        arguments = {"shape": (4, 4), "chunks": (2, 2), "dtype": "i4", **arguments}
        zarr.open_group(store).create_array("g/x", **arguments)
    if "big-endian" in words and b'"big"' not in bytes(repo.mapping()["g/x/zarr.json"]):
        pytest.skip("this zarr writes the records of its own machine, whatever it is told")
    with pytest.raises(txstore.ExportError, match=f"'g/x'.*{words}.*JSON"):
        repo.references(tmp_path / "x.parquet", tag="v1", create_tag=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.tx"]
    repo.references(tmp_path / "x.json", tag="v1")


@pytest.mark.parametrize(
    ("key", "document", "words"),
    [
        ("zarr.json", {"node_type": "array"}, "can't be understood"),
        (".zarray", {"shape": [1], "chunks": [1]}, "at the root"),
        ("a\0b/.zarray", {"shape": [1], "chunks": [1]}, "directory"),
        ("x/zarr.json", [], "can't be understood"),
        ("x/.zarray", {"shape": [2**53 + 1, 2], "chunks": [2, 1]}, "beyond"),
    ],
)
def test_documents_that_parquet_cannot_say(repo, tmp_path, key, document, words):
    with repo.begin() as transaction:
        transaction[key] = json.dumps(document).encode()
    with pytest.raises(txstore.ExportError, match=words):
        repo.references(tmp_path / "x.parquet", tag="v1", create_tag=True)


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_there_whole_or_not_at_all(repo, tmp_path, monkeypatch, kind):
    fill(repo)
    out = tmp_path / f"x.{kind}"
    if kind == "json":
        out.write_text("the old one")

    def stop(path: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(references, "_sync", stop)
        repo.references(out, tag="v1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.tx", *(["x.json"] if kind == "json" else [])]
    if kind == "json":
        assert out.read_text() == "the old one"
    repo.references(out, tag="v1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.tx", f"x.{kind}"]


# --- elsewhere


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_s3(
    tmp_path: Path,
    server_of: Callable[[str], Server],  # noqa: F811
    read: Callable[..., Found],
    kind: str,
) -> None:
    server = server_of("s3")
    options = server.storage_options
    repo = txstore.Repository(f"{server.url()}/data.tx", storage_options=options)
    fill(repo)
    out = f"{server.url()}/x.{kind}"
    repo.references(out, tag="v1", storage_options=options)
    repo.references(tmp_path / f"x.{kind}", tag="v1")
    for content in files(tmp_path).values():
        assert options["secret"].encode() not in content
        assert options["key"].encode() not in content
    elsewhere = {"remote_protocol": "s3", "remote_options": {**options, "asynchronous": True}}
    check_filled(read(tmp_path / f"x.{kind}", FILLED.keys(), elsewhere))
    check_filled(read(out, FILLED.keys(), {**elsewhere, "target_options": options}))


def test_the_command(repo: txstore.Repository, tmp_path: Path, read: Callable[..., Found]) -> None:
    fill(repo)
    out = tmp_path / "x.json"
    assert_refused(run("references", repo.url, out, "--tag", "v2"), "no such tag", "--create-tag")
    assert run("references", repo.url, out).exit_code == 2
    assert "main@0" in run("references", repo.url, out, "--tag", "v1").stdout
    told = run_json("references", repo.url, out, "--tag", "v2", "--create-tag")
    assert (told["commit"]["version"], told["url"]) == (0, str(out))
    assert told["keys"] == len(repo.mapping())
    check_filled(read(out, FILLED.keys()))
    run("references", repo.url, out, "--tag", "v1", "--no-templates")
    assert "templates" not in json.loads(out.read_text())
    check_filled(read(out, FILLED.keys()))

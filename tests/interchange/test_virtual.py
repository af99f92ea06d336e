"""Values that stay in files outside: imported from manifests, read where they lie, never once these have changed."""

from __future__ import annotations

import asyncio
import base64
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from fsspec import AbstractFileSystem
from typer.testing import CliRunner

import txstore
from tests.interchange.manifests import TEMPERATURES, references_of, write_hdf5, write_parquet
from txstore.cli.main import app
from txstore.codecs import bounded_codecs
from txstore.errors import CorruptionError, SourceChangedError, SourceError
from txstore.format import commitfile, packfile
from txstore.interchange import manifests
from txstore.storage.foreign_values import FileVersion, ForeignRange

pytest.importorskip("h5py")

OpenRepo = Callable[..., txstore.Repository]
VALUES = np.arange(100, dtype="i4")


@pytest.fixture
def nc(tmp_path: Path) -> Path:
    (tmp_path / "raw").mkdir()
    return write_hdf5(tmp_path / "raw" / "station.nc")


@pytest.fixture
def repo(open_repo: OpenRepo, nc: Path) -> txstore.Repository:
    return open_repo(sources=[nc.parent])


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    """Two chunks of an array behind four bytes."""
    path = tmp_path / "raw.bin"
    path.write_bytes(b"head" + VALUES.tobytes())
    return path


def stage(store: txstore.TxStore, file: Path | str, name: str = "x") -> Any:
    array = zarr.create_array(store, name=name, shape=(100,), chunks=(50,), dtype="i4", compressors=None)
    for chunk in (0, 1):
        store.set_reference(f"{name}/c/{chunk}", file, 4 + 200 * chunk, 200)
    return array


def read(store: Any, path: str = "x") -> Any:
    return zarr.open_array(store, path=path, mode="r")[:]


def temperature(repo: txstore.Repository, path: str = "temperature") -> Any:
    return read(repo.snapshot(), path)


def touch(path: Path) -> None:
    """Give a file another time, and nothing else."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 5_000_000_000))


# --- manifests


def test_an_hdf5_file_is_read_where_it_lies(repo: txstore.Repository, nc: Path) -> None:
    told: list[tuple[int, int]] = []
    made = repo.import_references(references_of(nc), progress=lambda *now: told.append(now))
    np.testing.assert_array_equal(temperature(repo), TEMPERATURES)
    np.testing.assert_array_equal(temperature(repo, "height"), np.arange(60.0))
    assert zarr.open_group(repo.snapshot(), mode="r").attrs["title"] == "station"
    described = made.properties["import"]
    assert (described["format"], described["files"], described["references"]) == ("references", 1, 9)
    assert told[-1] == (described["bytes"], described["bytes"])
    assert made.statistics["keys_set"] == 9 + 3
    assert made.statistics["bytes_set"] < 4000 < nc.stat().st_size  # records, not what they lead to
    assert repo.verify().foreign == 9


@pytest.mark.parametrize("part", [(slice(3, 20), 2), (slice(None), slice(4, 7)), (59, 6)])
def test_parts(repo: txstore.Repository, nc: Path, part: Any) -> None:
    repo.import_references(references_of(nc), "below/here")
    array = zarr.open_array(repo.snapshot(), path="below/here/temperature", mode="r")
    np.testing.assert_array_equal(array[part], TEMPERATURES[part])


def test_a_manifest_of_format_0_and_what_is_in_it(repo: txstore.Repository, nc: Path) -> None:
    refs = references_of(nc)["refs"]
    refs["inline/.zarray"] = json.loads(refs["height/.zarray"]) | {"shape": [2], "chunks": [2], "dtype": "|u1"}
    refs["inline/0"] = "base64:" + base64.b64encode(bytes([7, 255])).decode()
    refs["plain/.zarray"] = refs["inline/.zarray"]
    refs["plain/0"] = "ab"
    refs["whole/.zarray"] = refs["inline/.zarray"] | {"shape": [nc.stat().st_size], "chunks": [nc.stat().st_size]}
    refs["whole/0"] = [str(nc)]
    refs[".zmetadata"] = json.dumps({"metadata": {}, "zarr_consolidated_format": 1})
    repo.import_references(refs)
    assert temperature(repo, "inline").tolist() == [7, 255]
    assert temperature(repo, "plain").tolist() == [97, 98]
    assert temperature(repo, "whole").tobytes() == nc.read_bytes()
    assert ".zmetadata" not in repo.mapping()


def test_a_file_of_json_with_templates_and_relative_urls(repo: txstore.Repository, nc: Path) -> None:
    manifest = references_of(nc, "{{here}}/station.nc")
    (nc.parent / "manifests").mkdir()
    path = nc.parent / "manifests" / "station.json"
    path.write_text(json.dumps(manifest | {"templates": {"here": ".."}}))
    repo.import_references(path)
    np.testing.assert_array_equal(temperature(repo), TEMPERATURES)
    path.write_text(json.dumps(manifest | {"templates": {"here": "{{f(1)}}"}}))
    with pytest.raises(SourceError, match="more than a name in braces"):
        repo.import_references(path, "again")


@pytest.mark.parametrize("value", [b"abc", "abc", b"base64:YWJj", "base64:YWJj"])
def test_a_value_in_a_manifest_is_what_fsspec_makes_of_it(repo: txstore.Repository, value: str | bytes) -> None:
    """Parquet has values as bytes, and some of these are base64."""
    refs = {".zgroup": '{"zarr_format": 2}', "x/0": value}
    repo.import_references(refs)
    assert fsspec.filesystem("reference", fo=refs).cat("x/0") == bytes(repo.mapping()["x/0"]) == b"abc"


@pytest.mark.parametrize("url", ["{{a}}" * 60_000, "x" * 5000])
def test_no_url_is_long(repo: txstore.Repository, url: str) -> None:
    """Templates of 500 KB would make a text of 12 GB. Any number of rows in Parquet may have the same long one."""
    refs = {".zgroup": '{"zarr_format": 2}', "x/0": ["/data/" + url, 0, 1]}
    with pytest.raises(SourceError, match="a URL in it has more than 4,096 characters"):
        repo.import_references({"version": 1, "templates": {"a": "x" * 200_000}, "refs": refs})
    assert repo.head() is None


@pytest.mark.filterwarnings("ignore:The 'fastparquet' engine")
def test_parquet(repo: txstore.Repository, nc: Path) -> None:
    pytest.importorskip("fastparquet")
    pytest.importorskip("pyarrow")
    write_parquet(nc.parent / "station.parq", references_of(nc)["refs"])
    repo.import_references(nc.parent / "station.parq")
    np.testing.assert_array_equal(temperature(repo), TEMPERATURES)
    np.testing.assert_array_equal(temperature(repo, "height"), np.arange(60.0))


@pytest.mark.filterwarnings("ignore:The 'fastparquet' engine")
def test_fastparquet_reads_nothing(repo: txstore.Repository, nc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few flipped bytes crash it."""
    pytest.importorskip("fastparquet")
    write_parquet(nc.parent / "station.parq", references_of(nc)["refs"])
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pyarrow"):
        repo.import_references(nc.parent / "station.parq")


@pytest.mark.filterwarnings("ignore:The 'fastparquet' engine")
@pytest.mark.parametrize(
    ("rows", "length", "words"),
    [
        (2_000_000, 0, "it has 2,000,000 rows"),
        (3_000, 1 << 19, r"tables up to 'temperature/refs\.0\.parq' have more than 1,073,741,824 bytes"),
    ],
)
def test_a_table_has_no_more_than_a_manifest_needs(
    repo: txstore.Repository, nc: Path, rows: int, length: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few kilobytes may hold any number of rows, and these one value."""
    fastparquet = pytest.importorskip("fastparquet")
    pytest.importorskip("pyarrow")
    import pandas as pd

    manifest = nc.parent / "station.parq"
    write_parquet(manifest, references_of(nc)["refs"])
    raw = pd.Categorical.from_codes(np.zeros(rows, "i1"), [b"x" * length])
    table = pd.DataFrame({"offset": np.zeros(rows, "i8"), "raw": raw})
    part = manifest / "temperature" / "refs.0.parq"
    fastparquet.write(str(part), table, compression="ZSTD", write_index=False)
    monkeypatch.setattr(bounded_codecs, "MOST_IN_MEMORY", 1 << 30)
    with pytest.raises(SourceError, match=words):
        repo.import_references(manifest)


@pytest.mark.filterwarnings("ignore:The 'fastparquet' engine")
def test_a_table_that_says_less_than_its_pages_have(
    repo: txstore.Repository, nc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """27 kB took 4 GB: the libraries believe each page, and the end of the file had other lengths."""
    fastparquet = pytest.importorskip("fastparquet")
    pytest.importorskip("pyarrow")
    import pandas as pd
    from fastparquet.cencoding import ThriftObject

    manifest = nc.parent / "station.parq"
    write_parquet(manifest, references_of(nc)["refs"])
    table = pd.DataFrame({"offset": np.zeros(5, "i8"), "raw": [b"x" * (1 << 20)] * 5})
    part = manifest / "temperature" / "refs.0.parq"
    fastparquet.write(str(part), table, compression="ZSTD", write_index=False, object_encoding="bytes")
    told: ThriftObject = fastparquet.ParquetFile(str(part)).fmd
    for group in told.row_groups:
        group.total_byte_size = 100
        for column in group.columns:
            column.meta_data.total_uncompressed_size = 100
    content, footer = part.read_bytes(), told.to_bytes()
    pages = content[: -8 - int.from_bytes(content[-8:-4], "little")]
    part.write_bytes(pages + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    assert len(part.read_bytes()) < 10_000
    monkeypatch.setattr(manifests, "_MOST_BYTES", 1 << 20)
    with pytest.raises(SourceError, match="it has more than 1,048,576 bytes"):
        repo.import_references(manifest)


@pytest.mark.filterwarnings("ignore:The 'fastparquet' engine")
def test_a_manifest_has_no_more_than_memory(
    repo: txstore.Repository, nc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fastparquet")
    pytest.importorskip("pyarrow")
    write_parquet(nc.parent / "station.parq", references_of(nc)["refs"])
    monkeypatch.setattr(bounded_codecs, "MOST_IN_MEMORY", 2500)
    with pytest.raises(SourceError, match=r"tables up to '.*\.parq' have more than 2,500 bytes"):
        repo.import_references(nc.parent / "station.parq")
    refs = {".zgroup": '{"zarr_format": 2}', "x/0": ["{{a}}/0"], "x/1": ["{{a}}/1"], "x/2": ["{{a}}/2"]}
    with pytest.raises(SourceError, match="its URLs, with their templates"):
        repo.import_references({"version": 1, "templates": {"a": "/" + "x" * 1000}, "refs": refs})


@pytest.mark.filterwarnings("ignore:The 'fastparquet' engine")
def test_a_part_of_a_parquet_manifest_that_can_not_be_read_is_an_error(repo: txstore.Repository, nc: Path) -> None:
    pytest.importorskip("fastparquet")
    pytest.importorskip("pyarrow")
    manifest = nc.parent / "station.parq"
    write_parquet(manifest, references_of(nc)["refs"])
    part = next(manifest.glob("*/refs.0.parq"))
    part.write_bytes(part.read_bytes()[:-8])
    with pytest.raises(SourceError, match=r"refs\.0\.parq' can't be read"):
        repo.import_references(manifest)
    assert repo.head() is None


def test_a_parquet_manifest_takes_time_for_what_it_holds_not_for_its_shapes(repo: txstore.Repository, nc: Path) -> None:
    manifest = nc.parent / "station.parq"
    manifest.mkdir()
    array = {"zarr_format": 2, "shape": [1 << 62], "chunks": [1], "dtype": "|u1", "fill_value": 0, "order": "C"}
    documents = {".zgroup": {"zarr_format": 2}, "x/.zarray": array | {"compressor": None, "filters": None}}
    (manifest / ".zmetadata").write_text(json.dumps({"metadata": documents, "record_size": 10}))
    repo.import_references(manifest)
    assert zarr.open_array(repo.snapshot(), path="x").shape == (1 << 62,)


def test_a_manifest_of_zarr_format_3(repo: txstore.Repository, nc: Path) -> None:
    with txstore.TxStore(nc.parent / "other.tx") as store:
        zarr.create_array(store, name="x", shape=(4,), chunks=(2,), dtype="u1", compressors=None)
    refs: dict[str, Any] = {
        key: value.decode() for key, value in txstore.TxStore(nc.parent / "other.tx").mapping.items()
    }
    root = json.loads(refs["zarr.json"]) | {"consolidated_metadata": {"kind": "inline", "metadata": {}}}
    refs |= {"zarr.json": json.dumps(root), "x/c/0": [str(nc), 0, 2], "x/c/1": [str(nc), 2, 2]}
    repo.import_references(refs, "a/b")
    assert temperature(repo, "a/b/x").tobytes() == nc.read_bytes()[:4]
    assert b"consolidated" not in repo.mapping()["a/b/zarr.json"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda refs: refs.update({"height/0": ["/elsewhere/x.nc", 0, 1]}), r"sources=\['/elsewhere/'\]"),
        (lambda refs: refs.update({"height/0": ["missing.nc", 0, 1]}), "no such file"),
        (lambda refs: refs.update({"height/0": ["station.nc", 10, 1 << 40]}), "do not lie in it"),
        (lambda refs: refs.update({"height/0": ["station.nc", -1, 1]}), "neither a value nor"),
        (lambda refs: refs.update({"height/0": 7}), "neither a value nor"),
        (lambda refs: refs.update({"height/0": "base64:?"}), "no base64"),
        (lambda refs: refs.update({"height/0": ["zip://x::station.zip", 0, 1]}), "inside of another"),
        (lambda refs: refs.update({"height/0": ["https://ana:hush@host/x", 0, 1]}), "no user"),
        (lambda refs: refs.update({"height/0": ["https://host/x?token=hush", 0, 1]}), "no query"),
        (lambda refs: refs.pop(".zgroup"), "no manifest of a Zarr hierarchy"),
    ],
)
def test_what_can_not_be_imported_leaves_nothing(
    repo: txstore.Repository, nc: Path, change: Callable[[dict[str, Any]], Any], words: str
) -> None:
    manifest = references_of(nc)
    change(manifest["refs"])
    path = nc.parent / "manifest.json"
    path.write_text(json.dumps(manifest))
    with pytest.raises(SourceError, match=words) as raised:
        repo.import_references(path)
    assert "hush" not in str(raised.value)
    assert not repo.exists


def test_what_is_no_manifest(repo: txstore.Repository, nc: Path) -> None:
    for manifest, words in (
        ({"version": 2, "refs": {}}, "not known"),
        ({"version": 1, "refs": {}, "gen": [{"key": "x"}]}, "generated"),
        ({"version": 1}, "no refs"),
        (nc, "no JSON"),
        (nc.parent, "no .zmetadata"),
        (nc.parent / "missing.json", "nothing here"),
    ):
        with pytest.raises(SourceError, match=words):
            repo.import_references(manifest)  # type: ignore[arg-type]
    (nc.parent / "list.json").write_text("[1]")
    with pytest.raises(SourceError, match="not an object"):
        repo.import_references(nc.parent / "list.json")
    (nc.parent / "m.json").write_text(json.dumps(references_of(nc)))
    with pytest.raises(SourceError, match="import_references"):
        repo.import_from(nc.parent / "m.json")


def test_a_path_that_is_taken(repo: txstore.Repository, nc: Path) -> None:
    repo.import_references(references_of(nc), "a")
    with pytest.raises(FileExistsError):
        repo.import_references(references_of(nc), "a")


def test_by_name_and_again(repo: txstore.Repository, nc: Path) -> None:
    manifest = references_of(nc)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repo.import_references(manifest, name="nightly", progress=stop)
    assert [each.name for each in repo.transactions()] == ["nightly"]
    repo.import_references(manifest, name="nightly")
    np.testing.assert_array_equal(temperature(repo), TEMPERATURES)


def test_kerchunk_itself(repo: txstore.Repository, nc: Path) -> None:
    hdf = pytest.importorskip("kerchunk.hdf")
    df = pytest.importorskip("kerchunk.df")
    manifest = hdf.SingleHdf5ToZarr(str(nc)).translate()
    repo.import_references(manifest, "dict")
    df.refs_to_dataframe(manifest, str(nc.parent / "k.parq"), record_size=5)
    repo.import_references(nc.parent / "k.parq", "parquet")
    for path in ("dict", "parquet"):
        np.testing.assert_array_equal(temperature(repo, f"{path}/temperature"), TEMPERATURES)


def test_virtualizarr_itself(repo: txstore.Repository, nc: Path) -> None:
    virtualizarr = pytest.importorskip("virtualizarr")
    parsers = pytest.importorskip("virtualizarr.parsers")
    registry = pytest.importorskip("obspec_utils.registry")
    stores = registry.ObjectStoreRegistry({"file://": pytest.importorskip("obstore.store").LocalStore()})
    opened = virtualizarr.open_virtual_dataset(f"file://{nc}", registry=stores, parser=parsers.HDFParser())
    repo.import_references(opened.vz.to_kerchunk(format="dict"))
    np.testing.assert_array_equal(temperature(repo), TEMPERATURES)


# --- sources that have changed, and such that are not allowed


@pytest.mark.parametrize("how", ["time", "size", "content", "gone"])
def test_a_source_that_has_changed(repo: txstore.Repository, nc: Path, how: str) -> None:
    repo.import_references(references_of(nc))
    before = repo.snapshot()
    np.testing.assert_array_equal(read(before, "temperature"), TEMPERATURES)
    if how == "time":
        touch(nc)
    elif how == "size":
        status = nc.stat()
        with nc.open("ab") as file:
            file.write(b"more")
        os.utime(nc, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif how == "content":
        shutil.copy(nc, nc.with_suffix(".new"))
        touch(nc.with_suffix(".new"))
        nc.with_suffix(".new").replace(nc)
    else:
        nc.unlink()
    for store in (before, repo.snapshot(), txstore.TxStore(repo)):
        with pytest.raises(SourceChangedError, match=r"station.nc.*import the references to it again") as raised:
            read(store, "temperature")
        assert raised.value.url == f"file://{nc}"
        assert "temperature/0.0" in store  # a key is there, whatever its file is
        with pytest.raises(SourceChangedError):
            store["temperature/0.0"]
    with pytest.raises(SourceChangedError):
        zarr.open_array(repo.snapshot(), path="temperature", mode="r")[0, 0]
    assert repo.verify().ok
    (fault,) = repo.verify(sources=True).faults
    assert (fault.part, fault.path) == ("source", f"file://{nc}")


def test_a_source_may_shrink_while_it_is_read(
    repo: txstore.Repository, nc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is looked at after the range was read decides: a change in between is not overlooked."""
    repo.import_references(references_of(nc))
    file, looks, fstat = nc.stat().st_ino, [], os.fstat

    def later(descriptor: int) -> os.stat_result:
        if fstat(descriptor).st_ino == file:
            looks.append(descriptor)
            if len(looks) == 2:
                touch(nc)
        return fstat(descriptor)

    monkeypatch.setattr(os, "fstat", later)
    with pytest.raises(SourceChangedError):
        repo.snapshot()["temperature/0.0"]


def test_nothing_else_is_opened(repo: txstore.Repository, nc: Path, open_repo: OpenRepo, tmp_path: Path) -> None:
    repo.import_references(references_of(nc))
    for sources in (None, [], [tmp_path / "ra"], [nc.parent / "stat"], ["s3://bucket/"], {"https://host/": None}):
        other = open_repo(sources=sources)
        with pytest.raises(SourceError, match="may not be read here") as raised:
            temperature(other)
        assert not isinstance(raised.value, SourceChangedError)
        assert f"sources=['{nc.parent}/']" in str(raised.value)
        with pytest.raises(SourceError, match="may not be read here"):
            other.begin().set_reference("x/c/0", nc)
        (fault,) = other.verify(sources=True).faults
        assert "may not be read" in fault.reason
    for allowed in (nc.parent, f"{nc.parent}/", nc, f"file://{tmp_path}", "/", {str(tmp_path): {}}):
        np.testing.assert_array_equal(temperature(open_repo(sources=allowed)), TEMPERATURES)
    np.testing.assert_array_equal(read(txstore.TxStore(repo.url, sources=[nc.parent]), "temperature"), TEMPERATURES)
    with pytest.raises(ValueError, match="belong to the Repository"):
        txstore.TxStore(repo, sources=[nc.parent])


@pytest.mark.parametrize(
    "url",
    [
        "file://{raw}/../secret",
        "{raw}/../secret",
        "file://{raw}/sub/../../secret",
        "local://{raw}/../secret",
        "file://{raw}x/secret",
        "file:///{raw}/../secret",
        "memory://allowed/../secret",
        "memory://allowed/%2e%2e/secret",
        "memory://allowed/%252e%252e/secret",
        "memory://allowed/..\\secret",
        "memory://allowedx/secret",
        "memory://other/secret",
        "simplecache::memory://allowed/secret",
        "https://allowed@elsewhere/secret",
    ],
)
def test_no_way_out_of_what_is_allowed(open_repo: OpenRepo, tmp_path: Path, url: str) -> None:
    """A record is what whoever has written the repository wants it to be."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    fsspec.filesystem("memory").pipe("/secret", b"secret")
    url = url.format(raw=tmp_path / "raw")
    repo = open_repo(sources=[tmp_path / "raw", "memory://allowed", "https://allowed"])
    record = ForeignRange(FileVersion(url, 6, "1"), 0, 6).encode()
    tx = repo.begin()
    tx.lifecycle.stage(packfile.FRAME_FOREIGN, "x/c/0", b"x/c/0", record)
    tx.commit()
    with pytest.raises(SourceError):
        repo.snapshot()["x/c/0"]
    with pytest.raises(SourceError):
        repo.begin().set_reference("x/c/1", url)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_what_no_file_has(open_repo: OpenRepo, binary: Path) -> None:
    os.mkfifo(binary.parent / "pipe")
    repo = open_repo(sources=binary.parent)
    tx = repo.begin()
    seen = repo.engine.sources.look(binary)
    for n, file in enumerate(
        (
            FileVersion(f"file://{binary.parent}/pipe", 1 << 62, seen.version),
            FileVersion(f"file://{binary.parent}", 1 << 62, seen.version),
            FileVersion(f"file://{binary}", 1 << 62, seen.version),
        )
    ):
        key = f"x/c/{n}"
        record = ForeignRange(file, 1 << 61, 1 << 61).encode()
        tx.lifecycle.stage(packfile.FRAME_FOREIGN, key, key.encode(), record)
        with pytest.raises(SourceError):  # at once: no pipe is waited for, nor memory taken for what is not there
            tx[key]
    tx.commit()


def test_a_file_that_is_put_back_after_it_was_read(
    open_repo: OpenRepo, binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read is of another file, though the name has the right version before and after."""
    repo = open_repo(sources=binary.parent)
    with repo.transaction() as store:
        stage(store, binary)
    kept = binary.rename(binary.parent / "kept")
    binary.write_bytes(bytes(kept.stat().st_size))
    seen, status = [], os.stat

    def stat(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if path == str(binary):
            if seen and kept.exists():
                os.replace(kept, binary)
            seen.append(path)
        return status(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(SourceChangedError):
        repo.snapshot()["x/c/0"]
    monkeypatch.undo()
    if kept.exists():
        os.replace(kept, binary)
    np.testing.assert_array_equal(read(repo.snapshot()), VALUES)


def test_what_is_no_record_is_damage(open_repo: OpenRepo) -> None:
    repo = txstore.Repository(open_repo().url, sources=["/"])
    tx = repo.begin()
    tx.lifecycle.stage(packfile.FRAME_FOREIGN, "x/c/0", b"x/c/0", b"TXSTFORN and so on, but no record")
    for use in (tx.get_view, tx.size_of):
        with pytest.raises(CorruptionError):
            use("x/c/0")
    tx.commit()
    with pytest.raises(CorruptionError):
        repo.snapshot()["x/c/0"]
    (fault,) = repo.verify().faults
    assert (fault.key, fault.part) == ("x/c/0", "value")
    shutil.rmtree(repo.url)


def test_options_are_shown_nowhere(open_repo: OpenRepo, binary: Path) -> None:
    repo = open_repo(sources={"s3://bucket/raw/": {"secret": "hush"}, binary.parent: {}})
    with repo.transaction() as store:
        stage(store, binary)
    for shown in (repr(repo), repr(repo.engine.access), repr(repo.engine.sources), repr(store), repr(repo.snapshot())):
        assert "hush" not in shown
    assert "s3://bucket/raw" in repr(repo.engine.access)
    content = b"".join(path.read_bytes() for path in Path(repo.url).rglob("*") if path.is_file())
    assert b"hush" not in content
    assert b"raw.bin" in content
    assert pickle.loads(pickle.dumps(repo.engine)).access.sources["s3://bucket/raw"] == {"secret": "hush"}
    for prefix in ("https://ana:hush@host/", "s3://a/../b", "zip://x::y"):
        with pytest.raises(SourceError):
            open_repo(sources=[prefix])


# --- transactions


def test_what_is_staged_is_read(open_repo: OpenRepo, binary: Path) -> None:
    repo = open_repo(sources=binary.parent)
    with repo.transaction("x") as store:
        array = stage(store, binary)
        assert array[49:52].tolist() == [49, 50, 51]
        assert store.mapping.size_of("x/c/1") == 200
        assert list(store.mapping.keys_below("x/c")) == ["x/c/0", "x/c/1"]
        assert sorted(store.changes()["set"]) == ["x/c/0", "x/c/1", "x/zarr.json", "zarr.json"]
        store.commit()
        np.testing.assert_array_equal(array[:], VALUES)
    assert repo.head().statistics["arrays"] == 1  # type: ignore[union-attr]
    assert repo.head().statistics["keys_set"] == 4  # type: ignore[union-attr]
    tx = repo.begin()
    tx.set_reference("y/c/0", binary, 4)
    assert tx["y/c/0"] == VALUES.tobytes()
    assert tx.get_part("y/c/0", slice(4, 8)) == VALUES[1:2].tobytes()
    tx.commit()
    assert tx["y/c/0"] == VALUES.tobytes()
    assert tx.size_of("y/c/0") == 400
    assert repo.mapping().get_part("y/c/0", slice(-4, None)) == VALUES[-1:].tobytes()
    assert repo.mapping().get_part("y/c/0", slice(90, 4)) == b""


def test_what_no_reference_can_be(open_repo: OpenRepo, binary: Path) -> None:
    repo = open_repo(sources=binary.parent)
    tx = repo.begin()
    with pytest.raises(ValueError, match="metadata document"):
        tx.set_reference("x/zarr.json", binary)
    with pytest.raises(SourceError, match="do not lie in it"):
        tx.set_reference("x/c/0", binary, 400, 5)
    with pytest.raises(SourceError, match="no file"):
        tx.set_reference("x/c/0", binary.parent)
    with pytest.raises(FileNotFoundError):
        tx.set_reference("x/c/0", binary.parent / "missing")
    with pytest.raises(SourceError, match="would not be noticed"):
        tx.set_reference("x/c/0", binary, size=404, version="")
    tx.set_reference("x/c/0", binary, 0, 4, size=404, version="as it was once")  # what a manifest may know better
    with pytest.raises(SourceChangedError, match="as it was once"):
        tx["x/c/0"]
    tx.rollback()
    with pytest.raises(ValueError, match="read-only"):
        repo.snapshot().set_reference("x/c/0", binary)


def test_writing_over_and_deleting(open_repo: OpenRepo, binary: Path) -> None:
    repo = open_repo(sources=binary.parent)
    with repo.transaction() as store:
        stage(store, binary)
    with repo.transaction() as store:
        array = zarr.open_array(store, path="x")
        array[10:12] = [-1, -2]  # a part of a chunk: it is read, changed, and stored
    expected = VALUES.copy()
    expected[10:12] = [-1, -2]
    np.testing.assert_array_equal(read(repo.snapshot()), expected)
    assert repo.verify().ok
    with repo.transaction() as store:
        del store["x/c/1"]
    assert "x/c/1" not in repo.mapping()
    expected[50:] = 0
    touch(binary)
    np.testing.assert_array_equal(read(repo.snapshot()), expected)  # nothing of it lies outside any more
    with pytest.raises(SourceChangedError):
        read(repo.snapshot(at=0))
    with repo.transaction() as store:
        store.set_reference("x/c/1", binary, 204, 200)
    np.testing.assert_array_equal(read(repo.snapshot())[50:], VALUES[50:])


def test_a_reference_that_is_there_already_is_no_write(open_repo: OpenRepo, binary: Path) -> None:
    repo = open_repo(sources=binary.parent)
    with repo.transaction() as store:
        stage(store, binary)
    version = repo.head().version  # type: ignore[union-attr]
    with repo.transaction() as store:
        store.set_reference("x/c/0", binary, 4, 200)
    assert repo.head().version == version  # type: ignore[union-attr]
    record = ForeignRange(repo.engine.sources.look(binary), 4, 200).encode()
    with repo.transaction() as store:
        store["x/c/0"] = record  # the same bytes, but a value
    assert repo.snapshot()["x/c/0"] == record


def test_conflicts(open_repo: OpenRepo, binary: Path) -> None:
    repo = open_repo(sources=binary.parent)
    with repo.transaction() as store:
        stage(store, binary)
    for one, other in (("reference", "value"), ("value", "reference"), ("delete", "reference"), ("reference", "dir")):
        first, second = repo.begin(), repo.begin()
        for tx, what in ((first, one), (second, other)):
            if what == "reference":
                tx.set_reference("x/c/0", binary, 8, 200 - 4 * len(one))
            elif what == "value":
                tx["x/c/0"] = os.urandom(200)
            elif what == "dir":
                tx.delete_dir("x")
            else:
                del tx["x/c/0"]
        first.commit()
        with pytest.raises(txstore.ConflictError):
            second.commit()
        second.rollback()


def _stage_part(store: txstore.TxStore, path: str, chunk: int) -> list[int]:
    store.set_reference(f"x/c/{chunk}", path, 4 + 200 * chunk, 200)
    return list(zarr.open_array(store, path="x", mode="r")[50 * chunk : 50 * chunk + 2])


@pytest.mark.long
@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_several_processes_of_one_transaction(open_repo: OpenRepo, binary: Path, method: str) -> None:
    repo = open_repo(sources=binary.parent)
    with (
        repo.transaction("both") as store,
        ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool,
    ):
        zarr.create_array(store, name="x", shape=(100,), chunks=(50,), dtype="i4", compressors=None)
        found = list(pool.map(_stage_part, [store] * 2, [str(binary)] * 2, range(2)))
        assert found == [[0, 1], [50, 51]]
        np.testing.assert_array_equal(read(store), VALUES)
    np.testing.assert_array_equal(read(repo.snapshot()), VALUES)
    assert repo.verify().foreign == 2
    commit = repo.engine.commits.head("main")
    assert commit is not None
    assert commit.header.required == commitfile.FEATURE_FOREIGN


def test_a_pickled_store_reads_in_another_process(repo: txstore.Repository, nc: Path, tmp_path: Path) -> None:
    repo.import_references(references_of(nc))
    (tmp_path / "store").write_bytes(pickle.dumps(repo.snapshot()))
    code = (
        "import pickle, sys, zarr; store = pickle.load(open('store', 'rb')); "
        "print(float(zarr.open_array(store, path='temperature', mode='r')[:].sum()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert float(done.stdout) == float(TEMPERATURES.sum())


def test_serializable(open_repo: OpenRepo, binary: Path) -> None:
    repo = open_repo(sources=binary.parent)
    with repo.transaction() as store:
        stage(store, binary)
    reader = repo.transaction(isolation="serializable")
    assert read(reader)[0] == 0
    with repo.transaction() as store:
        store.set_reference("x/c/0", binary, 8, 200)
    reader["y"] = b"1"
    with pytest.raises(txstore.ConflictError):
        reader.commit()
    reader.rollback()


def test_the_event_loop_never_reads_a_file(open_repo: OpenRepo, binary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = open_repo(sources=binary.parent)
    threads = set()
    content = repo.engine.sources._content

    def noted(url: str, offset: int, length: int) -> bytes:
        threads.add(threading.get_ident())
        return content(url, offset, length)

    monkeypatch.setattr(repo.engine.sources, "_content", noted)

    async def get(store: txstore.TxStore) -> None:
        for part in (None, zarr.abc.store.RangeByteRequest(0, 4)):
            found = await store.get("x/c/0", zarr.core.buffer.default_buffer_prototype(), byte_range=part)
            assert found is not None
        assert await store.getsize("x/c/0") == 200
        assert threading.get_ident() not in threads

    with repo.transaction() as store:
        stage(store, binary)
        asyncio.run(get(store))
    asyncio.run(get(repo.snapshot()))
    asyncio.run(get(txstore.TxStore(repo)))
    assert threads


# --- the rest of what a repository does


@pytest.mark.parametrize("where", ["local", "memory"])
def test_maintenance(open_repo: OpenRepo, binary: Path, tmp_path: Path, where: str) -> None:
    if where == "local":
        repo = open_repo(sources=binary.parent)
    else:
        repo = txstore.Repository(f"memory://{tmp_path.name}/data.tx", sources=binary.parent)
    for number in range(6):
        with repo.transaction() as store:
            stage(store, binary, f"x{number}")
            if number:
                del store[f"x{number - 1}/c/0"]

    def check(repo: txstore.Repository) -> None:
        assert repo.verify(sources=True).faults == []
        np.testing.assert_array_equal(read(repo.snapshot(), "x5"), VALUES)
        np.testing.assert_array_equal(read(repo.snapshot(), "x2")[50:], VALUES[50:])
        assert "x2/c/0" not in repo.mapping()

    check(repo)
    assert repo.optimize() is not None
    check(repo)
    repo.vacuum(keep=1)
    check(repo)
    assert repo.usage().live < 10_000
    with repo.transaction() as store:
        store["later"] = b"1"
    header = repo.engine.commits.head("main").header  # type: ignore[union-attr]
    assert header.required == commitfile.FEATURE_FOREIGN  # of the parent
    if where == "local":
        repo.backup(tmp_path / "backup.tx")
        check(txstore.Repository(tmp_path / "backup.tx", sources=binary.parent))
        with pytest.raises(SourceError, match="may not be read here"):
            read(txstore.Repository(tmp_path / "backup.tx").snapshot(), "x5")


@pytest.mark.parametrize("damage", ["run", "frame"])
def test_repair(open_repo: OpenRepo, binary: Path, damage: str) -> None:
    repo = open_repo(sources=binary.parent)
    with repo.transaction() as store:
        stage(store, binary)
    stored = repo.engine.commits.head("main")
    assert stored is not None
    path = Path(repo.url) / stored.path
    content = bytearray(path.read_bytes())
    if damage == "run":
        content[stored.header.sections[0].offset + 5] ^= 0xFF
    else:
        content[content.index(b"TXFR", content.index(b"TXSTFORN") + 1) + 9] ^= 4
    path.write_bytes(content)
    assert not txstore.Repository(repo.url).verify().ok
    report = txstore.Repository(repo.url).verify(repair=True)
    assert report.ok, report.faults
    np.testing.assert_array_equal(read(open_repo(sources=binary.parent).snapshot()), VALUES)


def test_a_damaged_record_is_never_a_missing_key(open_repo: OpenRepo, binary: Path) -> None:
    repo = txstore.Repository(open_repo().url, sources=binary.parent)
    with repo.transaction() as store:
        stage(store, binary)
    stored = repo.engine.commits.head("main")
    assert stored is not None
    path = Path(repo.url) / stored.path
    content = bytearray(path.read_bytes())
    content[content.index(b"TXSTFORN") + 50] ^= 1
    path.write_bytes(content)
    damaged = txstore.Repository(repo.url, sources=binary.parent)
    with pytest.raises(CorruptionError):
        read(damaged.snapshot())
    (fault,) = damaged.verify().faults
    assert (fault.key, fault.part) == ("x/c/0", "value")
    shutil.rmtree(repo.url)


def test_what_leaves_the_repository_stands_alone(repo: txstore.Repository, nc: Path, tmp_path: Path) -> None:
    repo.import_references(references_of(nc))
    repo.export(tmp_path / "exported.zarr")
    repo.publish(tmp_path / "published.zarr")
    write_hdf5(nc.parent / "later.nc", TEMPERATURES + 1)
    repo.import_references(references_of(nc.parent / "later.nc"), "later")
    done = repo.publish(tmp_path / "published.zarr")
    assert done is not None
    assert done.written < 20  # what is new
    published: Any = zarr.open_group(tmp_path / "published.zarr", mode="r")
    np.testing.assert_array_equal(published["later/temperature"][:], TEMPERATURES + 1)
    nc.unlink()
    for name in ("exported.zarr", "published.zarr"):
        group: Any = zarr.open_group(tmp_path / name, mode="r")
        np.testing.assert_array_equal(group["temperature"][:], TEMPERATURES)
    with pytest.raises(SourceChangedError):
        repo.export(tmp_path / "again.zarr")


@pytest.mark.parametrize("name", ["refs.json", "refs.parquet"])
def test_no_references_to_references(repo: txstore.Repository, nc: Path, tmp_path: Path, name: str) -> None:
    """Who reads by them would not notice that the file has changed."""
    pytest.importorskip("fastparquet")
    repo.import_references(references_of(nc))
    with pytest.raises(txstore.ExportError, match="lies in another file"):
        repo.references(tmp_path / name, tag="v1", create_tag=True)
    assert not (tmp_path / name).exists()


@pytest.mark.long
def test_xarray_and_fsspec(repo: txstore.Repository, nc: Path, run_installed: Callable[..., str]) -> None:
    pytest.importorskip("xarray")
    repo.import_references(references_of(nc))
    code = """
import sys, xarray, fsspec
url, raw = sys.argv[1:]
print(float(xarray.open_dataset(url, engine="txstore", sources=[raw]).temperature.sum()))
with fsspec.open(f"txstore::{url}", sources=[raw]) as _: pass
"""
    code = code.replace(
        'with fsspec.open(f"txstore::{url}", sources=[raw]) as _: pass',
        """
fs, path = fsspec.url_to_fs(f"txstore::file://{url}/temperature/0.0", sources=[raw])
print(len(fs.cat_file(path)) == fs.info(path)["size"] > 0)
""",
    )
    told = run_installed(code, repo.url, nc.parent).split()
    assert [float(told[0]), told[1]] == [float(TEMPERATURES.sum()), "True"]


def test_an_older_reader_refuses(open_repo: OpenRepo, binary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = open_repo(sources=binary.parent)
    with repo.transaction() as store:
        store["a"] = b"1"
    plain = repo.engine.commits.head("main")
    assert plain is not None
    assert plain.header.required == 0  # who has no such references needs no newer reader
    with repo.transaction() as store:
        stage(store, binary)
    with monkeypatch.context() as patched:
        patched.setattr(commitfile, "REQUIRED_FEATURES_KNOWN", 0)
        with pytest.raises(txstore.UnsupportedFormatError, match="required feature 0"):
            txstore.Repository(repo.url).head()
        with pytest.raises(txstore.UnsupportedFormatError, match="required feature 0"):
            txstore.TxStore(repo.url)["a"]


# --- elsewhere


@pytest.fixture
def memory() -> Iterator[Any]:
    filesystem = fsspec.filesystem("memory")
    yield filesystem
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]


class OneConnection(AbstractFileSystem):
    """As FTP: with two requests at once, each gets an answer to the other one."""

    protocol = "oneconnection"
    asked = threading.Lock()

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": VALUES.nbytes, "type": "file", "mtime": 1, "content": self._alone(None, None)}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        return self._alone(start, end)

    def _alone(self, start: int | None, end: int | None) -> bytes:
        assert self.asked.acquire(blocking=False)
        time.sleep(0.01)
        self.asked.release()
        return VALUES.tobytes()[start:end]


def test_a_file_system_with_one_connection(open_repo: OpenRepo) -> None:
    fsspec.register_implementation("oneconnection", OneConnection, clobber=True)
    repo = open_repo(sources=["oneconnection://host"])
    refs: dict[str, Any] = {f"x/{n}": [f"oneconnection://host/{n // 20}", n * 8, 8] for n in range(50)}
    array = {"zarr_format": 2, "shape": [100], "chunks": [2], "dtype": "<i4", "fill_value": 0, "order": "C"}
    refs |= {".zgroup": {"zarr_format": 2}, "x/.zarray": array | {"compressor": None, "filters": None}}
    repo.import_references(refs)
    np.testing.assert_array_equal(zarr.open_array(repo.snapshot(), path="x", mode="r")[:], VALUES)


def test_another_file_system(open_repo: OpenRepo, memory: Any) -> None:
    memory.pipe("/raw/x.bin", b"head" + VALUES.tobytes())
    repo = open_repo(sources={"memory://raw": None})
    with repo.transaction() as store:
        stage(store, "memory://raw/x.bin")
    np.testing.assert_array_equal(read(repo.snapshot()), VALUES)
    assert repo.verify(sources=True).ok
    memory.pipe("/raw/x.bin", b"tail" + VALUES.tobytes())
    with pytest.raises(SourceChangedError):
        read(repo.snapshot())
    memory.rm("/raw/x.bin")
    with pytest.raises(SourceChangedError, match="no such file"):
        read(repo.snapshot())


# --- the command line


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_commands(repo: txstore.Repository, nc: Path, tmp_path: Path) -> None:
    (nc.parent / "station.json").write_text(json.dumps(references_of(nc)))
    told = run("import", nc.parent / "station.json", repo.url, "--source", nc.parent)
    assert told.startswith("imported 9 references to ")
    assert "of 1 files" in told
    np.testing.assert_array_equal(temperature(repo), TEMPERATURES)
    assert "(9 to files outside)" in run("verify", repo.url, "--source", f"{nc.parent}={{}}")
    run("export", repo.url, tmp_path / "exported.zarr", "--source", nc.parent)
    run("publish", repo.url, tmp_path / "published.zarr", "--source", nc.parent)
    touch(nc)
    done = CliRunner().invoke(app, ["verify", repo.url, "--source", str(nc.parent)])
    assert (done.exit_code, "it has changed" in done.output) == (1, True)
    assert CliRunner().invoke(app, ["export", repo.url, str(tmp_path / "other")]).exit_code == 2
    for arguments in (["--concat", "time"], ["--source", "/={hush"]):
        done = CliRunner().invoke(app, ["import", str(nc.parent / "station.json"), repo.url, *arguments])
        assert done.exit_code == 2
        assert "hush" not in done.output

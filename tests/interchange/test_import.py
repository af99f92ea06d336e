"""Import of plain Zarr: what it was, byte for byte; in one commit, or not at all; gone on with after a death."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from fsspec.implementations.local import LocalFileSystem
from zarr.storage import MemoryStore

import txstore
from tests.interchange.test_export import files
from tests.system.remote.conftest import server_of  # noqa: F401 - a fixture
from tests.tools.command_line import assert_refused, run, run_json
from tests.tools.disk import run_python
from txstore.format.consolidated import plain_document
from txstore.interchange.places import Place, places, stamp

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")


@pytest.fixture(params=[2, 3])
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A hierarchy with consolidated metadata, as zarr and others have left it."""
    path = tmp_path / "plain.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=request.param, attributes={"title": "plain"})
    group.create_array("x", data=np.arange(100), chunks=(10,))
    group.create_array("deep/y", data=np.ones((4, 4)), chunks=(2, 2), attributes={"units": "m"})
    zarr.consolidate_metadata(path)
    (path / "x" / f"c.{'0' * 32}.partial").write_bytes(b"torn")
    (path / "OME").mkdir()
    (path / "OME" / "METADATA.ome.xml").write_bytes(b"<OME/>")
    return path


def assert_imported(repo: txstore.Repository, plain: Path, path: str = "") -> None:
    prefix = f"{path}/" if path else ""
    expected = {
        f"{prefix}{key}": plain_document(key, value)
        for key, value in files(plain).items()
        if not key.endswith((".zmetadata", ".partial"))
    }
    mapping = repo.mapping()
    assert {key: mapping[key] for key in mapping.keys_below(path)} == expected
    group = zarr.open_group(repo.snapshot(), path=path, mode="r")
    assert group.metadata.consolidated_metadata is None
    assert group.attrs["title"] == "plain"
    np.testing.assert_array_equal(group["x"][:], np.arange(100))  # type: ignore[index]


def test_plain_zarr(repo: txstore.Repository, plain: Path) -> None:
    told: list[tuple[int, int]] = []
    commit = repo.import_from(plain, message="in", progress=lambda *numbers: told.append(numbers))
    assert list(repo.log()) == [commit]
    assert commit.message == "in"
    about = commit.properties["import"]
    assert (about["format"], about["source"], about["bytes"]) == ("zarr", str(plain), told[-1][1])
    assert told[-1][0] == told[-1][1]
    assert told == sorted(told)
    assert_imported(repo, plain)
    assert repo.mapping()["OME/METADATA.ome.xml"] == b"<OME/>"


def test_appends_to_what_was_imported_are_not_lost(repo: txstore.Repository, plain: Path) -> None:
    repo.import_from(plain)
    store = txstore.TxStore(repo)
    for _ in range(3):
        zarr.open_group(store)["x"].append(np.zeros(5))  # type: ignore[union-attr]
        store.commit()
    assert zarr.open_array(repo.snapshot(), path="x", mode="r").shape == (115,)


def test_below_a_path_beside_what_is_there(repo: txstore.Repository, plain: Path) -> None:
    zarr_format = 3 if (plain / "zarr.json").exists() else 2
    with repo.transaction() as store:
        zarr.create_group(store, path="runs", attributes={"mine": 1}, zarr_format=zarr_format)
    repo.import_from(plain, "runs/2025/a")
    assert_imported(repo, plain, "runs/2025/a")
    assert zarr.open_group(repo.snapshot(), path="runs", mode="r").attrs["mine"] == 1
    assert "2025" in zarr.open_group(repo.snapshot(), path="runs", mode="r")


def test_an_array_and_a_part_that_is_left_out(repo: txstore.Repository, plain: Path) -> None:
    repo.import_from(plain / "x", "array")
    np.testing.assert_array_equal(zarr.open_array(repo.snapshot(), path="array", mode="r")[:], np.arange(100))
    repo.import_from(plain, "rest", exclude=["deep", "OME"])
    assert not repo.mapping().has_keys_below("rest/deep")
    assert repo.mapping().has_keys_below("rest/x")


def test_a_path_that_is_taken(repo: txstore.Repository, plain: Path) -> None:
    repo.import_from(plain, "a")
    version = repo.head().version  # type: ignore[union-attr]
    for path in ("", "a", "a/x", "a/deep"):
        with pytest.raises(FileExistsError, match="free"):
            repo.import_from(plain, path)
    with pytest.raises(ValueError, match="is an array"):
        repo.import_from(plain, "a/x/below")
    with pytest.raises(ValueError, match="segment"):
        repo.import_from(plain, "../b")
    assert repo.head().version == version  # type: ignore[union-attr]


def test_sources_that_are_refused(repo: txstore.Repository, tmp_path: Path, plain: Path) -> None:
    (tmp_path / "text").write_bytes(b"dear diary")
    (tmp_path / "folder").mkdir()
    document = (plain / ("zarr.json" if (plain / "zarr.json").exists() else ".zgroup")).as_uri()
    (tmp_path / "manifest.json").write_text(json.dumps({document.rpartition("/")[2]: [document]}))
    other = txstore.Repository(tmp_path / "other.tx")
    other.import_from(plain)
    for source, match in (
        (tmp_path / "none", "nothing here"),
        (tmp_path / "*.none", "nothing matches"),
        (tmp_path / "text", "neither Zarr nor NetCDF nor HDF5"),
        (tmp_path / "folder", "no Zarr hierarchy"),
        (MemoryStore(), "MemoryStore: no Zarr hierarchy"),
        (other.url, "TxStore repository already"),
        (shutil.make_archive(str(tmp_path / "zipped"), "zip", plain), "zip::"),
        *[(f"{chain}{tmp_path}/manifest.json", "import_references") for chain in ("reference::", "dir::reference::")],
    ):
        with pytest.raises(txstore.SourceError, match=match):
            repo.import_from(source)
    for source in (tmp_path / "none", tmp_path / "folder", "http://127.0.0.1:1/data.zarr"):
        with pytest.raises(txstore.SourceError, match=r"no Zarr hierarchy|could be listed"):
            repo.import_from(source, format="zarr")
    with pytest.raises(txstore.SourceError, match="inside of it"):
        txstore.Repository(plain / "deep" / "data.tx").import_from(plain)
    with pytest.raises(ValueError, match="concat"):
        repo.import_from([plain, plain])
    with pytest.raises(ValueError, match="replace="):
        repo.import_from([plain, plain], concat=0, replace=True)
    with pytest.raises(ValueError, match="at least one"):
        repo.import_from([])
    with pytest.raises(ValueError, match="format"):
        repo.import_from(plain, format="csv")
    with pytest.raises(ValueError, match="Protocol not known"):
        repo.import_from("nope://data")
    assert not repo.exists


def test_a_directory_that_can_not_be_listed(repo, plain, monkeypatch):
    """fsspec takes it for empty: its chunks would be missing, and be read as fill values."""
    ls = LocalFileSystem.ls

    def refuse(self: LocalFileSystem, path: str, *arguments: Any, **options: Any) -> Any:
        if "deep/y" in str(path):
            raise PermissionError(13, "Permission denied", path)
        return ls(self, path, *arguments, **options)

    monkeypatch.setattr(LocalFileSystem, "ls", refuse)
    with pytest.raises(txstore.SourceError, match=r"could be listed.*Permission denied"):
        repo.import_from(plain)
    assert not repo.exists


@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_link_to_somewhere_else(repo: txstore.Repository, tmp_path: Path, plain: Path, what: str) -> None:
    """A hierarchy that somebody sent must not bring what lies beside it."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_bytes(b"secret")
    link = plain / "linked"
    if what == "file":
        link.symlink_to(secret / "key")
    else:
        link.symlink_to(secret)
    for options in ({}, {"concat": 0}):
        with pytest.raises(txstore.SourceError, match="a link leads from 'linked"):
            repo.import_from(plain, "a", **options)  # type: ignore[arg-type]
    with pytest.raises(txstore.SourceError, match="a link leads from 'linked"):
        repo.import_from(f"simplecache::file://{plain}", "a")
    repo.import_from(plain, "b", exclude=["linked*"])
    link.unlink()
    root = next(path for name in ("zarr.json", ".zgroup") if (path := plain / name).exists())
    root.rename(plain / "root")
    root.symlink_to("root")  # inside of it
    repo.import_from(plain, "c", exclude=["linked*", "root"])
    assert all(b"secret" not in value for value in repo.mapping().values())


@pytest.mark.parametrize("is_joined", [False, True])
def test_a_file_that_is_exchanged_for_a_link_meanwhile(repo, tmp_path, plain, is_joined):
    """All was checked when the import began; when it ends, all is as it was."""
    private = zarr.create_array(tmp_path / "private.zarr", data=np.arange(10) + 4711, zarr_format=2)
    chunk, kept = next((plain / "x").rglob("9")), tmp_path / "kept"
    secret = Path(str(private.store_path.store.root)) / "0"  # type: ignore[attr-defined]
    before = shutil.copytree(plain, tmp_path / "before.zarr")
    if not is_joined:
        secret.write_bytes(b"s" * chunk.stat().st_size)

    def exchange(done: int, total: int) -> None:
        if not kept.exists() and done < total:
            chunk.rename(kept)
            chunk.symlink_to(secret)
        elif done == total:
            kept.rename(chunk)

    with pytest.raises(txstore.SourceError, match=r"a link leads from 'x/.*9' to somewhere else"):
        repo.import_from([before, plain] if is_joined else plain, concat=0 if is_joined else None, progress=exchange)
    assert repo.head() is None


@pytest.mark.parametrize("name", ["x/c/1", "zarr.json", ""])
def test_a_pipe_is_no_file(repo: txstore.Repository, tmp_path: Path, name: str) -> None:
    zarr.create_group(tmp_path / "piped.zarr").create_array("x", data=np.arange(4), chunks=(2,))
    pipe = tmp_path / "piped.zarr" / name if name else tmp_path / "pipe.h5"
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    with pytest.raises(txstore.SourceError, match="is no file"):
        repo.import_from(tmp_path / "piped.zarr" if name else pipe)
    if name == "x/c/1":
        repo.import_from(tmp_path / "piped.zarr", exclude=[name])


def test_the_message_of_a_repository_that_is_plain_zarr_keeps_its_promise(tmp_path: Path, plain: Path) -> None:
    with pytest.raises(txstore.RepositoryNotFoundError, match="txstore import") as error:
        txstore.Repository(plain)
    command = str(error.value).partition("`txstore ")[2].partition("`")[0].split()
    assert command[:2] == ["import", str(plain)]
    assert run(*command[:2], tmp_path / command[2]).exit_code == 0
    assert_imported(txstore.Repository(tmp_path / command[2]), plain)


# --- all or nothing


def test_a_source_that_changes_meanwhile(repo: txstore.Repository, plain: Path) -> None:
    def append(done: int, total: int) -> None:
        zarr.open_array(plain / "x")[0] = done

    with pytest.raises(txstore.SourceError, match="changed while"):
        repo.import_from(plain, progress=append)
    assert not repo.exists or repo.head() is None


def test_a_file_that_grows_while_it_is_read(repo, plain, monkeypatch):
    read = Place.read
    monkeypatch.setattr(Place, "read", lambda self, key: read(self, key) + b"1")
    with pytest.raises(txstore.SourceError, match="changed while it was read"):
        repo.import_from(plain)


def test_what_comes_back_as_something_else(repo, plain, monkeypatch):
    from txstore.store import TxStore

    monkeypatch.setattr(TxStore, "__getitem__", lambda self, key: b"else")
    with pytest.raises(txstore.CorruptionError, match="not what comes back"):
        repo.import_from(plain)


KILLED = """
import os, sys, txstore, txstore.interchange.import_files as files
files.KEEP_EVERY = 0
steps = iter(range(int(sys.argv[3])))
def die(done, total):
    if next(steps, None) is None:
        os.kill(os.getpid(), 9)
txstore.Repository(sys.argv[1]).import_from(sys.argv[2], name="big", progress=die)
"""


@pytest.mark.long
def test_after_a_death_it_goes_on_where_it_was(repo, plain, monkeypatch):
    if not (plain / "zarr.json").exists():
        pytest.skip("the same for both formats")
    for steps in (3, 5):  # it dies when one more is done; all documents are one step, which is done again each time
        assert run_python(KILLED, repo.url, plain, steps).returncode == -signal.SIGKILL
        assert repo.head() is None
    assert [each.name for each in repo.transactions()] == ["big"]
    reads: list[str] = []
    read = Place.read
    monkeypatch.setattr(Place, "read", lambda self, key: reads.append(key) or read(self, key))  # type: ignore[func-returns-value]
    commit = repo.import_from(plain, name="big")
    assert len(reads) == commit.properties["import"]["files"] - 5, "of the chunks those that are not there"
    assert list(repo.log()) == [commit]
    assert repo.transactions() == []
    assert_imported(repo, plain)


def test_what_was_begun_with_another_source_is_not_gone_on_with(repo: txstore.Repository, plain: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repo.import_from(plain, name="big", progress=stop)
    zarr.open_array(plain / "x")[0] = 5
    for arguments in ({}, {"path": "elsewhere"}):
        with pytest.raises(txstore.TransactionStateError, match=r"source has changed since.*rollback"):
            repo.import_from(plain, name="big", **arguments)  # type: ignore[arg-type]
    repo.transaction(name="big").rollback()
    repo.import_from(plain, name="big")
    assert zarr.open_array(repo.snapshot(), path="x", mode="r")[0] == 5
    with repo.transaction(name="mine") as store:
        store["a"] = b"1"
    with pytest.raises(txstore.TransactionStateError, match="no import"):
        repo.import_from(plain, "b", name="mine")
    repo.transaction(name="mine").rollback()


# --- many, and far away


def test_rows_that_consolidated_metadata_do_not_know_are_joined(repo: txstore.Repository, tmp_path: Path) -> None:
    for part in ("part-0.zarr", "part-1.zarr"):
        group = zarr.open_group(tmp_path / part, mode="w")
        group.create_array("x", data=np.arange(3), chunks=(2,), dimension_names=["sample"])
        zarr.consolidate_metadata(group.store)
        zarr.open_array(tmp_path / part / "x").append(np.arange(3, 8))
    repo.import_from(tmp_path / "part-*.zarr", concat="sample")
    np.testing.assert_array_equal(zarr.open_array(repo.snapshot(), path="x")[:], [*range(8), *range(8)])


def test_the_order_of_a_pattern(tmp_path: Path) -> None:
    for number in (10, 9, 1):
        (tmp_path / f"w-{number}").touch()
    assert [Path(place.root).name for place in places([tmp_path / "w-*"], None)] == ["w-1", "w-9", "w-10"]


@pytest.mark.long
def test_from_s3_and_to_it(repo, server_of, plain):  # noqa: F811
    s3 = server_of("s3")
    options: dict[str, Any] = s3.storage_options
    repo.import_from(plain)
    url = s3.url()
    repo.export(url, storage_options=options)
    repo.import_from(url, "back", storage_options=options)
    assert_imported(repo, plain, "back")
    place = Place(url, options)
    before = stamp(list(place.files().values()))
    key = max(place.files())
    place.fs.pipe_file(place.path(key), bytes(place.files()[key].size))  # of the same length
    assert stamp(list(place.files().values())) != before


def test_the_command(repo: txstore.Repository, plain: Path, tmp_path: Path) -> None:
    told = run_json("import", plain, repo.url, "--path", "a", "--exclude", "OME", "--message", "in")
    assert told["commit"]["message"] == "in"
    assert told["commit"]["properties"]["import"]["path"] == "a"
    assert run("import", plain, repo.url, "--path", "b", "--name", "big").stdout.startswith("imported ")
    assert_refused(run("import", plain, repo.url), "free", "--path")
    assert_refused(run("import", tmp_path / "none", repo.url), "nothing here")
    assert run("import", plain, repo.url, "--chunks", "time").exit_code == 2
    assert json.loads(run("tx", "list", repo.url, "--json").stdout) == []


@pytest.mark.parametrize("how", ["copied", "joined", "by reference"])
def test_a_document_that_is_a_large_file(open_repo: Any, tmp_path: Path, how: str) -> None:
    """It would be read whole, and a file that takes no room on a disk may have any length."""
    paths = [tmp_path / name for name in ("a.zarr", "b.zarr")]
    for path in paths:
        zarr.create_array(path, name="x", data=np.arange(4), dimension_names=["t"])
        os.truncate(path / "x" / "zarr.json", 1 << 40)
    repo = open_repo(sources=[tmp_path])
    refs = {"zarr.json": '{"zarr_format": 3, "node_type": "group"}', "x/zarr.json": [str(paths[0] / "x" / "zarr.json")]}
    calls: dict[str, Any] = {
        "copied": lambda: repo.import_from(paths[0]),
        "joined": lambda: repo.import_from(paths, concat="t"),
        "by reference": lambda: repo.import_references(refs),
    }
    with pytest.raises(txstore.SourceError, match=r"'x/zarr.json' has 1,099,511,627,776 bytes"):
        calls[how]()

"""`txstore::URL`: a snapshot as a read-only file system."""

import contextlib
import errno
import pickle
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr

import txstore
from txstore.fsspec_filesystem import TxStoreFileSystem

URL = "txstore::{}"


@pytest.fixture(autouse=True)
def known() -> None:
    """The entry point does this where txstore is installed."""
    fsspec.register_implementation("txstore", TxStoreFileSystem, clobber=True)


@pytest.fixture
def filled(repo: txstore.Repository) -> txstore.Repository:
    with repo.transaction("first") as store:
        zarr.create_array(store, name="group/position", data=np.arange(10), chunks=(4,))
    return repo


def append(repo: txstore.Repository) -> None:
    with repo.transaction("append") as store:
        zarr.open_array(store, path="group/position").append(np.arange(10, 15))


def test_every_tool_finds_it(filled: txstore.Repository, run_installed: Callable[..., str]) -> None:
    code = """
import sys, zarr, fsspec
group = zarr.open("txstore::" + sys.argv[1], mode="r")
print(group["group/position"][:].tolist())
print(zarr.open("txstore::file://" + sys.argv[1], path="group", mode="r")["position"].shape)
with fsspec.open("txstore::file://" + sys.argv[1] + "/group/position/c/0") as file:
    print(len(file.read()))
"""
    told = run_installed(code, filled.url).splitlines()
    assert told[0] == str(list(range(10)))
    assert told[1] == "(10,)"
    assert int(told[2]) > 0


def test_an_opened_one_stays_at_its_commit_and_a_new_one_is_at_the_head(filled: txstore.Repository) -> None:
    old = zarr.open(URL.format(filled.url), path="group/position", mode="r")
    append(filled)
    assert old[:].tolist() == list(range(10))
    new = zarr.open(URL.format(filled.url), path="group/position", mode="r")
    assert new[:].tolist() == list(range(15))
    at = zarr.open(URL.format(filled.url), path="group/position", mode="r", storage_options={"at": 0})
    assert at.shape == (10,)
    filled.tags["v1"] = filled.commit(0)
    tagged = zarr.open(URL.format(filled.url), path="group/position", mode="r", storage_options={"tag": "v1"})
    assert tagged.shape == (10,)


def test_a_pickle_reads_the_same_commit(filled: txstore.Repository) -> None:
    fs, root = fsspec.url_to_fs(URL.format(filled.url))
    pickled = pickle.dumps(fs)
    append(filled)
    again = pickle.loads(pickled)
    assert again == fs
    assert again.cat_file(f"{root}/group/position/zarr.json") == fs.cat_file(f"{root}/group/position/zarr.json")
    assert fsspec.url_to_fs(URL.format(filled.url))[0] != fs
    array = pickle.loads(pickle.dumps(zarr.open(URL.format(filled.url), path="group/position", mode="r")))
    assert array.shape == (15,)


def test_a_pickle_of_a_commit_that_is_gone_is_an_error(filled: txstore.Repository) -> None:
    pickled = pickle.dumps(fsspec.url_to_fs(URL.format(filled.url))[0])
    append(filled)
    filled.vacuum(keep=1)
    with pytest.raises(txstore.SnapshotExpiredError):
        pickle.loads(pickled)


def test_names_begin_as_the_path_does_that_they_are_asked_with(filled: txstore.Repository) -> None:
    """With a slash, as zarr before 3.4 asks, or without. What else is answered: `test_fsspec_paths.py`."""
    fs = fsspec.filesystem("txstore", fo=filled.url)
    for slash in ("", "/"):
        assert fs.ls(slash, detail=False) == [f"{slash}group", f"{slash}zarr.json"]
        assert fs.ls(f"{slash}group/position", detail=False) == [
            f"{slash}group/position/{name}" for name in ("c", "zarr.json")
        ]
        assert fs.glob(f"{slash}group/*/c/0") == [f"{slash}group/position/c/0"]
        assert fs.cat(f"{slash}zarr.json") == filled.mapping()["zarr.json"]
    assert fs.ls("/group")[0] == {"name": "/group/position", "size": 0, "type": "directory"}
    assert fs.modified("zarr.json") - filled.head().time == timedelta(0)


def test_writing_is_refused_in_words(filled: txstore.Repository) -> None:
    before = {key: bytes(value) for key, value in filled.mapping().items()}
    fs = fsspec.filesystem("txstore", fo=filled.url)
    attempts = [
        lambda: fs.pipe_file("a", b"x"),
        lambda: fs.pipe({"a": b"x"}),
        lambda: fs.open("a", "wb"),
        lambda: fs.rm("zarr.json"),
        lambda: fs.rm("group", recursive=True),
        lambda: fs.mv("zarr.json", "a"),
        lambda: fs.cp_file("zarr.json", "a"),
        lambda: fs.copy("zarr.json", "a"),
        lambda: fs.makedirs("b"),
        lambda: fs.mkdir("b"),
        lambda: fs.touch("a"),
        lambda: fs.write_bytes("a", b"x"),
        lambda: zarr.open_group(URL.format(filled.url), mode="a").create_group("b"),
        lambda: zarr.open(URL.format(filled.url), path="group/position", mode="r+").append(np.arange(3)),
        lambda: zarr.open_group(URL.format(filled.url), mode="w"),
    ]
    for attempt in attempts:
        with pytest.raises(PermissionError, match="for reading") as raised:
            attempt()
        assert raised.value.errno == errno.EROFS
    assert {key: bytes(value) for key, value in filled.mapping().items()} == before
    assert len(list(filled.log())) == 1


def test_what_is_wrong_is_said(repo: txstore.Repository) -> None:
    with pytest.raises(ValueError, match="which repository"):
        fsspec.filesystem("txstore")
    with pytest.raises(txstore.RepositoryNotFoundError):
        zarr.open(URL.format(repo.url), mode="r")


def test_options_go_to_the_file_system_they_belong_to(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {}

    class Noted(txstore.Repository):
        def __init__(self, url: str, create: bool, storage_options: dict, sources: object) -> None:
            given[url] = storage_options
            super().__init__(f"memory://{uuid.uuid4().hex}/data.tx")
            with self.begin() as transaction:
                transaction["a/b"] = b"x"

    monkeypatch.setattr("txstore.fsspec_filesystem.Repository", Noted)
    fsspec.url_to_fs("txstore::s3://bucket/deep/data.tx", at=0, s3={"anon": True})
    fsspec.url_to_fs("txstore://sftp://somebody@host:2222/srv/data.tx", sftp={"password": "secret"})
    with pytest.raises(txstore.CommitNotFoundError, match="branch 'dev'"):
        fsspec.url_to_fs("txstore://sftp://somebody@host:2222/srv/data.tx?branch=dev", sftp={"password": "secret"})
    assert given == {
        "s3://bucket/deep/data.tx": {"anon": True},
        "sftp://somebody@host:2222/srv/data.tx": {"password": "secret"},
    }


def damage(repo: txstore.Repository) -> None:
    [path] = Path(repo.url, "commits/main").iterdir()
    path.write_bytes(path.read_bytes()[:-200])


def replace_by_directory(repo: txstore.Repository) -> None:
    [path] = Path(repo.url, "commits/main").iterdir()
    path.unlink()
    path.mkdir()


def delete(repo: txstore.Repository) -> None:
    [path] = Path(repo.url, "commits/main").iterdir()
    path.unlink()


def take_away(repo: txstore.Repository) -> None:
    Path(repo.url).rename(f"{repo.url}.away")


def reads_of(url: str) -> dict[str, Callable[[], Any]]:
    """All ways to look at a key through a file system that is open, and has read nothing yet."""
    key, below = "group/position/c/0", "group/position"
    fs = fsspec.filesystem("txstore", fo=url)
    mapper = fsspec.get_mapper(URL.format(url))
    store = zarr.storage.FsspecStore.from_url(URL.format(url), read_only=True)
    return {
        "exists": lambda: fs.exists(key),
        "isfile": lambda: fs.isfile(key),
        "isdir": lambda: fs.isdir(below),
        "info": lambda: fs.info(key),
        "ls": lambda: fs.ls(below),
        "walk": lambda: list(fs.walk("")),
        "find": lambda: fs.find("", maxdepth=9),
        "glob": lambda: fs.glob("**"),
        "cat_file": lambda: fs.cat_file(key),
        "in": lambda: key in mapper,
        "[]": lambda: mapper[key],
        "get": lambda: mapper.get(key),
        "getitems": lambda: mapper.getitems([key]),
        "list": lambda: list(mapper),
        "zarr": lambda: zarr.open_array(store, path=below, mode="r")[...].tolist(),  # type: ignore[union-attr]
    }


@pytest.mark.parametrize("harm", [damage, replace_by_directory, delete, take_away])
def test_what_can_not_be_read_is_not_told_to_be_missing(tmp_path, harm):
    """What fsspec's own `exists`, `isfile`, `isdir` and `walk` make of an error is "no"."""
    repo = txstore.Repository(tmp_path / "harmed.tx")
    with repo.transaction() as store:
        zarr.create_array(store, name="group/position", data=np.arange(1, 11), chunks=(4,))
    wanted = {name: read() for name, read in reads_of(repo.url).items()}
    reads = reads_of(repo.url)
    harm(repo)
    told = {}
    for name, read in reads.items():
        with contextlib.suppress(txstore.TxStoreError):
            told[name] = read()
    assert told == {name: wanted[name] for name in told}
    assert harm is damage or not told

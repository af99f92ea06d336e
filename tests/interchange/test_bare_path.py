"""zarr and xarray are given the path of a repository, to overwrite: a process that has imported txstore refuses."""

import contextlib
import os
import uuid
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.core.sync import sync
from zarr.storage import LocalStore

import txstore
from tests.tools.disk import run_python, tree

xr = pytest.importorskip("xarray")


def dataset():
    return xr.Dataset({"t": ("x", [1.0, 2.0])})


CALLS = {
    "open": lambda path: zarr.open(path, mode="w"),
    "open_group": lambda path: zarr.open_group(path, mode="w"),
    "open_array": lambda path: zarr.open_array(path, mode="w", shape=(2,), dtype="i4"),
    "create_array": lambda path: zarr.create_array(path, shape=(2,), dtype="i4", overwrite=True),
    "create_group": lambda path: zarr.create_group(path, overwrite=True),
    "format 2": lambda path: zarr.open_group(path, mode="w", zarr_format=2),
    "to_zarr": lambda path: dataset().to_zarr(path, mode="w", consolidated=False),
    "a Path": lambda path: dataset().to_zarr(Path(path), mode="w", consolidated=False),
    "with a slash": lambda path: zarr.open_group(f"{path}/", mode="w"),
    "a file URL": lambda path: zarr.open_group(f"file://{path}", mode="w"),
    "from above": lambda path: zarr.open_group(os.path.dirname(path), path=os.path.basename(path), mode="w"),
    "delete_dir": lambda path: sync(LocalStore(path).delete_dir("")),
    "clear": lambda path: sync(LocalStore(path).clear()),
}


def filled(repo):
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.arange(4))
    return repo


@pytest.mark.parametrize("call", CALLS)
def test_a_repository_is_not_overwritten(repo, call):
    before = tree(Path(filled(repo).url))
    with pytest.raises(txstore.BarePathError) as caught:
        CALLS[call](repo.url)
    assert tree(Path(repo.url)) == before
    assert caught.value.url.removeprefix("file://") == repo.url
    assert str(caught.value).startswith(caught.value.url)


BELOW = {
    "a group": lambda path: dataset().to_zarr(path, group="tags", mode="w", consolidated=False),
    "an array": lambda path: zarr.create_array(path, name="packs", shape=(2,), dtype="i4", overwrite=True),
    "the path of a group": lambda path: zarr.open_group(f"{path}/commits", mode="w"),
    "far below": lambda path: zarr.open_group(path, path="commits/main", mode="w"),
}


@pytest.mark.parametrize("call", BELOW)
@pytest.mark.parametrize("place", ["disk", "objects"])
def test_nor_is_what_lies_in_it(repo, call, place):
    """Groups may be called as its directories are."""
    there = filled(repo if place == "disk" else txstore.Repository(f"memory://{uuid.uuid4().hex}/data.tx"))
    if place == "objects" and call == "the path of a group":
        return  # the store has that path for its root: no request would find the repository above it
    before = tree(Path(repo.url))
    with pytest.raises(txstore.BarePathError) as caught:
        BELOW[call](there.url)
    assert tree(Path(repo.url)) == before
    assert there.verify().ok
    if place == "disk":
        assert caught.value.url == there.url


@pytest.mark.parametrize("call", ["open_group", "to_zarr", "clear"])
def test_neither_through_a_link_nor_on_objects(tmp_path, repo, call):
    filled(repo)
    (tmp_path / "link").symlink_to(repo.url)
    objects = filled(txstore.Repository(f"memory://{uuid.uuid4().hex}/data.tx"))
    with pytest.raises(txstore.BarePathError):
        CALLS[call](str(tmp_path / "link"))
    if call == "clear":
        return
    with pytest.raises(txstore.BarePathError, match="memory://"):
        CALLS[call](objects.url)
    assert objects.verify().ok
    assert zarr.open_array(objects.snapshot(), path="x")[:].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"txstore": "a file of ours is none"}', os.urandom(1000)])
@pytest.mark.parametrize("call", CALLS)
def test_anything_else_is_overwritten_as_ever(tmp_path, call, content):
    path = tmp_path / "plain.zarr"
    zarr.create_group(path).create_array("old", shape=(2,), dtype="i4")
    if content is not None:
        (path / "format.json").write_bytes(content)
    # fsspec under zarr 3.1 makes no directory for what it writes by a URL.
    with contextlib.suppress(*[FileNotFoundError] if call == "a file URL" else []):
        CALLS[call](str(path))
    assert not (path / "old").exists()


def test_what_lies_in_the_place_of_the_file_is_not_waited_for(tmp_path):
    path = tmp_path / "plain.zarr"
    path.mkdir()
    os.mkfifo(path / "format.json")
    zarr.open_group(path, mode="w")
    assert list(path.iterdir()) == [path / "zarr.json"]


@pytest.mark.parametrize("content", [b'{"txstore": 2, "what": "nobody knows yet"}', b"damaged"])
def test_nor_one_of_a_newer_format_or_damaged(tmp_path, content):
    made = Path(filled(txstore.Repository(tmp_path / "data.tx")).url, "format.json")
    made.write_bytes(content)
    with pytest.raises(txstore.BarePathError):
        zarr.open_group(made.parent, mode="w")
    assert made.read_bytes() == content


def test_members_of_plain_zarr_are_deleted_as_ever(tmp_path):
    group = zarr.open_group(tmp_path / "plain.zarr", mode="w")
    group.create_array("x", shape=(2,), dtype="i4")
    group.create_group("y").create_array("z", shape=(2,), dtype="i4")
    group.create_array("x", shape=(3,), dtype="i4", overwrite=True)
    del group["y"]
    assert list(group) == ["x"]


ORDERS = {
    "txstore, then zarr": "import txstore, zarr",
    "zarr, then txstore": "import zarr, txstore",
    "txstore, then xarray": "import txstore, xarray",
    "the repository, and zarr later": "import txstore; txstore.Repository(sys.argv[1]).head()",
    "both at once": """
import threading
ready = threading.Barrier(2)
def load(name):
    ready.wait()
    __import__(name)
threads = [threading.Thread(target=load, args=[name]) for name in ("txstore", "zarr")]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
""",
}
OVERWRITE = """
import xarray
try:
    xarray.Dataset({"t": ("x", [1.0])}).to_zarr(sys.argv[1], mode="w", consolidated=False)
except Exception as error:
    print(type(error).__name__)
else:
    print("overwritten")
"""


@pytest.mark.parametrize("order", ORDERS)
def test_whatever_is_imported_first(repo, order):
    before = tree(Path(filled(repo).url))
    done = run_python(f"import sys\n{ORDERS[order]}\n{OVERWRITE}", repo.url)
    assert done.stdout == "BarePathError\n", done.stderr
    assert tree(Path(repo.url)) == before


def test_it_can_be_switched_off(tmp_path, monkeypatch):
    url = filled(txstore.Repository(tmp_path / "data.tx")).url
    monkeypatch.setenv("TXSTORE_GUARD", "off")
    assert run_python(f"import sys, txstore\n{OVERWRITE}", url).stdout == "overwritten\n"
    assert not Path(url, "format.json").exists()


def test_zarr_is_loaded_by_its_own_loader():
    code = """
import sys
before = list(sys.meta_path)
import txstore
assert not any(name.partition(".")[0] == "zarr" for name in sys.modules)
import zarr, inspect
assert sys.meta_path == before, sys.meta_path
print(type(zarr.storage.__loader__).__name__, type(zarr.storage.__spec__.loader).__name__)
print(inspect.getsource(zarr.storage.LocalStore.delete_dir).split()[:3])
"""
    done = run_python(code)
    loader, source = done.stdout.splitlines()
    assert loader == "SourceFileLoader SourceFileLoader", done.stderr
    assert source == "['async', 'def', 'delete_dir(self,']"


def test_a_url_makes_no_directory_of_its_name(repo, tmp_path, monkeypatch):
    """As ome-zarr's `parse_url` would, which knows the URLs of S3 and HTTP only."""
    monkeypatch.chdir(tmp_path)
    before = tree(Path(filled(repo).url).parent)
    for url in (f"txstore::{repo.url}", f"txstore://{repo.url}/x", Path(f"txstore://{repo.url}")):
        for make in (
            LocalStore,
            lambda root: LocalStore(root=root, read_only=True),
            lambda root: zarr.open(Path(root)),
        ):
            with pytest.raises(ValueError, match=r"takes it for a directory. Pass it a store"):
                make(url)
    assert tree(tmp_path) == before
    plain = LocalStore(root="txstore", read_only=True)
    assert plain.with_read_only(True) == plain

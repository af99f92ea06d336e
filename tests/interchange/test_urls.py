"""What stores and arrays print as their URL opens what it was printed for, wherever a URL can be given."""

import re
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest

import txstore
from tests.tools.disk import tree
from txstore.xarray_backend import TxStoreBackendEntrypoint as Engine

xr = pytest.importorskip("xarray")


@pytest.fixture(params=["directory", "memory"])
def filled(repo: txstore.Repository, tmp_path: Path, request: pytest.FixtureRequest) -> txstore.Repository:
    if request.param == "memory":
        repo = txstore.Repository(f"memory://{tmp_path}/data.tx")
    with repo.transaction() as store:
        xr.Dataset({"t": ("x", [1.0, 2.0])}).to_zarr(store, group="below")
    return repo


def printed(shown: object) -> str:
    found = re.search(r"txstore:[^\s>]+", str(shown))
    return found[0]


@pytest.mark.long
def test_zarr_opens_what_was_printed(filled: txstore.Repository, run_installed: Callable[..., str]) -> None:
    if filled.url.startswith("memory:"):
        pytest.skip("that of another process")
    code = """
import re, sys, txstore, xarray as xr, zarr
group = zarr.open_group(txstore.TxStore(sys.argv[1], read_only=True), mode="r")
for node in group, group["below"], group["below/t"], group.store:
    url = re.search(r"txstore:[^\\s>]+", str(node))[0]
    again = zarr.open(url, mode="r")
    print(type(again).__name__, list(again) if isinstance(again, zarr.Group) else again[:].tolist())
print(zarr.open(f"txstore::{sys.argv[1]}/below/t", mode="r")[:])
with xr.open_dataset(f"txstore://{sys.argv[1]}/below", engine="txstore", consolidated=False) as found:
    print(found.t.values)
"""
    told = run_installed(code, filled.url).splitlines()
    assert told == ["Group ['below']", "Group ['t']", "Array [1.0, 2.0]", "Group ['below']", "[1. 2.]", "[1. 2.]"]


def test_stores_open_what_was_printed(filled: txstore.Repository) -> None:
    url = printed(filled.snapshot())
    assert txstore.Repository(url) == filled
    assert txstore.Repository(f"txstore::{filled.url}") == filled
    assert txstore.TxStore(url, read_only=True) == filled.snapshot()
    with txstore.TxStore(url, create=False) as store:
        store["new"] = b"1"
    assert filled.snapshot()["new"] == b"1"


def test_xarray_opens_what_was_printed(filled: txstore.Repository) -> None:
    array = xr.open_zarr(filled.snapshot(), group="below", consolidated=False).t
    for url, options in (
        (printed(filled.snapshot()), {"group": "below"}),
        (f"{printed(filled.snapshot())}/below", {}),
        (f"txstore::{filled.url}/below", {"consolidated": False}),
    ):
        assert Engine().guess_can_open(url)
        xr.testing.assert_identical(xr.open_dataset(url, engine=Engine, **options).t, array)
        assert len(xr.open_groups(url, engine=Engine, **options)) == 1


def test_a_file_system_of_what_was_printed(filled: txstore.Repository) -> None:
    fsspec.register_implementation("txstore", "txstore.fsspec_filesystem.TxStoreFileSystem", clobber=True)
    for chained in ("txstore://", "txstore::"):
        fs, path = fsspec.url_to_fs(f"{chained}{filled.url}/below")
        assert fs.find(path) == [f"{path}/{key}" for key in ("t/c/0", "t/zarr.json", "zarr.json")]
        assert fs.ls(f"{path}/t", detail=False) == [f"{path}/t/c", f"{path}/t/zarr.json"]
        whole = fs.unstrip_protocol(f"{path}/t/zarr.json")
        for key in (f"{path}/t/zarr.json", f"txstore://{filled.url}/below/t/zarr.json", whole):
            assert fs.cat_file(key) == filled.snapshot()["below/t/zarr.json"]
        with fsspec.open(whole) as file:
            assert file.read() == filled.snapshot()["below/t/zarr.json"]
    fs = fsspec.filesystem("txstore", fo=f"{filled.url}/below")
    assert fs.find("") == ["t/c/0", "t/zarr.json", "zarr.json"]
    for key in ("t/zarr.json", "/t/zarr.json", f"{filled.url}/below/t/zarr.json"):
        assert fs.cat_file(key) == filled.snapshot()["below/t/zarr.json"]
    with fsspec.open(f"txstore://{filled.url}/below/t/c/0") as file:
        assert file.read() == filled.snapshot()["below/t/c/0"]


def test_an_array_is_no_repository(filled: txstore.Repository) -> None:
    for open_it in (txstore.Repository, txstore.TxStore):
        with pytest.raises(txstore.RepositoryNotFoundError, match=r"inside of the repository .*path='below/t'"):
            open_it(f"txstore://{filled.url}/below/t")


def test_no_repository_is_made_inside_of_another(repo: txstore.Repository, tmp_path: Path) -> None:
    with repo.transaction() as store:
        store["a"] = b"1"
    before = tree(tmp_path)
    for open_it in (txstore.Repository, txstore.TxStore):
        with pytest.raises(txstore.RepositoryNotFoundError, match=r"inside of the repository .*path='below/t'"):
            open_it(f"{repo.url}/below/t")
    assert tree(tmp_path) == before


def test_one_that_is_yet_to_be_made(tmp_path: Path) -> None:
    assert txstore.Repository(f"txstore://{tmp_path}/new.tx").url == f"{tmp_path}/new.tx"
    with pytest.raises(txstore.RepositoryNotFoundError):
        xr.open_dataset(f"txstore://{tmp_path}/new.tx", engine=Engine)
    assert tree(tmp_path) == {}

"""`xr.open_dataset("data.tx")`, and the programs of docs/how-to/xarray.md."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import fsspec
import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr
import zarr

import txstore
from txstore.fsspec_filesystem import TxStoreFileSystem
from txstore.xarray_backend import TxStoreBackendEntrypoint as Engine

PAGE = Path(__file__).parents[2] / "docs/how-to/xarray.md"


def dataset(first: int, length: int) -> xr.Dataset:
    times = np.datetime64("2024-01-01", "ns") + np.arange(first, first + length) * np.timedelta64(1, "D")
    values = np.arange(first, first + length)[:, None] * np.ones(3)
    return xr.Dataset({"temperature": (("time", "x"), values, {"units": "K"})}, {"time": times})


@pytest.fixture
def filled(repo: txstore.Repository) -> txstore.Repository:
    with repo.transaction() as store:
        dataset(0, 4).to_zarr(store)
    return repo


def append(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        dataset(4, 2).to_zarr(store, append_dim="time")


@pytest.mark.long
def test_xarray_finds_it(filled: txstore.Repository, run_installed: Callable[..., str]) -> None:
    code = """
import os, sys, xarray as xr
os.rename(sys.argv[1], "renamed")
for path in "renamed", os.path.abspath("renamed") + "/":
    print(dict(xr.open_dataset(path).sizes))
os.rename("renamed", "data.tx")
print(xr.open_dataset("data.tx").temperature.units, float(xr.open_dataset("data.tx", chunks={}).temperature.sum()))
print(xr.open_datatree("data.tx")["/"].sizes["time"], xr.open_groups("data.tx").keys())
"""
    told = run_installed(code, filled.url).splitlines()
    assert told[:2] == ["{'time': 4, 'x': 3}"] * 2
    assert told[2] == "K 18.0"
    assert told[3] == "4 dict_keys(['/'])"


def test_merely_installed_it_changes_nothing(filled: txstore.Repository, run_installed: Callable[..., str]) -> None:
    """xarray imports every backend, for any file."""
    program = """
import sys, xarray as xr, zarr
pipeline = zarr.config.get("codec_pipeline.path")
xr.Dataset({"a": ("x", [1, 2])}).to_zarr(sys.argv[2], consolidated=False)
with xr.open_dataset(sys.argv[2]) as ds:
    assert ds["a"].values.tolist() == [1, 2]
assert "txstore" in xr.backends.list_engines()
assert "txstore.xarray_backend" in sys.modules and "txstore.engine" not in sys.modules
assert len([name for name in sys.modules if name.startswith("txstore")]) < 10
assert zarr.config.get("codec_pipeline.path") == pipeline
with xr.open_dataset(sys.argv[1]):
    assert zarr.config.get("codec_pipeline.path") != pipeline
"""
    run_installed(program, filled.url, str(Path(filled.url).parent / "plain.zarr"))


def test_the_path_of_a_repository_is_given_to_zarr(filled: txstore.Repository) -> None:
    refused = pytest.raises((ValueError, TypeError))  # by the version of zarr
    with pytest.warns(UserWarning, match=r"is a TxStore repository.*engine='txstore'"), refused:
        xr.open_zarr(filled.url)


def test_which_commit(filled: txstore.Repository) -> None:
    filled.tags["v1"] = filled.head()
    append(filled)
    xr.testing.assert_identical(xr.open_dataset(filled.url, engine=Engine), dataset(0, 6))
    for chosen in ({"at": 0}, {"tag": "v1"}, {"at": filled.commit(0).id}):
        xr.testing.assert_identical(xr.open_dataset(filled.url, engine=Engine, **chosen), dataset(0, 4))
    xr.testing.assert_identical(xr.open_dataset(filled, engine=Engine, branch="main"), dataset(0, 6))
    with pytest.raises(txstore.CommitNotFoundError):
        xr.open_dataset(filled.url, engine=Engine, at=7)
    assert xr.open_dataset(filled.url, engine=Engine, decode_times=False).time.dtype.kind == "i"
    assert list(xr.open_dataset(filled.url, engine=Engine, drop_variables="temperature")) == []


def test_dask_tells_two_commits_apart(filled: txstore.Repository) -> None:
    before = xr.open_dataset(filled.url, engine=Engine, chunks={})
    with filled.transaction() as store:
        (dataset(0, 4) + 100).to_zarr(store, mode="r+")
    after = xr.open_dataset(filled.url, engine=Engine, chunks={})
    assert float((after - before).temperature.mean()) == 100.0
    assert float(dask.compute(after.temperature.sum(), before.temperature.sum())[1]) == 18.0
    assert type(after.temperature.variable) is xr.Variable
    same = xr.open_dataset(filled.url, engine=Engine, chunks={})
    assert same.temperature.data.name == after.temperature.data.name


def test_many_are_opened_as_one_and_closed(filled, open_repo):
    """It was a TypeError when such a data set was closed."""
    other = open_repo("other.tx")
    with other.transaction() as store:
        dataset(4, 2).to_zarr(store)
    with xr.open_mfdataset([filled.url, other.url], engine=Engine) as opened:
        xr.testing.assert_identical(opened.compute(), dataset(0, 6))
    with xr.open_datatree(filled.url, engine=Engine) as tree:
        xr.testing.assert_identical(tree.to_dataset().compute(), dataset(0, 4))


def test_what_is_taken(filled: txstore.Repository, tmp_path: Path) -> None:
    engine = Engine()
    (tmp_path / "other").mkdir()
    for ours in (filled.url, Path(filled.url), filled, "s3://bucket/data.tx", "missing.tx/"):
        assert engine.guess_can_open(ours)
    for foreign in (tmp_path / "other", "data.nc", "data.zarr", b"CDF", None, tmp_path / "none"):
        assert not engine.guess_can_open(foreign)
    with pytest.raises(txstore.RepositoryNotFoundError):
        xr.open_dataset(tmp_path / "missing.tx", engine=Engine)


def test_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("xarray.backends.plugins.list_engines", {"txstore": Engine()}.copy)
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(programs) >= 4
    space: dict[str, object] = {}
    for program in programs:
        exec(compile(program, str(PAGE), "exec"), space)  # what a page shows is a program; asserts in it are checked


def test_a_store_is_opened_where_it_stands(filled: txstore.Repository) -> None:
    expected = dataset(0, 4)
    snapshot = filled.snapshot()
    append(filled)
    xr.testing.assert_identical(xr.open_dataset(snapshot, engine=Engine), expected)
    with filled.transaction() as store:
        dataset(6, 1).to_zarr(store, append_dim="time")
        assert xr.open_dataset(store, engine=Engine).sizes["time"] == 7
    assert Engine().guess_can_open(snapshot)
    with pytest.raises(ValueError, match="has its own commit"):
        xr.open_dataset(snapshot, engine=Engine, at=0)


def test_dask_tells_what_is_staged_apart(filled: txstore.Repository) -> None:
    with filled.transaction() as store:
        opened = []
        for value in (1.0, 2.0):
            zarr.open_array(store, path="temperature")[:] = value
            opened.append(xr.open_dataset(store, engine=Engine, chunks={}).temperature)
        assert opened[0].data.name != opened[1].data.name


def test_what_is_no_store_says_what_to_pass(filled: txstore.Repository, tmp_path: Path) -> None:
    for call in (lambda: dataset(0, 4).to_zarr(filled), lambda: xr.open_zarr(filled)):
        with pytest.raises(TypeError, match=r"with repo.transaction\(\) as store: ds.to_zarr\(store\)"):
            call()
    assert not hasattr(filled, "misspelled")
    assert "supports_consolidated_metadata" not in dir(filled)
    fsspec.register_implementation("txstore", TxStoreFileSystem)
    with pytest.raises(txstore.RepositoryNotFoundError, match="a URL makes none: write to a store"):
        dataset(0, 4).to_zarr(f"txstore::{tmp_path}/none.tx")
    with pytest.raises(PermissionError, match="is for reading, unless the URL says who commits: write to a store"):
        dataset(0, 4).to_zarr(f"txstore::{filled.url}", mode="a")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_append_that_leaves_an_array_behind_is_refused(repo: txstore.Repository, zarr_format: int) -> None:
    data = dataset(0, 4).assign(other=("time", np.arange(4)), apart=("z", np.arange(4)))
    with repo.transaction() as store:
        data.to_zarr(store, group="g", zarr_format=zarr_format)
    with repo.transaction() as store:
        dataset(4, 2).assign(other=("time", np.arange(2))).to_zarr(store, group="g", append_dim="time")
    with pytest.raises(txstore.MisalignedError, match="EqualLength") as caught, repo.transaction() as store:
        dataset(6, 2).to_zarr(store, group="g", append_dim="time")
    assert [each[:3] for each in caught.value.left] == [("g/other", "g/temperature", "time")]
    assert caught.value.left[0][3:] == (0, (6, 8))
    assert xr.open_dataset(repo, engine=Engine, group="g").sizes["time"] == 6
    with repo.transaction() as store:
        dataset(6, 2).to_zarr(store, group="g", append_dim="time")
        store.commit(allow_misaligned=True)
        dataset(8, 2).to_zarr(store, group="g", append_dim="time")  # they are unequal already, and stay so
        zarr.open_array(store, path="g/apart").append(np.arange(3))


LABELS = [
    np.arange(3),
    np.array([0.0, np.nan, 1.0]),
    np.array(["a", "b", "c"], dtype=object),
    np.array(["a", "bc", "d"]),
    np.array(["2026-01-01", "2026-01-02", "2026-01-04"], dtype="M8[ns]"),
]


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("labels", LABELS, ids=lambda labels: labels.dtype.str)
@pytest.mark.filterwarnings("ignore")
def test_an_append_that_gives_old_values_other_labels_is_refused(repo, labels, zarr_format):
    def rows(first: int, labels: npt.NDArray[Any]) -> xr.Dataset:
        values = ("time", "level"), np.ones((2, 3))
        return xr.Dataset({"a": values}, {"time": np.arange(first, first + 2), "level": labels})

    with repo.transaction() as store:
        rows(0, labels).to_zarr(store, zarr_format=zarr_format)
    with repo.transaction() as store:
        rows(2, labels).to_zarr(store, append_dim="time")
    with pytest.raises(txstore.MisalignedError, match="reindex_like") as caught, repo.transaction() as store:
        rows(4, labels[::-1]).to_zarr(store, append_dim="time")
    assert caught.value.relabelled == (("level", "a"),)
    with repo.transaction() as store:
        level = zarr.open_array(store, path="level")
        level[0] = level[1]  # nothing grows
        store.commit()
        rows(4, labels[::-1]).to_zarr(store, append_dim="time")
        store.commit(allow_misaligned=True)
    assert xr.open_dataset(repo, engine=Engine).sizes["time"] == 6


def test_an_append_that_is_refused_can_go_on(filled: txstore.Repository) -> None:
    store = filled.transaction()
    group = zarr.open_group(store)
    sorted(group.array_keys())
    group["time"].append(np.arange(2))
    with pytest.raises(txstore.MisalignedError):
        store.commit()
    group["temperature"].append(np.ones((2, 3)))
    store.commit()
    assert xr.open_dataset(filled, engine=Engine).sizes["time"] == 6

"""universal_pathlib walks through a repository."""

from __future__ import annotations

from typing import Any

import anndata as ad
import numpy as np
import pytest
import xarray as xr
import zarr
from upath import UPath

import txstore
from tests.clients.trials import Both, chained_url_of, tool

CODE = 'UPath("txstore::data.tx")'


def write(store: Any) -> None:
    zarr.create_array(store, name="g/x", data=np.arange(400_000), chunks=(1000,))


@tool("universal_pathlib", code=CODE, tried="`iterdir`, `glob`, `rglob`, `read_bytes`")
def test_files_of_a_commit(both: Both) -> None:
    def read(url: str) -> dict[str, bytes]:
        root = UPath(url)
        return {path.path[len(root.path) :].strip("/"): path.read_bytes() for path in root.rglob("c/*")}

    assert len(both(write, read, local=chained_url_of, ours=chained_url_of)) == 400


@tool("universal_pathlib", code=CODE, tried="URLs of both forms")
@pytest.mark.parametrize("prefix", ["txstore::", "txstore://"])
def test_a_repository_is_a_directory(repo: txstore.Repository, prefix: str) -> None:
    with repo.transaction() as store:
        write(store)
    path = UPath(prefix + repo.url)
    assert path.exists()
    assert path.is_dir()
    assert sorted(each.name for each in path.iterdir()) == ["g", "zarr.json"]
    assert b'"array"' in (path / "g/x/zarr.json").read_bytes()
    assert sorted(each.name for each in path.rglob("zarr.json")) == ["zarr.json"] * 3
    assert not (path / "nowhere").exists()
    with pytest.raises(PermissionError, match="is for reading"):
        (path / "new").write_text("")


@tool("universal_pathlib", code=CODE, tried="relative paths")
def test_a_relative_path(repo: txstore.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    with repo.transaction() as store:
        write(store)
    directory, _, name = repo.url.rpartition("/")
    monkeypatch.chdir(directory)
    assert (UPath(f"txstore::{name}") / "zarr.json").exists()


@tool("universal_pathlib", code=CODE, tried="`UPath(str(path))`")
@pytest.mark.parametrize("prefix", ["txstore::", "txstore://"])
@pytest.mark.parametrize("query", ["", "?tag=v0"])
def test_a_path_as_text_is_the_same_path(repo: txstore.Repository, prefix: str, query: str) -> None:
    with repo.transaction() as store:
        write(store)
    repo.tags["v0"] = repo.head()
    root = UPath(f"{prefix}{repo.url}{query}")
    for path in (root, root / "g", root / "g/x/zarr.json", (root / "g/x").parent, *root.rglob("c/*")):
        again = UPath(str(path))
        assert str(again) == str(path)
        assert again.is_dir() == path.is_dir()
        assert again.is_dir() or again.read_bytes() == path.read_bytes()
    for place in (root / "g", str(root / "g"), UPath(str(root / "g"))):
        assert zarr.open_group(place, mode="r")["x"].shape == (400_000,)


@tool("universal_pathlib", code=CODE, tried="paths for xarray and anndata")
@pytest.mark.parametrize("prefix", ["txstore::", "txstore://"])
@pytest.mark.parametrize("query", ["", "?tag=v0", "?branch=dev"])
def test_a_path_below_the_root_is_taken_by_tools(repo: txstore.Repository, prefix: str, query: str) -> None:
    data = xr.Dataset({"t": ("x", [1.0, 2.0])})
    with repo.transaction() as store:
        data.to_zarr(store, group="grid", consolidated=False)
        ad.io.write_elem(zarr.open_group(store, mode="a"), "cells", ad.AnnData(np.eye(3)))
    repo.tags["v0"] = repo.branches["dev"] = repo.head()
    with repo.transaction(branch="dev") as store:
        store["later"] = b"1"
    root = UPath(f"{prefix}{repo.url}{query}")
    for path in (root / "grid", UPath(str(root / "grid"))):
        xr.testing.assert_identical(xr.open_dataset(path, engine="txstore").load(), data)
        for place in (path, str(path)):
            xr.testing.assert_identical(xr.open_zarr(place, consolidated=False).load(), data)
    xr.testing.assert_identical(xr.open_dataset(root, engine="txstore", group="grid").load(), data)
    for place in (root / "cells", str(root / "cells")):
        assert ad.read_zarr(place).shape == (3, 3)

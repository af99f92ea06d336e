"""universal_pathlib walks through a repository."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
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

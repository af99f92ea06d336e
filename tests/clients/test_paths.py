"""universal_pathlib walks through a repository."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from upath import UPath

import txstore


@pytest.fixture
def url(repo: txstore.Repository) -> str:
    with repo.transaction() as store:
        zarr.create_array(store, name="g/x", data=np.arange(4))
    return repo.url


@pytest.mark.filterwarnings("ignore:UPath 'txstore' filesystem not explicitly implemented")
@pytest.mark.parametrize("prefix", ["txstore::", "txstore://"])
def test_a_repository_is_a_directory(url: str, prefix: str) -> None:
    path = UPath(prefix + url)
    assert path.exists()
    assert path.is_dir()
    assert sorted(each.name for each in path.iterdir()) == ["g", "zarr.json"]
    assert b'"array"' in (path / "g/x/zarr.json").read_bytes()
    assert sorted(each.name for each in path.rglob("zarr.json")) == ["zarr.json"] * 3
    assert not (path / "nowhere").exists()
    with pytest.raises(PermissionError, match="is for reading"):
        (path / "new").write_text("")


@pytest.mark.filterwarnings("ignore:UPath 'txstore' filesystem not explicitly implemented")
def test_a_relative_path(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, _, name = url.rpartition("/")
    monkeypatch.chdir(directory)
    assert (UPath(f"txstore::{name}") / "zarr.json").exists()

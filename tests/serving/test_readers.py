"""What reads Zarr over HTTP reads what the repository has: at the head, and at an old commit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.serving.conftest import PLAIN, STRINGS
from txstore.serving.server import Server

ROOT = Path(__file__).parents[2]


def bases(served: Server, repo: txstore.Repository) -> list[tuple[str, txstore.TxStore]]:
    """The URLs of commits, with what the repository itself says of them."""
    head, old = repo.head(), repo.commit("v1")
    assert head is not None
    return [
        (f"{served.address}at/{ref}", repo.snapshot(commit))
        for ref, commit in (("main", head), (head.id, head), (old.id, old), ("v1", old), (old.id[:12], old))
    ]


def expected(store: txstore.TxStore, path: str) -> Any:
    return zarr.open_array(store, path=path, mode="r")[...]


@pytest.mark.parametrize("name", ["head", "id of the head", "old id", "tag", "first digits"])
def test_zarr(served: Server, repo: txstore.Repository, name: str) -> None:
    at = ["head", "id of the head", "old id", "tag", "first digits"].index(name)
    url, store = bases(served, repo)[at]
    group = zarr.open_group(url, mode="r")
    for path in PLAIN + STRINGS:
        if not path.startswith("two/"):  # which a group of format 3 does not list
            np.testing.assert_array_equal(group[path][...], expected(store, path), err_msg=path)  # type: ignore[index]
        np.testing.assert_array_equal(zarr.open_array(f"{url}/{path}", mode="r")[...], expected(store, path))
    assert group["three/plain"].fill_value == -1  # type: ignore[union-attr]
    with pytest.raises(KeyError):
        group["nothing"]


@pytest.mark.parametrize("path", ["", "three", "two"])
def test_groups_can_be_listed(served: Server, repo: txstore.Repository, path: str) -> None:
    """By consolidated metadata, at the root and at any group: HTTP has no listing."""
    for url, store in bases(served, repo):
        there = zarr.open_group(f"{url}/{path}", mode="r")
        here = zarr.open_group(store, path=path, mode="r")
        mine = {name: type(node).__name__ for name, node in here.members(max_depth=None)}
        if path == "":  # consolidated metadata is of one format
            mine = {name: kind for name, kind in mine.items() if not name.startswith("two")}
        assert {name: type(node).__name__ for name, node in there.members(max_depth=None)} == mine
        assert dict(there.attrs) == dict(here.attrs)


def test_format_2_has_its_own_consolidated_metadata(served: Server, repo: txstore.Repository) -> None:
    group = zarr.open_consolidated(f"{served.address}at/v1/two", zarr_format=2)
    assert sorted(name for name, _ in group.members()) == ["nested", "plain"]
    np.testing.assert_array_equal(group["plain"][...], np.arange(12).reshape(3, 4))  # type: ignore[index]


def test_xarray(served: Server, open_repo: Any) -> None:
    xr = pytest.importorskip("xarray")
    data = xr.Dataset(
        {"t": (("y", "x"), np.arange(12.0).reshape(3, 4)), "name": ("y", np.array(["a", "b", "cd"]))},
        coords={"x": [1, 2, 3, 4], "day": ("y", np.array(["2026-01-01", "2026-01-02", "2026-01-03"], "M8[ns]"))},
    )
    for number, options in enumerate(({"zarr_format": 3}, {"zarr_format": 2})):
        repo = open_repo(f"x{number}.tx")
        with repo.transaction() as store:
            data.to_zarr(store, consolidated=False, **options)
        with repo.transaction() as store:
            data.assign(t=data.t + 1).to_zarr(store, mode="w", consolidated=False, **options)
        server = Server(repo)
        server.start()
        try:
            for ref, added in ((repo.commit(0).id, 0), ("main", 1)):
                read = xr.open_zarr(f"{server.address}at/{ref}", consolidated=True).load()
                xr.testing.assert_equal(read, data.assign(t=data.t + added))
        finally:
            server.close()


@pytest.mark.parametrize("path", [path for path in PLAIN if path != "two/nested"])
def test_tensorstore(served: Server, repo: txstore.Repository, path: str) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    driver = "zarr" if path.startswith("two/") else "zarr3"
    for url, store in bases(served, repo):
        spec = {"driver": driver, "kvstore": {"driver": "http", "base_url": f"{url}/", "path": f"{path}/"}}
        read = tensorstore.open(spec, open=True, read=True).result()
        np.testing.assert_array_equal(read.read().result(), expected(store, path))


def node() -> str:
    """The interpreter of JavaScript, if zarrita is there for it; .ci/run installs it."""
    found = shutil.which("node")
    if found is None or not (ROOT / "build/zarrita/node_modules/zarrita").exists():
        if os.environ.get("TXSTORE_REQUIRE_SERVERS"):
            pytest.fail("zarrita is missing: npm install --prefix build/zarrita zarrita")
        pytest.skip("zarrita is missing: npm install --prefix build/zarrita zarrita")
    return found


def test_zarrita(served: Server, repo: txstore.Repository) -> None:
    program = node()
    for url, store in bases(served, repo):
        command = [program, str(Path(__file__).with_name("zarrita.mjs")), url, *PLAIN, *STRINGS]
        modules = {**os.environ, "ZARRITA": str(ROOT / "build/zarrita/node_modules/zarrita/dist/src/index.js")}
        done = subprocess.run(command, env=modules, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        for path, read in json.loads(done.stdout).items():
            wanted = expected(store, path)
            assert read["shape"] == list(wanted.shape)
            assert read["values"] == wanted.ravel().tolist(), path

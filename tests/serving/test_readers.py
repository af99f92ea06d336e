"""What reads Zarr over HTTP reads what the repository has: at the head, and at an old commit."""

import contextlib
import gc
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.serving.conftest import PLAIN, STRINGS
from txstore.serving.server import Server

ROOT = Path(__file__).parents[2]


@pytest.fixture
def served(repo: txstore.Repository) -> Iterator[Server]:
    """A server that needs its token, which readers have in the URL."""
    server = Server(repo)
    server.start()
    yield server
    server.close()


def bases(served: Server, repo: txstore.Repository) -> list[tuple[str, txstore.TxStore]]:
    """The URLs of commits, with what the repository itself says of them."""
    head, old = repo.head(), repo.commit("v1")
    return [
        (f"{served.base}at/{ref}", repo.snapshot(commit))
        for ref, commit in (("main", head), (head.id, head), (old.id, old), ("v1", old), (old.id[:12], old))
    ]


def expected(store: txstore.TxStore, path: str) -> Any:
    return zarr.open_array(store, path=path, mode="r")[...]


@pytest.mark.parametrize(
    "name",
    [
        "head",
        "old id",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("id of the head", "tag", "first digits")),
    ],
)
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
    group = zarr.open_consolidated(f"{served.base}at/v1/two", zarr_format=2)
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
                read = xr.open_zarr(f"{server.base}at/{ref}", consolidated=True).load()
                xr.testing.assert_equal(read, data.assign(t=data.t + added))
        finally:
            server.close()


def node() -> str:
    """The interpreter of JavaScript, if zarrita is there for it; .ci/run installs it."""
    found = shutil.which("node")
    if found is None or not (ROOT / "build/zarrita/node_modules/zarrita").exists():
        if os.environ.get("TXSTORE_REQUIRE_SERVERS"):
            pytest.fail("zarrita is missing: npm install --prefix build/zarrita zarrita")
        pytest.skip("zarrita is missing: npm install --prefix build/zarrita zarrita")
    return found


def zarrita(url: str, *paths: str) -> tuple[list[str], dict[str, str]]:
    """The command that reads arrays with it, and its environment."""
    modules = str(ROOT / "build/zarrita/node_modules/zarrita/dist/src/index.js")
    return [node(), str(Path(__file__).with_name("zarrita.mjs")), url, *paths], {**os.environ, "ZARRITA": modules}


def test_zarrita(served: Server, repo: txstore.Repository) -> None:
    for url, store in bases(served, repo):
        command, environment = zarrita(url, *PLAIN, *STRINGS)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        for path, read in json.loads(done.stdout).items():
            wanted = expected(store, path)
            assert read["shape"] == list(wanted.shape)
            assert read["values"] == wanted.ravel().tolist(), path


# --- what was there when it was opened, and is not any more
@contextlib.contextmanager
def by_fsspec(url: str, path: str) -> Iterator[Callable[[], Any]]:
    array = zarr.open_array(f"{url}/{path}", mode="r")
    yield lambda: array[...]


@contextlib.contextmanager
def by_obstore(url: str, path: str) -> Iterator[Callable[[], Any]]:
    from obstore.store import HTTPStore

    retries: Any = {"max_retries": 0}
    store = HTTPStore(url, client_options={"allow_http": True}, retry_config=retries)
    array = zarr.open_array(zarr.storage.ObjectStore(store, read_only=True), path=path, mode="r")
    yield lambda: array[...]


@contextlib.contextmanager
def by_tensorstore(url: str, path: str) -> Iterator[Callable[[], Any]]:
    tensorstore = pytest.importorskip("tensorstore")
    spec = {
        "driver": "zarr" if path.startswith("two/") else "zarr3",
        "kvstore": {"driver": "http", "base_url": f"{url}/", "path": f"{path}/"},
        "context": {"http_request_retries": {"max_retries": 1}},
    }
    array = tensorstore.open(spec, open=True, read=True).result()
    yield lambda: array.read().result()


@contextlib.contextmanager
def by_zarrita(url: str, path: str) -> Iterator[Callable[[], Any]]:
    command, environment = zarrita(url, path)
    with subprocess.Popen(
        command, env={**environment, "WAIT": "1"}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        first = process.stdout.readline()

        def read() -> Any:
            out, words = process.communicate("read\n", timeout=60)
            if process.returncode:
                raise OSError(words)
            return np.reshape(json.loads(out)[path]["values"], json.loads(out)[path]["shape"])

        try:
            assert first == "opened\n", process.communicate(timeout=60)
            yield read
        finally:
            process.kill()


GOING = ("three/plain", "three/sharded", "two/plain")
READERS = (by_fsspec, by_obstore, by_tensorstore, by_zarrita)


def delete_tag(repo: txstore.Repository, server: Server) -> None:
    del repo.tags["v1"]


def delete_branch(repo: txstore.Repository, server: Server) -> None:
    del repo.branches["dev"]


def vacuum(repo: txstore.Repository, server: Server) -> None:
    del repo.tags["v1"], repo.branches["dev"]
    server._application.positions.let_go(idle=0)
    gc.collect()
    repo.vacuum(keep=1)


def take_away(repo: txstore.Repository, server: Server) -> None:
    """As a disk that is not mounted any more."""
    Path(repo.url).rename(f"{repo.url}.away")


@pytest.mark.parametrize(
    ("ref", "go"),
    [("v1", delete_tag), ("dev", delete_branch), ("id", vacuum), ("digits", vacuum), ("main", take_away),
     ("v1", take_away)],
)  # fmt: skip
@pytest.mark.parametrize("reader", READERS)
def test_what_is_gone_is_an_error_to_every_reader(served, repo, reader, ref, go):
    """Each of them reads fill values where the answer is 404: without a word, and wrong."""
    old = repo.commit("v1")
    repo.branches["dev"] = old
    ref = {"id": old.id, "digits": old.id[:12]}.get(ref, ref)
    with contextlib.ExitStack() as opened:
        reads = [opened.enter_context(reader(f"{served.base}at/{ref}", path)) for path in GOING]
        go(repo, served)
        try:
            for read in reads:
                with pytest.raises(Exception, match=r"410|503|[Gg]one|Unavailable"):
                    read()
        finally:
            if go is take_away:
                Path(f"{repo.url}.away").rename(repo.url)


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_reads_what_is_there(served: Server, repo: txstore.Repository, reader: Any) -> None:
    for path in GOING:
        with reader(f"{served.base}at/v1", path) as read:
            np.testing.assert_array_equal(read(), expected(repo.snapshot("v1"), path))


def gdal() -> str:
    """GDAL's program that describes an array, and shows what is in it; .ci/run installs it."""
    found = shutil.which("gdalmdiminfo")
    if found is None:
        if os.environ.get("TXSTORE_REQUIRE_SERVERS"):
            pytest.fail("GDAL is missing: apt-get install gdal-bin")
        pytest.skip("GDAL is missing: apt-get install gdal-bin")
    return found


def by_gdal(url: str, path: str) -> Any:
    command = [gdal(), "-detailed", "-array", path.rpartition("/")[2], f'ZARR:"/vsicurl/{url}/{path}"']
    environment = {**os.environ, "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode or "ERROR" in done.stderr:
        raise OSError(done.stderr)
    return np.array(json.loads(done.stdout)["values"])


def test_gdal(served: Server, repo: txstore.Repository) -> None:
    for url, store in bases(served, repo):
        np.testing.assert_array_equal(by_gdal(url, "two/plain"), expected(store, "two/plain"))


def test_gdal_does_not_open_what_is_gone(served: Server, repo: txstore.Repository) -> None:
    """What it has open it reads on: a chunk for which it gets any status but 200 is "no data" to it."""
    del repo.tags["v1"]
    with pytest.raises(OSError, match="ERROR"):
        by_gdal(f"{served.base}at/v1", "two/plain")

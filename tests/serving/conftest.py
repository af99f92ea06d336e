"""A repository of all that there is to serve, and servers for it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.serving.asking import ask
from txstore.serving import application
from txstore.serving.application import Application
from txstore.serving.entrance import listen
from txstore.serving.server import Server

OpenRepo = Callable[..., txstore.Repository]

#: Paths of arrays that every reader takes; and of those that are not for all of them.
PLAIN = ("three/plain", "three/sharded", "three/v2keys", "three/outside", "two/plain", "two/nested", "scalar")
STRINGS = ("three/strings",)


@pytest.fixture
def repo(open_repo: OpenRepo, tmp_path: Path) -> txstore.Repository:
    """Two commits: formats 2 and 3, shards, strings, values that lie outside, one chunk that is not stored."""
    raw = tmp_path / "raw.bin"
    raw.write_bytes(b"head" + np.arange(8, dtype="i4").tobytes())
    repo = open_repo(sources=[tmp_path])
    with repo.transaction("first") as store:
        root = zarr.create_group(store)
        three = root.create_group("three", attributes={"title": "<script>alert(1)</script>"})
        plain = three.create_array("plain", shape=(20, 30), chunks=(7, 8), dtype="f4", fill_value=-1)
        plain[:14] = np.arange(14 * 30, dtype="f4").reshape(14, 30)
        sharded = three.create_array("sharded", shape=(32, 32), chunks=(4, 4), shards=(16, 16), dtype="u2")
        sharded[:, :20] = np.arange(32 * 20, dtype="u2").reshape(32, 20)
        keys = three.create_array(
            "v2keys", shape=(6,), chunks=(2,), dtype="i8", chunk_key_encoding={"name": "v2", "separator": "."}
        )
        keys[:] = np.arange(6)
        three.create_array("strings", data=np.array(["a", "", "größer"], dtype="T"), chunks=(2,))
        three.create_array("outside", shape=(8,), chunks=(4,), dtype="i4", compressors=None)
        for chunk in (0, 1):
            store.set_reference(f"three/outside/c/{chunk}", raw, 4 + 16 * chunk, 16)
        two = zarr.create_group(store, path="two", zarr_format=2, attributes={"of": 2})
        two.create_array("plain", data=np.arange(12, dtype="f8").reshape(3, 4), chunks=(2, 2))
        nested = two.create_array(
            "nested", shape=(4, 4), chunks=(2, 2), dtype="i2", chunk_key_encoding={"name": "v2", "separator": "/"}
        )
        nested[:] = np.arange(16).reshape(4, 4)
        root.create_array("scalar", shape=(), dtype="i4")[...] = 7
    repo.tags["v1"] = repo.head()
    with repo.transaction("second") as store:
        zarr.open_array(store, path="three/plain")[14:] = 5
        zarr.open_array(store, path="two/plain")[0] = -1
        zarr.open_array(store, path="three/sharded")[0, 0] = 9
    return repo


@pytest.fixture
def served(repo: txstore.Repository) -> Iterator[Server]:
    """A server on a real socket, which needs no token."""
    server = Server(repo, listen(has_token=False))
    server.start()
    yield server
    server.close()


@pytest.fixture
def app(repo: txstore.Repository) -> Application:
    """The application alone, to be asked without a socket."""
    return application(repo)


@pytest.fixture
def get(app: Application) -> Callable[..., Any]:
    """Ask the application."""
    return lambda path, **given: ask(app, path, **given)

"""Values that stay in objects of S3, or on a web server, read by repositories here and there."""

import functools
import http.server
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr

import txstore
from tests.system.remote.servers import Server, free_port
from txstore.errors import SourceChangedError, SourceError

pytestmark = pytest.mark.long

VALUES = np.arange(3000, dtype="i4")


def stage(store: txstore.TxStore, url: str) -> None:
    zarr.create_array(store, name="x", shape=(3000,), chunks=(100,), dtype="i4", compressors=None)
    for chunk in range(30):
        store.set_reference(f"x/c/{chunk}", url, 4 + 400 * chunk, 400)


def read(store: Any) -> Any:
    return zarr.open_array(store, path="x", mode="r")[:]


def total(store: txstore.TxStore) -> int:
    return int(read(store).sum())


@pytest.fixture
def raw(s3: Server) -> tuple[str, Any]:
    """An object, and the file system that it lies on."""
    filesystem = fsspec.filesystem("s3", **{k: v for k, v in s3.storage_options.items() if k != "txstore_engine"})
    url = f"{s3.url()}/raw/x.bin"
    filesystem.pipe(url, b"head" + VALUES.tobytes())
    return url, filesystem


@pytest.mark.parametrize("where", ["local", "s3"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_objects_of_s3(s3: Server, raw: tuple[str, Any], tmp_path: Path, where: str) -> None:
    url, filesystem = raw
    sources = {url.rpartition("/")[0]: s3.storage_options}
    options = {} if where == "local" else {"storage_options": s3.storage_options}
    repo = txstore.Repository(tmp_path / "data.tx" if where == "local" else s3.url(), sources=sources, **options)
    with repo.transaction() as store:
        stage(store, url)
        assert total(store) == VALUES.sum()
    np.testing.assert_array_equal(read(repo.snapshot()), VALUES)
    assert repo.snapshot()["x/c/3"] == VALUES[300:400].tobytes()
    assert repo.mapping().get_part("x/c/3", slice(4, 8)) == VALUES[301:302].tobytes()
    for method in ("fork", "spawn"):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
            assert pool.submit(total, repo.snapshot()).result(60) == VALUES.sum()
    np.testing.assert_array_equal(read(pickle.loads(pickle.dumps(repo.snapshot()))), VALUES)
    repo.optimize()
    repo.vacuum(keep=1)
    assert repo.verify(sources=True).faults == []
    filesystem.pipe(url, b"tail" + VALUES.tobytes())  # as long as it was
    with pytest.raises(SourceChangedError, match="import the references to it again"):
        read(repo.snapshot())
    (fault,) = repo.verify(sources=True).faults
    assert (fault.part, fault.path) == ("source", url)
    filesystem.rm(url)
    with pytest.raises(SourceChangedError, match="no such file"):
        read(repo.snapshot())
    for sources in ({url + "x": s3.storage_options}, {url.replace("/raw/", "/ra/"): s3.storage_options}):
        other = txstore.Repository(repo.url, sources=sources, **options)
        with pytest.raises(SourceError, match="may not be read here"):
            read(other.snapshot())


def test_a_server_that_is_gone(s3: Server, raw: tuple[str, Any], tmp_path: Path, quick: None) -> None:
    url, _ = raw
    with txstore.Repository(tmp_path / "data.tx", sources={url: s3.storage_options}).transaction() as store:
        stage(store, url)
    nobody = {**s3.storage_options, "endpoint_url": f"http://127.0.0.1:{free_port()}", "secret": "never-shown"}
    repo = txstore.Repository(tmp_path / "data.tx", sources={url: nobody})
    with pytest.raises(OSError, match="no connection") as raised:  # no missing key, and no change of the object
        read(repo.snapshot())
    assert "never-shown" not in str(raised.value)
    (fault,) = repo.verify(sources=True).faults
    assert "can't be looked at" in fault.reason


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Knows no ranges: it sends whole files."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "web").mkdir()
    handler = functools.partial(_Handler, directory=str(tmp_path / "web"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_web_server(open_repo: Callable[..., txstore.Repository], web: str, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    file = tmp_path / "web" / "x.bin"
    file.write_bytes(b"head" + VALUES.tobytes())
    repo = open_repo(sources=[web])
    with repo.transaction() as store:
        stage(store, f"{web}/x.bin")
    np.testing.assert_array_equal(read(repo.snapshot()), VALUES)
    os.utime(file, (1, 1))
    with pytest.raises(SourceChangedError):
        read(repo.snapshot())
    file.unlink()
    with pytest.raises(SourceChangedError, match="no such file"):
        read(repo.snapshot())


@pytest.fixture
def leading(web: str) -> Iterator[Callable[[str], str]]:
    """Web servers that lead to another place."""
    with ExitStack() as servers:

        def leading(to: str, code: int = 302) -> str:
            class Handler(http.server.BaseHTTPRequestHandler):
                def do_GET(self) -> None:
                    if self.path.startswith("/here"):
                        body = b"head" + VALUES.tobytes()
                        self.send_response(200)
                        self.send_header("ETag", "1")
                    else:
                        body = b""
                        self.send_response(code)
                        self.send_header("Location", to)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    if self.command == "GET":
                        self.wfile.write(body)

                do_HEAD = do_GET

                def log_message(self, *_: object) -> None:
                    pass

            server = servers.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            servers.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_port}"

        yield leading


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_server_that_leads_to_another_host(open_repo, web, leading, tmp_path, code):
    """It may know places that nobody else can reach but us: not one request goes there."""
    pytest.importorskip("aiohttp")
    asked = []
    handler = _Handler.send_head
    (tmp_path / "web" / "secret").write_bytes(b"head" + VALUES.tobytes())
    host = leading(f"{web}/secret", code)
    repo = open_repo(sources=[host])

    def noting(self: _Handler) -> Any:
        asked.append(self.path)
        return handler(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Handler, "send_head", noting)
        for url in (f"{host}/x.bin", f"{host}//x.bin"):
            with pytest.raises((OSError, SourceError), match="points elsewhere"), repo.transaction() as store:
                stage(store, url)
            with repo.transaction() as store:
                store.set_reference("a", url, 0, 4, size=4 + VALUES.nbytes, version="1")
            with pytest.raises((OSError, SourceError), match="points elsewhere"):
                repo.snapshot()["a"]
    assert "/secret" not in asked


def test_a_server_may_lead_to_itself(open_repo: Callable[..., txstore.Repository], leading: Callable[..., str]) -> None:
    pytest.importorskip("aiohttp")
    host = leading("/here/x.bin")
    repo = open_repo(sources=[host])
    with repo.transaction() as store:
        stage(store, f"{host}/x.bin")
    np.testing.assert_array_equal(read(repo.snapshot()), VALUES)

"""What users get wrong on object stores, and what goes wrong beneath them: the error, and what is left behind."""

import contextlib
import functools
import http.server
import logging
import threading
import traceback
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.system.remote.proxy import Faults
from tests.system.remote.servers import AZURE_KEY, Server
from tests.tools.inside import finish_head_cache, objects_of
from tests.tools.upkeep import below
from txstore.errors import LocksUnavailableError, RepositoryNotFoundError
from txstore.storage import kept
from txstore.storage.objects.interface import open_objects

pytestmark = pytest.mark.long


def opened(server: Server, url: str, **options: object) -> txstore.Repository:
    return txstore.Repository(url, storage_options=server.storage_options, **options)  # type: ignore[arg-type]


def write(repo: txstore.Repository) -> None:
    with repo.transaction("written") as store:
        zarr.create_array(store, name="x", data=np.arange(1, 9), chunks=(2,), compressors=None)


def forget_what_was_read() -> None:
    kept._shared._empty()


@pytest.fixture
def one(s3: Server) -> tuple[Server, str]:
    """A repository on S3 with one array."""
    repo = opened(s3, s3.url())
    write(repo)
    finish_head_cache(repo)  # or it would be there again when a test has deleted it
    forget_what_was_read()
    return s3, repo.url


# --- the place


@pytest.mark.parametrize(
    ("name", "words"), [("zarr.json", "plain Zarr"), ("photos/cat.jpg", "something else")], ids=["zarr", "photos"]
)
def test_what_is_no_repository(s3, name, words):
    url = s3.url()
    open_objects(url, s3.storage_options).put(name, [b'{"zarr_format": 3, "node_type": "group"}'])
    with pytest.raises(RepositoryNotFoundError, match=words):
        opened(s3, url)
    assert [path for path, _ in below(open_objects(url, s3.storage_options))] == [name]


# --- the permission
def test_a_read_only_key(one, proxy):
    server, url = one
    proxy.faults = Faults(refused=frozenset({"PUT", "POST", "DELETE"}))
    repo = opened(server.with_options(endpoint_url=proxy.url), url)
    assert zarr.open_array(repo.snapshot(), path="x", mode="r")[:].tolist() == list(range(1, 9))
    transaction = repo.begin()
    transaction["a"] = b"1"
    with pytest.raises(PermissionError, match="not allowed"):
        transaction.commit()
    transaction.rollback()
    with pytest.raises(PermissionError, match="not allowed"):
        repo.tags["v1"] = 0
    assert len(list(repo.log())) == 1
    assert repo.verify().faults == []


@pytest.mark.parametrize("what", ["tags", "commits", "packs", "heads", "zarr.json"])
def test_what_may_not_be_read_is_no_fault_of_the_repository(one, proxy, what):
    server, url = one
    repo = opened(server.with_options(endpoint_url=proxy.url), url)
    repo.tags["v1"] = 0
    with repo.transaction("large") as store:
        store["large"] = bytes(2 << 20)
    finish_head_cache(repo)
    forget_what_was_read()
    proxy.faults = Faults(refused=frozenset({"GET"}), within=f"/{what}")
    with pytest.raises(PermissionError, match="not allowed to read this"):
        opened(server.with_options(endpoint_url=proxy.url), url).verify()


def test_a_key_that_may_not_delete(s3, proxy):
    """It commits, and leaves nothing but what it could not delete; what has to be deleted is named."""
    through, url = s3.with_options(endpoint_url=proxy.url), s3.url()
    proxy.faults = Faults(refused=frozenset({"DELETE", "POST"}))
    for number in range(2):
        repo = opened(through, url)
        with repo.begin(f"{number}") as mapping:
            mapping["a"] = b"%d" % number
        finish_head_cache(repo)
    assert sorted(path for path, _ in below(objects_of(repo))) == [
        "commits/main/0000000000",
        "commits/main/0000000001",
        "format.json",
        "heads/main",
        "zarr.json",
    ]
    repo.tags["v1"] = 0
    with pytest.raises(PermissionError, match=r"not allowed to delete this.*/tags/v1"):
        del repo.tags["v1"]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


class _Endless(_Quiet):
    """Knows no ranges, and sends more and more behind a file: behind that of a commit, or behind all."""

    of_all = False

    def copyfile(self, source, outputfile):
        super().copyfile(source, outputfile)
        if self.of_all or ("commits/main/" in self.path and Path(self.translate_path(self.path)).is_file()):
            with contextlib.suppress(OSError):  # until the reader has enough
                while True:
                    outputfile.write(bytes(1 << 20))


@pytest.fixture
def endless(request, tmp_path):
    local = txstore.Repository(tmp_path / "data.tx")
    with local.transaction() as store:
        zarr.create_array(store, name="x", data=np.arange(1, 9))
    handler = type("Handler", (_Endless,), {"of_all": request.param, "send_header": _without_length})
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(handler, directory=str(tmp_path))
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/data.tx"
        server.shutdown()
        thread.join()


def _without_length(self, name, value):
    if name != "Content-Length" or self.command == "HEAD":
        http.server.SimpleHTTPRequestHandler.send_header(self, name, value)


@pytest.mark.parametrize("endless", [False], indirect=True)
def test_of_an_answer_without_end_a_range_is_read(endless):
    assert zarr.open_array(txstore.Repository(endless).snapshot(), path="x", mode="r")[:].tolist() == list(range(1, 9))


@pytest.mark.parametrize("endless", [True], indirect=True)
def test_a_whole_object_without_end_is_an_error(endless):
    with pytest.raises(OSError, match=r"sends more than the [\d,]+ bytes it was asked for"):
        txstore.Repository(endless).snapshot()


# --- locks, secrets
def test_locks(one):
    server, url = one
    repo = opened(server, url)
    with pytest.raises(LocksUnavailableError, match="repeat what is in conflict"):
        repo.transaction(lock={"x": ...})
    with pytest.raises(LocksUnavailableError), repo.transaction() as store, store.lock("x"):
        pass
    array = txstore.synchronized(repo, "x")  # repeats what is in conflict
    array[0] = 7
    assert array[:2].tolist() == [7, 2]


def test_no_secret_gets_out(server, caplog):
    """Neither into the repository, nor into what is said of it."""
    caplog.set_level(logging.DEBUG, logger="txstore")
    repo = txstore.Repository(server.url(), storage_options=server.storage_options)
    write(repo)
    repo.tags["v1"] = 0
    with repo.transaction("large") as store:
        store["large"] = bytes(2 << 20)
    repo.optimize()
    values = [value for name, value in server.storage_options.items() if name in ("secret", "connection_string")]
    secrets = [*values, AZURE_KEY, "test-secret-never-shown"]
    store = repo.snapshot()
    shown = [repr(repo), str(repo), repo.url, repr(store), str(store), repr(store.mapping), repr(repo.engine.access)]
    shown += [repr(repo.transaction()), repr(repo.begin()), repr(repo.head()), caplog.text, store._repr_html_()]
    shown += [repr(commit) for commit in repo.log()]
    with pytest.raises(KeyError) as caught:
        repo.tags["none"]
    shown += traceback.format_exception(caught.value)
    for secret in secrets:
        assert not any(secret in each for each in shown)
    for path, _ in below(objects_of(repo)):
        content = objects_of(repo).get(path)
        for secret in secrets:
            assert secret.encode() not in content, path

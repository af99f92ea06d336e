"""Which store a URL and its options lead to; no server is needed but that of HTTP in this process."""

import functools
import http.server
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from txstore.storage.objects import fsspec_backends, obstore_backend, urls
from txstore.storage.objects.errors import Secrets
from txstore.storage.objects.interface import ENGINE_VARIABLE, check_creation, open_objects

pytestmark = pytest.mark.long

S3_OPTIONS = {"key": "k", "secret": "never-shown", "client_kwargs": {"region_name": "eu-west-1"}}


def target(url: str, options: dict[str, Any] | None = None) -> urls.Target:
    return urls.target_of(url, options or {}, engine=None, single_writer=False)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/a/b.tx", "s3://bucket/a/b.tx"),
        ("s3a://bucket//a/b.tx/", "s3://bucket/a/b.tx"),
        ("s3://bucket", "s3://bucket"),
        ("simplecache::s3://bucket/a", "s3://bucket/a"),
        ("blockcache::filecache::s3://bucket/a", "s3://bucket/a"),
        ("dir://inside/here::s3://bucket/a", "s3://bucket/a/inside/here"),
        ("gcs://bucket/a", "gs://bucket/a"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("abfs://container@account.dfs.core.windows.net/a", "az://container/a"),
        ("az://container/a", "az://container/a"),
        ("sftp://user:never-shown@host/a/b", "sftp://host/a/b"),
        ("ssh://user@host:2222/a/b", "sftp://host:2222/a/b"),
        ("smb://user:never-shown@host/share/a", "smb://host/share/a"),
        ("https://user:never-shown@host/a?sig=never-shown#x", "https://host/a"),
        ("memory://a/b", "memory://a/b"),
        ("memory:///a/b/", "memory://a/b"),
        ("s3://bucket/a#b/c d", "s3://bucket/a#b/c d"),
        ("az://container/a#b", "az://container/a#b"),
        ("sftp://host/a#b/c", "sftp://host/a#b/c"),
    ],
)
def test_what_is_shown_of_a_url(url, shown):
    found = target(url)
    assert found.url == shown
    assert "never-shown" not in repr(found)


def test_options_of_wrapped_stores():
    for url, options in (
        ("simplecache::s3://b/a", {"s3": {"key": "k"}, "simplecache": {"cache_storage": "x"}}),
        ("simplecache::s3://b/a", {"target_options": {"key": "k"}, "cache_storage": "x"}),
        ("simplecache::s3://b/a", {"key": "k"}),
        ("s3://b/a", {"key": "k", "use_listings_cache": True, "asynchronous": True, "txstore_engine": "fsspec"}),
    ):
        assert dict(target(url, options).options) == {"key": "k"}


@pytest.mark.parametrize("url", ["/a/b", "a", "file:///a/b", "local://a", "simplecache::file:///a", "s3:/x"])
def test_local_paths_are_no_object_stores(url):
    with pytest.raises(ValueError, match="give its path"):
        open_objects(url)


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
@pytest.mark.parametrize(
    "endpoint",
    ["127.0.0.1:9000", "localhost", "http://", "ftp://h", "http://h:1 ", "http://a b", "http://h:99999", "http://[::1"],
)
def test_an_endpoint_that_is_no_address(bare, monkeypatch, endpoint, engine):
    options = {**S3_OPTIONS, "txstore_engine": engine}
    client = {"endpoint_url": endpoint, "region_name": "eu-west-1"}
    for given in ({**options, "endpoint_url": endpoint}, {**options, "client_kwargs": client}):
        with pytest.raises(ValueError, match="write it as https://host:port"):
            open_objects("s3://bucket/data.tx", given)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(ValueError, match="write it as https://host:port"):
        open_objects("s3://bucket/data.tx", options)


@pytest.mark.parametrize(
    "url", ["s3://bucket/a?sig=never-shown", "az://container/a?sig=never-shown", "sftp://host/a?b"]
)
def test_a_query_is_not_passed_over(url):
    with pytest.raises(ValueError, match="URLs have no query") as caught:
        open_objects(url)
    assert "never-shown" not in str(caught.value)


def test_an_endpoint_that_goes_on_to_the_bucket():
    with pytest.raises(ValueError, match="ends in the name of the bucket"):
        open_objects("s3://bucket/data.tx", {**S3_OPTIONS, "endpoint_url": "http://h:1/bucket/"})
    open_objects("s3://bucket/data.tx", {**S3_OPTIONS, "endpoint_url": "http://h:1/buckets/"})


@pytest.mark.parametrize("url", ["s3:///r", "s3://", "gs:///r", "az:///", "sftp:///r", "smb:///share"])
def test_a_url_without_its_first_part(url):
    with pytest.raises(ValueError, match=r"what is missing is the (bucket|container|host)"):
        open_objects(url)


def test_a_scheme_that_nobody_knows():
    with pytest.raises(ValueError, match="no file system is known for nonsense://"):
        open_objects("nonsense://x/y")


def test_an_engine_that_is_no_engine(monkeypatch):
    with pytest.raises(ValueError, match="choose fsspec or obstore"):
        open_objects("s3://b/a", {"txstore_engine": "boto"})
    monkeypatch.setenv(ENGINE_VARIABLE, "boto")
    with pytest.raises(ValueError, match="choose fsspec or obstore"):
        open_objects("s3://b/a")


# --- obstore: when, and with what
@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials in the environment."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("s3://b/a", S3_OPTIONS, {"access_key_id": "k", "region": "eu-west-1", "prefix": "a/", "bucket": "b"}),
        ("s3://b", {**S3_OPTIONS, "token": "t"}, {"session_token": "t", "prefix": ""}),
        ("s3://b", {"anon": True, "endpoint_url": "http://h:1"}, {"skip_signature": True, "endpoint": "http://h:1"}),
        ("s3://b", {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": "http://h"}}, {"endpoint": "http://h"}),
        ("az://c/p/q", {"account_name": "n", "account_key": "k"}, {"account_name": "n", "prefix": "p/q/"}),
        ("az://c", {"account_name": "n", "sas_token": "?sv=1"}, {"sas_key": "?sv=1"}),
        ("abfs://c@n.dfs.core.windows.net/p", {"account_key": "k"}, {"account_name": "n", "container_name": "c"}),
        ("az://c", {"account_name": "n", "anon": True}, {"skip_signature": True}),
        ("gs://b/a", {"token": "anon"}, {"skip_signature": True, "bucket": "b", "prefix": "a/"}),
        ("gs://b/a", {"token": "anon", "endpoint_url": "http://h"}, {"skip_signature": True}),
        ("gs://b/a", {"token": {"type": "service_account"}}, {"service_account_key": '{"type": "service_account"}'}),
    ],
)  # fmt: skip
def test_options_in_terms_of_obstore(bare, url, options, expected):
    connection = obstore_backend.connection_of(target(url, options))
    assert {name: connection.arguments.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://b/a", {}),  # botocore knows more places where credentials are
        ("s3://b/a", {"key": "k", "secret": "s"}),  # and asks where the bucket is
        ("s3://b/a", {**S3_OPTIONS, "profile": "p"}),
        ("s3://b/a", {**S3_OPTIONS, "client_kwargs": {"region_name": "x", "verify": False}}),
        ("s3://b/a", {**S3_OPTIONS, "s3_additional_kwargs": {"ACL": "private"}}),
        ("az://c/a", {"account_name": "n"}),
        ("az://c/a", {"account_name": "n", "credential": object()}),
        ("gs://b/a", {}),
        ("gs://b/a", {"token": "cloud"}),
        ("gs://b/a", {"token": {"type": "service_account"}, "endpoint_url": "http://h"}),
        ("memory://a", {}),
    ],
)
def test_options_that_need_fsspec(bare, url, options):
    assert obstore_backend.connection_of(target(url, options)) is None


def test_which_engine_is_chosen(bare, monkeypatch):
    def engine(url: str, options: dict[str, Any]) -> object:
        return open_objects(url, options)._build  # type: ignore[attr-defined]

    pytest.importorskip("obstore")
    assert engine("s3://b/a", S3_OPTIONS) is obstore_backend.build
    assert engine("s3://b/a", {"profile": "p"}) is fsspec_backends.build
    assert engine("s3://b/a", {**S3_OPTIONS, "txstore_engine": "fsspec"}) is fsspec_backends.build
    with pytest.raises(ValueError, match="obstore"):
        open_objects("s3://b/a", {"profile": "p", "txstore_engine": "obstore"})
    monkeypatch.setenv(ENGINE_VARIABLE, "fsspec")
    assert engine("s3://b/a", S3_OPTIONS) is fsspec_backends.build
    assert engine("s3://b/a", {**S3_OPTIONS, "txstore_engine": "obstore"}) is obstore_backend.build
    assert open_objects("s3://b/a", S3_OPTIONS).creation == "conditional"


# --- those that can't create exclusively
@pytest.fixture
def http_url(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "o").write_bytes(b"0123456789")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://user:never-shown@127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_http_is_read_only(http_url):
    pytest.importorskip("aiohttp")
    store = open_objects(http_url)
    assert store.creation == "none"
    assert store.get("d/o") == b"0123456789"
    assert [each.name for each in store.list("d")] == ["o"]
    with pytest.raises(FileNotFoundError):
        store.get("d/none")
    assert store.get_range("d/o", 2, 3) == b"234"  # of all, since this server knows no ranges
    for write in (lambda: store.create("x", [b"x"]), lambda: store.put("x", [b"x"]), lambda: store.delete(["d/o"])):
        with pytest.raises(PermissionError, match=r"read-only for txstore: .*single_writer=True") as caught:
            write()
        assert "never-shown" not in str(caught.value)
    assert "never-shown" not in store.url + repr(store)


class OddFileSystem(MemoryFileSystem):
    """Of a class that nobody has looked at."""

    protocol = "odd"
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("odd://"))


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.register_implementation("odd", OddFileSystem, clobber=True)
    # A subclass of a known class is taken for that class.
    monkeypatch.delitem(fsspec_backends.CREATION, "fsspec.implementations.memory.MemoryFileSystem")


def test_a_single_writer(odd):
    assert open_objects("odd://odd-tests").creation == "none"
    store = open_objects("odd://odd-tests/a", single_writer=True)
    assert store.creation == "single writer"
    check_creation(store, "guard", b"always this")  # there is nothing to be found out
    assert store.list("") == []
    store.create("d/o", [b"0123456789"])
    with pytest.raises(FileExistsError):
        store.create("d/o", [b"2"])
    assert store.get_range("d/o", 2, 3) == b"234"
    assert store.get_range("d/o", 20, 3) == b""
    assert store.get_ranges("d/o", [(0, 1), (5, 5)]) == [b"0", b"56789"]
    assert store.get_tail("d/o", 3) == (b"789", 10)
    assert [each.name for each in store.list("d")] == ["o"]
    assert [each.name for each in store.list("")] == ["d"]
    again = pickle.loads(pickle.dumps(store))
    again.put("d/o", [b"2"])
    assert store.get("d/o") == b"2"
    store.delete(["d/o", "d/none"])
    assert not store.exists("d/o")


def test_what_is_secret():
    secrets = Secrets(
        {"key": "KEYKEY", "client_kwargs": {"aws_secret_access_key": "SECRET"}, "endpoint_url": "https://host",
         "connection_string": "AccountName=n;AccountKey=INSIDE==;X=1", "headers": [("Authorization", "BEARER")]},
        ("sftp://user:PASSWORD@host/x",),
    )  # fmt: skip
    said = secrets.hide("KEYKEY SECRET INSIDE== BEARER PASSWORD https://u:p@host/a?sig=SIG&x=1 at https://host/b")
    assert said == "*** *** *** *** *** https://host/a at https://host/b"

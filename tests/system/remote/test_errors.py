"""What goes wrong: which error it is, that it says what to do, and that no secret comes out with it."""

from __future__ import annotations

import contextlib
import errno
import gc
import pickle
import socket
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator

import pytest

from tests.system.remote import servers
from tests.system.remote.conftest import STORES, with_engine
from tests.system.remote.proxy import Faults, Proxy
from tests.system.remote.servers import Server
from txstore.storage.objects import client, obstore_backend, urls
from txstore.storage.objects.interface import ObjectStore, open_objects

pytestmark = pytest.mark.long

SECRETS = ("never-shown", servers.AZURE_KEY, "bm90IHRoZSByaWdodCBrZXk", "hidden-token", "sig=")


def error_of(call: Callable[[], object]) -> OSError:
    """Return what a call raises, having looked that it is one of Python's own and holds nothing of the library's."""
    with pytest.raises(OSError) as caught:
        call()
    error = caught.value
    assert type(error).__module__ == "builtins"
    assert error.__cause__ is None
    assert error.__context__ is None
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    for shown in (str(error), repr(error), repr(vars(error)), "".join(traceback.format_exception(error))):
        for secret in SECRETS:
            assert secret not in shown
    assert not any(secret.encode() in pickle.dumps(error) for secret in SECRETS)
    return error


def calls(store: ObjectStore) -> list[Callable[[], object]]:
    return [
        lambda: store.get("o"),
        lambda: store.get_range("o", 0, 1),
        lambda: store.get_ranges("o", [(0, 1)]),  # of several, the others would still be under way after the error
        lambda: store.get_tail("o", 1),
        lambda: store.exists("o"),
        lambda: store.put("o", [b"x"]),
        lambda: store.create("o", [b"x"]),
        lambda: store.list("d"),
    ]


@pytest.fixture(params=["s3-fsspec", "s3-obstore", "azure-fsspec", "azure-obstore", "gcs-fsspec", "gcs-obstore"])
def cloud(request: pytest.FixtureRequest, server_of: Callable[[str], Server]) -> Server:
    name, _, engine = request.param.partition("-")
    return with_engine(server_of(name), engine)


def test_a_wrong_bucket(cloud):
    url = f"{cloud.url_prefix.partition('://')[0]}://there-is-no-such-bucket/data.tx"
    store = open_objects(url, cloud.storage_options)
    for call in calls(store):
        error = error_of(call)
        assert not isinstance(error, FileNotFoundError)  # it would look like an empty repository
        assert "no such bucket, container or share" in str(error)
        assert url in str(error)


@pytest.mark.parametrize(
    ("status", "code", "kind", "words"),
    [
        (403, "InvalidAccessKeyId", PermissionError, "does not accept the credentials"),
        (403, "SignatureDoesNotMatch", PermissionError, "does not accept the credentials"),
        (403, "AccessDenied", PermissionError, "not allowed"),
        (400, "ExpiredToken", PermissionError, "expired"),
        (400, "InvalidRequest", OSError, "InvalidRequest"),
        (403, "RequestTimeTooSkewed", PermissionError, "set this machine's clock"),
        (403, "QuotaExceeded", OSError, "no space left"),
        (507, "XMinioStorageFull", OSError, "no space left"),
    ],
)
def test_refusals(s3, proxy, status, code, kind, words):
    through = s3.with_options(endpoint_url=proxy.url, token="hidden-token")
    store = open_objects(through.url(), through.storage_options)
    body = f"<Error><Code>{code}</Code><Message>hidden-token https://b/o?sig=1&amp;x=2</Message></Error>".encode()
    proxy.faults = Faults(refusal=(status, body))
    for call in calls(store):
        proxy.log.clear()
        error = error_of(call)
        assert type(error) is kind
        assert words in str(error)
        is_looked_for = code == "AccessDenied" and proxy.log[0].method == "GET" and len(proxy.log) == 2
        assert len(proxy.log) == 1 or is_looked_for  # nothing is tried again


def test_what_is_not_allowed_is_named(s3, proxy):
    through = s3.with_options(endpoint_url=proxy.url)
    store = open_objects(through.url(), through.storage_options)
    store.put("o", [b"x"])
    proxy.faults = Faults(refused=frozenset({"GET", "PUT", "POST", "DELETE"}))
    for call, wish in (
        (lambda: store.get("o"), "read"),
        (lambda: store.put("o", [b"x"]), "write"),
        (lambda: store.create("o", [b"x"]), "write"),
        (lambda: store.delete(["o"]), "delete"),
        (lambda: store.delete(["o", "p"]), "delete"),
        (lambda: store.list(""), "list"),
    ):
        assert f"not allowed to {wish} this (AccessDenied)" in str(error_of(call))


def test_an_object_of_another_account(s3, proxy):
    """The owner of a bucket may list what another account has written there, and not read it."""
    through = s3.with_options(endpoint_url=proxy.url)
    store = open_objects(through.url(), through.storage_options)
    store.put("d/o", [b"x"])
    proxy.faults = Faults(refused=frozenset({"GET"}), within="/d/")  # of objects, not of listings
    for call in (lambda: store.get("d/o"), lambda: store.get_tail("d/o", 1), lambda: store.exists("d/o")):
        error = error_of(call)
        assert type(error) is PermissionError
        assert "{'ACL': 'bucket-owner-full-control'}" in str(error)
    assert "ACL" not in str(error_of(lambda: store.get("d/none"))), "what is not there has no owner"


def test_who_writes_can_give_the_owner_of_the_bucket_what_it_writes(s3, proxy):
    options = {"s3_additional_kwargs": {"ACL": "bucket-owner-full-control"}, "endpoint_url": proxy.url}
    through = s3.with_options(**options, txstore_engine=None)  # obstore can't: fsspec does it
    store = open_objects(through.url(), through.storage_options)
    store.put("o", [b"x"])
    store.create("p", [b"x"])
    assert store.get("p") == b"x"
    writes = [request for request in proxy.log if request.method == "PUT"]
    assert [request.headers["x-amz-acl"] for request in writes] == ["bucket-owner-full-control"] * 2


def test_wrong_credentials_for_azure(server_of):
    server = server_of("azure")
    text = servers.azure_connection(server.port, key="bm90IHRoZSByaWdodCBrZXk=")
    for engine in ("fsspec", "obstore"):
        wrong = with_engine(server, engine).with_options(connection_string=text)
        store = open_objects(wrong.url(), wrong.storage_options)
        for call in calls(store):
            error = error_of(call)
            assert type(error) is PermissionError
            assert "storage_options" in str(error) or "permission" in str(error)


@pytest.mark.skipif("smb" not in STORES, reason="TXSTORE_SERVERS=smb tries Samba")
def test_a_share_and_a_password_of_smb(server_of):
    server = server_of("smb")
    wrong = open_objects(server.url(), {**server.storage_options, "password": "never-shown-either"})
    for call in calls(wrong):
        error = error_of(call)
        assert type(error) is PermissionError
        assert "credentials" in str(error)
    elsewhere = open_objects(f"smb://127.0.0.1:{server.port}/there-is-no-such-share/a", server.storage_options)
    for call in calls(elsewhere):
        error = error_of(call)
        assert not isinstance(error, FileNotFoundError)
        assert "no such bucket, container or share" in str(error)


def test_a_file_where_a_directory_is_needed(server_of):
    for name in {"sftp", "memory", *STORES} & {"sftp", "memory", "smb"}:
        server = server_of(name)
        store = open_objects(server.url(), server.storage_options)
        store.put("a", [b"x"])
        for write in (store.put, store.create):
            with pytest.raises(NotADirectoryError):
                write("a/b", [b"y"])
        assert store.get("a") == b"x"
        assert not store.exists("a/b")
        assert store.list("a") == []


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_nobody_listens(engine, quick, server_of):
    port = servers.free_port()
    options = {
        "key": "k",
        "secret": "never-shown",
        "endpoint_url": f"http://127.0.0.1:{port}",
        "txstore_engine": engine,
    }
    store = open_objects("s3://bucket/data.tx", options)
    for call in calls(store):
        error = error_of(call)
        assert isinstance(error, ConnectionError)
        assert "no connection" in str(error)
    assert isinstance(error_of(store.now), OSError)


class Clock:
    """Time that passes only in pauses."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_server_that_has_never_answered_is_soon_given_up(s3, monkeypatch):
    with Proxy(s3.port) as proxy:
        through = s3.with_options(endpoint_url=proxy.url)
        store = open_objects(through.url(), through.storage_options)
        store.put("o", [b"x"])
    clock = Clock()
    monkeypatch.setattr(client, "time", clock)
    error_of(lambda: store.get("o"))
    assert clock.now > 20, "it may come back"
    clock.now = 0.0
    error = error_of(lambda: open_objects(through.url(), through.storage_options).get("o"))
    assert isinstance(error, ConnectionError)
    assert 2 < clock.now < 10
    assert not hasattr(error, "__notes__"), "what only reads is never carried out late"


def test_a_server_that_takes_no_connections_is_soon_given_up(monkeypatch):
    """Each try takes as long as the library waits for a connection: of a host that swallows packets, say."""
    clock = Clock()
    monkeypatch.setattr(client, "time", clock)

    class Nobody:
        def get(self, path: str) -> bytes:
            clock.now += 5.0
            raise TimeoutError(errno.ETIMEDOUT, "timed out")

    store = client.ObjectClient(
        urls.target_of("s3://b/a", {}, engine=None, single_writer=False), "x", lambda _: Nobody()
    )
    assert isinstance(error_of(lambda: store.get("o")), TimeoutError)
    assert clock.now < 11


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_tls_where_there_is_none(engine, server_of):
    server = server_of("s3").with_options(txstore_engine=engine)
    there = server.with_options(endpoint_url=f"https://127.0.0.1:{server.port}")
    error = error_of(lambda: open_objects(there.url(), there.storage_options).get("o"))
    assert isinstance(error, ConnectionError)
    assert "does not speak TLS" in str(error)


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_nobody_answers(engine, silent, quick, monkeypatch):
    monkeypatch.setitem(obstore_backend.CLIENT, "read_timeout", "0.2s")
    options = {"key": "k", "secret": "never-shown", "endpoint_url": f"http://127.0.0.1:{silent}"}
    if engine == "fsspec":
        options["config_kwargs"] = {"read_timeout": 0.2}
    store = open_objects("s3://bucket/data.tx", {**options, "txstore_engine": engine})
    for call in (lambda: store.get("o"), lambda: store.create("o", [b"x"])):
        assert isinstance(error_of(call), TimeoutError)


def test_an_error_keeps_nothing_of_its_callers(server):
    """No frames, in which values and pins are: they would stay until the next garbage collection."""
    store = open_objects(server.url(), server.storage_options)

    def fail(call: Callable[[], object]) -> weakref.ref[object]:
        held = threading.Event()  # anything that can be referred to
        with contextlib.suppress(OSError):
            call()
        return weakref.ref(held)

    store.exists("warm")  # what a library keeps of its connecting is not looked at
    gc.collect()
    gc.disable()
    try:
        for call in (
            lambda: store.get("none"),
            lambda: store.get_ranges("none", [(0, 1), (5, 5)]),
            lambda: store.get_tail("none", 1),
        ):
            assert fail(call)() is None
    finally:
        gc.enable()

"""What requests are made, and what happens where answers are lost or the server is busy. S3 behind a proxy."""

import pytest

import txstore
from tests.system.remote.conftest import with_engine
from tests.system.remote.proxy import Faults, Proxy, kind_of
from tests.system.remote.servers import Server, azure_connection
from txstore.storage.objects import client
from txstore.storage.objects.interface import ObjectStore, check_creation, open_objects

pytestmark = pytest.mark.long


@pytest.fixture
def store(s3: Server, proxy: Proxy) -> ObjectStore:
    """An empty store whose requests go through the proxy. What it needs to connect was asked before."""
    through = s3.with_options(endpoint_url=proxy.url)
    store = open_objects(through.url(), through.storage_options)
    store.exists("warm")
    proxy.log.clear()
    return store


@pytest.mark.parametrize("size", [1, 1000, 20 << 20])
def test_a_creation_is_one_conditional_put(store, proxy, size):
    store.create("o", [bytes(size)])
    assert [(each.method, each.headers.get("if-none-match")) for each in proxy.log] == [("PUT", "*")]
    assert proxy.log[0].length >= size
    assert "expect" not in proxy.log[0].headers  # a round trip more


def test_each_call_is_one_request(store, proxy):
    store.put("d/o", [b"0123456789" * 1000])
    store.put("d/p", [b"1"])
    for call, kind, number in (
        (lambda: store.get("d/o"), "reads", 1),
        (lambda: store.get_range("d/o", 5, 10), "reads", 1),
        (lambda: store.get_range("d/o", 50_000, 10), "reads", 1),
        (lambda: store.get_ranges("d/o", [(0, 10), (5000, 10), (9000, 10)]), "reads", 3),
        (lambda: store.get_tail("d/o", 100), "reads", 1),
        (lambda: store.get_tail("d/o", 100_000), "reads", 1),
        (lambda: store.exists("d/o"), "reads", 1),
        (lambda: store.exists("none"), "reads", 1),
        (lambda: store.list("d"), "lists", 1),
        (lambda: store.list("none"), "lists", 1),
        (lambda: store.list_after("d", "o", 10), "lists", 1),
        (lambda: store.list_after("d", "p", 10), "lists", 1),
        (lambda: store.put("d/q", [b"1"]), "writes", 1),
        (lambda: store.delete(["d/q"]), "deletes", 1),
        (lambda: store.delete(["d/o", "d/p", "none"]), "deletes", 1),
    ):
        proxy.log.clear()
        call()
        assert [kind_of(each) for each in proxy.log] == [kind] * number, proxy.log


def test_requests_to_azure(server_of):
    server = server_of("azure")
    with Proxy(server.port) as proxy:
        for engine in ("fsspec", "obstore"):
            through = with_engine(server, engine).with_options(connection_string=azure_connection(proxy.port))
            store = open_objects(through.url(), through.storage_options)
            store.create("d/o", [b"0123456789" * 1000])
            assert [each.headers.get("if-none-match") for each in proxy.log] == ["*"]
            for call, number in (
                (lambda store=store: store.get("d/o"), 1),
                (lambda store=store: store.get_range("d/o", 5, 10), 1),
                (lambda store=store: store.get_tail("d/o", 100), 2),  # Azure knows no ranges from the end
                (lambda store=store: store.list("d"), 1),
            ):
                proxy.log.clear()
                call()
                assert len(proxy.log) == number, proxy.log
            proxy.log.clear()


@pytest.mark.parametrize("fault", ["busy", "unnamed", "conflict"])
def test_a_server_that_is_busy_is_asked_again(store, proxy, fault):
    """503 and 409 ConditionalRequestConflict are not "it exists"."""
    proxy.faults = Faults(seed=3, methods=frozenset({"PUT", "GET", "DELETE", "POST"}), **{fault: 0.3})
    for number in range(8):
        store.create(f"c/{number}", [b"%d" % number])
        store.put(f"p/{number}", [b"%d" % number])
        assert store.get(f"c/{number}") == store.get_tail(f"p/{number}", 10)[0] == b"%d" % number
    assert len(store.list("c")) == 8
    store.delete(["c/0", "c/1"])
    store.delete(["c/2"])
    assert len(store.list("c")) == 5
    assert any(each.status in (503, 409, 400) for each in proxy.log)
    written = [each.path for each in proxy.log if each.method == "PUT" and each.status == 200]
    assert len(written) == len(set(written)) == 16


@pytest.mark.parametrize("fault", ["busy", "lost", "conflict"])
def test_a_server_that_stays_busy_is_given_up(store, proxy, quick, fault):
    proxy.faults = Faults(**{fault: 1.0})
    with pytest.raises(OSError, match=r"try later|connection|exists") as caught:
        store.create("o", [b"x"])
    assert caught.type in ({"lost": {ConnectionError}}.get(fault, {OSError}))
    assert client.LEAST_TRIES <= len(proxy.log) <= 8


@pytest.mark.usefixtures("drops_conditions")
def test_a_server_that_ignores_conditions_is_found_out(store, proxy):
    proxy.faults = Faults(drops={"if-none-match": ""})
    with pytest.raises(OSError, match=r"ignores conditional writes.*single_writer=True"):
        check_creation(store, "guard", b"always this")
    proxy.faults = Faults()
    assert store.get("guard") == b"always this"
    check_creation(store, "guard", b"always this")


def commit(repo: txstore.Repository, key: str) -> None:
    with repo.transaction(key) as store:
        store[f"{key}/c"] = key.encode()


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_a_server_begins_to_ignore_conditions(server_of, drops_conditions, engine):
    """Its files were copied there by another tool, or versioning was switched on: no commit takes another's place."""
    proxy = drops_conditions
    server = server_of("s3").with_options(endpoint_url=proxy.url, txstore_engine=engine)
    url, options = server.url(), server.storage_options
    commit(txstore.Repository(url, storage_options=options), "before")
    proxy.faults = Faults(drops={"if-none-match": ""})
    late = txstore.Repository(url, storage_options=options)
    for _ in range(2):
        with pytest.raises(OSError, match=r"ignores conditional writes.*single_writer=True"):
            commit(late, "late")
    with pytest.raises(OSError, match="ignores conditional writes"):
        late.tags["release"] = late.head()
    proxy.faults = Faults()
    commit(late, "later")
    assert [each.message for each in late.log()] == ["later", "before"]
    assert sorted(late.mapping()) == ["before/c", "later/c"]
    assert late.verify().faults == []


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_a_single_writer_needs_no_conditions(server_of, drops_conditions, engine):
    proxy = drops_conditions
    server = server_of("s3").with_options(endpoint_url=proxy.url, txstore_engine=engine)
    url, options = server.url(), server.storage_options
    proxy.faults = Faults(drops={"if-none-match": ""})
    with pytest.raises(OSError, match="single_writer=True"):
        commit(txstore.Repository(url, storage_options=options), "refused")
    assert open_objects(url, options).list("") == []
    alone = txstore.Repository(url, storage_options=options, single_writer=True)
    for number in range(3):
        commit(alone, f"{number}")
    assert [each.message for each in alone.log()] == ["2", "1", "0"]
    assert alone.verify().faults == []
    with pytest.raises(PermissionError, match="single_writer=True: open it with the same option"):
        commit(txstore.Repository(url, storage_options=options), "refused")

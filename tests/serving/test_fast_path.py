"""The connection answers as the application does, to the byte, whatever is asked and however it arrives."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

import txstore
from tests.serving.client import Connection
from txstore.serving.answers import Reply, Scope
from txstore.serving.application import Application
from txstore.serving.entrance import listen
from txstore.serving.server import Server

KEY = "three/plain/c/0/0"
TOKEN = "s3cret-Token_x"
VIEWER = "https://viewer.example"
#: What is sent last on each connection: the answers to all before it have come when it ends.
LAST = b"GET /api/nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
PAUSE = 0.03


class Pair:
    """Two servers of one repository: one has the fast path, the other has the application alone."""

    def __init__(self, repo: txstore.Repository, monkeypatch: pytest.MonkeyPatch, *, has_token: bool) -> None:
        monkeypatch.setattr("secrets.token_urlsafe", lambda _: TOKEN)
        monkeypatch.setattr("secrets.token_bytes", bytes)
        self.servers = [Server(repo, listen(has_token=has_token, origins=[VIEWER])) for _ in range(2)]
        fast, slow = (server._application for server in self.servers)
        self.answered = 0
        at_hand = fast.at_hand

        def counting(scope: Scope) -> Reply | None:
            made = at_hand(scope)
            self.answered += made is not None
            return made

        monkeypatch.setattr(fast, "at_hand", counting)
        monkeypatch.setattr(slow, "at_hand", lambda _: None)
        for server in self.servers:
            server.start()

    def close(self) -> None:
        for server in self.servers:
            server.close()

    async def same(self, *pieces: bytes) -> bytes:
        """Send pieces to both servers, one after the other. Return the answer, which is the same."""
        fast, slow = await asyncio.gather(*(told(server.port, pieces) for server in self.servers))
        assert fast == slow, pieces
        return fast

    async def all_same(self, requests: Sequence[bytes]) -> None:
        for begin in range(0, len(requests), 32):
            await asyncio.gather(*(self.same(each) for each in requests[begin : begin + 32]))


async def told(port: int, pieces: Sequence[bytes]) -> bytes:
    """Return all that the server sends on a connection, but for the time of day."""
    connection = await Connection.open(port)
    reading = asyncio.create_task(all_of(connection.reader))  # what is unread is lost if the server closes first
    with contextlib.suppress(ConnectionError):
        for piece in (*pieces, LAST):
            if reading.done():
                break
            connection.writer.write(piece)
            await connection.writer.drain()
            await asyncio.sleep(PAUSE if len(piece) > 1 else 0.001)
    content = await asyncio.wait_for(reading, 60)
    await connection.close()
    return re.sub(rb"date: [^\r]*\r\n", b"", content)


async def all_of(reader: asyncio.StreamReader) -> bytes:
    content = b""
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(1 << 20):
            content += piece
    return content


@pytest.fixture
def pair(repo: txstore.Repository, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    made = Pair(repo, monkeypatch, has_token=False)
    yield made
    made.close()


@pytest.fixture
def locked(repo: txstore.Repository, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    made = Pair(repo, monkeypatch, has_token=True)
    yield made
    made.close()


def request(
    path: str, *headers: str, method: str = "GET", version: str = "1.1", host: str = "Host: localhost"
) -> bytes:
    lines = [f"{method} {path} HTTP/{version}", *([host] if host else []), *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


def paths(repo: txstore.Repository) -> list[str]:
    first, head = repo.commit("v1"), repo.head()
    assert head is not None
    repo.tags["a" * 32] = first
    refs = ["main", "v1", head.id, first.id, first.id[:12], "a" * 32, "f" * 32, "nothing", "-no", "%6dain", "HEAD"]
    keys = [
        KEY, "zarr.json", "three/zarr.json", "three/plain/zarr.json", "two/.zgroup", "two/.zmetadata", "two/plain/0.0",
        "three/outside/c/0", "three/none", "three//plain/c/0/0", "", "three/plain%2Fc/0/0", "three/pl%61in/c/0/0",
        "%ff", "%", "three/../three/plain/c/0/0", "three/plain/c/0/0?a=1", "three/plain/c/0/0#x", "a" * 5000,
        "a" * 9000,
    ]  # fmt: skip
    return [f"/at/{ref}/{key}" for ref, key in product(refs, keys)]


async def test_each_path(pair: Pair, repo: txstore.Repository) -> None:
    every = paths(repo)
    await pair.all_same([request(path) for path in every])
    assert pair.answered > len(every) // 4
    await pair.all_same([request(path, method="HEAD") for path in every[:60]])
    others = ("/", "/at", "/at/", "/at/main", f"//at/main/{KEY}", "/api/repository")
    await pair.all_same([request(path) for path in others])


HEADERS = [
    "Range: bytes=0-3", "Range: bytes=-4", "Range: bytes=5-", "Range: bytes=9999999-", "Range: bytes=-0", "Range: x",
    "Range: bytes=0-1,4-5", "If-None-Match: *", 'If-None-Match: "x"', 'If-Range: "x"', "Accept-Encoding: gzip",
    "Origin: http://localhost", "Origin: https://evil.example", f"Origin: {VIEWER}", "Connection: close",
    "Connection: keep-alive", "Connection: Keep-Alive", "Connection: upgrade", "Keep-Alive: timeout=5",
    "Content-Length: 0", "Content-Length: x", "Expect: 100-continue", "Upgrade: h2c",
    "Host: localhost", "Host: evil.example", "X:", "X: ", "X: a ", "X:a", "X : a", "X: \xe4", "X: a\tb", "X: \x01",
    ": a", "X", " folded", "X_y: a", "X: " + "a" * 9000, "range: bytes=0-3", "RANGE: bytes=0-3", "Cookie: a=b",
]  # fmt: skip


async def test_each_header(pair: Pair, repo: txstore.Repository) -> None:
    head = repo.head()
    assert head is not None
    where = [f"/at/{head.id}/{KEY}", f"/at/main/{KEY}", f"/at/main/{KEY}/no"]
    await pair.all_same(
        [request(path, header, method=method) for path, header, method in product(where, HEADERS, ("GET", "HEAD"))]
        # Its end is sent: what follows a body without one is an error, which comes before the answer or after it.
        + [request(path, "Transfer-Encoding: chunked") + b"0\r\n\r\n" for path in where]
    )
    answer = await pair.same(request(where[0]))
    tag = re.search(rb"etag: ([^\r]*)", answer)
    assert tag is not None
    for header in ("If-None-Match", "If-Range"):
        await pair.same(request(where[0], f"{header}: {tag[1].decode()}", "Range: bytes=1-2"))
    before = pair.answered
    assert b" 304 " in await pair.same(request(where[1], f"If-None-Match: {tag[1].decode()}"))
    assert pair.answered == before + 1


async def test_each_first_line(pair: Pair) -> None:
    path = f"/at/main/{KEY}"
    await pair.all_same(
        [request(path, method=method) for method in ("OPTIONS", "POST", "PUT", "get", "TRACE", "G\xe4T", "")]
        + [request(path, version=version) for version in ("1.0", "1.2", "2.0", "0.9", "1.1 ", "x")]
        + [request(path, "Connection: keep-alive", version="1.0")]
        + [request(path, host=host) for host in ("", "Host: evil.example", "Host:", "Host: [", "Host: 127.0.0.1:1")]
        + [request(f"http://localhost{path}"), request(f" {path}"), request(path).replace(b"\r\n", b"\n")]
        + [b"\r\n" + request(path), b"\0" * 40, b"GET\r\n\r\n", request(path) + b"x"]
    )


async def test_each_way_to_send_a_token(locked: Pair, repo: txstore.Repository) -> None:
    cookie = re.search(rb"set-cookie: ([^;]*)", await locked.same(request(f"/?token={TOKEN}")))
    assert cookie is not None
    wrong = cookie[1][:-1] + b"x"
    for path in (f"/at/main/{KEY}", f"/at/{repo.commit('v1').id}/{KEY}", "/at/main/none", "/api/repository"):
        await locked.all_same(
            [request(path, header) for header in (
                "X: y", f"Authorization: Bearer {TOKEN}", f"authorization: bearer {TOKEN}", f"Authorization: {TOKEN}",
                f"Authorization: Bearer {TOKEN}x", f"Cookie: {cookie[1].decode()}", f"Cookie: {wrong.decode()}",
            )]
            + [request(before + path) for before in (
                f"/t/{TOKEN}", f"/t/{TOKEN}x", "/t", "/t/", f"/T/{TOKEN}", f"//t/{TOKEN}", f"/t/{TOKEN}/t/{TOKEN}",
                f"/t/{TOKEN[:-1]}%78",
            )]
            + [request(f"{path}?token={TOKEN}"), request(f"{path}?token=x")]
        )  # fmt: skip
    before = locked.answered
    assert b" 200 OK" in await locked.same(request(f"/t/{TOKEN}/at/main/{KEY}"))
    assert b" 200 OK" in await locked.same(request(f"/at/main/{KEY}", f"Authorization: Bearer {TOKEN}"))
    assert b" 401 " in await locked.same(request(f"/at/main/{KEY}", "Authorization: Bearer x"))
    assert locked.answered == before + 2


async def test_however_it_arrives(pair: Pair, repo: txstore.Repository) -> None:
    one, two = request(f"/at/main/{KEY}"), request(f"/at/v1/{KEY}", "Range: bytes=0-3")
    body = request("/at/main/zarr.json", "Content-Length: 4", method="POST")
    for pieces in (
        [one[at : at + 1] for at in range(len(one))],
        [one, two, one],
        [one + two + one],
        [one + two[:20], two[20:] + one],
        [one[:-1], one[-1:] + two],
        [one, b"\r\n", one],
        [one, b"\r", b"\n" + one],
        [body + b"1234", one],
        [body, b"1234", one],
        [body, one],  # its first four bytes are content
        [b"GET /at/main/none HTTP/1.1\r\nX: ", one],  # the rest of a head looks like a request
        # At once: what is no chunk would be an error before the answer, or after it.
        [request("/at/main/none", "Transfer-Encoding: chunked", method="POST") + one, two],
        [request("/at/main/none", "Transfer-Encoding: chunked", method="POST"), b"4\r\n1234\r\n0\r\n\r\n", two],
        [request("/api/commits"), one, two],
        [request("/api/commits") + one, two],
        [request("/api/commits", "Upgrade: websocket", "Connection: upgrade"), one],
        [request(f"/at/main/{KEY}", "Connection: close"), one],
    ):
        await pair.same(*pieces)
    assert pair.answered


async def test_an_erased_value_and_one_that_no_commit_has(pair: Pair, repo: txstore.Repository) -> None:
    old = repo.commit("v1").id
    for server in pair.servers:
        assert b" 200 OK" in await told(server.port, [request(f"/at/{old}/{KEY}")])
        server._application.positions.let_go(idle=0)
    repo.erase("three/plain")
    assert b" 410 Gone" in await pair.same(request(f"/at/{old}/{KEY}"))
    for path in (f"/at/main/{KEY}", "/at/gone/x", f"/at/{'e' * 32}/{KEY}"):
        await pair.same(request(path))


async def test_damage_is_told_and_logged_once(
    repo: txstore.Repository, served: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> Any:
        raise txstore.CorruptionError("a pack", reason="it was damaged")

    monkeypatch.setattr("txstore.history.snapshot.Snapshot.view_of", fail)
    assert b" 500 " in await told(served.port, [request(f"/at/main/{KEY}")])
    assert len([record for record in caplog.records if "damaged" in str(record.exc_info)]) == 1


@pytest.mark.parametrize("size", [0, 1, 200_000, 1 << 18])
async def test_who_does_not_read_gets_all_in_the_end(pair: Pair, repo: txstore.Repository, size: int) -> None:
    """The socket is full soon, and takes a part of an answer."""
    content = np.random.default_rng(1).bytes(size)
    with repo.begin() as mapping:
        mapping["big"] = content
    connection = await Connection.open(pair.servers[0].port)
    assert (await connection.get("/at/main/big"))[0] == 200  # the slow path opens the snapshot
    for _ in range(100):
        await connection.ask("/at/main/big")
        await asyncio.sleep(0.001)
    for _ in range(100):
        assert (await connection.head())[0] == 200
        assert await connection.reader.readexactly(size) == content
    await connection.close()
    assert pair.answered


async def test_a_connection_is_closed_some_time_after_its_last_answer(repo: txstore.Repository) -> None:
    server = Server(repo, listen(has_token=False))
    server.config.timeout_keep_alive = 1
    server.start()
    try:
        for first in (f"/at/main/{KEY}", "/api/repository"):
            connection = await Connection.open(server.port)
            assert (await connection.get(first))[0] == 200
            for _ in range(4):
                await asyncio.sleep(0.5)
                assert (await connection.get(f"/at/main/{KEY}"))[0] == 200
            assert await asyncio.wait_for(connection.reader.read(), 30) == b""
            await connection.close()
    finally:
        await asyncio.to_thread(server.close)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the child runs nothing of the server
async def test_a_fork_of_the_process_that_serves(served: Server, repo: txstore.Repository) -> None:
    connection = await Connection.open(served.port)
    expected = (200, repo.mapping()[KEY])
    assert (await connection.get(f"/at/main/{KEY}"))[::2] == expected
    child = os.fork()
    if not child:
        os._exit(repo.mapping()[KEY] != expected[1])
    assert os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, child, 0))[1]) == 0
    assert (await connection.get(f"/at/main/{KEY}"))[::2] == expected
    await connection.close()


def test_snapshots_are_let_go_after_answers_of_the_connection(
    app: Application, repo: txstore.Repository, get: Callable[..., Any]
) -> None:
    first = repo.commit("v1").id
    assert get(f"/at/{first}/{KEY}").status == 200

    async def asked() -> bool:
        app._timer = None
        scope = {"type": "http", "method": "GET", "headers": [(b"host", b"localhost")], "server": ("127.0.0.1", 1),
                 "raw_path": f"/at/{first}/{KEY}".encode(), "path": ""}  # fmt: skip
        return app.at_hand(scope) is not None and app._timer is not None

    assert asyncio.run(asked())

"""The server in a process of its own: how it begins and ends, what many readers and slow ones do to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.serving.asking import asked, scope_of
from tests.serving.client import Connection, Running, running
from txstore.serving import application
from txstore.serving import server as serving
from txstore.serving.entrance import listen
from txstore.serving.server import Server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

#: How long the many readers read, in seconds; 0: a few rounds, which is what CI has time for.
SECONDS = float(os.environ.get("TXSTORE_SERVE_SECONDS", "0"))
READERS = 200
QUESTIONS = ("/api/transactions", "/files/commits/", "/files/commits/main/0000000000", "/at/main/zarr.json")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_also_while_pages_listen(repo: txstore.Repository, ending: signal.Signals) -> None:
    with running(repo.url) as server:
        listening = [await Connection.open(server.port) for _ in range(5)]
        for each in listening:
            await each.ask("/api/events")
            assert (await each.head())[0] == 200
            assert "heads" in await each.event()
        idle = await Connection.open(server.port)
        assert (await idle.get("/api/repository"))[0] == 200
        server.process.send_signal(ending)
        for each in listening:
            with pytest.raises((EOFError, asyncio.IncompleteReadError)):
                while True:
                    await each.event()
        assert await asyncio.to_thread(server.process.wait, 60) in (0, -ending)
        assert server.process.stderr is not None
        assert server.process.stderr.read() == ""
        for each in (*listening, idle):
            await each.close()


@pytest.mark.long
async def test_readers_that_do_not_read_do_not_hold_a_server_that_ends(served, repo, monkeypatch, caplog):
    big(repo, 16 << 20)
    stalled = await Connection.open(served.port)
    await stalled.ask("/at/main/big")
    assert (await stalled.head())[0] == 200
    monkeypatch.setattr("txstore.serving.server._ENDING", 0.2)
    await asyncio.to_thread(served.close)
    assert caplog.records == []
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await stalled.reader.readexactly(16 << 20)
    await stalled.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_the_token_is_needed_on_this_machine_too(repo: txstore.Repository, host: str) -> None:
    """Every user of it can reach the port, also those who may not read the files."""
    with running(repo.url, "--host", host) as server:
        connection = await Connection.open(server.port)
        assert (await connection.get("/api/repository"))[0] == 401
        token = server.address.partition("?token=")[2]
        assert len(token) >= 32
        status, _, body = await connection.get("/api/repository", f"Authorization: Bearer {token}")
        assert (status, json.loads(body)["url"]) == (200, repo.url)
        await connection.close()


def test_a_port_that_is_taken(repo: txstore.Repository) -> None:
    server = Server(repo)
    with pytest.raises(OSError, match=r"port \d+: Address already in use; port 0 picks a free port"):
        listen(port=server.port)
    server.start()
    server.close()


def big(repo: txstore.Repository, size: int = 64 << 20) -> None:
    with repo.begin() as mapping:
        mapping["big"] = bytes(size)


async def test_many_readers(repo: txstore.Repository) -> None:
    """No error, no thread for each, no more memory the longer they read."""
    with repo.transaction() as store:
        data = np.random.default_rng(1).integers(0, 255, (64, 16384), "u1")
        zarr.create_array(store, name="many", data=data, chunks=(1, 16384), compressors=None)
    commit = repo.head()
    assert commit is not None
    with running(repo.url) as server:
        readers = [await Connection.open(server.port) for _ in range(READERS)]

        async def read(number: int, reader: Connection) -> None:
            chunk = number % 64
            ref = ("main", commit.id)[number % 2]
            assert (await reader.get(f"/at/{ref}/many/c/{chunk}/0"))[::2] == (200, data[chunk].tobytes())
            status, _, body = await reader.get(f"/at/{ref}/many/c/{chunk}/0", "Range: bytes=-100")
            assert (status, body) == (206, data[chunk, -100:].tobytes())
            assert (await reader.get(f"/at/{ref}/many/c/99/0"))[0] == 404
            if number % 8 == 0:
                assert (await reader.get(QUESTIONS[number // 8 % len(QUESTIONS)]))[0] == 200

        async def round_of_all() -> None:
            await asyncio.gather(*(read(number, reader) for number, reader in enumerate(readers)))

        await round_of_all()
        before, threads = server.status("RssAnon"), server.status("Threads")
        began, rounds = time.monotonic(), 0
        while rounds < 2 or time.monotonic() - began < SECONDS:
            await round_of_all()
            rounds += 1
        grown = server.status("RssAnon") - before
        print(f"{rounds} rounds of {READERS} readers, {threads} threads, {grown} KiB more")
        assert threads <= 60
        assert server.status("Threads") <= 60
        assert grown < 24 << 10
        for reader in readers:
            await reader.close()


@pytest.mark.long
async def test_more_connections_than_the_usual_limit_of_descriptors(repo: txstore.Repository) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("this user may not open so many")
    expected = repo.mapping()["three/plain/c/0/0"]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))  # which the server begins with
        with running(repo.url) as server:
            resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
            connections = [await Connection.open(server.port) for _ in range(1200)]
            for each in connections:
                await each.ask("/at/main/three/plain/c/0/0")
            for each in connections:
                status, about = await each.head()
                assert status == 200
                assert await each.reader.readexactly(int(about["content-length"])) == expected
            assert server.status("Threads") <= 60
            for each in connections:
                await each.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.long
async def test_readers_that_do_not_read(repo: txstore.Repository) -> None:
    """What they have asked for is not kept in memory for them, and others do not wait."""
    big(repo)
    with running(repo.url) as server:
        other = await Connection.open(server.port)
        assert (await other.get("/at/main/three/plain/c/0/0"))[0] == 200
        before = server.status("RssAnon")
        slow = [await Connection.open(server.port) for _ in range(40)]
        for each in slow:
            await each.ask("/at/main/big")
            assert (await each.head())[0] == 200
        for _ in range(20):
            assert (await other.get("/at/main/three/plain/c/0/0"))[0] == 200
            assert (await other.get("/files/format.json"))[0] == 200
        assert server.status("RssAnon") - before < 64 << 10  # a few pieces for each, and not 2.5 GiB
        whole = await slow[0].reader.readexactly(64 << 20)
        assert whole == bytes(64 << 20)
        for each in (other, *slow):
            await each.close()


@pytest.mark.parametrize("sent", [b"", b"GET /at/main/zarr.json HTTP/1.1\r\nHost: local", b"\r\n"])
async def test_connections_without_a_request_are_given_up(served, monkeypatch, sent):
    """As many as somebody likes, which send nothing, or a byte now and then; the others go on."""
    other = await Connection.open(served.port)
    assert (await other.get("/at/main/zarr.json"))[0] == 200
    after_one = await Connection.open(served.port)
    assert (await after_one.get("/at/main/zarr.json"))[0] == 200
    monkeypatch.setattr(serving, "HEAD_SECONDS", 0.2)
    after_one.writer.write(sent or b"G")
    silent = [await Connection.open(served.port) for _ in range(200)]
    for each in silent:
        each.writer.write(sent)
    for each in (*silent, after_one):
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(each.reader.read(), 60) == b""
    assert (await other.get("/at/main/zarr.json"))[0] == 200
    for each in (other, after_one, *silent):
        await each.close()


EVENTS = b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEAD = b"GET /at/main/zarr.json HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        pytest.param(HEAD, b"X: " + b"a" * 10_000 + b"\r\n", id="a head"),
        pytest.param(EVENTS + HEAD, b"X: " + b"a" * 10_000 + b"\r\n", id="a head during an answer"),
        pytest.param(b"", b"GET / HTTP/1.1\r\nHost: other\r\n\r\n" * 40_000, id="requests"),
    ],
)
async def test_what_has_no_end_is_given_up(served: Server, begin: bytes, more: bytes) -> None:
    connection = await Connection.open(served.port)
    sent = 0
    connection.writer.write(begin)
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(30):
            while sent < 64 << 20 and not connection.reader.at_eof():
                connection.writer.write(more)
                await connection.writer.drain()
                sent += len(more)
                await asyncio.sleep(0)
    assert sent < 64 << 20
    await connection.close()


async def test_a_page_that_is_about_to_listen_ends_too(repo: txstore.Repository) -> None:
    """The server is told to stop while the first look at the repository is under way."""
    app = application(repo)
    app.close()
    assert (await asyncio.wait_for(asked(app, scope_of("/api/events")), 60)).status == 200


async def test_a_document_that_takes_all_memory(repo: txstore.Repository) -> None:
    """The server says so, and goes on."""
    with repo.begin() as mapping:
        mapping["zarr.json"] = (
            b'{"zarr_format": 3, "node_type": "group", "attributes": {"a": [' + b"[]," * (8 << 20) + b"1]}}"
        )
    with running(repo.url) as server:
        connection = await Connection.open(server.port)
        assert (await connection.get("/at/main/scalar/c"))[0] == 200
        limit, hard = resource.prlimit(server.process.pid, resource.RLIMIT_DATA)
        assert limit != resource.RLIM_INFINITY
        small = (server.status("VmData") << 10) + (128 << 20)  # as if the machine were small
        resource.prlimit(server.process.pid, resource.RLIMIT_DATA, (small, hard))
        assert (await connection.get("/at/main/zarr.json"))[0] == 500
        assert (await connection.get("/at/main/scalar/c"))[0] == 200
        await connection.close()


async def test_nobody_waits_for_an_answer_that_nobody_waits_for(repo, monkeypatch):
    """Such as a walk through all keys for locks, when the page was closed: a server that stops would wait for it."""
    app, may_go_on, has_begun = application(repo), threading.Event(), threading.Event()

    def slowly() -> Any:
        has_begun.set()
        may_go_on.wait(60)
        raise AssertionError("nobody asks for this any more")

    monkeypatch.setitem(app._work.questions, "locks", slowly)

    async def receive() -> dict[str, Any]:
        await asyncio.to_thread(has_begun.wait, 60)
        return {"type": "http.disconnect"}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    try:
        await asyncio.wait_for(app(scope_of("/api/locks"), receive, send), 60)
        assert not may_go_on.is_set()
        assert sent == []
    finally:
        may_go_on.set()


async def test_a_walk_through_the_history_holds_up_nobody(served, repo, monkeypatch):
    """Such as for the first digits of an id, which each commit may have."""
    may_go_on, has_begun = threading.Event(), threading.Event()
    chain = repo.engine.commits.chain
    ancestors = chain.ancestors

    def slowly(*arguments: Any) -> Any:
        has_begun.set()
        assert may_go_on.wait(20), "the others were held up"
        return ancestors(*arguments)

    monkeypatch.setattr(chain, "ancestors", slowly)
    head = repo.head()
    assert head is not None
    waiting, other = await Connection.open(served.port), await Connection.open(served.port)
    await waiting.ask(f"/at/{head.id[:8]}/scalar/c")
    assert await asyncio.to_thread(has_begun.wait, 20)
    for ref in ("main", "v1", "no-such-name"):  # none of which has the form of an id
        assert (await other.get(f"/at/{ref}/scalar/c"))[0] == (410 if "-" in ref else 200)
    may_go_on.set()
    assert (await waiting.head())[0] == 200
    await waiting.close()
    await other.close()


async def hostile_bytes(server: Running, sent: bytes) -> bytes:
    connection = await Connection.open(server.port)
    connection.writer.write(sent)
    try:
        connection.writer.write_eof()
        return await connection.reader.read()
    except OSError:  # the server has not read it to its end
        return b""
    finally:
        await connection.close()


@pytest.mark.long
async def test_bytes_that_are_no_request(repo: txstore.Repository, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret-content")
    with running(repo.url) as server:
        for sent in (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200,
            b"GET /at/main/../../secret HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET ../secret HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET http://evil.example/at/main/zarr.json HTTP/1.1\r\nHost: evil.example\r\n\r\n",
            b"GET /at/main/zarr.json HTTP/1.0\r\n\r\n",
            b"GET /at/main/zarr.json HTTP/1.1\r\n\r\n",
            b"POST /api/locks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 1000,
            b"GET /at/main/zarr.json HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * (1 << 20) + b"\r\n\r\n",
            b"\0" * 1000,
        ):
            answer = await hostile_bytes(server, sent)
            assert b"secret-content" not in answer
            assert not answer.startswith(b"HTTP/1.1 200")
        connection = await Connection.open(server.port)
        assert (await connection.get("/at/main/zarr.json"))[0] == 200
        await connection.close()


async def test_what_is_logged_steers_no_terminal(repo: txstore.Repository) -> None:
    with repo.begin() as mapping:
        mapping["three/x\x1b[31m"] = b"0123456789" * 1000
    [path] = [path for path in Path(repo.url, "commits/main").iterdir() if b"0123456789" * 10 in path.read_bytes()]
    content = path.read_bytes()
    path.write_bytes(content.replace(b"0123456789", b"012345678X", 1))
    try:
        with running(repo.url) as server:
            connection = await Connection.open(server.port)
            assert (await connection.get("/at/main/three/x%1b%5b31m"))[0] == 500
            await connection.close()
            server.process.send_signal(signal.SIGINT)
            assert server.process.stderr is not None
            logged = await asyncio.to_thread(server.process.stderr.read)
    finally:
        path.write_bytes(content)
    assert "CorruptionError" in logged
    assert "\x1b" not in logged

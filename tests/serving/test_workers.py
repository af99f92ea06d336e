"""Several processes behind one port: their end, the death of one, and what they have in common."""

import asyncio
import contextlib
import os
import pickle
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.serving.client import Connection, Running, running
from txstore.serving.entrance import listen

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

KEY = "/at/main/three/plain/c/0/0"


def workers(server: Running) -> set[int]:
    """Return the processes of the workers: the children that serve."""
    pid = server.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return {int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()}


def is_there(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def until(is_so: Any) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


async def all_answer(server: Running, *headers: str) -> None:
    """Ask on so many new connections that each worker has some."""
    for each in [await Connection.open(server.port) for _ in range(24)]:
        assert (await each.get(KEY, *headers))[0] == 200
        await each.close()


async def test_a_worker_that_is_killed(repo: txstore.Repository) -> None:
    """Its connections end; all others are answered, the new ones by the worker that takes its place."""
    with running(repo.url, "--no-token", "--workers", "2") as server:
        await all_answer(server)
        before = workers(server)
        assert len(before) == 2
        connections = [await Connection.open(server.port) for _ in range(16)]
        for each in connections:
            assert (await each.get(KEY))[0] == 200
        os.kill(min(before), signal.SIGKILL)
        ended = 0
        for each in connections:
            try:
                assert (await each.get(KEY))[0] == 200
            except (ConnectionError, EOFError):
                ended += 1
            await each.close()
        assert 0 < ended < 16
        await all_answer(server)
        await until(lambda: len(workers(server)) == 2)
        assert len(workers(server) & before) == 1
        await all_answer(server)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_all(repo: txstore.Repository, ending: signal.Signals) -> None:
    with running(repo.url, "--no-token", "--workers", "2") as server:
        listening = await Connection.open(server.port)
        await listening.ask("/api/events")
        assert (await listening.head())[0] == 200
        all_of_them = workers(server)
        server.process.send_signal(ending)
        assert await asyncio.to_thread(server.process.wait, 60) == 0
        assert not any(map(is_there, all_of_them))
        assert server.process.stderr.read() == ""
        await listening.close()


async def test_workers_end_with_the_process_that_has_started_them(repo: txstore.Repository) -> None:
    with running(repo.url, "--no-token", "--workers", "2") as server:
        await all_answer(server)
        all_of_them = workers(server)
        server.process.kill()
        await until(lambda: not any(map(is_there, all_of_them)))


async def test_each_knows_the_cookie_of_the_others(repo: txstore.Repository) -> None:
    with running(repo.url, "--workers", "2") as server:
        first = await Connection.open(server.port)
        status, about, _ = await first.get("/?" + server.address.partition("?")[2])
        assert status == 303
        # `client.py` writes all headers in small letters, which the cookie has anyway.
        await all_answer(server, f"Cookie: {about['set-cookie'].partition(';')[0]}")
        await first.close()


async def test_a_commit_is_seen_by_all(repo: txstore.Repository) -> None:
    with running(repo.url, "--no-token", "--workers", "2") as server:
        connections = [await Connection.open(server.port) for _ in range(16)]
        for each in connections:
            assert (await each.get("/at/main/new"))[0] == 404
        with repo.begin() as mapping:
            mapping["new"] = b"value"
        for each in connections:
            assert (await each.get("/at/main/new"))[::2] == (200, b"value")
            await each.close()


def test_a_port_is_shared_with_no_other_server() -> None:
    entrance = listen(workers=3)
    try:
        assert len({each.getsockname() for each in entrance.sockets}) == 1
        for count in (1, 2):
            with pytest.raises(OSError, match="Address already in use"):
                listen(port=entrance.port, workers=count)
    finally:
        for each in entrance.sockets:
            each.close()
    alone = listen()
    with pytest.raises(OSError, match="Address already in use"):
        listen(port=alone.port, workers=2)
    alone.sockets[0].close()


def test_what_a_worker_logs_has_no_secrets(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import logging

    from txstore.cli import output

    monkeypatch.setattr(output, "_given", ["serve", "s3://bucket", "--storage-options", '{"secret": "hunter22"}'])
    pickled = pickle.dumps(output.log_printer())
    monkeypatch.setattr(output, "_given", [])
    before = list(logging.getLogger().handlers)
    try:
        pickle.loads(pickled)()
        logging.getLogger("txstore.serving").error("with hunter22")
    finally:
        logging.getLogger().handlers[:] = before
    assert "hunter22" not in capsys.readouterr().err

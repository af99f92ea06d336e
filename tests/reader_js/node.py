"""Asks the reader in JavaScript, which runs in one process of Node, and serves directories to it."""

from __future__ import annotations

import asyncio
import hashlib
import html
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import HTMLResponse
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

import txstore

ROOT = Path(__file__).parents[2]
#: Seconds that an answer may take.
LIMIT = 60.0


class Node:
    """A process of Node that answers questions: see `answers.js`."""

    def __init__(self) -> None:
        executable = shutil.which("node")
        if executable is None:
            if os.environ.get("TXSTORE_REQUIRE_SERVERS"):
                pytest.fail("node is missing: install Node 18 or newer")
            pytest.skip("node is missing: install Node 18 or newer")
        script = str(Path(__file__).with_name("answers.js"))
        self._process = subprocess.Popen([executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.requests: dict[str, int] = {}  # of the last answer: their number, and bytes
        self.milliseconds = 0.0

    def ask(self, what: str, url: str | Path, **question: Any) -> Any:
        """Return an answer. Raises `Refused` with the name of the reader's error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        hung = threading.Timer(LIMIT, self._process.kill)
        hung.start()
        try:
            self._process.stdin.write(json.dumps({"what": what, "url": str(url), **question}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            hung.cancel()
        if not line:
            raise AssertionError(f"no answer within {LIMIT:.0f} s to {what} of {url}: {question}")
        answer = json.loads(line)
        self.requests, self.milliseconds = answer["requests"], answer["milliseconds"]
        if "error" in answer:
            raise Refused(answer["error"], answer["message"], answer["stack"])
        return answer["is"]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class Refused(Exception):
    """The reader raised an error."""

    def __init__(self, name: str, message: str, stack: str) -> None:
        super().__init__(f"{name}: {message}\n{stack}")
        self.name = name


@cache
def node() -> Node:
    return Node()


def content(snapshot: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return what the reader in JavaScript has to find: length and digest of each value, or an error's name."""
    return {key: _value(snapshot, key) for key in snapshot if key.startswith(prefix)}


def _value(snapshot: Mapping[str, Any], key: str) -> Any:
    try:
        value = bytes(snapshot[key])
    except txstore.CorruptionError:
        return "CorruptionError"
    return [len(value), hashlib.sha256(value).hexdigest()]


@contextmanager
def served(directory: Path, *, delay: float = 0.0) -> Iterator[str]:
    """Serve a directory with ranges and without lists, as buckets and most servers do, each answer after a delay.

    Pages of other hosts may read it.
    """
    files = StaticFiles(directory=directory)

    async def late(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(delay)
        await files(scope, receive, send)

    allowed = Middleware(CORSMiddleware, allow_origins=["*"], allow_headers=["Range"], expose_headers=["Content-Range"])
    with running(Starlette(routes=[Mount("/", late)], middleware=[allowed])) as base:
        yield base


@contextmanager
def hosted(directory: Path) -> Iterator[str]:
    """Serve a directory with ranges and with lists, as nginx does."""
    files = StaticFiles(directory=directory, html=True)

    async def host(scope: Any, receive: Any, send: Any) -> None:
        place = directory / scope["path"].strip("/")
        if not scope["path"].endswith("/") or not place.is_dir() or (place / "index.html").exists():
            await files(scope, receive, send)
            return
        names = [f"{each.name}/" if each.is_dir() else each.name for each in place.iterdir()]
        links = "".join(f'<a href="{quote(each)}">{html.escape(each)}</a>' for each in ["../", *names])
        await HTMLResponse(f"<title>Index of {html.escape(scope['path'])}</title>{links}")(scope, receive, send)

    with running(Starlette(routes=[Mount("/", host)])) as base:
        yield base


@contextmanager
def running(app: Any) -> Iterator[str]:
    """Let an ASGI application answer on a port of this machine."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off", access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def bucket(directory: Path) -> Iterator[str]:
    """Serve a directory as S3 does to those who may get objects and not list: what is missing is denied."""
    files = Starlette(routes=[Mount("/", StaticFiles(directory=directory))])

    async def denying(scope: Any, receive: Any, send: Any) -> None:
        async def sent(message: Any) -> None:
            await send({**message, "status": 403} if message.get("status") == 404 else message)

        await files(scope, receive, sent)

    with running(denying) as base:
        yield base


class Listing(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""


@contextmanager
def listed(directory: Path, handler: type[SimpleHTTPRequestHandler] = Listing) -> Iterator[str]:
    """Serve a directory with lists and without ranges: `python -m http.server`."""

    def handling(*arguments: Any) -> Any:
        return handler(*arguments, directory=str(directory))

    with ThreadingHTTPServer(("127.0.0.1", 0), handling) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


SERVERS: dict[str, Callable[[Path], Any]] = {"ranges": served, "lists": listed}
#: Those that list no names.
WITHOUT_LISTS: dict[str, Callable[[Path], Any]] = {"ranges": served, "bucket": bucket}

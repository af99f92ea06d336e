"""Asking an application as a server does, without one: what was sent is not made tidy on the way, as clients do."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    pieces: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def scope_of(
    path: str, method: str = "GET", headers: Mapping[str, str] | None = None, root_path: str = ""
) -> dict[str, Any]:
    where, _, query = path.partition("?")
    given = {"host": "localhost:8000", **(headers or {})}
    return {
        "type": "http",
        "method": method,
        "scheme": "http",
        "http_version": "1.1",
        "path": unquote(where, errors="replace"),
        "raw_path": where.encode("latin-1"),
        "root_path": root_path,
        "query_string": query.encode("latin-1"),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in given.items()],
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 40000),
    }


def ask(app: Any, path: str, **given: Any) -> Answer:
    return asyncio.run(asked(app, scope_of(path, **given)))


async def asked(app: Any, scope: dict[str, Any]) -> Answer:
    sent: list[dict[str, Any]] = []
    requests = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> dict[str, Any]:
        found = next(requests, None)
        return found or await asyncio.get_running_loop().create_future()  # then it stays until all is answered

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start, *rest = sent
    assert start["type"] == "http.response.start"
    assert all(message["type"] == "http.response.body" for message in rest)
    assert [message.get("more_body", False) for message in rest] == [True] * (len(rest) - 1) + [False]
    names = [name for name, _ in start["headers"]]
    assert len(names) - len({*names}) <= names.count(b"vary") - 1 or len(names) == len({*names})
    body = b"".join(message.get("body", b"") for message in rest)
    headers = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
    is_stream = headers.get("content-type") == "text/event-stream"
    if scope["method"] != "HEAD" and start["status"] not in (204, 304) and not is_stream:
        assert int(headers["content-length"]) == len(body)
    return Answer(start["status"], headers, body, len(rest))

"""Serves the files of the page: those in `page/`, and no other file."""

from __future__ import annotations

import hashlib
from pathlib import Path

from txstore.serving.answers import Failure, Headers, Scope, Send, answer, answer_compressed, headers_of
from txstore.serving.ranges import matches

_FOLDER = Path(__file__).with_name("page")
_KINDS = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".json": b"application/json",
    ".png": b"image/png",
    ".svg": b"image/svg+xml",
    ".txt": b"text/plain; charset=utf-8",
}

#: The page loads nothing from another host, and has no inline script, style or image. Local notebooks may embed it.
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; "
    b"frame-ancestors 'self' http://localhost:* http://127.0.0.1:* https://localhost:* vscode-webview:"
)


class StaticFiles:
    """Answers with files, by names that were found in the folder: a request never becomes a path."""

    async def __call__(self, scope: Scope, send: Send, name: str) -> None:
        there = {path.relative_to(_FOLDER).as_posix(): path for path in _FOLDER.rglob("*") if path.suffix in _KINDS}
        path = there.get(name)
        if path is None:
            raise Failure(404, "NotFound", f"the page has no file {name!r}")
        content = path.read_bytes()
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'.encode()
        headers: Headers = [
            (b"referrer-policy", b"no-referrer"),
            (b"cache-control", b"no-cache"),
            (b"etag", tag),
        ]
        if matches(headers_of(scope).get(b"if-none-match"), tag):
            await answer(scope, send, 304, headers, policy=_POLICY)
            return
        await answer_compressed(scope, send, content, _KINDS[path.suffix], headers, policy=_POLICY)

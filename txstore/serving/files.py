"""`/files/<path>`: the files of the repository, as a web server has them, for the page's reader.

It sends files that a reader needs, and lists of their names. Each request opens a file anew, and nothing of it is kept:
an erasure overwrites packs under their old names.

The files of the page, with those of its reader, are sent as they are, or put beside a repository.
"""

from __future__ import annotations

import hashlib
import html
import os
import posixpath
import stat
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from txstore.engine import Engine
from txstore.format import names
from txstore.interchange.concealing import concealed
from txstore.interchange.destinations import LocalDestination, open_destination
from txstore.interchange.places import Place
from txstore.serving.answers import (
    BYTES,
    FETCHED,
    PIECE,
    REVALIDATED,
    Failure,
    Headers,
    Receive,
    Scope,
    Send,
    answer,
    answer_compressed,
    answer_in_pieces,
    headers_of,
    is_current,
    select,
)
from txstore.storage.interface import GONE, OpenFile, Storage
from txstore.storage.request_threads import in_thread

#: Most remote files whose length is remembered.
_SIZES = 10_000


class RepositoryFiles:
    """Answers requests for files of a repository."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sizes: dict[str, int] = {}  # of commits and packs, which keep it

    async def __call__(self, scope: Scope, receive: Receive, send: Send, sent: bytes) -> None:
        """Answer a request; `sent` follows `/files/` in the URL. No name of a file is encoded there."""
        path = sent.decode("latin-1")
        try:
            if names.is_data(path):
                await self._send_file(scope, receive, send, path)
                return
            if path.endswith("/") and names.is_data_directory(path[:-1]):
                await self._send_list(scope, send, path[:-1])
                return
        except GONE:
            await in_thread(self._engine.commits.identity.check_there)
        raise Failure(404, "FileNotFound", f"the repository has no file {path[:100]!r} for readers")

    def _there(self) -> Storage:
        if not self._engine.exists():
            raise FileNotFoundError(self._engine.url)
        return self._engine.storage

    def _open(self, path: str, known: int | None) -> OpenFile:
        return self._there().open(path, known)

    async def _send_file(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        wanted = headers_of(scope).get(b"range", b"")
        is_part = scope["method"] == "GET" and wanted[:6] == b"bytes=" and wanted[6:7] != b"-"
        known = self._sizes.get(path) if is_part else None  # the end of a file tells its length anew
        file = await in_thread(self._open, path, known)
        try:
            if file.tag is None and path.startswith(("commits/", f"{names.PACKS}/")):
                if len(self._sizes) >= _SIZES:
                    self._sizes.clear()
                self._sizes[path] = file.size
            tag = None if file.tag is None else f'"{file.tag}"'.encode()
            selected = select(scope, tag, file.size, b"no-store" if tag is None else REVALIDATED)
            pieces = _pieces(file, selected.span, PIECE if self._engine.storage.ranges is None else FETCHED)
            await answer_in_pieces(scope, receive, send, selected, BYTES, pieces)
        finally:
            file.close()

    async def _send_list(self, scope: Scope, send: Send, directory: str) -> None:
        """Send a page as web servers make one of a directory."""
        page = await in_thread(self._list, directory)
        await answer_compressed(scope, send, page, b"text/html", [(b"cache-control", b"no-store")])

    def _list(self, directory: str) -> bytes:
        storage = self._there()
        storage.refuse_links(directory)
        found = storage.list(directory)
        if not found:
            self._engine.commits.identity.check_there()
        if directory == "commits":
            links = [f"{name}/" for name in found if names.is_branch_id(name)]
        else:
            links = [name for name in found if names.is_data(f"{directory}/{name}")]
        title = f"Index of /{directory}/"
        lines = [f"<!doctype html><title>{title}</title><h1>{title}</h1>"]
        lines += [f'<a href="{link}">{link}</a>' for link in ("../", *sorted(links))]
        return "\n".join(lines).encode("ascii")


async def _pieces(file: OpenFile, span: range, most: int) -> AsyncGenerator[bytes]:
    for start in range(span.start, span.stop, most):
        yield await in_thread(file.read, start, min(most, span.stop - start))


_PAGE = Path(__file__).with_name("page")
_READER = Path(__file__).parents[1] / "reader_js"
_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
#: The page loads nothing from another host, and has no inline script, style or image.
_POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; connect-src "
)
#: Of a page that a server sends. Local notebooks may embed it.
_SERVED_POLICY = (
    f"{_POLICY}'self'; frame-ancestors 'self' http://localhost:* http://127.0.0.1:* https://localhost:* vscode-webview:"
).encode()
#: These are for programs that import the reader by themselves.
_NOT_OF_PAGE = ("node.js",)


def served_page() -> dict[str, bytes]:
    """Return the files of the page that `send_page_file` sends."""
    return _files(('<meta name="txstore-repository" content="files">', '<meta name="txstore-server" content="yes">'))


async def send_page_file(files: Mapping[str, bytes], scope: Scope, send: Send, name: str) -> None:
    """Send a file of the page, by its name: a request never becomes a path."""
    content = files.get(name)
    if content is None:
        raise Failure(404, "NotFound", f"the page has no file {name!r}")
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'.encode()
    headers: Headers = [(b"referrer-policy", b"no-referrer"), (b"cache-control", REVALIDATED), (b"etag", tag)]
    if is_current(scope, tag):
        await answer(scope, send, 304, headers, policy=_SERVED_POLICY)
        return
    kind = _KINDS[posixpath.splitext(name)[1]].encode()
    await answer_compressed(scope, send, content, kind, headers, policy=_SERVED_POLICY)


def put_page(url: str | os.PathLike[str], *, options: Mapping[str, Any] | None = None, repository: str = ".") -> str:
    """Write `index.html` and the directory `page/` below a URL; return the URL of the former.

    Parameters
    ----------
    url : str or PathLike
        Where the page shall lie: a repository, or another directory. What an earlier version wrote there is replaced.
    options : dict, optional
        Options for its fsspec file system.
    repository : str
        Where the repository is: a URL, or relative to the page.

    Raises
    ------
    PublishError
        A directory of it is a link. A link in the place of a file is replaced.
    """
    # It may read repositories elsewhere.
    files = _files(
        (
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}*">',
            f'<meta name="txstore-repository" content="{html.escape(repository)}">',
        )
    )
    return concealed(lambda: _put_page(url, dict(options or {}), files), [url], options or {})


def _put_page(url: str | os.PathLike[str], options: dict[str, Any], files: dict[str, bytes]) -> str:
    place = Place(url, {name: value for name, value in options.items() if not name.startswith("txstore_")})
    if place.is_local:
        _put_on_disk(place.root, files)
    elif (kind_of := _told_kinds(place)) is None:
        target = open_destination(url, options, durable=False, at_most=0o777)  # which follows no link on a file server
        for name, content in files.items():
            target.write(name, content)
    else:
        for name, content in files.items():
            place.fs.pipe_file(place.path(name), content, **kind_of(_KINDS[posixpath.splitext(name)[1]]))
    return f"{place.url.rstrip('/')}/index.html"


def _put_on_disk(root: str, files: dict[str, bytes]) -> None:
    """Write files below a root where another user may have put links, of which none is followed."""
    at_most = stat.S_IMODE(os.stat(root).st_mode) | 0o700 if os.path.isdir(root) else 0o777
    target = LocalDestination(root, durable=False, at_most=at_most)
    with target.alone():
        for name, content in files.items():
            target.write(name, content)


def _files(tags: Sequence[str]) -> dict[str, bytes]:
    """Return the files by their names. The last one, `index.html`, asks for the others; tags are put into its head."""
    page = {path.relative_to(_PAGE).as_posix(): path for path in sorted(_PAGE.rglob("*")) if path.suffix in _KINDS}
    index = page.pop("index.html").read_text(encoding="utf-8")
    reader = {f"reader/{path.name}": path for path in sorted(_READER.glob("*.js")) if path.name not in _NOT_OF_PAGE}
    files = {f"page/{name}": path.read_bytes() for name, path in (page | reader).items()}
    # What the worker imports it asks for at once, and not for one after the other.
    answering = [*reader, *(name for name in page if name.startswith("answers/") and name != "answers/worker.js")]
    files["page/answers/worker.js"] += "".join(f'import "../{name}";\n' for name in answering).encode()
    return files | {"index.html": index.replace("</head>", "\n".join([*tags, "</head>"])).encode()}


def _told_kinds(place: Place) -> Callable[[str], dict[str, Any]] | None:
    """Return the arguments that tell an object store what a file is. None: its server knows that by the name."""
    protocols = (place.fs.protocol,) if isinstance(place.fs.protocol, str) else place.fs.protocol
    if "s3" in protocols:
        return lambda kind: {"ContentType": kind}
    if "gs" in protocols:
        return lambda kind: {"content_type": kind}
    if "abfs" in protocols:
        return lambda kind: {"content_settings": {"content_type": kind}}
    return None

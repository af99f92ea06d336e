"""The files of the page, with those of its reader: a server sends them, or they are put beside a repository."""

from __future__ import annotations

import hashlib
import html
import os
import posixpath
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from txstore.interchange.concealing import concealed
from txstore.interchange.destinations import LocalDestination, open_destination
from txstore.interchange.places import Place
from txstore.serving.answers import REVALIDATED, Failure, Headers, Scope, Send, answer, answer_compressed, is_current

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


class PageFiles:
    """Sends the files of the page, by their names: a request never becomes a path."""

    def __init__(self) -> None:
        metas = ('<meta name="txstore-repository" content="files">', '<meta name="txstore-server" content="yes">')
        self._files = _files(metas)

    async def __call__(self, scope: Scope, send: Send, name: str) -> None:
        content = self._files.get(name)
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

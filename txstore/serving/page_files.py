"""Puts the page where it reads a repository's files by itself: beside the repository, or in another directory."""

from __future__ import annotations

import html
import os
import posixpath
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from txstore.interchange.concealing import concealed
from txstore.interchange.destinations import LocalDestination
from txstore.interchange.places import Place

_PAGE = Path(__file__).with_name("page")
_READER = Path(__file__).parents[1] / "reader_js"
_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
#: As `static_files` has it for a page that a server sends; this one may read repositories elsewhere.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src *; "
    "base-uri 'none'; form-action 'none'"
)
#: These are for programs that import the reader by themselves.
_NOT_OF_PAGE = ("node.js",)


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
    return concealed(lambda: _put_page(url, dict(options or {}), dict(_files(repository))), [url], options or {})


def _put_page(url: str | os.PathLike[str], options: dict[str, Any], files: dict[str, bytes]) -> str:
    place = Place(url, {name: value for name, value in options.items() if not name.startswith("txstore_")})
    if place.is_local:
        _put_on_disk(place.root, files)
    else:
        kind_of = _told_kinds(place)
        if kind_of is None:
            for directory in {posixpath.dirname(name) for name in files}:
                place.fs.makedirs(place.path(directory), exist_ok=True)
        for name, content in files.items():
            told = {} if kind_of is None else kind_of(_KINDS[posixpath.splitext(name)[1]])
            place.fs.pipe_file(place.path(name), content, **told)
    return f"{place.url.rstrip('/')}/index.html"


def _put_on_disk(root: str, files: dict[str, bytes]) -> None:
    """Write files below a root where another user may have put links, of which none is followed."""
    at_most = stat.S_IMODE(os.stat(root).st_mode) | 0o700 if os.path.isdir(root) else 0o777
    target = LocalDestination(root, durable=False, at_most=at_most)
    with target.alone():
        for name, content in files.items():
            target.write(name, content)


def _files(repository: str) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents. The last one is that which asks for the others."""
    for path in sorted(_PAGE.rglob("*")):
        if path.suffix in _KINDS and path.name != "index.html":
            yield f"page/{path.relative_to(_PAGE).as_posix()}", path.read_bytes()
    reader = [path for path in sorted(_READER.glob("*.js")) if path.name not in _NOT_OF_PAGE]
    for path in reader:
        yield f"page/reader/{path.name}", path.read_bytes()
    index = (_PAGE / "index.html").read_text(encoding="utf-8")
    early = [f"page/reader/{path.name}" for path in reader]
    early += [f"page/without_server/{path.name}" for path in sorted((_PAGE / "without_server").glob("*.js"))]
    tags = [f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">']
    tags += [f'<meta name="txstore-repository" content="{html.escape(repository)}">']
    tags += [f'<link rel="modulepreload" href="{name}">' for name in early]
    yield "index.html", index.replace("</head>", "\n".join([*tags, "</head>"])).encode()


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

"""`/files/<path>`: the files of the repository, as a web server has them, for the page's reader.

It sends files that a reader needs, and lists of their names. Each request opens a file anew, and nothing of it is kept:
an erasure overwrites packs under their old names.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from txstore.engine import Engine
from txstore.format import names
from txstore.serving.answers import (
    BYTES,
    FETCHED,
    PIECE,
    REVALIDATED,
    Failure,
    Receive,
    Scope,
    Send,
    answer_compressed,
    answer_in_pieces,
    headers_of,
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

"""Shows the page in a notebook: a server in this process, and a frame with its page."""

from __future__ import annotations

import html

from txstore.serving.repository_protocol import Served
from txstore.serving.server import Server


class Shown:
    """A page that is being shown: `Repository.show`. A context manager; `close()` ends its server.

    `url` has the server's token in its path, because a browser sends no cookies for a page inside another page's frame,
    and a program that reads `{url}at/<commit>` has none. Any client that knows the URL can read the repository as long
    as the server runs.
    """

    def __init__(self, server: Server, height: int) -> None:
        self._server = server
        self._height = height
        self.url = server.base

    def close(self) -> None:
        self._server.close()

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Shown {self.url}>"

    def _repr_html_(self) -> str:
        where, frame_at = html.escape(self._server.address), html.escape(self.url)
        frame = (
            f'<iframe src="{frame_at}" width="100%" height="{self._height}" style="border: 1px solid #8888"></iframe>'
        )
        return f'{frame}<p><a href="{where}" target="_blank" rel="noopener">{where}</a></p>'


def show(repository: Served, height: int) -> Shown:
    server = Server(repository)
    server.start()
    return Shown(server, int(height))

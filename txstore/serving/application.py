"""The ASGI application: serves a page, the files of one repository for it, and plain Zarr. Read-only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, MutableMapping
from typing import Any

from txstore.serving.answers import (
    Failure,
    Headers,
    Receive,
    Scope,
    Send,
    answer_failure,
    answer_json,
    failure_of,
    path_of,
    until_gone,
)
from txstore.serving.events import Events, Work
from txstore.serving.files import RepositoryFiles, send_page_file, served_page
from txstore.serving.guard import Guard
from txstore.serving.plain_zarr import PlainZarr
from txstore.storage.request_threads import executor
from txstore.store import OpenedRepository

_log = logging.getLogger(__name__)

#: Questions answered at the same time, each in a thread; further ones wait without a thread.
_THREADS = 8
#: Seconds between two checks for idle snapshots.
_TIDYING = 10.0


def application(
    repository: OpenedRepository,
    *,
    token: str | None = None,
    hosts: Collection[str] = (),
    origins: Collection[str] = (),
) -> Application:
    """Return an ASGI application that shows a repository: `txstore serve` without its server.

    Parameters
    ----------
    repository : Repository
    token : str, optional
        The secret that a client must send: `?token=` once in a browser, `Authorization: Bearer`, or `/t/TOKEN` before
        the rest of the path. The browser keeps a cookie that only this process knows. None: any client may read.
    hosts : collection of str
        Names of this server that the `Host` of a request may have, besides "localhost" and addresses; "*": any.
    origins : collection of str
        Origins of other sites' pages that may read, such as "https://neuroglancer-demo.appspot.com"; "*": all.

    Examples
    --------
    >>> import tempfile, txstore
    >>> from txstore.serving import application
    >>> app = application(txstore.Repository(tempfile.mkdtemp() + "/data.tx"), hosts=["data.example.org"])
    """
    return Application(repository, Guard(token, hosts, origins))


class Application:
    """See `application`. It can be mounted below a path of another one."""

    def __init__(self, repository: OpenedRepository, guard: Guard) -> None:
        self.repository = repository
        self._guard = guard
        self._plain_zarr = PlainZarr(repository.engine)
        self.positions = self._plain_zarr.positions
        self._files = RepositoryFiles(repository.engine)
        self._events = Events(repository.engine)
        self._work = Work(repository, guard.origins)
        self._page = served_page()
        self._timer: tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle] | None = None

    def close(self) -> None:
        """End the endless event streams, so that the server can stop. Call it on the server's event loop."""
        self._events.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        sending = _Sending(send)
        try:
            headers = await self._guard.check(scope, sending)
            if headers is None:
                return
            sending.headers = headers
            await self._answer(scope, receive, sending)
        except Exception as error:
            failure = failure_of(error)
            if failure.status >= 500:
                place = scope["path"].removeprefix(scope.get("root_path") or "")  # which may have the token in it
                _log.error("%s %s", scope["method"], place, exc_info=error)
            if sending.has_begun:
                raise  # the connection ends: the client sees that the answer is incomplete
            await answer_failure(scope, sending, failure)
        finally:
            self._tidy_later()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = path_of(scope)[len(scope.get("root_path", "")) :]
        place, slash, rest = path.removeprefix(b"/").partition(b"/")
        if place == b"at" and slash:
            await self._plain_zarr(scope, receive, send, rest)
        elif place == b"files" and slash:
            await self._files(scope, receive, send, rest)
        elif path == b"/api/events":
            await self._events(scope, receive, send)
        elif place == b"api":
            await self._answer_question(scope, receive, send, rest.decode("latin-1"))
        elif path in (b"", b"/"):
            await send_page_file(self._page, scope, send, "index.html")
        elif place == b"page":
            await send_page_file(self._page, scope, send, path[1:].decode("latin-1"))
        else:
            raise _no_such_place()

    async def _answer_question(self, scope: Scope, receive: Receive, send: Send, question: str) -> None:
        """Answer a question in JSON. The call of a client that leaves before it begins never begins."""
        function = self._work.questions.get(question)
        if function is None:
            raise _no_such_place()
        asked: asyncio.Future[Any] = asyncio.get_running_loop().run_in_executor(executor("serving", _THREADS), function)
        gone = asyncio.ensure_future(until_gone(receive))
        try:
            await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            asked.cancel()
        if not asked.cancelled():
            await answer_json(scope, send, asked.result())

    def _tidy_later(self) -> None:
        """Release idle snapshots in some seconds, even if no other request comes."""
        loop = asyncio.get_running_loop()
        if self._timer is None or self._timer[0] is not loop:
            self._timer = loop, loop.call_later(_TIDYING, self._tidy)

    def _tidy(self) -> None:
        self._timer = None
        if self.positions.let_go():
            self._tidy_later()


class _Sending:
    """Gives an answer its headers, and knows whether it has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.headers: Headers = ()
        self.has_begun = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            message["headers"] = [*message["headers"], *self.headers]
        await self._send(message)


def _no_such_place() -> Failure:
    # Not 404: a Zarr reader with an outdated URL would take it for a missing chunk.
    told = "there is nothing here: the page is at /, files at /files/, plain Zarr at /at/, JSON at /api/repository"
    return Failure(400, "NotFound", told)


async def _live(receive: Receive, send: Send) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return

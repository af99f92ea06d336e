"""The ASGI application: serves a page, a JSON API and plain Zarr of one repository, read-only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, MutableMapping
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from starlette.routing import Route, Router

from txstore.serving.answers import (
    Failure,
    Headers,
    Receive,
    Reply,
    Scope,
    Send,
    answer,
    answer_failure,
    answer_json,
    failure_of,
    path_of,
    reply_to_failure,
    until_gone,
)
from txstore.serving.decoders import Stop
from txstore.serving.events import Events
from txstore.serving.guard import Guard
from txstore.serving.history import History
from txstore.serving.nodes import Nodes
from txstore.serving.pictures import Picture, Pictures
from txstore.serving.plain_zarr import PlainZarr
from txstore.serving.positions import Positions
from txstore.serving.repository_protocol import Served
from txstore.serving.static_files import StaticFiles
from txstore.serving.work import Work
from txstore.storage.request_threads import executor

_log = logging.getLogger(__name__)

#: What stands before the name of a commit in the paths of plain Zarr.
_AT = b"/at/"
#: Questions answered at the same time, each in a thread; further ones wait without a thread.
_THREADS = 8
#: Pictures made at the same time, in separate threads and processes: each may take much time and memory.
_PICTURES = 2
#: Seconds between two checks for idle snapshots and processes.
_TIDYING = 10.0


def application(
    repository: Served,
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

    def __init__(self, repository: Served, guard: Guard) -> None:
        self.repository = repository
        self._guard = guard
        self.positions = Positions(repository)
        self._plain_zarr = PlainZarr(repository, self.positions, has_token=guard.has_token)
        self._events = Events(repository)
        self._page = StaticFiles()
        self._timer: tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle] | None = None
        history = History(repository, self.positions, origins=guard.origins)
        nodes = Nodes(repository, self.positions)
        work = Work(repository, self.positions)
        self._pictures = Pictures(repository, self.positions)
        questions: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
            "/repository": (history.about, ()),
            "/commits": (history.commits, ("from", "before", "path", "limit")),
            "/commit/{ref}": (history.commit, ()),
            "/diff/{ref}/{other}": (history.diff, ()),
            "/tree/{ref}": (nodes.members, ("path", "after", "limit")),
            "/node/{ref}": (nodes.node, ("stored",)),
            "/node/{ref}/{path:path}": (nodes.node, ("stored",)),
            "/chunks/{ref}": (nodes.chunks, ("from", "shape")),
            "/chunks/{ref}/{path:path}": (nodes.chunks, ("from", "shape")),
            "/usage/{ref}": (work.usage, ()),
            "/transactions": (work.transactions, ()),
            "/locks": (work.locks, ()),
            "/feeds": (work.feeds, ()),
        }
        routes = [Route(f"/api{path}", _Question(*question)) for path, question in questions.items()]
        picture = _Question(self._pictures.read, ("selection",), is_long=True)
        self._router = Router(
            [*routes, Route("/api/preview/{ref}", picture), Route("/api/preview/{ref}/{path:path}", picture)],
            redirect_slashes=False,
            default=_no_such_place,
        )

    def close(self) -> None:
        """End the endless event streams, so that the server can stop. Call it on the server's event loop."""
        self._events.close()
        self._pictures.decoders.let_go(idle=0)

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

    def at_hand(self, scope: Scope) -> Reply | None:
        """Return the answer to a request for a value that is here without waiting; None: call the application.

        The answer is the one that the application sends: both ask the same guard and the same `PlainZarr`. Errors of
        the server are left to the application, which logs them.
        """
        headers: Headers = ()
        try:
            admitted = self._guard.admitted(scope)
            if admitted is None:
                return None
            headers = admitted
            path = path_of(scope)[len(scope.get("root_path", "")) :]
            made = self._plain_zarr.at_hand(scope, path[len(_AT) :]) if path.startswith(_AT) else None
        except Exception as error:  # noqa: BLE001 - the application meets it, too, and logs it
            failure = failure_of(error)
            made = reply_to_failure(scope, failure) if failure.status < 500 else None
        if made is None:
            return None
        self._tidy_later()
        return Reply(made.status, [*made.headers, *headers], made.body)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = path_of(scope)[len(scope.get("root_path", "")) :]
        if path.startswith(_AT):
            await self._plain_zarr(scope, receive, send, path[len(_AT) :])
        elif path == b"/api/events":
            await self._events(scope, receive, send)
        elif path.startswith(b"/api/"):
            await self._router(scope, receive, send)
        elif path in (b"", b"/"):
            await self._page(scope, send, "index.html")
        elif path.startswith(b"/page/"):
            await self._page(scope, send, path[len(b"/page/") :].decode("latin-1"))
        else:
            await _no_such_place()

    def _tidy_later(self) -> None:
        """Release idle snapshots and processes in some seconds, even if no other request comes."""
        loop = asyncio.get_running_loop()
        if self._timer is None or self._timer[0] is not loop:
            self._timer = loop, loop.call_later(_TIDYING, self._tidy)

    def _tidy(self) -> None:
        self._timer = None
        is_any_left = [self.positions.let_go(), self._pictures.decoders.let_go()]
        if any(is_any_left):
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


class _Question:
    """An endpoint of the API: calls a function in a thread, with the parts of the path and the named query arguments.

    A long question has separate threads, and its `stop` is set when the client disconnects.
    """

    def __init__(self, function: Callable[..., Any], names: Collection[str], *, is_long: bool = False) -> None:
        self._function = function
        self._names = names
        self._is_long = is_long

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope["path_params"])
        try:
            query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=32)
        except ValueError as error:
            raise Failure(400, "WrongArgument", f"the query is invalid: {error}") from error
        for name in self._names:
            if name in query:
                given[_ARGUMENTS.get(name, name)] = _number(query[name][-1]) if name == "limit" else query[name][-1]
        stop = Stop()
        if self._is_long:
            call, threads = partial(self._function, **given, stop=stop), executor("pictures", _PICTURES)
        else:
            call, threads = partial(self._function, **given), executor("serving", _THREADS)
        asked = asyncio.get_running_loop().run_in_executor(threads, call)
        gone = asyncio.ensure_future(until_gone(receive))
        try:
            await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not asked.done():
                asked.cancel()  # the client has left: a call that has not begun never begins
                stop.set()
        if asked.cancelled():
            return
        told = asked.result()
        if isinstance(told, Picture):
            headers = [(b"cache-control", b"no-cache"), *told.headers]
            await answer(scope, send, 200, headers, told.body, kind=b"application/octet-stream")
        else:
            await answer_json(scope, send, told)


#: Query arguments that have another name in Python.
_ARGUMENTS = {"from": "start"}


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise Failure(400, "WrongArgument", f"{text[:40]!r} is not a number")
    return int(text)


async def _no_such_place(*_: object) -> None:
    # Not 404: a Zarr reader with an outdated URL would take it for a missing chunk.
    raise Failure(
        400, "NotFound", "there is nothing here: the page is at /, plain Zarr at /at/, JSON at /api/repository"
    )


async def _live(receive: Receive, send: Send) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return

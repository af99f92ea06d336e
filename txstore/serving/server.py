"""Serves one repository: on a socket in this thread, in a separate one for a notebook, or in several processes."""

from __future__ import annotations

import asyncio
import contextlib
import html
import logging
import multiprocessing
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from txstore.serving.application import Application
from txstore.serving.entrance import Entrance, listen
from txstore.store import OpenedRepository

_log = logging.getLogger(__name__)

#: Seconds that the server waits for running answers when it stops; and seconds that it then waits for answers whose
#: connections it has closed.
_ENDING, _CLEANING = 5, 5
#: Seconds that the end of a server takes at most.
_LONGEST_END = _ENDING + _CLEANING + 1
#: Seconds before an idle connection is closed.
_KEPT = 30
#: Most connections, and most other open descriptors.
_DESCRIPTORS = 1 << 16
#: Bytes of memory that a server may always use; on a large machine all its processes may use half of the memory.
_MEMORY = 4 << 30
#: Seconds that the head of a request may take, from its first byte or from the connection; and its most bytes.
HEAD_SECONDS, HEAD_BYTES = 20.0, 1 << 16
#: Seconds before a worker is started in place of one that has died: it may die again at once.
_PAUSE = 0.5

_spawn = multiprocessing.get_context("spawn")


class BoundedConnection(HttpToolsProtocol):
    """A connection that ends if the head of a request takes too long, or is too long.

    uvicorn limits neither, nor the requests that follow before an answer is complete. These, and any other bytes that
    come meanwhile, such as an unread body, count with the head of the request.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._patience: asyncio.TimerHandle | None = None
        self._received = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._received += len(data)
        if self._received > HEAD_BYTES:
            self.transport.close()
        elif self.cycle is not None and not self.cycle.response_complete:
            self._give_time()
        elif self._patience is None:
            self._await_head()

    def on_response_complete(self) -> None:
        if not self.pipeline:
            self._received = 0
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._give_time()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._patience = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _give_time(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class Server(uvicorn.Server):
    """Serves a repository until a signal or `close` stops it.

    Parameters
    ----------
    entrance : Entrance, optional
        Where it listens, and who may ask. Default: a free port of this machine, and a token.
    number : int
        Which socket of the entrance is this server's.
    """

    def __init__(self, repository: OpenedRepository, entrance: Entrance | None = None, number: int = 0) -> None:
        entrance = listen() if entrance is None else entrance
        self.token, self.address, self.base, self.port = entrance.token, entrance.address, entrance.base, entrance.port
        self._application = Application(repository, entrance.guard())
        config = uvicorn.Config(
            self._application, http=BoundedConnection, log_config=None, log_level="warning", access_log=False,
            server_header=False, lifespan="off", timeout_keep_alive=_KEPT, proxy_headers=False, ws="none",
            timeout_graceful_shutdown=_ENDING + _CLEANING,
        )  # fmt: skip
        super().__init__(config)
        self._socket = entrance.sockets[number]
        self._workers = len(entrance.sockets)
        self._thread: threading.Thread | None = None

    def serve_here(self) -> None:
        """Serve in this thread until a signal comes. Assumes that the process does nothing else."""
        _allow_connections()
        _limit_memory(self._workers)
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn stops cleanly, then raises the signal again
            self.run(sockets=[self._socket])

    def start(self) -> None:
        """Serve in a separate thread until `close`."""
        self._thread = threading.Thread(
            target=self.run, kwargs={"sockets": [self._socket]}, name="txstore server", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self.should_exit = True
        if self._thread is not None:
            self._thread.join()
        self._socket.close()  # a server that has started has closed it already

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._application.close()  # otherwise uvicorn would wait for the event streams
        ending = asyncio.get_running_loop().call_later(_ENDING, self._hang_up)
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    def _hang_up(self) -> None:
        """Drop clients that have not read their answers: uvicorn would cancel these and log each as an error."""
        for connection in list(self.server_state.connections):
            assert isinstance(connection, BoundedConnection)
            connection.transport.abort()


def _allow_connections() -> None:
    """Raise the descriptor limit to its maximum: the usual limit is low for the sake of programs that use `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # the system may have a lower limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _limit_memory(workers: int) -> None:
    """Limit memory, so that a huge allocation fails, not the process: a document may take much more than its bytes.

    Mapped files don't count.
    """
    wanted = max(_MEMORY, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 // workers)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY or soft > wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


# --- several processes


class Workers:
    """One worker process for each socket of an entrance: a whole server, which shares nothing in memory.

    Each calls `begin` first, which can be pickled. This process serves nothing: it starts the workers, starts another
    one when one has died, and ends them. They are spawned, not forked: clients of object stores do not survive a fork.
    """

    def __init__(self, repository: OpenedRepository, entrance: Entrance, begin: Callable[[], None]) -> None:
        self._repository = repository
        self._entrance = entrance
        self._begin = begin
        self._workers: list[SpawnProcess] = []

    def serve_here(self) -> None:
        """Keep the workers running until a signal comes. Assumes that the process does nothing else."""
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            self._workers = [self._start(number) for number in range(len(self._entrance.sockets))]
            while True:
                wait([worker.sentinel for worker in self._workers])
                time.sleep(_PAUSE)
                for number, worker in enumerate(self._workers):
                    if worker.exitcode is not None:
                        _log.error("a worker has ended with status %d: another one starts", worker.exitcode)
                        self._workers[number] = self._start(number)
        except KeyboardInterrupt:
            pass  # either signal
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._end()

    def _start(self, number: int) -> SpawnProcess:
        given = self._repository, self._entrance, number, self._begin
        worker = _spawn.Process(target=_serve, args=given, daemon=True)
        with _without_interrupts():
            worker.start()
        return worker

    def _end(self) -> None:
        for worker in self._workers:
            worker.terminate()
        until = time.monotonic() + _LONGEST_END
        for worker in self._workers:
            worker.join(max(0, until - time.monotonic()))
            worker.kill()


def _serve(repository: OpenedRepository, entrance: Entrance, number: int, begin: Callable[[], None]) -> None:
    """Serve in a worker process, until it gets a signal or its parent has died."""
    begin()
    threading.Thread(target=_end_with_parent, name="txstore parent", daemon=True).start()
    Server(repository, entrance, number).serve_here()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Start processes in this block that get no Ctrl-C. A terminal sends it to all processes; the parent ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in a notebook


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


def show(repository: OpenedRepository, height: int) -> Shown:
    server = Server(repository)
    server.start()
    return Shown(server, int(height))

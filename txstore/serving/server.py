"""Serves one repository: runs the application on a listening socket, in this thread or a separate one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import threading

import uvicorn

from txstore.serving.application import Application
from txstore.serving.connections import BoundedConnection
from txstore.serving.entrance import Entrance, listen
from txstore.serving.fast_path import FastConnection
from txstore.serving.repository_protocol import Served

#: Seconds that the server waits for running answers when it stops; and seconds that it then waits for answers whose
#: connections it has closed.
_ENDING, _CLEANING = 5, 5
#: Seconds that the end of a server takes at most.
LONGEST_END = _ENDING + _CLEANING + 1
#: Seconds before an idle connection is closed.
_KEPT = 30
#: Most connections, and most other open descriptors.
_DESCRIPTORS = 1 << 16
#: Bytes of memory that a server may always use; on a large machine all its processes may use half of the memory.
_MEMORY = 4 << 30


class Server(uvicorn.Server):
    """Serves a repository until a signal or `close` stops it.

    Parameters
    ----------
    entrance : Entrance, optional
        Where it listens, and who may ask. Default: a free port of this machine, and a token.
    number : int
        Which socket of the entrance is this server's.
    """

    def __init__(self, repository: Served, entrance: Entrance | None = None, number: int = 0) -> None:
        entrance = listen() if entrance is None else entrance
        self.token, self.address, self.base, self.port = entrance.token, entrance.address, entrance.base, entrance.port
        self._application = Application(repository, entrance.guard())
        config = uvicorn.Config(
            self._application, http=FastConnection, log_config=None, log_level="warning", access_log=False,
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
    """Limit memory, so that a huge allocation fails, not the process: a small chunk may decode to any size.

    Mapped files don't count.
    """
    wanted = max(_MEMORY, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 // workers)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY or soft > wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))

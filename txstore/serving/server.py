"""Serves one repository: runs the application on a local socket, in this thread or a separate one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import secrets
import socket
import threading
from collections.abc import Collection

import uvicorn

from txstore.serving.application import Application, application
from txstore.serving.connections import BoundedConnection
from txstore.serving.fast_path import FastConnection
from txstore.serving.repository_protocol import Served

#: Seconds that the server waits for running answers when it stops; and seconds that it then waits for answers whose
#: connections it has closed.
_ENDING, _CLEANING = 5, 5
#: Seconds before an idle connection is closed; most connections that wait to be accepted.
_KEPT, _BACKLOG = 30, 2048
#: Most connections, and most other open descriptors.
_DESCRIPTORS = 1 << 16
#: Bytes of memory that the server may always use; on a large machine it may use half of the memory.
_MEMORY = 4 << 30

_ALL = ("0.0.0.0", "::")


class Server(uvicorn.Server):
    """Serves a repository until a signal or `close` stops it.

    Parameters
    ----------
    host : str
        The name or address that it listens on.
    port : int
        0: any free port.
    has_token : bool
        Whether requests need a token, which the server makes. Local requests too: other users of the machine can reach
        the port.
    """

    def __init__(
        self,
        repository: Served,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        has_token: bool = True,
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
    ) -> None:
        self.host = host
        self.token = secrets.token_urlsafe(24) if has_token else None
        called = [host, *([socket.gethostname()] if host in _ALL else []), *hosts]
        self._application: Application = application(repository, token=self.token, hosts=called, origins=origins)
        config = uvicorn.Config(
            self._application, http=FastConnection, log_config=None, log_level="warning", access_log=False,
            server_header=False, lifespan="off", timeout_keep_alive=_KEPT, proxy_headers=False, ws="none",
            timeout_graceful_shutdown=_ENDING + _CLEANING,
        )  # fmt: skip
        super().__init__(config)
        self._socket = _listening(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """The address of the page for a browser: with the token, if any, which the server replaces by a cookie."""
        return self._root if self.token is None else f"{self._root}?token={self.token}"

    @property
    def base(self) -> str:
        """The base URL, with the token, if any, in the path: programs read plain Zarr below `at/`."""
        return self._root if self.token is None else f"{self._root}t/{self.token}/"

    @property
    def _root(self) -> str:
        named = f"[{self.host}]" if ":" in self.host else self.host
        shown = socket.gethostname() if self.host in _ALL else named
        return f"http://{shown}:{self.port}/"

    def serve_here(self) -> None:
        """Serve in this thread until a signal comes. Assumes that the process does nothing else."""
        _allow_connections()
        _limit_memory()
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


def _limit_memory() -> None:
    """Limit memory, so that a huge allocation fails, not the process: a small chunk may decode to any size.

    Mapped files don't count.
    """
    wanted = max(_MEMORY, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY or soft > wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def _listening(host: str, port: int) -> socket.socket:
    """Return a listening socket. Connections wait on it, so the address can be printed before the server runs."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(_BACKLOG)
        found.setblocking(False)
    except OSError as error:
        found.close()
        told = f"{host}, port {port}: {error.strerror}; port 0 picks a free port"
        raise type(error)(error.errno, told) from error
    return found

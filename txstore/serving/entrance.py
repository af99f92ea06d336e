"""Where a server listens, and who may ask: what all its processes share.

Each worker process has its own listening socket for the same port, and the system spreads new connections over these
sockets. The process that starts the workers keeps all sockets. So the connections of a worker that has died wait for
the next one.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Collection
from dataclasses import dataclass

from txstore.serving.guard import Guard

#: Most connections that wait to be accepted.
_BACKLOG = 2048
_ALL = ("0.0.0.0", "::")


@dataclass(frozen=True)
class Entrance:
    """A port that is listened on, and the rules for requests. A process that is spawned can be given it."""

    host: str
    sockets: tuple[socket.socket, ...]
    token: str | None
    hosts: Collection[str]
    origins: Collection[str]
    secret: bytes

    @property
    def port(self) -> int:
        port: int = self.sockets[0].getsockname()[1]
        return port

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

    def guard(self) -> Guard:
        return Guard(self.token, self.hosts, self.origins, self.secret)


def listen(
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    has_token: bool = True,
    hosts: Collection[str] = (),
    origins: Collection[str] = (),
    workers: int = 1,
) -> Entrance:
    """Listen. Connections wait from now on, so the address can be printed before the server runs. Raises `OSError`.

    Parameters
    ----------
    host : str
        The name or address to listen on.
    port : int
        0: any free port.
    has_token : bool
        Whether requests need a token, which is made here. Local requests too: other users of the machine can reach
        the port.
    hosts, origins : collection of str
        See `Guard`. The names of the machine are added.
    workers : int
        The number of sockets, one for each worker process.
    """
    first = _bound(host, port)
    sockets = [first]
    try:
        if workers > 1:
            # Only after `bind`: a port on which another server listens must stay an error.
            first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            port = first.getsockname()[1]
            sockets += [_bound(host, port, is_shared=True) for _ in range(workers - 1)]
        for each in sockets:
            each.listen(_BACKLOG)
    except OSError as error:
        for each in sockets:
            each.close()
        raise _named(error, host, port) from error
    called = [host, *([socket.gethostname()] if host in _ALL else []), *hosts]
    token = secrets.token_urlsafe(24) if has_token else None
    return Entrance(host, tuple(sockets), token, tuple(called), tuple(origins), secrets.token_bytes(32))


def _bound(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        found.bind((host, port))
        found.setblocking(False)
    except OSError as error:
        found.close()
        raise _named(error, host, port) from error
    return found


def _named(error: OSError, host: str, port: int) -> OSError:
    told = f"{host}, port {port}: {error.strerror}; port 0 picks a free port"
    return type(error)(error.errno, told)

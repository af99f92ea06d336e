"""A proxy on loopback in front of an HTTP server, which counts requests and, by a seed, does what networks do.

    with Proxy(upstream_port) as proxy:
        proxy.faults = Faults(seed=1, lost=0.3)
        open_objects("s3://bucket/data.tx", {..., "endpoint_url": proxy.url})

It runs in threads of this process; clients in other processes reach it by its port.
"""

from __future__ import annotations

import http.client
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
CONFLICT = b"<Error><Code>ConditionalRequestConflict</Code><Message>Another one is under way.</Message></Error>"
FULL = b"<Error><Code>QuotaExceeded</Code><BucketName>b</BucketName></Error>"
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
# Headers that are not passed on, since they say how the message is sent.
OWN = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "expect", "content-length"}


class Request(NamedTuple):
    method: str
    path: str  # with the query
    status: int
    lost: bool  # the server has answered, and the client was not told
    length: int  # of the body that was sent
    headers: dict[str, str]  # of the request, lower case


@dataclass
class Faults:
    """Shares of the requests that something happens to, each drawn by the seed, in the order in which they come."""

    seed: int = 0
    lost: float = 0.0  # the server does it, and the answer does not arrive
    busy: float = 0.0  # 503 SlowDown, and the server does nothing
    unnamed: float = 0.0  # 400 without a word, and the server does nothing: as of Ceph's gateway when it starts
    conflict: float = 0.0  # 409 ConditionalRequestConflict, and the server does nothing
    kept: float = 0.0  # as if lost on its way, until `Proxy.send_kept`
    reset: float = 0.0  # the connection is reset, and the server has heard nothing
    delayed: float = 0.0  # before the server hears of it: it may do so when nobody waits any more
    delay: float = 0.1  # seconds
    methods: frozenset[str] = frozenset({"PUT"})
    within: str = ""  # what a path has to hold, as does that of a version "/commits/"
    first: int | None = None  # only so many faults in all
    refusal: tuple[int, bytes] | None = None  # the answer to every request, whatever its method
    refused: frozenset[str] = frozenset()  # methods that are answered with 403, as if there were no permission
    is_full: Callable[[], bool] | None = None  # 403 QuotaExceeded to whoever writes then, one after the other
    drops: dict[str, str] = field(default_factory=dict)  # headers that do not arrive: lower case
    hold_answer: Callable[[str, str], object] | None = None  # the same, before the client hears of the answer
    hold: Callable[[str, str], object] | None = None  # (method, path): returns when the server may hear of a request

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.lock = threading.Lock()
        self.writing = threading.Lock()
        self.left = self.first

    def draw(self, method: str, path: str = "") -> str:
        """Return what happens to the next request: "", or the name of a fault."""
        if method not in self.methods or self.within not in path:
            return ""
        with self.lock:
            number = self.random.random()
            for name in ("lost", "busy", "unnamed", "conflict", "reset", "kept", "delayed"):
                number -= getattr(self, name)
                if number < 0:
                    if self.left is not None:
                        if self.left == 0:
                            return ""
                        self.left -= 1
                    return name
        return ""


class Proxy:
    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.faults = Faults()
        self.log: list[Request] = []
        self.kept: list[tuple[str, str, dict[str, str], bytes]] = []
        self.server = _Server(("127.0.0.1", 0), _Handler)
        self.server.proxy = self
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Proxy:
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)
        self.server.close_clients()

    def send_kept(self) -> list[int]:
        """Let the server have what was kept; return the statuses of its answers."""
        statuses = []
        for method, path, headers, body in self.kept:
            upstream = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
            passed = {name: value for name, value in headers.items() if name.lower() not in OWN}
            upstream.request(method, path, body, passed)
            statuses.append(upstream.getresponse().status)
            upstream.close()
        self.kept.clear()
        return statuses

    def counts(self) -> dict[str, int]:
        """Return how many requests of each kind there were: reads, writes, lists, deletes."""
        counts = {"reads": 0, "writes": 0, "lists": 0, "deletes": 0}
        for request in list(self.log):
            counts[kind_of(request)] += 1
        return counts


def kind_of(request: Request) -> str:
    query = request.path.partition("?")[2]
    if request.method in ("GET", "HEAD"):
        return "lists" if "list-type=" in query or "comp=list" in query or "prefix=" in query else "reads"
    if request.method == "DELETE" or query.startswith("delete"):
        return "deletes"
    return "writes"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    proxy: Proxy

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.clients: set[socket.socket] = set()

    def process_request(self, request: Any, address: Any) -> None:
        self.clients.add(request)
        super().process_request(request, address)

    def shutdown_request(self, request: Any) -> None:
        self.clients.discard(request)
        super().shutdown_request(request)

    def close_clients(self) -> None:
        for client in list(self.clients):
            try:
                client.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def handle_error(self, request: Any, address: Any) -> None:
        pass  # a client that has gone away


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else head and body of an answer are 40 ms apart
    wbufsize = 1 << 16
    server: _Server
    upstream: http.client.HTTPConnection | None = None

    def log_message(self, *arguments: Any) -> None:
        pass

    def handle_expect_100(self) -> bool:
        proceed = super().handle_expect_100()
        self.wfile.flush()
        return proceed

    def finish(self) -> None:
        if self.upstream is not None:
            self.upstream.close()
        super().finish()

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            found = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return found
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def serve(self) -> None:
        faults = self.server.proxy.faults
        body = self.body()
        fault = faults.draw(self.command, self.path)
        if fault == "kept":
            self.server.proxy.kept.append((self.command, self.path, dict(self.headers.items()), body))
        if fault in ("reset", "kept"):
            self.reset()
        elif faults.refusal is not None:
            self.note(body, faults.refusal[0])
            self.answer(*faults.refusal)
        elif self.command in faults.refused and faults.within in self.path:
            self.note(body, 403)
            self.answer(403, DENIED)
        elif faults.is_full is not None and self.command == "PUT":
            self.write_if_there_is_room(body, faults.is_full, faults.writing)
        elif fault == "busy":
            self.note(body, 503)
            self.answer(503, SLOW_DOWN)
        elif fault == "unnamed":
            self.note(body, 400)
            self.answer(400, b"")
        elif fault == "conflict":
            self.note(body, 409)
            self.answer(409, CONFLICT)
        else:
            if fault == "delayed":
                time.sleep(faults.delay)
            if faults.hold is not None:
                faults.hold(self.command, self.path)
            answer, content = self.forward(body)
            self.note(body, answer.status, lost=fault == "lost")
            if faults.hold_answer is not None:
                faults.hold_answer(self.command, self.path)
            if fault == "lost":
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
            else:
                self.pass_on(answer, content)

    def write_if_there_is_room(self, body: bytes, is_full: Callable[[], bool], writing: threading.Lock) -> None:
        """As Ceph's gateway: who writes over what is there is refused, too, and before any condition is looked at."""
        with writing:
            if is_full():
                self.note(body, 403)
                self.answer(403, FULL)
            else:
                answer, content = self.forward(body)
                self.note(body, answer.status)
                self.pass_on(answer, content)

    def reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def note(self, body: bytes, status: int, *, lost: bool = False) -> None:
        """Before the answer, so that whoever has it finds its request in the log."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.proxy.log.append(Request(self.command, self.path, status, lost, len(body), headers))

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = serve

    def forward(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        proxy = self.server.proxy
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in OWN and name.lower() not in proxy.faults.drops
        }
        if self.upstream is None:
            self.upstream = http.client.HTTPConnection("127.0.0.1", proxy.upstream, timeout=60)
        try:
            return self.ask(self.upstream, body, headers)
        except (http.client.RemoteDisconnected, ConnectionError):  # an idle connection that the server has closed
            self.upstream.close()
            self.upstream = http.client.HTTPConnection("127.0.0.1", proxy.upstream, timeout=60)
            return self.ask(self.upstream, body, headers)

    def ask(
        self, upstream: http.client.HTTPConnection, body: bytes, headers: dict[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        has_body = bool(body) or self.command in ("PUT", "POST")
        upstream.request(self.command, self.path, body if has_body else None, headers)
        answer = upstream.getresponse()
        return answer, answer.read()

    def pass_on(self, answer: http.client.HTTPResponse, content: bytes) -> None:
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in OWN:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        if answer.status not in (204, 304):
            self.send_header("Content-Length", length or "0")
        self.end_headers()
        self.wfile.write(content)

    def answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

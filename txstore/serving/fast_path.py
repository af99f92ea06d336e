"""Answers requests for values before the application does: no task, no messages, one write from the mapped file.

The connection looks at the bytes that have come. If they are exactly one request of the usual form, and its answer is
at hand, it sends this answer. All other bytes go to uvicorn, which never sees the requests that are answered here. The
answers are those of the application (`Application.at_hand`).
"""

from __future__ import annotations

import asyncio
import os
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from txstore.serving.answers import Headers, Reply, Scope
from txstore.serving.application import Application
from txstore.serving.connections import BoundedConnection

#: Most bytes of a request that is answered here.
_REQUEST_BYTES = 1 << 13
_END = b"\r\n\r\n"
_BLANK = b"\r\n"
#: The first line of a request for plain Zarr, with the token or without. A path has no query here.
_LINE = re.compile(rb"(GET|HEAD) (/(?:at|t)/[A-Za-z0-9._~%!$&'()*+,;=:@/-]*) HTTP/1\.1\r\n")
_HEADER = re.compile(rb"([A-Za-z0-9-]+): ([!-~](?:[ -~]*[!-~])?)")
#: Requests with one of these are uvicorn's: they may have a body, or end the connection.
_LEFT = {b"content-length", b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer", b"keep-alive"}


class FastConnection(BoundedConnection):
    """A connection that answers requests for values by itself if it can do so at once."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._is_inside = False  # whether uvicorn's parser has the beginning of a request, and not its end
        # Clients repeat the headers of their last request.
        self._block = b""
        self._headers: Headers | None = None
        self._answered = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._descriptor: int = transport.get_extra_info("socket").fileno()

    def on_message_begin(self) -> None:
        self._is_inside = True
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._is_inside = False
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        scope = self._request(data) if self._is_idle() else None
        made = self.app.at_hand(scope) if scope is not None and isinstance(self.app, Application) else None
        if made is None:
            super().data_received(data)
        else:
            self._has_head()
            self._send(made)
            self._answered = self.loop.time()
            if self.timeout_keep_alive_task is None:
                self._close_later(self.timeout_keep_alive)

    def _is_idle(self) -> bool:
        """Tell whether nothing is under way: no request, no answer, no bytes that wait to be sent."""
        return (
            not self._is_inside
            and (self.cycle is None or self.cycle.response_complete)
            and not self.transport.is_closing()
            and not self.transport.get_write_buffer_size()
        )

    def timeout_keep_alive_handler(self) -> None:
        # A timer for each answer would take as long as its look-up: one timer waits for the last answer.
        left = self._answered + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._close_later(left)
        else:
            super().timeout_keep_alive_handler()

    def _close_later(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def _request(self, data: bytes) -> Scope | None:
        """Return the request that some bytes are, as an ASGI server tells it. None: it is not of the usual form."""
        line = _LINE.match(data)
        if line is None or len(data) > _REQUEST_BYTES or data.find(_END) != len(data) - len(_END):
            return None
        block = data[line.end() :]
        if block != self._block:
            self._block, self._headers = block, _parsed(block)
        if self._headers is None:
            return None
        return {
            "type": "http", "method": line[1].decode(), "scheme": self.scheme, "server": self.server, "root_path": "",
            "raw_path": line[2], "query_string": b"", "headers": self._headers,
        }  # fmt: skip

    def _send(self, made: Reply) -> None:
        """Write an answer to the socket. What the socket does not take at once is copied, and waits in the transport.

        A view must not wait there: an erasure may overwrite the file after the checksum was compared.
        """
        lines = map(b": ".join, (*self.server_state.default_headers, *made.headers))
        head = STATUS_LINE[made.status] + b"\r\n".join([*lines, _BLANK])
        try:
            sent = os.writev(self._descriptor, (head, made.body))
        except OSError:  # the socket is full; or the connection is broken, which the transport finds out
            sent = 0
        if sent < len(head) + len(made.body):
            self.transport.write(b"".join((head, made.body))[sent:])


def _parsed(block: bytes) -> Headers | None:
    """Return the headers of a request; None if uvicorn has to look at them."""
    found: dict[bytes, bytes] = {}
    for line in block.removesuffix(_END).split(b"\r\n"):
        header = _HEADER.fullmatch(line)
        name = b"" if header is None else header[1].lower()
        if header is None or name in found or name in _LEFT:
            return None
        if name == b"connection" and header[2].lower() != b"keep-alive":
            return None
        found[name] = header[2]
    return list(found.items())

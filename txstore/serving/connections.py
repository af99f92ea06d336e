"""Connections that the server closes if no complete request arrives, so that idle clients can't hold them."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Seconds that the head of a request may take, from its first byte or from the connection; and its most bytes.
HEAD_SECONDS, HEAD_BYTES = 20.0, 1 << 16


class BoundedConnection(HttpToolsProtocol):
    """A connection that ends if the head of a request takes too long, or is too long.

    uvicorn limits neither. Bytes that follow an answer, such as the rest of an unread body, count as the head of the
    next request.
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
        if self.cycle is not None and not self.cycle.response_complete:
            self._has_head()
            return
        self._received += len(data)
        if self._received > HEAD_BYTES:
            self.transport.close()
        elif self._patience is None:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_head()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._patience = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _has_head(self) -> None:
        self._received = 0
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

"""Connections of the server, which are closed if no whole request comes: no client holds one for nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Seconds that the head of a request may take from its first byte on, or from the connection on; and its bytes.
HEAD_SECONDS, HEAD_BYTES = 20.0, 1 << 16


class BoundedConnection(HttpToolsProtocol):
    """A connection that ends if the head of a request takes too long, or is too long.

    uvicorn waits for both without an end. What comes behind an answer, such as the unread rest of a body,
    counts as the head of the next request.
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

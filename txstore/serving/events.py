"""Sends new commits to all listening pages as server-sent events. One poll of the repository serves all listeners."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial
from ipaddress import IPv4Address, ip_address
from itertools import islice, takewhile
from typing import Any

from txstore.commit import MAIN, Stored
from txstore.engine import Engine
from txstore.errors import TxStoreError
from txstore.serving.answers import PROTECTED, Failure, Receive, Scope, Send, encoded, until_gone
from txstore.storage.request_threads import in_thread

_log = logging.getLogger(__name__)

#: Seconds between two keep-alives.
_HEARTBEAT = 15.0
#: Most listeners: of all clients, and of one; most unsent events of a listener: one that has more must reconnect.
_LISTENERS, _OF_ONE_CLIENT, _BEHIND = 256, 16, 1024
#: Length of the network part of an IPv6 address: one machine may have every address in its network.
_NETWORK_BITS = 64
#: Most commits of a branch that are sent one by one: if there are more, the page asks for the list.
_TOLD = 100

_END = None
_LATER = [(b"retry-after", b"30")]


class Events:
    """The listeners, and the task that polls for commits while there are any. For one event loop at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pause = engine.storage.capabilities.look_again
        self._listeners: set[asyncio.Queue[bytes | None]] = set()
        self._clients: Counter[str] = Counter()  # number of streams of each client, including starting ones
        self._looking: asyncio.Task[None] | None = None
        self._heads: dict[str, Stored] = {}
        self._is_closed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = client_of(scope)
        if self._clients[client] >= _OF_ONE_CLIENT:
            told = f"this client already has {_OF_ONE_CLIENT} event streams, which is the most: close a page"
            raise Failure(429, "TooMany", told, _LATER)
        if self._clients.total() >= _LISTENERS:
            told = f"{_LISTENERS} pages already listen for events, which is the most: try again later"
            raise Failure(503, "TooMany", told, _LATER)
        self._clients[client] += 1
        try:
            await self._stream(scope, receive, send)
        finally:
            self._clients -= Counter([client])  # drops a client that has none left

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = await in_thread(self._find)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(_BEHIND)
        self._begin(queue, first)
        gone = asyncio.create_task(until_gone(receive))
        try:
            about = [*PROTECTED, (b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": about})
            if scope["method"] != "HEAD" and not self._is_closed:
                # Not `first`: while it was found, others may have been told of commits that came after it.
                await self._tell(queue, gone, send, _event("heads", _ids(self._heads)))
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            self._end(queue)

    async def _tell(
        self, queue: asyncio.Queue[bytes | None], gone: asyncio.Task[None], send: Send, first: bytes
    ) -> None:
        piece: bytes | None = first
        while piece is not _END:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            following = asyncio.ensure_future(queue.get())
            done, _ = await asyncio.wait({following, gone}, timeout=_HEARTBEAT, return_when=asyncio.FIRST_COMPLETED)
            if gone in done:
                following.cancel()
                return
            if following in done:
                piece = following.result()
            else:
                following.cancel()
                piece = b": still here\n\n"

    def close(self) -> None:
        """End all streams, also those about to begin, so that the server can stop."""
        self._is_closed = True
        for queue in list(self._listeners):
            _put(queue, _END)

    def _begin(self, queue: asyncio.Queue[bytes | None], heads: dict[str, Stored]) -> None:
        if not self._listeners:
            self._heads = heads
        self._listeners.add(queue)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())

    def _end(self, queue: asyncio.Queue[bytes | None]) -> None:
        self._listeners.discard(queue)
        if not self._listeners and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._pause)
            try:
                told, heads = await in_thread(self._new)
            except (TxStoreError, OSError) as error:
                _log.warning("looking for commits: %s", error)
                continue
            self._heads = heads
            for event in told:
                for queue in list(self._listeners):
                    _put(queue, event)

    def _find(self) -> dict[str, Stored]:
        """Return the newest commit of each branch, by name."""
        if not self._engine.exists():
            return {}
        commits = self._engine.commits
        branches = {MAIN: MAIN} | {name: record.id for name, record in commits.branches.all().items()}
        heads = {name: commits.head(branch) for name, branch in branches.items()}
        return {name: stored for name, stored in heads.items() if stored is not None}

    def _new(self) -> tuple[list[bytes], dict[str, Stored]]:
        """Return events for new commits, and the heads."""
        commits = self._engine.commits
        heads = self._find()
        known = {stored.header.id for stored in self._heads.values()}
        told = []
        for name, head in heads.items():
            own = commits.branches.id_of(name)
            line = islice(commits.chain.ancestors(head), _TOLD)
            # The commits before the start of a new branch were sent for the branch that they belong to.
            new = [*takewhile(partial(_is_new, branch=own, known=known), line)]
            ids = [stored.header.id.hex() for stored in reversed(new)]
            told += [_event("commit", {"id": each, "branch": name}, each) for each in ids]
        if _ids(heads) != _ids(self._heads):
            told.append(_event("heads", _ids(heads)))
        return told, heads


def client_of(scope: Scope) -> str:
    """Return the client's address, or for IPv6 its network. Empty if the server does not pass it on."""
    host, *_ = scope.get("client") or ("",)
    try:
        address = ip_address(host)
    except ValueError:
        return ""
    if isinstance(address, IPv4Address):
        return str(address)
    mapped = address.ipv4_mapped
    return str(int(address) >> (128 - _NETWORK_BITS)) if mapped is None else str(mapped)


def _is_new(stored: Stored, branch: str, known: set[bytes]) -> bool:
    return stored.header.branch == branch and stored.header.id not in known


def _ids(heads: dict[str, Stored]) -> dict[str, str]:
    return {name: stored.header.id.hex() for name, stored in heads.items()}


def _event(kind: str, told: Any, event_id: str = "") -> bytes:
    about = f"id: {event_id}\n" if event_id else ""
    return f"event: {kind}\n{about}data: ".encode() + encoded(told) + b"\n\n"


def _put(queue: asyncio.Queue[bytes | None], event: bytes | None) -> None:
    try:
        queue.put_nowait(event)
    except asyncio.QueueFull:  # the client does not read: its stream ends, and the page reconnects
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(_END)

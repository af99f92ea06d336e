"""Sends new commits to all listening pages as server-sent events. One poll of the repository serves all listeners.

Answers in JSON what the files of a repository don't say: open transactions, holders of locks, how far feeds are.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial
from ipaddress import IPv4Address, ip_address
from itertools import islice, takewhile
from typing import Any

from txstore import processes
from txstore.commit import MAIN, Stored
from txstore.engine import Engine
from txstore.errors import LocksUnavailableError, TxStoreError
from txstore.feeds.named_feeds import Feeds
from txstore.format import names
from txstore.format.documents import describe
from txstore.format.keys import document_key
from txstore.format.mapping import Hierarchy
from txstore.format.tree import members
from txstore.locks.lock_file import Holder, Holders, find_holders, whose_turn
from txstore.serving.answers import PROTECTED, Failure, Receive, Scope, Send, encoded, until_gone
from txstore.storage.request_threads import in_thread
from txstore.store import OpenedRepository
from txstore.transactions.participants.listed import OpenTransaction, Watch

#: Most arrays and groups named for each process, the most staged first; and for each holder of locks.
_NODES = 100
#: Most keys that are checked for locks: a lock belongs to a slot, and does not name its key.
_KEYS = 1 << 18


class Work:
    """Answers questions by their names. Safe in threads."""

    def __init__(self, repository: OpenedRepository, origins: Collection[str]) -> None:
        self._engine = repository.engine
        self._origins = sorted(origins)
        self._watch = Watch(repository.engine.commits)
        self._lock = processes.new_lock()
        self.questions: dict[str, Callable[[], dict[str, Any]]] = {
            "repository": self.about,
            "transactions": self.transactions,
            "locks": self.locks,
            "feeds": self.feeds,
        }

    def about(self) -> dict[str, Any]:
        """Return how the repository was named to this server, and pages of which origins may read."""
        url = self._engine.url
        return {"url": url, "name": url.rstrip("/").rpartition("/")[2], "origins": self._origins}

    def transactions(self) -> dict[str, Any]:
        """Return the open transactions, and the staged keys of each participating process."""
        if not self._engine.exists():
            return {"transactions": [], "visible": True}
        try:
            with self._lock:
                found = list(self._watch.transactions())
        except PermissionError:  # a user who may only read the repository can't see this
            return {"transactions": [], "visible": False}
        if not found:
            self._engine.commits.identity.check_there()
        return {"transactions": [_told(each) for each in found], "visible": True}

    def locks(self) -> dict[str, Any]:
        """Return the holders of locks, with their arrays if known; and the process that commits now."""
        unlocked: dict[str, Any] = {"kind": None, "holders": [], "committing": None, "visible": True}
        if not self._engine.exists():
            return unlocked
        try:
            directory = self._engine.storage.lock_directory()
            found = find_holders(directory)
        except LocksUnavailableError:
            return unlocked
        except PermissionError:
            return unlocked | {"visible": False}
        nodes = self._nodes(found)
        if not found.holders:
            self._engine.commits.identity.check_there()
        return {
            "kind": found.kind,
            "holders": [_held(each, nodes) for each in found.holders if each.slots is None or each.slots],
            "committing": whose_turn(directory, names.COMMIT_LOCK.rpartition("/")[2]),
            "visible": True,
        }

    def feeds(self) -> dict[str, Any]:
        """Return the feeds, and how far each is behind."""
        if not self._engine.exists():
            return {"feeds": []}
        found = Feeds(self._engine).statuses()
        if not found:
            self._engine.commits.identity.check_there()
        return {"feeds": [each.as_dict() for each in found]}

    def _nodes(self, found: Holders) -> dict[int, str]:
        """Return for each held slot a node whose keys may be locked there."""
        wanted = {slot for holder in found.holders for slot in holder.slots or ()}
        if not wanted or found.hashed is None:
            return {}
        nodes: dict[int, str] = {}
        left = _KEYS
        snapshot = self._engine.newest()
        for path, keys in _keys_of_arrays(snapshot):
            for key in keys:
                if not left:
                    return nodes
                left -= 1
                slot = found.hashed.slot_of(key)
                if slot in wanted:
                    nodes.setdefault(slot, path)
        return nodes


def _keys_of_arrays(snapshot: Hierarchy, path: str = "") -> Iterator[tuple[str, Iterator[str]]]:
    """Yield each array with its possible keys."""
    described = describe(snapshot.get_view, path)
    if described is None or described.kind == "group":
        for member in members(snapshot, path):
            yield from _keys_of_arrays(snapshot, member.path)
    elif described.kind == "array":
        yield path, iter([described.key, document_key(path, ".zattrs")])
        try:
            grid = described.grid()
        except (ValueError, TypeError, KeyError, AttributeError):  # an invalid metadata document
            return
        yield path, grid.keys(grid.everything())


def _told(transaction: OpenTransaction) -> dict[str, Any]:
    return {
        "id": transaction.id,
        "name": transaction.name,
        "branch": transaction.branch,
        "base": transaction.base,
        "owner": transaction.owner,
        "time": transaction.time,
        "message": transaction.message,
        "processes": [
            {
                "number": each.number,
                "host": each.host,
                "pid": each.pid,
                "alive": each.alive,
                "sealed": each.sealed,
                "keys": each.keys,
                "bytes": each.bytes,
                "nodes": [{"path": path, "keys": keys} for path, keys in each.nodes.most_common(_NODES)],
            }
            for each in transaction.stagers
        ],
    }


def _held(holder: Holder, nodes: dict[int, str]) -> dict[str, Any]:
    if holder.slots is None:
        return {"pid": holder.pid, "locks": None, "nodes": []}
    counts: dict[str, int] = {}
    for slot in holder.slots:
        if slot in nodes:
            counts[nodes[slot]] = counts.get(nodes[slot], 0) + 1
    largest = sorted(counts.items(), key=lambda item: -item[1])[:_NODES]
    return {"pid": holder.pid, "locks": len(holder.slots), "nodes": [{"path": path, "locks": n} for path, n in largest]}


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

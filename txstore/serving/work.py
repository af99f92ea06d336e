"""Answers in JSON what the files of a repository don't say: open transactions, holders of locks, how far feeds are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from txstore import processes
from txstore.errors import LocksUnavailableError
from txstore.feeds.named_feeds import Feeds
from txstore.format import names
from txstore.format.documents import describe
from txstore.format.keys import document_key
from txstore.format.mapping import Hierarchy
from txstore.format.tree import members
from txstore.locks.holders import Holder, Holders, find_holders, whose_turn
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

"""Answers about the history: the commits of all branches, newest first, and the differences between two commits."""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any

from txstore.commit import MAIN, Stored
from txstore.comparing.nodes import NodeDiff
from txstore.errors import CommitNotFoundError, RepositoryNotFoundError, SnapshotExpiredError
from txstore.format import encoding, names
from txstore.history.changes import changed
from txstore.serving.answers import Failure
from txstore.serving.positions import Positions
from txstore.serving.repository_protocol import Served

#: Most commits in one answer.
_COMMITS, _MOST_COMMITS = 100, 1000
#: Seconds that one answer may search for commits that changed a path; the next answer continues the search.
_SEARCHING = 2.0
#: Most nodes in a comparison, and most regions of each.
_NODES, _REGIONS = 1000, 256
_PLACE = re.compile(r"([0-9a-z]+):([0-9]{1,18})")


class History:
    """Answers questions about commits. Safe in threads."""

    def __init__(self, repository: Served, positions: Positions, *, origins: Collection[str]) -> None:
        self._repository = repository
        self._engine = repository.engine
        self._positions = positions
        self._origins = sorted(origins)

    def about(self) -> dict[str, Any]:
        """Describe the repository as a whole."""
        url = self._repository.url
        told: dict[str, Any] = {
            "url": url,
            "name": url.rstrip("/").rpartition("/")[2],
            "exists": self._engine.exists(),
            "read_only": True,
            "origins": self._origins,
        }
        if not told["exists"]:
            return told | {"id": None, "format": None, "head": {}, "branches": [], "tags": []}
        heads = self._heads()
        return told | {
            "id": self._repository.id,
            "format": encoding.VERSION,
            "head": {name: stored.header.id.hex() for name, stored in heads.items()},
            "branches": [
                {"name": name, "head": stored.header.id.hex(), "commits": stored.header.seq}
                for name, stored in heads.items()
            ],
            "tags": [
                {"name": name, "commit": tag.commit_id.hex()}
                for name, tag in sorted(self._engine.commits.tags.all().items())
            ],
        }

    def commits(
        self, start: str | None = None, before: str | None = None, path: str = "", limit: int = _COMMITS
    ) -> dict[str, Any]:
        """Return commits, newest first: of all branches, or the ancestors of a named commit.

        `before` is the `next` of the previous answer. With `path`, return only commits that changed something below it;
        such an answer may be incomplete, with a `next`.
        """
        limit = max(1, min(limit, _MOST_COMMITS))
        heads = self._heads()
        if before is not None:
            walk = _Walk(self._engine.commits, map(self._at, before.split(",")))
        elif start is not None:
            walk = _Walk(self._engine.commits, [self._positions.stored(start)])
        else:
            walk = _Walk(self._engine.commits, heads.values())
        called = self._called(heads)
        told: list[dict[str, Any]] = []
        until = time.monotonic() + _SEARCHING
        for stored in walk:
            self._positions.note(stored)
            if not path or self._has_changed(stored, path):
                told.append(self._told(stored, called))
            if len(told) == limit or (path and time.monotonic() > until):
                break
        return {"commits": told, "next": walk.next}

    def commit(self, ref: str) -> dict[str, Any]:
        """Return a commit and its changes against its parent: null if the parent is no longer kept."""
        stored = self._positions.stored(ref)
        told = {"commit": self._told(stored, self._called(self._heads())), "changed": None, "truncated": False}
        try:
            nodes = self._repository.diff(stored.commit).nodes
        except SnapshotExpiredError:
            return told
        return told | {"changed": [_changed(node) for node in nodes[:_NODES]], "truncated": len(nodes) > _NODES}

    def diff(self, ref: str, other: str) -> dict[str, Any]:
        """Return the differences between two commits, node by node."""
        first, second = self._positions.stored(ref), self._positions.stored(other)
        called = self._called(self._heads())
        found = self._repository.diff(first.commit, second.commit)
        nodes = [_compared(node) for node in islice(found, _NODES)]
        return {
            "before": self._told(first, called),
            "after": self._told(second, called),
            "bytes_added": found.bytes_added,
            "bytes_dropped": found.bytes_dropped,
            "nodes": nodes,
            "truncated": len(found) > _NODES or any(node["truncated"] for node in nodes),
        }

    # --- names

    def _heads(self) -> dict[str, Stored]:
        """Return the newest commit of each branch, by its name; "main" is the first."""
        if not self._engine.exists():
            raise RepositoryNotFoundError(self._engine.url)
        commits = self._engine.commits
        branches = {MAIN: MAIN} | {name: record.id for name, record in sorted(commits.branches.all().items())}
        found = {name: commits.head(branch) for name, branch in branches.items()}
        return {name: stored for name, stored in found.items() if stored is not None}

    def _called(self, heads: Mapping[str, Stored]) -> dict[bytes, dict[str, list[str]]]:
        """Return, by commit id, the branches whose newest commit it is, and its tags."""
        called: dict[bytes, dict[str, list[str]]] = {}
        for name, stored in heads.items():
            called.setdefault(stored.header.id, {"branches": [], "tags": []})["branches"].append(name)
        for name, tag in sorted(self._engine.commits.tags.all().items()):
            called.setdefault(tag.commit_id, {"branches": [], "tags": []})["tags"].append(name)
        return called

    def _told(self, stored: Stored, called: Mapping[bytes, dict[str, list[str]]]) -> dict[str, Any]:
        commit = stored.commit
        return {
            "id": commit.id,
            "name": str(commit),
            "branch": commit.branch,
            "version": commit.version,
            "seq": commit.seq,
            "parents": [each for each in (commit.parent, commit.merged) if each is not None],
            "time": commit.time,
            "author": commit.author,
            "message": commit.message,
            "properties": commit.properties,
            "statistics": commit.statistics,
            "stored_bytes": commit.statistics["bytes_set"],
        } | called.get(stored.header.id, {"branches": [], "tags": []})

    def _at(self, place: str) -> Stored:
        match = _PLACE.fullmatch(place)
        if match is None or not names.is_branch_id(match[1]):
            raise Failure(400, "WrongArgument", "before= must be the `next` of the previous answer")
        stored = self._engine.commits.files.read(match[1], int(match[2]))
        if stored is None:
            raise CommitNotFoundError(f"commit in version {match[2]}", advice="it is no longer kept: omit before=")
        return stored

    def _has_changed(self, stored: Stored, path: str) -> bool:
        snapshots, commits = self._engine.snapshots, self._engine.commits
        try:
            parent = commits.files.parent(stored)
            if parent is None and stored.header.parent_id != encoding.NO_ID:
                return False  # the parent is not kept, so the changes are unknown
            return next(changed(snapshots.of(parent), snapshots.of(stored), path), None) is not None
        except SnapshotExpiredError:
            return False


class _Walk:
    """Yields commits and their ancestors, each once, the newest first: a parent is older than its child."""

    def __init__(self, commits: Any, begin: Any) -> None:
        self._commits = commits
        self._ahead: list[tuple[int, int, bytes]] = []
        self._found: dict[bytes, Stored] = {}
        for stored in begin:
            self._push(stored)

    def _push(self, stored: Stored) -> None:
        header = stored.header
        if header.id not in self._found:
            self._found[header.id] = stored
            heapq.heappush(self._ahead, (-header.time, -header.seq, header.id))

    def __iter__(self) -> _Walk:
        return self

    def __next__(self) -> Stored:
        if not self._ahead:
            raise StopIteration
        stored = self._found.pop(heapq.heappop(self._ahead)[2])
        for parent in self._parents(stored):
            self._push(parent)
        return stored

    def _parents(self, stored: Stored) -> list[Stored]:
        """Return the parents that are kept."""
        line = self._commits.chain.ancestors(stored)
        next(line)
        merged = stored.header.merged
        found = [next(line, None), None if merged is None else self._commits.files.named(merged)]
        return [each for each in found if each is not None]

    @property
    def next(self) -> str | None:
        """The place where the walk continues, as the next request names it; None: it has ended."""
        places = (self._found[each].header for _, _, each in self._ahead)
        return ",".join(f"{header.branch}:{header.version}" for header in places) or None


def _changed(node: NodeDiff) -> dict[str, Any]:
    """Return the changes of a commit to a node, in numbers."""
    return {
        "path": node.path,
        "change": node.change,
        "kind": node.kind,
        "moved_from": node.moved_from,
        "fields": [each.name for each in node.fields],
        "attributes": [each.name for each in node.attributes],
        "chunks": {"added": node.chunks_added, "removed": node.chunks_removed, "changed": node.chunks_changed},
        "bytes_added": node.bytes_added,
        "bytes_dropped": node.bytes_dropped,
    }


def _compared(node: NodeDiff) -> dict[str, Any]:
    told = {"moved_from": None, "shape": None, "chunks": None, "regions": []} | node.as_dict()
    regions = told["regions"]
    is_truncated = len(regions) > _REGIONS or len(told["keys"]) > _REGIONS
    before = node.before.node.shape if node.before is not None and node.before.kind == "array" else None
    return told | {
        "regions": regions[:_REGIONS],
        "keys": told["keys"][:_REGIONS],
        "shape_before": None if before is None else list(before),
        "truncated": is_truncated,
    }

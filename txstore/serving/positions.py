"""Finds the commit that a URL names, and keeps the snapshots that clients are reading."""

from __future__ import annotations

import re
import time
from collections import OrderedDict

from txstore import processes
from txstore.commit import Stored
from txstore.errors import CommitNotFoundError, RepositoryNotFoundError, TxStoreError
from txstore.history.find import find_commit
from txstore.history.snapshot import Snapshot
from txstore.serving.repository_protocol import Served

_ID = re.compile(r"[0-9a-f]{32}")

#: Most snapshots kept at once, and seconds after the last read until one is released: a snapshot pins its commit and
#: all later ones against the vacuum.
_SNAPSHOTS, _IDLE = 64, 30.0
#: Most commits whose position is cached: finding a commit by its id takes a walk through the history.
_PLACES = 1 << 14


class Positions:
    """The commits that URLs name, for all requests. Safe in threads."""

    def __init__(self, repository: Served) -> None:
        self._engine = repository.engine
        self._lock = processes.new_lock()
        self._snapshots: OrderedDict[str, tuple[Snapshot, float]] = OrderedDict()
        self._places: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def kept(self, ref: str) -> Snapshot | None:
        """Return the cached snapshot for a commit's id, if any."""
        found = self._snapshots.get(ref)
        if found is None:
            return None
        self._keep(ref, found[0])
        return found[0]

    def snapshot(self, ref: str) -> Snapshot:
        """Return the snapshot for a commit's id (or its first digits), a tag or a branch. Raises as `stored` does."""
        return self.kept(ref) or self.of(self.stored(ref))

    def of(self, stored: Stored) -> Snapshot:
        commit_id = stored.header.id.hex()
        found = self.kept(commit_id)
        if found is None:
            found = self._engine.snapshots.of(stored)
            self._keep(commit_id, found)
        return found

    def stored(self, ref: str) -> Stored:
        """Find a commit. Raises `CommitNotFoundError`, `SnapshotExpiredError`, `RepositoryNotFoundError`."""
        commits = self._engine.commits
        if not self._engine.exists():
            raise RepositoryNotFoundError(self._engine.url)
        place = self._places.get(ref)
        if place is not None:
            stored = commits.files.read(*place)
            if stored is not None and stored.header.id.hex() == ref and commits.kept.has(stored):
                return stored
        try:
            stored = find_commit(commits, ref)
        except TxStoreError:
            raise
        except ValueError as error:  # it looks like a date
            raise CommitNotFoundError(f"commit {ref[:40]!r}", advice=str(error)) from error
        self.note(stored)
        return stored

    def note(self, stored: Stored) -> None:
        """Remember the place of a commit that a client may request by its id."""
        with self._lock:
            self._places[stored.header.id.hex()] = stored.header.branch, stored.header.version
            while len(self._places) > _PLACES:
                self._places.popitem(last=False)

    def let_go(self, *, idle: float = _IDLE) -> bool:
        """Release the snapshots that no client has read for `idle` seconds. Return whether others are left."""
        before = time.monotonic() - idle
        with self._lock:
            while self._snapshots and next(iter(self._snapshots.values()))[1] <= before:
                self._snapshots.popitem(last=False)
            return bool(self._snapshots)

    def _keep(self, commit_id: str, snapshot: Snapshot) -> None:
        with self._lock:
            self._snapshots[commit_id] = snapshot, time.monotonic()
            self._snapshots.move_to_end(commit_id)
            while len(self._snapshots) > _SNAPSHOTS:
                self._snapshots.popitem(last=False)


def is_id(ref: str) -> bool:
    """Tell whether this is a full commit id, which always names the same commit."""
    return _ID.fullmatch(ref) is not None

"""What a repository's bytes are for."""

from __future__ import annotations

from dataclasses import dataclass, field

from txstore import names
from txstore.commits import Commits
from txstore.documents import kind_of_node
from txstore.keys import ancestors, directory_prefix, stored_key
from txstore.reachable import Reachable, StagedPacks, data_packs, kept_commits, sizes_of
from txstore.snapshot import Snapshot, Snapshots


@dataclass(slots=True)
class ArrayUsage:
    """The values below one array at the head: how many keys, and bytes."""

    keys: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Usage:
    """Bytes on the disk, by what they are for.

    Attributes
    ----------
    live : int
        Values at the head.
    history : int
        What else the commits that are kept need: older values, runs, headers.
    staged : int
        Below `.staging/`: transactions that are going on, or that were.
    orphan : int
        What nothing needs: a vacuum deletes it.
    arrays : dict
        Path to `ArrayUsage`, at the head; what lies in no array is under the path of its group.
    """

    live: int = 0
    history: int = 0
    staged: int = 0
    orphan: int = 0
    arrays: dict[str, ArrayUsage] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.live + self.history + self.staged + self.orphan


def usage(commits: Commits, snapshots: Snapshots, branch: str) -> Usage:
    """Measure. See `Repository.usage`."""
    storage = commits.storage
    found = Usage()
    oldest = snapshots.oldest(branch)  # held, so that no vacuum deletes what is counted
    # Listed before the head is looked for: of a commit that is made meanwhile, the packs are still staged.
    directory = names.commits_directory(branch)
    files = [*data_packs(commits), *[f"{directory}/{file}" for file in storage.list(directory)]]
    staged = storage.list(names.STAGING)
    committing = StagedPacks(staged)
    head = None if oldest is None else commits.head(branch)
    needed = Reachable(commits)
    if head is not None:
        snapshot = snapshots.of(head)
        found.arrays = _arrays(snapshot)
        found.live = sum(array.bytes for array in found.arrays.values())
        for stored in kept_commits(commits, branch, head, commits.floor(branch)):
            needed.add(stored)
    del oldest
    for path, size in sizes_of(commits, files).items():
        if path in needed.paths:
            found.history += size
        elif path not in committing:  # another name of what is staged
            found.orphan += size
    found.history -= found.live
    found.staged = sum(sizes_of(commits, [f"{names.STAGING}/{file}" for file in staged]).values())
    return found


def _arrays(snapshot: Snapshot) -> dict[str, ArrayUsage]:
    arrays: dict[str, ArrayUsage] = {}
    path, prefix = "", "\0"
    for found in snapshot.runs.scan_all():
        key = stored_key(found.key, snapshot.runs.file(found.run).path)
        if not key.startswith(prefix):
            path = _node_of(snapshot, key)
            prefix = directory_prefix(path) if kind_of_node(snapshot, path) == "array" else "\0"
        of_array = arrays.setdefault(path, ArrayUsage())
        of_array.keys += 1
        of_array.bytes += found.length
    return arrays


def _node_of(snapshot: Snapshot, key: str) -> str:
    """Return the path of the innermost node that a key lies in; the root's, if there is none."""
    return next((path for path in ancestors(key) if kind_of_node(snapshot, path) != "absent"), "")

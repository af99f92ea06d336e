"""Measures what the bytes of a repository are used for."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from txstore.commit import Stored
from txstore.format import names, packfile
from txstore.format.commitfile import RunName
from txstore.format.display import html_head, html_table, readable_size
from txstore.format.documents import kind_of_node
from txstore.format.keys import ancestors, directory_prefix, stored_key
from txstore.history.commits import Commits
from txstore.history.snapshot import Snapshot, Snapshots
from txstore.maintenance.reachable import (
    Reachable,
    StagedPacks,
    data_packs,
    hold_all,
    kept_commits,
    living_branches,
    sizes_of,
)
from txstore.maintenance.replacement_packs import packs_in_use
from txstore.segments.runs import names_of
from txstore.storage.interface import paths_in


@dataclass(slots=True)
class ArrayUsage:
    """The values of one array at the head: number of keys, and bytes."""

    keys: int = 0
    bytes: int = 0


#: Arrays that a notebook shows.
_SHOWN = 20


@dataclass(slots=True, repr=False)
class Usage:
    """Bytes on the disk, by use.

    Attributes
    ----------
    live : int
        Values at the head.
    history : int
        Other data that kept commits need: older values, runs, headers.
    overwritten : int
        Values in files that kept commits need, which no kept commit has: their own transaction overwrote them, or their
        commits expired. `optimize`, then a vacuum that expires the commits before it, frees them. A lower bound: the
        frame of each existing value is taken to be as large as possible.
    staged : int
        Data of open transactions, and of dead ones: files below `.staging/`, and their uploads.
    orphan : int
        Files that no commit needs: a vacuum deletes them.
    arrays : dict
        Path to `ArrayUsage`, at the head; values outside any array are under the path of their group.
    """

    live: int = 0
    history: int = 0
    overwritten: int = 0
    staged: int = 0
    orphan: int = 0
    arrays: dict[str, ArrayUsage] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.live + self.history + self.overwritten + self.staged + self.orphan

    def _purposes(self) -> list[tuple[str, int]]:
        sizes = (self.live, self.history, self.overwritten, self.staged, self.orphan)
        return list(zip(("live", "history", "overwritten", "staged", "orphan"), sizes, strict=True))

    def __repr__(self) -> str:
        told = ", ".join(f"{readable_size(size)} {what}" for what, size in self._purposes() if size)
        return f"<Usage {readable_size(self.total)}{f': {told}' if told else ''}>"

    def _repr_html_(self) -> str:
        purposes = [(what, f"{size:,}", readable_size(size)) for what, size in self._purposes()]
        largest = sorted(self.arrays.items(), key=lambda item: -item[1].bytes)[:_SHOWN]
        arrays = [
            (path or "/", f"{each.bytes:,}", readable_size(each.bytes), f"{each.keys:,}") for path, each in largest
        ]
        return (
            html_head("Usage", readable_size(self.total))
            + html_table(purposes, ("what for", "bytes", "size"))
            + html_table(arrays, ("array or group", "bytes", "size", "keys"), left=len(self.arrays) - len(largest))
        )


def usage(commits: Commits, snapshots: Snapshots, branch: str) -> Usage:
    """Measure the use of bytes. See `Repository.usage`."""
    storage = commits.storage
    found = Usage()
    needed = Reachable(commits)
    hold_all(commits, snapshots.pins, needed)  # so that no vacuum deletes files that this counts
    # Listed before the head is read: the packs of a commit made meanwhile still count as staged.
    files = list(data_packs(commits))
    for each in commits.files.branch_directories():
        files += paths_in(commits.storage, names.commits_directory(each))
    staged: list[str] = []
    with contextlib.suppress(PermissionError):  # a user who may only read has no access
        staged = storage.list(names.STAGING)
    committing = StagedPacks(staged)
    head = commits.head(branch)
    referred = _Referred(commits, needed)
    if head is not None:
        snapshot = snapshots.of(head)
        found.arrays = arrays_of(snapshot)
        found.live = sum(array.bytes for array in found.arrays.values())
        for stored in kept_commits(commits, {}):
            needed.add(stored)
            referred.add(stored)
        needed.paths |= packs_in_use(storage, needed.paths)
    sizes = sizes_of(commits, files)
    found.overwritten = referred.overwritten(sizes)
    for path, size in sizes.items():
        if path in needed.paths:
            found.history += size
        elif path not in committing:
            found.orphan += size
        elif commits.staged.uploads:  # on a disk it is a second name of a staged file
            found.staged += size
    found.history -= found.live + found.overwritten
    found.staged += sum(sizes_of(commits, [f"{names.STAGING}/{file}" for file in staged]).values())
    return found


#: Bytes of a frame beside key and value, at most; for a value that is not small, also its alignment.
_FRAME, _ALIGNED_FRAME = packfile.FRAME_SIZE + packfile.PREDECESSOR.size + 7, packfile.ALIGNMENT


class _Referred:
    """The values of kept commits, by the file that holds them."""

    def __init__(self, commits: Commits, needed: Reachable) -> None:
        self._commits = commits
        self._needed = needed
        self._oldest_kept_versions = {branch: commits.oldest_kept.of(branch) for branch in living_branches(commits)}
        self._offsets: dict[str, array[int]] = {}
        self._lengths: dict[str, array[int]] = {}  # of frames, at most
        self._ends: dict[str, int] = {}  # of frames

    def add(self, stored: Stored) -> None:
        self._ends[stored.path] = _end_of_frames(stored)
        self._ends.update({pack.name.path: pack.end for pack in stored.header.packs})
        self._ends.update({pack.path: 0 for pack in stored.header.compaction_outputs})  # they have no values
        for names_together in self._runs(stored):
            runs = self._needed.open_runs(names_together)
            for found in runs.scan_all():
                path = runs.pack_name(found.run, found.pack).path
                self._offsets.setdefault(path, array("Q")).append(found.offset)
                aligned = _ALIGNED_FRAME if found.length >= packfile.ALIGNED_FROM else 0
                self._lengths.setdefault(path, array("Q")).append(found.length + len(found.key) + _FRAME + aligned)

    def _runs(self, stored: Stored) -> Iterator[Sequence[RunName]]:
        """Yield a commit's runs with entries that no earlier kept commit has, grouped for reading."""
        header = stored.header
        runs = names_of(header.runs, header.name)
        # Of a deleted branch, only commits with another name are kept.
        if header.version <= self._oldest_kept_versions.get(header.branch, header.version):
            yield runs
            return
        for name in runs:
            # A merged run repeats others, except that of `optimize`, which came with new packs.
            if name.pack == header.name and (name.seq == header.seq or header.packs):
                yield [name]

    def overwritten(self, sizes: Mapping[str, int]) -> int:
        return sum(self._overwritten_in(path, sizes.get(path, 0)) for path in self._needed.paths)

    def _overwritten_in(self, path: str, size: int) -> int:
        import numpy as np  # late: who asks for something else does not wait for it

        end = self._ends.get(path)
        if end is None and names.is_commit_path(path):  # expired, but the file is needed
            place = names.parse_commit_path(path)
            stored = None if place is None else self._commits.files.read(*place)
            end = 0 if stored is None else _end_of_frames(stored)
        frames = 0
        if path in self._offsets:  # several runs may refer to one value
            _, first = np.unique(np.frombuffer(self._offsets[path], np.uint64), return_index=True)
            frames = int(np.frombuffer(self._lengths[path], np.uint64)[first].sum())
        return max(0, (size if end is None else end) - packfile.HEAD_SIZE - packfile.ALIGNMENT - frames)


def _end_of_frames(stored: Stored) -> int:
    return min([section.offset for section in stored.header.sections], default=stored.footer.header_offset)


def arrays_of(snapshot: Snapshot) -> dict[str, ArrayUsage]:
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
    """Return the path of the innermost node of a key; the root's path if there is none."""
    return next((path for path in ancestors(key) if kind_of_node(snapshot, path) != "absent"), "")

"""Records what a storage can do. A module that chooses a strategy reads the record when it is built.

`docs/understand/remote-design.md` shows the records of all storages side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from txstore.format.records import VERSIONS_BY_RENAME


class LockOf(Enum):
    """Which committers `Storage.lock` keeps out."""

    ALL_PROCESSES = "all processes"
    ONE_MACHINE = "processes of this machine"
    ONE_PROCESS = "threads of this process"


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    versions: str
    """How a version is taken at most once, as format.json records it."""

    maps_files: bool
    """Whether files are mapped into memory. Else packs are read by ranges, each of which may take a while."""

    lock_of: LockOf

    makes_requests: bool
    """Whether a server answers requests: each takes a round trip, and its answer may be late, or lost."""

    pins_are_seen: bool
    """Whether a vacuum sees which commits are read. Else a reader may find that its commit is gone."""

    holders_trusted: float
    """Seconds for which a process that was found alive counts as alive."""

    stale_seconds: float
    """Seconds for which this machine may not see a new name."""

    look_again: float
    """Seconds after which a look for what others have done is worth its cost."""

    deleted_together: int
    """How many files `delete` takes at once, where that is faster than one by one."""


LOCAL = Capabilities(
    versions=VERSIONS_BY_RENAME,
    maps_files=True,
    lock_of=LockOf.ALL_PROCESSES,
    makes_requests=False,
    pins_are_seen=True,
    holders_trusted=0.0,
    stale_seconds=0.0,
    look_again=0.5,
    deleted_together=1,
)

#: A directory that other machines see, too. What NFS clients believe of a directory at most, as they are mounted by
#: default (acdirmax).
NETWORK = replace(LOCAL, maps_files=False, lock_of=LockOf.ONE_MACHINE, stale_seconds=60.0, look_again=3.0)


def of_objects(versions: str, *, makes_requests: bool, holders_trusted: float) -> Capabilities:
    """Return what an object store can do. Where its objects are this process's own, no requests are made."""
    return Capabilities(
        versions=versions,
        maps_files=False,
        lock_of=LockOf.ONE_PROCESS,
        makes_requests=makes_requests,
        pins_are_seen=False,
        holders_trusted=holders_trusted,
        stale_seconds=0.0,
        look_again=3.0,
        deleted_together=1000,
    )

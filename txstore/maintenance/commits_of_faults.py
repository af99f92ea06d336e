"""Finds the commits that a fault touches."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from txstore.errors import TxStoreError
from txstore.format import names, packfile
from txstore.format.commitfile import RunName
from txstore.format.keys import encode_key
from txstore.history.commits import Commits
from txstore.history.snapshot import Snapshot, unpinned
from txstore.maintenance.report import COMMITS_TOLD, Fault
from txstore.segments.ranged_packs import open_packs

#: At most this many commits are searched for a value whose commit is not known.
_LOOKED_AT_MOST = 1000


#: A branch, by its id, and a version of its own.
Place = tuple[str, int]


class ListedRun(NamedTuple):
    """A run, and for each branch the versions of the first and last commit that list it; all between do, too."""

    name: RunName
    versions: Mapping[str, tuple[int, int]]

    def also_in(self, place: Place) -> ListedRun:
        branch, version = place
        first, last = self.versions.get(branch, (version, version))
        return ListedRun(self.name, {**self.versions, branch: (min(first, version), max(last, version))})

    @property
    def firsts(self) -> list[Place]:
        return [(branch, first) for branch, (first, _) in self.versions.items()]

    @property
    def spans(self) -> set[tuple[str, int, int]]:
        """Return branches, each with a first and last version."""
        return {(branch, first, last) for branch, (first, last) in self.versions.items()}


class Tracer:
    """Searches one history.

    `ids` has the ids of its commits, by place. `runs` has all runs that they list, `readers` the span of versions that
    read each unreadable pack, and `brought` the commit that each pack came with.
    """

    def __init__(
        self,
        commits: Commits,
        ids: Mapping[Place, bytes],
        runs: Sequence[ListedRun],
        readers: Mapping[bytes, set[tuple[str, int, int]]],
        brought: Mapping[str, Place],
    ) -> None:
        self._commits = commits
        self._ids = ids
        self._versions: dict[str, list[int]] = {}
        for branch, version in sorted(ids):
            self._versions.setdefault(branch, []).append(version)
        self._runs = runs
        self._readers = readers
        self._brought = brought
        self._packs = open_packs(commits.storage)
        # Many faults touch the same commits.
        self._snapshot = lru_cache(_LOOKED_AT_MOST)(self._read)

    def _read(self, place: Place) -> Snapshot:
        return unpinned(self._commits, self._commits.files.read(*place), self._packs)

    def with_commits(self, fault: Fault) -> Fault:
        places = sorted(self._touched(fault))
        if not places or fault.commits:
            return fault
        ids = [self._ids[place].hex() for place in islice(places, COMMITS_TOLD)]
        return Fault(fault.path, fault.reason, fault.offset, fault.key, fault.part, tuple(ids), len(places))

    def _touched(self, fault: Fault) -> set[Place]:
        """Return the places of the commits that a fault touches."""
        own = names.parse_commit_path(fault.path)
        found = {own} if own is not None else set()
        if fault.part in ("value", "ref") and fault.key is not None and fault.offset is not None:
            return self._readers_of(fault.path, fault.key, fault.offset)
        if fault.part == "run" and fault.offset is not None:
            for listed in self._runs:
                if listed.name.pack is not None and (listed.name.pack.path, listed.name.offset) == (
                    fault.path,
                    fault.offset,
                ):
                    found |= self._between(listed.spans)
        elif fault.part in ("head", "missing", "unreadable"):
            for listed in self._runs:
                if listed.name.pack is not None and listed.name.pack.path == fault.path:
                    found |= self._between(listed.spans)
            for pack_id, spans in self._readers.items():
                if fault.path.endswith(pack_id.hex()) or (own is not None and self._ids.get(own) == pack_id):
                    found |= self._between(spans)
        return found & self._ids.keys()

    def _between(self, spans: set[tuple[str, int, int]]) -> set[Place]:
        """Return the existing commits of the spans, from one version to another."""
        found: set[Place] = set()
        for branch, first, last in spans:
            versions = self._versions.get(branch, [])
            found.update(
                (branch, version) for version in versions[bisect_left(versions, first) : bisect_right(versions, last)]
            )
        return found

    def _readers_of(self, path: str, key: str, offset: int) -> set[Place]:
        """Return the commits in which a key has the value at this offset: on each branch they are consecutive."""
        brought = self._brought.get(path)
        found: set[Place] = set()
        for branch, versions in self._versions.items():
            begin = bisect_left(versions, brought[1]) if brought is not None and brought[0] == branch else 0
            found.update(
                (branch, version) for version in self._readers_on(branch, versions, begin, (path, key, offset))
            )
        return found

    def _readers_on(self, branch: str, versions: list[int], begin: int, value: tuple[str, str, int]) -> set[int]:
        path, key, offset = value

        def reads(version: int) -> bool | None:
            try:
                runs = self._snapshot((branch, version)).runs
                found = runs.lookup(encode_key(key))
                if found is None or found.kind not in packfile.FRAME_OF_REF:
                    return False
                return found.offset == offset and runs.pack_name(found.run, found.pack).path == path
            except (TxStoreError, OSError):
                return None

        if begin < len(versions) and reads(versions[begin]):
            end = bisect_left(range(begin, len(versions)), True, key=lambda i: reads(versions[i]) is not True) + begin
            return set(versions[begin:end])
        return {version for version in versions[:_LOOKED_AT_MOST] if reads(version)}

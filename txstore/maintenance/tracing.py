"""Which commits a fault touches."""

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
from txstore.history.commit import MAIN
from txstore.history.commits import Commits
from txstore.history.ranged_packs import open_packs
from txstore.history.snapshot import Snapshot
from txstore.maintenance.report import COMMITS_TOLD, Fault

#: So many commits are looked at for a value of which it is not known where it was written.
_LOOKED_AT_MOST = 1000


class ListedRun(NamedTuple):
    """A run, and the slots of the first and last commit that list it: those between them do, too."""

    name: RunName
    first: int
    last: int


class Tracer:
    """Looks into one history.

    `ids` are of its commits, by slot. `runs` are all that they list, `readers` from which slot to which each pack is
    read that can't be, and `brought` the slot that each pack came with.
    """

    def __init__(
        self,
        commits: Commits,
        ids: Mapping[int, bytes],
        runs: Sequence[ListedRun],
        readers: Mapping[bytes, set[tuple[int, int]]],
        brought: Mapping[str, int],
    ) -> None:
        self._commits = commits
        self._ids = ids
        self._slots = sorted(ids)
        self._runs = runs
        self._readers = readers
        self._brought = brought
        self._packs = open_packs(commits.storage)
        # Many faults are in the same commits.
        self._snapshot = lru_cache(_LOOKED_AT_MOST)(self._read)

    def _read(self, slot: int) -> Snapshot:
        return Snapshot(self._commits.read(MAIN, slot), self._packs, self._commits.storage.url)

    def with_commits(self, fault: Fault) -> Fault:
        slots = sorted(self._touched(fault))
        if not slots or fault.commits:
            return fault
        ids = [self._ids[slot].hex() for slot in islice(slots, COMMITS_TOLD)]
        return Fault(fault.path, fault.reason, fault.offset, fault.key, fault.part, tuple(ids), len(slots))

    def _touched(self, fault: Fault) -> set[int]:
        """Return the slots of the commits that a fault touches."""
        own = names.parse_slot(fault.path.rpartition("/")[2]) if fault.path.startswith("commits/") else None
        found = {own} if own is not None else set()
        if fault.part in ("value", "ref") and fault.key is not None and fault.offset is not None:
            return self._readers_of(fault.path, fault.key, fault.offset)
        if fault.part == "run" and fault.offset is not None:
            for listed in self._runs:
                if listed.name.pack is not None and (listed.name.pack.path, listed.name.offset) == (
                    fault.path,
                    fault.offset,
                ):
                    found |= self._between(listed.first, listed.last)
        elif fault.part in ("head", "missing", "unreadable"):
            for listed in self._runs:
                if listed.name.pack is not None and listed.name.pack.path == fault.path:
                    found |= self._between(listed.first, listed.last)
            for pack_id, ranges in self._readers.items():
                if fault.path.endswith(pack_id.hex()) or (own is not None and self._ids.get(own) == pack_id):
                    for first, last in ranges:
                        found |= self._between(first, last)
        return found & self._ids.keys()

    def _between(self, first: int, last: int) -> set[int]:
        """Return the slots of commits from one to another: of those that there are, not of all that there could be."""
        slots = self._slots
        return set(slots[bisect_left(slots, first) : bisect_right(slots, last)])

    def _readers_of(self, path: str, key: str, offset: int) -> set[int]:
        """Return the slots in which a key has the value that lies there: they follow one another."""

        def reads(slot: int) -> bool | None:
            try:
                runs = self._snapshot(slot).runs
                found = runs.lookup(encode_key(key))
                if found is None or found.kind not in packfile.FRAME_OF_REF:
                    return False
                return found.offset == offset and runs.pack_name(found.run, found.pack).path == path
            except (TxStoreError, OSError):
                return None

        slots = self._slots
        begin = bisect_left(slots, self._brought.get(path, 0))
        if begin < len(slots) and reads(slots[begin]):
            end = bisect_left(range(begin, len(slots)), True, key=lambda i: reads(slots[i]) is not True) + begin
            return set(slots[begin:end])
        return {slot for slot in slots[:_LOOKED_AT_MOST] if reads(slot)}

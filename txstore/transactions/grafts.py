"""Grafts: what a transaction has moved or copied without copying values: paths whose keys are those of a snapshot.

A graft is a few words in memory, however many keys it has. They become refs when the transaction commits.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace

from txstore.format.keys import after_prefix
from txstore.history import runs
from txstore.history.snapshot import Snapshot


@dataclass(frozen=True)
class Graft:
    """All keys below a prefix are those of a snapshot below another one, but for what was hidden since."""

    to: str
    source: Snapshot
    start: str
    hidden: frozenset[str] = frozenset()  # prefixes below `to`

    def key(self, key: str) -> str | None:
        """Return the name of a key in the source; None if the graft does not have it."""
        if not key.startswith(self.to) or any(map(key.startswith, self.hidden)):
            return None
        return self.start + key[len(self.to) :]

    def keys_between(self, start: str, stop: str | None, batch: int) -> Iterator[str]:
        """Yield its keys from `start` on, below `stop`."""
        ends = [end for end in (stop, after_prefix(self.to)) if end is not None]
        low, high = max(start, self.to), min(ends, default=None)
        if high is not None and low >= high:
            return
        last = after_prefix(self.start)
        until = last if high is None or high == after_prefix(self.to) else self.start + high[len(self.to) :]
        for found in self.source.keys_between(self.start + low[len(self.to) :], until, batch=batch):
            key = self.to + found[len(self.start) :]
            if not any(map(key.startswith, self.hidden)):
                yield key

    def section(self) -> bytes:
        """Return its refs as an own run, and the prefixes that are hidden."""
        stop = after_prefix(self.start)
        grafted = self.source.runs.graft(self.start.encode(), None if stop is None else stop.encode(), self.to.encode())
        if not self.hidden:
            return grafted
        return runs.merge_own([runs.build((), [prefix.encode() for prefix in self.hidden]), grafted])


class Grafts:
    """The grafts of one transaction, in the order in which they were made. Replaced as a whole: safe in threads."""

    def __init__(self) -> None:
        self._all: tuple[Graft, ...] = ()

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Graft]:
        return iter(self._all)

    def find(self, key: str) -> tuple[Snapshot, str] | None:
        """Return where a key is read from, and its name there; None if it is below no graft."""
        for graft in reversed(self._all):
            if (name := graft.key(key)) is not None:
                return graft.source, name
        return None

    def keys_between(self, start: str, stop: str | None, batch: int) -> Iterator[str]:
        last = None
        for key in heapq.merge(*[graft.keys_between(start, stop, batch) for graft in self._all]):
            if key != last:
                last = key
                yield key

    def below(self, prefix: str, to: str) -> list[Graft]:
        """Return what stands below a prefix by these grafts, as grafts below another one."""
        found = []
        for graft in self._all:
            hidden = frozenset(to + each[len(prefix) :] for each in graft.hidden if each.startswith(prefix))
            if graft.to.startswith(prefix):
                found.append(replace(graft, to=to + graft.to[len(prefix) :], hidden=hidden))
            elif (start := graft.key(prefix)) is not None:
                found.append(Graft(to, graft.source, start, hidden))
        return found

    def add(self, grafts: list[Graft]) -> None:
        self._all = (*self._all, *grafts)

    def hide(self, prefix: str) -> None:
        """Forget what is below a prefix, which was deleted."""
        self._all = tuple(
            replace(graft, hidden=graft.hidden | {prefix}) if prefix.startswith(graft.to) else graft
            for graft in self._all
            if not graft.to.startswith(prefix)
        )

    def clear(self) -> None:
        self._all = ()

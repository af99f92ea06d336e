"""Keeps reflinks: nodes that a transaction moved, copied or restored by reference, with their keys in a snapshot.

The chunks of an array that move within it are a reflink, too: one that gives them other numbers.

A reflink takes little memory, however many keys it covers. A transaction can also take single keys from a snapshot. The
commit turns all of them into refs.

Until then, a vacuum may not know that the transaction needs the snapshot's values: if it can't see readers, or if a
branch or a tag is deleted. So the committer writes a record of the snapshots, like the record of a transaction's base.
"""

from __future__ import annotations

import contextlib
import heapq
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from txstore.commit import Stored
from txstore.format import names
from txstore.format.chunk_moves import ChunkMoves
from txstore.format.keys import after_prefix
from txstore.format.packfile import PackName
from txstore.format.records import TransactionRecord
from txstore.history.changes import Ref, ref_of
from txstore.history.commits import Commits
from txstore.history.snapshot import Snapshot
from txstore.segments import runs
from txstore.storage.interface import Held, Mapped, Storage
from txstore.storage.leases import Lease


class Taken(NamedTuple):
    """A key whose value is that of another key in a snapshot."""

    source: Snapshot
    key: str
    ref: Ref


@dataclass(frozen=True)
class Reflink:
    """The keys below one prefix are those of a snapshot below another prefix, except for keys hidden since."""

    to: str
    source: Snapshot
    start: str
    hidden: frozenset[str] = frozenset()  # prefixes below `to`
    moves: ChunkMoves | None = None  # what becomes of the rest of a key; None: it stays

    def key(self, key: str) -> str | None:
        """Return the name of a key in the source. None if the reflink does not have the key."""
        if not key.startswith(self.to) or any(map(key.startswith, self.hidden)):
            return None
        rest = key[len(self.to) :]
        name = rest if self.moves is None else self.moves.source(rest)
        return None if name is None else self.start + name

    def keys_between(self, start: str, stop: str | None, batch: int) -> Iterator[str]:
        """Yield its keys from `start` on, below `stop`."""
        if self.moves is not None:
            keys = self._moved_keys
            yield from keys[bisect_left(keys, start) : None if stop is None else bisect_left(keys, stop)]
            return
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

    @cached_property
    def _moved_keys(self) -> list[str]:
        assert self.moves is not None
        rests = (key[len(self.start) :] for key in self.source.keys_between(self.start, after_prefix(self.start)))
        keys = [self.to + moved for rest in rests if (moved := self.moves.target(rest)) is not None]
        return sorted(key for key in keys if not any(map(key.startswith, self.hidden)))

    def section(self, storage: Storage) -> Mapped:
        """Return its refs and hidden prefixes as the commit's run. A large run goes to a file of `storage`."""
        stop = after_prefix(self.start)
        reflinked = self.source.runs.reflink(
            self.start.encode(), None if stop is None else stop.encode(), self.to.encode(), storage, self.moves
        )
        if not self.hidden:
            return reflinked
        return runs.merge_own([runs.build((), [prefix.encode() for prefix in self.hidden]), reflinked], storage)


class Reflinks:
    """The reflinks of one transaction in the order of their creation, and the single keys that it took.

    Each change replaces the whole content, so this is safe in threads.
    """

    def __init__(self) -> None:
        self._set((), {})

    def __len__(self) -> int:
        return len(self._all) + len(self._taken)

    def __iter__(self) -> Iterator[Reflink]:
        return iter(self._all)

    @property
    def taken(self) -> list[str]:
        """The single taken keys, in the order of their bytes."""
        return sorted(self._taken)

    def _set(self, reflinks: tuple[Reflink, ...], taken: dict[str, Taken]) -> None:
        self._all, self._taken = reflinks, taken
        self.any = len(self) > 0  # whether there is anything; an attribute, as the next, because it is read often
        sources = [*(each.source for each in reflinks), *(each.source for each in taken.values())]
        self.sources = list({id(source): source for source in sources}.values())

    def find(self, key: str) -> tuple[Snapshot, str] | None:
        """Return the snapshot of a key, and its name there. None if no reflink covers the key and it was not taken."""
        if not self.any:
            return None
        if (taken := self._taken.get(key)) is not None:
            return taken.source, taken.key
        for reflink in reversed(self._all):
            if (name := reflink.key(key)) is not None:
                return reflink.source, name
        return None

    def covers(self, key: str) -> bool:
        """Tell whether a reflink covers a key: the transaction then created its node anew."""
        return any(reflink.key(key) is not None for reflink in self._all)

    def any_below(self, prefix: str) -> bool:
        """Tell whether a reflink or a taken key has to do with a prefix."""
        reflinked = any(each.to.startswith(prefix) or prefix.startswith(each.to) for each in self._all)
        return reflinked or any(key.startswith(prefix) for key in self._taken)

    def keys_between(self, start: str, stop: str | None, batch: int) -> Iterator[str]:
        taken = [key for key in self.taken if key >= start and (stop is None or key < stop)]
        last = None
        for key in heapq.merge(taken, *[reflink.keys_between(start, stop, batch) for reflink in self._all]):
            if key != last:
                last = key
                yield key

    def below(self, prefix: str, to: str) -> tuple[list[Reflink], dict[str, Taken]]:
        """Return the reflinks and taken keys below a prefix, moved to another prefix."""
        found, taken = [], dict[str, Taken]()
        for reflink in self._all:
            hidden = frozenset(to + each[len(prefix) :] for each in reflink.hidden if each.startswith(prefix))
            if reflink.to.startswith(prefix):
                found.append(replace(reflink, to=to + reflink.to[len(prefix) :], hidden=hidden))
            elif reflink.moves is not None and prefix.startswith(reflink.to):  # no prefix there stands for others
                for key in reflink.keys_between(prefix, after_prefix(prefix), 0):
                    name = reflink.key(key)
                    if name is not None and (ref := ref_of(reflink.source, name)) is not None:
                        taken[key] = Taken(reflink.source, name, ref)
            elif (start := reflink.key(prefix)) is not None:
                found.append(Reflink(to, reflink.source, start, hidden))
        taken |= {key: place for key, place in self._taken.items() if key.startswith(prefix)}
        return found, {to + key[len(prefix) :]: place for key, place in taken.items()}

    def add(self, reflinks: list[Reflink], taken: Mapping[str, Taken]) -> None:
        self._set((*self._all, *reflinks), {**self._taken, **taken})

    def hide(self, prefix: str) -> None:
        """Remove the reflinks and keys below a deleted prefix."""
        if not self.any:
            return
        kept = tuple(
            replace(reflink, hidden=reflink.hidden | {prefix}) if prefix.startswith(reflink.to) else reflink
            for reflink in self._all
            if not reflink.to.startswith(prefix)
        )
        self._set(kept, {key: place for key, place in self._taken.items() if not key.startswith(prefix)})

    def clear(self) -> None:
        self._set((), {})

    def sections(self, storage: Storage) -> Iterator[Mapped]:
        """Yield all refs as runs of the commit, newest first."""
        if self._taken:
            yield self._taken_section()
        yield from (reflink.section(storage) for reflink in reversed(self._all))

    def _taken_section(self) -> Mapped:
        packs: dict[PackName, int] = {}
        entries = []
        for key, (_, _, ref) in sorted(self._taken.items()):
            number = packs.setdefault(ref.pack, len(packs) + 1)
            entries.append((key.encode(), ref.kind, ref.offset, ref.length, ref.checksum, number))
        return runs.build(entries, (), list(packs))


class HeldSources:
    """Commits that a vacuum keeps while another commit takes over their refs (I10).

    After creating this, the holder checks that the commits are still kept. So either the holder sees an earlier vacuum,
    or a later vacuum sees this record.
    """

    def __init__(self, commits: Commits, sources: Iterable[Stored]) -> None:
        self._storage = commits.storage
        self._held: dict[str, Held] = {}
        lowest: dict[str, Stored] = {}  # by branch: a vacuum keeps all commits from this one on
        for stored in sources:
            known = lowest.setdefault(stored.header.branch, stored)
            lowest[stored.header.branch] = min(known, stored, key=lambda each: each.header.version)
        try:
            for branch, stored in lowest.items():
                record = TransactionRecord(os.urandom(16), branch, (stored.header.version, stored.header.id.hex()))
                path = names.open_path(record.id)
                self._held[path] = self._storage.create_held(path, record.encode())
        except BaseException:
            self.release()
            raise

    def check(self) -> None:
        """Raise `OSError` if other processes may consider this one dead."""
        for held in self._held.values():
            if isinstance(held, Lease):
                held.check_term()

    def release(self) -> None:
        while self._held:
            path, held = self._held.popitem()
            with contextlib.suppress(OSError):  # without an owner, the next vacuum deletes the record
                self._storage.delete(path)
            held.close()

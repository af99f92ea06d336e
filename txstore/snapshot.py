"""Snapshot: an immutable mapping of keys to values at one commit, read where they lie in mapped packs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Never

from txstore import format
from txstore.commits import Commit, Stored
from txstore.errors import CorruptionError
from txstore.format import RunName
from txstore.index import Found, OpenRun, Runs, names_of
from txstore.keys import decode_key, encode_key
from txstore.listing import Hierarchy
from txstore.pack import Packs


class Snapshot(Hierarchy):
    """The keys and values of one commit, as a read-only `Mapping[str, bytes]`.

    Nothing that other processes do changes it, and it blocks nobody (I4). Values are views of mapped files; no
    descriptor is held. Safe in threads, and after a fork.

    Raises `CorruptionError` where stored bytes are not what was written.
    """

    def __init__(
        self, stored: Stored | None, packs: Packs, url: str, known: Mapping[RunName, OpenRun] = MappingProxyType({})
    ) -> None:
        self.stored = stored
        self.url = url
        self._packs = packs
        self._known = known  # runs that are open, of this commit and others

    @cached_property
    def run_names(self) -> tuple[RunName, ...]:
        """How the runs are called, newest first. None of them is opened."""
        return () if self.stored is None else names_of(self.stored.header.runs, self.stored.header.name)

    @cached_property
    def runs(self) -> Runs:
        """The runs of the commit, opened at the first use: making a snapshot can't fail."""
        runs = Runs(self.run_names, None, self._packs, self._known)
        self._known = runs.opened()  # and no others: they need not be kept
        return runs

    def runs_since(self, seq: int) -> Runs:
        """Return the runs that hold anything newer than a seq. No others are opened."""
        newer = [name for name in self.run_names if name.max_seq > seq]
        runs = Runs(newer, None, self._packs, self._known)
        known = {**self._known, **runs.opened()}
        self._known = {name: known[name] for name in self.run_names if name in known}
        return runs

    def known_runs(self) -> Mapping[RunName, OpenRun]:
        """The runs that are open, for the snapshot of another commit: it has most of them too."""
        return self._known

    @property
    def commit(self) -> Commit | None:
        """The commit, None for a repository that has none yet."""
        return None if self.stored is None else self.stored.commit

    @property
    def seq(self) -> int:
        return 0 if self.stored is None else self.stored.header.seq

    def __repr__(self) -> str:
        return f"<Snapshot {self.url} {self.commit or '(empty)'}>"

    def lookup(self, key: str) -> Found | None:
        """Return the ref of a live key."""
        found = self.runs.lookup(encode_key(key))
        return found if found is not None and found.kind == format.REF_PACK else None

    def seq_of(self, key: str) -> int | None:
        """Return the seq of the commit that last wrote a live key."""
        found = self.lookup(key)
        return None if found is None else found.seq

    def get_view(self, key: str) -> memoryview | None:
        return self.runs.value(key, encode_key(key))

    def get_part(self, key: str, part: slice) -> memoryview | None:
        """Return a part of a value without comparing the checksum, which covers the whole."""
        found = self.lookup(key)
        if found is None:
            return None
        pack = self.runs.open_pack(found.run, found.pack)
        value = memoryview(pack.mapped)[found.offset : found.offset + found.length]
        if len(value) != found.length:
            raise CorruptionError(pack.path, offset=found.offset, key=key, reason="the value reaches beyond the file")
        return value[part]

    def size_of(self, key: str) -> int | None:
        found = self.lookup(key)
        return None if found is None else found.length

    # zarr 2 accepts a mapping, and reads it, only if these are there.

    def __setitem__(self, key: str, value: object) -> Never:
        raise TypeError("a snapshot is read-only: write to repo.transaction() or repo.begin()")

    def __delitem__(self, key: str) -> Never:
        raise TypeError("a snapshot is read-only: write to repo.transaction() or repo.begin()")

    def keys_between(self, start: str, stop: str | None, *, batch: int = 256) -> Iterator[str]:
        begin, end = start.encode(), None if stop is None else stop.encode()
        while page := self.runs.scan(begin, end, batch):
            for item in page:
                key = decode_key(item.key)
                if key is None:
                    path = self.runs.file(item.run).path
                    raise CorruptionError(path, reason=f"key {item.key!r} is not UTF-8")
                yield key
            if len(page) < batch:
                return
            begin = page[-1].key + b"\0"
            batch = min(batch * 4, 4096)


class Snapshots:
    """Makes the snapshots of one repository, and keeps the last: many handles stand at the same commit."""

    def __init__(self, packs: Packs, url: str) -> None:
        self._packs = packs
        self._url = url
        self._last: Snapshot | None = None

    def of(self, stored: Stored | None) -> Snapshot:
        last = self._last
        if last is None:
            snapshot = Snapshot(stored, self._packs, self._url)
        elif _id(last.stored) == _id(stored):
            return last
        else:
            snapshot = Snapshot(stored, self._packs, self._url, last.known_runs())
        self._last = snapshot
        return snapshot


def _id(stored: Stored | None) -> bytes | None:
    return None if stored is None else stored.header.id

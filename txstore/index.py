"""Runs: opening them where they lie, looking up through several, building a transaction's own, merging old ones.

The table itself is in `_native` (C, and a Python twin); here are the names, the errors and the merge policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from txstore import encoding, format
from txstore._native import index
from txstore.errors import CorruptionError, UnsupportedFormatError
from txstore.format import PackName, RunName
from txstore.pack import OpenPack, Packs


class Found(NamedTuple):
    """What an index says of a key: which run of the list, and the ref in it."""

    run: int
    kind: int  # format.REF_* or format.FOUND_PREFIX
    seq: int
    pack: int
    offset: int
    length: int
    checksum: int


class Listed(NamedTuple):
    """A live key of a scan, with its ref."""

    key: bytes
    run: int
    kind: int
    seq: int
    pack: int
    offset: int
    length: int
    checksum: int


class Change(NamedTuple):
    """An entry of one run, tombstones included."""

    key: bytes
    kind: int
    seq: int
    pack: int
    offset: int
    length: int
    checksum: int


class Runs:
    """The runs of one commit, newest first, opened in its mapped packs. Immutable.

    Raises `CorruptionError` for whatever is wrong with the bytes of a run, at opening or at the look-up that meets it.
    """

    def __init__(self, names: Sequence[RunName], own: PackName | None, packs: Packs) -> None:
        self.names = tuple(name if own is None else name.inside(own) for name in names)
        self._packs = packs
        self._runs = tuple(self._open_run(name) for name in self.names)
        self._tables: list[dict[int, PackName]] = [{} for _ in self.names]
        self._entries: dict[int, list[bytes]] = {}  # pack tables of runs, undecoded

    def _open_run(self, name: RunName) -> index.Run:
        file = self.file(name)
        pack = self._packs.get(file)
        section = memoryview(pack.mapped)[name.offset : name.offset + name.length]
        try:
            run = index.Run(section, name.seq)
        except ValueError as error:
            raise CorruptionError(file.path, offset=name.offset, reason=f"the run can't be opened: {error}") from error
        if run.max_seq > name.max_seq or run.entries != name.entries:
            raise CorruptionError(file.path, offset=name.offset, reason="the run is not the one that the header lists")
        return run

    @staticmethod
    def file(name: RunName) -> PackName:
        if name.pack is None:
            raise ValueError("the run was not placed in a file")
        return name.pack

    def __len__(self) -> int:
        return len(self._runs)

    def open_pack(self, run: int, number: int) -> OpenPack:
        """Open the pack that a ref names: its run's file, or one of the run's table."""
        table = self._tables[run]
        name = table.get(number)
        if name is None:
            name = table[number] = self._pack_name(run, number)
        return self._packs.get(name)

    def _pack_name(self, run: int, number: int) -> PackName:
        file = self.file(self.names[run])
        if number == 0:
            return file
        try:
            entries = self._entries.get(run)
            if entries is None:
                entries = self._entries[run] = self._runs[run].packs
            return PackName.decode(entries[number - 1])
        except encoding.NewerFormatError as error:
            raise UnsupportedFormatError(file.path, found=error.reason, supported="commit files") from error
        except (IndexError, encoding.MalformedError) as error:
            reason = f"a run names pack {number}, which it does not list: {error}"
            raise CorruptionError(file.path, reason=reason) from error

    def lookup(self, key: bytes) -> Found | None:
        """Return the newest entry of a key, be it a tombstone or the prefix tombstone that covers it."""
        try:
            found = index.lookup(self._runs, key)
        except ValueError as error:
            raise self._corrupt(error) from error
        return None if found is None else Found._make(found)

    def value(self, key: str, encoded: bytes) -> memoryview | None:
        """Return the value of a key as a view of the mapped file, its checksum compared; None if there is none."""
        try:
            found = index.lookup(self._runs, encoded)
        except ValueError as error:
            raise self._corrupt(error) from error
        if found is None or found[1] != format.REF_PACK:
            return None
        run, _, _, number, offset, length, checksum = found
        return self.open_pack(run, number).view(offset, length, checksum, key)

    def scan(self, start: bytes, stop: bytes | None, limit: int) -> list[Listed]:
        """Return the first live keys from `start` on, below `stop`."""
        try:
            return [Listed._make(item) for item in index.scan(self._runs, start, stop, limit)]
        except ValueError as error:
            raise self._corrupt(error) from error

    def _corrupt(self, error: ValueError) -> CorruptionError:
        """Say which run is damaged: a look-up goes through several."""
        for name, run in zip(self.names, self._runs, strict=True):
            try:
                run.verify()
            except ValueError as fault:
                return CorruptionError(self.file(name).path, offset=name.offset, reason=f"damaged run: {fault}")
        return CorruptionError("a run", reason=str(error))

    # --- what has changed since a seq

    def newer(self, seq: int) -> Runs:
        """Return those runs that hold anything newer, as a list of its own."""
        chosen = [i for i, name in enumerate(self.names) if name.max_seq > seq]
        part = Runs.__new__(Runs)
        part.names = tuple(self.names[i] for i in chosen)
        part._packs = self._packs
        part._runs = tuple(self._runs[i] for i in chosen)
        part._tables = [self._tables[i] for i in chosen]
        part._entries = {}
        return part

    def changes(self, start: bytes, stop: bytes | None, seq: int) -> list[Change]:
        """Return entries newer than `seq` in a range of keys, tombstones too, run by run (newest run first)."""
        try:
            return [Change._make(item) for run in self._runs for item in run.scan(start, stop, -1, seq)]
        except ValueError as error:
            raise self._corrupt(error) from error

    # --- merging

    def plan_merge(self) -> int:
        """Return how many of the newest runs to merge into one; 0 if none.

        A run is taken along while it has at most twice the entries of those before it together, so that the sizes that
        are left at least triple from each to the next: their number is logarithmic, and so is the number of times that
        one entry is copied.
        """
        count = total = 0
        for name in self.names:
            weight = max(name.entries, 1)
            if count and weight > 2 * total:
                break
            total += weight
            count += 1
        return count if count > 1 else 0

    def merge(self, count: int) -> bytes:
        """Merge the newest `count` runs into one section."""
        runs = self._runs[:count]
        tables = [[self.file(name).encode(), *run.packs] for name, run in zip(self.names, runs, strict=False)]
        try:
            return index.merge(runs, tables)
        except ValueError as error:
            raise self._corrupt(error) from error


def build(
    entries: Iterable[tuple[bytes, int, int, int, int, int]], prefixes: Iterable[bytes], packs: Sequence[PackName] = ()
) -> bytes:
    """Build a transaction's own run of ascending (key, ref kind, offset, length, checksum, pack).

    Pack 0 is the file that the run will lie in, the others are numbered from 1.
    """
    return index.build(entries, prefixes, [pack.encode() for pack in packs])


def name_run(section: bytes, seq: int, offset: int) -> RunName:
    """Return how a header lists a run that was just built in its own file."""
    run = index.Run(section, seq)
    return RunName(None, seq, offset, len(section), run.entries, run.max_seq)

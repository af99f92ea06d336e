"""Opens the sorted runs of a commit in mapped packs, looks up keys through all of them, and merges old ones.

The table itself is in `_native` (C, and a Python fallback); here are the names, the errors and the merge policy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from txstore._native import index
from txstore.errors import CorruptionError, ErasedError, KeyFormatError, TxStoreError, UnsupportedFormatError
from txstore.format import encoding, packfile
from txstore.format.chunk_moves import ChunkMoves
from txstore.format.commitfile import RunName
from txstore.format.keys import stored_prefix
from txstore.format.packfile import PackName
from txstore.segments.packs import Kept, OpenPack, Pack, PackSource
from txstore.segments.replaced import FIRST_NUMBER, Table
from txstore.storage.foreign_values import ForeignRange
from txstore.storage.interface import Mapped, Storage, spooled

_LIGHT = 1 << 20  # bytes
_PAGE = 4096  # keys
#: Bytes of the blocks of each run that are searched at a time for changes.
_CHANGES_WINDOW = 64 << 10
_NEWER = re.compile(r"unknown (?:run kind|block codec|ref kind) \d+")


def unreadable(path: str, offset: int, error: ValueError, reason: str = "damaged run") -> TxStoreError:
    """Return the error of a run that can't be read: of a newer version, if a kind in it is in no registry."""
    if (newer := _NEWER.search(str(error))) is not None:
        return UnsupportedFormatError(path, found=newer[0], supported=f"version {encoding.VERSION}")
    return CorruptionError(path, offset=offset, reason=f"{reason}: {error}")


class Found(NamedTuple):
    """What an index says of a key: which run of the list, and the ref in it."""

    run: int
    kind: int  # format.REF_* or format.FOUND_PREFIX
    seq: int
    pack: int
    offset: int
    length: int
    checksum: int

    @property
    def is_replaced(self) -> bool:
        """Whether an erasure of rows has put another value in its place since it was committed."""
        return self.pack >= FIRST_NUMBER


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


#: The fields of a `Listed`.
Live = tuple[bytes, int, int, int, int, int, int, int]


class Change(NamedTuple):
    """An entry of one run, tombstones included."""

    key: bytes
    kind: int
    seq: int
    pack: int
    offset: int
    length: int
    checksum: int


#: What an index says of a key that is deleted.
_GONE = (packfile.REF_TOMBSTONE, packfile.FOUND_PREFIX)
#: In place of the number of a buffer.
MISSING, ELSEWHERE, LATER = -1, -2, -3
#: Reads a value into memory as long as it is. Tells whether its checksum is right: if not, it is asked for by itself.
ReadInto = Callable[[memoryview], bool]


class Located(NamedTuple):
    """Where many values lie: for each the number of a buffer, an offset, a length and a CRC-32C.

    The number is `MISSING` if there is no value, and `ELSEWHERE` if it has to be asked for by itself. It is `LATER` if
    it has to be fetched and is long: the caller, who knows its destination, reads it to there, by its row. Else it is
    asked for by itself.
    """

    buffers: list[Mapped]
    table: npt.NDArray[np.int64]
    later: Mapping[int, ReadInto] = MappingProxyType({})


def may_be_replaced(kind: int, length: int, checksum: int) -> bool:
    """Tell whether a ref may lead to a value that was replaced. One of 2^32 others looks the same."""
    return not checksum and length > 0 and kind == packfile.REF_PACK


def located(found: bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the table that `index.locate` has found, as long as there are no buffers; and which values lie in packs.

    Of each of these, where: the number of the run, and of the pack in it below that.
    """
    entries = np.frombuffer(found, np.int64).reshape(-1, 6)
    kinds = entries[:, 0]
    table = np.empty((len(entries), 4), np.int64)
    table[:, 1:] = entries[:, 3:]
    table[:, 0] = np.where(kinds < 0, MISSING, ELSEWHERE)
    is_replaced = (entries[:, 5] == 0) & (entries[:, 4] > 0)  # perhaps: `may_be_replaced`
    return table, entries[:, 1] << 32 | entries[:, 2], (kinds == packfile.REF_PACK) & ~is_replaced


#: The packs that the refs of one run have led to, by their numbers in its table.
OpenPacks = Kept[int, Pack]


def open_listed(section: Mapped, name: RunName) -> index.Run:
    """Open a run that a header lists. Raises `ValueError` if it is another one, or an own run that is given no seq."""
    run = index.Run(section, name.seq)
    has_seq = run.max_seq or not (run.entries or run.prefixes)
    if not has_seq or run.max_seq > name.max_seq or run.entries != name.entries:
        raise ValueError("the run is not the one that the header lists")
    return run


class OpenRun:
    """A run, opened where it lies, and what was decoded of its table of packs."""

    is_light = True
    """Whether it may be kept open without readers: it takes little space on the disk when its file is deleted."""

    def __init__(self, name: RunName, packs: PackSource) -> None:
        self.file = placed(name)
        self._pack = packs.get(self.file)  # so that its values need no second map
        self.is_light = name.offset + name.length <= _LIGHT  # all but a header follows
        self._open(name, self._pack.section(name.offset, name.length))

    def _open(self, name: RunName, section: Mapped) -> None:
        self._entries: list[bytes] | None = None
        self._names: dict[int, PackName] = {0: self.file}
        try:
            self.run = open_listed(section, name)
        except ValueError as error:
            raise unreadable(self.file.path, name.offset, error, "the run can't be opened") from error

    def pack(self, number: int) -> PackName:
        """Return the pack that a ref names: the run's own file, or one of its table."""
        name = self._names.get(number)
        if name is None:
            name = self._names[number] = self._decode_pack(number)
        return name

    def _decode_pack(self, number: int) -> PackName:
        try:
            if self._entries is None:
                self._entries = self.run.packs
            return PackName.decode(self._entries[number - 1])
        except encoding.NewerFormatError as error:
            raise UnsupportedFormatError(self.file.path, found=error.reason, supported="commit files") from error
        except (IndexError, encoding.MalformedError) as error:
            reason = f"a run names pack {number}, which it does not list: {error}"
            raise CorruptionError(self.file.path, reason=reason) from error


def placed(name: RunName) -> PackName:
    """Return the file that a run lies in."""
    if name.pack is None:
        raise ValueError("the run was not placed in a file")
    return name.pack


#: Runs that are open, and the packs that they have led to, which are shared by all the commits that have the run.
Known = Mapping[RunName, tuple[OpenRun, OpenPacks]]
NONE_KNOWN: Known = MappingProxyType({})


class Runs:
    """The runs of one commit, newest first, opened in its mapped packs. Immutable.

    `known` are runs that other commits have opened. Packs are immutable, and the name of a run is all that it is
    compared with when it is opened: what was opened under the same name needs no second look.

    Raises `CorruptionError` for whatever is wrong with the bytes of a run, at opening or at the look-up that meets it.
    """

    def __init__(
        self,
        names: Sequence[RunName],
        own: PackName | None,
        packs: PackSource,
        known: Known = NONE_KNOWN,
    ) -> None:
        self.names = names_of(names, own)
        self._packs = packs
        opened = self._open_all(known)
        self._open = tuple([open_run for open_run, _ in opened])
        self._open_packs = tuple([open_packs for _, open_packs in opened])
        self._runs = tuple([open_run.run for open_run in self._open])

    def _open_all(self, known: Known) -> list[tuple[OpenRun, OpenPacks]]:
        return [known.get(name) or (OpenRun(name, self._packs), OpenPacks()) for name in self.names]

    def __len__(self) -> int:
        return len(self._runs)

    def opened(self) -> Known:
        """Return the runs as the `known` ones of another commit."""
        return dict(zip(self.names, zip(self._open, self._open_packs, strict=True), strict=True))

    def file(self, run: int) -> PackName:
        return self._open[run].file

    def open_pack(self, run: int, number: int) -> Pack:
        """Open the pack that a ref names: its run's file, or one of the run's table."""
        pack = self._open_packs[run].get(number)
        if pack is None:
            pack = self._packs.get(self.pack_name(run, number))
            self._open_packs[run].keep(number, pack)
        return pack

    def lookup(self, key: bytes) -> Found | None:
        """Return the newest entry of a key, be it a tombstone or the prefix tombstone that covers it.

        Of a value that was replaced, return where the new one lies.
        """
        found = self.ref(key)
        return found if found is None or found.checksum else self.resolved(found)

    def lookup_all(self, keys: Sequence[bytes]) -> list[Found | None]:
        """Return what `lookup` does for each of many keys."""
        return [found if found is None or found.checksum else self.resolved(found) for found in self.refs(keys)]

    def ref(self, key: bytes) -> Found | None:
        """Do as `lookup`, but return the entry as it is stored."""
        try:
            found = index.lookup(self._runs, key)
        except ValueError as error:
            raise self._corrupt(error) from error
        return None if found is None else Found._make(found)

    def refs(self, keys: Sequence[bytes]) -> list[Found | None]:
        """Return what `ref` does for each of many keys."""
        runs, lookup, make = self._runs, index.lookup, Found._make
        try:
            return [None if (found := lookup(runs, key)) is None else make(found) for key in keys]
        except ValueError as error:
            raise self._corrupt(error) from error

    # --- values that were replaced

    def resolved(self, found: Found, *, may_be_old: bool = False) -> Found:
        """Return where the value lies that replaces another; if none does, what was given.

        `may_be_old`: the ref may be from before the erasure, and then it does not tell.
        """
        if not may_be_old and not may_be_replaced(found.kind, found.length, found.checksum):
            return found
        return self._replacement(found, looks_again=not may_be_old) or found

    def replacement(self, key: bytes) -> Found | None:
        """Return where a value lies that has replaced another since this was opened; None if none has."""
        found = self.ref(key)
        if found is None or found.kind != packfile.REF_PACK or self._packs.replaced is None:
            return None
        self._packs.replaced.forget()
        return self._replacement(found)

    def place_of(self, key: bytes) -> tuple[PackName, int, int, int] | None:
        """Return the pack, offset, length and checksum of a value, if it lies in a pack."""
        found = self.ref(key)
        if found is None or found.kind != packfile.REF_PACK:
            return None
        return self.pack_name(found.run, found.pack), found.offset, found.length, found.checksum

    def _replacement(self, found: Found, *, looks_again: bool = True) -> Found | None:
        if self._packs.replaced is None:
            return None
        pack = self.pack_name(found.run, found.pack)
        place = self._packs.replaced.find(pack, found.offset, self._open_table, looks_again=looks_again)
        if place is None:
            return None
        return Found(found.run, packfile.REF_PACK, found.seq, *place)

    def _open_table(self, name: RunName) -> Table:
        return type(self)([name], None, self._packs).place_of

    def _listed(self, item: Live) -> Listed:
        listed = Listed._make(item)
        if listed.checksum or not may_be_replaced(listed.kind, listed.length, listed.checksum):
            return listed
        return Listed(listed.key, *self.resolved(Found._make(item[1:])))

    # --- values

    def value(self, key: str, encoded: bytes) -> memoryview | ForeignRange | None:
        """Return the value of a key as a view of the mapped file, its checksum compared; None if there is none.

        Of a value that lies outside of the repository, return where.
        """
        try:
            found = index.lookup(self._runs, encoded)
        except ValueError as error:
            raise self._corrupt(error) from error
        if found is None:
            return None
        run, kind, _, number, offset, length, checksum = found
        if kind == packfile.REF_PACK:
            if not checksum:
                return self.stored(key, self.resolved(Found._make(found)))
            return self.open_pack(run, number).view(offset, length, checksum, key)
        if kind == packfile.REF_ERASED:
            raise ErasedError(key)
        return self.foreign(key, Found._make(found)) if kind == packfile.REF_FOREIGN else None

    def at_hand(self, key: bytes) -> memoryview | None:
        """Return a value that can be had without waiting. None says nothing: the value may exist, and lie elsewhere."""
        return None

    def locate(self, keys: Sequence[str]) -> Located:
        """Return where the values of many keys lie, without comparing their checksums. Packs have to be mapped."""
        if len(keys) == 1:
            return self._locate_one(keys[0].encode())
        try:
            found = index.locate(self._runs, tuple([key.encode() for key in keys]))
        except ValueError as error:
            raise self._corrupt(error) from error
        table, places, is_here = located(found)
        buffers: list[Mapped] = []
        for place in set(places[is_here].tolist()):
            pack = self.open_pack(place >> 32, place & 0xFFFFFFFF)
            if isinstance(pack, OpenPack):
                table[is_here & (places == place), 0] = len(buffers)
                buffers.append(pack.mapped)
        return Located(buffers, table)

    def _locate_one(self, key: bytes) -> Located:
        """Do as `locate` for one key: the arrays of many take longer to make."""
        try:
            found = index.lookup(self._runs, key)
        except ValueError as error:
            raise self._corrupt(error) from error
        if found is None or found[1] in _GONE:
            return Located([], np.array([(MISSING, 0, 0, 0)], np.int64))
        run, kind, _, number, offset, length, checksum = found
        is_here = kind == packfile.REF_PACK and not may_be_replaced(kind, length, checksum)
        pack = self.open_pack(run, number) if is_here else None
        if isinstance(pack, OpenPack) and not (offset | length) >> 63:  # else it is damaged: its own read says so
            return Located([pack.mapped], np.array([(0, offset, length, checksum)], np.int64))
        return Located([], np.array([(ELSEWHERE, 0, 0, 0)], np.int64))

    async def await_located(self, keys: Sequence[str]) -> Located | None:
        """Return what `locate` does, and fetch few small values without a thread. None if that takes one."""
        return None

    def stored(self, key: str, found: Found | Listed) -> memoryview:
        """Return what a ref leads to as it is stored, its checksum compared."""
        return self.open_pack(found.run, found.pack).view(found.offset, found.length, found.checksum, key)

    def foreign(self, key: str, found: Found | Listed) -> ForeignRange:
        """Return where a value lies outside of the repository, as the record says that a ref leads to."""
        try:
            return ForeignRange.decode(bytes(self.stored(key, found)))
        except encoding.NewerFormatError as error:
            path = self.pack_name(found.run, found.pack).path
            raise UnsupportedFormatError(path, found=error.reason, supported="version 1") from error
        except encoding.MalformedError as error:
            path = self.pack_name(found.run, found.pack).path
            raise CorruptionError(path, offset=found.offset, key=key, reason=error.reason) from error

    def scan(self, start: bytes, stop: bytes | None, limit: int) -> list[Listed]:
        """Return the first live keys from `start` on, below `stop`."""
        try:
            found = index.scan(self._runs, start, stop, limit)
        except ValueError as error:
            raise self._corrupt(error) from error
        return [Listed._make(item) if item[7] else self._listed(item) for item in found]

    def pages(self, start: bytes, stop: bytes | None) -> Iterator[Sequence[Live]]:
        """Yield the live keys from `start` on, below `stop`, page by page: tuples of the fields of `Listed`.

        Of a value that was replaced, they say where it lay.
        """
        while page := self._page(start, stop):
            yield page
            start = page[-1][0] + b"\0"

    def _page(self, start: bytes, stop: bytes | None) -> Sequence[Live]:
        try:
            return index.scan(self._runs, start, stop, _PAGE)
        except ValueError as error:
            raise self._corrupt(error) from error

    def scan_all(self) -> Iterator[Listed]:
        """Yield all live keys, ascending."""
        return self.scan_between(b"", None)

    def scan_between(self, start: bytes, stop: bytes | None) -> Iterator[Listed]:
        """Yield the live keys from `start` on, below `stop`, ascending."""
        while page := self.scan(start, stop, _PAGE):
            yield from page
            start = page[-1].key + b"\0"

    def pack_name(self, run: int, number: int) -> PackName:
        """Return which pack a ref names."""
        if number >= FIRST_NUMBER and self._packs.replaced is not None:
            return self._packs.replaced.pack_name(number)
        return self._open[run].pack(number)

    def pack(self, name: PackName) -> Pack:
        return self._packs.get(name)

    def _corrupt(self, error: ValueError) -> TxStoreError:
        """Say which run is damaged: a look-up goes through several."""
        for name, found in zip(self.names, self._open, strict=True):
            try:
                found.run.verify()
            except ValueError as fault:
                return unreadable(found.file.path, name.offset, fault)
        return CorruptionError("a run", reason=str(error))

    # --- what has changed since a seq

    def newer(self, seq: int) -> Runs:
        """Return those runs that hold anything newer, as a list of its own."""
        return type(self)([name for name in self.names if name.max_seq > seq], None, self._packs, self.opened())

    def changes(self, start: bytes, stop: bytes | None, seq: int) -> list[Change]:
        """Return entries newer than `seq` in a range of keys, tombstones too, run by run (newest run first)."""
        try:
            return [Change._make(item) for run in self._runs for item in run.scan(start, stop, -1, seq)]
        except ValueError as error:
            raise self._corrupt(error) from error

    def changed_keys(self, start: bytes, stop: bytes | None, seq: int) -> Iterator[bytes]:
        """Yield the keys in a range that have an entry newer than `seq`, tombstones too, ascending, each once."""
        position: bytes | None = start
        while position is not None and (stop is None or position < stop):
            # Up to where the first of these windows ends: behind it, other runs may have keys that come first.
            ends = [run.window(position, _CHANGES_WINDOW, seq)[2] for run in self._runs]
            after = min((end for end in ends if end is not None), default=None)
            bound = after if stop is None or (after is not None and after < stop) else stop
            yield from sorted(self._keys_of_changes(position, bound, seq))
            position = after

    def _keys_of_changes(self, start: bytes, stop: bytes | None, seq: int) -> set[bytes]:
        try:
            return {item[0] for run in self._runs for item in run.scan(start, stop, -1, seq)}
        except ValueError as error:
            raise self._corrupt(error) from error

    def new_prefixes(self, seq: int) -> list[str]:
        """Return the prefixes that were deleted since `seq`."""
        return [
            stored_prefix(prefix, found.file.path)
            for found in self._open
            for prefix, deleted in found.run.prefixes
            if deleted > seq
        ]

    def prefixes(self) -> Iterator[tuple[str, int]]:
        """Yield the prefixes that were deleted, each with the seq of the commit that has done so."""
        for found in self._open:
            for prefix, deleted in found.run.prefixes:
                yield stored_prefix(prefix, found.file.path), deleted

    # --- merging

    # The section that is made is gathered in a file of `storage`, if it is given and the section is large.

    def merge(self, count: int, storage: Storage | None = None) -> Mapped:
        """Merge the newest `count` runs into one section."""
        runs, tables = self._runs[:count], _tables(self._open[:count])
        try:
            return spooled(storage, lambda sink: index.merge(runs, tables, 0, False, sink))
        except ValueError as error:
            raise self._corrupt(error) from error

    def merge_oldest(
        self,
        count: int,
        above: Sequence[index.Run],
        tables: Sequence[Sequence[bytes]],
        *,
        forgotten: int,
        storage: Storage | None = None,
    ) -> Mapped:
        """Merge the oldest `count` runs, and above them runs with tables of their own, into one section.

        Tombstones up to seq `forgotten` are left out.
        """
        oldest = self._open[len(self._open) - count :]
        runs = (*above, *[found.run for found in oldest])
        try:
            tables = [*tables, *_tables(oldest)]
            return spooled(storage, lambda sink: index.merge(runs, tables, forgotten, False, sink))
        except ValueError as error:
            raise self._corrupt(error) from error

    def reflink(
        self,
        start: bytes,
        stop: bytes | None,
        to: bytes,
        storage: Storage | None = None,
        moves: ChunkMoves | None = None,
    ) -> Mapped:
        """Build an own run of the live keys that begin with `start`, with `to` in its place, and the refs they have.

        `moves` says what becomes of what follows `start`.
        """
        tables = _tables(self._open)
        given: tuple[Any, ...] | None = (
            None if moves is None else (moves.lead.encode(), moves.separator.encode(), *moves.targets)
        )
        try:
            return spooled(storage, lambda sink: index.reflink(self._runs, tables, start, stop, to, sink, given))
        except OverflowError as error:
            raise KeyFormatError(f"a key below {to.decode()!r} would be too long: {error}") from error
        except ValueError as error:
            raise self._corrupt(error) from error


def merge_own(sections: Sequence[Mapped], storage: Storage | None = None) -> Mapped:
    """Merge own runs that are about to lie in one file into one, the newest first."""
    runs = tuple([index.Run(section, 1) for section in sections])  # any seq: the result has none
    tables = [[b"", *run.packs] for run in runs]
    return spooled(storage, lambda sink: index.merge(runs, tables, 0, True, sink))


def _tables(runs: Sequence[OpenRun]) -> list[list[bytes]]:
    return [[found.file.encode(), *found.run.packs] for found in runs]


def names_of(runs: Sequence[RunName], own: PackName | None) -> tuple[RunName, ...]:
    """Return the runs that the header of pack `own` lists, each with the file that it lies in."""
    # As `RunName.inside`: it is asked of the runs of all that are in one group commit, each of which lists all before
    # it.
    return tuple(runs) if own is None else tuple([run if run.pack is not None else run.inside(own) for run in runs])


def find_runs(inputs: tuple[RunName, ...], runs: Sequence[RunName]) -> int | None:
    """Return where `inputs` stand side by side in a list of runs."""
    return next((i for i in range(len(runs)) if tuple(runs[i : i + len(inputs)]) == inputs), None)


def build(
    entries: Iterable[tuple[bytes, int, int, int, int, int] | tuple[bytes, int, int, int, int, int, int]],
    prefixes: Iterable[bytes],
    packs: Sequence[PackName] = (),
    storage: Storage | None = None,
) -> Mapped:
    """Build a run of ascending (key, ref kind, offset, length, checksum, pack), or with a seq behind that.

    Pack 0 is the file that the run will lie in, the others are numbered from 1. Without a seq, or with 0, an entry has
    that of the commit in whose file the run will lie.
    """
    encoded = [pack.encode() for pack in packs]
    return spooled(storage, lambda sink: index.build(entries, prefixes, encoded, sink))


def name_run(section: Mapped, seq: int, offset: int) -> RunName:
    """Return how a header lists a run that was just built in its own file."""
    run = index.Run(section, seq)
    return RunName(None, seq, offset, len(section), run.entries, run.max_seq)

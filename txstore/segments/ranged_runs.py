"""Opens sorted runs in packs that are read by ranges: the index at once, each block when it is needed.

A run lies in memory as it does in its pack, in an anonymous map of which only parts are filled in. The native
functions are the same as for mapped packs. They are never asked before `Run.window` has said which blocks they will
read and these are there: a block that is not would be taken for a damaged one.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from operator import itemgetter
from typing import NamedTuple, TypeVar

import numpy as np

from txstore import processes
from txstore._native import index
from txstore.errors import CorruptionError, ErasedError, TxStoreError
from txstore.format import packfile
from txstore.format.chunk_moves import ChunkMoves
from txstore.format.commitfile import RunName
from txstore.format.encoding import crc32c
from txstore.format.packfile import PackName
from txstore.segments.packs import MissingPackError, Pack, PackSource
from txstore.segments.range_planning import RANGE
from txstore.segments.ranged_packs import RemotePack
from txstore.segments.runs import (
    ELSEWHERE,
    LATER,
    MISSING,
    NONE_KNOWN,
    Change,
    Found,
    Known,
    Listed,
    Live,
    Located,
    OpenPacks,
    OpenRun,
    ReadInto,
    Runs,
    may_be_replaced,
    placed,
    unreadable,
)
from txstore.storage.foreign_values import ForeignRange
from txstore.storage.interface import Mapped, Storage
from txstore.storage.request_threads import in_parallel

#: What is fetched of a run at first, in bytes: as a rule all that follows the blocks, and a few of these. A run that is
#: not longer is fetched whole.
TAIL = 64 << 10
#: What a scan fetches at a time of each run, at first and at most. One that wants few keys fetches less.
SCAN_SMALLEST, SCAN_LARGEST = 64 << 10, 1 << 20
_BYTES_PER_KEY = 256
_EVERYTHING = 1 << 63

_TRAILER_SIZE = 64  # format.md, "Trailer"
_INDEX_AT = struct.Struct("<36xQ")
#: What `index.locate` finds for one key: kind, run, number of the pack in it, offset, length, checksum.
_ENTRY = struct.Struct("=6q")
#: There is nothing to keep open: to get a pack makes no request.
_NO_PACKS = OpenPacks()

_BEGIN, _END = itemgetter(0), itemgetter(1)

T = TypeVar("T")


class Filled:
    """Which ranges of a buffer are there. Not safe in threads."""

    def __init__(self) -> None:
        # Ascending, neither overlapping nor touching. One list, changed in one step: a fork may come at any time.
        self._ranges: list[tuple[int, int]] = []

    def missing(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return what is not there of a range."""
        found, position = [], begin
        for low, high in self._ranges[bisect_right(self._ranges, begin, key=_END) :]:
            if position >= end or low >= end:
                break
            if position < low:
                found.append((position, low))
            position = high
        if position < end:
            found.append((position, end))
        return found

    def add(self, begin: int, end: int) -> None:
        if begin == end:
            return
        ranges = self._ranges
        first, last = bisect_left(ranges, begin, key=_END), bisect_right(ranges, end, key=_BEGIN)
        if first < last:
            begin, end = min(begin, ranges[first][0]), max(end, ranges[last - 1][1])
        ranges[first:last] = [(begin, end)]


class LazySection:
    """A run's section, as far as it was fetched. Safe in threads; what is there never changes while it is right."""

    def __init__(self, offset: int, length: int, tail: memoryview) -> None:
        self.offset = offset
        self.is_whole = len(tail) == length
        if self.is_whole:
            self.buffer: bytearray | mmap.mmap = bytearray(tail)
        else:
            self.buffer = _anonymous_map(length)
            self.buffer[length - len(tail) :] = tail
        self._filled = Filled()
        self._filled.add(length - len(tail), length)
        self._lock = processes.new_lock()

    def missing(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return what is not there yet, as ranges of the pack: (offset, length) each."""
        if self.is_whole:
            return []
        with self._lock:
            return [(self.offset + start, stop - start) for start, stop in self._filled.missing(begin, end)]

    def fill(self, offset: int, content: memoryview, *, anew: bool = False) -> None:
        """Fill in what was fetched at an offset of the pack; with `anew` also what is there."""
        begin = offset - self.offset
        end = begin + len(content)
        with self._lock:  # filled before it is said to be, and not again while others read it
            for start, stop in [(begin, end)] if anew else self._filled.missing(begin, end):
                self.buffer[start:stop] = content[start - begin : stop - begin]
            self._filled.add(begin, end)


def _anonymous_map(length: int) -> mmap.mmap:
    # By itself it would be shared with forked children, which say for themselves what of it is there.
    return mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class LazyRun(OpenRun):
    """A run that was opened by its index. Other blocks than those of `section` are not there."""

    def __init__(self, name: RunName, section: LazySection) -> None:
        self.file = placed(name)
        self.section = section
        self._open(name, section.buffer)


class _Blocks(NamedTuple):
    """Blocks that a question will read: a range of a run's section."""

    open_run: LazyRun
    begin: int
    end: int


class _Wanted(NamedTuple):
    """Values that have to be fetched before they are `Located`."""

    table: list[tuple[int, int, int, int]]  # as that of `Located`, with offsets in packs
    rows: dict[PackName, list[int]]
    later: dict[int, ReadInto]

    def ranges(self, name: PackName) -> list[tuple[int, int]]:
        """Return what is wanted of a pack: (offset, length) each."""
        return [self.table[row][1:3] for row in self.rows[name]]

    def located(self, contents: Iterable[Sequence[memoryview]]) -> Located:
        """Return where the values are that were fetched: of each pack, in the order of `ranges`."""
        table, buffers = list(self.table), list[Mapped]()
        for rows, of_pack in zip(self.rows.values(), contents, strict=True):
            for row, content in zip(rows, of_pack, strict=True):
                _, _, length, checksum = table[row]
                if len(content) == length:  # else it is damaged, and asked for by itself
                    table[row] = len(buffers), 0, length, checksum
                    buffers.append(content)
        return Located(buffers, np.array(table, np.int64).reshape(-1, 4), self.later)


class LazyRuns(Runs):
    """The runs of one commit, in packs that are read by ranges."""

    def _open_all(self, known: Known) -> list[tuple[OpenRun, OpenPacks]]:
        there = {name: known[name] for name in self.names if name in known}
        opened = {name: run for name, (run, _) in there.items() if isinstance(run, LazyRun)}
        opened.update(_opened([name for name in self.names if name not in opened], self._packs))
        self._lazy = tuple([opened[name] for name in self.names])
        # The newest are those of small commits, as a rule: they are asked together, and without a look at their blocks.
        near = tuple([run.run for run in takewhile(lambda run: run.section.is_whole, self._lazy)])
        self._near, self._far = near, self._lazy[len(near) :]
        return [(run, _NO_PACKS) for run in self._lazy]

    def open_pack(self, run: int, number: int) -> Pack:
        return self._packs.get(self.pack_name(run, number))

    def ref(self, key: bytes) -> Found | None:
        first = len(self._near)
        try:
            if (found := index.lookup(self._near, key)) is not None:
                return Found._make(found)
        except ValueError:
            first = 0  # one of them is damaged
        for i, open_run in enumerate(self._lazy[first:], first):
            run = open_run.run
            begin, end, _ = run.window(key, 0)
            found = self._ask([_Blocks(open_run, begin, end)], partial(index.lookup, (run,), key))
            if found is not None:
                return Found(i, *found[1:])
        return None

    def refs(self, keys: Sequence[bytes]) -> list[Found | None]:
        # By few requests; a look-up that needs no older run has fetched a little too much.
        self._fill(_windows_of(self._far, keys))
        return [self.ref(key) for key in keys]

    def _keys_of_changes(self, start: bytes, stop: bytes | None, seq: int) -> set[bytes]:
        return {change.key for change in self.changes(start, stop, seq)}

    def value(self, key: str, encoded: bytes) -> memoryview | ForeignRange | None:
        found = self.lookup(encoded)
        if found is not None and found.kind == packfile.REF_ERASED:
            raise ErasedError(key)
        if found is None or found.kind not in packfile.FRAME_OF_REF:
            return None
        return self.stored(key, found) if found.kind == packfile.REF_PACK else self.foreign(key, found)

    def at_hand(self, key: bytes) -> memoryview | None:
        for open_run in self._far:
            begin, end, _ = open_run.run.window(key, 0)
            if open_run.section.missing(begin, end):
                return None
        try:
            found = index.lookup(self._runs, key)
        except ValueError:
            return None  # a caller that can wait asks again, and gets the error
        if found is None or found[1] != packfile.REF_PACK:
            return None
        run, _, _, number, offset, length, checksum = found
        content = _remote(self.open_pack(run, number)).reader.at_hand(offset, length)
        return content if content is not None and crc32c(content) == checksum else None

    def locate(self, keys: Sequence[str]) -> Located:
        """Fetch the values of many keys, together, and return where they lie: each in a buffer of its own."""
        encoded = tuple([key.encode() for key in keys])
        # The blocks of all keys by few requests; a look-up that needs no older run has fetched a little too much.
        self._fill(_windows_of(self._far, encoded))
        try:
            found = index.locate(self._runs, encoded)
        except ValueError:
            found = self._ask(_windows_of(self._lazy, encoded), lambda: index.locate(self._runs, encoded))
        wanted = self._wanted(found)

        def fetch(name: PackName) -> list[memoryview]:
            return _ranged(self._packs, name).read(wanted.ranges(name))

        return wanted.located(in_parallel(fetch, wanted.rows))

    async def await_located(self, keys: Sequence[str]) -> Located | None:
        encoded = tuple([key.encode() for key in keys])
        if not await self._await_blocks(_windows_of(self._far, encoded)):
            return None
        try:
            wanted = self._wanted(index.locate(self._runs, encoded))
        except ValueError:
            return None  # a caller that can wait asks again, and gets the error
        if wanted.later:
            return None
        readers = [(_ranged(self._packs, name).reader, wanted.ranges(name)) for name in wanted.rows]
        reads = [reader.try_ranges(ranges) for reader, ranges in readers]
        contents = [await reads[0]] if len(reads) == 1 else await asyncio.gather(*reads)
        found = [content for content in contents if content is not None]
        return wanted.located(found) if len(found) == len(reads) else None

    async def _await_blocks(self, blocks: Iterable[_Blocks]) -> bool:
        """Fetch what is missing of a few blocks, without a thread; tell whether they are there."""
        for file, missing in _missing(blocks).items():
            contents = await _ranged(self._packs, file).reader.try_ranges([each[1:] for each in missing])
            if contents is None:
                return False
            for (section, offset, _), content in zip(missing, contents, strict=True):
                section.fill(offset, content)
        return True

    def _wanted(self, found: bytes) -> _Wanted:
        """Return what has to be fetched of what `index.locate` has found."""
        # Row by row: of few rows, arrays take longer to make than to fill.
        table: list[tuple[int, int, int, int]] = []
        later: dict[int, ReadInto] = {}
        names_of: dict[tuple[int, int], PackName] = {}
        rows: dict[PackName, list[int]] = {}
        for row, (kind, run, number, offset, length, checksum) in enumerate(_ENTRY.iter_unpack(found)):
            where = MISSING if kind < 0 else ELSEWHERE
            if may_be_replaced(kind, length, checksum):
                pass  # it is asked for by itself
            elif kind == packfile.REF_PACK and length > RANGE:
                later[row] = partial(_remote(self.open_pack(run, number)).read_into, offset, length, checksum)
                where = LATER
            elif kind == packfile.REF_PACK:
                name = names_of.get((run, number))
                if name is None:
                    name = names_of[run, number] = self.pack_name(run, number)
                rows.setdefault(name, []).append(row)
            table.append((where, offset, length, checksum))
        return _Wanted(table, rows, later)

    def scan(self, start: bytes, stop: bytes | None, limit: int) -> list[Listed]:
        found: list[Listed] = []
        if stop is not None and start >= stop:
            return found
        length = SCAN_SMALLEST if limit < 0 else min(SCAN_SMALLEST, max(limit, 1) * _BYTES_PER_KEY)
        while limit < 0 or len(found) < limit:
            windows = [_window(open_run.run, start, stop, length) for open_run in self._lazy]
            # No further than where the first window ends: behind it a run may hold keys that are not there yet.
            bound = min((after for *_, after in windows if after is not None), default=None)
            is_last = bound is None or (stop is not None and stop <= bound)
            end = stop if is_last else bound
            rest = limit - len(found) if limit >= 0 else -1
            found += self._scan(windows, start, end, rest)
            if is_last or bound is None:
                break
            start, length = bound, min(2 * length, SCAN_LARGEST)
        return found

    def _page(self, start: bytes, stop: bytes | None) -> Sequence[Live]:
        return self.scan(start, stop, SCAN_LARGEST // _BYTES_PER_KEY)  # with the new places of replaced values

    def _scan(
        self, windows: Sequence[tuple[int, int, bytes | None]], start: bytes, stop: bytes | None, limit: int
    ) -> list[Listed]:
        blocks = [_Blocks(open_run, *window[:2]) for open_run, window in zip(self._lazy, windows, strict=True)]
        found = self._ask(blocks, lambda: index.scan(self._runs, start, stop, limit), start, stop)
        return [Listed._make(item) if item[7] else self._listed(item) for item in found]

    def changes(self, start: bytes, stop: bytes | None, seq: int) -> list[Change]:
        blocks = [
            _Blocks(open_run, begin, end)
            for open_run in self._lazy
            for begin, end in _windows(open_run.run, start, stop, seq)
        ]
        found = self._ask(
            blocks, lambda: [item for run in self._runs for item in run.scan(start, stop, -1, seq)], start, stop, seq
        )
        return [Change._make(item) for item in found]

    def merge(self, count: int, storage: Storage | None = None) -> Mapped:
        self._fill(_whole(self._lazy[:count]))
        return super().merge(count, storage)

    def merge_oldest(
        self,
        count: int,
        above: Sequence[index.Run],
        tables: Sequence[Sequence[bytes]],
        *,
        forgotten: int,
        storage: Storage | None = None,
    ) -> Mapped:
        self._fill(_whole(self._lazy[len(self._open) - count :]))
        return super().merge_oldest(count, above, tables, forgotten=forgotten, storage=storage)

    def reflink(
        self,
        start: bytes,
        stop: bytes | None,
        to: bytes,
        storage: Storage | None = None,
        moves: ChunkMoves | None = None,
    ) -> Mapped:
        self._fill([
            _Blocks(run, begin, end) for run in self._lazy for begin, end in _windows(run.run, start, stop, 0)
        ])  # fmt: skip
        return super().reflink(start, stop, to, storage, moves)

    def _corrupt(self, error: ValueError) -> TxStoreError:
        """Say which run is damaged. Reached by merging alone: the oldest may be there only in part."""
        self._fill(_whole(self._lazy))
        return super()._corrupt(error)

    # --- blocks

    def _ask(
        self,
        blocks: Sequence[_Blocks],
        question: Callable[[], T],
        start: bytes = b"",
        stop: bytes | None = None,
        seq: int = 0,
    ) -> T:
        """Ask what reads these blocks. If they are damaged, ask again after they were fetched anew."""
        self._fill(blocks)
        try:
            return question()
        except ValueError:
            self._fill_anew(blocks)
        try:
            return question()
        except ValueError as error:
            raise self._damaged(blocks, error, start, stop, seq) from error

    def _damaged(
        self, blocks: Sequence[_Blocks], error: ValueError, start: bytes, stop: bytes | None, seq: int
    ) -> TxStoreError:
        """Say which run it is, of those whose blocks were asked for in a range of keys."""
        for open_run in {id(each.open_run): each.open_run for each in blocks}.values():
            fault: ValueError | None = error
            if len(blocks) > 1:
                try:
                    open_run.run.scan(start, stop, -1, seq)
                    fault = None
                except ValueError as found:
                    fault = found
            if fault is not None:
                offset = self.names[self._lazy.index(open_run)].offset
                return unreadable(open_run.file.path, offset, fault)
        return CorruptionError("a run", reason=str(error))

    def _fill(self, blocks: Iterable[_Blocks]) -> None:
        self._fetch(_missing(blocks))

    def _fill_anew(self, blocks: Iterable[_Blocks]) -> None:
        wanted: dict[PackName, list[tuple[LazySection, int, int]]] = {}
        for open_run, begin, end in blocks:
            wanted.setdefault(open_run.file, []).append(
                (open_run.section, open_run.section.offset + begin, end - begin)
            )
        for file in wanted:
            _ranged(self._packs, file).reader.forget()
        self._fetch(wanted, anew=True)

    def _fetch(self, wanted: Mapping[PackName, Sequence[tuple[LazySection, int, int]]], *, anew: bool = False) -> None:
        def fetch(file: PackName) -> None:
            ranges = [(offset, length) for _, offset, length in wanted[file]]
            contents = _ranged(self._packs, file).read(ranges)
            for (section, offset, _), content in zip(wanted[file], contents, strict=True):
                section.fill(offset, content, anew=anew)

        deque(in_parallel(fetch, wanted), maxlen=0)


def _window(run: index.Run, start: bytes, stop: bytes | None, length: int) -> tuple[int, int, bytes | None]:
    """Return a window for a scan: only the first block of it if that reaches to `stop`."""
    window = run.window(start, 0)
    return window if _reaches(window[2], stop) else run.window(start, length)


def _windows_of(runs: Iterable[LazyRun], keys: Sequence[bytes]) -> list[_Blocks]:
    """Return the blocks in which there may be one of several keys."""
    found = {(run, *run.run.window(key, 0)[:2]): None for run in runs for key in keys}
    return [_Blocks(*each) for each in found]


def _missing(blocks: Iterable[_Blocks]) -> dict[PackName, list[tuple[LazySection, int, int]]]:
    """Return what is not there of blocks, by pack: offset and length."""
    found: dict[PackName, list[tuple[LazySection, int, int]]] = {}
    for open_run, begin, end in blocks:
        section = open_run.section
        for offset, length in section.missing(begin, end):
            found.setdefault(open_run.file, []).append((section, offset, length))
    return found


def _windows(run: index.Run, start: bytes, stop: bytes | None, seq: int) -> Iterator[tuple[int, int]]:
    """Yield where the blocks lie in which there may be anything newer than `seq` in a range of keys."""
    position: bytes | None = start
    length = 0
    while position is not None:
        begin, end, after = run.window(position, length, seq)
        yield begin, end
        position = None if _reaches(after, stop) else after
        length = min(max(2 * length, SCAN_SMALLEST), SCAN_LARGEST)


def _reaches(after: bytes | None, stop: bytes | None) -> bool:
    return after is None or (stop is not None and after >= stop)


def _whole(runs: Sequence[LazyRun]) -> list[_Blocks]:
    return [_Blocks(open_run, *open_run.run.window(b"", _EVERYTHING)[:2]) for open_run in runs]


# --- opening


def open_runs(names: Sequence[RunName], packs: PackSource, known: Known = NONE_KNOWN) -> Runs:
    """Open the runs of one commit in packs that are mapped, or read by ranges."""
    return (LazyRuns if packs.is_ranged else Runs)(names, None, packs, known)


def is_replaced(packs: PackSource, pack: PackName, offset: int) -> bool:
    """Tell whether another value replaces the one at an offset of a pack. Raises `CorruptionError`."""
    if packs.replaced is None:
        return False
    return packs.replaced.find(pack, offset, lambda table: open_runs([table], packs).place_of) is not None


def open_run(name: RunName, packs: PackSource) -> OpenRun:
    """Open one run, for what its index says."""
    return _opened([name], packs)[name] if packs.is_ranged else OpenRun(name, packs)


def _opened(names: Sequence[RunName], packs: PackSource) -> dict[RunName, LazyRun]:
    files: dict[PackName, list[RunName]] = {}
    for name in names:
        files.setdefault(placed(name), []).append(name)
    opened: dict[RunName, LazyRun] = {}
    readers = {file: _ranged(packs, file) for file in files}
    tails = {file: {name: _tail_at_hand(readers[file], name) for name in in_file} for file, in_file in files.items()}

    def open_file(file: PackName) -> None:
        pack = readers[file]
        try:
            opened.update(_open_in(pack, tails[file]))
        except MissingPackError:
            raise
        except CorruptionError:
            pack.reader.forget()
            opened.update(_open_in(pack, dict.fromkeys(files[file])))

    # Threads are for what makes requests. Of many small commits most are at hand.
    far = [file for file in files if None in tails[file].values()]
    for file in files.keys() - far:
        open_file(file)
    deque(in_parallel(open_file, far), maxlen=0)
    return opened


def _open_in(pack: RemotePack, tails: Mapping[RunName, memoryview | None]) -> dict[RunName, LazyRun]:
    """Open runs that lie in one pack, by one request if they are short or lie together; those with a tail by none."""
    there = dict(tails)
    ranges = {name: _tail(name) for name, tail in tails.items() if tail is None}
    for name, content in zip(ranges, pack.read_unchecked(list(ranges.values())), strict=True):
        if len(content) != ranges[name][1]:
            raise CorruptionError(pack.path, offset=name.offset, reason="the run reaches beyond the file")
        there[name] = content[max(len(content) - name.length, 0) :]
    return {name: _open_at(pack, name, tail) for name, tail in there.items() if tail is not None}


def _open_at(pack: RemotePack, name: RunName, tail: memoryview) -> LazyRun:
    begin, index_at = name.length - len(tail), _index_at(tail)
    if index_at < begin:
        [rest] = pack.read([(name.offset + index_at, begin - index_at)])
        tail = memoryview(b"".join((rest, tail)))
    return LazyRun(name, LazySection(name.offset, name.length, tail))


def _tail(name: RunName) -> tuple[int, int]:
    # Of a run that is shorter, what lies before it comes along: as a rule the values of a small commit.
    end = name.offset + name.length
    begin = max(end - TAIL, 0)
    return begin, end - begin


def _tail_at_hand(pack: RemotePack, name: RunName) -> memoryview | None:
    """Return all that follows the blocks if no request is needed for it."""
    if name.length <= TAIL:
        return pack.reader.find(name.offset, name.length)
    trailer = pack.reader.find(name.offset + name.length - _TRAILER_SIZE, _TRAILER_SIZE)
    if trailer is None:
        return None
    index_at = _index_at(trailer)
    return pack.reader.find(name.offset + index_at, name.length - index_at) if index_at < name.length else None


def _index_at(tail: memoryview) -> int:
    """Return where in a run its index begins. What is wrong with the trailer is said when the run is opened."""
    if len(tail) < _TRAILER_SIZE:
        return 0
    return int(_INDEX_AT.unpack_from(tail, len(tail) - _TRAILER_SIZE)[0])


def _ranged(packs: PackSource, name: PackName) -> RemotePack:
    return _remote(packs.get(name))


def _remote(pack: Pack) -> RemotePack:
    assert isinstance(pack, RemotePack), "these packs are mapped"
    return pack

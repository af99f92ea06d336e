"""Reads finished packs by byte ranges, with few requests for many readers. No range is requested twice.

Threads that read one pack at the same time share requests. While a few batches are under way, the other threads wait,
and the next one to send asks for what all of them want. `range_planning` makes ranges of that. They are fetched in
parallel, kept in the cache, and handed out; a thread that wants a range under way waits for it. When a reader in order
comes to the last window that was fetched, a background thread fetches the next one. Coroutines that want a few short
values take no turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from txstore import processes
from txstore.errors import CorruptionError, TxStoreError
from txstore.format import commitfile, names, packfile
from txstore.format.encoding import crc32c
from txstore.format.keys import is_document
from txstore.format.packfile import PackName
from txstore.observing import carried
from txstore.segments.packs import Missing, MissingPackError, Packs, PackSource, check_head
from txstore.segments.range_planning import RANGE, WINDOW_LARGEST, Range, ReadAhead, cut
from txstore.segments.replaced import ReplacedValues
from txstore.storage.interface import GONE, Storage
from txstore.storage.kept import PackCache, joined
from txstore.storage.objects.errors import CutShortError
from txstore.storage.request_threads import executor

if TYPE_CHECKING:
    from txstore.storage.objects.backend import TryRange
    from txstore.storage.objects.interface import Ranges

#: Packs whose streams are followed. What is behind one is found again, a little slower.
MAX_READERS = 4096
#: A value above this length is not cached in memory: its reader has it, and it would drive out hundreds of others.
_LARGE = 1 << 20


#: Batches of one pack that are under way at once. A thread that comes while there are fewer goes at once, for what it
#: wants alone; so the more there may be, the fewer threads share a request.
UNDER_WAY = 16
#: Fetches of one pack that are under way at once, those of threads included, if coroutines are to begin another. Of
#: more, threads make fewer requests.
AWAITED = 64
#: So long, in seconds, others wait for what a coroutine fetches: its event loop may have been stopped.
PATIENCE = 2.0
#: Bytes on both sides of a document that are fetched along: a reader of one document reads its neighbours next. From a
#: pack that a second document is read from, more: it holds many, not only the documents of a small commit.
BESIDE, BESIDE_LARGEST = 32 << 10, 128 << 10
#: Windows that are fetched in the background, of all packs, at once.
AHEAD = 8
#: Pieces of long ranges that are fetched at once, in memory besides what they are copied to.
PIECES = 16
#: No pack reaches beyond it, whatever a ref says.
_END = 1 << 62


class _Read(NamedTuple):
    """One range that is wanted, and the beginning of it that was at hand."""

    begin: int  # of what is missing
    end: int
    found: list[memoryview]


class _Request:
    """What one thread wants of a pack."""

    __slots__ = ("contents", "error", "has_turn", "is_done", "is_wide", "ranges", "wake")

    def __init__(self, ranges: Sequence[tuple[int, int]], *, is_wide: bool = False) -> None:
        self.ranges = ranges
        self.is_wide = is_wide  # what lies beside it is wanted next
        self.contents: list[memoryview] = []
        self.error: OSError | TxStoreError | None = None
        self.is_done = False
        self.has_turn = False
        self.wake: threading.Event | None = None  # of one that waits

    def go(self) -> None:
        """Let it go on: it is done, or this thread is the next to go."""
        if self.wake is not None:
            self.wake.set()


class _Fetch:
    """Ranges that are under way, ascending. A thread that wants bytes in them waits for them."""

    __slots__ = ("_futures", "_is_done", "_patience", "pieces", "ranges", "since")

    def __init__(self, ranges: Sequence[Range], since: int, patience: float | None = None) -> None:
        """`since`: the state of the cache. `patience`: how many seconds others wait; None: until it is done."""
        self.ranges = ranges
        self.since = since
        self._patience = patience
        self._futures: list[asyncio.Future[None]] = []  # of coroutines that wait for it
        self.pieces: list[tuple[int, memoryview]] | None = None  # None in the end, too, if it has failed
        self._is_done: threading.Event | None = None  # if somebody waits for it

    def awaited(self) -> Callable[[], object]:
        """Return what waits until it is done; the caller holds the lock."""
        if self._is_done is None:
            self._is_done = threading.Event()
        return partial(self._is_done.wait, self._patience)

    def future(self) -> asyncio.Future[None]:
        """Return what a coroutine awaits until it is done; the caller holds the lock."""
        future = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        return future

    def done(self) -> None:
        if self._is_done is not None:
            self._is_done.set()
        for future in self._futures:
            with contextlib.suppress(RuntimeError):  # its loop was closed
                future.get_loop().call_soon_threadsafe(_go_on, future)

    def holds(self, begin: int, end: int) -> bool:
        for low, high in self.ranges:
            if low <= begin < high:
                begin = high
        return begin >= end


class PackReader:
    """Reads one pack for all threads."""

    def __init__(self, ranges: Ranges, cache: PackCache, name: PackName) -> None:
        self._ranges = ranges
        self._cache = cache
        self._id = name.id
        self._path = name.path
        self._size: int | None = None
        self._has_checked_head = False
        # A coroutine ends its fetch even when it is dropped: by the garbage collector, in a thread that may be in here.
        self._lock = processes.new_rlock()
        self._ahead = ReadAhead()
        self._beside = BESIDE
        self._waiting: list[_Request] = []
        self._under_way = 0  # batches
        self._fetches: list[_Fetch] = []

    def read(self, ranges: Sequence[tuple[int, int]], *, is_wide: bool = False) -> list[memoryview]:
        """Return ranges, (offset, length) each: shorter only where the pack ends. Raises `FileNotFoundError`.

        With `is_wide`, of what has to be fetched also what lies beside it.
        """
        found = self._kept(ranges)
        if found is not None:
            return found
        request = _Request(ranges, is_wide=is_wide)
        self._wait_and_go(request)
        if request.error is not None:
            try:
                raise request.error
            finally:
                request.error = None  # it has this frame, which has the request: neither would go by itself
        return request.contents

    def _kept(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview] | None:
        """Return ranges if all of them are at hand."""
        contents = [self._cache.find(self._id, offset, length) for offset, length in ranges]
        found = [content for content in contents if content is not None]
        if len(found) < len(ranges):
            return None
        if ranges and self._ahead.is_due(ranges[-1][0]):
            self._read_on(ranges[-1][0])
        return found

    async def try_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview] | None:
        """Return short ranges as `read` does, without a thread and without a turn; None if that takes one.

        So it does where a request has failed: `read` repeats it, and says what is wrong.
        """
        try_range = self._ranges.try_range
        if try_range is None or not self._cache.is_in_memory:
            return None
        reads = [self._start(*wanted) for wanted in ranges]
        missing = {(read.begin, read.end) for read in reads if read.begin < read.end}
        if not missing:
            return self._kept(ranges)
        with self._lock:
            if len(self._fetches) >= AWAITED:
                return None
            theirs, pieces = self._found_elsewhere(missing)
            ours = missing - theirs.keys() - pieces.keys()
            fetch = self._planned(self._ahead.plan(ours, self._size), PATIENCE) if ours else None
            others = {id(each): (each, each.future()) for each in theirs.values()}.values()
        if fetch is not None:
            await self._await_fetch(fetch, try_range, ours)
        if others:
            await asyncio.wait([future for _, future in others], timeout=PATIENCE)
        found = [(begin, piece) for (begin, _), piece in pieces.items()]
        for each in [fetch, *[each for each, _ in others]]:
            if each is not None:
                if each.pieces is None:
                    return None
                found += each.pieces
        found.sort(key=itemgetter(0))
        return [_assembled(read, found) for read in reads]

    async def _await_fetch(self, fetch: _Fetch, try_range: TryRange, wanted: Iterable[Range]) -> None:
        """Fetch what others see already. It has no pieces if that has failed."""
        try:
            requests = [try_range(self._path, begin, end - begin) for begin, end in fetch.ranges]
            contents = [await requests[0]] if len(requests) == 1 else await asyncio.gather(*requests)
            found = [memoryview(content) for content in contents if content is not None]
            if len(found) == len(requests):
                with contextlib.suppress(TxStoreError):  # the next request raises it
                    fetch.pieces = self._keep(list(zip(fetch.ranges, found, strict=True)), wanted, fetch.since)
        finally:
            self._end(fetch)

    def read_into(self, offset: int, place: npt.NDArray[np.uint8]) -> None:
        """Read a long range to where it is wanted, as far as the pack goes; other readers get it only from the disk
        cache.

        Raises `FileNotFoundError`.
        """
        content = self._cache.find(self._id, offset, len(place))
        if content is None:
            self._get_into(offset, place)
        else:
            np.copyto(place, np.frombuffer(content, np.uint8))

    def read_unchecked(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Return ranges that no checksum ties to this pack: its head does, which is read along with the first ones."""
        if self._has_checked_head or not ranges:
            return self.read(ranges)
        *contents, head = self.read([*ranges, (0, packfile.HEAD_SIZE)])
        self._check_head(head)
        return contents

    def size(self) -> int:
        if self._size is None:
            self._size = self._ranges.get_tail(self._path, commitfile.FOOTER_SIZE)[1]
        return self._size

    def find(self, offset: int, length: int) -> memoryview | None:
        """Return a range that is at hand, without a request."""
        return self._cache.find(self._id, offset, length)

    def at_hand(self, offset: int, length: int) -> memoryview | None:
        """Return a range that is in memory."""
        return self._cache.at_hand(self._id, offset, length)

    def forget(self) -> None:
        """Read all anew: what was read is not what was written. Perhaps it is the cache, or it was repaired since."""
        self._cache.forget(self._id)
        self._size = None
        self._has_checked_head = False

    # --- taking turns

    # If any wait, all turns are taken, or the first of them has just got one: it takes all along that wait by then.

    def _wait_and_go(self, request: _Request) -> None:
        with self._lock:
            if self._under_way < UNDER_WAY and not self._waiting:
                self._under_way += 1
                request.has_turn = True
            else:
                request.wake = threading.Event()
                self._waiting.append(request)
        if request.wake is None:
            self._go(request, [request])
            return
        try:
            request.wake.wait()
        except BaseException:
            self._leave(request)
            raise
        if not request.is_done:
            with self._lock:
                taken, self._waiting = self._waiting, []
            self._go(request, taken)

    def _go(self, request: _Request, taken: Sequence[_Request]) -> None:
        """Fetch what all want that have waited, this thread first among them; then the next goes."""
        try:
            self._serve(taken)
        except (OSError, TxStoreError) as error:
            for each in taken:
                each.error = error
                each.is_done = True
        finally:
            with self._lock:
                for each in taken:
                    if each.is_done:
                        each.go()
                # This thread was interrupted: the others go without it.
                self._waiting += [each for each in taken if not (each.is_done or each is request)]
                self._next_goes()

    def _next_goes(self) -> None:
        """The caller holds the lock, and a turn."""
        if self._waiting and not self._waiting[0].has_turn:
            self._waiting[0].has_turn = True
            self._waiting[0].go()
        else:
            self._under_way -= 1

    def _leave(self, request: _Request) -> None:
        """Wait no longer, and pass the turn on if it has just come."""
        with self._lock:
            if request in self._waiting:
                self._waiting.remove(request)
                if request.has_turn:
                    self._next_goes()

    # --- fetching

    def _serve(self, requests: Sequence[_Request]) -> None:
        reads = [[self._start(*wanted) for wanted in request.ranges] for request in requests]
        missing = {(read.begin, read.end) for each in reads for read in each if read.begin < read.end}
        wide = {(each.begin, each.end) for at, request in enumerate(requests) if request.is_wide for each in reads[at]}
        # A reader that asks for so much at a time plans ahead itself: it would ask meanwhile for what is fetched along.
        alone = {(each.begin, each.end) for each_of in reads if _length(each_of) >= WINDOW_LARGEST for each in each_of}
        pieces = self._pieces(missing, wide, alone) if missing else []
        for request, each in zip(requests, reads, strict=True):
            request.contents = [_assembled(read, pieces) for read in each]
            request.is_done = True

    def _pieces(self, missing: set[Range], wide: set[Range], alone: set[Range]) -> list[tuple[int, memoryview]]:
        """Return pieces that hold what is missing, with their offsets, ascending: fetched here, or by others."""
        with self._lock:
            theirs, found = self._found_elsewhere(missing)
            ours = missing - theirs.keys() - found.keys()
            wanted = [self._widened(*each) if each in wide else each for each in ours]
            fetch = self._planned(self._ahead.plan(wanted, self._size, alone)) if ours else None
            waits = [(each, other, other.awaited()) for each, other in theirs.items()]
        pieces = [(begin, piece) for (begin, _), piece in found.items()]
        if fetch is not None:
            pieces += self._fetched(fetch, ours)
        # After our own: so of two that want what the other fetches, neither waits for ever.
        failed = set()
        for each, other, wait in waits:
            wait()
            if other.pieces is None:
                failed.add(each)
        if failed:
            with self._lock:
                fetch = self._planned(self._ahead.plan(failed, self._size))
            pieces += self._fetched(fetch, failed)
        for other in {id(each): each for each in theirs.values()}.values():
            pieces += other.pieces or ()
        return sorted(pieces, key=itemgetter(0))

    def _widened(self, begin: int, end: int) -> Range:
        """Return what is fetched for a document; the caller holds the lock."""
        beside, self._beside = self._beside, BESIDE_LARGEST
        stop = end + beside
        return max(begin - beside, 0), stop if self._size is None else max(end, min(stop, self._size))

    def _found_elsewhere(self, missing: Set[Range]) -> tuple[dict[Range, _Fetch], dict[Range, memoryview]]:
        """Return the ranges that other threads are fetching, and the ones that they have fetched since the cache was
        asked.

        The caller holds the lock. A fetch leaves the list after the cache has what it brought, so none is missed.
        """
        theirs = {
            each: fetch
            for each in missing
            for fetch in self._fetches
            if fetch.since == self._cache.state and fetch.holds(*each)
        }
        kept = {(begin, end): self._cache.find(self._id, begin, end - begin) for begin, end in missing - theirs.keys()}
        return theirs, {each: content for each, content in kept.items() if content is not None}

    def _planned(self, ranges: Sequence[Range], patience: float | None = None) -> _Fetch:
        """Let others see what is about to be fetched; the caller holds the lock."""
        fetch = _Fetch(ranges, self._cache.state, patience)
        self._fetches.append(fetch)
        return fetch

    def _fetched(self, fetch: _Fetch, wanted: Iterable[Range]) -> list[tuple[int, memoryview]]:
        try:
            fetch.pieces = self._fetch(fetch, wanted)
            return fetch.pieces
        finally:
            self._end(fetch)

    def _end(self, fetch: _Fetch) -> None:
        with self._lock:
            self._fetches.remove(fetch)
            fetch.done()

    def _read_on(self, position: int) -> None:
        """Fetch the next window in the background, for a reader that has come to the last one that was read ahead."""
        with self._lock:
            ranges = self._ahead.go_on(position, self._size)
            fetch = self._planned(ranges) if ranges else None
        if fetch is not None:
            try:
                executor("read ahead", AHEAD).submit(carried(self._read_ahead), fetch)
            except RuntimeError:  # the interpreter ends, and starts no more threads
                self._read_ahead(fetch)

    def _read_ahead(self, fetch: _Fetch) -> None:
        with contextlib.suppress(OSError, TxStoreError):  # a reader that wants it asks again, and gets the error
            self._fetched(fetch, ())

    def _start(self, offset: int, length: int) -> _Read:
        found = self._cache.find_start(self._id, offset, length)
        return _Read(offset + sum(map(len, found)), min(offset + length, _END), found)

    def _fetch(self, fetch: _Fetch, wanted: Iterable[Range]) -> list[tuple[int, memoryview]]:
        ranges = fetch.ranges
        long = [each for each in ranges if each[1] - each[0] > RANGE]
        short = [each for each in ranges if each[1] - each[0] <= RANGE]
        pieces = [*zip(short, self._get(short), strict=True), *zip(long, self._get_long(long), strict=True)]
        return self._keep(sorted(pieces), wanted, fetch.since)

    def _keep(
        self, pieces: Sequence[tuple[Range, memoryview]], wanted: Iterable[Range], since: int
    ) -> list[tuple[int, memoryview]]:
        """Keep what was fetched since a state of the cache, and return it with its offsets."""
        large = [each for each in wanted if each[1] - each[0] > _LARGE]
        for (begin, end), content in pieces:
            if begin == 0 and len(content) >= packfile.HEAD_SIZE:
                self._check_head(content)
            if len(content) < end - begin and (content or begin == 0):
                self._size = begin + len(content)
            is_large = any(low <= begin and end <= high for low, high in large)
            if end - begin <= RANGE:  # else it was kept piece by piece
                self._cache.keep(self._id, begin, content, in_memory=not is_large, since=since)
        return [(begin, content) for (begin, _), content in pieces]

    def _get(self, ranges: Sequence[Range]) -> list[memoryview]:
        wanted = [(begin, end - begin) for begin, end in ranges]
        if len(wanted) < 2:
            return [memoryview(self._ranges.get_range(self._path, *each)) for each in wanted]
        try:
            return [memoryview(content) for content in self._ranges.get_ranges(self._path, wanted)]
        except CutShortError:  # then the bytes that exist, so that the reader says what is damaged
            return [memoryview(self._ranges.get_range(self._path, *each)) for each in wanted]

    def _get_long(self, ranges: Sequence[Range]) -> list[memoryview]:
        found = []
        for begin, end in ranges:
            length = end - begin
            if length > PIECES * RANGE:  # a stranger's ref may say so: no memory is taken beyond the pack's end
                length = max(0, min(end, self.size()) - begin)
            place = np.empty(length, np.uint8)
            found.append(memoryview(place).toreadonly()[: self._get_into(begin, place)])
        return found

    def _get_into(self, begin: int, place: npt.NDArray[np.uint8]) -> int:
        """Fetch a long range in pieces: each is copied as it comes, while others are under way. Return its length."""
        ends, since = [begin + len(place)], self._cache.state

        def get(piece: Range) -> None:
            start, stop = piece
            content = self._ranges.get_range(self._path, start, stop - start)
            length = len(content)
            # Not by a slice of a memoryview: that would keep the interpreter meanwhile.
            np.copyto(place[start - begin : start - begin + length], np.frombuffer(content, np.uint8))
            self._cache.keep(self._id, start, content, in_memory=False, since=since)
            if length < stop - start:
                ends.append(start + length)

        pieces = list(cut(begin, begin + len(place)))
        try:
            results = executor("piece", PIECES).map(get, pieces)
        except RuntimeError:  # the interpreter ends, and starts no more threads
            results = map(get, pieces)
        deque(results, maxlen=0)
        return min(ends) - begin

    def _check_head(self, content: memoryview) -> None:
        try:
            check_head(self._path, bytes(content[: packfile.HEAD_SIZE]), self._id)
        except CorruptionError:
            self.forget()
            raise
        self._has_checked_head = True


def _go_on(future: asyncio.Future[None]) -> None:
    if not future.done():  # the task that awaited it may have been cancelled
        future.set_result(None)


def _length(reads: Iterable[_Read]) -> int:
    return sum(each.end - each.begin for each in reads)


def _assembled(read: _Read, pieces: Sequence[tuple[int, memoryview]]) -> memoryview:
    parts, position = list(read.found), read.begin
    for offset, piece in pieces:
        if offset <= position < min(offset + len(piece), read.end):
            parts.append(piece[position - offset : read.end - offset])
            position += len(parts[-1])
    return joined(parts)


class RemotePack:
    """A pack that is read by ranges.

    Its head is not read first, as that of a pack that is mapped is: it would be one more request. That these bytes are
    what was written the checksum of each value says. Only a part of a value has none, and a run says no more than that
    it is one: where these are read first, the head is, too.
    """

    __slots__ = ("_missing", "path", "reader")

    def __init__(self, reader: PackReader, path: str, missing: Missing | None) -> None:
        self.reader = reader
        self.path = path
        self._missing = missing

    @property
    def may_be_replaced(self) -> bool:
        # A data pack's name is random; that of a commit file is used again where a repository is deleted and made anew.
        return names.is_commit_path(self.path)

    @property
    def size(self) -> int:
        try:
            return self.reader.size()
        except GONE as error:
            raise self._is_missing() from error

    def view(self, offset: int, length: int, checksum: int, key: str | None = None) -> memoryview:
        content = self._value(offset, length, key)
        if crc32c(content) == checksum:
            return content
        self.reader.forget()
        content = self._value(offset, length, key)
        if (computed := crc32c(content)) != checksum:
            reason = f"checksum mismatch: stored 0x{checksum:08x}, computed 0x{computed:08x}"
            raise CorruptionError(self.path, offset=offset, key=key, reason=reason)
        return content

    def read_into(self, offset: int, length: int, checksum: int, target: memoryview) -> bool:
        """Read a long value to where it is wanted, if it is as long as that; tell whether its checksum is right."""
        if len(target) != length:
            return False
        try:
            self.reader.read_into(offset, np.frombuffer(target, np.uint8))
        except GONE as error:
            raise self._is_missing() from error
        return crc32c(target) == checksum

    def part(self, offset: int, length: int, part: slice, key: str | None = None) -> memoryview:
        start, stop, step = part.indices(length)
        if step != 1:
            return self.part(offset, length, slice(None), key)[part]
        if stop <= start:
            return memoryview(b"")
        [content] = self.read_unchecked([(offset + start, stop - start)])
        return self._complete(content, stop - start, offset, key)

    def section(self, offset: int, length: int) -> memoryview:
        [content] = self.read([(offset, length)])
        return content  # if the pack ends too early, the run says so

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Return ranges, (offset, length) each: shorter only where the pack ends."""
        try:
            return self.reader.read(ranges)
        except GONE as error:
            raise self._is_missing() from error

    def read_unchecked(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """As `read`, of what no checksum ties to this pack: parts of values, and runs."""
        try:
            return self.reader.read_unchecked(ranges)
        except GONE as error:
            raise self._is_missing() from error

    def _value(self, offset: int, length: int, key: str | None) -> memoryview:
        is_wide = key is not None and is_document(key)
        try:
            [content] = self.reader.read([(offset, length)], is_wide=is_wide)
        except GONE as error:
            raise self._is_missing() from error
        return self._complete(content, length, offset, key)

    def _complete(self, content: memoryview, length: int, offset: int, key: str | None) -> memoryview:
        if len(content) != length:
            raise CorruptionError(self.path, offset=offset, key=key, reason="the value reaches beyond the file")
        return content

    def _is_missing(self) -> MissingPackError:
        # Never a missing key (I4): zarr would turn it into fill values.
        if self._missing is not None:
            self._missing()
        return MissingPackError(self.path, reason="the file is missing")


class RemotePacks:
    """The packs of one repository, read by ranges. Safe in threads, and after a fork. `get` makes no request."""

    is_ranged = True

    def __init__(self, ranges: Ranges, cache: PackCache, replaced: ReplacedValues | None = None) -> None:
        self._ranges = ranges
        self._cache = cache
        self.replaced = replaced
        self._readers: dict[bytes, PackReader] = {}
        self._lock = processes.new_lock()
        processes.watch(self)

    def get(self, name: PackName, missing: Missing | None = None) -> RemotePack:
        reader = self._readers.get(name.id)
        if reader is None:
            with self._lock:
                reader = self._readers.setdefault(name.id, PackReader(self._ranges, self._cache, name))
                if len(self._readers) > MAX_READERS:
                    del self._readers[next(iter(self._readers))]
        return RemotePack(reader, name.path, missing)

    def after_fork_in_child(self) -> None:
        self._readers = {}  # a thread of the parent's may be at it, which will never be done here


def open_packs(storage: Storage) -> PackSource:
    """Return the packs of a repository as its storage lets them be read: mapped, or by ranges."""
    ranges = storage.ranges
    return Packs(storage) if ranges is None else RemotePacks(ranges, storage.cache, ReplacedValues(storage))

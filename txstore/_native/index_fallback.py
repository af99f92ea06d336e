"""Runs: look up, scan, build, merge. The pure Python fallback of `_index.c`: same names, same bytes, same errors.

docs/understand/format.md, "Runs", is the layout. A run is read where it lies; opening it checks the trailer, the index,
the prefixes and the packs, and every access to a block checks that block. All faults are `ValueError`: "<part> at
<offset in the run>: <what is wrong>".
"""

from __future__ import annotations

import io
import re
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import google_crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer

IMPLEMENTATION = "python"

BLOCK_BYTES = 4096
PIECE_BYTES = 1 << 20
BLOCK_MOST = 16384  # bytes: entries before the last, the last entry, and restart points each have fewer
RESTART_EVERY = 16
KEY_BYTES = 4096
RUN_KIND_BLOCK_TABLE = 1
BLOCK_CODEC_NONE = 0
#: Every kind but the first points to a pack. An erased entry's value no longer exists: the key is neither live nor
#: deleted.
TOMBSTONE, PACK, FOREIGN, ERASED = REF_KINDS = 0, 1, 3, 5
NOT_LIVE = (TOMBSTONE, ERASED)
PREFIX_TOMBSTONE = 4  # the answer of lookup() for a key that only a prefix tombstone hides

RECORD = struct.Struct("<QIIQII")  # format.md, "Index"
PREFIX = struct.Struct("<IIQ")
TRAILER = struct.Struct("<4sHHIIIQQQQQI")
U32 = struct.Struct("<I")
_ENTRY = struct.Struct("=6q")  # of `locate`
assert (RECORD.size, PREFIX.size, TRAILER.size) == (32, 16, 64)

U64_MAX = 2**64 - 1
U32_MAX = 2**32 - 1

Entry = tuple[bytes, int, int, int, int, int, int]
Sink = Callable[[bytes], object]
Live = tuple[bytes, int, int, int, int, int, int, int]
Found = tuple[int, int, int, int, int, int, int]


class _Record(NamedTuple):
    offset: int
    length: int
    checksum: int
    max_seq: int  # as stored: 0 in an own run
    first_key: bytes


class Run:
    """One run over `buffer`, which is exactly its section. A stored seq of 0 means `seq`."""

    def __init__(self, buffer: Buffer, seq: int) -> None:
        data = memoryview(buffer).cast("B")
        self.seq = _unsigned(seq, U64_MAX)
        self._data = data
        size = len(data)
        at = size - TRAILER.size
        if at < 0:
            _fault("trailer", 0, "the run is shorter than a trailer")
        (magic, kind, codec, blocks, prefixes, packs, entries, max_seq, index_at, prefixes_at, packs_at, checksum) = (
            TRAILER.unpack_from(data, at)
        )
        if magic != b"TXRN":
            _fault("trailer", at, "not a run")
        if kind != RUN_KIND_BLOCK_TABLE:
            _fault("trailer", at, f"unknown run kind {kind}")
        if codec != BLOCK_CODEC_NONE:
            _fault("trailer", at, f"unknown block codec {codec}")
        if not index_at <= prefixes_at <= packs_at <= at:
            _fault("trailer", at, "offsets out of order")
        if _crc32c(data[index_at : size - U32.size]) != checksum:
            _fault("index", index_at, "checksum mismatch")

        self.entries: int = entries
        self._max_seq: int = max_seq
        self._index: list[_Record] = _read_index(data[index_at:prefixes_at], blocks, index_at, max_seq)
        self._prefixes = _read_prefixes(data[prefixes_at:packs_at], prefixes, prefixes_at, max_seq)
        self._packs = _read_packs(data[packs_at:at], packs, packs_at)
        self._first_keys = [record.first_key for record in self._index]
        self._prefix_keys = [prefix for prefix, _ in self._prefixes]
        self._index_at: int = index_at
        self._trailer_at = at

    @property
    def blocks(self) -> int:
        return len(self._index)

    @property
    def max_seq(self) -> int:
        return self._max_seq or (self.seq if self.entries or self._prefixes else 0)

    @property
    def prefixes(self) -> list[tuple[bytes, int]]:
        return [(prefix, seq or self.seq) for prefix, seq in self._prefixes]

    @property
    def packs(self) -> list[bytes]:
        return list(self._packs)

    def scan(self, start: bytes, stop: bytes | None, limit: int, since: int = 0) -> list[Entry]:
        """Entries of this run alone, tombstones included, with start <= key < stop and seq > since."""
        result: list[Entry] = []
        cursor = _Cursor(self, stop, _unsigned(since, U64_MAX))
        if limit == 0:
            return result
        more = cursor.seek(start)
        while more:
            result.append(cursor.entry)
            more = len(result) != limit and cursor.advance()
        return result

    def window(self, start: bytes, at_least: int, since: int = 0) -> tuple[int, int, bytes | None]:
        """The bytes that the caller must load before a query: (begin, end, first key after them or None).

        The window starts with the block that may contain `start`, or the first block after `start`. It has enough
        blocks for `at_least` bytes, and at least one if any exists. With 0 it has only the block that may contain
        `start`: none if `start` is below all keys. With `since`, a block without newer entries is skipped at the
        start, and ends the window later. No block is read.
        """
        _unsigned(at_least, U64_MAX)
        _unsigned(since, U64_MAX)
        if not isinstance(start, bytes):
            raise TypeError("start is bytes")
        first = bisect_right(self._first_keys, start) - 1
        last = max(first, 0)
        if first >= 0 or at_least:
            while since and last < self.blocks and not self._is_newer(last, since):
                last += 1
            first, begin = last, self._block_begin(last)
            while last < self.blocks and (last == first or self._block_begin(last) - begin < at_least):
                if since and not self._is_newer(last, since):
                    break
                last += 1
        after = self._first_keys[last] if last < self.blocks else None
        return self._block_begin(max(first, 0)), self._block_begin(last), after

    def _block_begin(self, i: int) -> int:
        return self._index[i].offset if i < self.blocks else self._index_at

    def _is_newer(self, i: int, since: int) -> bool:
        return (self._index[i].max_seq or self.seq) > since

    def verify(self) -> None:
        """Read every block; ValueError on the first fault."""
        total, last = 0, b""
        highest = max((seq for _, seq in self._prefixes), default=0)
        for i, record in enumerate(self._index):
            block = _Block(self, i, last)
            count = block_highest = 0
            while block.at < block.end:
                if count % RESTART_EVERY == 0:
                    restart = count // RESTART_EVERY
                    if restart >= len(block.restarts) or block.restarts[restart] != block.at:
                        _fault("block", record.offset, "bad restart points")
                entry = block.decode()
                if count % RESTART_EVERY == 0 and block.shared != 0:
                    _fault("block", record.offset, "bad restart points")
                block_highest = max(block_highest, entry.seq)
                count += 1
            if len(block.restarts) != -(-count // RESTART_EVERY):
                _fault("block", record.offset, "bad restart points")
            if self._max_seq and block_highest != record.max_seq:
                _fault("block", record.offset, "wrong highest seq")
            highest = max(highest, record.max_seq)
            total, last = total + count, block.key
        if total != self.entries:
            _fault("trailer", self._trailer_at, "wrong number of entries")
        if highest != self._max_seq:
            _fault("trailer", self._trailer_at, "wrong highest seq")


def _read_index(part: memoryview, blocks: int, base: int, highest: int) -> list[_Record]:
    keys_at = blocks * RECORD.size
    if keys_at > len(part):
        _fault("index", base, "too short for its blocks")
    keys = bytes(part[keys_at:])
    records: list[_Record] = []
    expected = next_key = 0
    previous = b""
    for at in range(0, keys_at, RECORD.size):
        offset, length, checksum, max_seq, key_at, key_length = RECORD.unpack_from(part, at)
        if offset != expected or length > base - offset:
            _fault("index", base + at, "block out of place")
        if length > BLOCK_MOST:
            _fault("index", base + at, "block too long")
        if not 1 <= key_length <= KEY_BYTES or key_at + key_length > len(keys):
            _fault("index", base + at, "first key out of bounds")
        if key_at != next_key:
            _fault("index", base + at, "first key out of place")
        if max_seq > highest or (max_seq == 0) != (highest == 0):
            _fault("index", base + at, "bad seq")
        first_key = keys[key_at : key_at + key_length]
        if first_key <= previous:
            _fault("index", base + at, "keys out of order")
        records.append(_Record(offset, length, checksum, max_seq, first_key))
        expected = offset + length
        next_key += key_length
        previous = first_key
    if expected != base:
        _fault("index", base, "blocks do not end where the index begins")
    if next_key != len(keys):
        _fault("index", base, "first keys do not end where the prefixes begin")
    return records


def _read_prefixes(part: memoryview, count: int, base: int, highest: int) -> list[tuple[bytes, int]]:
    keys_at = count * PREFIX.size
    if keys_at > len(part):
        _fault("prefixes", base, "too short for their count")
    keys = bytes(part[keys_at:])
    prefixes: list[tuple[bytes, int]] = []
    next_key = 0
    for at in range(0, keys_at, PREFIX.size):
        key_at, key_length, seq = PREFIX.unpack_from(part, at)
        if key_length > KEY_BYTES or key_at + key_length > len(keys):
            _fault("prefixes", base + at, "prefix out of bounds")
        if key_at != next_key:
            _fault("prefixes", base + at, "prefix out of place")
        if seq > highest or (seq == 0) != (highest == 0):
            _fault("prefixes", base + at, "bad seq")
        prefix = keys[key_at : key_at + key_length]
        if prefix and not prefix.endswith(b"/"):
            _fault("prefixes", base + at, "prefix does not end in /")
        if prefixes and prefix <= prefixes[-1][0]:
            _fault("prefixes", base + at, "prefixes out of order")
        prefixes.append((prefix, seq))
        next_key += key_length
    if next_key != len(keys):
        _fault("prefixes", base, "prefixes do not end where the packs begin")
    return prefixes


def _read_packs(part: memoryview, count: int, base: int) -> list[bytes]:
    data = bytes(part)
    packs: list[bytes] = []
    at = 0
    for _ in range(count):
        length, start = _read_varint(data, at, len(data))
        if start < 0 or length > len(data) - start:
            _fault("packs", base + at, "pack out of bounds")
        packs.append(data[start : start + length])
        at = start + length
    if at != len(data):
        _fault("packs", base + at, "packs do not end where the trailer begins")
    return packs


class _Entry(NamedTuple):
    key: bytes
    kind: int
    seq: int
    pack: int
    offset: int
    length: int
    checksum: int


class _Block:
    """One block of a run, checked. `decode` reads one entry after another.

    `previous` is the last key of the block before, if that was read: the keys of this block have to be above it.
    """

    def __init__(self, run: Run, index: int, previous: bytes = b"") -> None:
        record = run._index[index]
        self.run = run
        self.index = index
        self.start = record.offset
        self.content = bytes(run._data[record.offset : record.offset + record.length])
        if _crc32c(self.content) != record.checksum:
            self._bad("checksum mismatch")
        count = U32.unpack_from(self.content, record.length - 4)[0] if record.length >= 4 else 0
        self.at, self.end = 0, record.length - 4 - 4 * count  # the next entry, and the end of the entries
        if count == 0 or self.end <= 0:
            self._bad("bad restart points")
        self.restarts: tuple[int, ...] = struct.unpack_from(f"<{count}I", self.content, self.end)
        if self.restarts[0] != 0:
            self._bad("bad restart points")
        self.key = previous  # of the entry that was decoded last
        self.shared = 0  # the number of bytes of that key that were left out
        self.chained = 0  # successive entries, up to that one, with shortened keys: fewer than RESTART_EVERY
        self.kind_at = 0  # offset of that entry's kind; the entry's last four bytes are its checksum

    def search(self, key: bytes) -> _Entry | None:
        """Return the first entry whose key is >= `key`, and continue after it. None: the block is exhausted."""
        low, high = 0, len(self.restarts) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._restart(middle).key <= key:
                low = middle
            else:
                high = middle - 1
        entry = self._restart(low)
        while entry.key < key:
            if self.at == self.end:
                return None
            entry = self.decode()
        return entry

    def decode(self) -> _Entry:
        """Return the entry at `at`, whose key continues `key`."""
        block, end, run = self.content, self.end, self.run
        shared, at = _read_varint(block, self.at, end)
        unshared, at = _read_varint(block, at, end)
        if at < 0 or shared > len(self.key) or (self.at == 0 and shared) or unshared > end - at:
            self._bad("bad entry")
        if not 1 <= shared + unshared <= KEY_BYTES:
            self._bad("bad entry")
        # Otherwise every entry of a few bytes could expand to a key of 4,096 bytes, through the whole block.
        chained = self.chained + 1 if shared else 0
        if chained == RESTART_EVERY:
            self._bad("bad restart points")
        suffix = block[at : at + unshared]
        if suffix <= self.key[shared:]:
            self._bad("keys out of order")
        # Without this check a seek could end below its target key, and a merge would seek for ever.
        if self.at == 0 and suffix != run._first_keys[self.index]:
            self._bad("first key differs from the index")
        key = self.key[:shared] + suffix
        at += unshared
        if at == end:
            self._bad("bad entry")
        kind, kind_at = block[at], at
        if kind not in REF_KINDS:
            self._bad(f"unknown ref kind {kind}")
        seq, at = _read_varint(block, at + 1, end)
        if at < 0 or (seq == 0) != (run._max_seq == 0) or seq > run._index[self.index].max_seq:
            self._bad("bad entry")
        pack = offset = length = checksum = 0
        if kind != TOMBSTONE:
            pack, at = _read_varint(block, at, end)
            offset, at = _read_varint(block, at, end)
            length, at = _read_varint(block, at, end)
            if at < 0 or end - at < U32.size:
                self._bad("bad entry")
            if pack > len(run._packs):
                self._bad("pack number out of range")
            (checksum,) = U32.unpack_from(block, at)
            at += U32.size
        self.at, self.key, self.shared, self.chained, self.kind_at = at, key, shared, chained, kind_at
        return _Entry(key, kind, seq or run.seq, pack, offset, length, checksum)

    def _restart(self, number: int) -> _Entry:
        """Return the entry of a restart point, and continue after it."""
        at = self.restarts[number]
        if at >= self.end:
            self._bad("bad restart points")
        self.at, self.key = at, b""
        return self.decode()

    def _bad(self, what: str) -> NoReturn:
        _fault("block", self.start, what)


class _Cursor:
    """A position in one run. After `seek` or `advance` returned True, `entry` is the current entry.

    It ends at the first key >= stop. It skips entries with seq <= since, and blocks without newer entries.
    """

    def __init__(self, run: Run, stop: bytes | None = None, since: int = 0) -> None:
        self.run = run
        self.stop = stop
        self.since = since
        self.entry = _Entry(b"", 0, 0, 0, 0, 0, 0)
        self._block: _Block | None = None

    def seek(self, key: bytes) -> bool:
        """Go to the first entry whose key is >= `key`."""
        if self.stop is not None and key >= self.stop:
            return False
        i = bisect_right(self.run._first_keys, key) - 1
        if i < 0 or not self.run._is_newer(i, self.since):
            self._block = None
            return self._enter(i + 1) is not None and self.advance()
        if self._block is None or self._block.index != i:
            self._block = _Block(self.run, i)
        entry = self._block.search(key)
        if entry is None:
            return self.advance()
        self.entry = entry
        return self._admits_stop() and (entry.seq > self.since or self.advance())

    def advance(self) -> bool:
        """Go to the entry after this one."""
        while True:
            block = self._block
            if block is not None and block.at == block.end:
                block = self._enter(block.index + 1)
            if block is None:
                return False
            self.entry = block.decode()
            if not self._admits_stop():
                return False
            if self.entry.seq > self.since:
                return True

    def _enter(self, i: int) -> _Block | None:
        """Go before the first entry of block `i`, or of the next block with newer entries."""
        while i < self.run.blocks and not self.run._is_newer(i, self.since):
            i += 1
        if i >= self.run.blocks or (self.stop is not None and self.run._first_keys[i] >= self.stop):
            return None
        self._block = _Block(self.run, i, b"" if self._block is None else self._block.key)
        return self._block

    def _admits_stop(self) -> bool:
        return self.stop is None or self.entry.key < self.stop


def _prefixes_over(run: Run, key: bytes) -> Iterator[int]:
    """The prefix tombstones of `run` that cover `key`, shortest first, by their number."""
    prefixes = run._prefix_keys
    at = 0
    while prefixes:
        prefix = key[:at]
        i = bisect_left(prefixes, prefix)
        if i < len(prefixes) and prefixes[i] == prefix:
            yield i
        at = key.find(b"/", at) + 1
        if at == 0:
            return


def _after_prefix(prefix: bytes) -> bytes | None:
    """The first key above all keys with `prefix`; None if none exists. A prefix ends in / or is empty."""
    return prefix[:-1] + b"0" if prefix else None


def _newest(runs: tuple[Run, ...], start: bytes, stop: bytes | None) -> Iterator[tuple[int, _Entry]]:
    """The newest entry of each key that no prefix tombstone of a newer run hides, ascending."""
    cursors: dict[int, _Cursor] = {}
    for i, run in enumerate(runs):
        cursor = _Cursor(run, stop)
        if cursor.seek(start):
            cursors[i] = cursor
    while cursors:
        key = min(cursor.entry.key for cursor in cursors.values())
        standing = [i for i, cursor in cursors.items() if cursor.entry.key == key]
        newest = standing[0]
        hidden = next(((i, number) for i in range(newest) for number in _prefixes_over(runs[i], key)), None)
        if hidden is None:
            yield newest, cursors[newest].entry
            for i in standing:
                if not cursors[i].advance():
                    del cursors[i]
            continue
        hider, number = hidden
        after = _after_prefix(runs[hider]._prefix_keys[number])
        for i in [i for i in cursors if i > hider]:
            if after is None or (cursors[i].entry.key < after and not cursors[i].seek(after)):
                del cursors[i]


def lookup(runs: tuple[Run, ...], key: bytes, /) -> Found | None:
    """The entry of `key` in the newest run that has one; runs are newest first."""
    for i, run in enumerate(runs):
        block = bisect_right(run._first_keys, key) - 1
        if block >= 0:
            entry = _Block(run, block).search(key)
            if entry is not None and entry.key == key:
                return (i, *entry[1:])
        seqs = [run._prefixes[number][1] or run.seq for number in _prefixes_over(run, key)]
        if seqs:
            return (i, PREFIX_TOMBSTONE, max(seqs), 0, 0, 0, 0)
    return None


def locate(runs: tuple[Run, ...], keys: tuple[bytes, ...], /) -> bytes:
    """The newest entry of each key: six int64 for each, kind, run, pack, offset, length, checksum.

    A kind of -1: the key has no entry, or a tombstone.
    """
    table = []
    for key in keys:
        found = lookup(runs, key)
        if found is None or found[1] in (TOMBSTONE, PREFIX_TOMBSTONE):
            table.append(_ENTRY.pack(-1, 0, 0, 0, 0, 0))
        else:
            run, kind, _, pack, offset, length, checksum = found
            table.append(_ENTRY.pack(kind, run, pack, _signed(offset), _signed(length), checksum))
    return b"".join(table)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def scan(runs: tuple[Run, ...], start: bytes, stop: bytes | None, limit: int) -> list[Live]:
    """The live entries with start <= key < stop over all runs (newest first), at most `limit` unless it is negative."""
    result: list[Live] = []
    if limit == 0:
        return result
    for i, c in _newest(runs, start, stop):
        if c.kind not in NOT_LIVE:
            result.append((c.key, i, *c[1:]))
            if len(result) == limit:
                break
    return result


def build(
    entries: Iterable[tuple[Any, ...]], prefixes: Iterable[bytes], packs: Iterable[bytes] = (), sink: Sink | None = None
) -> bytes | None:
    """A commit's run of (key, kind, offset, length, checksum) in ascending order of key, read one at a time.

    A sixth member is the number of the value's pack in `packs`, from 1; 0: the run's own file. A seventh is the seq; 0:
    the seq of the commit whose file will contain the run.

    If `sink` is given, it receives the run piece by piece, and the function returns None.
    """
    writer = _Writer(sink)
    tables = list(packs)
    if not all(isinstance(pack, bytes) for pack in tables):
        raise TypeError("a pack entry is bytes")
    for entry in entries:
        if not isinstance(entry, tuple) or len(entry) not in (5, 6, 7):
            raise TypeError("an entry is (key, kind, offset, length, checksum) and perhaps a pack and a seq")
        key, kind, offset, length, checksum = entry[:5]
        pack = entry[5] if len(entry) > 5 else 0
        seq = _unsigned(entry[6], U64_MAX) if len(entry) == 7 else 0
        writer.check_key(key)
        if _unsigned(kind, U64_MAX) not in REF_KINDS:
            raise ValueError(f"unknown ref kind {kind}")
        if kind != TOMBSTONE:
            _unsigned(offset, U64_MAX)
            _unsigned(length, U64_MAX)
            _unsigned(checksum, U32_MAX)
            if _unsigned(pack, U64_MAX) > len(tables):
                raise ValueError(f"there is no pack {pack}")
        writer.add(key, kind, seq, pack, offset, length, checksum)
    unique = set(prefixes)
    for prefix in unique:
        if not isinstance(prefix, bytes):
            raise TypeError("a prefix is bytes")
        if len(prefix) > KEY_BYTES or (prefix and not prefix.endswith(b"/")):
            raise ValueError("a prefix is empty or ends in /, and has at most 4096 bytes")
    return writer.finish([(prefix, 0) for prefix in sorted(unique)], tables)


def merge(
    runs: tuple[Run, ...],
    tables: Sequence[Sequence[bytes]],
    forgotten: int = 0,
    own: bool = False,
    sink: Sink | None = None,
) -> bytes | None:
    """One compacted run of `runs`, newest first. `tables[i]` is the pack that contains run i, then the packs that run i
    lists; an empty entry is the file that will contain the result.

    Tombstones up to seq `forgotten` are dropped. REQUIRES: no older run has entries for them to hide, and no reader
    needs to learn of the deletion. `own`: the result has the seq of the commit whose file contains it. `sink`: as in
    build().
    """
    _check_tables(runs, tables)
    writer = _Writer(sink)
    numbers: dict[bytes, int] = {}
    for i, entry in _newest(runs, b"", None):
        number = 0
        if entry.kind == TOMBSTONE and entry.seq <= forgotten:
            continue
        if entry.kind != TOMBSTONE:
            number = _number(numbers, tables[i][entry.pack])
        writer.add(entry.key, entry.kind, 0 if own else entry.seq, number, entry.offset, entry.length, entry.checksum)
    highest: dict[bytes, int] = {}
    for run in runs:
        for prefix, seq in run.prefixes:
            highest[prefix] = max(seq, highest.get(prefix, 0))
    kept = [(prefix, 0 if own else seq) for prefix, seq in sorted(highest.items()) if seq > forgotten]
    return writer.finish(kept, list(numbers))


def reflink(
    runs: tuple[Run, ...],
    tables: Sequence[Sequence[bytes]],
    start: bytes,
    stop: bytes | None,
    to: bytes,
    sink: Sink | None = None,
    moves: tuple[Any, ...] | None = None,
) -> bytes | None:
    """A commit's run of the live entries of `runs`, newest first, with start <= key < stop. Every key begins with
    `start`, and the result has `to` in its place. The values are not copied. `sink`: as in build(). `moves`: the lead
    and the separator of the keys of chunks, and for each axis the new number of each chunk, as int64; -1: it is left
    out.
    """
    if len(to) > KEY_BYTES:
        raise OverflowError("a key would have more than 4096 bytes")
    _check_tables(runs, tables)
    writer = _Writer(sink)
    numbers: dict[bytes, int] = {}
    moved = None if moves is None else _Moves(*moves)
    waiting: list[tuple[bytes, int, int, int, int, int, int]] = []  # moved entries: they have another order
    for i, entry in _newest(runs, start, stop):
        if entry.kind in NOT_LIVE:
            continue
        if not entry.key.startswith(start):
            raise ValueError("a key does not begin with what is to be replaced")
        rest = entry.key[len(start) :]
        if not 1 <= len(to + rest) <= KEY_BYTES:
            raise OverflowError("a key would have more than 4096 bytes")
        if moved is not None:
            name = moved.name(rest)
            if name is None:
                continue
            rest = name
        if len(to + rest) > KEY_BYTES:
            raise OverflowError("a key would have more than 4096 bytes")
        number = _number(numbers, tables[i][entry.pack])
        added = to + rest, entry.kind, 0, number, entry.offset, entry.length, entry.checksum
        if moved is None:
            writer.add(*added)
        else:
            waiting.append(added)
    waiting.sort()
    if any(one[0] == other[0] for one, other in pairwise(waiting)):
        raise ValueError("two chunks move to one place")
    for added in waiting:
        writer.add(*added)
    return writer.finish([], list(numbers))


class _Moves:
    """Gives chunks other numbers: `txstore/format/chunk_moves.py` says how."""

    def __init__(self, lead: bytes, separator: bytes, *targets: Buffer) -> None:
        are_names = isinstance(lead, bytes) and isinstance(separator, bytes) and len(separator) == 1
        if not (are_names and 1 <= len(targets) <= _MOST_AXES):
            raise TypeError("moves are a lead, a separator of one byte, and numbers for 1 to 64 axes")
        self._lead, self._separator = lead, separator
        self._targets = [memoryview(along) for along in targets]
        if any(along.ndim != 1 or along.format not in ("l", "q") for along in self._targets):
            raise TypeError("the numbers of an axis are int64, in one row")

    def name(self, name: bytes) -> bytes | None:
        parts = name[len(self._lead) :].split(self._separator)
        if (
            not name.startswith(self._lead)
            or len(parts) != len(self._targets)
            or not all(map(_NUMBER.fullmatch, parts))
        ):
            return name
        places = zip(map(int, parts), self._targets, strict=True)
        moved = [along[number] if number < len(along) else -1 for number, along in places]
        return None if min(moved) < 0 else self._lead + self._separator.join(b"%d" % number for number in moved)


_MOST_AXES = 64
#: The number of a chunk, as keys have it.
_NUMBER = re.compile(rb"0|[1-9][0-9]{0,17}")


#: Tells what becomes of an entry that leads to a value, by its key, the number of its pack, and its offset: its new
#: kind, or None if it stays.
KindAfter = Callable[[bytes, int, int], int | None]


def erase(section: Buffer, ranges: Sequence[tuple[bytes, bytes | None]], kind_after: KindAfter) -> bytes:
    """The same run, with the same length, in which entries with start <= key < stop have new kinds, and no checksum.

    The C has no such function, because erasing is rare.
    """
    run = Run(section, U64_MAX)
    content = bytearray(section)
    last = b""
    for i in range(run.blocks):
        after = run._first_keys[i + 1] if i + 1 < run.blocks else None
        here = [
            (start, stop)
            for start, stop in ranges
            if (after is None or start < after) and (stop is None or run._first_keys[i] < stop)
        ]
        if not here:
            continue
        block, record_at = _Block(run, i, last), run._index_at + i * RECORD.size
        while block.at < block.end:
            entry = block.decode()
            is_meant = any(start <= entry.key and (stop is None or entry.key < stop) for start, stop in here)
            kind = kind_after(entry.key, entry.pack, entry.offset) if is_meant and entry.kind not in NOT_LIVE else None
            if kind is not None:
                content[block.start + block.kind_at] = kind
                end = block.start + block.at
                content[end - U32.size : end] = bytes(U32.size)
        last = block.key
        offset, length, _, *rest = RECORD.unpack_from(content, record_at)
        RECORD.pack_into(content, record_at, offset, length, _crc32c(bytes(content[offset : offset + length])), *rest)
    U32.pack_into(content, len(content) - U32.size, _crc32c(bytes(content[run._index_at : -U32.size])))
    return bytes(content)


def _number(numbers: dict[bytes, int], entry: bytes) -> int:
    """The number of a pack in the result; a new pack gets the next number. 0: the file that will contain the result."""
    return numbers.setdefault(entry, len(numbers) + 1) if entry else 0


def _check_tables(runs: tuple[Run, ...], tables: Sequence[Sequence[bytes]]) -> None:
    if len(tables) != len(runs):
        raise ValueError("there is one table of packs for each run")
    for run, table in zip(runs, tables, strict=True):
        if run.seq == 0 and run._max_seq == 0 and (run.entries or run._prefixes):
            raise ValueError("a run of unknown seq can not be merged")
        if len(table) != 1 + len(run._packs):
            raise ValueError("a table is the pack that the run lies in, then the packs of the run")
        if not all(isinstance(pack, bytes) for pack in table):
            raise TypeError("a pack entry is bytes")


class _Writer:
    """Writes one run: entries in ascending order, then `finish`."""

    def __init__(self, sink: Sink | None) -> None:
        if sink is not None and not callable(sink):
            raise TypeError("a sink is called with bytes")
        self._sink = sink
        self._handed = 0  # bytes passed to the sink; the content of `_out` follows them
        self._out = io.BytesIO()
        self._records: list[tuple[int, int, int, int, int, int]] = []
        self._first_keys = bytearray()
        self._block = bytearray()
        self._restarts: list[int] = []
        self._count = 0  # entries of the open block
        self._block_seq = 0
        self._total = 0
        self._highest = 0
        self._previous = b""
        self._first = b""

    def check_key(self, key: bytes) -> None:
        if not isinstance(key, bytes):
            raise TypeError("a key is bytes")
        if not 1 <= len(key) <= KEY_BYTES:
            raise ValueError("a key has 1 to 4096 bytes")
        if key <= self._previous:
            raise ValueError("keys out of order")

    def add(self, key: bytes, kind: int, seq: int, pack: int, offset: int, length: int, checksum: int) -> None:
        block = self._block
        shared = 0
        if self._count % RESTART_EVERY == 0:
            self._restarts.append(len(block))
            if self._count == 0:
                self._first = key
        else:
            shared = _common(self._previous, key)
        _write_varint(block, shared)
        _write_varint(block, len(key) - shared)
        block += key[shared:]
        block.append(kind)
        _write_varint(block, seq)
        if kind != TOMBSTONE:
            _write_varint(block, pack)
            _write_varint(block, offset)
            _write_varint(block, length)
            block += U32.pack(checksum)
        self._previous = key
        self._count += 1
        self._block_seq = max(self._block_seq, seq)
        if len(block) >= BLOCK_BYTES:
            self._close_block()

    def finish(self, prefixes: list[tuple[bytes, int]], packs: list[bytes]) -> bytes | None:
        if self._count:
            self._close_block()
        out = self._out
        if max(len(self._records), len(self._first_keys), len(prefixes)) > U32_MAX:
            raise OverflowError("run too large")
        checked, begin = out.tell(), self._handed
        for record in self._records:
            out.write(RECORD.pack(*record))
        out.write(self._first_keys)
        prefixes_at = begin + out.tell()
        at = 0
        for prefix, seq in prefixes:
            out.write(PREFIX.pack(at, len(prefix), seq))
            at += len(prefix)
        out.write(b"".join(prefix for prefix, _ in prefixes))
        packs_at = begin + out.tell()
        table = bytearray()
        for pack in packs:
            _write_varint(table, len(pack))
            table += pack
        out.write(table)
        highest = max([self._highest, *(seq for _, seq in prefixes)])
        trailer = TRAILER.pack(
            b"TXRN", RUN_KIND_BLOCK_TABLE, BLOCK_CODEC_NONE,
            len(self._records), len(prefixes), len(packs), self._total, highest,
            begin + checked, prefixes_at, packs_at, 0,
        )  # fmt: skip
        out.write(trailer[: -U32.size])
        with out.getbuffer() as written:
            checksum = _crc32c(written[checked:])
        out.write(U32.pack(checksum))
        if self._sink is None:
            return out.getvalue()
        self._hand_over(self._sink)
        return None

    def _hand_over(self, sink: Sink) -> None:
        piece = self._out.getvalue()
        self._handed += len(piece)
        self._out = io.BytesIO()
        sink(piece)

    def _close_block(self) -> None:
        self._block += struct.pack(f"<{len(self._restarts) + 1}I", *self._restarts, len(self._restarts))
        block = bytes(self._block)
        self._records.append(
            (
                self._handed + self._out.tell(),
                len(block),
                _crc32c(block),
                self._block_seq,
                len(self._first_keys),
                len(self._first),
            )
        )
        self._first_keys += self._first
        self._out.write(block)
        self._total += self._count
        self._highest = max(self._highest, self._block_seq)
        self._block.clear()
        self._restarts.clear()
        self._count = self._block_seq = 0
        if self._sink is not None and self._out.tell() >= PIECE_BYTES:
            self._hand_over(self._sink)


def _common(a: bytes, b: bytes) -> int:
    """The length of the common prefix of `a` and `b` in bytes."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    differ = int.from_bytes(a[:n], "big") ^ int.from_bytes(b[:n], "big")
    return n - (differ.bit_length() + 7) // 8


def _read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The varint at `at`, and the offset after it; the offset is -1 if the varint is invalid or `at` is -1."""
    value = 0
    for shift in range(0, 70, 7):
        if not 0 <= at < end:
            return 0, -1
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > U64_MAX or (byte == 0 and shift):
                return 0, -1
            return value, at
    return 0, -1


def _write_varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _unsigned(value: int, most: int) -> int:
    if not isinstance(value, int):
        raise TypeError("an integer is required")
    if not 0 <= value <= most:
        raise OverflowError("integer out of range")
    return value


def _crc32c(data: bytes | memoryview) -> int:
    checksum: int = google_crc32c.extend(0, bytes(data))
    return checksum


def _fault(part: str, offset: int, what: str) -> NoReturn:
    raise ValueError(f"{part} at {offset}: {what}")

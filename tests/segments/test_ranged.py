"""Packs and runs that are read by ranges answer as mapped ones do, and ask for no more than they need."""

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.storage.fake_objects import REPOSITORY, FakeObjects, Gate, Values, new_cache
from tests.tools.faults import Killed, always
from tests.tools.steps import forked, status_of
from tests.tools.waiting import TIMEOUT, wait_until
from txstore._native import index as native
from txstore.errors import CorruptionError, SnapshotExpiredError
from txstore.format import packfile
from txstore.format.commitfile import RunName
from txstore.format.encoding import crc32c
from txstore.format.packfile import PackName
from txstore.segments import ranged_packs, ranged_runs
from txstore.segments import runs as index
from txstore.segments.packs import Missing, MissingPackError, OpenPack
from txstore.segments.range_planning import RANGE, WINDOW_LARGEST, ReadAhead
from txstore.segments.ranged_packs import PackReader, RemotePacks
from txstore.segments.ranged_runs import TAIL, LazyRuns
from txstore.segments.runs import Located, Runs
from txstore.storage.kept import CacheDirectory, PackCache, PieceMemory


@pytest.fixture
def objects() -> FakeObjects:
    return FakeObjects()


class MappedPacks:
    """The packs of a fake store, as if they were mapped."""

    is_ranged = False
    replaced = None

    def __init__(self, objects: FakeObjects) -> None:
        self.objects = objects

    def get(self, name: PackName, missing: Missing | None = None) -> OpenPack:
        return OpenPack(name.path, self.objects.contents[name.path], name.id)


# --- packs beside mapped ones
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), damage=st.sampled_from(["", "", "flip", "cut", "cache"]), is_on_disk=st.booleans())
def test_a_pack_is_read_as_a_mapped_one(tmp_path_factory, seed: int, damage: str, is_on_disk: bool) -> None:
    source, objects = Random(seed), FakeObjects()
    directory = CacheDirectory(str(tmp_path_factory.mktemp("cache")), 1 << 20) if is_on_disk else None
    cache = PackCache(directory, PieceMemory(1 << 20))
    values = Values(objects, source.randrange(1, 30), source.choice([1, 1000, 20_000, 200_000]), cache=cache)
    content = bytearray(values.content)
    at = source.randrange(packfile.HEAD_SIZE, len(content))
    if damage == "flip":
        content[at] ^= 1
    elif damage == "cut":
        del content[at:]
    elif damage == "cache":  # it is no damage of the pack
        cache.keep(values.name.id, at, bytes(1 + (len(content) - at) // 2))
    objects.contents[values.name.path] = bytes(content)
    mapped = MappedPacks(objects).get(values.name)

    def outcome(call: Callable[[], Any]) -> object:
        try:
            return bytes(call())
        except CorruptionError as error:
            return error.path, error.offset, error.key

    for _ in range(20):
        i = source.randrange(len(values.values))
        offset, value = values.offsets[i], values.values[i]
        length, checksum = len(value) + source.choice([0, 0, 0, 1]), crc32c(value)
        expected = outcome(partial(mapped.view, offset, length, checksum, "key"))
        assert outcome(partial(values.pack.view, offset, length, checksum, "key")) == expected
        if damage != "cache":
            section = source.randrange(len(content)), source.randrange(10_000)
            assert values.pack.section(*section) == mapped.section(*section)
            part = slice(*(source.choice([None, 0, 9, 900, -3, 5000]) for _ in range(2)), source.choice([1, 1, 3, -1]))
            with suppress(CorruptionError):  # of a value that is not whole, a part may be
                assert values.pack.part(offset, len(value), part) == mapped.part(offset, len(value), part)
        target = bytearray(length)
        is_right = values.pack.read_into(offset, length, checksum, memoryview(target))
        assert not is_right or target == value
        assert is_right or expected != value or damage == "cache"


def test_a_long_value_that_is_not_whole_or_not_there_is_not_read_to_anywhere(objects: FakeObjects) -> None:
    values = Values(objects, 1, 2 * RANGE + 5)
    [value], [offset] = values.values, values.offsets
    target = memoryview(bytearray(len(value)))
    for length in (RANGE + 7, offset):  # within the second piece, and of nothing at all
        objects.contents[values.name.path] = values.content[:length]
        assert not values.pack.read_into(offset, len(value), crc32c(value), target)
        with pytest.raises(CorruptionError, match="reaches beyond the file"):
            values.pack.view(offset, len(value), crc32c(value), "key")
    objects.contents.clear()
    with pytest.raises(MissingPackError):
        values.pack.read_into(offset, len(value), crc32c(value), target)


@pytest.mark.parametrize(("offset", "length"), [(64, 1 << 61), (64, 10**12), (1 << 61, 1 << 64), (1 << 64, 9)])
def test_no_memory_is_taken_for_what_lies_beyond_the_end(objects: FakeObjects, offset: int, length: int) -> None:
    values = Values(objects, 1, 100)
    with pytest.raises(CorruptionError, match="reaches beyond the file"):
        values.pack.view(offset, length, 0, "key")
    assert values.pack.section(offset, length) == values.content[offset:]
    assert len(objects.requests) <= 3
    assert all(begin + asked < 1 << 63 for _, begin, asked in objects.requests)  # the libraries count in 64 bits


@pytest.mark.parametrize("error", [None, FileNotFoundError, NotADirectoryError, IsADirectoryError])
def test_a_pack_that_is_not_there_never_reads_as_a_missing_key(objects: FakeObjects, error: type[OSError] | None):
    """zarr takes each of these, of a file system, for a chunk that was never written."""
    if error is not None:
        objects.before = always(error(2, "where a file has to be is none"))
    pack = RemotePacks(objects, new_cache()).get(PackName(bytes(16), "main", 7))
    assert objects.requests == []
    for read in (
        lambda: pack.view(64, 1, 0),
        lambda: pack.part(64, 10, slice(2)),
        lambda: pack.section(64, 10),
        lambda: pack.size,
        lambda: pack.read_into(64, 10, 0, memoryview(bytearray(10))),
    ):
        with pytest.raises(MissingPackError) as raised:
            read()
        assert (raised.value.path, raised.value.reason) == ("commits/main/0000000007", "the file is missing")


def test_who_knows_why_a_pack_is_missing_says_it(objects: FakeObjects) -> None:
    def expired() -> None:
        raise SnapshotExpiredError("a commit")

    with pytest.raises(SnapshotExpiredError):
        RemotePacks(objects, new_cache()).get(PackName(bytes(16)), expired).view(64, 1, 0)


def test_a_value_that_was_repaired_is_read_anew(objects: FakeObjects) -> None:
    values = Values(objects, 3, 1000)
    objects.contents[values.name.path] = damaged(values.content, values.offsets[1] + 5)
    with pytest.raises(CorruptionError, match="checksum mismatch: stored 0x"):
        values.view(1)
    objects.contents[values.name.path] = values.content  # nothing damaged was kept
    values.view(1)


def test_no_part_is_read_of_another_pack_in_its_place(objects: FakeObjects) -> None:
    values, other = Values(objects, 1, 1000), Values(objects, 1, 1000, seed=2)
    objects.contents[values.name.path] = other.content
    for content, reason in [
        (other.content, "this is pack"),
        (b"x", "bytes instead of 64"),
        (bytes(5000), "no pack head"),
    ]:
        objects.contents[values.name.path] = content
        with pytest.raises(CorruptionError, match=reason) as raised:
            values.pack.part(values.offsets[0], 1000, slice(10))
        assert (raised.value.path, raised.value.offset) == (values.name.path, 0)
    objects.contents[values.name.path] = values.content
    assert values.pack.part(values.offsets[0], 1000, slice(10)) == values.values[0][:10]


@pytest.mark.parametrize("length", [5000, RANGE + 5])
def test_an_answer_of_before_all_was_forgotten_is_not_kept(objects: FakeObjects, tmp_path: Path, length: int) -> None:
    """An erasure replaces files, and then empties the caches: what is under way meanwhile may be what it has erased."""
    cache = PackCache(CacheDirectory(str(tmp_path), 1 << 30), PieceMemory(64 << 20))
    values = Values(objects, 3, length, cache=cache)
    to_do = [cache.forget_all]  # once: what is read ahead asks at any time
    objects.before = lambda path: to_do.pop()() if to_do else None
    values.view(1)
    assert cache.find_start(values.name.id, values.offsets[1], length) == []
    values.view(1)
    assert cache.find(values.name.id, values.offsets[1], length) == values.values[1]


# --- what packs ask for
def test_of_a_part_only_the_bytes_of_the_slice_are_fetched(objects: FakeObjects) -> None:
    values = Values(objects, 3, 100_000)
    offset, value = values.offsets[1], values.values[1]
    for part in (slice(10, 20), slice(-30, None), slice(50_000, 50_000), slice(70, 10), slice(None, 5)):
        assert values.pack.part(offset, len(value), part) == value[part]
    assert objects.calls[0] == [(0, 64), (offset + 10, 10)]  # the head once, since no checksum covers the part
    assert objects.calls[1:] == [[(offset + 99_970, 30)], [(offset, 5)]]
    assert bytes(values.pack.part(offset, len(value), slice(10, 20, 3))) == value[10:20:3]
    assert bytes(values.pack.part(offset, len(value), slice(None, None, -1))) == value[::-1]
    assert values.pack.part(offset, len(value), slice(None)) == value


def test_a_long_value_is_read_in_pieces_to_where_it_is_wanted(objects: FakeObjects) -> None:
    memory = PieceMemory(64 << 20)
    values = Values(objects, 1, 2 * RANGE + 5, cache=PackCache(memory=memory))
    together = threading.Barrier(3, timeout=TIMEOUT)
    objects.before = lambda path: together.wait()
    [value], [offset] = values.values, values.offsets
    target = bytearray(len(value))
    assert values.pack.read_into(offset, len(value), crc32c(value), memoryview(target))
    assert target == value
    assert sorted(length for _, _, length in objects.requests) == [5, RANGE, RANGE]
    assert memory.size == 0
    assert not values.pack.read_into(offset, len(value), crc32c(value), memoryview(target)[1:])
    assert not values.pack.read_into(offset, len(value), crc32c(b""), memoryview(target))


def test_whoever_asks_for_much_at_once_is_not_read_ahead_of(objects: FakeObjects) -> None:
    """Batches of one operation: what was read ahead of one was asked for by the next one meanwhile."""
    each = 1 << 20
    values = Values(objects, 24, each)
    for first in range(0, 24, 6):
        batch = [(values.offsets[i], each) for i in range(first, first + 6)]
        assert values.pack.read(batch) == values.values[first : first + 6]
    asked = sorted((offset, offset + length) for _, offset, length in objects.requests)
    assert sum(end - begin for begin, end in asked) <= len(values.content)
    assert all(before[1] <= after[0] for before, after in pairwise(asked))


@pytest.mark.parametrize(("count", "length"), [(512, 16 << 10), (100, 50_000)])
def test_values_in_a_row_take_about_ten_requests_and_nothing_is_fetched_twice(objects, count, length):
    values = Values(objects, count, length)
    for i in range(count):
        values.view(i)
    asked = sorted((offset, offset + length) for _, offset, length in objects.requests)
    assert len(asked) <= 10
    assert sum(end - begin for begin, end in asked) < len(values.content) + WINDOW_LARGEST
    assert all(before[1] <= after[0] for before, after in pairwise(asked))


def test_at_random_nothing_is_fetched_that_was_not_asked_for(objects: FakeObjects) -> None:
    values = Values(objects, 512, 16 << 10)
    chosen = Random(5).sample(range(512), 200)
    for i in chosen:
        values.view(i)
    assert objects.requests == [values.range(i) for i in chosen]


def test_a_view_of_a_large_piece_does_not_keep_it_in_memory(objects: FakeObjects) -> None:
    values = Values(objects, 100, 16 << 10)
    views = [values.view(i) for i in range(100)]
    assert all(memoryview(view.obj).nbytes < 2 * len(view) for view in views)


def test_what_is_planned_never_overlaps_and_holds_what_is_wanted() -> None:
    source = Random(3)
    for _ in range(300):
        ahead = ReadAhead()
        for _ in range(8):
            base = source.randrange(1 << 22)
            begins = [base + source.randrange(1 << source.randrange(8, 22)) for _ in range(source.randrange(1, 12))]
            wanted = [(begin, begin + source.randrange(1, 1 << source.randrange(4, 18))) for begin in begins]
            planned = ahead.plan(wanted, None)
            assert all(begin < end for begin, end in planned)
            assert all(before[1] <= after[0] for before, after in pairwise(planned))
            covered = set()
            for begin, end in planned:
                covered |= {i for i, (low, high) in enumerate(wanted) if begin <= low < end}
                assert end - begin <= RANGE
            assert covered == set(range(len(wanted)))
            for low, high in wanted:
                inside = sum(max(0, min(end, high) - max(begin, low)) for begin, end in planned)
                assert inside == high - low


def test_packs_are_forgotten_in_turn(objects: FakeObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranged_packs, "MAX_READERS", 3)
    packs = RemotePacks(objects, new_cache())
    names = [PackName(bytes([i]) * 16) for i in range(5)]
    first = packs.get(names[0]).reader
    assert packs.get(names[0]).reader is first
    for name in names:
        packs.get(name)
    assert packs.get(names[0]).reader is not first


# --- threads
class Waits:
    """What threads have waited for, or are waiting for: their turn, unless it came at once, and what others fetch."""

    def __init__(self) -> None:
        self.count = 0
        self.interrupt: Callable[[Callable[[], object]], None] | None = None  # of the thread of this name

    def event(self) -> threading.Event:
        waits = self

        class Event(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                waits.count += 1
                if waits.interrupt is not None and threading.current_thread().name == "interrupted":
                    waits.interrupt(super().wait)
                return super().wait(timeout)

        return Event()

    def until(self, count: int) -> None:
        wait_until(lambda: self.count == count)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    waits = Waits()
    monkeypatch.setattr(ranged_packs, "threading", SimpleNamespace(Event=waits.event))
    return waits


@pytest.fixture
def one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch of a pack is under way at a time."""
    monkeypatch.setattr(ranged_packs, "UNDER_WAY", 1)


def test_what_is_under_way_is_waited_for_and_not_fetched_twice(objects: FakeObjects, waits: Waits) -> None:
    values = Values(objects, 3, 5 << 20)  # too large to be kept for others in memory
    gate = Gate()
    objects.before = gate
    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(values.view, 1) for _ in range(3)]
        waits.until(2)
        gate.open()
        assert [one.result(TIMEOUT) for one in found] == [values.values[1]] * 3
    assert len(objects.calls) == 1


def test_who_has_waited_for_what_failed_asks_for_it_itself(objects: FakeObjects, waits: Waits) -> None:
    values = Values(objects, 10, 1000)
    gate = Gate()

    def fail(path: str) -> None:
        gate(path)
        if len(objects.calls) == 1:
            raise TimeoutError(110, "the store does not answer", path)

    objects.before = fail
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(values.view, 3)
        assert gate.reached.wait(TIMEOUT)
        second = pool.submit(values.view, 3)
        waits.until(1)
        gate.open()
        with pytest.raises(TimeoutError):
            first.result(TIMEOUT)
        assert second.result(TIMEOUT) == values.values[3]


def test_threads_read_what_was_written(objects: FakeObjects) -> None:
    values = Values(objects, 300, 3000, cache=new_cache(200_000))

    def work(seed: int) -> None:
        source = Random(seed)
        for _ in range(150):
            i = source.randrange(300)
            for each in range(i, min(i + source.choice([1, 1, 6]), 300)):
                values.view(each)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


@pytest.mark.usefixtures("one_batch")
@pytest.mark.parametrize("error", [TimeoutError(110, "the store does not answer"), Killed()])
def test_an_error_reaches_all_that_wait_and_an_interrupt_only_who_fetches(objects, waits: Waits, error):
    values = Values(objects, 10, 1000)
    gate = Gate()

    def fail(path: str) -> None:
        gate(path)
        if len(objects.calls) == 2:
            raise error

    objects.before = fail
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(values.view, 0)
        assert gate.reached.wait(TIMEOUT)
        others = [pool.submit(values.view, i) for i in (5, 9, 7)]
        waits.until(3)
        gate.open()
        assert first.result(TIMEOUT) == values.values[0]
        outcomes = [one.exception(TIMEOUT) for one in others]
    assert outcomes.count(None) == (0 if isinstance(error, OSError) else 2)
    values.view(5)


@pytest.mark.usefixtures("one_batch")
@pytest.mark.parametrize("has_the_turn", [False, True])
def test_who_is_interrupted_while_it_waits_passes_the_turn_on(objects: FakeObjects, waits: Waits, has_the_turn: bool):
    values = Values(objects, 10, 1000)
    gate, come = Gate(), threading.Event()
    objects.before = gate

    def interrupt(wait: Callable[[float], object]) -> None:
        assert (wait if has_the_turn else come.wait)(TIMEOUT)
        raise Killed

    def read() -> None:
        with pytest.raises(Killed):
            values.view(5)

    waits.interrupt = interrupt
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(values.view, 0)
        assert gate.reached.wait(TIMEOUT)
        thread = threading.Thread(target=read, name="interrupted")
        thread.start()
        waits.until(1)
        other = pool.submit(values.view, 9)
        waits.until(2)
        come.set()
        if not has_the_turn:
            thread.join(TIMEOUT)
        gate.open()
        assert first.result(TIMEOUT) == values.values[0]
        assert other.result(TIMEOUT) == values.values[9]
        thread.join(TIMEOUT)
    values.view(5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_reads_although_its_parent_was_reading_when_it_forked(objects: FakeObjects) -> None:
    values = Values(objects, 10, 1000)
    gate = Gate()
    parent = os.getpid()
    objects.before = lambda path: gate(path) if os.getpid() == parent else None
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(values.view, 0)
        assert gate.reached.wait(TIMEOUT)
        with forked(lambda: [values.view(i) for i in (0, 7)]) as child:
            assert status_of(child) == 0
        gate.open()
        assert first.result(TIMEOUT) == values.values[0]


# --- without a thread
@pytest.fixture
def awaited(objects: FakeObjects) -> FakeObjects:
    objects.can_await()
    return objects


async def value_of(values: Values, i: int) -> bytes | None:
    """Return a value that is read without a thread; None if that can't be done."""
    found = await values.pack.reader.try_ranges([(values.offsets[i], len(values.values[i]))])
    return None if found is None else bytes(found[0])


async def test_what_a_thread_or_a_coroutine_has_under_way_is_awaited(awaited: FakeObjects) -> None:
    for with_thread in (True, False):
        values = Values(awaited, 10, 1000)
        awaited.clear()
        awaited.before = gate = Gate()
        read = asyncio.to_thread(values.view, 3) if with_thread else value_of(values, 3)
        first = asyncio.create_task(read)
        assert await asyncio.to_thread(gate.reached.wait, TIMEOUT)
        second = asyncio.create_task(value_of(values, 3))
        await asyncio.sleep(0)  # the second one awaits it by now
        gate.open()
        assert [await first, await second] == [values.values[3]] * 2
        assert len(awaited.requests) == 1


def test_nobody_waits_for_ever_for_a_loop_that_was_stopped(objects, monkeypatch):
    """A loop that is left with a coroutine under way goes on when somebody runs it again, or never."""
    monkeypatch.setattr(ranged_packs, "PATIENCE", 0.01)
    values = Values(objects, 10, 1000)

    async def never(*_: object) -> None:
        await asyncio.get_running_loop().create_future()

    async def turn() -> None:
        await asyncio.sleep(0)

    stopped, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        objects.try_range = never
        left = stopped.create_task(value_of(values, 3))
        stopped.run_until_complete(turn())
        assert other.run_until_complete(value_of(values, 3)) is None
        assert values.view(3) == values.values[3]
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            stopped.run_until_complete(left)
    finally:
        stopped.close()
        other.close()


async def test_what_fails_or_is_too_much_is_left_to_threads(awaited, monkeypatch):
    values = Values(awaited, 10, 1000)
    content = awaited.contents.pop(values.name.path)
    assert await value_of(values, 3) is None
    with pytest.raises(MissingPackError):
        await asyncio.to_thread(values.view, 3)
    awaited.contents[values.name.path] = bytes(100) + content[100:]
    assert await values.pack.reader.try_ranges([(0, 64)]) is None  # the head of another pack
    awaited.contents[values.name.path] = content
    assert await value_of(values, 3) == values.values[3]
    monkeypatch.setattr(ranged_packs, "AWAITED", 0)
    assert await value_of(values, 5) is None
    assert await value_of(values, 3) == values.values[3]  # at hand
    awaited.try_range = None
    assert await value_of(values, 5) is None


def test_a_coroutine_that_is_dropped_ends_its_fetch_in_any_thread(objects: FakeObjects) -> None:
    """The garbage collector may run in a thread that has the lock."""
    values = Values(objects, 10, 1000)
    reader = values.pack.reader

    async def never(*_: object) -> None:
        await asyncio.sleep(TIMEOUT)

    async def begin() -> None:
        coroutine.send(None)

    objects.try_range = never
    coroutine = reader.try_ranges([(values.offsets[3], 1000)])
    asyncio.run(begin())
    assert len(reader._fetches) == 1
    with reader._lock:
        coroutine.close()
    assert not reader._fetches


async def test_what_lies_on_a_disk_is_left_to_a_thread(awaited: FakeObjects, tmp_path: Path) -> None:
    values = Values(awaited, 10, 1000, cache=PackCache(CacheDirectory(str(tmp_path), 1 << 20), PieceMemory(1 << 20)))
    assert await value_of(values, 3) is None
    assert awaited.requests == []


# --- runs beside mapped ones
KEYS = sorted({b"%c/%d/c/%d" % (c, i % 4, i * 7919 % 1000) for c in b"abcd" for i in range(200)})
PREFIXES = [b"", b"a/", b"b/", b"b/2/", b"c/1/c/", b"d/", b"x/"]


class World:
    """Commits whose runs lie in packs of a fake store, some of them merged."""

    def __init__(self, seed: int) -> None:
        self.source = Random(seed)
        self.objects = FakeObjects()
        self.names: list[RunName] = []  # newest first
        commits = self.source.randrange(1, 6)
        for seq in range(1, commits + 1):
            self.commit(seq)
            if self.source.random() < 0.4:
                self._merge(self.source.randrange(1, len(self.names) + 1))
        self.seq = commits

    def commit(self, seq: int) -> None:
        name = PackName(self.source.randbytes(16), "main", seq)
        content = bytearray(packfile.encode_head(name.id, REPOSITORY))
        entries: list[tuple[bytes, int, int, int, int, int]] = []
        low = self.source.randrange(len(KEYS))
        chosen = KEYS[low : low + self.source.choice([1, 20, 1000])]
        for key in chosen:
            if self.source.random() < 0.2:
                entries.append((key, packfile.REF_TOMBSTONE, 0, 0, 0, 0))
            else:
                value = self.source.randbytes(self.source.randrange(40))
                entries.append((key, packfile.REF_PACK, len(content), len(value), crc32c(value), 0))
                content += value
        prefixes = self.source.sample(PREFIXES, self.source.choice([0, 0, 1, 2]))
        section = index.build(entries, prefixes)
        content += bytes(self.source.randrange(5))
        self.names.insert(0, index.name_run(section, seq, len(content)).inside(name))
        content += section + bytes(self.source.choice([0, 300]))
        self.objects.contents[name.path] = bytes(content)

    def _merge(self, count: int) -> None:
        """Merge the newest runs, into a pack of its own: a merged run never lies in the newest commit's own file."""
        merged = Runs(self.names[:count], None, MappedPacks(self.objects)).merge(count)
        name = PackName(self.source.randbytes(16))
        head = packfile.encode_head(name.id, REPOSITORY)
        self.objects.contents[name.path] = head + merged
        self.names[:count] = [index.name_run(merged, 0, len(head)).inside(name)]

    def mapped(self) -> Runs:
        return Runs(self.names, None, MappedPacks(self.objects))

    def lazy(self) -> LazyRuns:
        return LazyRuns(self.names, None, RemotePacks(self.objects, new_cache()))


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may have to be asked for twice: a block that is not there would be taken for a damaged one."""

    def forget(self: PackReader) -> None:
        raise AssertionError("a native function was asked about a block that is not there")

    monkeypatch.setattr(PackReader, "forget", forget)


@pytest.fixture
def narrow(strict: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of few blocks, so that what is small has several; and tails that end within the index."""
    monkeypatch.setattr(ranged_runs, "TAIL", 200)
    monkeypatch.setattr(ranged_runs, "SCAN_SMALLEST", 4096)
    monkeypatch.setattr(ranged_runs, "SCAN_LARGEST", 8192)


QUESTIONS: list[Callable[[Runs, World], Any]] = [
    lambda runs, world: runs.lookup(world.source.choice([*KEYS, b"a", b"b/2", b"zz", b"a/0/c/0x"])),
    lambda runs, world: _bytes(runs.value("key", world.source.choice(KEYS))),
    lambda runs, world: runs.scan(*_range(world), world.source.choice([-1, 0, 1, 1, 5, 300, 4096])),
    lambda runs, world: list(runs.scan_all()),
    lambda runs, world: runs.changes(*_range(world), world.source.randrange(world.seq + 1)),
    lambda runs, world: runs.newer(world.source.randrange(world.seq + 1)).changes(b"", None, 0),
    lambda runs, world: runs.newer(world.source.randrange(world.seq + 1)).scan(*_range(world), -1),
    lambda runs, world: runs.new_prefixes(world.source.randrange(world.seq + 1)),
    lambda runs, world: runs.merge(world.source.randrange(1, len(runs) + 1)),
    lambda runs, world: runs.merge_oldest(world.source.randrange(1, len(runs) + 1), (), (), forgotten=1),
    lambda runs, world: [runs.pack_name(found.run, found.pack) for found in runs.scan(*_range(world), 10)],
]


def _bytes(view: memoryview | None) -> bytes | None:
    return None if view is None else bytes(view)


def _range(world: World) -> tuple[bytes, bytes | None]:
    low = world.source.choice([b"", *PREFIXES, *KEYS])
    return low, world.source.choice([None, low, b"a0", b"b/20", b"zz", *world.source.sample(KEYS, 3)])


@pytest.mark.long
@given(seed=st.integers(0, 2**32))
@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])  # it stays as it is
def test_ranged_runs_answer_as_mapped_ones(narrow: None, seed: int) -> None:
    world = World(seed)
    mapped, lazy = world.mapped(), world.lazy()
    for _ in range(12):
        question, state = world.source.choice(QUESTIONS), world.source.getstate()
        expected = question(mapped, world)
        world.source.setstate(state)
        assert question(lazy, world) == expected
        if world.source.random() < 0.2:
            lazy = world.lazy()
        elif world.source.random() < 0.2:
            lazy = LazyRuns(world.names, None, RemotePacks(world.objects, new_cache()), lazy.opened())


@pytest.mark.long
def test_ranged_runs_answer_as_mapped_ones_to_threads(narrow: None) -> None:
    world = World(77)
    mapped, lazy = world.mapped(), world.lazy()
    everything = mapped.scan(b"", None, -1)

    def work(seed: int) -> None:
        source = Random(seed)
        for _ in range(60):
            key = source.choice(KEYS)
            assert lazy.lookup(key) == mapped.lookup(key)
        assert lazy.scan(b"", None, -1) == everything
        assert lazy.merge(len(lazy)) == mapped.merge(len(mapped))

    assert len(everything) > 100
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))


@given(seed=st.integers(0, 2**32))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_awaited_is_what_mapped_runs_locate(narrow: None, seed: int) -> None:
    world = World(seed)
    world.objects.can_await()
    keys = [key.decode() for key in world.source.sample([*KEYS, b"a", b"b/2", b"zz"], world.source.randrange(1, 5))]
    mapped = world.mapped()
    expected = _values(mapped.locate(keys))
    assert [value for key in keys for value in _values(mapped.locate([key]))] == expected
    runs = world.lazy()
    awaited = asyncio.run(runs.await_located(keys))
    assert awaited is not None
    assert _values(awaited) == expected
    world.objects.clear()
    assert _values(runs.locate(keys)) == expected
    assert world.objects.requests == []


def _values(located: Located) -> list[bytes | int]:
    """Return the values that were found, or in their places what was said of them."""
    return [
        bytes(memoryview(located.buffers[number])[offset : offset + length]) if number >= 0 else number
        for number, offset, length, _ in located.table.tolist()
    ]


# --- what runs ask for
class Large:
    """One run of many keys, behind values, in one pack: larger than a tail, its index smaller."""

    def __init__(self, count: int = 40_000, *, objects: FakeObjects | None = None, seq: int = 1) -> None:
        self.objects = objects or FakeObjects()
        self.pack = PackName(Random(seq).randbytes(16), "main", seq)
        self.keys = sorted(b"array/c/%d" % i for i in range(count))
        head = packfile.encode_head(self.pack.id, REPOSITORY)
        value = b"value"
        offset = len(head)
        entries = [(key, packfile.REF_PACK, offset, len(value), crc32c(value), 0) for key in self.keys]
        self.section = index.build(entries, [])
        self.name = index.name_run(self.section, seq, offset + 8).inside(self.pack)
        self.content = head + value + bytes(3) + self.section + bytes(500)
        self.objects.contents[self.pack.path] = self.content
        self.cache = new_cache()

    def packs(self) -> RemotePacks:
        return RemotePacks(self.objects, self.cache)

    def runs(self) -> LazyRuns:
        return LazyRuns([self.name], None, self.packs())


def test_a_run_is_opened_with_the_head_of_its_pack_and_looked_up_by_one_request_more(strict: None) -> None:
    large = Large()
    runs = large.runs()
    end = (large.pack.path, large.name.offset + large.name.length - TAIL, TAIL)
    assert sorted(large.objects.requests) == [(large.pack.path, 0, packfile.HEAD_SIZE), end]
    assert runs.lookup(b"array/c/") is None  # before the first key: no block can hold it
    assert len(large.objects.requests) == 2
    assert runs.lookup(b"array/c/20000") is not None
    assert runs.lookup(b"array/c/20001") is not None
    assert runs.lookup(b"array/c/20000x") is None
    assert len(large.objects.requests) == 3
    assert 4096 <= large.objects.requests[2][2] < 5000


def test_a_small_run_is_fetched_whole(strict: None) -> None:
    small = Large(1000)
    runs = small.runs()
    assert len(runs.scan(b"", None, -1)) == 1000
    assert small.objects.requests == [(small.pack.path, 0, small.name.offset + small.name.length)]
    assert small.packs().get(small.pack).view(64, 5, crc32c(b"value")) == b"value"  # which has come along
    assert len(small.objects.requests) == 1


def test_the_runs_of_a_commit_are_opened_at_the_same_time(strict: None) -> None:
    objects = FakeObjects()
    runs = [Large(2000 + seq, objects=objects, seq=seq) for seq in range(1, 5)]
    barrier = threading.Barrier(4)
    objects.before = lambda path: barrier.wait(TIMEOUT)
    opened = LazyRuns([each.name for each in reversed(runs)], None, RemotePacks(objects, new_cache()))
    assert len(opened) == len(objects.requests) == 4


def test_a_scan_takes_few_requests_and_a_short_one_few_bytes(strict: None) -> None:
    large = Large()
    assert len(list(large.runs().scan_all())) == len(large.keys)
    assert len(large.objects.requests) <= 12
    for start, stop, limit, most in [
        (b"array/c/2", None, 1, 4200),
        (b"array/c/2000", b"array/c/20002", -1, 2 * 4200),
        (b"", b"array/", -1, 0),
        (b"x", b"a", -1, 0),
        (b"array/c/2", None, 256, 70_000),
    ]:
        large.cache = new_cache()
        runs = large.runs()
        large.objects.clear()
        runs.scan(start, stop, limit)
        assert sum(length for *_, length in large.objects.requests) <= most


def test_changes_fetch_only_blocks_that_hold_any(strict: None) -> None:
    large = Large()
    new = index.build([(key, packfile.REF_TOMBSTONE, 0, 0, 0, 0) for key in (large.keys[5], large.keys[20_000])], [])
    tables = [[b"new"], [large.pack.encode()]]
    merged = native.merge((native.Run(new, 2), native.Run(large.section, 1)), tables)
    pack = PackName(bytes(16))
    head = packfile.encode_head(pack.id, REPOSITORY)
    large.objects.contents[pack.path] = head + merged
    name = index.name_run(merged, 0, len(head)).inside(pack)
    runs = LazyRuns([name], None, large.packs())
    large.objects.clear()
    assert [change.key for change in runs.changes(b"", None, 1)] == [large.keys[5], large.keys[20_000]]
    assert sum(length for *_, length in large.objects.requests) < 10_000
    large.objects.clear()
    assert runs.changes(b"", None, 2) == []
    assert large.objects.requests == []
    assert len(runs.merge(1)) == len(runs.merge_oldest(1, (), (), forgotten=0)) == len(merged)


# --- what is wrong with runs
def damaged(content: bytes, *positions: int) -> bytes:
    broken = bytearray(content)
    for position in positions:
        broken[position] ^= 1
    return bytes(broken)


ASKED: list[Callable[[LazyRuns], object]] = [
    lambda runs: runs.lookup(b"array/c/0"),
    lambda runs: runs.value("array/c/0", b"array/c/0"),
    lambda runs: runs.scan(b"", None, 3),
    lambda runs: runs.changes(b"", None, 0),
    lambda runs: runs.merge(2),
    lambda runs: runs.merge_oldest(2, (), (), forgotten=0),
]


@pytest.mark.parametrize("count", [1000, 20_000])
@pytest.mark.parametrize("asked", ASKED)
def test_a_damaged_block_is_an_error_that_names_the_file(asked: Callable[[LazyRuns], object], count: int) -> None:
    objects = FakeObjects()
    old = Large(count, objects=objects, seq=1)
    new = index.build([(b"x", packfile.REF_TOMBSTONE, 0, 0, 0, 0)], [])
    pack = PackName(b"n" * 16, "main", 2)
    head = packfile.encode_head(pack.id, REPOSITORY)
    objects.contents[pack.path] = head + new
    names = [index.name_run(new, 2, len(head)).inside(pack), old.name]
    packs = RemotePacks(objects, new_cache())
    objects.contents[old.pack.path] = damaged(old.content, old.name.offset + 100)
    runs = LazyRuns(names, None, packs)
    with pytest.raises(CorruptionError, match=r"damaged run: block at 0: checksum mismatch") as raised:
        asked(runs)
    assert (raised.value.path, raised.value.offset) == (old.pack.path, old.name.offset)
    objects.contents[old.pack.path] = old.content  # repaired
    if asked not in ASKED[-2:]:
        asked(runs)
        assert runs.lookup(b"array/c/0") is not None


def test_damaged_blocks_are_left_to_threads() -> None:
    large = Large(20_000)
    large.objects.can_await()
    keys = [large.keys[0].decode()]
    runs = large.runs()
    large.objects.contents[large.pack.path] = damaged(large.content, large.name.offset + 100)
    assert asyncio.run(runs.await_located(keys)) is None
    with pytest.raises(CorruptionError, match="damaged run"):
        runs.locate(keys)
    large.objects.try_range = None
    large.objects.contents[large.pack.path] = large.content
    assert asyncio.run(large.runs().await_located(keys)) is None


def test_a_forged_trailer_is_an_error() -> None:
    large = Large()
    at = large.name.offset + large.name.length - 28
    for forged in (0, 1, 2**40, 2**64 - 1, large.name.length - 63, large.name.length):
        content = large.content[:at] + forged.to_bytes(8, "little") + large.content[at + 8 :]
        large.objects.contents[large.pack.path] = content
        large.cache = new_cache()
        with pytest.raises(CorruptionError):
            large.runs()
        large.cache.keep(large.pack.id, 0, content)
        with pytest.raises(CorruptionError):
            large.runs()


@pytest.mark.parametrize("change", [{"length": 1 << 50}, {"offset": 1 << 50}, {"length": 10}, {"length": 0}])
def test_a_run_that_lies_elsewhere_is_an_error(change: dict[str, int]) -> None:
    large = Large(100)
    with pytest.raises(CorruptionError) as raised:
        LazyRuns([large.name._replace(**change)], None, large.packs())
    assert raised.value.path == large.pack.path


def test_a_run_whose_file_is_missing_is_an_error() -> None:
    large = Large()
    runs = large.runs()
    large.objects.contents.clear()
    with pytest.raises(MissingPackError) as raised:
        runs.lookup(b"array/c/1")
    assert raised.value.path == large.pack.path
    large.cache = new_cache()
    with pytest.raises(MissingPackError):
        large.runs()

"""Packs that are read by ranges: which requests that takes, what threads share, and what is wrong with the bytes."""

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from tests.storage.fake_objects import FakeObjects, Gate, Values, new_cache
from tests.tools.faults import Killed, always
from tests.tools.steps import forked, status_of
from tests.tools.waiting import TIMEOUT, wait_until
from txstore.errors import CorruptionError, SnapshotExpiredError
from txstore.format.encoding import crc32c
from txstore.format.packfile import PackName
from txstore.segments import ranged_packs
from txstore.segments.packs import MissingPackError
from txstore.segments.range_planning import RANGE, WINDOW_LARGEST, WINDOW_SMALLEST, ReadAhead
from txstore.segments.ranged_packs import RemotePacks
from txstore.storage.kept import CacheDirectory, PackCache, PieceMemory


@pytest.fixture
def objects() -> FakeObjects:
    return FakeObjects()


@pytest.fixture
def one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch of a pack is under way at a time."""
    monkeypatch.setattr(ranged_packs, "UNDER_WAY", 1)


# --- what a range takes


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


def test_a_view_of_a_large_piece_does_not_keep_it_in_memory(objects: FakeObjects) -> None:
    values = Values(objects, 100, 16 << 10)
    views = [values.view(i) for i in range(100)]
    assert max(length for *_, length in objects.requests) >= WINDOW_SMALLEST
    assert all(memoryview(view.obj).nbytes < 2 * len(view) for view in views)


# --- reading ahead
def test_values_in_a_row_take_about_ten_requests(objects: FakeObjects) -> None:
    values = Values(objects, 512, 16 << 10)
    for i in range(512):
        values.view(i)
    assert len(objects.requests) <= 10
    assert sum(length for *_, length in objects.requests) < len(values.content) + WINDOW_LARGEST


def test_at_random_nothing_is_fetched_that_was_not_asked_for(objects: FakeObjects) -> None:
    values = Values(objects, 512, 16 << 10)
    chosen = Random(5).sample(range(512), 200)
    for i in chosen:
        values.view(i)
    assert objects.requests == [values.range(i) for i in chosen]


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


# --- threads


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What threads have waited for, or are waiting for: their turn, unless it came at once, and what others fetch."""
    found: list[object] = []

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            found.append(self)
            return super().wait(timeout)

    monkeypatch.setattr(ranged_packs, "threading", SimpleNamespace(Event=Event))
    return found


def test_what_is_under_way_is_waited_for_and_not_fetched_twice(objects: FakeObjects, waits: list[object]) -> None:
    values = Values(objects, 3, 5 << 20)  # too large to be kept for others in memory
    gate = Gate()
    objects.before = gate
    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(values.view, 1) for _ in range(3)]
        wait_until(lambda: len(waits) == 2)
        gate.open()
        assert [one.result(TIMEOUT) for one in found] == [values.values[1]] * 3
    assert len(objects.calls) == 1


def test_who_has_waited_for_what_failed_asks_for_it_itself(objects: FakeObjects, waits: list[object]) -> None:
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
        wait_until(lambda: len(waits) == 1)
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
def test_who_is_interrupted_while_it_fetches_leaves_the_others_to_go_on(objects: FakeObjects) -> None:
    values = Values(objects, 10, 1000)
    gate = Gate()

    def interrupt(path: str) -> None:
        gate(path)
        if len(objects.calls) <= 2:
            raise Killed

    objects.before = interrupt
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(values.view, 0)
        assert gate.reached.wait(TIMEOUT)
        others = [pool.submit(values.view, i) for i in (5, 9, 7)]
        wait_until(lambda: len(values.pack.reader._waiting) == 3)
        gate.open()
        with pytest.raises(Killed):
            first.result(TIMEOUT)
        outcomes = [one.exception(TIMEOUT) for one in others]
    assert sorted(type(outcome) for outcome in outcomes if outcome is not None) == [Killed]
    values.view(0)


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
        assert len(values.pack.reader._fetches) == 1
        assert other.run_until_complete(value_of(values, 3)) is None
        assert values.view(3) == values.values[3]
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            stopped.run_until_complete(left)
        assert not values.pack.reader._fetches
    finally:
        stopped.close()
        other.close()


async def test_what_fails_or_is_too_much_is_left_to_threads(awaited, monkeypatch):
    values = Values(awaited, 10, 1000)
    content = awaited.contents.pop(values.name.path)
    assert await value_of(values, 3) is None
    assert not values.pack.reader._fetches
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


async def test_what_lies_on_a_disk_is_left_to_a_thread(awaited: FakeObjects, tmp_path: Path) -> None:
    values = Values(awaited, 10, 1000, cache=PackCache(CacheDirectory(str(tmp_path), 1 << 20), PieceMemory(1 << 20)))
    assert await value_of(values, 3) is None
    assert awaited.requests == []


# --- what is wrong
def test_a_missing_pack_is_said_at_the_first_read(objects: FakeObjects) -> None:
    pack = RemotePacks(objects, new_cache()).get(PackName(bytes(16), "main", 7))
    assert objects.requests == []
    for read in (
        lambda: pack.view(64, 1, 0),
        lambda: pack.part(64, 10, slice(2)),
        lambda: pack.section(64, 10),
        lambda: pack.size,
    ):
        with pytest.raises(MissingPackError) as raised:
            read()
        assert (raised.value.path, raised.value.reason) == ("commits/main/0000000007", "the file is missing")


@pytest.mark.parametrize("error", [FileNotFoundError, NotADirectoryError, IsADirectoryError])
def test_no_error_of_a_server_reads_as_a_missing_key(objects: FakeObjects, error: type[OSError]) -> None:
    """zarr takes each of these, of a file system, for a chunk that was never written."""
    objects.before = always(error(2, "where a file has to be is none"))
    pack = RemotePacks(objects, new_cache()).get(PackName(bytes(16), "main", 7))
    for read in (
        lambda: pack.view(64, 1, 0),
        lambda: pack.part(64, 10, slice(2)),
        lambda: pack.section(64, 10),
        lambda: pack.size,
        lambda: pack.read_into(64, 10, 0, memoryview(bytearray(10))),
    ):
        with pytest.raises(MissingPackError):
            read()


def test_who_knows_why_a_pack_is_missing_says_it(objects: FakeObjects) -> None:
    def expired() -> None:
        raise SnapshotExpiredError("a commit")

    with pytest.raises(SnapshotExpiredError):
        RemotePacks(objects, new_cache()).get(PackName(bytes(16)), expired).view(64, 1, 0)


def test_a_value_that_was_changed_is_an_error(objects: FakeObjects) -> None:
    values = Values(objects, 3, 1000)
    broken = bytearray(values.content)
    broken[values.offsets[1] + 5] ^= 1
    objects.contents[values.name.path] = bytes(broken)
    with pytest.raises(CorruptionError, match="checksum mismatch: stored 0x") as raised:
        values.view(1)
    error = raised.value
    assert (error.path, error.offset, error.key) == (values.name.path, values.offsets[1], "key 1")
    values.view(0)
    objects.contents[values.name.path] = values.content  # repaired: nothing damaged was kept
    values.view(1)


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_damage_in_a_cache_is_no_damage(objects: FakeObjects, tmp_path: Path, is_on_disk: bool) -> None:
    directory = CacheDirectory(str(tmp_path / "cache"), 1 << 20) if is_on_disk else None
    cache = PackCache(directory, PieceMemory(1 << 20))
    values = Values(objects, 3, 1000, cache=cache)
    cache.keep(values.name.id, values.offsets[1] - 10, bytes(1010))
    values.view(1)
    objects.clear()
    values.view(1)
    assert objects.requests == []


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


@pytest.mark.parametrize("beyond", [0, 1, 100_000])
def test_a_value_that_reaches_beyond_the_file_is_an_error(objects: FakeObjects, beyond: int) -> None:
    values = Values(objects, 1, 1000)
    offset = values.offsets[0] + beyond
    for read in (
        lambda: values.pack.view(offset, 1001, 0, "key"),
        lambda: values.pack.part(offset, 1001, slice(990, None), "key"),
    ):
        with pytest.raises(CorruptionError, match="the value reaches beyond the file") as raised:
            read()
        assert (raised.value.path, raised.value.key) == (values.name.path, "key")


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

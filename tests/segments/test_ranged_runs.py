"""Runs in packs that are read by ranges answer as those in mapped packs, and ask for no more than they need."""

import asyncio
import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.storage.fake_objects import REPOSITORY, FakeObjects, new_cache
from tests.tools.waiting import TIMEOUT
from txstore._native import index as native
from txstore.errors import CorruptionError
from txstore.format import packfile
from txstore.format.commitfile import RunName
from txstore.format.encoding import crc32c
from txstore.format.packfile import PackName
from txstore.segments import ranged_runs
from txstore.segments import runs as index
from txstore.segments.packs import Missing, MissingPackError, OpenPack
from txstore.segments.ranged_packs import PackReader, RemotePacks
from txstore.segments.ranged_runs import TAIL, LazyRuns
from txstore.segments.runs import Located, Runs


class MappedPacks:
    """The packs of a fake store, as if they were mapped."""

    is_ranged = False
    replaced = None

    def __init__(self, objects: FakeObjects) -> None:
        self.objects = objects

    def get(self, name: PackName, missing: Missing | None = None) -> OpenPack:
        return OpenPack(name.path, self.objects.contents[name.path], name.id)


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
                self.compact(self.source.randrange(1, len(self.names) + 1))
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

    def compact(self, count: int) -> None:
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
    for name, size in {"TAIL": 200, "SCAN_SMALLEST": 4096, "SCAN_LARGEST": 8192}.items():
        monkeypatch.setattr(ranged_runs, name, size)


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


# --- requests
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


# --- what is wrong
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

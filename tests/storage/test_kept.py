"""The cache of pieces of packs: what it keeps, within which limit, and that nothing which happens to it matters."""

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.fake_objects import FakeObjects, Values
from tests.tools.faults import always
from tests.tools.steps import forked, status_of
from txstore.storage import kept
from txstore.storage.kept import MEMORY, CacheDirectory, PackCache, PieceMemory, open_cache
from txstore.storage.tree import Tree

ID, OTHER = b"i" * 16, b"o" * 16
PACK = Random(1).randbytes(1 << 20)  # what all packs hold


def piece(offset: int, length: int) -> bytes:
    return PACK[offset : offset + length]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def on_disk(path: Path, limit: int = 64 << 20) -> PackCache:
    """A cache that remembers nothing but what is on disk."""
    return PackCache(CacheDirectory(str(path), limit), PieceMemory(0))


def pieces_of(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def used(path: Path) -> int:
    return sum(-(-file.stat().st_size // 4096) * 4096 for file in pieces_of(path))


CACHES: list[Callable[[Path], PackCache]] = [
    lambda path: PackCache(memory=PieceMemory(1 << 20)),
    on_disk,
    lambda path: PackCache(CacheDirectory(str(path), 64 << 20), PieceMemory(100_000)),
]


@pytest.fixture(params=CACHES, ids=["memory", "disk", "both"])
def cache(request: pytest.FixtureRequest, path: Path) -> PackCache:
    made: PackCache = request.param(path)
    return made


# --- what is found
def test_parts_of_pieces_are_found(cache: PackCache) -> None:
    assert cache.find(ID, 0, 10) is None
    assert cache.find(ID, 5, 0) == b""
    cache.keep(ID, 100, piece(100, 50))
    assert cache.find(ID, 100, 50) == piece(100, 50)
    assert cache.find(ID, 120, 10) == piece(120, 10)
    assert cache.find(ID, 149, 1) == piece(149, 1)
    for offset, length in [(99, 2), (149, 2), (150, 1), (0, 1000)]:
        assert cache.find(ID, offset, length) is None
    assert cache.find(OTHER, 100, 50) is None


def test_pieces_that_touch_or_overlap_are_joined(cache: PackCache) -> None:
    for offset, length in [(0, 100), (100, 100), (190, 50), (300, 10)]:
        cache.keep(ID, offset, piece(offset, length))
    assert cache.find(ID, 50, 180) == piece(50, 180)
    assert cache.find(ID, 0, 241) is None
    assert b"".join(cache.find_start(ID, 60, 1000)) == piece(60, 180)
    assert cache.find_start(ID, 250, 10) == []
    cache.keep(ID, 230, piece(230, 70))
    assert cache.find(ID, 0, 310) == piece(0, 310)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), max_size=12))
@settings(max_examples=60)
def test_what_was_kept_is_found_whatever_lies_within_what(tmp_path_factory, kept):
    for make in CACHES[:2]:
        cache, there = make(tmp_path_factory.mktemp("cache")), set[int]()
        for offset, length in kept:
            cache.keep(ID, offset, piece(offset, length))
            there |= set(range(offset, offset + length))
        for offset in range(0, 100, 7):
            expected = next((i for i in range(offset, 101) if i not in there), 101) - offset
            assert b"".join(cache.find_start(ID, offset, 101 - offset)) == piece(offset, expected)


def test_what_is_forgotten_is_gone(cache: PackCache, path: Path) -> None:
    for pack_id in (ID, OTHER):
        cache.keep(pack_id, 0, piece(0, 100))
        cache.keep(pack_id, 500, piece(500, 100))
    cache.forget(ID)
    assert [cache.find(ID, 0, 100), cache.find(ID, 500, 100)] == [None, None]
    assert cache.find(OTHER, 500, 100) == piece(500, 100)
    assert all(OTHER.hex() in str(file) for file in pieces_of(path))


def test_what_threads_keep_at_once_is_found(path: Path) -> None:
    """None of them writes over what another one has just listed."""
    directory = CacheDirectory(str(path), 64 << 20)
    directory.keep(ID, 0, piece(0, 10))
    for i in range(1, 60):
        time.sleep(0.11 if i % 20 == 0 else 0)  # then the directory is listed again, and that is believed
        with ThreadPoolExecutor(3) as pool:
            offsets = [1000 * (3 * i + j) for j in range(3)]
            list(pool.map(lambda offset: directory.keep(ID, offset, piece(offset, 10)), offsets))
        assert [directory.find(ID, offset) is not None for offset in offsets] == [True] * 3


def test_threads_keep_and_find(cache: PackCache) -> None:
    def work(seed: int) -> None:
        source = Random(seed)
        for _ in range(80):
            offset, length = source.randrange(100_000), source.randrange(20_000)
            if source.random() < 0.5:
                cache.keep(source.choice([ID, OTHER]), offset, piece(offset, length))
            else:
                found = b"".join(cache.find_start(ID, offset, length))
                assert found == piece(offset, len(found))
            if source.random() < 0.02:
                cache.forget(ID)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))


# --- in memory
def test_what_was_not_used_for_longest_leaves_memory_first() -> None:
    memory = PieceMemory(1000)
    cache = PackCache(memory=memory)
    for i in range(10):
        cache.keep(ID, 100 * i, piece(100 * i, 100))
    assert memory.size == 1000
    assert cache.find(ID, 0, 100) is not None
    cache.keep(OTHER, 0, piece(0, 150))
    assert memory.size == 950
    assert [cache.find(ID, 100 * i, 100) is not None for i in range(10)] == [True, False, False] + [True] * 7
    cache.keep(OTHER, 500, piece(500, 251))  # more than a quarter
    assert cache.find(OTHER, 500, 251) is None
    cache.keep(OTHER, 0, piece(0, 200))  # in the place of what lies within it
    assert memory.size == 1000


def test_all_caches_of_a_process_share_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PackCache()._memory is open_cache()._memory is kept._shared
    assert kept._shared.limit == MEMORY == 64 << 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_begins_with_nothing_in_memory() -> None:
    memory = PieceMemory(1000)
    memory.keep(ID, 0, b"piece")
    memory._lock.acquire()  # as another thread might

    def work() -> None:
        assert memory.find(ID, 0) is None
        assert memory.size == 0
        memory.keep(ID, 0, b"piece")
        assert memory.find(ID, 0) is not None

    with forked(work) as child:
        assert status_of(child) == 0
    memory._lock.release()
    assert memory.find(ID, 0) is not None


def test_a_large_piece_can_be_kept_on_disk_alone(path: Path) -> None:
    memory = PieceMemory(1 << 20)
    cache = PackCache(CacheDirectory(str(path), 64 << 20), memory)
    cache.keep(ID, 0, piece(0, 1000), in_memory=False)
    assert memory.size == 0
    assert cache.find(ID, 10, 20) == piece(10, 20)


# --- on disk
def test_another_cache_finds_what_one_has_kept(path: Path) -> None:
    one, other = on_disk(path), on_disk(path)
    assert other.find(ID, 0, 10) is None
    one.keep(ID, 0, piece(0, 10))
    assert other.find(ID, 0, 10) == piece(0, 10)
    one.keep(ID, 10, piece(10, 10))
    one.keep(ID, 500, piece(500, 10))
    assert other.find(ID, 0, 20) == piece(0, 20)
    assert on_disk(path).find(ID, 500, 10) == piece(500, 10)


def test_pieces_that_lie_within_those_of_another_process_hide_nothing(path: Path) -> None:
    on_disk(path).keep(ID, 100, piece(100, 10))
    on_disk(path).keep(ID, 0, piece(0, 200))
    assert len(pieces_of(path)) == 2
    assert on_disk(path).find(ID, 105, 50) == piece(105, 50)
    on_disk(path).forget(ID)
    assert pieces_of(path) == []


def test_the_directory_is_for_this_user_alone(path: Path) -> None:
    on_disk(path / "below").keep(ID, 0, b"piece")
    assert (path / "below").stat().st_mode & 0o777 == 0o700


def test_nothing_is_written_twice(path: Path) -> None:
    cache = on_disk(path)
    cache.keep(ID, 0, piece(0, 5000))
    cache.keep(ID, 0, piece(0, 5000))
    cache.keep(ID, 10, piece(10, 100))
    assert len(pieces_of(path)) == 1
    assert not list(path.glob("*.new"))


DAMAGES: list[Callable[[bytes], bytes]] = [
    lambda data: b"",
    lambda data: data[:40],
    lambda data: data[:-1],
    lambda data: data + b"x",
    lambda data: bytes(len(data)),
    lambda data: data[:70] + bytes([data[70] ^ 1]) + data[71:],
    lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_counts_as_missing_and_is_deleted(path: Path, damage: Callable[[bytes], bytes]) -> None:
    cache = on_disk(path)
    cache.keep(ID, 0, piece(0, 5000))
    [file] = pieces_of(path)
    file.write_bytes(damage(file.read_bytes()))
    assert cache.find(ID, 0, 10) is None
    assert pieces_of(path) == []
    cache.keep(ID, 0, piece(0, 5000))
    assert cache.find(ID, 0, 10) == piece(0, 10)


def test_a_file_of_another_piece_counts_as_missing(path: Path) -> None:
    cache = on_disk(path)
    cache.keep(OTHER, 0, piece(0, 100))
    cache.keep(ID, 0, piece(0, 100))
    one, other = pieces_of(path)
    one.write_bytes(other.read_bytes())
    cache = on_disk(path)
    assert [cache.find(each, 0, 10) for each in (ID, OTHER)].count(None) == 1
    assert len(pieces_of(path)) == 1
    wrong = pieces_of(path)[0]
    wrong.rename(wrong.with_name("1-64"))
    assert on_disk(path).find(ID, 1, 10) is on_disk(path).find(OTHER, 1, 10) is None
    assert pieces_of(path) == []


def test_files_of_others_are_left_alone(path: Path) -> None:
    cache = on_disk(path, 100_000)
    cache.keep(ID, 0, piece(0, 100))
    [file] = pieces_of(path)
    names = ["notes.txt", "ab/notes", "0-5", "x.new", "ab" * 8 + ".newer", str(file.relative_to(path).parent / "a")]
    for name in names:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(b"mine")
        os.utime(path / name, (1, 1))
    for i in range(100):
        cache.keep(ID, 1000 * i, piece(1000 * i, 900))
    assert all((path / name).read_bytes() == b"mine" for name in names)


def test_what_was_not_used_for_longest_leaves_the_disk_first(path: Path) -> None:
    limit = 1 << 20
    cache = on_disk(path, limit)
    for i in range(60):
        cache.keep(ID, 10_000 * i, piece(10_000 * i, 10_000))
        [file] = [file for file in pieces_of(path) if file.name == f"{10_000 * i:x}-{10_000:x}"]
        os.utime(file, (10_000 + i, 10_000 + i))
        assert used(path) <= limit
    assert cache.find(ID, 0, 10) is not None  # used now
    for i in range(60, 90):
        cache.keep(OTHER, 10_000 * i, piece(10_000 * i, 10_000))
        assert used(path) <= limit
    there = [i for i in range(60) if cache.find(ID, 10_000 * i, 10_000) is not None]
    assert there[0] == 0
    assert there[1:] == list(range(60 - len(there) + 1, 60))
    assert 5 < len(there) < 50


def test_a_piece_that_is_too_large_is_not_worth_the_others(path: Path) -> None:
    cache = on_disk(path, 1 << 20)
    cache.keep(ID, 0, piece(0, 100_000))
    assert cache.find(ID, 0, 10) is None
    cache.keep(ID, 0, piece(0, 60_000))
    assert cache.find(ID, 0, 10) is not None


def test_what_a_dead_process_was_writing_is_deleted_after_a_while(path: Path) -> None:
    cache = on_disk(path, 1 << 20)
    old, new = path / "0123456789abcdef.new", path / "0123456789abcde0.new"
    for file in (old, new):
        file.write_bytes(b"half a pie")
    os.utime(old, (time.time() - 4000,) * 2)
    cache.keep(ID, 0, piece(0, 100))
    assert not old.exists()
    assert new.exists()


def test_a_use_is_noted_but_not_each(path: Path) -> None:
    cache = on_disk(path)
    cache.keep(ID, 0, piece(0, 100))
    [file] = pieces_of(path)
    for ago, is_noted in [(30, False), (100, True)]:
        before = time.time() - ago
        os.utime(file, (before, before))
        cache.find(ID, 0, 10)
        assert (file.stat().st_mtime > before + 1) is is_noted


WORK = """
import sys
from random import Random
from txstore.storage.kept import CacheDirectory, PackCache, PieceMemory
path, seed = sys.argv[1], int(sys.argv[2])
pack = Random(1).randbytes(1 << 20)
cache, source, found = PackCache(CacheDirectory(path, 400_000), PieceMemory(0)), Random(seed), 0
for i in range(1500):
    offset = source.randrange(200) * 5000
    content = cache.find(b"%016d" % (offset // 50_000), offset, 5000)
    if content is None:
        cache.keep(b"%016d" % (offset // 50_000), offset, pack[offset:offset + 5000])
    else:
        assert content == pack[offset:offset + 5000]
        found += 1
print(found)
"""


@pytest.mark.long
def test_processes_share_a_directory_that_is_too_small(path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WORK, str(path)]
    processes = [
        subprocess.Popen([*command, str(seed)], stdout=subprocess.PIPE, env=environment, text=True) for seed in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert all(int(output) > 50 for output in outputs)
    assert used(path) <= 400_000
    assert not list(path.glob("*.new"))


# --- what does not work
def test_a_directory_that_cant_be_used_is_an_error_at_once(path: Path) -> None:
    path.write_bytes(b"a file")
    for where in (path, path / "below"):
        with pytest.raises(OSError, match=r"cache_dir can't be used \(.+\): name a directory") as raised:
            open_cache(where)
        assert raised.value.filename == str(where)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cant_be_written_is_an_error_at_once(path: Path) -> None:
    path.mkdir(mode=0o500)
    with pytest.raises(PermissionError, match="cache_dir can't be used"):
        open_cache(path)


@pytest.mark.skipif(os.name != "posix", reason="there are no such permissions")
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777, 0o720])
def test_a_directory_that_others_may_write_is_refused(path: Path, mode: int) -> None:
    """They would decide what is read."""
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(PermissionError, match=r"others may write it.*chmod 700") as raised:
        open_cache(path)
    assert raised.value.filename == str(path)
    assert list(path.iterdir()) == []
    path.chmod(0o755)
    open_cache(path)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(path: Path, tmp_path: Path) -> None:
    path.mkdir(mode=0o700)
    os.chown(path, 12345, -1)
    (tmp_path / "link").symlink_to(path)
    for where in (path, tmp_path / "link"):
        with pytest.raises(PermissionError, match="another user's"):
            open_cache(where)


@pytest.mark.skipif(os.name != "posix", reason="there are no such permissions")
def test_nobody_else_may_read_what_is_kept(path: Path) -> None:
    before = os.umask(0)
    try:
        cache = on_disk(path / "deep")
        cache.keep(ID, 0, piece(0, 100))
    finally:
        os.umask(before)
    assert cache.find(ID, 0, 100) is not None
    for each in (path / "deep", *(path / "deep").rglob("*")):
        assert each.stat().st_mode & 0o777 == (0o700 if each.is_dir() else 0o600), each


def test_no_link_in_it_is_followed(path: Path, tmp_path: Path) -> None:
    cache = on_disk(path)
    cache.keep(ID, 0, piece(0, 100))
    (file,) = pieces_of(path)
    kept = file.read_bytes()
    outside = tmp_path / "outside"
    outside.mkdir()
    for linked, leads_to in ((file, outside / file.name), (file.parent, outside), (file.parent.parent, outside)):
        (outside / file.name).write_bytes(kept)
        if linked == file.parent.parent:
            (outside / file.parent.name).mkdir()
            (outside / file.name).rename(outside / file.parent.name / file.name)
        linked.rename(tmp_path / "aside")
        linked.symlink_to(leads_to)
        before = sorted((str(each), each.stat().st_mtime_ns) for each in outside.rglob("*"))
        again = on_disk(path)
        assert again.find(ID, 0, 100) is None
        again.keep(ID, 200, piece(200, 100))
        again.forget(ID)
        CacheDirectory(str(path), 64 << 20)._evict(1 << 40)
        assert sorted((str(each), each.stat().st_mtime_ns) for each in outside.rglob("*")) == before
        assert not list(path.glob("*.new"))
        if linked.is_symlink():
            linked.unlink()
        shutil.rmtree(path)
        shutil.rmtree(outside)
        shutil.rmtree(tmp_path / "aside", ignore_errors=True)
        (tmp_path / "aside").unlink(missing_ok=True)
        outside.mkdir()
        cache = on_disk(path)
        cache.keep(ID, 0, piece(0, 100))


def test_a_fifo_in_it_is_not_waited_for(path: Path) -> None:
    cache = on_disk(path)
    cache.keep(ID, 0, piece(0, 100))
    (file,) = pieces_of(path)
    file.unlink()
    os.mkfifo(file)
    assert on_disk(path).find(ID, 0, 100) is None


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_that_holds_nothing_is_an_error(path: Path, size: int) -> None:
    with pytest.raises(ValueError, match="cache_size"):
        open_cache(path, size)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_a_full_disk_is_no_error(path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    cache = on_disk(path)
    cache.keep(ID, 0, piece(0, 100))
    monkeypatch.setattr(Tree, "replace", always(OSError(number, os.strerror(number))))
    cache.keep(ID, 200, piece(200, 100))
    monkeypatch.undo()
    assert cache.find(ID, 200, 100) is None
    assert cache.find(ID, 0, 100) is not None
    assert not list(path.glob("*.new"))


def test_a_directory_that_goes_is_no_error(path: Path) -> None:
    cache = on_disk(path)
    cache.keep(ID, 0, piece(0, 100))
    for file in pieces_of(path):
        file.unlink()
    assert cache.find(ID, 0, 100) is None
    for folder in sorted(path.rglob("*"), reverse=True):
        folder.rmdir()
    path.rmdir()
    path.write_bytes(b"")
    cache.keep(ID, 0, piece(0, 100))
    assert cache.find(ID, 0, 100) is None
    cache.forget(ID)


def test_packs_are_read_through_it(path: Path) -> None:
    """A second process, or a second day: what was read is on disk."""
    objects = FakeObjects()
    values = Values(objects, 100, 5000, cache=on_disk(path))
    for i in range(100):
        values.view(i)
    objects.clear()
    again = Values(objects, 100, 5000, cache=on_disk(path))
    for i in range(100):
        again.view(i)
    assert objects.requests == []


def test_what_was_asked_for_before_all_was_forgotten_is_not_kept(cache: PackCache) -> None:
    """Its file may have been replaced meanwhile, by an erasure."""
    for forget in (lambda: cache.forget_all(), lambda: cache.forget(ID)):
        since = cache.state
        forget()
        cache.keep(ID, 0, piece(0, 100), since=since)
        assert cache.find(ID, 0, 100) is None
    cache.keep(ID, 0, piece(0, 100), since=cache.state)
    assert cache.find(ID, 0, 100) == piece(0, 100)

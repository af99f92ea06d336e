"""The cache of pieces of packs: what it keeps, within which limit, and that nothing which happens to it matters."""

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.tools.faults import always
from tests.tools.steps import forked, status_of
from txstore.storage.kept import CacheDirectory, PackCache, PieceMemory, open_cache
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
DAMAGES: list[Callable[[bytes], bytes]] = [
    lambda data: b"",
    lambda data: data[:-1],
    lambda data: data + b"x",
    lambda data: bytes([data[0] ^ 1]) + data[1:],
    lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    lambda data: PACK[: len(data)],
]
PACKS, OFFSETS = st.sampled_from([ID, OTHER]), st.integers(0, 60)


class Caches(RuleBasedStateMachine):
    """Caches of two processes in one directory, and one in memory, beside what was put into them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name, "cache")
        self.memory = PackCache(memory=PieceMemory(1 << 20))
        self.caches = [on_disk(self.path), on_disk(self.path)]
        self.in_memory: dict[bytes, set[int]] = {ID: set(), OTHER: set()}
        self.there: dict[bytes, set[int]] = {ID: set(), OTHER: set()}

    def teardown(self) -> None:
        assert not list(self.path.glob("*.new"))
        self.folder.cleanup()

    @rule(which=st.integers(0, 1), pack=PACKS, offset=OFFSETS, length=st.integers(0, 40))
    def keep(self, which: int, pack: bytes, offset: int, length: int) -> None:
        new = set(range(offset, offset + length))
        for cache, there in ((self.caches[which], self.there), (self.memory, self.in_memory)):
            cache.keep(pack, offset, piece(offset, length))
            there[pack] |= new

    @rule(which=st.integers(0, 1), pack=PACKS)
    def forget(self, which: int, pack: bytes) -> None:
        for cache, there in ((self.caches[which], self.there), (self.memory, self.in_memory)):
            cache.forget(pack)
            there[pack].clear()
        assert not [file for file in pieces_of(self.path) if file.parent.name == pack.hex()]

    @rule(which=st.integers(0, 1))
    def begin_anew(self, which: int) -> None:
        self.caches[which] = on_disk(self.path)

    @precondition(lambda self: pieces_of(self.path))
    @rule(number=st.integers(0, 20), damage=st.sampled_from(DAMAGES))
    def damage(self, number: int, damage: Callable[[bytes], bytes]) -> None:
        """It counts as missing, and is deleted."""
        files = pieces_of(self.path)
        file = files[number % len(files)]
        pack, offset = bytes.fromhex(file.parent.name), int(file.name.partition("-")[0], 16)
        file.write_bytes(damage(file.read_bytes()))
        found = on_disk(self.path).find(pack, offset, 1)
        assert found == (piece(offset, 1) if file.exists() else None)  # of a piece that it lies within
        file.unlink(missing_ok=True)
        self.there[pack] = set()
        for left in file.parent.glob("*-*"):
            begin, length = (int(word, 16) for word in left.name.split("-"))
            self.there[pack] |= set(range(begin, begin + length))

    @rule(which=st.integers(0, 1), pack=PACKS, offset=OFFSETS)
    def find(self, which: int, pack: bytes, offset: int) -> None:
        for cache, there in ((on_disk(self.path), self.there), (self.memory, self.in_memory)):
            expected = next(i for i in range(offset, 102) if i not in there[pack]) - offset
            assert b"".join(cache.find_start(pack, offset, 101 - offset)) == piece(offset, expected)
            assert cache.find(pack, offset, expected) == piece(offset, expected)
            assert cache.find(pack, offset, expected + 1) is None
        found = b"".join(self.caches[which].find_start(pack, offset, 101 - offset))  # it may not have looked again
        assert found == piece(offset, len(found))


Caches.TestCase.settings = settings(max_examples=40, stateful_step_count=20)
TestCaches = Caches.TestCase


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


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("knows", [False, True])
def test_what_was_fetched_before_another_process_emptied_it_is_not_kept(path: Path, before: int, knows: bool) -> None:
    """As an erasure does. A process may stand still for any time between the answer and the piece."""
    eraser, cache = on_disk(path), PackCache(CacheDirectory(str(path), 64 << 20), PieceMemory(1 << 20))
    for number in range(before):
        cache.keep(OTHER, number * 100, piece(number * 100, 100))
        eraser.forget_all()
    since = cache.state if knows else None
    eraser.forget_all()
    cache.keep(ID, 0, piece(0, 100), since=since)
    assert cache.find(ID, 0, 100) is on_disk(path).find(ID, 0, 100) is None
    assert all(piece(0, 100) not in file.read_bytes() for file in pieces_of(path))
    cache.keep(ID, 0, piece(0, 100), since=cache.state)
    assert on_disk(path).find(ID, 0, 100) == piece(0, 100)


def test_two_threads_keep_what_was_fetched_before_another_process_emptied_it(path: Path) -> None:
    """The second one keeps its piece while the first one finds out."""

    class Memory(PieceMemory):
        meanwhile: Callable[[], None] | None = None

        def forget_all(self) -> None:
            work, self.meanwhile = self.meanwhile, None
            if work is not None:
                work()
            super().forget_all()

    memory = Memory(1 << 20)
    cache = PackCache(CacheDirectory(str(path), 64 << 20), memory)
    since = cache.state
    memory.meanwhile = lambda: cache.keep(OTHER, 0, piece(0, 100), since=since)
    on_disk(path).forget_all()
    cache.keep(ID, 0, piece(0, 100), since=since)
    for pack in (ID, OTHER):
        assert cache.find(pack, 0, 100) is on_disk(path).find(pack, 0, 100) is None


# --- on disk


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


def test_what_a_dead_process_was_writing_is_deleted_after_a_while(path: Path) -> None:
    cache = on_disk(path, 1 << 20)
    old, new = path / "0123456789abcdef.new", path / "0123456789abcde0.new"
    for file in (old, new):
        file.write_bytes(b"half a pie")
    os.utime(old, (time.time() - 4000,) * 2)
    cache.keep(ID, 0, piece(0, 100))
    assert not old.exists()
    assert new.exists()


# --- what does not work
def test_a_directory_that_cant_be_used_is_an_error_at_once(path: Path) -> None:
    path.write_bytes(b"a file")
    for where in (path, path / "below"):
        with pytest.raises(OSError, match=r"cache_dir can't be used \(.+\): name a directory") as raised:
            open_cache(where)
        assert raised.value.filename == str(where)


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


def test_what_was_asked_for_before_all_was_forgotten_is_not_kept(cache: PackCache) -> None:
    """Its file may have been replaced meanwhile, by an erasure."""
    for forget in (lambda: cache.forget_all(), lambda: cache.forget(ID)):
        since = cache.state
        forget()
        cache.keep(ID, 0, piece(0, 100), since=since)
        assert cache.find(ID, 0, 100) is None
    cache.keep(ID, 0, piece(0, 100), since=cache.state)
    assert cache.find(ID, 0, 100) == piece(0, 100)

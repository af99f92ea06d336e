"""The local storage: what each call promises, among threads and processes."""

import contextlib
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import txstore
from tests.tools.faults import always
from tests.tools.interrupts import Interrupts, needs_monitoring
from tests.tools.lock_clients import descriptors_of
from txstore.history.opening import open_storage
from txstore.storage.local import LocalStorage


@pytest.fixture
def storage(tmp_path) -> LocalStorage:
    found = LocalStorage(str(tmp_path / "data.tx"))
    for name in ("", ".staging", "tags", "locks"):
        found.make_directory(name, durable=False)
    return found


def names(storage: LocalStorage, path: str = "") -> list[str]:
    return sorted(storage.list(path))


def together(function, number: int) -> list:
    """Call a function in several threads at once."""
    barrier = threading.Barrier(number)

    def call(i):
        barrier.wait(60)
        return function(i)

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(call, range(number)))


@pytest.fixture
def synced(monkeypatch) -> list[str]:
    """The files and directories that were synced, in order."""
    found: list[str] = []

    def watch(name):
        sync = getattr(os, name)

        def watched(descriptor):
            found.append(os.path.realpath(f"/proc/self/fd/{descriptor}"))
            sync(descriptor)

        monkeypatch.setattr(os, name, watched)

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")
    watch("fsync")
    watch("fdatasync")
    return found


# --- opening
@pytest.mark.parametrize(
    "url", ["data.tx", "./data.tx", "file://{}/data.tx", "local://{}/data.tx", "{}/data.tx/", "{}/x/../data.tx"]
)
def test_spellings_of_one_path(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    assert open_storage(url.format(tmp_path)).url == str(tmp_path / "data.tx")


def test_opening_creates_nothing(tmp_path):
    storage = open_storage(tmp_path / "data.tx")
    assert storage.list("") == []
    assert not storage.exists("format.json")
    assert list(tmp_path.iterdir()) == []


# --- reading
def test_reading(storage):
    Path(storage.url, "file").write_bytes(b"0123456789")
    assert storage.read("file") == b"0123456789"
    assert storage.read_tail("file", 4) == (b"6789", 10)
    assert storage.read_tail("file", 40) == (b"0123456789", 10)
    assert storage.read_range("file", 2, 3) == b"234"
    assert storage.read_range("file", 8, 5) == b"89"
    assert storage.read_range("file", 20, 5) == b""
    assert bytes(storage.map("file")) == b"0123456789"
    assert storage.exists("file")


def test_what_is_not_there(storage):
    for read in (
        storage.read,
        storage.map,
        lambda name: storage.read_tail(name, 1),
        lambda name: storage.read_range(name, 0, 1),
    ):
        with pytest.raises(FileNotFoundError, match="absent"):
            read("absent")
    assert storage.list("absent") == []
    assert not storage.exists("absent")
    storage.delete("absent")


# --- directories
def test_make_directory_makes_those_above_it(tmp_path, synced):
    storage = LocalStorage(str(tmp_path / "a" / "b" / "data.tx"))
    storage.make_directory("commits/main", durable=True)
    assert Path(storage.url, "commits/main").is_dir()
    # Each directory's name is made durable in the one above it, the upper ones first.
    assert synced == [str(tmp_path / name) for name in ("", "a", "a/b", "a/b/data.tx", "a/b/data.tx/commits")]


def test_make_directory_in_threads(tmp_path):
    storage = LocalStorage(str(tmp_path / "data.tx"))
    for i in range(50):
        together(lambda _, i=i: storage.make_directory(f"{i}/a/b", durable=False), 4)
        assert Path(storage.url, f"{i}/a/b").is_dir()


# --- write_once
def test_write_once(storage, synced):
    storage.write_once("tags/v1", b"first", durable=True)
    assert storage.read("tags/v1") == b"first"
    assert [os.path.basename(os.path.dirname(path)) for path in synced] == [".staging", "data.tx"]  # content, then name
    with pytest.raises(FileExistsError):
        storage.write_once("tags/v1", b"second", durable=True)
    assert storage.read("tags/v1") == b"first"
    assert names(storage, ".staging") == []


def test_write_once_in_threads(storage):
    """One wins, the others are told, and what is there is whole and the winner's."""
    for round_ in range(100):

        def write(i, round_=round_):
            try:
                storage.write_once(f"tags/{round_}", b"%d" % i * 5000, durable=False)
            except FileExistsError:
                return False
            return True

        won = together(write, 4)
        assert won.count(True) == 1
        assert storage.read(f"tags/{round_}") == b"%d" % won.index(True) * 5000
    assert names(storage, ".staging") == []


def test_write_once_leaves_nothing_when_it_fails(storage, monkeypatch):
    monkeypatch.setattr(LocalStorage, "rename_noreplace", always(OSError(5, "no disk")))
    with pytest.raises(OSError, match="no disk"):
        storage.write_once("tags/v1", b"x", durable=False)
    assert names(storage, ".staging") == names(storage, "tags") == []


# --- renames
# --- staged files
def test_a_staged_file(storage):
    file = storage.create(".staging/x")
    with pytest.raises(FileExistsError):
        storage.create(".staging/x")
    file.write(3, [b"ab", bytearray(b"cd"), memoryview(b"ef")])
    file.write(0, [b"123"])
    assert file.read(0, 100) == b"123abcdef"
    assert file.read(2, 3) == b"3ab"
    file.allocate(0, 1 << 16)
    file.start_writeback(0, 4096)
    file.truncate(4)
    file.sync()
    file.close()
    file.close()
    assert storage.read(".staging/x") == b"123a"


def test_a_write_that_the_system_cuts_short_goes_on(storage, monkeypatch):
    write, write_all = os.pwrite, os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: write(fd, bytes(parts[0])[:2], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, bytes(data)[:3], at))
    file = storage.create(".staging/x")
    file.write(1, [b"abcdefgh", b"", b"ijkl"])
    monkeypatch.setattr(os, "pwritev", write_all)
    assert file.read(1, 100) == b"abcdefghijkl"
    file.close()


def test_more_parts_than_the_system_takes_at_once(storage):
    parts = [number.to_bytes(2, "little") for number in range(10_000)]
    file = storage.create(".staging/x")
    file.write(1, parts)
    assert file.read(1, 20_000) == b"".join(parts)
    file.close()


def test_a_device_that_takes_nothing_more(storage, monkeypatch):
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    file = storage.create(".staging/x")
    with pytest.raises(OSError, match="nothing could be written"):
        file.write(0, [b"abc"])
    file.close()


def test_a_read_that_the_system_cuts_short_goes_on(storage, monkeypatch):
    read = os.pread
    Path(storage.url, "file").write_bytes(b"0123456789")
    monkeypatch.setattr(os, "pread", lambda fd, length, at: read(fd, min(length, 3), at))
    assert storage.read_range("file", 1, 8) == b"12345678"
    assert storage.read_tail("file", 7) == (b"3456789", 10)


def test_delete_takes_files_only(storage):
    Path(storage.url, "tags/v1").write_bytes(b"")
    storage.delete("tags/v1")
    storage.delete("tags/v1")
    assert names(storage, "tags") == []
    with pytest.raises(OSError):
        storage.delete("tags")
    assert storage.exists("tags")


# --- the lock
HOLD = """
import sys
from txstore.storage.local import LocalStorage
with LocalStorage(sys.argv[1]).lock("locks/commit"):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(storage):
    """Another process that holds the lock until it reads a line."""
    environment = os.environ | {"PYTHONPATH": str(Path(txstore.__file__).parents[1])}
    command = [sys.executable, "-c", HOLD, storage.url]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


@pytest.mark.parametrize("end", ["release", "kill"])
def test_the_lock_excludes_processes(storage, holder, end):
    entered = threading.Event()

    def enter():
        with storage.lock("locks/commit"):
            entered.set()

    thread = threading.Thread(target=enter)
    thread.start()
    assert not entered.wait(0.2)
    if end == "kill":
        holder.kill()
    else:
        holder.stdin.write(b"\n")
        holder.stdin.flush()
    assert entered.wait(60)
    thread.join()


def test_a_thread_may_take_the_lock_again(storage):
    entered = threading.Event()

    def enter():
        with storage.lock("locks/commit"):
            entered.set()

    thread = threading.Thread(target=enter)
    with storage.lock("locks/commit"):
        with storage.lock("locks/commit", queues=True) as queue:
            assert queue is None
        with storage.lock("locks/other"):
            pass
        thread.start()
        assert not entered.wait(0.2)  # it is not free after the inner blocks
    assert entered.wait(60)
    thread.join()
    with storage.lock("locks/commit"):
        pass


@needs_monitoring
def test_ctrl_c_at_any_point_leaves_the_lock_free(storage):
    """While a traceback is kept, too, as a notebook keeps the last one, unless Ctrl-C came as the block was left."""
    kept = []

    def block():
        try:
            with storage.lock("locks/commit"):
                pass
        except KeyboardInterrupt as error:
            if "__exit__" not in interrupts.where:
                kept.append(error)
            raise

    storage.lock_timeout = 0
    interrupts = Interrupts(block)
    while interrupts.again():
        with storage.lock("locks/commit"):
            pass
    assert len(kept) > 100


def test_the_lock_leaves_no_descriptor(storage):
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")
    before = descriptors_of(storage.url)
    for _ in range(10):
        with storage.lock("locks/commit"):
            pass
        with contextlib.suppress(FileNotFoundError):
            storage.read_tail("absent", 1)
    assert descriptors_of(storage.url) == before


@pytest.mark.skipif(sys.platform != "linux", reason="nobody else counts boots")
def test_a_boot_has_one_number(storage):
    assert storage.boot() == LocalStorage("/").boot() != 0

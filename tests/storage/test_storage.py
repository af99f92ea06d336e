"""The local storage: what each call promises, among threads and processes."""

import sys
import threading
from pathlib import Path

import pytest

from tests.tools.interrupts import Interrupts, needs_monitoring
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


# --- write_once
def test_write_once(storage):
    storage.write_once("tags/v1", b"first", durable=True)
    assert storage.read("tags/v1") == b"first"
    with pytest.raises(FileExistsError):
        storage.write_once("tags/v1", b"second", durable=True)
    assert storage.read("tags/v1") == b"first"
    assert names(storage, ".staging") == []


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


def test_more_parts_than_the_system_takes_at_once(storage):
    parts = [number.to_bytes(2, "little") for number in range(10_000)]
    file = storage.create(".staging/x")
    file.write(1, parts)
    assert file.read(1, 20_000) == b"".join(parts)
    file.close()


def test_delete_takes_files_only(storage):
    Path(storage.url, "tags/v1").write_bytes(b"")
    storage.delete("tags/v1")
    storage.delete("tags/v1")
    assert names(storage, "tags") == []
    with pytest.raises(OSError):
        storage.delete("tags")
    assert storage.exists("tags")


# --- the lock


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


@pytest.mark.skipif(sys.platform != "linux", reason="nobody else counts boots")
def test_a_boot_has_one_number(storage):
    assert storage.boot() == LocalStorage("/").boot() != 0

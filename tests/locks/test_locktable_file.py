"""The lock table's file and descriptors: what opens, joins, forks, damages, removes or copies it."""

import gc
import os
import random
import struct
import sys
import threading

import pytest

from tests.locks.lock_words import word_offset
from tests.tools.disk import in_child
from tests.tools.lock_clients import (
    Forked,
    Lost,
    TimedOut,
    descriptors_of,
    is_free,
    native,
    open_table,
)
from txstore.locks.lock_file import SEED

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="futexes and OFD locks")

BOOT = "/proc/sys/kernel/random/boot_id"
MEMBERS_OFFSET, WORDS_OFFSET = 4096, 135_168


# --- Descriptors and the end of a table
def test_a_table_in_a_cycle_goes(path):
    class Cycle:
        def __init__(self):
            self.table = native().LockTable(str(path), timed_out=self.fail, lost=self.fail, forked=self.fail)
            self.owner = self.table.owner()
            self.owner.acquire("a")

        def fail(self, *_):
            return RuntimeError("no")

    Cycle()
    gc.collect()
    assert descriptors_of(path) == []
    assert is_free(open_table(path), "a")


def test_a_descriptor_closed_behind_our_back(path, table):
    owner = table.owner()
    owner.acquire(["a", "b"])
    (fd,) = descriptors_of(path)
    other_file = os.open("/dev/null", os.O_RDONLY)
    try:
        os.dup2(other_file, fd)  # as a program does that closes what it does not know
        with pytest.raises(Lost) as caught:
            owner.fence()
        assert sorted(caught.value.keys) == ["a", "b"]
        with pytest.raises(OSError, match="open the repository again"):
            table.owner()
        assert sorted(open_table(path).owner().acquire(["a", "b"], 0)) == ["a", "b"]
        table.close()
        os.fstat(fd)  # it is not ours to close
    finally:
        os.close(other_file)
        os.close(fd)


def test_nobody_is_taken_for_dead_by_another_file(path, table):
    """Asked of the wrong file, the kernel says that nobody holds a lock."""
    holder = open_table(path).owner()
    holder.acquire("a")
    before = set(descriptors_of(path))
    owner = table.owner()
    (fd,) = set(descriptors_of(path)) - before
    other_file = os.open(path.with_name("other"), os.O_RDWR | os.O_CREAT)
    os.dup2(other_file, fd)
    try:
        for timeout in (0, 0.05):
            with pytest.raises(TimedOut):
                owner.acquire("a", timeout)
        holder.fence()
        table.close()
    finally:
        os.close(other_file)
        os.close(fd)


def test_exceptions_are_made_by_the_caller(path):
    def broken(*_):
        raise ZeroDivisionError

    def nothing(*_):
        return "no exception"

    for make, error in ((broken, ZeroDivisionError), (nothing, TypeError)):
        table = native().LockTable(str(path), timed_out=make, lost=make, forked=make)
        one, other = table.owner(), table.owner()
        one.acquire("a")
        with pytest.raises(error):
            other.acquire("a", 0)
        assert not other.holds("a")
        one.close()
    for named in ({}, {"timed_out": broken}, {"timed_out": broken, "lost": broken}):
        with pytest.raises(TypeError):
            native().LockTable(str(path), **named)


# --- Fork


def test_fork_while_threads_wait_and_join(path, table, owners):
    one, other = owners
    one.acquire("a")
    stop = threading.Event()

    def join():
        while not stop.is_set():
            open_table(path).owner().close()

    threads = [threading.Thread(target=lambda: other.acquire("a", 60)), threading.Thread(target=join)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):

            def child():
                fresh = table.owner()
                fresh.acquire("b", 30)
                try:
                    fresh.acquire("a", 0)
                except TimedOut:
                    return True
                return False

            assert in_child(child)
    finally:
        one.release("a")
        stop.set()
        for thread in threads:
            thread.join(60)
    assert other.holds("a")


# --- The file
def header_of(path):
    with open(path, "rb") as file:
        fields = struct.unpack("<8sIIIIQQQQ40s", file.read(96))
    names = ("magic", "version", "kind", "slots", "reserved", "seed", "epoch", "device", "inode", "boot")
    return dict(zip(names, fields, strict=True))


def write_at(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def test_the_header_is_as_documented(path, table):
    status = os.stat(path)
    with open(BOOT, "rb") as file:
        boot = file.read(36)
    assert header_of(path) == {
        "magic": b"TXSLOCKS",
        "version": 2,
        "kind": 1,
        "slots": 1 << 20,
        "reserved": 0,
        "seed": SEED,
        "epoch": 1,
        "device": status.st_dev,
        "inode": status.st_ino,
        "boot": boot + bytes(4),
    }
    assert status.st_size == WORDS_OFFSET + 4 * (1 << 20)
    assert status.st_blocks * 512 >= status.st_size
    assert table.slots == 1 << 20


def test_members_and_words_are_as_documented(path, table):
    owner = table.owner()
    owner.acquire("a")
    with open(path, "rb") as file:
        file.seek(MEMBERS_OFFSET + 64 * table.member)
        number = owner.identity >> 1 & (1 << 18) - 1
        assert struct.unpack("<IIQII40s", file.read(64)) == (1, os.getpid(), 1, number, number, bytes(40))
        file.seek(word_offset("a"))
        assert struct.unpack("<I", file.read(4)) == (owner.identity,)


def test_an_old_file_keeps_its_slots_and_its_dirty_words(path):
    table = open_table(path, slots=4096)
    table.owner().acquire("a")
    owner = table.owner()
    owner.acquire("b")
    table.close()
    again = open_table(path)
    assert (again.slots, header_of(path)["epoch"]) == (4096, 1)
    assert again.owner().acquire(["a", "b"], 0) == ("b",)


@pytest.mark.parametrize("slots", [0, 1, 63, 65, 100, 1 << 21])
def test_impossible_numbers_of_slots(path, slots):
    with pytest.raises(ValueError, match="power of two"):
        open_table(path, slots=slots)
    assert not path.exists()


#: Where in the header, and what stands there then.
DAMAGE = {
    "magic": (0, b"nonsense"),
    "version": (8, struct.pack("<I", 7)),
    "kind": (12, struct.pack("<I", 2)),
    "slots": (16, struct.pack("<I", 1 << 25)),
    "device": (40, struct.pack("<Q", 12345)),
    "boot": (56, b"01234567-"),
}


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        ("magic", OSError, "no lock file any more"),
        ("version", OSError, "in version 7, this one knows version 2"),
        ("kind", BlockingIOError, "as kind 2"),
        ("slots", OSError, "cut off"),
        ("device", OSError, "an overlay shares memory, not locks"),
        ("boot", OSError, "another machine"),
    ],
)
def test_what_does_not_fit_is_reset_only_while_nobody_is_alive(path, damage, error, words):
    table = open_table(path)
    unjoined = open_table(path)
    owner = table.owner()
    owner.acquire("a")
    write_at(path, *DAMAGE[damage])
    for use in (lambda: open_table(path), unjoined.owner):
        with pytest.raises(error, match=words) as caught:
            use()
        assert caught.value.filename == str(path)
    assert owner.holds("a")
    owner.release("a")
    owner.acquire("b")
    table.close()

    fresh = open_table(path)
    header = header_of(path)
    assert (header["magic"], header["version"], header["kind"]) == (b"TXSLOCKS", 2, 1)
    assert (header["slots"], header["device"], header["inode"]) == (1 << 20, os.stat(path).st_dev, os.stat(path).st_ino)
    assert fresh.owner().acquire("b", 0) == ()


@pytest.mark.parametrize("length", [0, 50, 5000, WORDS_OFFSET + 100])
def test_a_file_that_was_cut_off(path, length):
    unjoined = open_table(path)
    os.truncate(path, length)
    owner = unjoined.owner()
    keys = [f"x/c/{i}" for i in range(0, 1 << 20, 1000)]
    owner.acquire(keys)
    assert is_free(open_table(path), "y")
    assert not is_free(open_table(path), keys)


def test_words_that_are_lost(path, table, owners):
    one, _ = owners
    one.acquire(["a", "b"])
    write_at(path, word_offset("b"), struct.pack("<I", 1))
    with pytest.raises(Lost) as caught:
        one.fence()
    assert caught.value.keys == ["b"]
    with pytest.raises(Lost) as caught:
        one.release(["a", "b"])
    assert caught.value.keys == ["b"]
    assert is_free(table, "a")
    one.fence()


def test_garbage_in_the_words_is_recovered(path, table):
    """Whatever stands in a word: nobody waits for ever for who does not exist."""
    owner = table.owner()
    for value in (0xFFFFFFFF, 0xC0000000, 0x80000002, 5, 0x7FFFFFFF, 2047 << 19, (2047 << 19) | 1):
        write_at(path, word_offset("a"), struct.pack("<I", value))
        owner.acquire("a", 60)
        owner.release("a")
        assert is_free(table, "a")


@pytest.mark.parametrize("theirs", [False, True], ids=["of this process", "of another"])
@pytest.mark.parametrize("parked", [0, 1])
def test_a_word_of_a_living_member_and_none_of_its_transactions(path, table, theirs, parked):
    """Damaged, it would be locked for as long as that process lives."""
    holder = (open_table(path) if theirs else table).owner()
    holder.acquire("b")
    owner = table.owner()
    member, number = holder.identity >> 19, holder.identity >> 1 & (1 << 18) - 1
    for wrong in (0, number ^ 1 << 17, number ^ 1 << 9):
        for flags in (0, 1 << 31, 3 << 30):
            word = flags | member << 19 | wrong << 1 | parked
            write_at(path, word_offset("a"), struct.pack("=I", word))
            timeout = 0 if wrong else 60
            assert owner.acquire("a", timeout) == ("a",)  # as from one that died
            owner.release("a")
    with pytest.raises(TimedOut):
        owner.acquire("b", 0)
    holder.fence()


def test_what_is_parked_for_a_transaction_that_has_ended(path, table):
    sibling = open_table(path).owner()
    sibling.acquire("a")
    ended, other = table.owner(), table.owner()
    ended.close(sweep=True)
    sibling.park("a", ended.parked)
    assert other.acquire("a", 60) == ("a",)


@pytest.mark.long
def test_no_living_transaction_loses_a_word(path, table):
    """Whatever others have begun and ended before and after it, many times around."""
    chance = random.Random(7)
    asking = open_table(path).owner()
    living = {}
    for step in range(3000):
        for _ in range(chance.randrange(600)):
            table.owner().close()
        if len(living) < 5 or chance.random() < 0.5:
            key = f"{step}"
            living[key] = table.owner()
            living[key].acquire(key)
        else:
            living.pop(chance.choice(sorted(living))).close()
        for key in chance.sample(sorted(living), min(3, len(living))):
            with pytest.raises(TimedOut):
                asking.acquire(key, 0)
    for owner in living.values():
        owner.fence()


def test_paths(tmp_path):
    native()
    for path, error in [
        (tmp_path / "missing" / "chunks", FileNotFoundError),
        (tmp_path, OSError),
        ("/dev/null", OSError),
    ]:
        with pytest.raises(error) as caught:
            open_table(path)
        assert caught.value.filename == str(path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError):
        open_table(tmp_path / "fifo")
    with pytest.raises(ValueError):
        open_table(f"{tmp_path}/a\0b")
    table = native().LockTable(tmp_path / "ä", timed_out=TimedOut, lost=Lost, forked=Forked)
    assert table.owner().acquire("a") == ()

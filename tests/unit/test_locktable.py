"""The lock table in C: owners in one process, the hash, the file. Other processes: tests/processes/test_locktable.py."""

import gc
import os
import shutil
import stat
import struct
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bad_input.disk import NOBODY, in_child
from tests.processes.lock_clients import INIT, Forked, Lost, TimedOut, native, open_table, take_byte

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="futexes and OFD locks")

BOOT = "/proc/sys/kernel/random/boot_id"
MEMBERS_OFFSET, WORDS_OFFSET = 4096, 135_168


@pytest.fixture
def path(tmp_path):
    native()
    return tmp_path / "chunks"


@pytest.fixture
def table(path):
    return open_table(path)


@pytest.fixture
def owners(table):
    return table.owner(), table.owner()


def is_free(table, key):
    other = table.owner()
    try:
        other.acquire(key, 0)
    except TimedOut:
        return False
    finally:
        other.close()
    return True


def descriptors_of(path):
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found += [int(fd)] if os.readlink(f"/proc/self/fd/{fd}").startswith(str(path)) else []
        except FileNotFoundError:
            continue
    return found


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def run_threads(*functions):
    failures = []

    def run(function):
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - the test is told
            failures.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert failures == []


# ---- The hash ------------------------------------------------------------------------------------------------------


MASK = (1 << 64) - 1
MULTIPLIERS = [
    *(0x9E3779B97F4A7C15, 0xB7E151628AED2A6B, 0x243F6A8885A308D3, 0x6A09E667F3BCC909),
    *(0xBB67AE8584CAA73B, 0xA54FF53A5F1D36F1, 0x510E527FADE682D1),
]


def mix(value):
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & MASK
    return value ^ value >> 33


def expected_slot(key, slots, seed):
    """The definition in lock_slots.h once more."""
    text, coordinates = key.encode(), []
    rest = text
    while len(coordinates) < 8:
        body = rest[:-1] if coordinates else rest
        digits = body[len(body.rstrip(b"0123456789")) :]
        head = body[: len(body) - len(digits)]
        if not 1 <= len(digits) <= 18 or (digits[:1] == b"0" and digits != b"0") or (head and head[-1:] not in b"/."):
            break
        coordinates.append(int(digits))
        rest = head
        if not rest:
            break
    hashed = seed ^ len(rest) * MULTIPLIERS[0] & MASK
    for at in range(0, len(rest), 8):
        hashed = (hashed ^ int.from_bytes(rest[at : at + 8], "little")) * 0xFF51AFD7ED558CCD & MASK
        hashed ^= hashed >> 32
    weights = [(1 << 64) // slots, *MULTIPLIERS]
    position = mix(hashed) + sum(c * w for c, w in zip(coordinates, weights, strict=False))
    return (position & MASK) * slots >> 64


parts = st.sampled_from(["a", "c", "0", "7", "12", "007", "/", ".", "x", "ü", "9" * 18, "9" * 19, "pressure", "\0"])


@given(st.lists(parts, max_size=14).map("".join), st.integers(6, 26), st.sampled_from([0, 1, MASK, 1 << 63]))
def test_the_hash_is_as_defined(key, bits, seed):
    assert native().slot_of(key, 1 << bits, seed) == expected_slot(key, 1 << bits, seed)


def test_known_answers():
    keys = ["", "zarr.json", "position/zarr.json", "position/c/0/0", "position/c/0/1", "position/c/1/0", "position/7.12"]
    known = [926446, 609778, 772472, 191548, 191549, 839603, 1044431]
    assert [native().slot_of(key, 1 << 20) for key in keys] == known


def test_neighbours_neighbour(table):
    first = table.slot_of("position/c/5/0")
    assert [table.slot_of(f"position/c/5/{i}") for i in range(1000)] == [
        (first + i) % table.slots for i in range(1000)
    ]
    first = table.slot_of("position/5.0")
    assert table.slot_of("position/5.9") == (first + 9) % table.slots


@pytest.mark.parametrize("shape", [(10_000,), (100, 100), (300, 300), (365, 20, 20), (8, 16, 16, 16)])
def test_the_chunks_of_an_array_seldom_share_a_slot(shape):
    slot_of, total = native().slot_of, 1
    slots, keys = set(), ["temperature/c"]
    for length in shape:
        total *= length
        keys = [f"{key}/{i}" for key in keys for i in range(length)]
    slots = {slot_of(key, 1 << 20) for key in keys}
    assert len(slots) >= 0.999 * total


def test_the_hash_refuses_what_is_no_key(table):
    for wrong in (None, 1, b"a"):
        with pytest.raises(TypeError):
            table.slot_of(wrong)
    with pytest.raises(UnicodeEncodeError):
        table.slot_of("\ud800")
    for slots in (0, 32, 100, 1 << 27):
        with pytest.raises(ValueError):
            native().slot_of("a", slots)


# ---- Owners --------------------------------------------------------------------------------------------------------


def test_owners_exclude_each_other(owners):
    one, other = owners
    assert one.acquire("a") == ()
    assert (one.holds("a"), other.holds("a")) == (True, False)
    with pytest.raises(TimedOut) as caught:
        other.acquire("a", 0)
    assert (caught.value.keys, caught.value.holder) == (["a"], os.getpid())
    assert other.acquire("b", 0) == ()
    one.release("a")
    assert other.acquire("a", 0) == ()
    assert not one.holds("a")


def test_identities(table, owners):
    words = {owner.identity for owner in owners} | {owner.parked for owner in owners}
    assert len(words) == 4
    assert {word >> 19 for word in words} == {table.member}
    assert all(owner.parked == owner.identity | 1 != owner.identity for owner in owners)


def test_what_is_held_is_granted_and_counted(table, owners):
    one, _ = owners
    one.acquire("a")
    one.acquire(["a", "b"])
    one.acquire("a", timeout=0)
    one.release(["b", "a"])
    one.release("a")
    assert one.holds("a")
    assert not is_free(table, "a")
    one.release("a")
    assert is_free(table, "a")


def test_what_a_call_names_twice_counts_once(table, owners):
    one, _ = owners
    many = [f"x/c/{i}" for i in range(50)]
    for keys in (["a", "b", "a"], [*many, *reversed(many)], many[:3] * 10):
        one.acquire(keys)
        one.release(keys)
        assert all(is_free(table, key) for key in keys)
        one.acquire(keys)
        for key in set(keys):
            one.release(key)
        assert all(is_free(table, key) for key in keys)


@pytest.mark.parametrize("count", [2, 15, 16, 17, 500, 5000])
def test_keys_in_any_order_and_kind_of_sequence(table, owners, count):
    one, _ = owners
    keys = [f"a{i % 7}/c/{i * 37 % count}" for i in range(count)]
    for given_keys in (keys, tuple(keys), dict.fromkeys(keys), iter(keys)):
        one.acquire(given_keys)
        assert all(one.holds(key) for key in keys)
        one.release(keys)
        assert not any(one.holds(key) for key in keys)
    assert is_free(table, keys)


def test_keys_that_share_a_slot(path):
    table = open_table(path, slots=64)
    one, other = table.owner(), table.owner()
    first, second = [key for key in (f"a/c/{i}" for i in range(200)) if table.slot_of(key) == 7][:2]
    one.acquire([first, second])
    one.release(first)
    with pytest.raises(TimedOut):
        other.acquire(first, 0)
    one.release(second)
    assert other.acquire([second, first], 0) == ()
    one_more = [f"b/c/{i}" for i in range(500)]
    other.acquire(one_more)
    assert not any(is_free(table, key) for key in one_more)
    other.release(one_more)
    other.release([first, second])
    assert is_free(table, one_more)


def test_all_or_nothing(table, owners):
    one, other = owners
    keys = [f"a/c/{i}" for i in range(40)]
    one.acquire(keys[20])
    one.acquire(keys[30])
    other.acquire(keys[5])
    for timeout in (0, 0.02):
        with pytest.raises(TimedOut) as caught:
            other.acquire(keys, timeout)
        assert caught.value.keys == [keys[20], keys[30]]
    assert other.holds(keys[5])  # as before
    assert is_free(table, keys[:5] + keys[6:20] + keys[21:30])


def test_timeouts(owners):
    one, other = owners
    one.acquire("a")
    for timeout in (0.03, 0.001, 1e-9):
        begun = time.monotonic()
        with pytest.raises(TimedOut):
            other.acquire("a", timeout)
        assert time.monotonic() - begun >= timeout
    for timeout in (0, -1, -0.0, float("-inf")):
        with pytest.raises(TimedOut):
            other.acquire("a", timeout)
    assert other.acquire("b", float("inf")) == ()
    assert other.acquire("c", 1e300) == ()


def test_arguments(owners):
    one, _ = owners
    with pytest.raises(ValueError, match="NaN"):
        one.acquire("a", float("nan"))
    for arguments, named in [
        ((), {}),
        (("a", 0, (), 1), {}),
        (("a",), {"keys": "a"}),
        (("a",), {"wait": 1}),
        (("a", "1"), {}),
        ((1,), {}),
        ((["a", 1],), {}),
        (([b"a"],), {}),
        (("a", 0, 5), {}),
        (("a", 0, ["x"]), {}),
    ]:
        with pytest.raises(TypeError):
            one.acquire(*arguments, **named)
    assert not one.holds("a")
    assert one.acquire(keys=[], timeout=None, siblings=[]) == ()
    one.release(keys=())
    one.park(keys=(), to=None)
    assert one.holds(key="a") is False
    with pytest.raises(TypeError):
        one.release(None)
    with pytest.raises(UnicodeEncodeError):
        one.acquire(["a", "\ud800"])
    assert not one.holds("a")


def test_releasing_what_is_not_held(table, owners):
    one, other = owners
    one.acquire(["a", "c"])
    other.acquire("b")
    with pytest.raises(ValueError, match=r"does not hold \['b'\]"):
        one.release(["a", "b", "c"])
    assert is_free(table, ["a", "c"])
    assert not is_free(table, "b")
    with pytest.raises(ValueError, match="does not hold"):
        one.park("a")


def test_keys_of_a_subclass_of_str_and_beyond_ascii(table, owners):
    class Key(str):
        pass

    one, _ = owners
    one.acquire([Key("ä/c/1"), "漢/c/2"])
    assert one.holds("ä/c/1")
    one.release(["漢/c/2", Key("ä/c/1")])
    assert is_free(table, ["ä/c/1", "漢/c/2"])


def test_close_and_garbage_release_everything(table):
    one, other = table.owner(), table.owner()
    one.acquire(["a", "b", "b"])
    one.park("a")
    one.close()
    assert other.acquire(["a", "b"], 0) == ()
    for use in (lambda: one.acquire("a"), lambda: one.park("a"), one.fence):
        with pytest.raises(ValueError, match="closed"):
            use()
    one.close()
    del other, use
    gc.collect()
    assert is_free(table, ["a", "b"])


def test_numbers_come_back(table):
    seen = set()
    for _ in range(1000):
        owner = table.owner()
        owner.acquire("a", 0)
        seen.add(owner.identity)
        owner.close()
    assert len(seen) == 1000  # not at once


def test_a_process_has_262143_owners(table):
    owners = [table.owner() for _ in range((1 << 18) - 1)]
    assert len({owner.identity for owner in owners}) == len(owners)
    with pytest.raises(OSError, match="262143 owners"):
        table.owner()
    wanted = owners.pop(77_777).identity
    assert table.owner().identity == wanted


# ---- Threads -------------------------------------------------------------------------------------------------------


def test_threads_with_owners_of_their_own(table):
    counts = dict.fromkeys("abcd", 0)

    def work(seed):
        owner = table.owner()
        for i in range(300):
            keys = ["abcd"[(seed + i) % 4], "abcd"[(seed * i) % 4]]
            owner.acquire(keys)
            for key in set(keys):
                before = counts[key]
                if i % 50 == 0:
                    time.sleep(0.0001)
                counts[key] = before + 1
            owner.release(keys)

    run_threads(*(lambda seed=seed: work(seed) for seed in range(6)))
    assert sum(counts.values()) == sum(
        len({(seed + i) % 4, (seed * i) % 4}) for seed in range(6) for i in range(300)
    )


def test_a_waiting_thread_is_woken(owners):
    one, other = owners
    one.acquire("a")
    done = []

    def wait():
        other.acquire("a", 30)
        done.append(time.monotonic())

    def give():
        time.sleep(0.1)
        assert done == []
        one.release("a")

    run_threads(wait, give)
    assert len(done) == 1


def test_two_threads_with_one_owner(table, owners):
    """While both wait, one gets the lock and gives it up: the other has it, or gets it, and nobody else in between."""
    shared, other = owners

    def use():
        for _ in range(200):
            shared.acquire(["a", "b"], 30)
            assert shared.holds("a")
            assert shared.holds("b")
            shared.release(["a", "b"])

    def disturb():
        for _ in range(100):
            other.acquire("b", 30)
            time.sleep(0.0003)
            other.release("b")

    run_threads(use, use, use, disturb)
    assert is_free(table, ["a", "b"])


def test_a_lock_granted_to_a_thread_that_has_not_noticed_yet(table, owners):
    """The other thread of its owner finds it held, uses it and gives it up: the first one has it still."""
    shared, other = owners
    other.acquire("a")
    waiting = threading.Thread(target=shared.acquire, args=("a", 30))
    waiting.start()
    time.sleep(0.1)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(10)
    try:
        other.release("a")
        until = time.monotonic() + 0.05
        while time.monotonic() < until:  # it takes the lock meanwhile, and can't come back to Python
            pass
        shared.acquire("a", 30)
        shared.release("a")
    finally:
        sys.setswitchinterval(interval)
    waiting.join(60)
    assert shared.holds("a")
    shared.fence()
    assert not is_free(table, "a")


def test_one_of_two_waiting_threads_of_an_owner_gives_up(table, owners):
    shared, other = owners
    other.acquire("a")

    def short():
        with pytest.raises(TimedOut):
            shared.acquire("a", 0.05)

    def long():
        shared.acquire("a", 30)

    def give():
        time.sleep(0.15)
        other.release("a")

    run_threads(short, long, give)
    assert not is_free(table, "a")
    shared.release("a")
    assert is_free(table, "a")


def test_a_list_may_change_while_its_thread_waits(table, owners):
    one, other = owners
    keys = [f"{'x' * 20}/c/{i}" for i in range(5)]
    other.acquire(keys[-1])
    given_keys = list(keys)

    def wait():
        one.acquire(given_keys, 30)

    def change():
        time.sleep(0.05)
        given_keys.clear()
        gc.collect()
        other.release(keys[-1])

    run_threads(wait, change)
    assert all(one.holds(key) for key in keys)


@pytest.mark.parametrize("what", ["owner", "table"])
def test_closing_under_a_waiting_thread(path, table, owners, what):
    one, other = owners
    one.acquire("b")

    def wait():
        with pytest.raises(ValueError, match="closed"):
            other.acquire(["a", "b"], 30)

    def close():
        time.sleep(0.05)
        (other if what == "owner" else table).close()

    run_threads(wait, close)
    if what == "owner":
        assert is_free(table, "a")
    else:
        assert descriptors_of(path) == []  # closed by the thread that used it last


def test_a_closed_tables_descriptor_stays_open_while_it_is_used(path):
    """The number could be another file's, else, when the thread that waits asks about the holder's life."""
    was_open = []
    for _ in range(20):
        table = open_table(path)
        table.owner().acquire("a")
        holder, waiter = table.owner(), table.owner()
        holder.acquire("b")

        def wait(waiter=waiter):
            with pytest.raises(ValueError, match="closed"):
                waiter.acquire("b", 30)

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.01)
        table.close()
        was_open.append(bool(descriptors_of(path)))
        thread.join(60)
        assert descriptors_of(path) == []
    assert any(was_open)  # unless the wait ended just then


# ---- Parking -------------------------------------------------------------------------------------------------------


def test_parked_is_for_the_transaction_only(table):
    one, sibling, foreign = table.owner(), table.owner(), table.owner()
    one.acquire(["a", "b"])
    one.park(["a", "b"])
    assert not one.holds("a")
    for siblings in ((), [sibling.parked]):
        with pytest.raises(TimedOut) as caught:
            foreign.acquire("a", 0.01, siblings)
        assert caught.value.holder == os.getpid()
    assert sibling.acquire("a", 0, [foreign.parked, one.parked]) == ()
    with pytest.raises(TimedOut):
        one.acquire("a", 0, [sibling.parked])  # it is held, not parked
    assert one.acquire("b", 0) == ()  # its own, back again
    sibling.park("a", to=one.parked)
    assert one.acquire("a", 0) == ()
    one.park("a", sibling.parked)
    with pytest.raises(TimedOut):
        one.acquire("a", 0)
    assert one.acquire("a", 0, siblings=(sibling.parked,)) == ()
    one.release(["a", "b"])
    assert foreign.acquire(["a", "b"], 0) == ()


def test_parking_counts_as_a_release(table, owners):
    one, _ = owners
    one.acquire("a")
    one.acquire("a")
    one.park("a")
    assert one.holds("a")
    one.park("a")
    assert not one.holds("a")
    assert not is_free(table, "a")


def test_parking_wakes_siblings(table):
    one, sibling, foreign = table.owner(), table.owner(), table.owner()
    one.acquire("a")
    order = []

    def wait(owner, siblings):
        owner.acquire("a", 30, siblings)
        order.append(owner.identity)
        owner.release("a")

    def park():
        time.sleep(0.1)
        one.park("a")

    run_threads(lambda: wait(foreign, ()), lambda: wait(sibling, [one.parked]), park)
    assert order == [sibling.identity, foreign.identity]


def test_closing_gives_up_what_is_parked(table):
    one, sibling = table.owner(), table.owner()
    one.acquire([f"x/c/{i}" for i in range(100)])
    one.park([f"x/c/{i}" for i in range(100)])
    sibling.acquire(["x/c/7", "s"], 0, [one.parked])
    sibling.park("s", to=one.parked)
    one.close()
    assert is_free(table, [f"x/c/{i}" for i in range(100) if i != 7])
    assert sibling.holds("x/c/7")
    assert not is_free(table, "s")  # parked by somebody else: not known
    sibling.acquire("s", 0, [one.parked])

    one = table.owner()
    sibling.park("s", to=one.parked)
    one.close(sweep=True)
    assert is_free(table, "s")


def test_only_what_is_parked_may_be_named(table, owners):
    one, other = owners
    one.acquire("a")
    for wrong in (one.identity, 0, 1, (1 << 30) | 1, 1 << 40, -1):
        with pytest.raises((ValueError, OverflowError)):
            other.acquire("b", 0, [wrong])
        with pytest.raises((ValueError, OverflowError)):
            one.park("a", wrong)
    assert one.holds("a")
    assert other.acquire("b", 0, [one.parked] * 100) == ()


# ---- Pins and members ----------------------------------------------------------------------------------------------


def test_pins(path, table):
    other = open_table(path)
    assert (table.pins(), table.members(), table.member, descriptors_of(path)) == ([], [], 0, [])
    table.pin(None)
    assert table.member == 0
    table.pin(0)
    other.pin(12)
    assert sorted(other.pins()) == [0, 12]
    table.pin(7)
    assert sorted(table.pins()) == [7, 12]
    assert sorted(table.members()) == sorted([(t.member, os.getpid(), 1) for t in (table, other)])
    other.pin(None)
    assert table.pins() == [7]
    table.close()
    assert other.pins() == []
    assert [member for member, _, _ in other.members()] == [other.member]
    for wrong in (-1, (1 << 64) - 1, 1 << 64):
        with pytest.raises(OverflowError):
            other.pin(wrong)
    with pytest.raises(TypeError):
        other.pin("1")


# ---- Descriptors and the end of a table ----------------------------------------------------------------------------


def test_one_descriptor_at_most(path):
    table = open_table(path)
    assert descriptors_of(path) == []
    owner = table.owner()
    table.owner()
    owner.acquire("a")
    owner.fence()
    assert len(descriptors_of(path)) == 1
    table.close()
    assert descriptors_of(path) == []
    with pytest.raises(ValueError, match="closed"):
        table.owner()
    with pytest.raises(ValueError, match="closed"):
        table.pin(1)
    table.close()


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


def test_what_a_closed_table_held_is_recovered(path, table):
    owner = table.owner()
    owner.acquire("a")
    table.close()
    assert open_table(path).owner().acquire(["a", "b"], 0) == ("a",)
    with pytest.raises(Lost):
        owner.release("a")


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


# ---- Fork ----------------------------------------------------------------------------------------------------------


def test_a_child_inherits_no_locks(path, table, owners):
    one, _ = owners
    one.acquire(["a", "p"])
    one.park("p")
    table.pin(3)

    def child():
        refused = []
        for use in (
            lambda: one.acquire("b", 0),
            lambda: one.release("a"),
            lambda: one.park("a"),
            one.fence,
        ):
            with pytest.raises(Forked):
                use()
            refused.append(True)
        held = one.holds("a")
        one.close(sweep=True)
        descriptors = descriptors_of(path)
        before = table.member
        own = table.owner()
        with pytest.raises(TimedOut) as caught:
            own.acquire(["a", "p"], 0)
        own.acquire("b")
        own.fence()
        return len(refused), held, descriptors, before, table.member, caught.value.keys, sorted(table.pins())

    member = table.member
    refused, held, descriptors, before, theirs, keys, pins = in_child(child)
    assert (refused, held, descriptors, before) == (4, False, [], 0)
    assert theirs not in (0, member)
    assert sorted(keys) == ["a", "p"]
    assert pins == [3]
    assert one.holds("a")
    one.fence()
    assert not is_free(table, "a")
    assert one.acquire("p", 0) == ()
    assert table.owner().acquire("b", 0) == ("b",)  # the child never gave it back


def test_a_forked_child_collects_inherited_owners(table):
    owners = [table.owner()]
    owners[0].acquire("a")

    def child():
        owners.clear()
        gc.collect()
        return is_free(table, "a")

    assert in_child(child) is False
    assert not is_free(table, "a")


def test_fork_while_threads_wait_and_join(path, table, owners):
    one, other = owners
    one.acquire("a")
    stop = threading.Event()

    def wait():
        other.acquire("a", 60)

    def join():
        while not stop.is_set():
            open_table(path).owner().close()

    threads = [threading.Thread(target=wait), threading.Thread(target=join)]
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


# ---- The file ------------------------------------------------------------------------------------------------------


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
    c = native()
    assert header_of(path) == {
        "magic": b"TXSLOCKS",
        "version": 1,
        "kind": 1,
        "slots": 1 << 20,
        "reserved": 0,
        "seed": c.SEED,
        "epoch": 1,
        "device": status.st_dev,
        "inode": status.st_ino,
        "boot": boot + bytes(4),
    }
    assert status.st_size == WORDS_OFFSET + 4 * (1 << 20)
    assert status.st_blocks * 512 >= status.st_size
    assert (table.slots, table.seed) == (1 << 20, c.SEED)
    constants = (c.MAGIC, c.VERSION, c.KIND_TABLE, c.KIND_RANGES, c.MEMBERS, c.MEMBERS_OFFSET, c.MEMBER_SIZE)
    assert constants == (b"TXSLOCKS", 1, 1, 2, 2047, MEMBERS_OFFSET, 64)
    assert (c.WORDS_OFFSET, c.LOCK_BASE) == (WORDS_OFFSET, INIT)


def test_members_and_words_are_as_documented(path, table):
    table.pin(41)
    owner = table.owner()
    owner.acquire("a")
    with open(path, "rb") as file:
        file.seek(MEMBERS_OFFSET + 64 * table.member)
        assert struct.unpack("<IIQQ40x", file.read(64)) == (1, os.getpid(), 1, 42)
        file.seek(WORDS_OFFSET + 4 * table.slot_of("a"))
        assert struct.unpack("<I", file.read(4)) == (owner.identity,)


@pytest.mark.parametrize("mode", [0o666, 0o660, 0o600])
def test_the_umask_does_not_matter(path, mode):
    before = os.umask(0o077)
    try:
        open_table(path, mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(path).st_mode) == mode
    os.chmod(path, 0o640)  # somebody's decision: stays
    open_table(path, mode=mode).owner()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o640


def test_an_old_file_keeps_its_slots_and_its_dirty_words(path):
    table = open_table(path, slots=4096)
    table.owner().acquire("a")
    owner = table.owner()
    owner.acquire("b")
    table.close()
    again = open_table(path)
    assert (again.slots, header_of(path)["epoch"]) == (4096, 1)
    assert again.owner().acquire(["a", "b"], 0) == ("b",)


@pytest.mark.parametrize("slots", [0, 1, 63, 65, 100, 1 << 27])
def test_impossible_numbers_of_slots(path, slots):
    with pytest.raises(ValueError, match="power of two"):
        open_table(path, slots=slots)
    assert not path.exists()


def damage_magic(path):
    write_at(path, 0, b"nonsense")


def damage_version(path):
    write_at(path, 8, struct.pack("<I", 7))


def damage_kind(path):
    write_at(path, 12, struct.pack("<I", 2))


def damage_slots(path):
    write_at(path, 16, struct.pack("<I", 1 << 25))


def damage_device(path):
    write_at(path, 40, struct.pack("<Q", 12345))


def damage_boot(path):
    write_at(path, 56, b"01234567-")


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        (damage_magic, OSError, "no lock file any more"),
        (damage_version, OSError, "in version 7, this one knows version 1"),
        (damage_kind, BlockingIOError, "as kind 2"),
        (damage_slots, OSError, "cut off"),
        (damage_device, OSError, "an overlay shares memory, not locks"),
        (damage_boot, OSError, "another machine"),
    ],
)
def test_what_does_not_fit_is_reset_only_while_nobody_is_alive(path, damage, error, words):
    table = open_table(path)
    unjoined = open_table(path)
    owner = table.owner()
    owner.acquire("a")
    damage(path)
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
    assert (header["magic"], header["version"], header["kind"]) == (b"TXSLOCKS", 1, 1)
    assert (header["slots"], header["device"], header["inode"]) == (1 << 20, os.stat(path).st_dev, os.stat(path).st_ino)
    assert fresh.owner().acquire("b", 0) == ()
    assert [member for member, _, _ in fresh.members()] == [fresh.member]


def test_a_table_joins_what_was_damaged_and_left(path):
    unjoined = open_table(path)
    damage_kind(path)
    assert unjoined.owner().acquire("a", 0) == ()
    assert header_of(path)["kind"] == 1


def test_a_table_that_was_reset_with_other_slots_is_stale(path):
    unjoined = open_table(path)
    damage_version(path)
    open_table(path, slots=4096)
    with pytest.raises(OSError, match="open the repository again"):
        unjoined.owner()


def test_a_copy_gets_a_file_of_its_own(path, tmp_path):
    table = open_table(path)
    owner = table.owner()
    owner.acquire("a")
    copied = tmp_path / "copy"
    shutil.copy(path, copied)
    inode = os.stat(copied).st_ino
    with open(copied, "rb"):  # keeps the number from being given anew
        copy = open_table(copied)
    assert copy.owner().acquire("a", 0) == ()
    assert os.stat(copied).st_ino != inode
    assert header_of(copied)["inode"] == os.stat(copied).st_ino
    assert not is_free(table, "a")
    owner.fence()


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_file_removed_or_replaced(path, table, owners, how):
    one, other = owners
    unjoined = open_table(path)
    other.fence()  # holds nothing, loses nothing
    one.acquire(["a", "b"])
    one.fence()
    path.rename(path.with_name("old"))
    if how == "replaced":
        assert open_table(path).owner().acquire("a", 0) == ()
    with pytest.raises(Lost) as caught:
        one.fence()
    assert sorted(caught.value.keys) == ["a", "b"]
    other.fence()
    one.release(["a", "b"])
    for use in (table.owner, unjoined.owner, unjoined.pins, lambda: unjoined.pin(1)):
        with pytest.raises(OSError, match="removed or replaced since it was opened"):
            use()
    assert table.pins() == []


def test_words_that_are_lost(path, table, owners):
    one, _ = owners
    one.acquire(["a", "b"])
    write_at(path, WORDS_OFFSET + 4 * table.slot_of("b"), struct.pack("<I", 1))
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
        write_at(path, WORDS_OFFSET + 4 * table.slot_of("a"), struct.pack("<I", value))
        owner.acquire("a", 10)
        owner.release("a")
        assert is_free(table, "a")


def test_all_places_are_taken(path, table):
    """Held as that many processes would: by byte locks on descriptions of their own."""
    fd = os.open(path, os.O_RDWR)
    try:
        for member in range(1, 2048):
            take_byte(fd, INIT + member)
        with pytest.raises(OSError, match="2047 places"):
            table.owner()
    finally:
        os.close(fd)
    table.owner()


def test_opening_waits_for_who_opens(path, table):
    fd = os.open(path, os.O_RDWR)
    take_byte(fd, INIT)
    opened = []

    def give():
        time.sleep(0.1)
        assert opened == []
        os.close(fd)

    run_threads(lambda: opened.append(open_table(path)), lambda: opened.append(table.owner()), give)
    assert len(opened) == 2


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


def test_nothing_is_written_without_permission(path):
    if os.getuid() != 0:
        pytest.skip("needs root")
    open_table(path, mode=0o600)
    os.chmod(path.parent, 0o755)

    def child():
        try:
            open_table(path)
        except PermissionError as error:
            return error.filename
        return "it was opened"

    assert in_child(child, user=NOBODY) == str(path)

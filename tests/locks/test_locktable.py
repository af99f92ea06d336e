"""The lock table in C, in one process: hash, owners, threads, parking, members. Its file: test_locktable_file.py."""

import gc
import itertools
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.locks.lock_words import has_slot, is_waited_for, word_offset, words_of
from tests.tools.lock_clients import TimedOut, descriptors_of, is_free, open_table
from tests.tools.waiting import wait_until
from tests.tools.workers import run_threads
from txstore.locks.lock_file import SEED
from txstore.locks.slot_hash import SlotHash

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="futexes and OFD locks")


# --- The hash


parts = st.sampled_from(["a", "c", "0", "7", "12", "007", "/", ".", "x", "ü", "9" * 18, "9" * 19, "pressure", "\0"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(parts, max_size=14).map("".join), st.integers(6, 20))
def test_the_hash_is_that_of_the_fallback(tmp_path, key, bits):
    path = tmp_path / str(bits)
    owner = open_table(path, slots=1 << bits).owner()
    assert has_slot(words_of(path), owner, key, SlotHash(1 << bits, SEED).slot_of(key))


def test_known_answers(path, table):
    keys = [
        "",
        "zarr.json",
        "position/zarr.json",
        "position/c/0/0",
        "position/c/0/1",
        "position/c/1/0",
        "position/7.12",
    ]
    known = [926446, 609778, 772472, 191548, 191549, 839603, 1044431]
    words, owner = words_of(path), table.owner()
    assert all(has_slot(words, owner, key, slot) for key, slot in zip(keys, known, strict=True))


# --- Owners


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


@pytest.mark.parametrize("kind", [list, tuple])
def test_other_keys_than_those_of_the_last_call_are_given_up(table, owners, kind):
    one, _ = owners
    first, second = ([f"{name}/c/{i}" for i in range(50)] for name in "ab")
    one.acquire(second)
    one.acquire(kind(first))
    one.release(kind(second))
    assert is_free(table, second)
    assert all(one.holds(key) for key in first)
    one.release(kind(first))
    assert is_free(table, first)

    keys = kind([*first, *first])
    one.acquire(keys)
    one.release(keys)
    assert is_free(table, first)
    with pytest.raises(ValueError, match="does not hold"):
        one.release(keys)
    one.acquire(keys)
    one.park(keys)
    assert not is_free(table, first[0])
    one.acquire(keys)
    one.acquire(second)
    one.close()
    assert is_free(table, first + second)


@pytest.mark.parametrize("count", [5, 500, 5000])
def test_keys_are_taken_in_the_order_of_their_slots(path, table, owners, count):
    """In one order everywhere: calls can't wait for each other in a circle."""
    one, other = owners
    keys = [f"a{i % 7}/c/{i * 37 % count}" for i in range(count)]
    in_order = sorted(keys, key=word_offset)
    middle = count // 2
    other.acquire(in_order[middle])

    def wait():
        with pytest.raises(ValueError, match="closed"):
            one.acquire(keys, 30)

    def look():
        wait_until(lambda: is_waited_for(path, in_order[middle]))
        assert not any(is_free(table, key) for key in in_order[:middle])
        assert is_free(table, in_order[middle + 1 :])
        one.close()

    run_threads(wait, look)


def test_keys_that_share_a_slot(path):
    table = open_table(path, slots=64)
    one, other = table.owner(), table.owner()
    hashed = SlotHash(64, SEED)
    first, second = [key for key in (f"a/c/{i}" for i in range(200)) if hashed.slot_of(key) == 7][:2]
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


def test_keys_of_a_subclass_of_str_and_beyond_ascii(table, owners):
    class Key(str):
        pass

    one, _ = owners
    one.acquire([Key("ä/c/1"), "漢/c/2"])
    assert one.holds("ä/c/1")
    one.release(["漢/c/2", Key("ä/c/1")])
    assert is_free(table, ["ä/c/1", "漢/c/2"])


def test_a_process_has_262143_owners(table):
    owners = [table.owner() for _ in range((1 << 18) - 1)]
    assert len({owner.identity for owner in owners}) == len(owners)
    with pytest.raises(OSError, match="262143 owners"):
        table.owner()
    wanted = owners.pop(77_777).identity
    assert table.owner().identity == wanted


# --- Threads
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


@contextmanager
def granted_unnoticed(owner, holder, key):
    """A thread that waited for the key's lock has it now, and can't come back to Python while this block runs."""
    raised = []

    def wait():
        try:
            owner.acquire(key, 30)
        except ValueError as error:
            raised.append(error)

    holder.acquire(key)
    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.1)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(10)
    try:
        holder.release(key)
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            pass
        yield raised
    finally:
        sys.setswitchinterval(interval)
        waiting.join(60)


def test_another_thread_gives_up_a_lock_before_it_is_noticed(table, owners):
    shared, other = owners
    with granted_unnoticed(shared, other, "a") as raised:
        shared.acquire("a", 30)  # held by its owner already
        shared.release("a")
    assert raised == []
    assert shared.holds("a")
    shared.fence()
    assert not is_free(table, "a")


def test_another_thread_closes_the_owner_before_a_lock_is_noticed(table, owners):
    shared, other = owners
    with granted_unnoticed(shared, other, "a") as raised:
        shared.close()
    assert "closed" in str(raised)
    assert is_free(table, "a")


def test_a_list_may_change_while_its_thread_waits(path, owners):
    one, other = owners
    keys = [f"{'x' * 20}/c/{i}" for i in range(5)]
    other.acquire(keys[-1])
    given_keys = list(keys)

    def change():
        wait_until(lambda: is_waited_for(path, keys[-1]))
        given_keys.clear()
        gc.collect()
        other.release(keys[-1])

    run_threads(lambda: one.acquire(given_keys, 30), change)
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

    keys = (f"b/c/{number}" for number in itertools.count())  # a new one each time: nobody has waited for it

    def close_under_a_thread():
        """Returns whether the descriptor was open then, as it is unless the wait ended just then."""
        table = open_table(path)
        table.owner().acquire("a")
        holder, waiter, key = table.owner(), table.owner(), next(keys)
        holder.acquire(key)

        def wait():
            with pytest.raises(ValueError, match="closed"):
                waiter.acquire(key, 60)

        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: is_waited_for(path, key))
        table.close()
        was_open = bool(descriptors_of(path))
        thread.join(60)
        assert descriptors_of(path) == []
        return was_open

    for _ in range(20):
        close_under_a_thread()
    wait_until(close_under_a_thread)


# --- Parking


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

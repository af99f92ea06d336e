"""Pins: the lowest seq that a process reads, seen by others, for as long as it reads and not a moment longer."""

import gc
import os
import sys
import threading
from pathlib import Path

import pytest

from tests.tools.lock_clients import descriptors_of
from tests.tools.steps import forked, status_of
from txstore._native import local
from txstore.locks.pins import Pins

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="byte locks of open files are Linux's")


class Thing:
    """What holds a pin."""


@pytest.fixture
def new_pins(tmp_path):
    path = Path(tmp_path, "pins")
    path.touch()
    return lambda: Pins(lambda: local.open_below(str(tmp_path), "pins", os.O_RDONLY))


def test_the_lowest_counts(new_pins):
    mine, theirs = new_pins(), new_pins()
    things = {seq: Thing() for seq in (7, 3, 5)}
    for seq, thing in things.items():
        mine.hold(thing, seq)
    for pins in (mine, theirs):
        assert pins.lowest(100) == 3
        assert pins.lowest(4) == 3
        assert pins.lowest(3) is None
        assert pins.lowest(0) is None
    del things[3], thing
    assert mine.lowest(100) == theirs.lowest(100) == 5
    things.clear()
    assert mine.lowest(100) is theirs.lowest(100) is None


def test_they_end_without_a_garbage_collection(new_pins, tmp_path):
    gc.disable()
    try:
        pins, thing = new_pins(), Thing()
        pins.hold(thing, 1)
        assert len(descriptors_of(tmp_path)) == 1
        del pins
        assert descriptors_of(tmp_path) == []
        assert thing
    finally:
        gc.enable()


def test_what_ends_in_a_turn(new_pins):
    """A finalizer runs at any point, also in the thread that has the turn: it is not waited for, nor forgotten."""
    pins, other = new_pins(), new_pins()
    things, later = [Thing()], Thing()
    pins.hold(things[0], 3)

    def end() -> None:
        things.clear()
        assert other.lowest(100) == 3

    pins._in_turn(end)
    pins.hold(later, 9)
    assert other.lowest(100) == 9
    settle = pins._settle

    def settle_while_another_ends():
        pins._settle = settle
        settle()
        ended = threading.Thread(target=things.clear)
        ended.start()
        ended.join()

    things = [Thing()]
    pins.hold(things[0], 1)
    pins._settle = settle_while_another_ends
    last = Thing()
    pins.hold(last, 20)
    assert other.lowest(100) == 9
    assert later


def test_a_fork_has_its_own(new_pins):
    pins, other, thing = new_pins(), new_pins(), Thing()
    pins.hold(thing, 3)
    read, write = os.pipe()

    def child():
        pins.renew()
        os.write(write, b"1")
        os.close(write)
        os.read(go_read, 1)

    go_read, go_write = os.pipe()
    with forked(child) as process:
        assert os.read(read, 1) == b"1"
        del thing
        assert other.lowest(100) == 3
        os.write(go_write, b"1")
        assert status_of(process) == 0
        assert other.lowest(100) is None
    for descriptor in (read, write, go_read, go_write):
        os.close(descriptor)


def test_a_fork_does_not_end_its_parents(new_pins):
    pins, other, thing = new_pins(), new_pins(), Thing()
    pins.hold(thing, 3)

    def child():
        nonlocal thing
        pins.renew()
        del thing
        assert other.lowest(100) == 3

    with forked(child) as process:
        assert status_of(process) == 0
    assert other.lowest(100) == 3
    assert thing


def test_where_there_is_no_file(tmp_path):
    opened = []
    pins, thing = Pins(lambda: opened.append(1)), Thing()
    pins.hold(thing, 3)
    count = len(opened)
    assert pins.lowest(100) == 3
    assert pins.lowest(3) is None
    for _ in range(10):
        pins.renew()  # at each value that is read
    assert len(opened) <= count + 4
    del thing
    assert pins.lowest(100) is None


def test_what_was_not_pinned_after_all_goes_in_silence(new_pins):
    """As if Ctrl-C had come when the reference had just been made: its thing dies with the traceback."""
    pins = new_pins()
    with pytest.raises(TypeError):
        pins.hold(Thing(), None)
    gc.collect()
    assert pins.lowest(100) is None


def test_the_file_was_closed_behind_our_back(new_pins):
    pins, other, thing, later = new_pins(), new_pins(), Thing(), Thing()
    pins.hold(thing, 5)
    os.close(pins._descriptor.fileno())
    pins.hold(later, 3)
    pins.hold(later, 2)
    assert other.lowest(100) == 2
    assert thing

"""The lock table between processes: what a killed, stopped, interrupted or forked one leaves to the others."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.tools.disk import in_child
from tests.tools.lock_clients import (
    INIT,
    TIMEOUT,
    Client,
    TimedOut,
    clients,
    descriptors_of,
    native,
    open_table,
    take_byte,
)
from tests.tools.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="futexes and OFD locks")]


@pytest.fixture
def path(tmp_path):
    native()
    return tmp_path / "chunks"


@pytest.fixture
def owner(path):
    return open_table(path).owner()


def sleeps(pid):
    """Is the process's main thread in a system call that waits? Then it waits for the lock that it was told to take."""
    with open(f"/proc/{pid}/wchan") as file:
        return "futex" in file.read()


def blocked(client, *arguments, **named):
    """Let a client ask for what it will have to wait for."""
    client.start("acquire", *arguments, **named)
    wait_until(lambda: sleeps(client.pid))


# --- Killed


def test_a_dirty_word_stays_dirty_when_its_new_holder_gives_up(path):
    with clients(path, 2) as [holder, other]:
        holder.acquire("x/c/0")
        other.acquire("x/c/1")
        holder.kill()
        waiter = open_table(path).owner()
        for timeout in (0, 0.05):
            with pytest.raises(TimedOut):
                waiter.acquire(["x/c/0", "x/c/1"], timeout)
        assert waiter.acquire("x/c/0") == ("x/c/0",)


def test_a_recoverer_killed_in_the_middle(path):
    """It took the byte of the dead, and is no more: here by a description of our own, closed without a word."""
    with clients(path, 2) as [holder, waiter]:
        holder.acquire(["a", "b"])
        member = holder.member()
        holder.kill()
        fd = os.open(path, os.O_RDWR)
        take_byte(fd, INIT + member)
        blocked(waiter, ["a", "b"], 30)
        with pytest.raises(TimedOut):
            open_table(path).owner().acquire("a", 0.05)  # as good as alive
        os.close(fd)
        assert sorted(waiter.finish()) == ["a", "b"]


def test_a_place_taken_anew_is_swept(path):
    """The locks of a dead member are not those of the process that gets its number."""
    with clients(path, 1) as [holder]:
        holder.acquire("a")
        member = holder.member()
        holder.kill()
    fd = os.open(path, os.O_RDWR)
    for place in range(1, 2048):
        if place != member:
            take_byte(fd, INIT + place)
    table = open_table(path)
    owner = table.owner()
    assert table.member == member
    assert owner.acquire("a", 0) == ("a",)
    os.close(fd)


# --- Stopped, interrupted


def handle_and_wait(table, owner):
    seen = []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(table.member))
    owner.acquire("a", 60)
    return len(seen)


def test_a_signal_with_a_handler_does_not_end_the_wait(path, owner):
    owner.acquire("a")
    with clients(path, 1, act=handle_and_wait) as [client]:
        client.start("act")
        wait_until(lambda: sleeps(client.pid))
        os.kill(client.pid, signal.SIGUSR1)
        assert not client.answered(0.1)
        owner.release("a")
        assert client.finish() == 1


def test_control_c_while_opening(path):
    open_table(path)
    fd = os.open(path, os.O_RDWR)
    take_byte(fd, INIT)
    try:
        client = Client(path)
        wait_until(lambda: descriptors_of(path, client.pid))  # before that, a child of the fork server may ignore it
        os.kill(client.pid, signal.SIGINT)
        client.process.join(TIMEOUT)
        assert client.process.exitcode not in (None, 0)
    finally:
        os.close(fd)


# --- The file


def test_a_full_disk_is_an_error():
    native()
    if os.getuid() != 0:
        pytest.skip("mounting needs root")
    folder = Path(tempfile.mkdtemp())
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        folder.rmdir()
        pytest.skip("mounting is not allowed here")

    def child():
        try:
            open_table(folder / "chunks")
        except OSError as error:
            full = error.errno, error.filename
        table = open_table(folder / "chunks", slots=4096)
        with open(folder / "ballast", "wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass
        keys = [f"a/c/{i}" for i in range(4096)]
        owner = table.owner()
        owner.acquire(keys)
        owner.release(keys)
        return full

    try:
        assert in_child(child) == (28, str(folder / "chunks"))
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
        folder.rmdir()

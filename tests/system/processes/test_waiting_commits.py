"""A commit behind one that does not end: it says for whom it waits, and ends when it was told to, with nothing lost."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.tools.commits import set_keys
from tests.tools.inside import staged
from tests.tools.waiting import TIMEOUT, wait_until
from txstore.storage import commit_lock
from txstore.storage.commit_lock import this_user

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere another library takes the locks"),
]

HOLD = """
import sys
from txstore.storage.local import LocalStorage
with LocalStorage(sys.argv[1]).lock(sys.argv[2]):
    print("held", flush=True)
    sys.stdin.readline()
"""


class Holder:
    """Another process that has a lock until it is told to go on."""

    def __init__(self, url: str, path: str = "locks/commit") -> None:
        told = os.environ | {"PYTHONPATH": str(Path(txstore.__file__).parents[1])}
        command = [sys.executable, "-c", HOLD, url, path]
        self.process = subprocess.Popen(command, env=told, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == b"held\n"

    def stop(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def release(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)
        self.process.communicate(b"\n", timeout=TIMEOUT)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=TIMEOUT)


@pytest.fixture
def hold() -> Iterator[Callable[..., Holder]]:
    holders: list[Holder] = []

    def hold(*arguments: str) -> Holder:
        holders.append(Holder(*arguments))
        return holders[-1]

    yield hold
    for holder in holders:
        holder.kill()


@pytest.fixture
def impatient(open_repo: Callable[..., txstore.Repository]) -> txstore.Repository:
    """A repository with a commit, of which commits wait for others for a moment only."""
    set_keys(open_repo(), {"first": b"1"})
    return open_repo(commit_timeout=0.05)


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What those who wait are told, at once."""
    monkeypatch.setattr(commit_lock, "WARN_AFTER", 0.01)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        messages: list[str] = []
        monkeypatch.setattr(warnings, "showwarning", lambda message, *_: messages.append(str(message)))
        yield messages
    del caught


@contextlib.contextmanager
def committing(repo: txstore.Repository, key: str = "mine") -> Iterator[threading.Thread]:
    thread = threading.Thread(target=lambda: set_keys(repo, {key: b"1"}))
    thread.start()
    yield thread
    thread.join(TIMEOUT)
    assert not thread.is_alive()
    assert repo.snapshot()[key] == b"1"


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "txstore lock"]


# --- the warning
@pytest.mark.parametrize("end", ["release", "kill"])
def test_who_waits_is_told_for_whom(repo, hold, warned, end):
    set_keys(repo, {"first": b"1"})
    holder = hold(repo.url)
    holder.stop()
    with committing(repo):
        wait_until(lambda: warned)
        if end == "kill":
            holder.kill()
        else:
            holder.release()
    assert len(warned) == 1  # once
    for told in (repo.url, "locks/commit", f"process {holder.process.pid} of {this_user()} since 20", "end it"):
        assert told in warned[0]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"pid": 1}',
        b'{"pid": "x", "who": 3, "since": null}',
        b'{"pid": 1, "who": "a", "since": 1e999}',
        b'{"pid": 1, "who": "a", "since": NaN}',
        b"[" * 256,
        b"\xff" * 256,
    ],
)
def test_what_a_holder_says_may_be_anything(repo: txstore.Repository, warned: list[str], content: bytes) -> None:
    set_keys(repo, {"first": b"1"})
    with open(Path(repo.url, "locks", "commit"), "r+b", buffering=0) as file:
        assert commit_lock.try_lock(file.fileno(), commit_lock.TURN)
        os.pwrite(file.fileno(), content.ljust(256, b"\0"), 64)
        with committing(repo):
            wait_until(lambda: warned)
            file.close()
    assert "a process that does not say who it is" in warned[0]


def test_a_holder_does_not_steer_a_terminal(repo: txstore.Repository, warned: list[str]) -> None:
    set_keys(repo, {"first": b"1"})
    with open(Path(repo.url, "locks", "commit"), "r+b", buffering=0) as file:
        assert commit_lock.try_lock(file.fileno(), commit_lock.TURN)
        os.pwrite(file.fileno(), b'{"pid": 1, "who": "\\u001b[31ma\\nb\\u202e", "since": 0}', 64)
        with committing(repo):
            wait_until(lambda: warned)
            file.close()
    assert "of ?[31ma?b? since" in warned[0]


# --- the end of waiting
def test_nothing_is_lost_and_the_commit_can_be_tried_again(impatient, hold):
    holder = hold(impatient.url)
    holder.stop()
    transaction, session = impatient.begin(), txstore.TxStore(impatient)
    transaction["a"], session["b"] = b"1", bytes(2_000_000)
    for _ in range(3):
        for writer in (transaction, session):
            with pytest.raises(txstore.CommitTimeoutError, match="commit_timeout") as caught:
                writer.commit()
            assert isinstance(caught.value, TimeoutError)
            assert f"process {holder.process.pid} of {this_user()}" in caught.value.holder
            assert caught.value.holder in str(caught.value)
            assert (caught.value.url, caught.value.timeout) == (impatient.url, 0.05)
    assert len(list(impatient.log())) == 1
    holder.release()
    transaction.commit()
    session.commit()
    snapshot = impatient.snapshot()
    assert (snapshot["a"], snapshot["b"]) == (b"1", bytes(2_000_000))
    assert staged(impatient) == []


def test_a_named_transaction(impatient: txstore.Repository, hold: Callable[..., Holder]) -> None:
    holder = hold(impatient.url, "locks/staging")
    with pytest.raises(txstore.CommitTimeoutError, match="locks/staging"):
        impatient.transaction(name="job")
    holder.release()
    store = impatient.transaction(name="job")
    store["a"] = b"1"
    holder = hold(impatient.url, "locks/staging")
    store.commit()  # it is made, whatever becomes of its name
    assert impatient.snapshot()["a"] == b"1"
    holder.release()
    again = impatient.transaction(name="job")
    again["b"] = b"1"
    again.commit()


def test_maintenance(impatient: txstore.Repository, hold: Callable[..., Holder]) -> None:
    for number in range(12):
        set_keys(impatient, {f"{number}": bytes(100)})
    before = dict(impatient.mapping())
    holder = hold(impatient.url)
    tasks: list[Callable[[], Any]] = [impatient.optimize, lambda: impatient.vacuum(keep=1)]
    for task in tasks:
        with pytest.raises(txstore.CommitTimeoutError):
            task()
    assert staged(impatient) == []
    (Path(impatient.url) / "heads" / "main").write_bytes(b"damage")
    with pytest.raises(txstore.CommitTimeoutError):
        impatient.verify(repair=True)
    holder.release()
    for task in [*tasks, lambda: impatient.verify(repair=True)]:
        assert task() is not None
    assert dict(impatient.mapping()) == before


def test_no_time_at_all(open_repo: Callable[..., txstore.Repository], hold: Callable[..., Holder]) -> None:
    repo = open_repo(commit_timeout=0)
    transaction = repo.begin()
    transaction["a"] = b"1"
    transaction.commit()  # nobody is there
    holder = hold(repo.url)
    transaction = repo.begin()
    transaction["b"] = b"1"
    with pytest.raises(txstore.CommitTimeoutError):
        transaction.commit()
    assert not our_threads()
    holder.release()
    transaction.commit()
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match="commit_timeout"):
            open_repo(commit_timeout=wrong)


@pytest.mark.parametrize("limits", [{}, {"commit_timeout": TIMEOUT}], ids=["in the kernel", "in a thread"])
def test_an_interrupt_while_waiting(open_repo, hold, limits):
    """What is waited for is given back when it comes."""
    repo = open_repo(**limits)
    with repo.begin() as transaction:
        transaction["first"] = b"1"
    transaction = repo.begin()
    transaction["a"] = b"1"
    holder = hold(repo.url)
    inode = os.stat(Path(repo.url) / "locks" / "commit").st_ino

    def interrupt() -> None:
        wait_until(
            lambda: any("->" in line and f":{inode} " in line for line in Path("/proc/locks").read_text().splitlines())
        )
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        transaction.commit()
    thread.join()
    holder.release()
    wait_until(lambda: not our_threads())
    transaction.commit()
    hold(repo.url).release()


# --- elsewhere


def test_where_locks_are_of_whole_files(tmp_path: Path, warned: list[str]) -> None:
    (tmp_path / "lock").write_bytes(b"")
    with open(tmp_path / "lock", "r+b") as one, open(tmp_path / "lock", "r+b") as other:
        commit_lock.lock_file(one.fileno(), commit_lock.Wait("url", "locks/commit", None))
        with pytest.raises(txstore.CommitTimeoutError, match="does not say who it is"):
            commit_lock.lock_file(other.fileno(), commit_lock.Wait("url", "locks/commit", 0.05))
        warned.clear()
        waiting = commit_lock.Wait("url", "locks/commit", None, lambda: "somebody")
        thread = threading.Thread(target=commit_lock.lock_file, args=(other.fileno(), waiting))
        thread.start()
        wait_until(lambda: warned)
        assert "which somebody has" in warned[-1]
        fcntl.flock(one.fileno(), fcntl.LOCK_UN)
        thread.join(TIMEOUT)
        assert not thread.is_alive()
